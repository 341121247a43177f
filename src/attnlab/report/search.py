"""The report of a search for settings: its trials, the best of them, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from attnlab.report.document import (
    Axis,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Mark,
    Notice,
    Row,
    Series,
    Table,
    Text,
    section,
)
from attnlab.report.parts import finished, reproduce
from attnlab.report.words import count, duration, flat, interval, percent, plain, plural

Result = Mapping[str, Any]
MOST_RANKED = 20
EARLY = "ended early"


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
        Column("Epochs", minor=True),
        Column("Best epoch", minor=True),
        Column(
            "Validation",
            note="share of right labels in the best epoch, with the 95 % interval of this trial alone",
            largest_first=True,
        ),
        Column("Time", minor=True),
        Column("Trained", number=False, minor=True),
    ]
    caption = (
        "Below each accuracy the 95 % interval of that trial alone: it knows nothing of the choice among them."
        f" {EARLY.capitalize()}: below the median of the others at the same share of its schedule."
    )
    return Table("Trials", caption, columns, [row(one) for one in result["trials"]], brief=True)


def history_chart(result: Result) -> Chart:
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
    return Chart("lines", "Trial by trial", label, Axis("trial"), Axis("right labels", "%"), series, height=280)


def ranking_chart(result: Result) -> Chart:
    """The best trials beside the settings that the search started from."""
    trials = sorted(result["trials"], key=lambda one: (-one["accuracy"], one["number"]))[:MOST_RANKED]
    marks = [
        Mark(
            titled(one),
            100 * one["accuracy"],
            percent(one["accuracy"]),
            100 * one["low"],
            100 * one["high"],
            one["pruned"],
        )
        for one in trials
    ]
    label = "Trials by validation accuracy. " + "; ".join(f"{one.name}: {one.text}" for one in marks)
    which = f"The {len(marks)} best trials" if len(marks) < len(result["trials"]) else "All trials"
    title = f"{which}, with 95 % intervals; the line is the first trial, the settings it started from; hollow: {EARLY}"
    origin = 100 * result["trials"][0]["accuracy"]
    return Chart("points", title, label, Axis("right labels", "%"), marks=marks, origin=origin)


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
        "Model",
        "The best settings, trained once more with the same seed; this is the model that was kept.",
        columns,
        rows,
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


def document(result: Result) -> Document:
    """The whole report."""
    where = f"The model is in {result['folder']}/model, its own report in {result['folder']}/report.html."
    return Document(
        kind="search",
        title=result["title"],
        lead=result["verdict"],
        sections=[
            *section("Model", kept_table(result), Text([where])),
            *section("Trials", history_chart(result), ranking_chart(result), trials_table(result)),
            reproduce(result, [Facts("Search", facts_of(result))], {"the first trial": list(flat(result["settings"]))}),
        ],
        notices=[Notice("Look at the data:", one) for one in result["warnings"]],
        about=finished(result, "all trainings took"),
        command=result["command"],
        footer="The raw numbers are in result.json, the trials also in trials.tsv.",
    )
