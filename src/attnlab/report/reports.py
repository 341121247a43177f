"""The report of the study reports: accuracies beside those of the course reports, and against epochs of pretraining."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.report.document import Axis, Cell, Chart, Document, Row, Series, Table, section
from attnlab.report.parts import (
    QUICK,
    Result,
    accuracy_cell,
    cell,
    columns,
    commonest_table,
    commonest_words,
    lines,
    report_of,
    reproduce,
    settings_of,
    training_blocks,
)
from attnlab.report.recall import accuracy_chart, asked_before, data_facts, results_table
from attnlab.report.words import NOTHING, interval, percent


def _shares(values: Sequence[float]) -> str:
    """Reported shares in one phrase."""
    return f"{', '.join(f'{100 * one:.1f}' for one in values)} %"


def _curves(rows: Sequence[Result]) -> dict[str, list[Result]]:
    """The rows of every pretrained model by epochs."""
    found: dict[str, list[Result]] = {}
    for row in rows:
        if row["epochs"]:
            found.setdefault(row["model"], []).append(row)
    return found


def verdict(rows: Sequence[Result], as_reported: bool, full: int) -> list[str]:
    """What came out, beside what the reports found."""
    people = "Their exam had other names" if as_reported else "They had other people, so the figures do not compare"
    sentences = []
    for row in [*rows[:1], *(points[-1] for points in _curves(rows).values())]:
        said = f"{row['name'][:1].upper()}{row['name'][1:]}: {percent(row['accuracy'])} of {row['questions']:,}"
        after = f" after {full} epochs" if row["epochs"] not in (0, full) else ""
        said += f" ({interval(row['low'], row['high'])}); the reports{after}: {_shares(row['reported'])}."
        sentences.append(f"{said} Its most common answers: {commonest_words(row)}.")
    return [*sentences, f"One run each: the intervals are for new questions, not for new seeds. {people}."]


def _epochs_chart(result: Result) -> Chart:
    """Accuracy against epochs; every curve starts at the model without pretraining."""
    series = []
    for name, points in _curves(result["rows"]).items():
        shown = [result["rows"][0], *points]
        x = [float(one["epochs"]) for one in shown]
        y, low, high = ([100 * one[key] for one in shown] for key in ("accuracy", "low", "high"))
        series.append(Series(name, x, y, low, high, dots=tuple(zip(x, y, strict=True))))
    return lines(
        "Right answers against epochs of pretraining, with 95 % intervals",
        series,
        Axis("epochs of pretraining, each with the whole schedule", low=0.0),
        Axis("right answers", "%", low=0.0),
        "right answers in per cent against epochs",
    )


def _reported_table(result: Result) -> Table:
    """Our accuracies beside those of the reports."""
    rows = [
        Row(
            Cell(row["name"]),
            [
                accuracy_cell(row),
                Cell(_shares(row["reported"]), max(row["reported"])) if row["reported"] else Cell(NOTHING, ""),
                cell(row["epochs"], "count"),
                cell(result["full"] if row["epochs"] else 0, "count"),
                cell(row["seconds"], "seconds"),
            ],
            tone="baseline" if row["kind"] == "baseline" else "",
        )
        for row in result["rows"]
    ]
    titles = ("Right answers", "In the reports", "Epochs of pretraining", "In the reports", "Training")
    caption = "The reports: one run each, of 500 names. Fewer epochs have the same schedule, compressed."
    return Table("Beside the reports", caption, columns("Model", *titles), rows)


def document(result: Result) -> Document:
    """The whole report."""
    rows, world, runs = result["rows"], result["world"], result["runs"]
    return report_of(
        "reports",
        result,
        result["verdict"],
        [
            *section(
                "Results", accuracy_chart(rows), _epochs_chart(result), results_table(rows), commonest_table(rows)
            ),
            *section("Beside the reports", _reported_table(result)),
            *section("Training", *training_blocks(runs)),
            reproduce(result, data_facts(world), settings_of(runs)),
        ],
        [*([QUICK] if world["quick"] else []), *asked_before(world)],
    )
