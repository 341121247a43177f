"""Loss curves: a smoothed line over the steps it was made from, thinned so that a page stays small. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attnlab.report.charts import Series
from attnlab.report.words import magnitude

Item = TypeVar("Item")
MOST_POINTS = 400  # a series


def smooth(values: Sequence[float], width: int) -> list[float]:
    """The mean of up to `width` neighbours.

    At the start the window shrinks on both sides, so that a falling curve starts high; at the end it loses only the steps
    that are not there, so that the curve does not end on the noise of a single step.
    """
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    means = []
    for place in range(len(values)):
        reach = min(width // 2, place)
        begin, end = place - reach, min(place + reach + 1, len(values))
        means.append((sums[end] - sums[begin]) / (end - begin))
    return means


def thin(items: Sequence[Item], most: int = MOST_POINTS) -> list[Item]:
    """At most so many items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def loss_curve(metrics: Sequence[Mapping[str, Any]]) -> tuple[Series, str]:
    """The loss over the tokens read, and the unit in which the tokens are counted."""
    rows = [row for row in metrics if math.isfinite(row["loss"])]
    size, name = magnitude(rows[-1]["tokens"] if rows else 0)
    tokens = [row["tokens"] / size for row in rows]
    losses = [row["loss"] for row in rows]
    line = thin(list(zip(tokens, smooth(losses, max(5, len(rows) // 40)), strict=True)))
    dots = thin(list(zip(tokens, losses, strict=True)))
    series = Series("smoothed", [x for x, _ in line], [y for _, y in line], dots=tuple(dots), dots_name="single steps")
    return series, f"{name}tokens read"
