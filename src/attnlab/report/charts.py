"""Charts as SVG text: lines with bands, bars and points with intervals.

Pure functions from data to a string. Colours and fonts are classes that the page's style sheet gives a meaning in light,
dark and print, so a chart must not name a colour; nor must it know what its numbers are about. Series differ in dash as
well as in colour, and what is `marked` is drawn as a warning: its name should say of what. Numbers that are not finite are
left out and break a line. A chart is drawn for one width, so that its letters keep their size: a page that is read on small
screens holds a narrow one as well. A line chart says in attributes where its axes lie and which marks belong to which
series, so that a script can point at values and hide series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from attnlab.report.scales import Scale, extent, scale
from attnlab.report.svg import LETTER, finite, line, shorten, svg, text, width_of

WIDTH = 760
NARROW = 520  # below this, names stand above their bars
DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "12 5")
COLOURS = ("s1", "s2", "s3", "s4", "s5", "s6")
MARKED = "leak"  # the class of what is drawn as a warning
TOO_NEAR = "s2"  # the colour that could be taken for the warning


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
    """A line, with a band (`low`, `high`) and faint dots if there are any; `marked` as a warning if it must be."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: Sequence[tuple[float, float]] = ()
    dots_name: str = ""
    marked: bool = False


@dataclass(frozen=True)
class Look:
    """The class and the dash of a series."""

    colour: str
    dash: str

    @property
    def style(self) -> str:
        """The dash as an attribute."""
        return f' stroke-dasharray="{self.dash}"' if self.dash else ""


@dataclass(frozen=True)
class Bar:
    """A bar with its interval, if known; `faint` sets it back behind the others."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    faint: bool = False


@dataclass(frozen=True)
class Point:
    """A point with its interval, if known; `faint` sets it back behind the others, `marked` makes it a warning."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    faint: bool = False
    marked: bool = False


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


def looks(series: Sequence[Series]) -> list[Look]:
    """A look for each series, no two alike among the first thirty; beside a warning no colour stands that is near it."""
    free = [name for name in COLOURS if name != TOO_NEAR or not any(one.marked for one in series)]
    found, plain, marked = [], 0, 0
    for one in series:
        if one.marked:
            found.append(Look(MARKED, DASHES[marked % len(DASHES)]))
            marked += 1
        else:
            turn, place = divmod(plain, len(free))  # in each round a colour meets another dash
            found.append(Look(free[place], DASHES[(place + turn) % len(DASHES)]))
            plain += 1
    return found


def draw_series(number: int, look: Look, series: Series, x: Scale, y: Scale) -> Iterator[str]:
    """Band, dots and line of a series, as one group."""
    yield f'<g class="series" data-series="{number}">'
    if series.low and series.high:
        for stretch in unbroken(list(zip(series.x, series.low, series.high, strict=True))):
            outline = [(x(a), y(low)) for a, low, _ in stretch] + [(x(a), y(high)) for a, _, high in reversed(stretch)]
            yield f'<path class="band {look.colour}" d="{path(outline)}Z"/>'
    dots = "".join(f"M{x(a):.1f} {y(b):.1f}h0" for a, b in series.dots if finite(a, b))
    if dots:
        yield f'<path class="dots {look.colour}" d="{dots}"/>'
    for stretch in unbroken(list(zip(series.x, series.y, strict=True))):
        yield f'<path class="line {look.colour}" d="{path([(x(a), y(b)) for a, b in stretch])}"{look.style}/>'
    yield "</g>"


def legend_entries(series: Sequence[Series]) -> Iterator[tuple[int, str, str, str]]:
    """Number of the series, name, class and dash of every mark that needs a name."""
    for number, (one, look) in enumerate(zip(series, looks(series), strict=True)):
        if one.dots and one.dots_name:
            yield number, one.dots_name, f"dots {look.colour}", ""
        yield number, one.name, f"line {look.colour}", look.style


def legend(series: Sequence[Series], left: float, right: float, top: float) -> tuple[list[str], float]:
    """The legend in as many rows as it needs, and where it ends."""
    parts, x, y = [], left, top
    for number, name, kind, style in legend_entries(series):
        name = shorten(name, right - left - 32)
        need = 32 + LETTER * len(name) + 16
        if x > left and x + need > right + 16:
            x, y = left, y + 20
        marks = f"M{x:.1f} {y:.1f}h24" if "line" in kind else "".join(f"M{x + dx:.1f} {y:.1f}h0" for dx in (3, 12, 21))
        warning = MARKED if series[number].marked else ""
        parts += [
            f'<g class="key" data-series="{number}">',
            f'<rect class="hit" x="{x - 4:.1f}" y="{y - 10:.1f}" width="{need - 8:.1f}" height="20" rx="3"/>',
            f'<path class="{kind}" d="{marks}"{style}/>{text(x + 32, y + 4.5, name, warning)}</g>',
        ]
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
    left, right = 56.0, width - 26
    keys, top = legend(series, left, right, 34.0)
    height += max(0.0, top - 54)  # a long legend takes no room from the lines
    x = x_axis.over(xs, left, right, 8 if width >= NARROW else 4)
    y = y_axis.over(ys, height - 48, top)
    parts = [text(0, 14, str(y_axis), "label"), *keys, *grid(x, y, x_axis)]
    if not any(finite(a, b) for one in series for a, b in zip(one.x, one.y, strict=True)):
        parts.append(text((left + right) / 2, (y.begin + y.end) / 2, "nothing to draw", "label", "middle"))
    for number, (one, look) in enumerate(zip(series, looks(series), strict=True)):
        parts += draw_series(number, look, one, x, y)
    axes = " ".join(f"{value:.6g}" for one in (x, y) for value in (one.begin, one.end, one.ticks[0], one.ticks[-1]))
    return svg(width, height, label, parts, f' data-axes="{axes}"')


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


