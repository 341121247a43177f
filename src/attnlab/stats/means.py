"""Means over seeds: an interval for one, paired differences for two, Holm's correction for more, and seeds crossed with
questions or sentences.

A seed fixes the initial weights and the order of the data. Two mechanisms with the same seed share both, so their difference
is taken seed by seed.

Where every seed answers every question, the answers are not independent draws. McNemar's test over all of them pooled would
count a question three times because three seeds answered it, and would count two seeds with a common weakness as two
independent observations; its p is too small. `crossed` counts each question once, with its mean over seeds, counts each
seed once, with its mean over questions, and adds both variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.stats.bootstrap import Bootstrapped, bootstrap_mean
from attnlab.stats.checks import numbers, paired_answers, paired_values, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_MOST_FLIPPED = 14  # seeds for which every one of the 2^n sign flips is tried

_ONE = "one seed, so no interval"
_EQUAL = "no spread between seeds, so no interval"


@dataclass(frozen=True)
class Mean:
    """A mean with its 95 % interval; where there is none, the note says why."""

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
    """The mean of quantities that multiply, such as perplexities over seeds."""
    from scipy import stats

    return float(stats.gmean(numbers(values, "the values")))


@dataclass(frozen=True)
class Paired:
    """A minus B, seed by seed.

    `p` belongs to the paired t test, which assumes normal differences. `p_sign_flip` assumes only that they are symmetric
    about 0: it tries every combination of signs, and cannot fall below `p_sign_flip_least`. Both are None where the numbers
    do not allow them, and the note says why.
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
    # Not scipy.stats.ttest_rel, which warns where seeds hardly differ.
    p = 2 * float(stats.t.sf(abs(spread.mean) * seeds**0.5 / spread.sd, seeds - 1))
    return Paired(*means, p, flipped, least, spread.mean / spread.sd)


def _sign_flip(differences: Sequence[float]) -> float:
    """The share of all sign flips whose mean is at least as far from zero as the observed one."""
    import numpy as np

    values = np.asarray(differences)
    flips = 1 - 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1)
    sums = np.abs(flips @ values)
    rounding = 1e-12 * float(np.abs(values).sum())  # sums that are equal in exact arithmetic must count as equal
    return float((sums >= abs(values.sum()) - rounding).mean())


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


@dataclass(frozen=True)
class Crossed:
    """A mean over seeds x items with a 95 % interval for new seeds and new items; None where there is no spread."""

    seeds: int
    items: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    freedom: float | None  # degrees of freedom of the t distribution behind the interval
    error_seeds: float | None  # the part of the standard error that more seeds would lower; None: one seed
    error_items: float | None  # and the part that more items would lower; None: one item


def crossed(values: ArrayLike) -> Crossed:
    """The mean of a table of seeds x items, both taken as samples: analysis of variance with two crossed random factors.

    The variance of the mean is (MS seeds + MS items - MS rest) / size, its degrees of freedom Satterthwaite's: the quasi-F
    of Clark (1973). In simulations with 3 seeds the interval covers the truth in 92 to 97 of 100 cases, whichever factor
    varies more; intervals over questions alone fall to 39. With one seed (or item) it is the t interval over the other
    factor, and holds for that seed only.
    """
    from scipy.stats import t

    table = numbers(values, "the differences", (2,))
    seeds, items = table.shape
    mean = float(table.mean())
    by_seed, by_item = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_item[None, :] + mean
    squares: dict[str, tuple[float, int]] = {
        "seeds": (items * float(((by_seed - mean) ** 2).sum()), seeds - 1),
        "items": (seeds * float(((by_item - mean) ** 2).sum()), items - 1),
        "rest": (float((rest**2).sum()), (seeds - 1) * (items - 1)),
    }
    means = {name: total / freedom for name, (total, freedom) in squares.items() if freedom > 0}
    signs = {"seeds": 1, "items": 1, "rest": -1}
    summed = sum(signs[name] * value for name, value in means.items())
    # By chance the sum may be smaller than one of its parts; the part is then used, as the more cautious of the two.
    largest = max((means[name] for name in ("seeds", "items") if name in means), default=0.0)
    used = means if summed > largest else {name: value for name, value in means.items() if value == largest}
    variance = max(summed, largest) / table.size
    errors = [math.sqrt(means[name] / table.size) if name in means else None for name in ("seeds", "items")]
    # Rounding leaves a small variance where there is none.
    if variance <= (1e-14 * float(abs(table).max())) ** 2:
        return Crossed(seeds, items, mean, None, None, 1.0 if mean == 0 else None, None, *errors)
    freedom = sum(signs[name] * value for name, value in used.items()) ** 2 / sum(
        value**2 / squares[name][1] for name, value in used.items()
    )
    error = math.sqrt(variance)
    half, p = float(t.ppf(0.975, freedom)) * error, 2 * float(t.sf(abs(mean) / error, freedom))
    return Crossed(seeds, items, mean, mean - half, mean + half, p, freedom, *errors)


@dataclass(frozen=True)
class SeedsByQuestions:
    """Exact match of two mechanisms, several seeds each, on the same questions; differences are A minus B."""

    seeds: int
    questions: int
    a: float
    b: float
    difference: float
    over_questions: Bootstrapped  # these seeds, new questions
    over_seeds: Paired  # new seeds, these questions
    both: Crossed  # new seeds and new questions: what a claim about the mechanisms needs


def seeds_by_questions(right_a: ArrayLike, right_b: ArrayLike, resamples: int = 10_000) -> SeedsByQuestions:
    """Compare tables of right and wrong answers, one row per seed and one column per question."""
    first, second = paired_answers(right_a, right_b, (2,))
    differences = first - second
    return SeedsByQuestions(
        seeds=len(differences),
        questions=differences.shape[1],
        a=float(first.mean()),
        b=float(second.mean()),
        difference=float(differences.mean()),
        over_questions=bootstrap_mean(differences.mean(axis=0), resamples),
        over_seeds=paired(first.mean(axis=1), second.mean(axis=1)),
        both=crossed(differences),
    )
