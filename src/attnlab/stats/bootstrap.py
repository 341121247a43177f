"""Bootstrap over questions or sentences: what the result would have been on other samples of them.

Intervals are BCa (Efron 1987), which follow the skew that a few hard sentences give to a perplexity. The same seed gives the
same draws. Each draw is a vector of counts, so that all sums of a chunk of draws are one matrix product.

`chosen_best` estimates how optimistic the figure of the best of several candidates is: the best is chosen on the questions
drawn and scored on the questions not drawn (Tsamardinos, Greasidou and Borboudakis 2018, Machine Learning 107).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.stats.checks import check_count, numbers, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnlab.stats.checks import Numbers

    _Statistic = Callable[[Numbers], Numbers]

CHUNK = 2**19  # counts held at once: 4 MB, which fit in the cache of most processors
_CHOICES = 2000  # draws of chosen_best
_CHOICES_AT_ONCE = 100  # of them held in memory together


@dataclass(frozen=True)
class Bootstrapped:
    """A figure with its interval of level 1 - alpha over resampled items, and p for the hypothesis that it is 0.

    Interval and p are None where n = 1.
    """

    items: int
    resamples: int
    value: float
    low: float | None
    high: float | None
    p: float | None


def resampled_sums(table: Numbers, resamples: int, seed: int) -> Numbers:
    """Column sums of `table` over rows drawn with replacement: [resamples, columns]."""
    import numpy as np

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

    def __init__(self, table: Numbers, statistic: _Statistic, draws: Numbers, rounding: float) -> None:
        import numpy as np
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
        import numpy as np

        equal = np.abs(self.drawn - value) <= self.rounding
        below = float(((self.drawn < value) & ~equal).mean())
        return min(max(below + float(equal.mean()) / 2, self.edge), 1 - self.edge)

    def interval(self, alpha: float) -> tuple[float, float]:
        """The interval of level 1 - alpha."""
        import numpy as np
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


def bootstrapped(
    table: Numbers, statistic: _Statistic, draws: Numbers, rounding: float, alpha: float = 0.05
) -> Bootstrapped:
    """A function of column sums with its interval; `draws` are sums over resampled rows."""
    if len(table) == 1:
        return Bootstrapped(1, 0, float(statistic(table)[0]), None, None, None)
    bca = Bca(table, statistic, draws, rounding)
    return Bootstrapped(len(table), len(draws), bca.value, *bca.interval(alpha), bca.p())


def summed(table: Numbers, clusters: Sequence[int] | None) -> Numbers:
    """The rows of a table, summed by cluster where clusters are given."""
    import numpy as np

    if clusters is None:
        return table
    require(len(clusters) == len(table), f"there must be one cluster per item: {len(table):,}, not {len(clusters):,}")
    _, number = np.unique(np.asarray(clusters), return_inverse=True)
    return np.column_stack([np.bincount(number, weights=column) for column in table.T])


def bootstrap_mean(
    values: ArrayLike, resamples: int = 10_000, seed: int = 0, clusters: Sequence[int] | None = None
) -> Bootstrapped:
    """The mean of one value per item, with its interval over items (or clusters) and p for the hypothesis that it is 0."""
    import numpy as np

    sample = numbers(values, "the values")
    check_count(resamples, "resamples", 100)
    table = summed(np.column_stack([sample, np.ones(len(sample))]), clusters)
    draws = resampled_sums(table, resamples, seed)
    return bootstrapped(table, lambda sums: sums[:, 0] / sums[:, 1], draws, 1e-12 * float(np.abs(sample).max()))


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
    import numpy as np

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
