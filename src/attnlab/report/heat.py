"""Heat maps as SVG text: tables of shaded cells with their names and a legend.

Pure functions, under the rules of the other charts: classes in place of colours, and no word of what the numbers are about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from attnlab.report.document import HeatMap
from attnlab.report.svg import LETTER, finite, shorten, svg, text

LEVELS = 20  # shades
LEGEND = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # shares of the range that the legend shows


@dataclass(frozen=True)
class Shading:
    """From a value to how strongly its cell is filled; a `power` below 1 lifts the weak ones."""

    low: float = 0.0
    high: float = 1.0
    power: float = 1.0

    def level(self, value: float) -> int:
        """The shade of a value, from 0 (empty) to LEVELS."""
        if value == self.low or not isfinite(value):
            return 0
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(LEVELS * share**self.power)


LINEAR = Shading()


def heat_cells(values: Sequence[Sequence[float]], shading: Shading = LINEAR, size: int = 10) -> str:
    """The cells alone, one path a shade, neighbours as one: small in bytes, and to be scaled or reused within a page."""
    paths: dict[int, list[str]] = {}
    for row, line_of_values in enumerate(values):
        column = 0
        for level, alike in groupby(shading.level(value) for value in line_of_values):
            many = len(list(alike))
            wide = many * size
            paths.setdefault(level, []).append(f"M{column * size} {row * size}h{wide}v{size}h-{wide}z")
            column += many
    drawn = sorted((level, cells) for level, cells in paths.items() if level > 0)
    return "".join(
        f'<path class="cell" fill-opacity="{level / LEVELS:g}" d="{"".join(cells)}"/>' for level, cells in drawn
    )


def heat_legend(left: float, y: float, shading: Shading, written: Callable[[float], str]) -> Iterator[str]:
    """Swatches with the values they stand for."""
    for number, share in enumerate(LEGEND):
        value = shading.low + share * (shading.high - shading.low)
        x = left + 64 * number
        yield f'<rect class="frame" x="{x:.1f}" y="{y:.1f}" width="14" height="14"/>'
        opacity = shading.level(value) / LEVELS
        yield f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="14" height="14" fill-opacity="{opacity:g}"/>'
        yield text(x + 20, y + 11.5, written(value), "tick")


def heat_map(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    label: str,
    shading: Shading = LINEAR,
    cell: float = 24,
    written: Callable[[float], str] = "{:g}".format,
    numbers: bool = False,
    marked_row: int | None = None,
    cells: str = "",
) -> str:
    """A table of shaded cells with names on both sides, with its numbers if asked for, else with a legend.

    `cells` takes the place of the drawn cells, in units of a tenth of a cell: a reference to some that the page has already.
    """
    left = min(max((len(name) for name in rows), default=0), 24) * LETTER + 20
    head = min(max((len(name) for name in columns), default=0), 24) * LETTER * 0.75 + 20
    wide, high = cell * max(len(columns), 1), cell * max(len(rows), 1)
    width = max(left + wide + head * 0.8, left + 64 * len(LEGEND) + 8)
    parts = [f'<rect class="frame" x="{left:.1f}" y="{head:.1f}" width="{wide:.1f}" height="{high:.1f}"/>']
    drawn = cells or heat_cells(values, shading)
    parts.append(f'<g class="cells" transform="translate({left:.1f} {head:.1f}) scale({cell / 10:g})">{drawn}</g>')
    for number, name in enumerate(rows):
        kind = "strong" if number == marked_row else ""
        parts.append(text(left - 8, head + cell * (number + 0.5) + 4.5, shorten(name, 24 * LETTER), kind, "end"))
    for number, name in enumerate(columns):
        x, y = left + cell * (number + 0.5) + 3, head - 6
        parts.append(text(x, y, shorten(name, 24 * LETTER), extra=f' transform="rotate(-50 {x:.1f} {y:.1f})"'))
    if marked_row is not None:
        y = head + cell * marked_row
        parts.append(f'<rect class="marked" x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{cell:.1f}"/>')
    if numbers:
        parts += cell_numbers(values, shading, written, (left, head, cell))
        return svg(width, head + high + 8, label, parts)
    parts += heat_legend(left, head + high + 14, shading, written)
    return svg(width, head + high + 36, label, parts)


def cell_numbers(
    values: Sequence[Sequence[float]],
    shading: Shading,
    written: Callable[[float], str],
    place: tuple[float, float, float],
) -> Iterator[str]:
    """The values in their cells, in the colour that can be read there; `place` is left, top and size of a cell."""
    left, top, cell = place
    for row, line_of_values in enumerate(values):
        for column, value in enumerate(line_of_values):
            if finite(value):
                kind = "tick on" if shading.level(value) > LEVELS * 0.55 else "tick"
                x, y = left + cell * (column + 0.5), top + cell * (row + 0.5) + 4.5
                yield text(x, y, written(value), kind, "middle")


def draw_heat_map(one: HeatMap) -> str:
    """The heat map of a document."""
    return heat_map(
        one.values,
        one.rows,
        one.columns,
        label=one.label,
        shading=Shading(high=one.high),
        cell=one.cell,
        written="{:,g}".format,
        numbers=one.numbers,
    )
