"""Labelled texts in tables, and what is wrong with them: records, names for labels, leaks, texts with two labels.

What can be seen to be wrong is found before anything is trained: a label that was never learned is refused, a text that stands
in two tables is told. It must not know about files, models or tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from attnlab.errors import DataError, UserError, unknown

Column = Literal["label-first", "text-first"]
COLUMNS: tuple[Column, ...] = get_args(Column)


@dataclass(frozen=True)
class Labelled:
    """A text and its label."""

    label: str
    text: str


@dataclass(frozen=True)
class LabelledTable:
    """One file: its texts in order, its checksum, and how it was read."""

    source: str
    rows: tuple[Labelled, ...]
    sha256: str
    column: Column = "label-first"
    how: str = ""
    blank: int = 0
    header: bool = False
    numbers: tuple[int, ...] = ()  # the line of each text in its file

    @property
    def texts(self) -> list[str]:
        """The texts in order."""
        return [row.text for row in self.rows]

    @property
    def counts(self) -> dict[str, int]:
        """How many texts each label has."""
        return dict(Counter(row.label for row in self.rows))

    def place(self, index: int) -> str:
        """Where a text stands, for messages."""
        return f"{self.source}:{self.numbers[index] if self.numbers else index + 1}"


@dataclass(frozen=True)
class Tables:
    """What is learned from, what epochs are chosen on, what is measured once; and the labels in the order of their numbers."""

    train: LabelledTable
    dev: LabelledTable
    test: LabelledTable | None
    labels: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # what a label of the files was renamed to

    @property
    def parts(self) -> dict[str, LabelledTable]:
        """The tables that there are, by name."""
        found = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: table for name, table in found.items() if table is not None}

    def ids(self, table: LabelledTable) -> list[int]:
        """The labels of a table as numbers."""
        number = {label: place for place, label in enumerate(self.labels)}
        return [number[row.label] for row in table.rows]

    def examples(self, label: str, many: int = 3) -> list[str]:
        """The first training texts of a label."""
        return [row.text for row in self.train.rows if row.label == label][:many]


def parse_names(text: str | None) -> dict[str, str]:
    """Names for labels, from `1=positive,0=negative`."""
    found: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        label, sign, name = (piece.strip() for piece in part.partition("="))
        if not sign or not label or not name:
            raise UserError(f"--labels takes LABEL=NAME joined by commas, such as 1=positive,0=negative, not '{text}'")
        if label in found:
            raise UserError(f"--labels names '{label}' twice: give it one name")
        found[label] = name
    return found


# Checking


def checked(
    train: LabelledTable, dev: LabelledTable, test: LabelledTable | None, names: Mapping[str, str] | None = None
) -> Tables:
    """Tables that can be learned from, with the labels renamed, and warnings about what looks wrong."""
    names = dict(names or {})
    counts = train.counts
    for label in names:
        if label not in counts:
            raise UserError(f"--labels: {unknown('label', label, counts)} (in {train.source})")
    renamed = [names.get(label, label) for label in counts]
    if len(set(renamed)) < len(renamed):
        twice = next(name for name, many in Counter(renamed).items() if many > 1)
        raise UserError(f"--labels gives the name '{twice}' to two labels: choose different ones")
    if len(counts) < 2:
        raise DataError(f"{train.source} has one label only, '{next(iter(counts))}': there is nothing to tell apart")
    for table in (dev, test):
        for index, row in enumerate(table.rows if table else ()):
            if table and row.label not in counts:
                message = f"label '{short(row.label)}' does not occur in {train.source}, which has {listed(counts)}"
                raise DataError(f"{table.place(index)}: {message}")
    labels = tuple(names.get(label, label) for label in sorted(counts, key=_label_order))
    tables = Tables(_rename(train, names), _rename(dev, names), _rename(test, names) if test else None, labels)
    return replace(tables, warnings=tuple(_warnings(tables)), names=names)


def _rename(table: LabelledTable, names: Mapping[str, str]) -> LabelledTable:
    """The table with its labels renamed."""
    rows = tuple(replace(row, label=names.get(row.label, row.label)) for row in table.rows)
    return replace(table, rows=rows)


def _label_order(label: str) -> tuple[int, float, str]:
    """Numbers by their size, then words by their letters."""
    return (0, float(label), label) if re.fullmatch(r"-?\d+(\.\d+)?", label) else (1, 0.0, label)


def short(text: str, most: int = 60) -> str:
    """A text cut for a message."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def listed(labels: Iterable[str], most: int = 6) -> str:
    """Some labels for a message."""
    every = sorted(labels, key=_label_order)
    return ", ".join(map(short, every[:most])) + (f" and {len(every) - most} more" if len(every) > most else "")


def _same_text(text: str) -> str:
    """What two texts have in common that a reader would call the same."""
    return " ".join(text.split()).casefold()


def _warnings(tables: Tables) -> Iterable[str]:
    """What looks wrong and is not refused: leaks, and texts with two labels."""
    learned = {_same_text(row.text): row for row in tables.train.rows}
    seen = {_same_text(row.text) for row in tables.dev.rows}
    for name, table in tables.parts.items():
        if name == "train":
            continue
        yield from leak(table, set(learned), tables.train.source)
        if name == "test":
            yield from leak(table, seen, tables.dev.source)
    labels: dict[str, set[str]] = {}
    for table in tables.parts.values():
        for row in table.rows:
            labels.setdefault(_same_text(row.text), set()).add(row.label)
    torn = {text: found for text, found in labels.items() if len(found) > 1}
    if torn:
        text, found = next(iter(torn.items()))
        yield f"{_counted(torn, 'text')} with two labels, such as “{short(text)}” ({listed(found)})"
    for label in tables.labels:
        if label not in tables.dev.counts:
            yield f"no text of {tables.dev.source} has the label {label}: nothing will be known of it"


def leak(table: LabelledTable, seen: set[str], where: str) -> Iterable[str]:
    """The texts of a table that stand elsewhere too."""
    twice = [row.text for row in table.rows if _same_text(row.text) in seen]
    if twice:
        yield (
            f"{_counted(twice, 'text')} of {table.source} {'stands' if len(twice) == 1 else 'stand'} in {where} too, such as"
            f" “{short(twice[0])}”: what it gets right there says nothing"
        )


def _counted(items: Sequence[object] | Mapping[str, object], noun: str) -> str:
    """How many there are."""
    return f"{len(items):,} {noun}{'' if len(items) == 1 else 's'}"
