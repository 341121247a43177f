"""Loss curves: smoothed lines over the steps they were made from, or over several runs, thinned so that a page stays small.

Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from attnlab.report.document import Series
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


def between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """The value of a line of points at x; beyond its ends that of the end."""
    right = bisect_left(xs, x)
    if right in (0, len(xs)):
        return ys[0] if right == 0 else ys[-1]
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


def finite_rows(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps with a loss that is a number."""
    return [row for row in metrics if isinstance(row.get("loss"), int | float) and math.isfinite(row["loss"])]


def joint_curve(
    name: str, runs: Sequence[Sequence[Mapping[str, Any]]], size: float = 1.0, marked: bool = False
) -> Series:
    """The mean of several runs' smoothed losses over the tokens read, in a band from the lowest to the highest.

    Runs of different seeds differ a little in where their steps lie, so they are read at the steps of the first, as far as
    all of them reach.
    """
    lines = []
    for rows in map(finite_rows, runs):
        losses = [row["loss"] for row in rows]
        if rows:
            lines.append(([row["tokens"] / size for row in rows], smooth(losses, max(5, len(rows) // 40))))
    if not lines:
        return Series(name, [], [], marked=marked)
    reach = min(tokens[-1] for tokens, _ in lines)
    grid = thin([*(x for x in lines[0][0] if x < reach), reach])
    at = [[between(x, tokens, losses) for tokens, losses in lines] for x in grid]
    low, high = ([min(row) for row in at], [max(row) for row in at]) if len(lines) > 1 else ([], [])
    return Series(name, grid, [sum(row) / len(row) for row in at], low, high, marked=marked)


def latter_part(series: Series, begin: float) -> Series:
    """A series from somewhere on."""
    kept = [place for place, x in enumerate(series.x) if x >= begin]
    first = kept[0] if kept else len(series.x)
    return replace(
        series, x=series.x[first:], y=series.y[first:], low=series.low[first:], high=series.high[first:], dots=()
    )
