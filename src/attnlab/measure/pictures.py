"""Pictures of what was measured, as PNG and SVG: errors and patterns beside exact attention, time and memory over the length.

Matplotlib without pyplot, so that no global state is touched; it is imported only when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnlab import ops
from attnlab.measure.approximation import Findings
from attnlab.measure.approximation.error import (
    BEST,
    EXACT,
    MEAN,
    PROJECTED,
    WHATS,
    ErrorRow,
    Errors,
    Setting,
    Spectrum,
    What,
    look,
    settings_of,
    worth_it,
)
from attnlab.measure.approximation.samples import Drawn, Source, alone
from attnlab.measure.bench.reach import Reach, Reaches, Run, say_ratio
from attnlab.measure.bench.reach import headline as reach_headline
from attnlab.measure.bench.results import Result, headline
from attnlab.registry import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, SOFT = "#222222", "#6b7280", "#d5d8dc"
COLOURS = ("#2f6db5", "#d0781e", "#2e8b57", "#a3387c", "#7b5ea7", "#8c6d1f", "#c2579b", "#4c9fb0")
STYLES = ("-", "--", ":", "-.")
MARKS = "os^Dv<>P"
Lines = Sequence[tuple[str, Sequence[tuple[int, float]]]]


def files_of(name: str, figure: Figure) -> dict[str, bytes]:
    """A figure as PNG and as SVG."""
    import matplotlib as mpl

    files = {}
    with mpl.rc_context({"svg.hashsalt": "attnlab"}):
        for kind in ("png", "svg"):
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            files[f"{name}.{kind}"] = stream.getvalue()
    return files


def error_files(found: Findings) -> dict[str, bytes]:
    """The pictures of errors and, where there are any, of singular values."""
    files = files_of("error", _error_picture(found.errors))
    return files | (files_of("spectrum", _spectrum_picture(found.spectrum)) if found.spectrum else {})


def pattern_files(entry: Entry) -> dict[str, bytes]:
    """The patterns of a mechanism beside the exact one."""
    return files_of("pattern", _pattern_picture(entry))


def _blank(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, Any]:
    """A figure with a grid of axes, without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=GREY, labelsize=8)
    return figure, axes


# Errors and singular values


def _error_picture(found: Errors) -> Figure:
    """Errors of output and pattern, one column per sample: over the knob, over the work where there are several knobs."""
    columns = len(found.samples)
    figure, axes = _blank(len(WHATS), columns, 1.2 + 3.3 * columns, 6.6, sharex=True, sharey="row")
    for line, what in enumerate(WHATS):
        for column, sample in enumerate(found.samples):
            ax = axes[line, column]
            if found.knobs:
                _draw_curves(ax, found, what, sample)
            else:
                _draw_bars(ax, found, what, sample)
            if line == 0:
                ax.set_title(sample, fontsize=10, color=INK)
        axes[line, 0].set_ylabel(f"relative error of the {what}", fontsize=9)
        _limit(axes[line], [row for row in found.rows if row.what == what])
    if found.knobs:
        axis = found.knobs[0] if len(found.knobs) == 1 else "work (exact attention: 1)"
        for ax in axes[-1]:
            ax.set_xlabel(axis, fontsize=9)
        if len(found.knobs) == 1:
            for ax, sample in zip(axes[0], found.samples, strict=True):
                _draw_work(ax, found, sample)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    figure.suptitle(f"{found.name} against exact attention", fontsize=12, color=INK)
    notes = [f"median and middle 80 % of {found.draws} draws"]
    notes += ["star: exact"] * any(row.median <= EXACT and row.form in found.forms for row in found.rows)
    notes += [f"{', '.join(found.untrained)} untrained"] * bool(found.untrained)
    figure.supxlabel("; ".join([*notes, found.source]), fontsize=7, color=GREY)
    return figure


def _curves_of(found: Errors, what: What, sample: str) -> list[tuple[str, list[ErrorRow], dict[str, Any]]]:
    """The curves of a panel with their looks: the first word of a form gives its colour, the others its dashes."""
    firsts = list(dict.fromkeys(form.split(" ")[0] for form in found.forms))
    curves = []
    for number, knob in enumerate(found.knobs):
        for form in found.forms:
            first, _, rest = form.partition(" ")
            others = list(dict.fromkeys(one.partition(" ")[2] for one in found.forms))
            looks: dict[str, Any] = {
                "color": COLOURS[(firsts.index(first) + number) % len(COLOURS)],
                "ls": STYLES[others.index(rest) % len(STYLES)],
                "marker": "o",
                "ms": 3,
            }
            label = form or (found.name if len(found.knobs) == 1 else knob)
            curves.append((label, found.find(what, sample, form, knob), looks))
    for form, colour, dashes in ((BEST, INK, ":"), (PROJECTED, COLOURS[3], "-.")):
        rows = found.find(what, sample, form)
        if rows:
            curves.append((form, rows, {"color": colour, "ls": dashes}))
    return curves


