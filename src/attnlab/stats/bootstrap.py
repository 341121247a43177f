"""Bootstrap over questions or sentences: what the result would have been on other samples of them.

Intervals are BCa (Efron 1987), which follow the skew that a few hard sentences give to a perplexity. The same seed gives the
same draws. Each draw is a vector of counts, so that all sums of a chunk of draws are one matrix product.

`chosen_best` estimates how optimistic the figure of the best of several candidates is: the best is chosen on the questions
drawn and scored on the questions not drawn (Tsamardinos, Greasidou and Borboudakis 2018, Machine Learning 107).
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """A figure with its 95 % interval over resampled items, and p for the hypothesis that it is 0; None where n = 1."""

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


def _bca(seen: float, drawn: Numbers, left_out: Numbers, rounding: float) -> tuple[float, float, float]:
    """The BCa interval of 95 % and the p value of 0, from draws and from leaving out one item at a time.

    P is the level at which the interval would just reach 0, so that p < 0.05 and an interval without 0 agree. Values that
    differ by less than `rounding` count as equal.
    """
    import numpy as np
    from scipy.stats import norm

    def share_below(value: float) -> float:
        equal = np.abs(drawn - value) <= rounding
        below = float(((drawn < value) & ~equal).mean())
        return min(max(below + float(equal.mean()) / 2, edge), 1 - edge)

    edge = 1 / (len(drawn) + 1)
    bias = float(norm.ppf(share_below(seen)))
    deviation = left_out.mean() - left_out
    skew, largest = 0.0, float(np.abs(deviation).max())
    if largest > rounding:
        deviation = deviation / largest  # cubes of large perplexities overflow
        skew = float((deviation**3).sum()) / (6 * float((deviation**2).sum()) ** 1.5)
    ends = bias + norm.ppf([0.025, 0.975])
    low, high = np.quantile(drawn, np.asarray(norm.cdf(bias + ends / (1 - skew * ends))))
    step = float(norm.ppf(share_below(0.0))) - bias
    stretched = step / (1 + skew * step) if 1 + skew * step > 0 else math.inf  # there is no level beyond the pole
    p = 2 * float(norm.sf(abs(stretched - bias)))
    return float(low), float(high), min(1.0, max(p, 2 * edge))


def bootstrapped(table: Numbers, statistic: _Statistic, draws: Numbers, rounding: float) -> Bootstrapped:
    """A function of column sums with its interval; `draws` are sums over resampled rows."""
    items, whole = len(table), table.sum(axis=0, keepdims=True)
    seen = float(statistic(whole)[0])
    if items == 1:
        return Bootstrapped(1, 0, seen, None, None, None)
    low, high, p = _bca(seen, statistic(draws), statistic(whole - table), rounding)
    return Bootstrapped(items, len(draws), seen, low, high, p)


def bootstrap_mean(values: ArrayLike, resamples: int = 10_000, seed: int = 0) -> Bootstrapped:
    """The mean of one value per item, with its interval over items and p for the hypothesis that it is 0."""
    import numpy as np

    found = numbers(values, "the values")
    check_count(resamples, "resamples", 100)
    table = np.column_stack([found, np.ones(len(found))])
    draws = resampled_sums(table, resamples, seed)
    return bootstrapped(table, lambda sums: sums[:, 0] / sums[:, 1], draws, 1e-12 * float(np.abs(found).max()))


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
    generator, found = np.random.default_rng(seed), []
    for _ in range(_CHOICES // _CHOICES_AT_ONCE):
        drawn = generator.multinomial(questions, np.full(questions, 1 / questions), size=_CHOICES_AT_ONCE)
        rest = (drawn == 0).astype(np.float64)
        best = (drawn @ table.T).argmax(axis=1)
        counted = rest.sum(axis=1)
        known = counted > 0
        found.append(((rest * table[best]).sum(axis=1)[known]) / counted[known])
    best_place = int(shares.argmax())
    return Chosen(candidates, questions, best_place, float(shares[best_place]), float(np.concatenate(found).mean()))
