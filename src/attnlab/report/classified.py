"""What a classification found, in sentences and tables made from its numbers. Plain data in: no models, no tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.report.tables import Cell, Column, Row, Table
from attnlab.report.words import NOTHING, count, interval, percent, plural

Result = Mapping[str, Any]
PARTS = {"dev": "validation", "test": "test"}


def outcome(result: Result) -> str:
    """What came out, in a few sentences."""
    part = "test" if result["test"] else "dev"
    one = result[part]
    said = (
        f"{result['name']} gives {percent(one['accuracy'])} of the {count(one['texts'])} {PARTS[part]} texts their label"
        f" (95 % interval {interval(one['low'], one['high'])})."
    )
    epoch = f"Epoch {result['best_epoch']} of {len(result['epochs'])} was kept, the best on validation. "
    kept = epoch if result["best_epoch"] else ""
    return f"{said} {kept}{beside_guessing(one)}"


def beside_guessing(one: Result) -> str:
    """Whether more than the commonest label was learned."""
    guess = f"always saying the commonest label gives {percent(one['commonest'])}"
    if one["low"] > one["commonest"]:
        return guess[:1].upper() + guess[1:] + "."
    return f"That is not clearly more than guessing: {guess}."


def share(value: float | None) -> Cell:
    """A share, or nothing where there was nothing to divide by."""
    return Cell(NOTHING) if value is None else Cell(percent(value), value)


def accuracy_table(result: Result) -> Table:
    """The accuracies with their intervals."""
    rows = [
        Row(
            Cell(PARTS[part]),
            [
                Cell(percent(one["accuracy"]), one["accuracy"]),
                Cell(interval(one["low"], one["high"]), one["low"]),
                Cell(f"{count(one['right'])} of {count(one['texts'])}", one["right"]),
                Cell(f"{one['loss']:.3f}" if one["loss"] is not None else NOTHING, one["loss"]),
                Cell(percent(one["commonest"]), one["commonest"]),
            ],
        )
        for part in PARTS
        if (one := result[part])
    ]
    columns = [
        Column("Table", number=False),
        Column("Accuracy"),
        Column("95 % interval"),
        Column("Right"),
        Column("Loss", note="cross-entropy in nats"),
        Column("Commonest label", note="what saying it every time would give"),
    ]
    chosen = (
        "The best epoch was chosen on validation, which flatters that figure a little" if result["best_epoch"] else ""
    )
    once = "the test table was measured once, after everything was chosen" if result["test"] else ""
    caption = "; ".join(part for part in (chosen, once) if part)
    return Table(f"{caption[:1].upper()}{caption[1:]}." if caption else "Shares of right labels.", columns, rows)


def label_table(result: Result, part: str) -> Table:
    """How well each label is found."""
    rows = [
        Row(
            Cell(one["label"]),
            [
                Cell(count(one["texts"]), one["texts"]),
                Cell(count(one["predicted"]), one["predicted"]),
                *(share(one[key]) for key in ("precision", "recall", "f1")),
            ],
        )
        for one in result[part]["by_label"]
    ]
    columns = [
        Column("Label", number=False),
        Column("Texts"),
        Column("Said", note="how often it was said"),
        Column("Precision", note="of the texts that got this label, the share that has it"),
        Column("Recall", note="of the texts that have this label, the share that got it"),
        Column("F1", note="the harmonic mean of both"),
    ]
    return Table(
        "Precision: how often it is right when it says the label. Recall: how many of the label it finds.",
        columns,
        rows,
    )


def mistakes_table(result: Result, part: str) -> Table:
    """The mistakes that it was surest of."""
    rows = [
        Row(
            Cell(one["text"]),
            [Cell(one["label"]), Cell(one["predicted"]), Cell(percent(one["confidence"]), one["confidence"])],
        )
        for one in result[part]["mistakes"]
    ]
    wrong = result[part]["texts"] - result[part]["right"]
    told = f"{plural(len(rows), 'mistake')} of {count(wrong)} on {PARTS[part]}, those it was surest of."
    caption = f"{told} Some may be errors of the table."
    columns = [
        Column("Text", number=False),
        Column("Label", number=False),
        Column("It says", number=False),
        Column("Confidence", largest_first=True),
    ]
    return Table(caption, columns, rows)


def data_table(result: Result) -> Table:
    """The tables and their labels."""
    rows = [
        Row(
            Cell(one["source"]),
            [Cell(count(one["texts"]), one["texts"])]
            + [Cell(count(one["counts"][label]), one["counts"][label]) for label in result["labels"]],
        )
        for one in result["data"].values()
    ]
    columns = [Column("Table", number=False), Column("Texts"), *(Column(label) for label in result["labels"])]
    learned = result["data"]["train"]
    how = f"{learned['column'].replace('-', ' ').capitalize()} in {learned['source']}: {learned['recognised']}."
    return Table(how, columns, rows)
