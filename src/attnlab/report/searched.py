"""A search for settings as tables, charts and lines of the terminal. Plain data in: no models, no optuna."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from markupsafe import Markup
from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from attnlab.report.charts import WIDTH, Axis, Point, Series, line_chart, point_chart
from attnlab.report.page import SMALL, Figure
from attnlab.report.tables import Cell, Column, Row, Table
from attnlab.report.words import count, duration, interval, percent, plain, plural

Result = Mapping[str, Any]
MOST_RANKED = 20
EARLY = "ended early"
WIDE_SCREEN = 100


def titled(one: Result) -> str:
    """The settings of a trial in a chart."""
    params = one["params"]
    return f"{one['number']}: batch {params['batch_size']}, {params['lr']:.2g}, {plural(params['epochs'], 'epoch')}"


def trials_table(result: Result) -> Table:
    """Every trial; the best is marked with a word."""

    def row(one: Result) -> Row:
        params = one["params"]
        cells = [
            Cell(str(params["batch_size"]), params["batch_size"]),
            Cell(f"{params['lr']:.3g}", params["lr"]),
            Cell(
                f"{len(one['epochs'])} of {params['epochs']}" if one["pruned"] else str(params["epochs"]),
                params["epochs"],
            ),
            Cell(str(one["best_epoch"]), one["best_epoch"]),
            Cell(percent(one["accuracy"]), one["accuracy"], interval(one["low"], one["high"])),
            Cell(duration(one["seconds"]), one["seconds"]),
            Cell(EARLY if one["pruned"] else "to the end"),
        ]
        return Row(
            Cell(str(one["number"]), one["number"]), cells, "best" if one["number"] == result["best"] else "", "good"
        )

    columns = [
        Column("Trial"),
        Column("Batch"),
        Column("Learning rate"),
        Column("Epochs"),
        Column("Best epoch"),
        Column(
            "Validation",
            note="share of right labels in the best epoch, with the 95 % interval of this trial alone",
            largest_first=True,
        ),
        Column("Time"),
        Column("Trained", number=False),
    ]
    caption = (
        "Below each accuracy the 95 % interval of that trial alone: it knows nothing of the choice among them."
        f" {EARLY.capitalize()}: below the median of the others at the same share of its schedule."
    )
    return Table(caption, columns, [row(one) for one in result["trials"]])


def history_figure(result: Result) -> Figure:
    """Every trial in turn, and the best so far of those that were finished."""
    trials = result["trials"]
    numbers = [float(one["number"]) for one in trials]
    shares = [100 * one["accuracy"] for one in trials]
    best = list(accumulate((0.0 if one["pruned"] else 100 * one["accuracy"] for one in trials), max))
    pairs = zip(numbers, [best[0], *best[:-1]], best, strict=True)
    steps = [(at, value) for at, before, now in pairs for value in (before, now)]
    series = [
        Series("best so far", [x for x, _ in steps], [y for _, y in steps]),
        Series("every trial", numbers, shares),
    ]
    label = f"Line chart of the best validation accuracy so far: from {best[0]:.1f} to {best[-1]:.1f} % in {len(trials)} trials"
    wide, small = (
        line_chart(series, Axis("trial"), Axis("right labels", "%"), label=label, width=width, height=height)
        for width, height in ((WIDTH, 280), (SMALL, 260))
    )
    return Figure("Trial by trial", Markup(wide), Markup(small))


def ranking_figure(result: Result) -> Figure:
    """The best trials beside the settings that the search started from."""
    trials = sorted(result["trials"], key=lambda one: (-one["accuracy"], one["number"]))[:MOST_RANKED]
    points = [
        Point(titled(one), 100 * one["accuracy"], 100 * one["low"], 100 * one["high"], faint=one["pruned"])
        for one in trials
    ]
    label = "Trials by validation accuracy. " + "; ".join(f"{one.name}: {one.value:.1f} %" for one in points)
    wide, small = (
        point_chart(
            points, Axis("right labels", "%"), label=label, origin=100 * result["trials"][0]["accuracy"], width=width
        )
        for width in (WIDTH, SMALL)
    )
    which = f"The {len(points)} best trials" if len(points) < len(result["trials"]) else "All trials"
    title = f"{which}, with 95 % intervals; the line is the first trial, the settings it started from; hollow: {EARLY}"
    return Figure(title, Markup(wide), Markup(small))


def kept_table(result: Result) -> Table:
    """The model that was kept, on validation and on test."""
    rows = [
        Row(
            Cell(name),
            [
                Cell(percent(one["accuracy"]), one["accuracy"], interval(one["low"], one["high"])),
                Cell(f"{count(one['right'])} of {count(one['texts'])}", one["right"]),
                Cell(meaning),
            ],
        )
        for name, one, meaning in (
            ("validation", result["dev"], "optimistic: settings and epoch were chosen on it"),
            ("test", result["test"], "measured once, after everything was chosen"),
        )
        if one
    ]
    columns = [
        Column("Table", number=False),
        Column("Accuracy"),
        Column("Right"),
        Column("What it is worth", number=False),
    ]
    return Table(
        "The best settings, trained once more with the same seed; this is the model that was kept.", columns, rows
    )


def facts_of(result: Result) -> list[tuple[str, str]]:
    """Budget, space and data."""
    known = {
        "budget": result["budget"]["words"],
        "space": result["tried"],
        "optimizer": result["optimizer"],
        **result["data"],
    }
    return [(name.replace("_", " ").capitalize(), plain(value)) for name, value in known.items()]


def show_search(result: Result, console: Console) -> None:
    """The trials and what can be said, in the terminal; a narrow one goes without intervals and the last column."""
    made, narrow = trials_table(result), console.width < WIDE_SCREEN
    table = rich_table.Table(title=Text(result["title"]), box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    columns = made.columns[:-1] if narrow else made.columns
    for column in columns:
        table.add_column(Text(column.title), justify="right" if column.number else "left")
    for row in made.rows:
        cells = [cell.text if narrow or not cell.under else f"{cell.text} ({cell.under})" for cell in row.cells]
        table.add_row(row.name.text, *cells[: len(columns) - 1], style="bold" if row.mark else "")
    console.print(table)
    for sentence in result["verdict"]:
        console.print(Text(sentence))
