"""Charts and heat maps as SVG text, and outlines as picture files.

Pure functions from data to a string. Colours and fonts are CSS classes, which the page's style sheet defines for light and
dark mode and for print; a chart names no colour and does not know what its numbers mean. Series differ in dash as well as
in colour, and `marked` ones are drawn as a warning: their name should say why. Numbers that are not finite are left out and
break a line. A chart is drawn for one width, so that its text keeps its size; a page has a second drawing for phones. A line
chart carries its axes and the numbers of its series as attributes, so that a script can show values and hide series.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from attnlab.pictures import picture_bytes
from attnlab.report.document import Axis, Chart, HeatMap, Mark, Series

WIDTH, NARROW = 760, 380
_DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "12 5")
_COLOURS = ("s1", "s2", "s3", "s4", "s5", "s6")
_MARKED = "leak"  # class of marked series
_FEW = 30  # dots that are drawn large
_TOO_NEAR = "s2"  # colour that could be mistaken for that of marked series
_LETTER = 7.0  # average width of a letter of the charts' 13 px font
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LEAST_SIZE = 1e-290  # below it numbers lose their digits: such data are drawn as zero
_LEAST_SPREAD = 1e-9  # of the numbers' size: data closer together than this count as flat
LEVELS = 20  # shades
_LEGEND = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)  # shares of the range that the legend shows


# Parts of SVG


def _finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start", extra: str = "") -> str:
    names = f' class="{kind}"' if kind else ""
    side = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{names}{side}{extra}>{_clean(words)}</text>'


def _clean(words: str) -> str:
    """Text that is safe in SVG: escaped, without characters that XML forbids."""
    return escape(_NOT_XML.sub("\ufffd", words), quote=True)


def width_of(words: str) -> float:
    """About how wide words are, in pixels: m and w take more than an average letter, capitals a little more."""
    wide, capitals = sum(letter in "mwMW" for letter in words), sum(letter.isupper() for letter in words)
    return _LETTER * len(words) + 5 * wide + 2 * capitals


def shorten(words: str, room: float) -> str:
    """The words, cut with an ellipsis where they do not fit into so many pixels."""
    most = max(4, int(room / _LETTER))
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def _svg(width: float, height: float, label: str, parts: Sequence[str], extra: str = "") -> str:
    """The frame of every chart; `--wide` tells the style sheet its width."""
    kind = "chart narrow" if width == NARROW else "chart"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
        f' style="--wide: {width:g}px" role="img" aria-label="{_clean(label)}"{extra}>' + "".join(parts) + "</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


# Axes


@dataclass(frozen=True)
class Scale:
    """An axis whose ends are ticks: `ticks` in data, `begin` and `end` in pixels; a logarithmic one has no step."""

    ticks: tuple[float, ...]
    step: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; on a logarithmic axis, values below the first tick are drawn there."""
        low, high = self.ticks[0], self.ticks[-1]
        if not self.step:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def label(self, tick: float) -> str:
        """A tick with just the decimals that its neighbours need."""
        if not self.step:
            return f"{tick:,.6g}"
        if abs(tick) < self.step / 2:
            return "0"
        if self.step < 1e-4 or abs(tick) >= 1e9:
            return f"{tick:.6g}".replace("-", "−")
        steps = [self.step * 10**places for places in range(6)]
        decimals = next((places for places, step in enumerate(steps) if abs(step - round(step)) < 1e-6), 6)
        return f"{tick:,.{decimals}f}".replace("-", "−")


def scale(low: float, high: float, begin: float, end: float, most: int = 5, whole: bool = False) -> Scale:
    """A scale over the data with at most `most` steps between round ends, and no ticks between `whole` numbers."""
    if max(abs(low), abs(high)) < _LEAST_SIZE:
        low, high = 0.0, 1.0
    elif high - low <= _LEAST_SPREAD * max(abs(low), abs(high)):
        low, high = low - abs(low) / 2, low + abs(low) / 2
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(factor * power for factor in _STEPS if factor * power * most >= (high - low) * (1 - 1e-9))
    step = max(1, math.ceil(step)) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Scale(tuple(step * number for number in range(first, last + 1)), step, begin, end)


