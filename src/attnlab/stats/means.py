"""Means over seeds: an interval for one, paired differences for two, and Holm's correction for more.

A seed is one draw of weights and order. Two mechanisms with the same seed share what a seed fixes, so their difference is
taken seed by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.stats.checks import numbers, paired_values, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_MOST_FLIPPED = 14  # seeds for which every one of the 2^n sign flips is tried

_ONE = "one seed, so no interval"
_EQUAL = "no spread between seeds, so no interval"


@dataclass(frozen=True)
class Mean:
    """A mean with its 95 % interval, where there is one; the note says why there is none."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    note: str = ""


def mean_interval(values: ArrayLike) -> Mean:
    """The mean over seeds with its 95 % interval (Student's t)."""
    from scipy import stats

    found = numbers(values, "the values")
    if len(found) == 1:
        return Mean(1, float(found[0]), None, None, None, _ONE)
    mean, sd = float(found.mean()), float(found.std(ddof=1))
    if found.min() == found.max():
        return Mean(len(found), float(found[0]), 0.0, None, None, _EQUAL)
    half = float(stats.t.ppf(0.975, len(found) - 1)) * sd / len(found) ** 0.5
    return Mean(len(found), mean, sd, mean - half, mean + half)


def geometric_mean(values: ArrayLike) -> float:
    """The mean of what multiplies, such as perplexities over seeds."""
    from scipy import stats

    return float(stats.gmean(numbers(values, "the values")))


@dataclass(frozen=True)
class Paired:
    """A minus B, seed by seed.

    `p` is that of the paired t test, which takes the differences for normal; `p_sign_flip` takes them for symmetric only, by
    turning the sign of each in every possible way, and cannot fall below `p_sign_flip_least`. Both are None where the
    numbers do not allow them, and the note says why.
    """

    seeds: int
    a: float
    b: float
    difference: float
    sd: float | None
    low: float | None
    high: float | None
    p: float | None
    p_sign_flip: float | None
    p_sign_flip_least: float | None
    dz: float | None  # Cohen's: the mean difference over the standard deviation of the differences
    note: str = ""


def paired(a: ArrayLike, b: ArrayLike) -> Paired:
    """The differences between two mechanisms with the same seeds: mean, 95 % interval, tests, effect size."""
    from scipy import stats

    first, second = paired_values(a, b, "the values")
    differences = first - second
    seeds = len(differences)
    spread = mean_interval(differences)
    flipped = _sign_flip(differences.tolist()) if 2 <= seeds <= _MOST_FLIPPED else None
    least = 2.0 ** (1 - seeds) if flipped is not None else None
    means = (seeds, float(first.mean()), float(second.mean()), spread.mean, spread.sd, spread.low, spread.high)
    if seeds == 1 or spread.sd == 0:
        unmoved = spread.sd == 0 and spread.mean == 0
        note = "equal with every seed" if unmoved else spread.note
        return Paired(*means, 1.0 if unmoved else None, flipped, least, 0.0 if unmoved else None, note)
    assert spread.sd is not None
    # By hand, since scipy's test warns where seeds hardly differ.
    p = 2 * float(stats.t.sf(abs(spread.mean) * seeds**0.5 / spread.sd, seeds - 1))
    return Paired(*means, p, flipped, least, spread.mean / spread.sd)


def _sign_flip(differences: Sequence[float]) -> float:
    """The share of all sign flips whose mean lies at least as far from zero as the one that was seen."""
    import numpy as np

    values = np.asarray(differences)
    flips = 1 - 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1)
    sums = np.abs(flips @ values)
    rounding = 1e-12 * float(np.abs(values).sum())  # sums that are equal on paper must count as equal
    return float((sums >= abs(values.sum()) - rounding).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for being several (Holm 1979), in the order given: below 0.05, the chance of any false find is."""
    for p in p_values:
        require(0 <= p <= 1, f"a p value must lie in [0, 1], not {p}")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted
