"""Seeds crossed with questions or sentences: what a difference would be with other seeds and other items.

Where every seed answers every question, the answers are not independent draws. McNemar's test over all of them pooled would
count a question three times because three seeds answered it, and would count two seeds with a common weakness as two
independent observations; its p is too small. `crossed` counts each question once, with its mean over seeds, counts each
seed once, with its mean over questions, and adds both variances. "No difference shown" is not "the same": that takes a test
of its own, `Crossed.within`.

With three seeds each pair of mechanisms knows the variance between its seeds badly. Several pairs can share what they know:
`shared_seeds`. benchmarks/false_positives.py measures what every part of this costs and what it prevents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from attnlab.stats.checks import Numbers, numbers, paired_answers, paired_values, require, summed

FEWEST_CLUSTERS = 6  # with fewer documents or people there is no test
_FAR = 1e4  # distance from a ratio beyond which its interval is taken to have no end
_MOST_SHARED = 5.0  # degrees of freedom that the seeds of other mechanisms count for, at most
_NOISY = 0.1  # p below which the seeds of a mechanism vary more than those of the others


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
class SharedSeeds:
    """The mean square of the seeds of a pair, to which other pairs have contributed, and its degrees of freedom."""

    square: float
    freedom: float


@dataclass(frozen=True)
class Crossed:
    """A mean over seeds x items with an interval of level 1 - alpha for new seeds and new items; None: the note says why.

    There are two standard errors: of both factors together, and of the seeds alone. Every test and interval uses the more
    cautious of the two.
    """

    seeds: int
    items: int
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    alpha: float = 0.05
    error: float | None = None  # standard error of the mean over seeds and items
    freedom: float | None = None  # its degrees of freedom
    error_seeds: float | None = None  # standard error of the means of the seeds alone; None: one seed
    freedom_seeds: float | None = None  # its degrees of freedom
    note: str = ""

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
        """Test whether the true mean lies within the margin; None where there is no test."""
        if self.error is None:
            return None
        mirrored = replace(self, mean=-self.mean)
        p = max(self.above(-margin), mirrored.above(-margin))
        return Equivalence(margin, *self.interval(2 * alpha), p, alpha)

    def chance(self, low: float, high: float = math.inf) -> float | None:
        """The probability that the true mean lies in a range, under a flat prior; None where there is no test."""
        from scipy.special import stdtr, stdtrit

        if self.error is None:
            return None
        error, freedom = max(self._scales(), key=lambda scale: float(stdtrit(scale[1], 0.975)) * scale[0])
        return float(stdtr(freedom, (high - self.mean) / error) - stdtr(freedom, (low - self.mean) / error))

    def _scales(self) -> list[tuple[float, float]]:
        """The standard errors with their degrees of freedom."""
        require(self.error is not None, "without spread there is no test")
        both = [(self.error, self.freedom), (self.error_seeds, self.freedom_seeds)]
        return [(error, freedom) for error, freedom in both if error and freedom]


def mean_squares(tables: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The mean squares of seeds, items and the rest, of tables of [..., seeds, items]; 0 where there is one level."""
    seeds, items = tables.shape[-2:]
    mean = tables.mean(axis=(-2, -1), keepdims=True)
    by_seed, by_item = tables.mean(axis=-1, keepdims=True) - mean, tables.mean(axis=-2, keepdims=True) - mean
    rest = ((tables - mean - by_seed - by_item) ** 2).sum(axis=(-2, -1))
    of_seeds, of_items = items * (by_seed**2).sum(axis=(-2, -1)), seeds * (by_item**2).sum(axis=(-2, -1))
    return of_seeds / max(1, seeds - 1), of_items / max(1, items - 1), rest / max(1, (seeds - 1) * (items - 1))


def variance_of_mean(
    squares: tuple[Numbers, Numbers, Numbers], freedoms: tuple[float | Numbers, float, float], size: int
) -> tuple[Numbers, Numbers]:
    """The variance of the mean of a table, from the mean squares of seeds, items and the rest, and its degrees of freedom.

    By chance the sum may be smaller than one of its parts; the part is then used, as the more cautious of the two.
    """
    of_seeds, of_items, rest = squares
    total, largest = of_seeds + of_items - rest, np.maximum(of_seeds, of_items)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing varies
        freedom = total**2 / sum(
            square**2 / np.maximum(1.0, free) for square, free in zip(squares, freedoms, strict=True)
        )
    freedom = np.where(total > largest, freedom, np.where(of_seeds >= of_items, *freedoms[:2]))
    return np.maximum(total, largest) / size, freedom


