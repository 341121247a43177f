"""Bootstrap over sentences or questions: what the result would have been on other samples of them.

`paired_bootstrap` compares two perplexities of the same sentences. There are two, and they must never share a name: token
perplexity, exp(mean loss per token), and sentence perplexity, the mean over sentences of exp(mean loss of the sentence's
tokens). The second is always the larger and depends on the hardest sentences.

Intervals are BCa (Efron 1987), which follow the skew that a few hard sentences give to a perplexity. The same seed gives the
same draws. Each draw is a vector of counts, so that all sums of a chunk of draws are one matrix product.

`chosen_best` estimates how optimistic the figure of the best of several candidates is: the best is chosen on the questions
drawn and scored on the questions not drawn (Tsamardinos, Greasidou and Borboudakis 2018, Machine Learning 107).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from attnlab.stats.checks import Numbers, check_count, numbers, paired_values, require, summed
from attnlab.stats.means import Crossed, Equivalence, crossed

Perplexity = Literal["token_perplexity", "sentence_perplexity"]

CHUNK = 2**19  # counts held at once: 4 MB, which fit in the cache of most processors
_MOST = 300  # a loss whose exponential can still be squared
_CHOICES = 2000  # draws of chosen_best
_CHOICES_AT_ONCE = 100  # of them held in memory together


def resampled_sums(table: Numbers, resamples: int, seed: int) -> Numbers:
    """Column sums of `table` over rows drawn with replacement: [resamples, columns]."""
    items = len(table)
    require(items < 2**24, f"{items:,} items are too many to draw from: compare a subset")
    source, size, half = np.random.SFC64(seed), np.uint64(items), np.uint64(32)
    rows = max(1, min(resamples, CHUNK // items))
    counts, sums = np.empty((rows, items)), np.empty((resamples, table.shape[1]))
    columns = np.ascontiguousarray(table.T)
    for begin in range(0, resamples, rows):
        now = min(rows, resamples - begin)
        for row in range(now):
            # 32 random bits times the size, upper half: uneven by items in 2^32, twice as fast as Generator.integers.
            drawn = source.random_raw((items + 1) // 2).view(np.uint32)[:items] * size >> half
            counts[row] = np.bincount(drawn.view(np.int64), minlength=items)
        sums[begin : begin + now] = (columns @ counts[:now].T).T
    return sums


class Bca:
    """The bootstrap distribution of a figure, corrected for bias and skew, from draws and from leaving out one item at a time.

    Values that differ by less than `rounding` count as equal.
    """

    def __init__(
        self, table: Numbers, statistic: Callable[[Numbers], Numbers], draws: Numbers, rounding: float
    ) -> None:
        from scipy.stats import norm

        whole = table.sum(axis=0, keepdims=True)
        self.value, self.drawn, self.rounding = float(statistic(whole)[0]), statistic(draws), rounding
        self.edge = 1 / (len(draws) + 1)
        self.bias = float(norm.ppf(self._share_below(self.value)))
        left_out = statistic(whole - table)
        deviation = left_out.mean() - left_out
        self.skew, largest = 0.0, float(np.abs(deviation).max())
        if largest > rounding:
            deviation = deviation / largest  # cubes of large perplexities overflow
            self.skew = float((deviation**3).sum()) / (6 * float((deviation**2).sum()) ** 1.5)

    def _share_below(self, value: float) -> float:
        """The share of draws below a value, equal ones counting by half."""
        equal = np.abs(self.drawn - value) <= self.rounding
        below = float(((self.drawn < value) & ~equal).mean())
        return min(max(below + float(equal.mean()) / 2, self.edge), 1 - self.edge)

    def interval(self, alpha: float) -> tuple[float, float]:
        """The interval of level 1 - alpha."""
        from scipy.stats import norm

        ends = self.bias + norm.ppf([alpha / 2, 1 - alpha / 2])
        low, high = np.quantile(self.drawn, np.asarray(norm.cdf(self.bias + ends / (1 - self.skew * ends))))
        return float(low), float(high)

    def above(self, value: float) -> float:
        """P of the one-sided test of the claim that the true figure is above a value.

        It is the level at which the interval would just reach the value, so that p and interval agree.
        """
        from scipy.stats import norm

        step = float(norm.ppf(self._share_below(value))) - self.bias
        # There is no level beyond the pole.
        stretched = step / (1 + self.skew * step) if 1 + self.skew * step > 0 else math.copysign(math.inf, step)
        return float(norm.cdf(stretched - self.bias))

    def p(self, value: float = 0.0) -> float:
        """P of the two-sided test of the hypothesis that the true figure is a value."""
        above = self.above(value)
        return min(1.0, max(2 * min(above, 1 - above), 2 * self.edge))


# Perplexities of the same sentences


@dataclass(frozen=True)
class Perplexities:
    """Two perplexities on the same sentences; over several seeds each is the geometric mean.

    The ratio is A over B; its interval and p are over sentences, with the seeds as they are, and None for one sentence.
    `both` (new seeds and new sentences) is about the logarithm of the ratio.
    """

    statistic: str
    seeds: int
    sentences: int
    a: float
    b: float
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    difference: float
    p: float | None
    both: Crossed | None
    alpha: float = 0.05  # intervals have level 1 - alpha
    equivalence: Equivalence | None = None  # of the logarithm of the ratio


def paired_bootstrap(
    losses_a: ArrayLike,
    losses_b: ArrayLike,
    weights: ArrayLike | None = None,
    statistic: Perplexity = "token_perplexity",
    resamples: int = 10_000,
    seed: int = 0,
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    clusters: Sequence[int] | None = None,
) -> Perplexities:
    """Compare the perplexities of two models from the mean loss of every sentence, or of several seeds, one row each.

    `weights` are the numbers of tokens per sentence. Token perplexity weighs sentences by them, or equally without them;
    sentence perplexity always weighs sentences equally. `margin` is a relative difference: 0.01 asks whether the ratio lies
    within 1 %. `clusters` are numbers that the sentences of one document share.
    """
    choices = get_args(Perplexity)
    require(statistic in choices, f"statistic must be {' or '.join(choices)}, not {statistic!r}")
    check_count(resamples, "resamples", 100)
    first, second = (np.atleast_2d(losses) for losses in paired_values(losses_a, losses_b, "the losses", (1, 2)))
    largest = float(max(first.max(), second.max()))
    require(
        largest <= _MOST,
        f"a mean loss of {largest:.4g} is not that of a language model: at most {_MOST} can be compared",
    )
    seeds, sentences = first.shape
    sizes = np.ones(sentences)
    if weights is not None and statistic == "token_perplexity":
        sizes = numbers(weights, "the weights")
        require(len(sizes) == sentences, f"there must be one weight per sentence: {sentences:,}, not {len(sizes):,}")
        require(bool((sizes > 0).all()), "the weights must be above 0: leave out sentences without tokens")
    parts = _Parts(np.concatenate([first, second]), sizes, statistic == "sentence_perplexity")
    table = summed(parts.table, clusters)
    logs = parts.logs(parts.table.sum(axis=0, keepdims=True))[0]
    a, b = math.exp(logs[:seeds].mean()), math.exp(logs[seeds:].mean())
    both = crossed(parts.shares_of_log_ratio(), alpha, clusters) if seeds > 1 else None
    bca: Bca | None = None
    if len(table) > 1:
        bca = Bca(table, parts.log_ratio, resampled_sums(table, resamples, seed), 1e-12 * float(abs(logs).max()))
    low, high = bca.interval(alpha) if bca else (None, None)
    same: Equivalence | None = None
    if margin is not None and both is not None:
        same = both.within(math.log1p(margin), alpha)
    elif margin is not None and bca is not None:
        limit = math.log1p(margin)
        same = Equivalence(limit, *bca.interval(2 * alpha), max(bca.above(-limit), 1 - bca.above(limit)), alpha)
    return Perplexities(
        statistic=statistic,
        seeds=seeds,
        sentences=sentences,
        a=a,
        b=b,
        ratio=math.exp(bca.value if bca else float(parts.log_ratio(table)[0])),
        ratio_low=exp_or_none(low),
        ratio_high=exp_or_none(high),
        difference=a - b,
        p=bca.p() if bca else None,
        both=both,
        alpha=alpha,
        equivalence=same,
    )


def log_ratio_table(losses_a: ArrayLike, losses_b: ArrayLike, weights: ArrayLike) -> Numbers:
    """What each sentence adds to the logarithm of the ratio of two token perplexities: seeds x sentences."""
    first, second = paired_values(losses_a, losses_b, "the losses", (2,))
    return _Parts(np.concatenate([first, second]), numbers(weights, "the weights"), False).shares_of_log_ratio()


def exp_or_none(value: float | None) -> float | None:
    """A ratio from its logarithm; None stays None."""
    return None if value is None else math.exp(value)


class _Parts:
    """Sentences as rows whose column sums give every perplexity: a column for each seed of A, then of B, and one of sizes."""

    def __init__(self, losses: Numbers, sizes: Numbers, of_sentences: bool) -> None:
        self.losses, self.sizes, self.of_sentences = losses, sizes, of_sentences
        self.seeds = len(losses) // 2
        self.values = np.exp(losses) if of_sentences else losses * sizes
        self.table = np.column_stack([self.values.T, sizes])

    def logs(self, sums: Numbers) -> Numbers:
        """The logarithms of all perplexities: [rows, seeds of A and of B]."""
        means = sums[:, :-1] / sums[:, -1:]
        return np.log(means) if self.of_sentences else means

    def log_ratio(self, sums: Numbers) -> Numbers:
        """The logarithm of A over B, each a geometric mean over seeds."""
        logs = self.logs(sums)
        return logs[:, : self.seeds].mean(axis=1) - logs[:, self.seeds :].mean(axis=1)

    def shares_of_log_ratio(self) -> Numbers:
        """What each sentence adds to the log ratio of each seed, to first order: their mean is the log ratio."""
        logs = self.logs(self.table.sum(axis=0, keepdims=True))[0][:, None]
        if self.of_sentences:
            shares = logs + self.values / self.values.mean(axis=1, keepdims=True) - 1
        else:
            shares = logs + self.sizes / self.sizes.mean() * (self.losses - logs)
        return shares[: self.seeds] - shares[self.seeds :]


# The best of several


@dataclass(frozen=True)
class Chosen:
    """The best of several candidates: its share on the questions that chose it, and the share expected on others."""

    candidates: int
    questions: int
    best: int  # its row; the first of several equal ones
    apparent: float
    corrected: float


def chosen_best(right: ArrayLike, seed: int = 0) -> Chosen:
    """The best of several candidates (rows) on the same questions (columns, 1 where right), and its corrected share."""
    table = numbers(right, "right and wrong", (2,))
    candidates, questions = table.shape
    require(questions > 1, "at least two questions are needed, to choose on some and score on the others")
    shares = table.mean(axis=1)
    generator, means = np.random.default_rng(seed), []
    for _ in range(_CHOICES // _CHOICES_AT_ONCE):
        drawn = generator.multinomial(questions, np.full(questions, 1 / questions), size=_CHOICES_AT_ONCE)
        rest = (drawn == 0).astype(np.float64)
        best = (drawn @ table.T).argmax(axis=1)
        counted = rest.sum(axis=1)
        known = counted > 0
        means.append(((rest * table[best]).sum(axis=1)[known]) / counted[known])
    best_place = int(shares.argmax())
    return Chosen(candidates, questions, best_place, float(shares[best_place]), float(np.concatenate(means).mean()))
