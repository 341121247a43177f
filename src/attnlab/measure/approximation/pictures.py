"""Pictures of what was measured: errors over a knob, and singular values."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from attnlab.measure.approximation.error import BEST, EXACT, MEAN, PROJECTED, WHATS, Nearness, Row
from attnlab.measure.approximation.spectrum import Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY = "#222222", "#6b7280"
COLOURS = ("#2f6db5", "#d0781e", "#2e8b57", "#a3387c", "#7b5ea7", "#8c6d1f")
STYLES = ("-", "--", ":", "-.")


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


def blank(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, Any]:
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


def error_picture(found: Nearness) -> Figure:
    """Errors of output and pattern, a column a sample: over the knob, over the work where there are several knobs."""
    columns = len(found.samples)
    figure, axes = blank(len(WHATS), columns, 1.2 + 3.3 * columns, 6.6, sharex=True, sharey="row")
    for line, what in enumerate(WHATS):
        for column, sample in enumerate(found.samples):
            ax = axes[line, column]
            if found.knobs:
                draw_curves(ax, found, what, sample)
            else:
                draw_bars(ax, found, what, sample)
            if line == 0:
                ax.set_title(sample, fontsize=10, color=INK)
        axes[line, 0].set_ylabel(f"relative error of the {what}", fontsize=9)
        limit(axes[line], [row for row in found.rows if row.what == what])
    if found.knobs:
        axis = found.knobs[0] if len(found.knobs) == 1 else "work (exact attention: 1)"
        for ax in axes[-1]:
            ax.set_xlabel(axis, fontsize=9)
        if len(found.knobs) == 1:
            for ax, sample in zip(axes[0], found.samples, strict=True):
                draw_work(ax, found, sample)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    figure.suptitle(f"{found.name} against exact attention", fontsize=12, color=INK)
    notes = [f"median and middle 80 % of {found.draws} draws"]
    notes += ["star: exact"] * any(row.median <= EXACT and row.form in found.forms for row in found.rows)
    notes += [f"{', '.join(found.untrained)} untrained"] * bool(found.untrained)
    figure.supxlabel("; ".join([*notes, found.source]), fontsize=7, color=GREY)
    return figure


def curves_of(found: Nearness, what: Any, sample: str) -> list[tuple[str, list[Row], dict[str, Any]]]:
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


def draw_curves(ax: Axes, found: Nearness, what: Any, sample: str) -> None:
    """One panel: every form over its knob, with the mean as a dashed line; a star at the bottom is exact."""
    many = len(found.knobs) > 1
    for label, rows, looks in curves_of(found, what, sample):
        seen = [row for row in rows if row.median > EXACT]
        places = [place_of(row, many) for row in seen]
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
        exact = [place_of(row, many) for row in rows if row.median <= EXACT and "marker" in looks]
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


def place_of(row: Row, many: bool) -> float:
    """Where a number stands: at the value of the knob, or where there are several knobs, at the work."""
    return row.work or 0.0 if many else row.value


def draw_work(ax: Axes, found: Nearness, sample: str) -> None:
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


def draw_bars(ax: Axes, found: Nearness, what: Any, sample: str) -> None:
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


def limit(axes: Any, rows: list[Row]) -> None:
    """One scale for a row of panels: wild errors are cut at a thousand, and rounding is not shown."""
    from matplotlib.ticker import LogLocator

    if axes[0].get_yscale() == "log":
        shown = [row.median for row in rows if row.median > EXACT]
        low, high = max(1e-3, min(shown) / 1.6), min(1000.0, max(shown) * 1.6)
        axes[0].set_ylim(low, high)
        axes[0].yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5), numticks=12))
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def spectrum_picture(found: Spectrum) -> Figure:
    """Left the cumulative singular values, right the least error that a pattern of a rank can have."""
    figure, axes = blank(1, 2, 9.2, 4.2)
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