def crossed(
    values: ArrayLike,
    alpha: float = 0.05,
    clusters: Sequence[int] | None = None,
    shared: SharedSeeds | None = None,
) -> Crossed:
    """The mean of a table of seeds x items, both taken as samples: analysis of variance with two crossed random factors.

    The variance of the mean is (MS seeds + MS items - MS rest) / size, its degrees of freedom Satterthwaite's: the quasi-F
    of Clark (1973). With few seeds its tail is too light: where the seeds' mean square happens to be small, it relies on the
    many degrees of freedom of the items. So the paired t test over the means of the seeds must agree: the larger p and the
    wider interval count. With one seed (or item) it is the t interval over the other factor, and holds for that seed only.

    `clusters` are numbers that items of one document or person share: clusters then take the place of items. If a few of
    them are much larger than the others, they count as fewer (Kish 1965: the squared sum of their sizes over the sum of
    squares). `shared` takes the place of the table's own variance between seeds.
    """
    table, counted = numbers(values, "the differences", (2,)), float(np.shape(values)[1])
    if clusters is not None:
        table, counted = by_cluster(table, clusters), effective_clusters(clusters)
    (seeds, items), mean = table.shape, float(table.mean())
    if clusters is not None and items < FEWEST_CLUSTERS:
        few = f"{items} documents or people, whose items are alike, are too few for a test: use at least {FEWEST_CLUSTERS}"
        return Crossed(seeds, items, mean, alpha=alpha, note=few)
    of_seeds, of_items, rest = mean_squares(table)
    freedom_seeds = float(seeds - 1)
    if shared is not None:
        of_seeds, freedom_seeds = np.asarray(shared.square), shared.freedom
    freedoms = (freedom_seeds, max(1.0, counted - 1), float((seeds - 1) * (items - 1)))
    variance, freedom = (float(one) for one in variance_of_mean((of_seeds, of_items, rest), freedoms, table.size))
    # Rounding leaves a small variance where there is none.
    if variance <= (1e-14 * float(abs(table).max())) ** 2:
        p = 1.0 if mean == 0 else None
        return Crossed(seeds, items, mean, p=p, alpha=alpha, note="nothing varies: run more to generalise")
    alone = (math.sqrt(of_seeds / table.size), freedom_seeds) if seeds > 1 else (None, None)
    test = Crossed(seeds, items, mean, None, None, None, alpha, math.sqrt(variance), freedom, *alone)
    low, high = test.interval(alpha)
    p = 2 * min(test.above(0.0), replace(test, mean=-mean).above(0.0))
    return replace(test, low=low, high=high, p=min(1.0, p))


def effective_clusters(clusters: Sequence[int]) -> float:
    """As how many clusters of one size these count."""
    sizes = np.unique(np.asarray(clusters), return_counts=True)[1]
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def shared_freedom(seeds: int, sharing: int) -> float:
    """The degrees of freedom that the seeds of the others count for, of so many mechanisms that share: half of theirs."""
    return min(_MOST_SHARED, (seeds - 1) * (sharing - 1) / 2) if seeds > 2 else 0.0