def _draw_curves(ax: Axes, found: Errors, what: What, sample: str) -> None:
    """One panel: every form over its knob, with the mean as a dashed line; a star at the bottom is exact."""
    many = len(found.knobs) > 1
    for label, rows, looks in _curves_of(found, what, sample):
        seen = [row for row in rows if row.median > EXACT]
        places = [_place_of(row, many) for row in seen]
        ax.plot(places, [row.median for row in seen], lw=1.4, label=label, **looks)
        ax.fill_between(
            places, [row.low for row in seen], [row.high for row in seen], color=looks["color"], alpha=0.15, lw=0
        )
        if many:
            for place, row in zip(places, seen, strict=True):
                ax.annotate(
                    str(row.value),
                    (place, row.median),
                    xytext=(3, 4),
                    textcoords="offset points",
                    fontsize=7,
                    color=GREY,
                )
        exact = [_place_of(row, many) for row in rows if row.median <= EXACT and "marker" in looks]
        bottom = ax.get_xaxis_transform()  # zero has no place on a scale of logarithms
        ax.plot(exact, [0.03] * len(exact), ls="", marker="*", ms=9, color=looks["color"], transform=bottom)
    mean = found.find(what, sample, MEAN)[0]
    ax.axhline(mean.median, color=GREY, ls=(0, (5, 3)), lw=1.2, label="the mean of the values")
    ax.set_yscale("log")
    ax.minorticks_off()
    if not many:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.grid(True, which="major", color="#e5e7eb", lw=0.6)


def _place_of(row: ErrorRow, many: bool) -> float:
    """Where a number stands: at the value of the knob, or where there are several knobs, at the work."""
    return row.work or 0.0 if many else row.value


def _draw_work(ax: Axes, found: Errors, sample: str) -> None:
    """The cost over a panel: multiplications at some values of the knob, exact attention being 1."""
    rows = found.find("output", sample, found.forms[0])[1::2]
    top = ax.twiny()
    top.set_xscale("log", base=2)
    top.set_xlim(ax.get_xlim())
    top.set_xticks([row.value for row in rows], [f"{row.work:.2g}" for row in rows])
    top.minorticks_off()
    top.tick_params(colors=GREY, labelsize=7, length=2)
    top.spines[["top", "right"]].set_visible(False)
    top.set_xlabel("work (exact attention: 1)", fontsize=7, color=GREY)


