"""Pictures of measurements as PNG and SVG: errors and patterns against exact attention, time and memory over the length.

Matplotlib without pyplot, so that no global state is touched; it is imported only when something is drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from attnlab.measure.approximation import Findings
from attnlab.measure.approximation.error import (
    BEST,
    EXACT,
    MEAN,
    PROJECTED,
    WHATS,
    ErrorRow,
    Errors,
    Spectrum,
    What,
)
from attnlab.measure.bench import NAIVE, SDPA, BenchResult, BudgetResult, Point, ReachResult, times
from attnlab.measure.patterns import patterns
from attnlab.pictures import picture_bytes
from attnlab.registry import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _GREY, _SOFT = "#222222", "#6b7280", "#d5d8dc"
_COLOURS = ("#2f6db5", "#d0781e", "#2e8b57", "#a3387c", "#7b5ea7", "#8c6d1f", "#c2579b", "#4c9fb0")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "os^Dv<>P"
_MEMORY = "peak memory beyond the inputs (MB)"
_REFERENCE = ", reference"  # how labels of reference paths end


@dataclass(frozen=True)
class _Line:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dash: str = "-"
    marker: str = ""
    width: float = 1.4
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def _blank(rows: int, columns: int, width: float, height: float, title: str, **shared: Any) -> tuple[Figure, Any]:
    """A figure with a title and a grid of axes, without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=_GREY, labelsize=8)
    figure.suptitle(title, fontsize=11, color=_INK)
    return figure, axes


def _footnote(figure: Figure, text: str) -> None:
    lines = textwrap.wrap(text, int(17 * figure.get_figwidth()))
    figure.supxlabel("\n".join(lines), fontsize=7, color=_GREY)


def _legend(figure: Figure, ax: Axes, below: bool) -> None:
    handles, labels = ax.get_legend_handles_labels()
    place: Any = "outside lower center" if below else "outside right upper"
    figure.legend(handles, labels, loc=place, ncols=4 if below else 1, frameon=False, fontsize=8)