def _over(axis: Axis, values: Sequence[float], begin: float, end: float, most: int = 5) -> Scale:
    """The scale of an axis over these values, from 0 to 1 if there are none; ticks are whole where all values are."""
    if axis.log:
        return _log_scale([value for value in values if _finite(value) and value > 0], begin, end)
    known = [value for value in values if _finite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    low = low if axis.low is None else min(axis.low, low)
    high = high if axis.high is None else max(axis.high, high)
    return scale(low, high, begin, end, most, whole=bool(known) and all(value == int(value) for value in known))


def _log_scale(values: Sequence[float], begin: float, end: float) -> Scale:
    """A logarithmic scale over positive values: ticks at powers of ten, with 2 and 5 times them if there are few."""
    low, high = math.log10(min(values, default=1.0)), math.log10(max(values, default=10.0))
    factors = (1, 2, 5) if high - low < 3 else (1,)
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(place for place, tick in enumerate(ticks) if math.log10(tick) <= low + 1e-9)
    last = min(place for place, tick in enumerate(ticks) if math.log10(tick) >= high - 1e-9)
    return Scale(tuple(ticks[first : max(last, first + 1) + 1]), 0.0, begin, end)


# Lines


@dataclass(frozen=True)
class _Look:
    colour: str
    dash: str

    @property
    def style(self) -> str:
        """The dash as an attribute."""
        return f' stroke-dasharray="{self.dash}"' if self.dash else ""


def _unbroken(points: Sequence[tuple[float, ...]]) -> Iterator[list[tuple[float, ...]]]:
    """The longest stretches of finite points."""
    for whole, stretch in groupby(points, key=lambda point: _finite(*point)):
        if whole:
            yield list(stretch)


def _path(points: Sequence[tuple[float, ...]]) -> str:
    """A polyline as path data; a lone point becomes a dot."""
    if len(points) == 1:
        return f"M{points[0][0]:.1f} {points[0][1]:.1f}h0"
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def looks(series: Sequence[Series]) -> list[_Look]:
    """A look per series, no two alike among the first thirty; beside a marked series, no colour similar to its own."""
    free = [name for name in _COLOURS if name != _TOO_NEAR or not any(line.marked for line in series)]
    chosen, plain, marked = [], 0, 0
    for line in series:
        if line.marked:
            chosen.append(_Look(_MARKED, _DASHES[marked % len(_DASHES)]))
            marked += 1
        else:
            turn, place = divmod(plain, len(free))  # in each round a colour gets another dash
            chosen.append(_Look(free[place], _DASHES[(place + turn) % len(_DASHES)]))
            plain += 1
    return chosen


def _draw_series(number: int, look: _Look, series: Series, x: Scale, y: Scale) -> Iterator[str]:
    """Band, dots and line of a series, as one group."""
    yield f'<g class="series" data-series="{number}">'
    if series.low and series.high:
        for stretch in _unbroken(list(zip(series.x, series.low, series.high, strict=True))):
            outline = [(x(a), y(low)) for a, low, _ in stretch] + [(x(a), y(high)) for a, _, high in reversed(stretch)]
            yield f'<path class="band {look.colour}" d="{_path(outline)}Z"/>'
    dots = "".join(f"M{x(a):.1f} {y(b):.1f}h0" for a, b in series.dots if _finite(a, b))
    if dots:
        yield f'<path class="{_dots_class(series, look)}" d="{dots}"/>'
    for stretch in _unbroken(list(zip(series.x, series.y, strict=True))):
        yield f'<path class="line {look.colour}" d="{_path([(x(a), y(b)) for a, b in stretch])}"{look.style}/>'
    yield "</g>"


def _dots_class(series: Series, look: _Look) -> str:
    return f"dots {look.colour}{' few' if len(series.dots) <= _FEW else ''}"


def _legend(series: Sequence[Series], left: float, right: float, top: float) -> tuple[list[str], float]:
    """The legend, in as many rows as it needs, and its lower end."""
    entries = []
    for number, (line, look) in enumerate(zip(series, looks(series), strict=True)):
        if line.dots and line.dots_name:
            entries.append((number, line.dots_name, _dots_class(line, look), ""))
        entries.append((number, line.name, f"line {look.colour}", look.style))
    parts, x, y = [], left, top
    for number, name, kind, style in entries:
        name = shorten(name, right - left - 32)
        need = 32 + width_of(name) + 16
        if x > left and x + need > right + 16:
            x, y = left, y + 20
        marks = f"M{x:.1f} {y:.1f}h24"
        if "dots" in kind:
            marks = "".join(f"M{x + dx:.1f} {y:.1f}h0" for dx in ((12,) if "few" in kind else (3, 12, 21)))
        warning = _MARKED if series[number].marked else ""
        parts += [
            f'<g class="key" data-series="{number}">',
            f'<rect class="hit" x="{x - 4:.1f}" y="{y - 10:.1f}" width="{need - 8:.1f}" height="20" rx="3"/>',
            f'<path class="{kind}" d="{marks}"{style}/>{_text(x + 32, y + 4.5, name, warning)}</g>',
        ]
        x += need
    return parts, y + 20


def _grid(x: Scale, y: Scale, x_axis: Axis) -> Iterator[str]:
    """The ticks of both axes, grid lines at those of y, and the label of x; that of y is written above."""
    for tick in y.ticks:
        yield _line(x.begin, y(tick), x.end, y(tick), "axis" if tick == y.ticks[0] else "grid")
        yield _text(x.begin - 8, y(tick) + 4.5, y.label(tick), "tick", "end")
    for tick in x.ticks:
        yield _line(x(tick), y.begin, x(tick), y.begin + 4, "axis")
        yield _text(x(tick), y.begin + 19, x.label(tick), "tick", "middle")
    yield _text(x.end, y.begin + 40, str(x_axis), "label", "end")


def _line_chart(chart: Chart, width: float) -> str:
    series, height = chart.series, chart.height
    xs = [a for line in series for a in (*line.x, *(a for a, _ in line.dots))]
    ys = [b for line in series for b in (*line.y, *line.low, *line.high, *(b for _, b in line.dots))]
    left, right = (56.0 if width > NARROW else 44.0), width - 26.0
    keys, top = _legend(series, left, right, 34.0)
    height += max(0.0, top - 54)  # a long legend takes no room from the lines
    x = _over(chart.x, xs, left, right, 8 if width > NARROW else 4)
    y = _over(chart.y, ys, height - 48, top)
    parts = [_text(0, 14, str(chart.y), "label"), *keys, *_grid(x, y, chart.x)]
    if not any(_finite(a, b) for line in series for a, b in zip(line.x, line.y, strict=True)):
        parts.append(_text((left + right) / 2, (y.begin + y.end) / 2, "nothing to draw", "label", "middle"))
    for number, (line, look) in enumerate(zip(series, looks(series), strict=True)):
        parts += _draw_series(number, look, line, x, y)
    axes = " ".join(
        f"{value:.6g}" for axis in (x, y) for value in (axis.begin, axis.end, axis.ticks[0], axis.ticks[-1])
    )
    return _svg(width, height, chart.label, parts, f' data-axes="{axes}"')


# Bars and points


def _draw_mark(mark: Mark, shape: str, x: Scale, y: float) -> Iterator[str]:
    """A bar from zero or a point, its interval as a whisker, and its value after both."""
    warning = f" {_MARKED}" if mark.marked else ""
    if not _finite(mark.value):
        yield _text(x.begin + 6, y + 15, "no value", f"label{warning}")
        return
    kind = f"{shape.removesuffix('s')}{' faint' if mark.faint else ''}{warning}"
    begin, end = sorted((x(0.0), x(mark.value))) if shape == "bars" else (0.0, x(mark.value))
    drawn = f'<circle class="{kind}" cx="{x(mark.value):.1f}" cy="{y + 11:.1f}" r="5.5"/>'
    if shape == "bars":
        wide = max(end - begin, 1)
        yield f'<rect class="{kind}" x="{begin:.1f}" y="{y:.1f}" width="{wide:.1f}" height="22" rx="2"/>'
        drawn = ""
    if mark.low is not None and mark.high is not None and _finite(mark.low, mark.high):
        low, high = x(mark.low), x(mark.high)
        ends = f"M{low:.1f} {y + 6:.1f}v10M{high:.1f} {y + 6:.1f}v10"
        yield f'<path class="whisker{warning}" d="M{low:.1f} {y + 11:.1f}H{high:.1f}{ends}"/>'
        end = max(end, high)
    yield drawn
    yield _text(end + (8 if shape == "bars" else 12), y + 15.5, mark.text, f"value halo{warning}")


def _mark_chart(chart: Chart, width: float) -> str:
    """Bars from zero, or points beside a line at the origin, in rows with their names to the left."""
    marks, origin = chart.marks, chart.origin
    ends = [value for mark in marks for value in (origin, mark.value, mark.low, mark.high) if value is not None]
    gutter = min(max((width_of(mark.name) for mark in marks), default=0.0), width * 0.5) + 16
    pitch = 38
    bottom = 8 + pitch * max(len(marks), 1)
    x = _over(chart.x, ends, gutter, width - 56, 2 if width == NARROW else 6 if chart.shape == "points" else 5)
    parts = [_line(x(tick), 4, x(tick), bottom, "grid") for tick in x.ticks if abs(tick - origin) > x.step / 1e6]
    if x.ticks[0] <= origin <= x.ticks[-1]:
        parts.append(_line(x(origin), 4, x(origin), bottom, "axis"))
    parts += [_text(x(tick), bottom + 17, x.label(tick), "tick", "middle") for tick in x.ticks]
    parts.append(_text(x.end, bottom + 38, str(chart.x), "label", "end"))
    for number, mark in enumerate(marks):
        y = 12 + pitch * number
        name = shorten(mark.name, gutter - 16)
        parts.append(_text(gutter - 10, y + 15.5, name, _MARKED if mark.marked else "", "end"))
        parts += _draw_mark(mark, chart.shape, x, y)
    return _svg(width, bottom + 46, chart.label, parts)


def draw_chart(chart: Chart, width: float = WIDTH) -> str:
    """A chart of any shape as SVG."""
    return _line_chart(chart, width) if chart.shape == "lines" else _mark_chart(chart, width)


def outline_picture(chart: Chart, kind: str) -> bytes:
    """A chart of one line as a filled outline: png, svg or pdf."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    ax = figure.subplots()
    ax.fill_between(chart.series[0].x, chart.series[0].y)
    ax.set_title(chart.title, fontsize=10)
    ax.set(xlabel=str(chart.x), ylabel=str(chart.y), ylim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    return picture_bytes(figure, kind)


# Heat maps


@dataclass(frozen=True)
class Shading:
    """How strongly a cell is filled, for values from zero to `high`; a `power` below 1 lifts the weak ones."""

    high: float = 1.0
    power: float = 1.0

    def level(self, value: float) -> int:
        """The shade of a value, from 0 (empty) to LEVELS."""
        if value <= 0 or not _finite(value):
            return 0
        return round(LEVELS * min(value / self.high, 1.0) ** self.power)


def heat_cells(values: Sequence[Sequence[float]], shading: Shading) -> str:
    """The cells alone, each 10 by 10, one path per shade, neighbours joined: small, and reusable within a page."""
    paths: dict[int, list[str]] = {}
    for row, line_of_values in enumerate(values):
        column = 0
        for level, alike in groupby(shading.level(value) for value in line_of_values):
            wide = 10 * len(list(alike))
            paths.setdefault(level, []).append(f"M{column} {10 * row}h{wide}v10h-{wide}z")
            column += wide
    drawn = sorted((level, cells) for level, cells in paths.items() if level > 0)
    return "".join(
        f'<path class="cell" fill-opacity="{level / LEVELS:g}" d="{"".join(cells)}"/>' for level, cells in drawn
    )


def _heat_legend(left: float, y: float, shading: Shading, written: Callable[[float], str]) -> Iterator[str]:
    for number, share in enumerate(_LEGEND):
        value = share * shading.high
        x = left + 64 * number
        yield f'<rect class="frame" x="{x:.1f}" y="{y:.1f}" width="14" height="14"/>'
        opacity = shading.level(value) / LEVELS
        yield f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="14" height="14" fill-opacity="{opacity:g}"/>'
        yield _text(x + 20, y + 11.5, written(value), "tick")


def draw_heat_map(
    block: HeatMap,
    shading: Shading | None = None,
    written: Callable[[float], str] = "{:,g}".format,
    marked_row: int | None = None,
    cells: str = "",
) -> str:
    """A table of shaded cells with names on both sides, and with its numbers or a legend, as SVG.

    `cells` replaces the drawn cells, in units of a tenth of a cell: references to cells that the page has already.
    """
    shading = shading or Shading(block.high)
    cell, names = block.cell, [shorten(name, 24 * _LETTER) for name in block.rows]
    left = max(map(len, names), default=0) * _LETTER + 20
    top = min(max(map(len, block.columns), default=0), 24) * _LETTER * 0.75 + 20
    wide, high = cell * max(len(block.columns), 1), cell * max(len(names), 1)
    width = max(left + wide + top * 0.8, left + 64 * len(_LEGEND) + 8)
    parts = [f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}"/>']
    drawn = cells or heat_cells(block.values, shading)
    parts.append(f'<g class="cells" transform="translate({left:.1f} {top:.1f}) scale({cell / 10:g})">{drawn}</g>')
    for number, name in enumerate(names):
        kind = "strong" if number == marked_row else ""
        parts.append(_text(left - 8, top + cell * (number + 0.5) + 4.5, name, kind, "end"))
    for number, name in enumerate(block.columns):
        x, y = left + cell * (number + 0.5) + 3, top - 6
        parts.append(_text(x, y, shorten(name, 24 * _LETTER), extra=f' transform="rotate(-50 {x:.1f} {y:.1f})"'))
    if marked_row is not None:
        y = top + cell * marked_row
        parts.append(f'<rect class="marked" x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{cell:.1f}"/>')
    if not block.numbers:
        parts += _heat_legend(left, top + high + 14, shading, written)
        return _svg(width, top + high + 36, block.label, parts)
    for row, line in enumerate(block.values):
        for column, value in enumerate(line):
            if _finite(value):
                kind = "on" if shading.level(value) > LEVELS * 0.55 else ""  # the colour that is legible there
                x, y = left + cell * (column + 0.5), top + cell * (row + 0.5) + 4.5
                parts.append(_text(x, y, written(value), kind, "middle"))
    return _svg(width, top + high + 8, block.label, parts)
