"""What choosing the best of several costs: its figure on the texts that chose it is too high, and by how much can be estimated.

The texts are drawn anew, with replacement; the best is chosen on those that were drawn and counted on those that were not
(Tsamardinos, Greasidou and Borboudakis 2018, Machine Learning 107). Nothing is trained for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.stats.checks import numbers, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_DRAWS = 2000
_AT_A_TIME = 100  # draws that are in memory together


@dataclass(frozen=True)
class Chosen:
    """The best of several on the texts that chose it, and what other texts would give on average."""

    candidates: int
    questions: int
    best: int  # its place; the first of equals
    apparent: float
    corrected: float


def chosen_best(right: ArrayLike, seed: int = 0) -> Chosen:
    """The best of several candidates (rows) on the same questions (columns, 1 where right), and its corrected share."""
    import numpy as np

    table = numbers(right, "right and wrong", (2,))
    candidates, questions = table.shape
    require(questions > 1, "two questions at least are needed to choose on some and count on others")
    shares = table.mean(axis=1)
    generator, found = np.random.default_rng(seed), []
    for _ in range(_DRAWS // _AT_A_TIME):
        drawn = generator.multinomial(questions, np.full(questions, 1 / questions), size=_AT_A_TIME)
        rest = (drawn == 0).astype(np.float64)
        best = (drawn @ table.T).argmax(axis=1)
        counted = rest.sum(axis=1)
        known = counted > 0
        found.append(((rest * table[best]).sum(axis=1)[known]) / counted[known])
    best_place = int(shares.argmax())
    return Chosen(candidates, questions, best_place, float(shares[best_place]), float(np.concatenate(found).mean()))
