"""What choosing the best of several flatters by: found where there is nothing to choose, and nothing where one is better."""

from __future__ import annotations

import numpy as np
import pytest

from attnlab.errors import UserError
from attnlab.stats import chosen_best


def test_among_coins_the_choice_is_all_there_is() -> None:
    """Twenty sets of twenty coins: the highest share lies well above a half, its corrected one at a half on average."""
    generator = np.random.default_rng(7)
    found = [chosen_best(generator.integers(0, 2, size=(20, 100)), seed) for seed in range(20)]
    assert np.mean([one.apparent for one in found]) > 0.57
    assert np.mean([one.corrected for one in found]) == pytest.approx(0.5, abs=0.02)


def test_one_that_is_clearly_better_is_not_flattered() -> None:
    generator = np.random.default_rng(1)
    right = (generator.random((5, 400)) < np.array([0.5, 0.5, 0.9, 0.5, 0.5])[:, None]).astype(int)
    found = chosen_best(right)
    assert found.best == 2
    assert found.apparent == right[2].mean()
    assert found.corrected == pytest.approx(found.apparent, abs=0.005)


def test_one_candidate_and_the_first_of_equals() -> None:
    alone = chosen_best([[1, 0, 1, 1]])
    assert (alone.best, alone.apparent) == (0, 0.75)
    assert alone.corrected == pytest.approx(0.75, abs=0.02)
    assert chosen_best([[1, 0], [0, 1]]).best == 0
    with pytest.raises(UserError, match="two questions at least"):
        chosen_best([[1], [0]])
