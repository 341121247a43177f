"""Means over seeds: an interval for one, paired differences for two, Holm's correction for more, seeds crossed with
questions or sentences, and plans of how many seeds and items a difference takes.

A seed fixes the initial weights and the order of the data. Two mechanisms with the same seed share both, so their difference
is taken seed by seed.

Where every seed answers every question, the answers are not independent draws. McNemar's test over all of them pooled would
count a question three times because three seeds answered it, and would count two seeds with a common weakness as two
independent observations; its p is too small. `crossed` counts each question once, with its mean over seeds, counts each
seed once, with its mean over questions, and adds both variances. "No difference shown" is not "the same": that takes a test
of its own, `Crossed.within`.

The power of `crossed`, the chance that it finds a true difference, depends on how much differences vary between seeds, between
items and otherwise. Only a pilot can tell: `variance_components` reads it. Few seeds tell the variance between seeds badly, so
its upper limit is kept too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from attnlab.stats.checks import (
    Numbers,
    check_count,
    check_level,
    numbers,
    paired_answers,
    paired_values,
    require,
    summed,
)

_FAR = 1e4  # distance from a ratio beyond which its interval is taken to have no end
_POWER = 0.8  # of plans: 4 of 5 comparisons find the difference
_DRAWS = 1024  # of the mean squares: the power is known within 0.1 %
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


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests (TOST) of the claim that a difference lies between -margin and margin.

    The interval has level 1 - 2 alpha: it lies within the margin exactly if p is below alpha.
    """

    margin: float
    low: float
    high: float
    p: float
    alpha: float

    @property
    def shown(self) -> bool:
        """Whether the difference is shown to be smaller than the margin."""
        return self.p < self.alpha


@dataclass(frozen=True)
class Crossed:
    """A mean over seeds x items with an interval of level 1 - alpha for new seeds and new items; None: no spread.

    There are two standard errors: of both factors together, and of the seeds alone. Every test and interval uses the more
    cautious of the two.
    """

    seeds: int
    items: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    alpha: float
    error: float | None  # standard error of the mean over seeds and items
    freedom: float | None  # its degrees of freedom
    error_seeds: float | None  # standard error of the means of the seeds alone; None: one seed
    error_items: float | None  # and of the means of the items alone; None: one item

    def above(self, value: float) -> float:
        """P of the one-sided test of the claim that the true mean is above a value."""
        from scipy.special import stdtr  # scipy.stats.t without its checks, which take most of the time

        return max(float(stdtr(freedom, (value - self.mean) / error)) for error, freedom in self._scales())

    def interval(self, alpha: float) -> tuple[float, float]:
        """The interval of level 1 - alpha."""
        from scipy.special import stdtrit

        half = max(float(stdtrit(freedom, 1 - alpha / 2)) * error for error, freedom in self._scales())
        return self.mean - half, self.mean + half

    def within(self, margin: float, alpha: float) -> Equivalence | None:
        """Test whether the true mean lies within the margin; None where there is no spread."""
        if self.error is None:
            return None
        mirrored = replace(self, mean=-self.mean)
        p = max(self.above(-margin), mirrored.above(-margin))
        return Equivalence(margin, *self.interval(2 * alpha), p, alpha)

    def _scales(self) -> list[tuple[float, float]]:
        """The standard errors with their degrees of freedom."""
        require(self.error is not None, "without spread there is no test")
        both = [(self.error, self.freedom), (self.error_seeds, self.seeds - 1)]
        return [(error, freedom) for error, freedom in both if error and freedom]