def _draw(ax: Axes, lines: Sequence[_Line], x_label: str, *, log_x: bool, log_y: bool) -> None:
    """Lines with their bands, on logarithmic axes with plain numbers if asked."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for line in lines:
        ax.plot(
            line.x,
            line.y,
            label=line.label,
            color=line.colour,
            linestyle=line.dash,
            linewidth=line.width,
            marker=line.marker,
            markersize=4,
        )
        if line.low:
            ax.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.15, lw=0)
    if log_x:
        ax.set_xscale("log", base=2)
    if log_y:
        ax.set_yscale("log")
    for axis in [ax.xaxis] * log_x + [ax.yaxis] * log_y:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.grid(color=_SOFT, lw=0.6)
    ax.set_xlabel(x_label, fontsize=9)


def _picture_files(name: str, figure: Figure) -> dict[str, bytes]:
    """A figure as PNG and as SVG."""
    return {f"{name}.{kind}": picture_bytes(figure, kind) for kind in ("png", "svg")}


# Errors and singular values


def error_files(found: Findings) -> dict[str, bytes]:
    """The pictures of errors and, where there are any, of singular values."""
    files = _picture_files("error", _error_picture(found.errors))
    return files | (_picture_files("spectrum", _spectrum_picture(found.spectrum)) if found.spectrum else {})


def _error_picture(found: Errors) -> Figure:
    """Errors of output and pattern, one column per sample: over the knob, over the work if there are several knobs."""
    columns, single = len(found.samples), len(found.knobs) == 1
    title = f"{found.name} against exact attention"
    figure, axes = _blank(len(WHATS), columns, 1.2 + 3.3 * columns, 6.6, title, sharex=True, sharey="row")
    for what, line in zip(WHATS, axes, strict=True):
        for ax, sample in zip(line, found.samples, strict=True):
            if found.knobs:
                _draw_errors(ax, found, what, sample)
            else:
                _draw_bars(ax, found, what, sample)
        line[0].set_ylabel(f"relative error of the {what}", fontsize=9)
        if found.knobs:
            _limit(line[0], [row for row in found.rows if row.what == what])
    for top, bottom, sample in zip(axes[0], axes[-1], found.samples, strict=True):
        top.set_title(sample, fontsize=10, color=_INK)
        top.set_xlabel("")
        if found.knobs:
            bottom.set_xlabel(found.knobs[0] if single else "work (exact attention: 1)", fontsize=9)
        if single:
            _draw_work(top, found, sample)
    if found.knobs:
        _legend(figure, axes[0, 0], below=False)
    notes = [f"median and middle 80 % of {found.draws} draws"]
    notes += ["star: exact"] * any(row.median <= EXACT and row.form in found.forms for row in found.rows)
    notes += [f"{', '.join(found.untrained)} untrained"] * (bool(found.untrained) and not found.fit_steps)
    _footnote(figure, "; ".join([*notes, found.source]))
    return figure


def _draw_errors(ax: Axes, found: Errors, what: What, sample: str) -> None:
    """One panel: every form over its knob, and the mean as a dashed line; a star at the bottom is exact."""
    single, lines = len(found.knobs) == 1, []

    def place(row: ErrorRow) -> float:
        return row.value if single else row.work or 0.0

    def add(label: str, rows: list[ErrorRow], colour: str, dash: str, marker: str = "") -> None:
        seen = [row for row in rows if row.median > EXACT]
        x, y = [place(row) for row in seen], [row.median for row in seen]
        low, high = [row.low for row in seen], [row.high for row in seen]
        lines.append(_Line(label, x, y, colour, dash, marker, low=low, high=high))
        if marker:
            exact = [place(row) for row in rows if row.median <= EXACT]
            bottom = ax.get_xaxis_transform()  # zero has no place on a logarithmic scale
            ax.plot(exact, [0.03] * len(exact), ls="", marker="*", ms=9, color=colour, transform=bottom)
        if marker and not single:
            for row in seen:
                where = (place(row), row.median)
                ax.annotate(str(row.value), where, (3, 4), textcoords="offset points", fontsize=7, color=_GREY)

    # The first word of a form chooses its colour, the others its dashes.
    firsts = list(dict.fromkeys(form.partition(" ")[0] for form in found.forms))
    others = list(dict.fromkeys(form.partition(" ")[2] for form in found.forms))
    for number, knob in enumerate(found.knobs):
        for form in found.forms:
            first, _, rest = form.partition(" ")
            colour = _COLOURS[(firsts.index(first) + number) % len(_COLOURS)]
            label = found.label(form) if single else form or knob
            add(label, found.find(what, sample, form, knob), colour, _DASHES[others.index(rest) % len(_DASHES)], "o")
    for form, colour, dash in ((BEST, _INK, ":"), (PROJECTED, _COLOURS[3], "-.")):
        if rows := found.find(what, sample, form):
            add(form, rows, colour, dash)
    _draw(ax, lines, "", log_x=single, log_y=True)
    mean = found.find(what, sample, MEAN)[0]
    ax.axhline(mean.median, color=_GREY, ls=(0, (5, 3)), lw=1.2, label="the mean of the values")
    ax.minorticks_off()


def _draw_work(ax: Axes, found: Errors, sample: str) -> None:
    """The cost above a panel: multiplications at some values of the knob, exact attention being 1."""
    rows = found.find("output", sample, found.forms[0])[1::2]
    top = ax.twiny()
    top.set_xscale("log", base=2)
    top.set_xlim(ax.get_xlim())
    top.set_xticks([row.value for row in rows], [f"{row.work:.2g}" for row in rows])
    top.minorticks_off()
    top.tick_params(colors=_GREY, labelsize=7, length=2)
    top.spines[["top", "right"]].set_visible(False)
    top.set_xlabel("work (exact attention: 1)", fontsize=7, color=_GREY)


def _draw_bars(ax: Axes, found: Errors, what: What, sample: str) -> None:
    """One panel of a mechanism without a knob: its error, that of the mean, and that of the nearest of its rank."""
    rows = [(found.name, found.find(what, sample, form)[0]) for form in found.forms]
    rows += [("the mean", found.find(what, sample, MEAN)[0])]
    rows += [(f"best\nof rank {row.value}", row) for row in found.find(what, sample, BEST)]
    for place, (_, row) in enumerate(rows):
        error = [[row.median - row.low], [row.high - row.median]]
        colour = (_COLOURS[0], "#b8bec7", "#4b5563")[min(place, 2)]
        ax.bar(place, row.median, yerr=error, width=0.65, color=colour, capsize=3)
        where = (place, row.high)
        ax.annotate(f"{row.median:.2f}", where, (0, 3), textcoords="offset points", ha="center", fontsize=8)
    ax.set_xticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
    ax.margins(y=0.12)


def _limit(ax: Axes, rows: list[ErrorRow]) -> None:
    """One scale for a row of panels: large errors are cut at a thousand, and rounding is not shown."""
    from matplotlib.ticker import LogLocator

    shown = [row.median for row in rows if row.median > EXACT]
    low, high = max(1e-3, min(shown) / 1.6), min(1000.0, max(shown) * 1.6)
    ax.set_ylim(low, high)
    ax.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5), numticks=12))


def _spectrum_picture(found: Spectrum) -> Figure:
    """Left the cumulative singular values, right the smallest error that a pattern of a rank can have."""
    figure, axes = _blank(1, 2, 9.2, 4.2, "Is the exact pattern of low rank?")
    for ax, curves, title in (
        (axes[0, 0], found.cumulative, "share of all singular values"),
        (axes[0, 1], [errors[1:] for errors in found.error], "smallest relative error of a pattern of this rank"),
    ):
        lines = []
        for place, (sample, curve) in enumerate(zip(found.samples, curves, strict=True)):
            colour, dash = (_GREY, "--") if sample == "random" else (_COLOURS[place % len(_COLOURS)], "-")
            lines.append(_Line(sample, range(1, len(curve) + 1), curve, colour, dash))
        _draw(ax, lines, "rank", log_x=False, log_y=False)
        ax.set_title(title, fontsize=10, color=_INK)
        ax.set_ylim(0, 1.02)
        ax.set_xlim(left=0)
    axes[0, 0].legend(frameon=False, fontsize=8, loc="lower right")
    _footnote(figure, found.source)
    return figure


# Patterns


def pattern_files(entry: Entry) -> dict[str, bytes]:
    """The patterns of a mechanism, next to the exact one."""
    return _picture_files("pattern", _pattern_picture(entry))


def _pattern_picture(entry: Entry) -> Figure:
    """The exact pattern of a toy text, and every form of a mechanism at some values of its knobs."""
    found = patterns(entry)
    columns = 1 + max(len(line) for line in found.lines)
    size = (max(4.6, 2.1 * columns), 1.0 + 2.3 * len(found.lines))
    figure, axes = _blank(len(found.lines), columns, *size, f"{entry.name} against exact attention")
    for row, line in zip(axes, found.lines, strict=True):
        _draw_pattern(row[0], found.exact, "exact")
        for ax in row[1 + len(line) :]:
            ax.set_visible(False)
        for ax, one in zip(row[1:], line, strict=False):
            _draw_pattern(ax, one.weights, "\n".join(one.words) or entry.name)
    note = f"{found.source}; rows look at columns\nblue: weights, by their roots; red: negative ones"
    figure.supxlabel(note, fontsize=7, color=_GREY)
    return figure


def _draw_pattern(ax: Axes, pattern: Tensor, title: str) -> None:
    shown = pattern.sign() * pattern.abs().sqrt()  # roots, because few weights are large
    ax.imshow(shown.numpy(), cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    ax.set_title(title, fontsize=8, color=_INK)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set(visible=True, color="#c9ccd1")


# Time and memory over the length. A line that ends early was skipped from there on.


def cost_files(result: BenchResult | ReachResult) -> dict[str, bytes]:
    """The picture of a benchmark."""
    if isinstance(result, BenchResult):
        return _picture_files("bench", _bench_picture(result))
    return _picture_files("reach", _reach_picture(result))


def _bench_picture(result: BenchResult) -> Figure:
    """Time on the left, peak memory on the right if it was measured."""
    runs = {row.label: row.points for row in result.rows}
    measured = any(point.bytes for points in runs.values() for point in points)
    figure, axes = _cost_panels(1 + measured, len(runs), result.headline)
    _draw_costs(axes[0], runs, "seconds", 1e-3, "time (ms)")
    if measured:
        _draw_costs(axes[1], runs, "bytes", 1e6, _MEMORY)
    _legend(figure, axes[0], below=True)
    return figure


def _reach_picture(result: ReachResult) -> Figure:
    """One panel per budget: the cost of every length, the budget as a line, and where each case meets it."""
    figure, axes = _cost_panels(len(result.reaches), len(result.runs), result.headline)
    for ax, one in zip(axes, result.reaches, strict=True):
        unit, title = (1e6, _MEMORY) if one.budget.kind == "bytes" else (1.0, "time (s)")
        _draw_budget(ax, one, _draw_costs(ax, result.runs, one.budget.kind, unit, title), one.budget.amount / unit)
    _legend(figure, axes[0], below=True)
    return figure


def _cost_panels(count: int, lines: int, title: str) -> tuple[Figure, Sequence[Axes]]:
    """Panels side by side, with room for the legend below."""
    figure, axes = _blank(1, count, 5.4 * count + 0.6, 4.6 + 0.22 * (lines // 4), title)
    return figure, list(axes[0])


def _draw_costs(
    ax: Axes, runs: Mapping[str, Sequence[Point]], kind: Literal["bytes", "seconds"], unit: float, title: str
) -> list[_Line]:
    """One panel of bytes or seconds in a unit."""
    # Baselines come last, so that they use up no colour; a reference has the colour of its mechanism.
    baselines = (SDPA, NAIVE, "dot, whole module")
    stems = sorted(dict.fromkeys(label.removesuffix(_REFERENCE) for label in runs), key=baselines.__contains__)
    lines = []
    for label, points in runs.items():
        costs = [(point.tokens, getattr(point, kind) / unit) for point in points if getattr(point, kind)]
        number = stems.index(label.removesuffix(_REFERENCE))
        colour, dash, marker, width = _COLOURS[number % len(_COLOURS)], "-", _MARKERS[number % len(_MARKERS)], 1.4
        if label in baselines:
            colour, marker, width = "#8a8f98" if label == NAIVE else _INK, "o", 2.2
        elif label.endswith(_REFERENCE):
            dash, marker, width = ":", "", 1.0
        else:
            dash = ("-", "--", "-.")[number // len(_COLOURS) % 3]
        lines.append(_Line(label, [n for n, _ in costs], [cost for _, cost in costs], colour, dash, marker, width))
    _draw(ax, [line for line in lines if line.x], "tokens", log_x=True, log_y=True)
    ax.tick_params(axis="x", labelrotation=30)
    ax.set_title(title, loc="left", fontsize=10)
    return lines


def _draw_budget(ax: Axes, one: BudgetResult, lines: Sequence[_Line], height: float) -> None:
    """The budget and the lengths it allows; extrapolated parts are dotted and end in a hollow marker."""
    by_label = {line.label: line for line in lines}
    ax.axhline(height, color=_INK, lw=1, ls=(0, (6, 3)))
    ax.annotate(f"budget {one.budget}", (0.01, height), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    for row in one.reached:
        line = by_label[row.label]
        if not row.measured and line.x:
            ax.plot([line.x[-1], row.tokens], [line.y[-1], height], color=line.colour, ls=":", lw=1)
        ax.plot([row.tokens], [height], "o", color=line.colour, fillstyle="full" if row.measured else "none", ms=8)
    words = "\n".join(
        f"{row.label} {row.length}" + ("" if (ratio := one.ratio(row)) is None else f" ({times(ratio)})")
        for row in sorted(one.reached, key=lambda row: -row.tokens)
    )
    box = {"facecolor": "white", "edgecolor": _SOFT}
    ax.text(0.98, 0.03, words, transform=ax.transAxes, ha="right", fontsize=8, bbox=box)