def _draw_bars(ax: Axes, found: Errors, what: What, sample: str) -> None:
    """One panel of a mechanism without a knob: its error beside that of the mean and of the nearest of its rank."""
    rows = [(found.name, found.find(what, sample, form)[0]) for form in found.forms]
    rows += [("the mean", found.find(what, sample, MEAN)[0])]
    rows += [(f"best of rank {row.value}", row) for row in found.find(what, sample, BEST)]
    for place, (_, row) in enumerate(rows):
        error = [[row.median - row.low], [row.high - row.median]]
        ax.bar(
            place,
            row.median,
            yerr=error,
            width=0.65,
            color=(COLOURS[0], "#b8bec7", "#4b5563")[min(place, 2)],
            capsize=3,
        )
        ax.annotate(
            f"{row.median:.2f}", (place, row.high), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    ax.set_xticks(range(len(rows)), [name.replace(" of", "\nof") for name, _ in rows], fontsize=8)
    ax.margins(y=0.12)


def _limit(axes: Any, rows: list[ErrorRow]) -> None:
    """One scale for a row of panels: wild errors are cut at a thousand, and rounding is not shown."""
    from matplotlib.ticker import LogLocator

    if axes[0].get_yscale() == "log":
        shown = [row.median for row in rows if row.median > EXACT]
        low, high = max(1e-3, min(shown) / 1.6), min(1000.0, max(shown) * 1.6)
        axes[0].set_ylim(low, high)
        axes[0].yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5), numticks=12))
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _spectrum_picture(found: Spectrum) -> Figure:
    """Left the cumulative singular values, right the least error that a pattern of a rank can have."""
    figure, axes = _blank(1, 2, 9.2, 4.2)
    for ax, curves, title in (
        (axes[0, 0], found.cumulative, "share of all singular values"),
        (axes[0, 1], [errors[1:] for errors in found.error], "least relative error of a pattern of this rank"),
    ):
        for place, (sample, curve) in enumerate(zip(found.samples, curves, strict=True)):
            random = sample == "random"
            ax.plot(
                range(1, len(curve) + 1),
                curve,
                color=GREY if random else COLOURS[place % len(COLOURS)],
                ls="--" if random else "-",
                lw=1.5,
                label=sample,
            )
        ax.set_xlabel("rank", fontsize=9)
        ax.set_title(title, fontsize=10, color=INK)
        ax.set_ylim(0, 1.02)
        ax.set_xlim(left=0)
        ax.grid(True, color="#e5e7eb", lw=0.6)
    axes[0, 0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle("Is the exact pattern of low rank?", fontsize=12, color=INK)
    figure.supxlabel(found.source, fontsize=7, color=GREY)
    return figure


# Patterns


def _toy_source(tokens: int = 64, causal: bool = True) -> Source:
    """A text whose exact pattern can be recognised: neighbours, a look 24 tokens back, and two tokens that all look at."""
    place = torch.arange(tokens, dtype=torch.float32)

    def waves(shift: float, count: int) -> Tensor:
        frequency = 0.1 + 1.4 * (0.618034 * torch.arange(1, count + 1) % 1)  # no two waves meet again soon
        angle = (place[:, None] - shift) * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * count**-0.5

    salient = torch.zeros(tokens, 1)
    salient[[9, 33]] = 1.0
    k = torch.cat([waves(0, 7), waves(0, 8), salient, torch.zeros(tokens, 1)], dim=-1)
    q = torch.cat([6 * waves(0, 7), 5 * waves(24, 8), 4 * torch.ones(tokens, 1), torch.zeros(tokens, 1)], dim=-1)
    scale = 32**0.25 * (q.std() / k.std()).sqrt()  # the same scores, from queries and keys of one size
    drawn = Drawn(*(one[None, None] for one in (q * 32**0.5 / scale, k * scale, torch.eye(tokens)[:, :32])))
    words = f"a toy text of {tokens} tokens, {'causal' if causal else 'bidirectional'}"
    return Source(("toy",), lambda _: drawn, 1, tokens, 32, causal, words)


@torch.no_grad()
@alone
def _pattern_picture(entry: Entry, seed: int = 0) -> Figure:
    """The exact pattern of a toy text, and beside it every form of a mechanism at some values of its knobs."""
    source = _toy_source(causal=entry.causal)
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)[0, 0]
    lines = _lines_of(worth_it(entry, source, list(settings_of(entry, source)), seed))
    columns = 1 + max(len(line) for line in lines)
    figure, axes = _blank(len(lines), columns, max(4.6, 2.1 * columns), 1.0 + 2.3 * len(lines))
    for line, settings in enumerate(lines):
        _draw_pattern(axes[line, 0], exact, "exact")
        for ax in axes[line, 1 + len(settings) :]:
            ax.set_visible(False)
        for ax, setting in zip(axes[line, 1:], settings, strict=False):
            _, pattern = look(entry, source, setting, drawn, (seed, 0))
            form, knob, value = setting.key
            words = (form, f"{knob} {value}" if knob else "")
            _draw_pattern(ax, pattern[0, 0], "\n".join(word for word in words if word) or entry.name)
    figure.suptitle(f"{entry.name} beside exact attention", fontsize=11, color=INK)
    figure.supxlabel(
        f"{source.words}; rows look at columns\nblue: weights, by their roots; red: negative ones",
        fontsize=7,
        color=GREY,
    )
    return figure


