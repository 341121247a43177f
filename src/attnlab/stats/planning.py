"""The smallest difference that a planned number of seeds and items would find.

Power is the chance that a true difference of the given size is found, that is, that p falls below alpha. The power of
`stats.crossed` depends on how much differences vary between seeds, between items and otherwise. Only a pilot can tell;
`variance_components` reads it, and few seeds tell the variance between seeds badly, so its upper limit is kept too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnlab.stats.checks import check_count, check_level, numbers, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnlab.stats.checks import Numbers

_POWER = 0.8  # 4 of 5 comparisons find the difference
_DRAWS = 1024  # of the mean squares: the power is known within 0.1 %


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


def mean_squares(tables: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The mean squares of seeds, items and the rest, of tables of [..., seeds, items]."""
    seeds, items = tables.shape[-2:]
    mean = tables.mean(axis=(-2, -1), keepdims=True)
    by_seed, by_item = tables.mean(axis=-1, keepdims=True) - mean, tables.mean(axis=-2, keepdims=True) - mean
    rest = ((tables - mean - by_seed - by_item) ** 2).sum(axis=(-2, -1)) / ((seeds - 1) * (items - 1))
    of_seeds, of_items = items * (by_seed**2).sum(axis=(-2, -1)), seeds * (by_item**2).sum(axis=(-2, -1))
    return of_seeds / (seeds - 1), of_items / (items - 1), rest


def variance_components(tables: Sequence[ArrayLike]) -> Components:
    """The variances of a pilot, from one table of paired differences (seeds x items) per pair; below 0 they become 0.

    The limit has the degrees of freedom of one pair, since pairs share the runs of their reference.
    """
    import numpy as np
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
    """Half the intervals of `stats.crossed` for mean squares of seeds, items and the rest: vectorised, for simulations."""
    import numpy as np
    from scipy.special import stdtrit

    of_seeds, of_items, rest = squares
    total, largest = of_seeds + of_items - rest, np.maximum(of_seeds, of_items)
    freedom_rest = (seeds - 1) * (items - 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing varies
        freedom = total**2 / (of_seeds**2 / (seeds - 1) + of_items**2 / (items - 1) + rest**2 / freedom_rest)
    freedom = np.where(total > largest, freedom, np.where(of_seeds >= of_items, seeds - 1, items - 1))
    both = stdtrit(freedom, 1 - alpha / 2) * np.sqrt(np.maximum(total, largest))
    alone = stdtrit(seeds - 1, 1 - alpha / 2) * np.sqrt(of_seeds)
    return np.asarray(np.maximum(both, alone) / math.sqrt(seeds * items))


def _power_by_difference(parts: Components, seeds: int, items: int, alpha: float) -> Callable[[float], float]:
    """The power of `stats.crossed` as a function of the true difference.

    The mean squares are drawn from their laws (multiples of chi-square), with the same random numbers for every plan. The
    mean is normal and independent of them, so its part is exact.
    """
    import numpy as np
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
    """The chance that `stats.crossed` finds a true difference with this many seeds and items."""
    return _power_by_difference(parts, seeds, items, alpha)(difference)


def smallest_difference(parts: Components, seeds: int, items: int, alpha: float = 0.05) -> float:
    """The smallest true difference that `stats.crossed` finds with 80 % power."""
    from scipy.optimize import brentq

    power = _power_by_difference(parts, seeds, items, alpha)
    high = math.sqrt(parts.seeds + parts.items + parts.rest)
    while power(high) < _POWER:
        high *= 2
    return float(brentq(lambda difference: power(difference) - _POWER, 0.0, high, xtol=1e-6 * high))
