"""How well a confidence tells known from unknown: the area under the ROC curve, with its interval.

The area is the chance that something known has a higher confidence than something unknown, equals counting by half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.stats.checks import numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Auroc:
    """The area under the ROC curve with its 95 % interval; 0.5 is chance, 1 perfect. None where n = 1 on a side."""

    known: int
    unknown: int
    value: float
    low: float | None
    high: float | None
    method: str


def auroc(known: ArrayLike, unknown: ArrayLike) -> Auroc:
    """Confidences of what is known against those of what is not.

    The interval is DeLong's (1988), on the scale of log odds so that it stays between 0 and 1. Where that sees no spread
    (the two sides lie apart, or all values are equal), it is Newcombe's (2006, method 5).
    """
    from scipy.stats import norm, rankdata

    above, below = numbers(known, "the confidences of what is known"), numbers(unknown, "those of what is unknown")
    m, n = len(above), len(below)
    together = rankdata([*above, *below])
    # For everyone the share of the other side that lies below: DeLong's structural components.
    beaten = (together[:m] - rankdata(above)) / n
    unbeaten = 1 - (together[m:] - rankdata(below)) / m
    value = float(beaten.mean())
    if min(m, n) == 1:
        return Auroc(m, n, value, None, None, "one value on a side, so no interval")
    spread = math.sqrt(float(beaten.var(ddof=1)) / m + float(unbeaten.var(ddof=1)) / n)
    z = float(norm.ppf(0.975))
    if not 0 < value < 1 or spread == 0:
        return Auroc(m, n, value, *_newcombe(value, m, n, z), "Newcombe")
    odds, step = math.log(value / (1 - value)), z * spread / (value * (1 - value))
    return Auroc(m, n, value, _logistic(odds - step), _logistic(odds + step), "DeLong")


def _logistic(x: float) -> float:
    """The share of log odds."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _newcombe(value: float, m: int, n: int, z: float) -> tuple[float, float]:
    """The areas from which what was seen lies z standard errors away, by Hanley and McNeil's error with equal sides."""
    from scipy.optimize import brentq

    size = (m + n) / 2 - 1

    def distance(area: float) -> float:
        variance = area * (1 - area) * (1 + size * ((1 - area) / (2 - area) + area / (1 + area))) / (m * n)
        return (value - area) ** 2 - z * z * variance

    low = 0.0 if value == 0 else float(brentq(distance, 0.0, value - 1e-12))
    high = 1.0 if value == 1 else float(brentq(distance, value + 1e-12, 1.0))
    return low, high
