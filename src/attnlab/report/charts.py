"""Charts as SVG text: lines with bands, bars with intervals, heat maps.

Pure functions from data to a string. Colours and fonts are classes that the page's style sheet gives a meaning in light,
dark and print, so a chart must not name a colour; nor must it know what its numbers are about. Series differ in dash as
well as in colour. Numbers that are not finite are left out and break a line. A chart is drawn for one width, so that its
letters keep their size: a page that is read on small screens holds a narrow one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from attnlab.report.scales import Scale, extent, scale
from attnlab.report.svg import LETTER, finite, line, shorten, svg, text

WIDTH = 760
NARROW = 520  # below this, names stand above their bars
DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "12 5")
LEVELS = 20  # shades of a heat map
LEGEND = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # shares of the range that a heat map's legend shows


@dataclass(frozen=True)
class Axis:
    """What an axis shows, in which unit, and from where to where if not from the data."""

    label: str
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def over(self, values: Sequence[float], begin: float, end: float, most: int = 5) -> Scale:
        """The scale of this axis over these values."""
        low, high = extent(values)
        low = low if self.low is None else min(self.low, low)
        high = high if self.high is None else max(self.high, high)
        return scale(low, high, begin, end, most)


@dataclass(frozen=True)
class Series:
    """A line, with a band (`low`, `high`) and faint dots if there are any."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: Sequence[tuple[float, float]] = ()
    dots_name: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar with its interval, if known; `faint` sets it back behind the others."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    faint: bool = False


# Lines


def unbroken(points: Sequence[tuple[float, ...]]) -> Iterator[list[tuple[float, ...]]]:
    """The stretches of points without a number that is not finite."""
    for whole, stretch in groupby(points, key=lambda point: finite(*point)):
        if whole:
            yield list(stretch)


def path(points: Sequence[tuple[float, ...]]) -> str:
    """A polyline as path data; a lone point becomes a dot."""
    if len(points) == 1:
        return f"M{points[0][0]:.1f} {points[0][1]:.1f}h0"
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def draw_series(number: int, series: Series, x: Scale, y: Scale) -> Iterator[str]:
    """Band, dots and line of a series."""
    colour = f"s{number % len(DASHES) + 1}"
    if series.low and series.high:
        for stretch in unbroken(list(zip(series.x, series.low, series.high, strict=True))):
            outline = [(x(a), y(low)) for a, low, _ in stretch] + [(x(a), y(high)) for a, _, high in reversed(stretch)]
            yield f'<path class="band {colour}" d="{path(outline)}Z"/>'
    dots = "".join(f"M{x(a):.1f} {y(b):.1f}h0" for a, b in series.dots if finite(a, b))
    if dots:
        yield f'<path class="dots {colour}" d="{dots}"/>'
    dash = DASHES[number % len(DASHES)]
    style = f' stroke-dasharray="{dash}"' if dash else ""
    for stretch in unbroken(list(zip(series.x, series.y, strict=True))):
        yield f'<path class="line {colour}" d="{path([(x(a), y(b)) for a, b in stretch])}"{style}/>'


def legend_entries(series: Sequence[Series]) -> Iterator[tuple[str, str, str]]:
    """Name, kind and dash of every mark that needs a name."""
    for number, one in enumerate(series):
        colour = f"s{number % len(DASHES) + 1}"
        if one.dots and one.dots_name:
            yield one.dots_name, f"dots {colour}", ""
        yield one.name, f"line {colour}", DASHES[number % len(DASHES)]


def legend(series: Sequence[Series], left: float, right: float, top: float) -> tuple[list[str], float]:
    """The legend in as many rows as it needs, and where it ends."""
    parts, x, y = [], left, top
    for name, kind, dash in legend_entries(series):
        name = shorten(name, right - left - 32)
        need = 32 + LETTER * len(name) + 16
        if x > left and x + need > right + 16:
            x, y = left, y + 20
        style = f' stroke-dasharray="{dash}"' if dash else ""
        marks = f"M{x:.1f} {y:.1f}h24" if "line" in kind else "".join(f"M{x + dx:.1f} {y:.1f}h0" for dx in (3, 12, 21))
        parts += [f'<path class="{kind}" d="{marks}"{style}/>', text(x + 32, y + 4.5, name)]
        x += need
    return parts, y + 20


