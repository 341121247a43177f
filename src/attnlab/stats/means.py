"""Means over seeds: an interval for one, paired differences for two, Holm's correction for more, and seeds crossed with
questions or sentences.

A seed fixes the initial weights and the order of the data. Two mechanisms with the same seed share both, so their difference
is taken seed by seed.

Where every seed answers every question, the answers are not independent draws. McNemar's test over all of them pooled would
count a question three times because three seeds answered it, and would count two seeds with a common weakness as two
independent observations; its p is too small. `crossed` counts each question once, with its mean over seeds, counts each
seed once, with its mean over questions, and adds both variances. "No difference shown" is not "the same": that takes a test
of its own, `Crossed.within`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnlab.stats.bootstrap import Bootstrapped, bootstrap_mean, summed
from attnlab.stats.checks import numbers, paired_answers, paired_values, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnlab.stats.checks import Numbers

_MOST_FLIPPED = 14  # seeds for which every one of the 2^n sign flips is tried

_FAR = 1e4  # distance from a ratio beyond which its interval is taken to have no end

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
    error_seeds: (
        float | None
    )  # standard error of the means of the seeds alone, which more seeds would lower; None: one seed
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
    alone = {name: value for name, value in means.items() if name != "rest" and value == largest}
    used = means if summed > largest else dict(list(alone.items())[:1])
    variance = max(summed, largest) / table.size
    parts = [math.sqrt(means[name] / table.size) if name in means else None for name in ("seeds", "items")]
    # Rounding leaves a small variance where there is none.
    if variance <= (1e-14 * float(abs(table).max())) ** 2:
        p = 1.0 if mean == 0 else None
        return Crossed(seeds, items, mean, None, None, p, alpha, None, None, *parts)
    freedom = sum(signs[name] * value for name, value in used.items()) ** 2 / sum(
        value**2 / squares[name][1] for name, value in used.items()
    )
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
    import numpy as np

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
    over_questions: Bootstrapped  # these seeds, new questions
    over_seeds: Paired  # new seeds, these questions
    both: Crossed  # new seeds and new questions: what a claim about the mechanisms needs
    equivalence: Equivalence | None = None


def seeds_by_questions(
    right_a: ArrayLike,
    right_b: ArrayLike,
    resamples: int = 10_000,
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
        over_questions=bootstrap_mean(differences.mean(axis=0), resamples, clusters=clusters),
        over_seeds=paired(first.mean(axis=1), second.mean(axis=1)),
        both=both,
        equivalence=_equivalent(differences, margin, alpha, clusters) if margin is not None else None,
    )


def _equivalent(
    differences: Numbers, margin: float, alpha: float, clusters: Sequence[int] | None
) -> Equivalence | None:
    """The test of equivalence on a table with two questions more, which differ in opposite directions.

    Without them intervals are too narrow where few answers differ (Bonett and Price 2012), as they do between equivalents.
    """
    import numpy as np

    seeds = len(differences)
    padded = np.column_stack([np.ones(seeds), -np.ones(seeds), differences])
    more = None if clusters is None else [-1, -2, *clusters]
    return crossed(padded, alpha, more).within(margin, alpha)
