"""A classification in the terminal: the tables before it starts, and what came out. Plain data in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attnlab.report.words import duration, interval, percent

Result = Mapping[str, Any]
PARTS = {"train": "learned from", "dev": "chosen on", "test": "measured once"}


def tell_tables(found: Result, console: Console) -> None:
    """What was read: how the label was recognised, how often each occurs, and texts of each."""

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    for name, one in found["data"].items():
        read = f"{one['source']}: {one['texts']:,} texts, {PARTS[name]}; {one['column'].replace('-', ' ')}"
        skipped = f"; {one['blank']:,} blank lines skipped" if one["blank"] else ""
        say(f"{read} ({one['recognised']}){'; heading skipped' if one['heading'] else ''}{skipped}")
    table = Table("label", *found["data"], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    meant = {name: label for label, name in found["renamed"].items()}
    for label in found["labels"]:
        title = f"{label} (in the files: {meant[label]})" if label in meant else label
        table.add_row(title, *(f"{one['counts'][label]:,}" for one in found["data"].values()))
    console.print(table)
    for label, texts in found["examples"].items():
        say(f"{label}:")
        for text in texts:
            say(f"  {text if len(text) <= 100 else text[:99] + '…'}")
    for warning in found["warnings"]:
        say(f"warning: {warning}")


def tell_result(result: Result, folder: Path, console: Console) -> None:
    """What came out."""
    if result["epochs"]:
        table = Table("epoch", "training loss", "validation loss", "training", "validation", box=None, pad_edge=False)
        for column in table.columns:
            column.justify = "right"
        for one in result["epochs"]:
            best = " ←" if one["epoch"] == result["best_epoch"] else "  "
            losses = [f"{one[key]:.3f}" if one[key] is not None else "NaN" for key in ("train_loss", "dev_loss")]
            table.add_row(
                str(one["epoch"]), *losses, percent(one["train_accuracy"]), percent(one["dev_accuracy"]) + best
            )
        console.print(table)
    for part in ("dev", "test"):
        if result[part]:
            console.print(sentence(result, part), soft_wrap=True, highlight=False, markup=False)
    console.print(f"{duration(result['seconds'])}: {folder}", soft_wrap=True, highlight=False, markup=False)


def sentence(result: Result, part: str) -> str:
    """The accuracy on one table, with its interval and what guessing would give."""
    one, name = result[part], {"dev": "validation", "test": "test"}[part]
    epoch = f" (epoch {result['best_epoch']})" if result["best_epoch"] else ""
    return (
        f"{name} accuracy{epoch}: {percent(one['accuracy'])}, 95 % interval {interval(one['low'], one['high'])}"
        f" ({one['right']:,} of {one['texts']:,}; always the commonest label: {percent(one['commonest'])})"
    )