def _lines_of(settings: list[Setting]) -> list[list[Setting]]:
    """A line for every form and knob, with a small, a middle and a large value; without a knob one line of all forms."""
    groups: dict[Any, list[Setting]] = {}
    for setting in settings:
        groups.setdefault((setting.form, setting.knob) if setting.knob else None, []).append(setting)
    lines = []
    for group, members in groups.items():
        last = len(members) - 1
        places = range(len(members)) if group is None else dict.fromkeys((last // 4, last // 2, last))
        lines.append([members[place] for place in places])
    return lines


def _draw_pattern(ax: Axes, pattern: Tensor, title: str) -> None:
    """One pattern, its weights by their roots, since few are large."""
    shown = pattern.sign() * pattern.abs().sqrt()
    ax.imshow(shown.numpy(), cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    ax.set_title(title, fontsize=8, color=INK)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color("#c9ccd1")


# Time and memory over the length, on logarithmic axes. A line that ends early was skipped from there on.


def _style(number: int, label: str) -> dict[str, Any]:
    """How a contestant is drawn: bars and naive in grey and black, references dotted."""
    if label in ("SDPA", "dot, whole module"):
        return {"color": INK, "marker": "o", "linewidth": 2.2}
    if label == "naive":
        return {"color": "#8a8f98", "marker": "o", "linewidth": 2.2}
    colour = {"color": COLOURS[number % len(COLOURS)]}
    if label.endswith(", reference"):
        return {**colour, "linestyle": ":", "linewidth": 1, "alpha": 0.7}
    dash = ("-", "--", "-.")[number // len(COLOURS) % 3]
    return {**colour, "marker": MARKS[number % len(MARKS)], "linestyle": dash}


def _styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A style for every contestant; a reference has the colour of its mechanism."""
    stems = list(dict.fromkeys(label.removesuffix(", reference") for label in labels))
    stems.sort(key=lambda stem: stem in ("SDPA", "naive", "dot, whole module"))  # so that they use up no colour
    return {label: _style(stems.index(label.removesuffix(", reference")), label) for label in labels}


def _draw(axes: Axes, lines: Lines, what: str) -> None:
    """One panel."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    chosen = _styles([label for label, _ in lines])
    for label, points in lines:
        if points:
            axes.plot(*zip(*points, strict=True), label=label, markersize=4, **chosen[label])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.tick_params(axis="x", labelrotation=30)
    axes.grid(color=SOFT, linewidth=0.6)
    axes.set_xlabel("tokens")
    axes.set_title(what, loc="left", fontsize=10)


def _panels(count: int, legend_rows: int) -> tuple[Figure, Sequence[Axes]]:
    """Panels side by side, with room for the legend below."""
    figure, axes = _blank(1, count, 5.4 * count + 0.6, 4.6 + 0.22 * legend_rows)
    return figure, list(axes[0])


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    """The names of the lines below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def bench_picture(result: Result) -> Figure:
    """Time on the left, peak memory on the right, where it was measured."""
    times: Lines = [(r.label, [(p.tokens, 1e3 * p.seconds) for p in r.points if p.seconds]) for r in result.rows]
    sizes: Lines = [(r.label, [(p.tokens, p.bytes / 1e6) for p in r.points if p.bytes]) for r in result.rows]
    measured = any(points for _, points in sizes)
    figure, axes = _panels(1 + measured, len(result.rows) // 4)
    _draw(axes[0], times, "time (ms)")
    if measured:
        _draw(axes[1], sizes, "peak memory beyond the inputs (MB)")
    _legend(figure, axes[0], 4)
    figure.suptitle(headline(result).partition(", the least")[0], fontsize=10, color=INK)
    return figure


def reach_picture(reaches: Reaches) -> Figure:
    """One panel per budget: what every length took, the budget as a line, and where each contestant meets it."""
    figure, axes = _panels(len(reaches.reaches), len(reaches.runs) // 4)
    for panel, one in zip(axes, reaches.reaches, strict=True):
        _draw_reach(panel, one, reaches.runs)
    _legend(figure, axes[0], 4)
    figure.suptitle(reach_headline(reaches).partition(": ")[2].partition(";")[0], fontsize=10, color=INK)
    return figure


def _draw_reach(axes: Axes, one: Reach, runs: Mapping[str, Sequence[Run]]) -> None:
    """The panel of a budget; extrapolated stretches are dotted and end in a hollow mark."""
    memory = one.budget.kind == "bytes"
    scale = 1e6 if memory else 1.0
    costs = {
        label: [(run.tokens, run.bytes if memory else run.seconds) for run in found] for label, found in runs.items()
    }
    lines = [(label, [(n, cost / scale) for n, cost in found if cost]) for label, found in costs.items()]
    _draw(axes, lines, "peak memory beyond the inputs (MB)" if memory else "time (s)")
    height, chosen = one.budget.amount / scale, _styles([label for label, _ in lines])
    axes.axhline(height, color=INK, linewidth=1, linestyle=(0, (6, 3)))
    axes.annotate(f"budget {one.budget}", (0.01, height), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    for row in one.reached:
        points, colour = dict(lines)[row.label], chosen[row.label]["color"]
        if not row.measured and points:
            axes.plot([points[-1][0], row.tokens], [points[-1][1], height], color=colour, linestyle=":", linewidth=1)
        axes.plot([row.tokens], [height], "o", color=colour, fillstyle="full" if row.measured else "none", markersize=8)
    words = "\n".join(
        f"{row.label} {row.length}" + ("" if (ratio := one.ratio(row)) is None else f" ({say_ratio(ratio)})")
        for row in sorted(one.reached, key=lambda row: -row.tokens)
    )
    box = {"facecolor": "white", "edgecolor": SOFT}
    axes.text(0.98, 0.03, words, transform=axes.transAxes, ha="right", fontsize=8, bbox=box)
