"""Charts as SVG text: lines with bands, bars and points with intervals.

Pure functions from data to a string. Colours and fonts are classes that the page's style sheet gives a meaning in light,
dark and print, so a chart must not name a colour; nor must it know what its numbers are about. Series differ in dash as
well as in colour, and what is `marked` is drawn as a warning: its name should say of what. Numbers that are not finite are
left out and break a line. A chart is drawn for one width; on small screens the page lets it scroll, so that its letters keep
their size. A line chart says in attributes where its axes lie and which marks belong to which series, so that a script can
point at values and hide series.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from attnlab.report.document import Axis, Chart, Mark, Series
from attnlab.report.scales import Scale, extent, scale
from attnlab.report.svg import finite, line, shorten, svg, text, width_of

WIDTH = 760
DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "12 5")
COLOURS = ("s1", "s2", "s3", "s4", "s5", "s6")
MARKED = "leak"  # the class of what is drawn as a warning
FEW = 30  # dots that are drawn large
TOO_NEAR = "s2"  # the colour that could be taken for the warning


@dataclass(frozen=True)
class Look:
    """The class and the dash of a series."""

    colour: str
    dash: str

    @property
    def style(self) -> str:
        """The dash as an attribute."""
        return f' stroke-dasharray="{self.dash}"' if self.dash else ""


def over(axis: Axis, values: Sequence[float], begin: float, end: float, most: int = 5) -> Scale:
    """The scale of an axis over these values; where all of them are whole, as epochs are, so are the ticks."""
    low, high = extent(values)
    whole = all(value == int(value) for value in values if finite(value)) and any(map(finite, values))
    low = low if axis.low is None else min(axis.low, low)
    high = high if axis.high is None else max(axis.high, high)
    return scale(low, high, begin, end, most, whole)


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
        yield f'<path class="dots {look.colour}{" few" if len(series.dots) <= FEW else ""}" d="{dots}"/>'
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
        need = 32 + width_of(name) + 16
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


def line_chart(chart: Chart) -> str:
    """Lines over a common axis, each with its band and its dots."""
    series, height = chart.series, chart.height
    xs = [a for one in series for a in (*one.x, *(a for a, _ in one.dots))]
    ys = [b for one in series for b in (*one.y, *one.low, *one.high, *(b for _, b in one.dots))]
    left, right = 56.0, WIDTH - 26.0
    keys, top = legend(series, left, right, 34.0)
    height += max(0.0, top - 54)  # a long legend takes no room from the lines
    x = over(chart.x, xs, left, right, 8)
    y = over(chart.y, ys, height - 48, top)
    parts = [text(0, 14, str(chart.y), "label"), *keys, *grid(x, y, chart.x)]
    if not any(finite(a, b) for one in series for a, b in zip(one.x, one.y, strict=True)):
        parts.append(text((left + right) / 2, (y.begin + y.end) / 2, "nothing to draw", "label", "middle"))
    for number, (one, look) in enumerate(zip(series, looks(series), strict=True)):
        parts += draw_series(number, look, one, x, y)
    axes = " ".join(f"{value:.6g}" for one in (x, y) for value in (one.begin, one.end, one.ticks[0], one.ticks[-1]))
    return svg(WIDTH, height, chart.label, parts, f' data-axes="{axes}"')


# Bars and points


def draw_mark(mark: Mark, shape: str, x: Scale, y: float) -> Iterator[str]:
    """A bar from zero or a point, its interval as a whisker, and its value after both."""
    warning = f" {MARKED}" if mark.marked else ""
    if not finite(mark.value):
        yield text(x.begin + 6, y + 15, "no value", f"label{warning}")
        return
    kind = f"{shape.removesuffix('s')}{' faint' if mark.faint else ''}{warning}"
    begin, end = sorted((x(0.0), x(mark.value))) if shape == "bars" else (0.0, x(mark.value))
    drawn = f'<circle class="{kind}" cx="{x(mark.value):.1f}" cy="{y + 11:.1f}" r="5.5"/>'
    if shape == "bars":
        wide = max(end - begin, 1)
        yield f'<rect class="{kind}" x="{begin:.1f}" y="{y:.1f}" width="{wide:.1f}" height="22" rx="2"/>'
        drawn = ""
    if mark.low is not None and mark.high is not None and finite(mark.low, mark.high):
        low, high = x(mark.low), x(mark.high)
        ends = f"M{low:.1f} {y + 6:.1f}v10M{high:.1f} {y + 6:.1f}v10"
        yield f'<path class="whisker{warning}" d="M{low:.1f} {y + 11:.1f}H{high:.1f}{ends}"/>'
        end = max(end, high)
    yield drawn
    yield text(end + (8 if shape == "bars" else 12), y + 15.5, mark.text, f"value halo{warning}")


def mark_chart(chart: Chart) -> str:
    """Bars from zero, or points on both sides of a line at the origin, in rows with their names to the left."""
    marks, origin = chart.marks, chart.origin
    ends = [value for one in marks for value in (origin, one.value, one.low, one.high) if value is not None]
    gutter = min(max((width_of(one.name) for one in marks), default=0.0), WIDTH * 0.4) + 16
    pitch, offset = 38, 8
    bottom = 8 + pitch * max(len(marks), 1)
    x = over(chart.x, ends, gutter, WIDTH - 56, 6 if chart.shape == "points" else 5)
    parts = [line(x(tick), 4, x(tick), bottom, "grid") for tick in x.ticks if abs(tick - origin) > x.step / 1e6]
    if x.ticks[0] <= origin <= x.ticks[-1]:
        parts.append(line(x(origin), 4, x(origin), bottom, "axis"))
    parts += [text(x(tick), bottom + 17, x.label(tick), "tick", "middle") for tick in x.ticks]
    parts.append(text(x.end, bottom + 38, str(chart.x), "label", "end"))
    for number, one in enumerate(marks):
        y = 4 + pitch * number + offset
        name = shorten(one.name, gutter - 16)
        parts.append(text(gutter - 10, y + 15.5, name, MARKED if one.marked else "", "end"))
        parts += draw_mark(one, chart.shape, x, y)
    return svg(WIDTH, bottom + 46, chart.label, parts)


def draw_chart(chart: Chart) -> str:
    """A chart of any shape."""
    return line_chart(chart) if chart.shape == "lines" else mark_chart(chart)
