"""Plans: how small a difference a number of seeds and items finds, or how often equals are shown to be equivalent.

The power of `crossed` depends on how much differences vary between seeds, between items and otherwise. Only a pilot can tell:
`variance_components` reads it. Few seeds tell the variance between seeds badly, so its upper limit is kept too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from attnlab.stats.checks import Numbers, check_count, check_level, numbers, require
from attnlab.stats.crossed import mean_squares, shared_freedom, variance_of_mean

_POWER = 0.8  # of plans: 4 of 5 comparisons find the difference
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


def half_widths(
    squares: tuple[Numbers, Numbers, Numbers],
    seeds: int,
    items: int,
    alpha: float,
    freedom_seeds: float | Numbers | None = None,
) -> Numbers:
    """Half the intervals of `crossed` for mean squares of seeds, items and the rest: vectorised, for simulations.

    `freedom_seeds` are the degrees of freedom of the mean square of seeds, if other pairs contribute to it.
    """
    from scipy.special import stdtrit

    of_seeds = seeds - 1 if freedom_seeds is None else freedom_seeds
    variance, freedom = variance_of_mean(squares, (of_seeds, items - 1.0, (seeds - 1.0) * (items - 1)), seeds * items)
    both = stdtrit(freedom, 1 - alpha / 2) * np.sqrt(variance)
    alone = stdtrit(of_seeds, 1 - alpha / 2) * np.sqrt(squares[0] / (seeds * items))
    return np.asarray(np.maximum(both, alone))


def _drawn(parts: Components, seeds: int, items: int, alpha: float, mechanisms: int) -> tuple[Numbers, float]:
    """Half the intervals of `crossed` in many comparisons, and the standard error of the mean, which is independent of them.

    The mean squares are drawn from their laws (multiples of chi-square), with the same random numbers for every plan.
    """
    from scipy.special import gammaincinv

    check_level(alpha, "alpha")
    require(check_count(seeds, "seeds") > 1, "one seed says nothing about other seeds: plan at least 2")
    check_count(items, "items", 2)
    require(parts.seeds + parts.items + parts.rest > 0, "without any variance there is nothing to plan")
    expected = (items * parts.seeds + parts.rest, seeds * parts.items + parts.rest, parts.rest)
    free, others = seeds - 1, mechanisms - 2
    freedoms = (free, items - 1, free * (items - 1), free, free * max(1, others))
    generator = np.random.default_rng(0)
    draws = [(generator.permutation(_DRAWS) + 0.5) / _DRAWS for _ in freedoms]  # evenly spread: a Latin hypercube
    own, of_items, rest, reference, pooled = (
        gammaincinv(freedom / 2, share) * 2 / freedom for freedom, share in zip(freedoms, draws, strict=True)
    )
    of_seeds, freedom_seeds = own, np.full(_DRAWS, float(free))
    if weight := shared_freedom(seeds, mechanisms - 1):
        own = (free * own + weight * pooled) / (free + weight)
        of_seeds = (own + reference) / 2
        freedom_seeds = (own + reference) ** 2 / (own**2 / (free + weight) + reference**2 / free)
    squares = (expected[0] * of_seeds, expected[1] * of_items, expected[2] * rest)
    half = half_widths(squares, seeds, items, alpha, freedom_seeds)
    return half, math.sqrt((expected[0] + expected[1] - expected[2]) / (seeds * items))


def power(
    parts: Components, seeds: int, items: int, difference: float, alpha: float = 0.05, mechanisms: int = 2
) -> float:
    """The chance that `crossed` finds a true difference, where this many mechanisms are compared with the first."""
    from scipy.special import ndtr

    half, error = _drawn(parts, seeds, items, alpha, mechanisms)
    return float((ndtr((difference - half) / error) + ndtr((-difference - half) / error)).mean())


def equivalence_power(
    parts: Components, seeds: int, items: int, margin: float, alpha: float = 0.05, mechanisms: int = 2
) -> float:
    """The chance that two mechanisms without any difference are shown to be equivalent within the margin."""
    from scipy.special import ndtr

    half, error = _drawn(parts, seeds, items, 2 * alpha, mechanisms)
    return float((2 * ndtr(np.maximum(0.0, margin - half) / error) - 1).mean())


def smallest_difference(parts: Components, seeds: int, items: int, alpha: float = 0.05, mechanisms: int = 2) -> float:
    """The smallest true difference that `crossed` finds with 80 % power."""
    from scipy.optimize import brentq

    high = math.sqrt(parts.seeds + parts.items + parts.rest)
    while power(parts, seeds, items, high, alpha, mechanisms) < _POWER:
        high *= 2
    return float(
        brentq(lambda size: power(parts, seeds, items, size, alpha, mechanisms) - _POWER, 0.0, high, xtol=1e-6 * high)
    )