def row_chart(
    names: Sequence[tuple[str, str]],
    x_of: Callable[[float, float], Scale],
    draw: Callable[[int, Scale, float], Iterator[str]],
    *,
    axis: Axis,
    label: str,
    width: float,
    origin: float = 0.0,
    margin: float = 8.0,
) -> str:
    """Rows under one another over a common axis: names (with a class) to the left, or above on a narrow chart."""
    above = width < NARROW
    longest = max((width_of(name) for name, _ in names), default=0.0)
    gutter = margin if above else min(longest, width * 0.4) + 16
    pitch, offset = (52, 22) if above else (38, 8)
    bottom = 4 + pitch * max(len(names), 1) + 4
    x = x_of(gutter, width - 56)
    # Between names that stand above their rows, a line through the whole chart would cross the letters.
    tops = [4 + pitch * number + offset - 3 for number in range(len(names))]
    spans = [(top, top + 28) for top in tops] if above else [(4, bottom)]
    ticks = [tick for tick in x.ticks if abs(tick - origin) > x.step / 1e6]
    parts = [line(x(tick), top, x(tick), end, "grid") for top, end in spans for tick in ticks]
    if x.ticks[0] <= origin <= x.ticks[-1]:
        parts += [line(x(origin), top, x(origin), end, "axis") for top, end in spans]
    parts += [text(x(tick), bottom + 17, x.label(tick), "tick", "middle") for tick in x.ticks]
    parts.append(text(x.end, bottom + 38, str(axis), "label", "end"))
    for number, (name, kind) in enumerate(names):
        y = 4 + pitch * number
        short = shorten(name, width - 16 if above else gutter - 16)
        left, base = (7.0, y + 15) if above else (gutter - 10, y + offset + 15.5)
        parts.append(text(left, base, short, kind, "start" if above else "end"))
        parts += draw(number, x, y + offset)
    return svg(width, bottom + 46, label, parts)


def bar_chart(
    bars: Sequence[Bar],
    axis: Axis,
    *,
    label: str,
    width: float = WIDTH,
    written: Callable[[float], str] = "{:.1f}".format,
) -> str:
    """Horizontal bars from zero, with their intervals and values."""
    ends = [value for bar in bars for value in (0.0, bar.value, bar.low, bar.high) if value is not None]

    def draw(number: int, x: Scale, y: float) -> Iterator[str]:
        return draw_bar(bars[number], x, y, written(bars[number].value))

    def x_of(begin: float, end: float) -> Scale:
        return axis.over(ends, begin, end, 5)

    return row_chart([(bar.name, "") for bar in bars], x_of, draw, axis=axis, label=label, width=width)


# Points


def draw_point(point: Point, x: Scale, y: float, value: str) -> Iterator[str]:
    """A point on its whisker, and its value behind both."""
    warning = f" {MARKED}" if point.marked else ""
    if not finite(point.value):
        yield text(x.begin + 6, y + 15, "no value", f"label{warning}")
        return
    kind, end = ("point faint" if point.faint else "point") + warning, x(point.value)
    if point.low is not None and point.high is not None and finite(point.low, point.high):
        low, high = x(point.low), x(point.high)
        ends = f"M{low:.1f} {y + 6:.1f}v10M{high:.1f} {y + 6:.1f}v10"
        yield f'<path class="whisker{warning}" d="M{low:.1f} {y + 11:.1f}H{high:.1f}{ends}"/>'
        end = max(end, high)
    yield f'<circle class="{kind}" cx="{x(point.value):.1f}" cy="{y + 11:.1f}" r="5.5"/>'
    yield text(end + 12, y + 15.5, value, f"value halo{warning}")


def point_chart(
    points: Sequence[Point],
    axis: Axis,
    *,
    label: str,
    origin: float = 0.0,
    width: float = WIDTH,
    written: Callable[[float], str] = "{:.1f}".format,
) -> str:
    """Points with whiskers on both sides of a line at `origin`, where there is no difference."""
    ends = [value for one in points for value in (origin, one.value, one.low, one.high) if value is not None]

    def draw(number: int, x: Scale, y: float) -> Iterator[str]:
        return draw_point(points[number], x, y, written(points[number].value))

    def x_of(begin: float, end: float) -> Scale:
        return axis.over(ends, begin, end, 6 if width >= NARROW else 4)

    names = [(one.name, MARKED if one.marked else "") for one in points]
    # Unlike bars they need not begin at a short 0.
    return row_chart(names, x_of, draw, axis=axis, label=label, width=width, origin=origin, margin=24.0)