def has_reference(pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether one mechanism is in all pairs."""
    return bool(pairs) and bool(set.intersection(*map(set, pairs)))


def shared_seeds(
    tables: Mapping[str, ArrayLike], pairs: Sequence[tuple[str, str]], clusters: Sequence[int] | None = None
) -> list[SharedSeeds | None]:
    """For each pair of mechanisms what its seeds vary by, also from the other pairs; tables are seeds x items.

    The mean square of a mechanism is drawn towards the mean of the others, as by Smyth (2004), and those of a pair are added,
    with Welch's degrees of freedom. The weight of the others is fixed, since a handful of variances with two degrees of
    freedom each do not tell how different the true ones are. A mechanism of several pairs (the reference) keeps its own mean
    square, since an error in it would make all pairs wrong at once. So does one whose seeds vary more than those of the others
    (F test, p below 0.1). The same seed of two mechanisms is taken as two independent ones. None: nothing is shared, as with
    two seeds, two mechanisms, or pairs that do not all have the reference.
    """
    from scipy.stats import f

    own = {name: numbers(table, "the values", (2,)) for name, table in tables.items()}
    if clusters is not None:
        own = {name: by_cluster(table, clusters) for name, table in own.items()}
    free = next(iter(own.values())).shape[0] - 1
    squares = {name: float(mean_squares(table)[0]) for name, table in own.items()}
    sharing = [name for name in own if sum(name in pair for pair in pairs) == 1]
    weight = shared_freedom(free + 1, len(sharing)) if has_reference(pairs) else 0.0
    scales = {name: (square, float(free)) for name, square in squares.items()}
    moderated = set()
    for name in sharing if weight > 0 and len(own) > 2 else []:
        others = sum(squares[other] for other in sharing if other != name) / (len(sharing) - 1)
        if others > 0 and f.sf(squares[name] / others, free, free * (len(sharing) - 1)) > _NOISY:
            scales[name] = ((free * squares[name] + weight * others) / (free + weight), free + weight)
            moderated.add(name)
    return [_added(scales[a], scales[b]) if moderated & {a, b} else None for a, b in pairs]


def _added(first: tuple[float, float], second: tuple[float, float]) -> SharedSeeds:
    """The mean square of a difference from those of its two sides, with Welch's degrees of freedom."""
    total = first[0] + second[0]
    return SharedSeeds(total, total**2 / sum(square**2 / freedom for square, freedom in (first, second)))


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
    shared: SharedSeeds | None = None,
) -> SeedsByQuestions:
    """Compare tables of right and wrong answers, one row per seed and one column per question."""
    first, second = paired_answers(right_a, right_b, (2,))
    differences = first - second
    both = crossed(differences, alpha, clusters, shared)
    if both.low is not None and both.high is not None:
        both = replace(both, low=max(-1.0, both.low), high=min(1.0, both.high))
    return SeedsByQuestions(
        seeds=len(differences),
        questions=differences.shape[1],
        a=float(first.mean()),
        b=float(second.mean()),
        difference=float(differences.mean()),
        both=both,
        equivalence=None if margin is None else _equivalent(differences, margin, alpha, clusters, shared),
    )


def _equivalent(
    differences: Numbers, margin: float, alpha: float, clusters: Sequence[int] | None, shared: SharedSeeds | None
) -> Equivalence | None:
    """The test of equivalence on a table with two questions more, which differ in opposite directions.

    Without them intervals are too narrow where few answers differ (Bonett and Price 2012), as they do between equivalents.
    """
    if clusters is not None and len(set(clusters)) < FEWEST_CLUSTERS:
        return None
    seeds = len(differences)
    padded = np.column_stack([np.ones(seeds), -np.ones(seeds), differences])
    more = None if clusters is None else [-1, -2, *clusters]
    return crossed(padded, alpha, more, shared).within(margin, alpha)


@dataclass(frozen=True)
class Perplexities:
    """Two token perplexities on the same sentences, each the geometric mean over seeds; the ratio is A over B.

    `both` is about the logarithm of the ratio: for new seeds and new sentences, with one seed for new sentences only.
    """

    seeds: int
    sentences: int
    a: float
    b: float
    ratio: float
    both: Crossed
    equivalence: Equivalence | None = None  # of the logarithm of the ratio


def log_perplexities(losses: ArrayLike, tokens: ArrayLike | None) -> Numbers:
    """What each sentence adds to the logarithm of a perplexity, to first order: seeds x sentences, whose means it is.

    Token perplexity weighs the losses by the tokens of the sentences; without `tokens` it is sentence perplexity, the mean of
    exp(loss).
    """
    table = numbers(losses, "the losses", (2,))
    if tokens is None:
        values, sizes = np.exp(table), np.ones(table.shape[1])
        means = values.mean(axis=1, keepdims=True)
        return np.asarray(np.log(means) + values / means - 1)
    sizes = numbers(tokens, "the tokens")
    require(len(sizes) == table.shape[1], f"there must be one number of tokens per sentence: {table.shape[1]:,}")
    require(bool((sizes > 0).all()), "the numbers of tokens must be above 0: leave out sentences without tokens")
    logs = (table * sizes).sum(axis=1, keepdims=True) / sizes.sum()
    return np.asarray(logs + sizes / sizes.mean() * (table - logs))


def compare_perplexities(
    losses_a: ArrayLike,
    losses_b: ArrayLike,
    tokens: ArrayLike,
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    clusters: Sequence[int] | None = None,
    shared: SharedSeeds | None = None,
) -> Perplexities:
    """Compare the token perplexities of two models from the mean loss of every sentence, one row per seed.

    `margin` is a relative difference: 0.01 asks whether the ratio lies within 1 %.
    """
    first, second = (log_perplexities(one, tokens) for one in paired_values(losses_a, losses_b, "the losses", (2,)))
    both = crossed(first - second, alpha, clusters, shared)
    a, b = (math.exp(table.mean()) for table in (first, second))
    same = None if margin is None else both.within(math.log1p(margin), alpha)
    seeds, sentences = first.shape
    return Perplexities(seeds, sentences, a, b, math.exp(both.mean), both, same)
