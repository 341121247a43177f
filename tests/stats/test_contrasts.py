"""Several pairs tested together, the parts of a ratio of perplexities, and which test small tables get."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, fisher_exact

from attnlab import stats
from attnlab.stats.bootstrap import log_ratio_table
from attnlab.stats.wording import contrasts

RNG = np.random.default_rng(0)
STRONG, WEAK, OTHER = ((RNG.random((3, 200)) < share).astype(float) for share in (0.7, 0.5, 0.52))


def test_pairs_of_single_runs_are_tested_by_mcnemar_with_holms_correction() -> None:
    pairs = [("a", "b", STRONG[:1], WEAK[:1], None), ("a", "c", STRONG[:1], OTHER[:1], 0.05)]
    plain = [stats.mcnemar(first[0], second[0], 0.025) for *_, first, second, _ in pairs]
    found = contrasts(pairs)
    assert [(one.a, one.b) for one in found] == [("a", "b"), ("a", "c")]
    assert [(one.low, one.high, one.p) for one in found] == [(one.low, one.high, one.p) for one in plain]
    assert [one.adjusted for one in found] == stats.holm([one.p for one in plain])
    assert found[0].sentence == f"a against b: {found[0].words}."


def test_pairs_of_several_seeds_are_tested_for_new_seeds_and_questions() -> None:
    (found,) = contrasts([("a", "b", STRONG, WEAK, None)], alpha=0.1)
    plain = stats.seeds_by_questions(STRONG, WEAK, alpha=0.1).both
    assert (found.low, found.high, found.p, found.adjusted) == (plain.low, plain.high, plain.p, plain.p)
    first, _ = contrasts([("a", "b", STRONG, WEAK, None), ("a", "c", STRONG, OTHER, None)], alpha=0.1)
    wider = stats.seeds_by_questions(STRONG, WEAK, alpha=0.05).both
    assert (first.low, first.high) == (wider.low, wider.high)
    assert first.adjusted > first.p


def test_what_sentences_add_to_a_ratio_has_the_ratio_as_its_mean() -> None:
    a, b, weights = RNG.random((2, 30)) + 2, RNG.random((2, 30)) + 1, RNG.integers(1, 9, 30).astype(float)
    table = log_ratio_table(a, b, weights)
    assert table.shape == (2, 30)
    expected = [((x - y) * weights).sum() / weights.sum() for x, y in zip(a, b, strict=True)]
    assert table.mean(axis=1) == pytest.approx(expected)


@pytest.mark.parametrize(("right_a", "right_b", "exact"), [(3, 6, True), (3, 7, False), (4, 6, False), (17, 13, False)])
def test_tables_that_expect_fewer_than_five_in_a_cell_are_tested_exactly(
    right_a: int, right_b: int, exact: bool
) -> None:
    """20 questions each: the smallest expected count is half of the smaller margin."""
    found = stats.two_proportions(right_a, 20, right_b, 20)
    table = [[right_a, 20 - right_a], [right_b, 20 - right_b]]
    fisher, chi2 = fisher_exact(table).pvalue, chi2_contingency(table, correction=False).pvalue
    assert found.p == pytest.approx(fisher if exact else chi2)
    assert fisher != pytest.approx(chi2)
