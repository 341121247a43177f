"""Time and memory over the length, on logarithmic axes, as PNG and SVG. A line that ends early was skipped from there on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnlab.measure.bench.reach import Reach, Reaches, say_ratio
from attnlab.measure.bench.reach import headline as reach_headline
from attnlab.measure.bench.results import Result, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT = "#222222", "#d5d8dc"
COLOURS = ("#2f6db5", "#d0781e", "#2e8b57", "#b3261e", "#7b52ab", "#8a6d3b", "#c2579b", "#4c9fb0")
MARKS = "os^Dv<>P"
Lines = Sequence[tuple[str, Sequence[tuple[int, float]]]]


def files(figure: Figure, stem: str) -> dict[str, bytes]:
    """The figure as the bytes of a PNG and an SVG file."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    made = {}
    with mpl.rc_context({"svg.hashsalt": "attnlab"}):
        for kind in ("png", "svg"):
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            made[f"{stem}.{kind}"] = stream.getvalue()
    plt.close(figure)
    return made


def style(number: int, label: str) -> dict[str, Any]:
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


def styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A style for every contestant; a reference has the colour of its mechanism."""
    stems = list(dict.fromkeys(label.removesuffix(", reference") for label in labels))
    stems.sort(key=lambda stem: stem in ("SDPA", "naive", "dot, whole module"))  # so that they use up no colour
    return {label: style(stems.index(label.removesuffix(", reference")), label) for label in labels}


def draw(axes: Axes, lines: Lines, what: str) -> None:
    """One panel."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    chosen = styles([label for label, _ in lines])
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
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("tokens")
    axes.set_title(what, loc="left", fontsize=10)


def panels(count: int, legend_rows: int) -> tuple[Figure, Sequence[Axes]]:
    """Panels side by side, with room for the legend below."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, count, figsize=(5.4 * count + 0.6, 4.6 + 0.22 * legend_rows), squeeze=False, layout="constrained"
    )
    return figure, list(axes[0])


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """The names of the lines below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def bench_picture(result: Result) -> Figure:
    """Time on the left, peak memory on the right, where it was measured."""
    times: Lines = [(r.label, [(p.tokens, 1e3 * p.seconds) for p in r.points if p.seconds]) for r in result.rows]
    sizes: Lines = [(r.label, [(p.tokens, p.bytes / 1e6) for p in r.points if p.bytes]) for r in result.rows]
    measured = any(points for _, points in sizes)
    figure, axes = panels(1 + measured, len(result.rows) // 4)
    draw(axes[0], times, "time (ms)")
    if measured:
        draw(axes[1], sizes, "peak memory beyond the inputs (MB)")
    legend(figure, axes[0], 4)
    figure.suptitle(headline(result).partition(", the least")[0], fontsize=10, color=INK)
    return figure


def reach_picture(reaches: Reaches) -> Figure:
    """One panel a budget: what every length took, the budget as a line, and where each contestant meets it."""
    figure, axes = panels(len(reaches.reaches), len(reaches.runs) // 4)
    for panel, one in zip(axes, reaches.reaches, strict=True):
        draw_reach(panel, one, reaches.runs)
    legend(figure, axes[0], 4)
    figure.suptitle(reach_headline(reaches).partition(": ")[2].partition(";")[0], fontsize=10, color=INK)
    return figure


def draw_reach(axes: Axes, one: Reach, runs: dict[str, list[tuple[int, int | None, float]]]) -> None:
    """The panel of a budget; extrapolated stretches are dotted and end in a hollow mark."""
    memory = one.budget.kind == "bytes"
    scale, at = (1e6, 1) if memory else (1.0, 2)
    lines = [(label, [(run[0], float(run[at] or 0) / scale) for run in found]) for label, found in runs.items()]
    lines = [(label, [point for point in points if point[1] > 0]) for label, points in lines]
    draw(axes, lines, "peak memory beyond the inputs (MB)" if memory else "time (s)")
    height, chosen = one.budget.amount / scale, styles([label for label, _ in lines])
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