def mean_squares(tables: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The mean squares of seeds, items and the rest, of tables of [..., seeds, items]; 0 where there is one level."""
    seeds, items = tables.shape[-2:]
    mean = tables.mean(axis=(-2, -1), keepdims=True)
    by_seed, by_item = tables.mean(axis=-1, keepdims=True) - mean, tables.mean(axis=-2, keepdims=True) - mean
    rest = ((tables - mean - by_seed - by_item) ** 2).sum(axis=(-2, -1))
    of_seeds, of_items = items * (by_seed**2).sum(axis=(-2, -1)), seeds * (by_item**2).sum(axis=(-2, -1))
    return of_seeds / max(1, seeds - 1), of_items / max(1, items - 1), rest / max(1, (seeds - 1) * (items - 1))


def _variance_of_mean(squares: tuple[Numbers, Numbers, Numbers], seeds: int, items: int) -> tuple[Numbers, Numbers]:
    """The variance of the mean, from the mean squares of seeds, items and the rest, and its degrees of freedom.

    By chance the sum may be smaller than one of its parts; the part is then used, as the more cautious of the two.
    """
    of_seeds, of_items, rest = squares
    total, largest = of_seeds + of_items - rest, np.maximum(of_seeds, of_items)
    freedoms = (max(1, seeds - 1), max(1, items - 1), max(1, (seeds - 1) * (items - 1)))
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing varies
        freedom = total**2 / sum(square**2 / free for square, free in zip(squares, freedoms, strict=True))
    freedom = np.where(total > largest, freedom, np.where(of_seeds >= of_items, seeds - 1, items - 1))
    return np.maximum(total, largest) / (seeds * items), freedom


def crossed(values: ArrayLike, alpha: float = 0.05, clusters: Sequence[int] | None = None) -> Crossed:
    """The mean of a table of seeds x items, both taken as samples: analysis of variance with two crossed random factors.

    The variance of the mean is (MS seeds + MS items - MS rest) / size, its degrees of freedom Satterthwaite's: the quasi-F
    of Clark (1973). With few seeds its tail is too light: where the seeds' mean square happens to be small, it relies on the
    many degrees of freedom of the items. So the paired t test over the means of the seeds must agree: the larger p and the
    wider interval count (benchmarks/false_positives.py shows what this costs and what it prevents). With one seed (or item)
    it is the t interval over the other factor, and holds for that seed only.

    `clusters` are numbers that items of one document or person share: clusters then take the place of items.
    """
    table = numbers(values, "the differences", (2,))
    if clusters is not None:
        table = by_cluster(table, clusters)
    seeds, items = table.shape
    mean, squares = float(table.mean()), mean_squares(table)
    variance, freedom = (float(value) for value in _variance_of_mean(squares, seeds, items))
    errors = [math.sqrt(square / table.size) for square in squares[:2]]
    parts = [error if levels > 1 else None for error, levels in zip(errors, (seeds, items), strict=True)]
    # Rounding leaves a small variance where there is none.
    if variance <= (1e-14 * float(abs(table).max())) ** 2:
        p = 1.0 if mean == 0 else None
        return Crossed(seeds, items, mean, None, None, p, alpha, None, None, *parts)
    test = Crossed(seeds, items, mean, None, None, None, alpha, math.sqrt(variance), freedom, *parts)
    low, high = test.interval(alpha)
    p = 2 * min(test.above(0.0), replace(test, mean=-mean).above(0.0))
    return replace(test, low=low, high=high, p=min(1.0, p))


@dataclass(frozen=True)
class RatioOfMeans:
    """The mean of one table over that of another, with an interval of level 1 - alpha; None: it has no end."""

    value: float
    low: float | None
    high: float | None
    alpha: float


def ratio_of_means(
    part: ArrayLike, whole: ArrayLike, alpha: float = 0.05, clusters: Sequence[int] | None = None
) -> RatioOfMeans:
    """The ratio of the means of two tables of seeds x items that belong together.

    Its interval holds every ratio that the test of `crossed` does not reject (Fieller 1954). It has no end where the second
    mean is not shown to differ from 0.
    """
    first, second = paired_values(part, whole, "the values", (2,))
    require(float(second.mean()) != 0, "the second mean is 0: there is no ratio")
    value = float(first.mean() / second.mean())

    def rejected(ratio: float) -> bool:
        p = crossed(first - ratio * second, alpha, clusters).p
        return p is not None and p < alpha

    def end(direction: int) -> float | None:
        step = 1e-3
        while not rejected(value + direction * step):
            step *= 2
            if step > _FAR:
                return None
        inside, outside = 0.0, step
        while outside - inside > 1e-6 * step:
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if rejected(value + direction * middle) else (middle, outside)
        return value + direction * outside

    return RatioOfMeans(value, end(-1), end(1), alpha)


def by_cluster(table: Numbers, clusters: Sequence[int]) -> Numbers:
    """A table of seeds x clusters whose means over clusters are those of the items (to first order, by their sizes)."""
    sums = summed(np.column_stack([table.T, np.ones(table.shape[1])]), clusters).T
    values, sizes, means = sums[:-1], sums[-1], table.mean(axis=1, keepdims=True)
    return np.asarray(means + (values - means * sizes) / sizes.mean())


@dataclass(frozen=True)
class SeedsByQuestions:
    """Exact match of two mechanisms, several seeds each, on the same questions; differences are A minus B."""

    seeds: int
    questions: int
    a: float
    b: float
    difference: float
    both: Crossed  # new seeds and new questions: what a claim about the mechanisms needs
    equivalence: Equivalence | None = None


def seeds_by_questions(
    right_a: ArrayLike,
    right_b: ArrayLike,
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    clusters: Sequence[int] | None = None,
) -> SeedsByQuestions:
    """Compare tables of right and wrong answers, one row per seed and one column per question."""
    first, second = paired_answers(right_a, right_b, (2,))
    differences = first - second
    both = crossed(differences, alpha, clusters)
    if both.low is not None and both.high is not None:
        both = replace(both, low=max(-1.0, both.low), high=min(1.0, both.high))
    return SeedsByQuestions(
        seeds=len(differences),
        questions=differences.shape[1],
        a=float(first.mean()),
        b=float(second.mean()),
        difference=float(differences.mean()),
        both=both,
        equivalence=_equivalent(differences, margin, alpha, clusters) if margin is not None else None,
    )


def _equivalent(
    differences: Numbers, margin: float, alpha: float, clusters: Sequence[int] | None
) -> Equivalence | None:
    """The test of equivalence on a table with two questions more, which differ in opposite directions.

    Without them intervals are too narrow where few answers differ (Bonett and Price 2012), as they do between equivalents.
    """
    seeds = len(differences)
    padded = np.column_stack([np.ones(seeds), -np.ones(seeds), differences])
    more = None if clusters is None else [-1, -2, *clusters]
    return crossed(padded, alpha, more).within(margin, alpha)


# Planning: the smallest difference that a number of seeds and items would find


@dataclass(frozen=True)
class Components:
    """Variances of paired differences: between seeds, between items, and the rest.

    `most_seeds` is the variance between seeds at the upper 80 % limit of its mean square.
    """

    seeds: float
    items: float
    rest: float
    most_seeds: float

    @property
    def cautious(self) -> Components:
        """The same, with seeds that vary as much as the pilot allows."""
        return replace(self, seeds=self.most_seeds)


def variance_components(tables: Sequence[ArrayLike]) -> Components:
    """The variances of a pilot, from one table of paired differences (seeds x items) per pair; below 0 they become 0.

    The limit has the degrees of freedom of one pair, since pairs share the runs of their reference.
    """
    from scipy.stats import chi2

    arrays = [numbers(table, "the differences of a pilot", (2,)) for table in tables]
    require(len({table.shape for table in arrays}) == 1, "all pairs of a pilot must have the same seeds and items")
    seeds, items = arrays[0].shape
    require(min(seeds, items) > 1, f"a pilot needs at least 2 seeds and 2 items, not {seeds} and {items}")
    of_seeds, of_items, rest = (float(squares.mean()) for squares in mean_squares(np.stack(arrays)))
    most = of_seeds * (seeds - 1) / float(chi2.ppf(1 - _POWER, seeds - 1))
    parts = ((of_seeds - rest) / items, (of_items - rest) / seeds, rest, (most - rest) / items)
    return Components(*(max(0.0, part) for part in parts))


def half_widths(squares: tuple[Numbers, Numbers, Numbers], seeds: int, items: int, alpha: float) -> Numbers:
    """Half the intervals of `crossed` for mean squares of seeds, items and the rest: vectorised, for simulations."""
    from scipy.special import stdtrit

    variance, freedom = _variance_of_mean(squares, seeds, items)
    both = stdtrit(freedom, 1 - alpha / 2) * np.sqrt(variance)
    alone = stdtrit(seeds - 1, 1 - alpha / 2) * np.sqrt(squares[0] / (seeds * items))
    return np.asarray(np.maximum(both, alone))


def _power_by_difference(parts: Components, seeds: int, items: int, alpha: float) -> Callable[[float], float]:
    """The power of `crossed` as a function of the true difference.

    The mean squares are drawn from their laws (multiples of chi-square), with the same random numbers for every plan. The
    mean is normal and independent of them, so its part is exact.
    """
    from scipy.special import gammaincinv, ndtr

    check_level(alpha, "alpha")
    require(check_count(seeds, "seeds") > 1, "one seed says nothing about other seeds: plan at least 2")
    check_count(items, "items", 2)
    require(parts.seeds + parts.items + parts.rest > 0, "without any variance there is nothing to plan")
    expected = (items * parts.seeds + parts.rest, seeds * parts.items + parts.rest, parts.rest)
    freedoms = (seeds - 1, items - 1, (seeds - 1) * (items - 1))
    generator = np.random.default_rng(0)
    drawn = [(generator.permutation(_DRAWS) + 0.5) / _DRAWS for _ in freedoms]  # evenly spread: a Latin hypercube
    of_seeds, of_items, rest = (
        mean * gammaincinv(freedom / 2, share) * 2 / freedom
        for mean, freedom, share in zip(expected, freedoms, drawn, strict=True)
    )
    half = half_widths((of_seeds, of_items, rest), seeds, items, alpha)
    error = math.sqrt((expected[0] + expected[1] - expected[2]) / (seeds * items))
    return lambda difference: float((ndtr((difference - half) / error) + ndtr((-difference - half) / error)).mean())


def power(parts: Components, seeds: int, items: int, difference: float, alpha: float = 0.05) -> float:
    """The chance that `crossed` finds a true difference with this many seeds and items."""
    return _power_by_difference(parts, seeds, items, alpha)(difference)


def smallest_difference(parts: Components, seeds: int, items: int, alpha: float = 0.05) -> float:
    """The smallest true difference that `crossed` finds with 80 % power."""
    from scipy.optimize import brentq

    power_of = _power_by_difference(parts, seeds, items, alpha)
    high = math.sqrt(parts.seeds + parts.items + parts.rest)
    while power_of(high) < _POWER:
        high *= 2
    return float(brentq(lambda difference: power_of(difference) - _POWER, 0.0, high, xtol=1e-6 * high))
