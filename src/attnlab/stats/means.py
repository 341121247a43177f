"""Means over seeds: an interval for one, paired differences for two, Holm's correction for more.

A seed fixes the initial weights and the order of the data. Two mechanisms with the same seed share both, so their difference
is taken seed by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from attnlab.stats.checks import numbers, paired_values, require

_ONE = "one seed, so no interval"
_EQUAL = "no spread between seeds, so no interval"


@dataclass(frozen=True)
class Mean:
    """A mean with its interval of level 1 - alpha; where there is none, the note says why."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    note: str = ""


def mean_interval(values: ArrayLike, alpha: float = 0.05) -> Mean:
    """The mean over seeds with its interval (Student's t)."""
    from scipy import stats

    sample = numbers(values, "the values")
    if len(sample) == 1:
        return Mean(1, float(sample[0]), None, None, None, _ONE)
    mean, sd = float(sample.mean()), float(sample.std(ddof=1))
    if sample.min() == sample.max():
        return Mean(len(sample), float(sample[0]), 0.0, None, None, _EQUAL)
    half = float(stats.t.ppf(1 - alpha / 2, len(sample) - 1)) * sd / len(sample) ** 0.5
    return Mean(len(sample), mean, sd, mean - half, mean + half)


def geometric_mean(values: ArrayLike) -> float:
    """The mean of quantities that multiply, such as perplexities over seeds."""
    from scipy import stats

    return float(stats.gmean(numbers(values, "the values")))


@dataclass(frozen=True)
class Paired:
    """A minus B, seed by seed, with the paired t test; where the numbers do not allow it, the note says why."""

    seeds: int
    a: float
    b: float
    difference: float
    sd: float | None
    low: float | None
    high: float | None
    p: float | None
    note: str = ""


def paired(a: ArrayLike, b: ArrayLike) -> Paired:
    """The differences between two mechanisms with the same seeds: mean, 95 % interval and t test."""
    from scipy import stats

    first, second = paired_values(a, b, "the values")
    differences = first - second
    seeds = len(differences)
    spread = mean_interval(differences)
    means = (seeds, float(first.mean()), float(second.mean()), spread.mean, spread.sd, spread.low, spread.high)
    if seeds == 1 or spread.sd == 0:
        unmoved = spread.sd == 0 and spread.mean == 0
        return Paired(*means, *((1.0, "equal with every seed") if unmoved else (None, spread.note)))
    assert spread.sd is not None
    # Not scipy.stats.ttest_rel, which warns where seeds hardly differ.
    p = 2 * float(stats.t.sf(abs(spread.mean) * seeds**0.5 / spread.sd, seeds - 1))
    return Paired(*means, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for multiple comparisons (Holm 1979), in the order given.

    Calling those below 0.05 differences keeps the chance of any false one below 0.05.
    """
    for p in p_values:
        require(0 <= p <= 1, f"a p value must lie in [0, 1], not {p}")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted
