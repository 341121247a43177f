"""From data to places on a chart: round tick numbers and the linear map between them. Knows nothing of SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
LEAST_SIZE = 1e-290  # below it numbers lose their digits: such data are drawn as zero
LEAST_SPREAD = 1e-9  # of the numbers' size: data closer together than this count as flat


def extent(values: Iterable[float]) -> tuple[float, float]:
    """The smallest and the largest finite value, and 0 to 1 where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def round_step(span: float, most: int) -> float:
    """The smallest round step that cuts a span into at most so many pieces."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(step * power for step in STEPS if step * power * most >= span * (1 - 1e-9))


@dataclass(frozen=True)
class Scale:
    """A linear axis whose ends are ticks: `ticks` in data, `begin` and `end` in pixels."""

    ticks: tuple[float, ...]
    step: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self.ticks[0], self.ticks[-1]
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def label(self, tick: float) -> str:
        """A tick with just the decimals that its neighbours need."""
        if abs(tick) < self.step / 2:
            return "0"
        if self.step < 1e-4 or abs(tick) >= 1e9:
            return f"{tick:.6g}".replace("-", "−")
        decimals = next((places for places in range(6) if _whole(self.step * 10**places)), 6)
        return f"{tick:,.{decimals}f}".replace("-", "−")


def _whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-6


def scale(low: float, high: float, begin: float, end: float, most: int = 5, whole: bool = False) -> Scale:
    """A scale over the data with at most `most` steps between round ends, and no ticks between `whole` numbers."""
    if max(abs(low), abs(high)) < LEAST_SIZE:
        low, high = 0.0, 1.0
    elif high - low <= LEAST_SPREAD * max(abs(low), abs(high)):
        low, high = low - abs(low) / 2, low + abs(low) / 2
    step = max(round_step(high - low, most), 1.0 if whole else 0.0)
    step = math.ceil(step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Scale(tuple(step * number for number in range(first, last + 1)), step, begin, end)