def grid(x: Scale, y: Scale, x_axis: Axis) -> Iterator[str]:
    """The ticks of both axes, the lines at those of y, and the label of x; y's label is written above."""
    for tick in y.ticks:
        yield line(x.begin, y(tick), x.end, y(tick), "axis" if tick == y.ticks[0] else "grid")
        yield text(x.begin - 8, y(tick) + 4.5, y.label(tick), "tick", "end")
    for tick in x.ticks:
        yield line(x(tick), y.begin, x(tick), y.begin + 4, "axis")
        yield text(x(tick), y.begin + 19, x.label(tick), "tick", "middle")
    yield text(x.end, y.begin + 40, str(x_axis), "label", "end")


def line_chart(
    series: Sequence[Series], x_axis: Axis, y_axis: Axis, *, label: str, width: float = WIDTH, height: float = 300
) -> str:
    """Lines over a common axis, each with its band and its dots."""
    xs = [a for one in series for a in (*one.x, *(a for a, _ in one.dots))]
    ys = [b for one in series for b in (*one.y, *one.low, *one.high, *(b for _, b in one.dots))]
    left, right = 56.0, width - 20
    keys, top = legend(series, left, right, 34.0)
    x = x_axis.over(xs, left, right, 8 if width >= NARROW else 4)
    y = y_axis.over(ys, height - 48, top)
    parts = [text(0, 14, str(y_axis), "label"), *keys, *grid(x, y, x_axis)]
    if not any(finite(a, b) for one in series for a, b in zip(one.x, one.y, strict=True)):
        parts.append(text((left + right) / 2, (y.begin + y.end) / 2, "nothing to draw", "label", "middle"))
    for number, one in enumerate(series):
        parts += draw_series(number, one, x, y)
    return svg(width, height, label, parts)


# Bars


def draw_bar(bar: Bar, x: Scale, y: float, value: str) -> Iterator[str]:
    """A bar, its interval as a whisker, and its value behind both."""
    if not finite(bar.value):
        yield text(x.begin + 6, y + 15, "no value", "label")
        return
    begin, end = sorted((x(0.0), x(bar.value)))
    kind = "bar faint" if bar.faint else "bar"
    yield f'<rect class="{kind}" x="{begin:.1f}" y="{y:.1f}" width="{max(end - begin, 1):.1f}" height="22" rx="2"/>'
    if bar.low is not None and bar.high is not None and finite(bar.low, bar.high):
        low, high = x(bar.low), x(bar.high)
        ends = f"M{low:.1f} {y + 6:.1f}v10M{high:.1f} {y + 6:.1f}v10"
        yield f'<path class="whisker" d="M{low:.1f} {y + 11:.1f}H{high:.1f}{ends}"/>'
        end = max(end, high)
    yield text(end + 8, y + 15.5, value, "value halo")


def bar_chart(
    bars: Sequence[Bar],
    axis: Axis,
    *,
    label: str,
    width: float = WIDTH,
    written: Callable[[float], str] = "{:.1f}".format,
) -> str:
    """Horizontal bars from zero, with their intervals and values; names stand to the left, or above on a narrow chart."""
    above = width < NARROW
    longest = max((len(bar.name) for bar in bars), default=0) * LETTER
    gutter = 8.0 if above else min(longest, width * 0.4) + 16
    pitch, offset = (52, 22) if above else (38, 8)
    bottom = 4 + pitch * max(len(bars), 1) + 4
    ends = [value for bar in bars for value in (0.0, bar.value, bar.low, bar.high) if value is not None]
    x = axis.over(ends, gutter, width - 56, 5)
    # Between names that stand above their bars, a line through the whole chart would cross the letters.
    tops = [4 + pitch * number + offset - 3 for number in range(len(bars))]
    spans = [(top, top + 28) for top in tops] if above else [(4, bottom)]
    parts = [
        line(x(tick), top, x(tick), end, "axis" if tick == 0 else "grid") for top, end in spans for tick in x.ticks
    ]
    parts += [text(x(tick), bottom + 17, x.label(tick), "tick", "middle") for tick in x.ticks]
    parts.append(text(x.end, bottom + 38, str(axis), "label", "end"))
    for number, bar in enumerate(bars):
        y = 4 + pitch * number
        name = shorten(bar.name, width - 16 if above else gutter - 16)
        parts.append(text(gutter - 1, y + 15, name) if above else text(gutter - 10, y + offset + 15.5, name, "", "end"))
        parts += draw_bar(bar, x, y + offset, written(bar.value))
    return svg(width, bottom + 46, label, parts)


# Heat maps


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
    """A table of shaded cells with names on both sides, its numbers if asked for, and a legend.

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
