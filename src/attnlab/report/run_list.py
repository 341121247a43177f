"""Runs as lines of a table and one run in full, for the terminal. Knows what an entry holds, and nothing of where it lies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attnlab.listing import Details, Entry, as_number, as_table, last_epoch
from attnlab.report.classification import PARTS
from attnlab.report.words import count, duration, flat, interval, percent, plain, sized

DROPPED = ("tokens", "preset", "task", "time", "when", "seed")  # columns that a narrow screen leaves out, in this order
GAP = 3  # between columns
Section = tuple[str, list[tuple[str, ...]]]


def table_of(entries: Sequence[Entry], folder: Path, width: int) -> tuple[Table, list[str]]:
    """Entries as lines, and the columns that were left out since they do not fit."""
    rows = [cells(entry, folder) for entry in entries]
    names = [name for name in rows[0] if name == "name" or any(row[name] for row in rows)]
    if len({row["seed"] for row in rows} - {""}) < 2 and "seed" in names:
        names.remove("seed")
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) + GAP for name in names}
    hidden: list[str] = []
    for name in DROPPED:
        if name in names and sum(widths[name] for name in names) > width:
            names.remove(name)
            hidden.append(name)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        right, fixed = name in ("tokens", "time", "seed"), name in ("tokens", "time", "when", "result")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=fixed)
    for row, entry in zip(rows, entries, strict=True):
        style = "" if entry.state == "complete" else "yellow" if entry.state else "dim"
        table.add_row(*(Text(row[name]) for name in names), style=style)
    return table, hidden


def cells(entry: Entry, folder: Path) -> dict[str, str]:
    """One line of the table."""
    reached = f" at {100 * entry.progress:.0f} %" if entry.state == "stopped" and entry.progress is not None else ""
    inside = entry.path.is_relative_to(folder)
    return {
        "name": str(entry.path.relative_to(folder)) if inside else str(entry.path),
        "what": entry.what,
        "preset": entry.preset or "",
        "mechanism": ", ".join(name.rsplit(os.sep, 1)[-1] for name in entry.mechanisms),
        "seed": "" if entry.seed is None else str(entry.seed),
        "task": entry.task or "",
        "tokens": count(entry.tokens) if entry.tokens is not None else "",
        "time": duration(entry.seconds) if entry.seconds is not None else "",
        "result": figure(entry),
        "when": moment(entry.when),
        "state": f"{entry.state}{reached}" if entry.kind != "output" and entry.state else entry.note,
    }


def figure(entry: Entry) -> str:
    """The one figure by which an entry is judged; that of a classifier or an encoder is not what a run's is, and says so."""
    if entry.accuracy is not None:
        return f"{100 * entry.accuracy:.1f} %{' on validation' if entry.kind == 'classifier' else ''}"
    if entry.loss is not None:
        return f"{'masked ' if entry.kind == 'encoder' else ''}loss {entry.loss:.3f}"
    return ""


def moment(when: float) -> str:
    """A time of day as this place counts it."""
    return datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M")


def headline(entry: Entry) -> str:
    """What an entry is, in one line."""
    parts = [str(entry.path), f"{entry.kind}, {entry.what}" if entry.kind in ("run", "study") else entry.what]
    parts += [part for part in (entry.state, entry.note, moment(entry.when)) if part]
    return "  ".join(parts)


def sections(found: Details) -> list[Section]:
    """The tables that show one entry: only those with something in them."""
    entry, result, base = found.entry, found.result or {}, found.stored.get("base")
    inner = [cells(one, entry.path) for one in entry.runs]
    simple = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
    sources = as_table(found.stored.get("data"))
    data = {name: value.get("source") for name, value in sources.items() if isinstance(value, dict)}
    shown: list[Section] = [
        compared(found),
        (
            "runs",
            [tuple(one[name] for name in ("name", "what", "mechanism", "time", "result", "state")) for one in inner],
        ),
        ("result", [*measured(entry, result), *flat(simple)]),
        ("settings", [(name, plain(value)) for name, value in entry.settings.items()]),
        ("data", [*flat(data), *([("base", str(base))] if base else [])]),
        ("files", [(name, sized(size)) for name, size in found.files or ()]),
    ]
    return [(title, rows) for title, rows in shown if rows]


def measured(entry: Entry, result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What a classifier or an encoder came to, which its result keeps in tables."""
    if entry.kind == "classifier":
        parts = [(name, as_table(result.get(part))) for part, name in PARTS.items()]
        return [(name, share_right(one)) for name, one in parts if one]
    if entry.kind == "encoder":
        last, guess = last_epoch(result), as_table(result.get("unigram"))
        kept = [("loss of hidden tokens", "loss", "{:.3f}"), ("hidden tokens found", "accuracy", "{:.1%}")]
        return [
            (title, f"{shape.format(last[name])} (by frequency alone {shape.format(guess[name])})")
            for title, name, shape in kept
            if as_number(last.get(name)) is not None and as_number(guess.get(name)) is not None
        ]
    return []


def share_right(one: dict[str, Any]) -> str:
    """An accuracy with its interval, as far as it is there."""
    found = [value for name in ("accuracy", "low", "high") if (value := as_number(one.get(name))) is not None]
    if len(found) < 3:
        return "unknown"
    return f"{percent(found[0])} (95 % interval {interval(*found[1:])}), {one.get('right')} of {one.get('texts')}"


def compared(found: Details) -> Section:
    """The settings in which a run differs from its preset."""
    if found.entry.kind != "run":
        return "", []
    title = f"different from preset {found.entry.preset}"
    if found.differences is None:
        return title, [("unknown", "there is no such preset in this version")]
    rows = [(name, plain(mine), f"instead of {plain(theirs)}") for name, (theirs, mine) in found.differences.items()]
    return title, list(rows) or [("nothing",)]
