"""Tables of labelled texts, `label<TAB>text` or `text<TAB>label`: read, recognised and checked.

Confusing the columns, or what a label means, ruins a classifier silently: one public copy of a well-known data set calls
positive 0. So the column of the labels is recognised by a rule that can be shown. Errors are found before training: a label
that is not in the training table is refused, and a text that is in two tables is reported. Knows nothing about models.
"""

from __future__ import annotations

import csv
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Literal, get_args

from attnlab.corpora.files import numbered_lines, opened
from attnlab.errors import DataError, UserError, cut, unknown

Column = Literal["label-first", "text-first"]
_COLUMNS: tuple[Column, ...] = get_args(Column)
_LABEL_WORDS = {"label", "labels", "class", "category", "sentiment", "target", "topic", "y", "gold", "polarity"}
_TEXT_WORDS = {"text", "texts", "sentence", "sentences", "review", "content", "document", "comment", "phrase", "tweet"}
_LONGEST_LABEL = 40  # characters
_SHOWN = 60  # characters of a text in a message

_Pair = tuple[str, str]


@dataclass(frozen=True)
class Labelled:
    """A text and its label."""

    label: str
    text: str


@dataclass(frozen=True)
class LabelledTable:
    """One file: its texts in order, its checksum, and how its columns were recognised."""

    source: str
    rows: tuple[Labelled, ...]
    sha256: str
    column: Column = "label-first"
    how: str = ""
    blank: int = 0
    header: bool = False
    numbers: tuple[int, ...] = ()  # line number of each text in its file

    @property
    def texts(self) -> list[str]:
        """The texts in order."""
        return [row.text for row in self.rows]

    @property
    def counts(self) -> dict[str, int]:
        """The number of texts per label."""
        return dict(Counter(row.label for row in self.rows))

    def place(self, index: int) -> str:
        """File and line of a text, for messages."""
        return f"{self.source}:{self.numbers[index] if self.numbers else index + 1}"


@dataclass(frozen=True)
class Tables:
    """The tables for training, validation and test, and the labels in the order of their numbers."""

    train: LabelledTable
    dev: LabelledTable
    test: LabelledTable | None
    labels: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # new names by the labels of the files

    @property
    def parts(self) -> dict[str, LabelledTable]:
        """The tables by name, without a missing test table."""
        tables = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: table for name, table in tables.items() if table is not None}

    def ids(self, table: LabelledTable) -> list[int]:
        """The labels of a table as numbers."""
        number = {label: place for place, label in enumerate(self.labels)}
        return [number[row.label] for row in table.rows]

    def examples(self, label: str, many: int = 3) -> list[str]:
        """The first training texts of a label."""
        return [row.text for row in self.train.rows if row.label == label][:many]


# Reading


@dataclass(frozen=True)
class _File:
    """A file of two columns, before it is known which holds the labels, and whether its first line is a heading."""

    source: str
    pairs: tuple[_Pair, ...]
    numbers: tuple[int, ...]
    blank: int
    sha256: str

    @property
    def named(self) -> Column | None:
        """The order of the columns, if the first line is a heading that names them."""
        first, second = (cell.strip('"').lower() for cell in self.pairs[0])
        if first in _LABEL_WORDS and second in _TEXT_WORDS:
            return "label-first"
        return "text-first" if first in _TEXT_WORDS and second in _LABEL_WORDS else None

    def cells(self, place: int, header: bool = False) -> list[str]:
        """The cells of a column, with or without those of the first line."""
        return [pair[place] for pair in self.pairs[header:]]

    def table(self, column: Column, how: str, header: bool) -> LabelledTable:
        """The texts and labels, with the order of the columns known."""
        place = _COLUMNS.index(column)
        rows = tuple(map(Labelled, self.cells(place, header), self.cells(1 - place, header)))
        if not rows:
            raise DataError(f"{self.source} has a heading and no texts; add lines of label<TAB>text")
        return LabelledTable(self.source, rows, self.sha256, column, how, self.blank, header, self.numbers[header:])


def read_columns(path: str | Path) -> _File:
    """Read the two columns of a file, without blank lines."""
    path = Path(path)
    with opened(path) as stream:
        data = stream.read()
    numbers, lines = zip(*numbered_lines(path), strict=True)
    pairs = tuple(_split(line, f"{path.name}:{number}") for number, line in zip(numbers, lines, strict=True))
    blank = data.count(b"\n") + (not data.endswith(b"\n")) - len(lines)
    return _File(path.name, pairs, numbers, blank, hashlib.sha256(data).hexdigest())


def _split(line: str, place: str) -> _Pair:
    """The two columns of a line; tabs inside quotes belong to the text."""
    parts = line.split("\t")
    if len(parts) > 2:
        with suppress(csv.Error):  # a carriage return outside quotes
            quoted = next(csv.reader([line], delimiter="\t"))
            parts = quoted if len(quoted) == 2 else parts
    if len(parts) == 1:
        raise DataError(f"{place}: no tab between label and text; write label<TAB>text or text<TAB>label")
    if len(parts) > 2:
        raise DataError(f"{place}: {len(parts)} columns; leave two, label and text, and only the one tab between them")
    first, second = (unicodedata.normalize("NFC", part).strip() for part in parts)
    if not first or not second:
        side = "before" if not first else "after"
        raise DataError(f"{place}: nothing {side} the tab; write a label and a text, or remove the line")
    return first, second


def _recognise(file: _File) -> tuple[Column, str]:
    """The order of the columns, and how it was recognised: labels are short and used twice or more on average."""
    values = [set(file.cells(0)), set(file.cells(1))]
    kinds = list(map(len, values))
    fits = [2 * len(cells) <= len(file.pairs) and max(map(len, cells)) <= _LONGEST_LABEL for cells in values]
    if fits[0] == fits[1] and (not fits[0] or kinds[0] == kinds[1]):
        raise DataError(
            f"{file.source}: cannot tell labels from texts ({kinds[0]:,} different values in the first column,"
            f" {kinds[1]:,} in the second); say --column label-first or --column text-first"
        )
    place = (0 if kinds[0] < kinds[1] else 1) if fits[0] == fits[1] else fits.index(True)
    how = (
        f"the {('first', 'second')[place]} column has {kinds[place]:,} short values that repeat, the other"
        f" {kinds[1 - place]:,} in {len(file.pairs):,} lines"
    )
    return _COLUMNS[place], how


def _begins_with_heading(file: _File, column: Column) -> bool:
    """Whether the label of the first line occurs nowhere else, while every other label is repeated."""
    first, *others = Counter(file.cells(_COLUMNS.index(column))).values()
    return first == 1 and len(others) >= 2 and min(others) >= 2


def _read_other(path: str | Path, train: LabelledTable, forced: bool, heading: _Pair | None) -> LabelledTable:
    """Read another table in the column order of the training table, or in the opposite one if only that fits its labels.

    The heading of the training table is a heading here too.
    """
    file, column, known = read_columns(path), train.column, train.counts
    named, header = file.named, file.named is not None or file.pairs[0] == heading
    if forced:
        return file.table(column, train.how, header)
    if named and named != column:
        return file.table(named, _stated(named), header)
    fits = {order: all(label in known for label in file.cells(at, header)) for at, order in enumerate(_COLUMNS)}
    other = _COLUMNS[1 - _COLUMNS.index(column)]
    if fits[other] and not fits[column]:
        return file.table(other, "its labels are in the other column than those of the training table", header)
    return file.table(column, "as in the training table", header)


def _stated(column: Column) -> str:
    return f"its heading says {column.replace('-', ' ')}"


def read_tables(
    train: str | Path,
    dev: str | Path,
    test: str | Path | None = None,
    column: Column | None = None,
    names: Mapping[str, str] | None = None,
) -> Tables:
    """Read the user's tables: columns recognised, labels renamed, everything checked."""
    file = read_columns(train)
    named = file.named
    if column and named and column != named:
        raise DataError(
            f"{file.source}: {_stated(named)}, --column says {column}: leave --column out, or correct the heading"
        )
    if column:
        order, how = column, f"as --column says, {column}"
    else:
        order, how = (named, _stated(named)) if named else _recognise(file)
    header = named is not None or _begins_with_heading(file, order)
    table = file.table(order, how, header)
    heading = file.pairs[0] if header else None
    others = [_read_other(path, table, column is not None, heading) for path in (dev, test) if path is not None]
    if heading and not named:
        first = " | ".join(heading)[:60]
        how += f"; the first line, {first!r}, is taken for a heading: its label occurs nowhere else"
    return _checked(replace(table, how=how), others[0], others[1] if test is not None else None, names)


def built_in_tables() -> Tables:
    """Return sentences of the Python documentation, labelled by topic."""
    from attnlab.corpora.prose import topics

    def table(name: str) -> LabelledTable:
        rows = tuple(Labelled(topic, unicodedata.normalize("NFC", sentence)) for topic, sentence in parts[name])
        data = "".join(f"{row.label}\t{row.text}\n" for row in rows).encode()
        return LabelledTable(f"topics:{name}", rows, hashlib.sha256(data).hexdigest(), how="built in")

    parts = topics()
    return _checked(table("train"), table("dev"), table("test"))


def parse_names(text: str | None) -> dict[str, str]:
    """Parse names for labels, such as `1=positive,0=negative`."""
    names: dict[str, str] = {}
    for part in text.split(",") if text else ():
        label, sign, name = (piece.strip() for piece in part.partition("="))
        if not sign or not label or not name:
            raise UserError(f"--labels takes LABEL=NAME joined by commas, such as 1=positive,0=negative, not '{text}'")
        if label in names:
            raise UserError(f"--labels names '{label}' twice: give it one name")
        names[label] = name
    return names


# Checking


def _checked(
    train: LabelledTable, dev: LabelledTable, test: LabelledTable | None, names: Mapping[str, str] | None = None
) -> Tables:
    """Tables whose labels are valid and renamed, with warnings about what looks wrong."""
    names, counts = dict(names or {}), train.counts
    for label in names:
        if label not in counts:
            raise UserError(f"--labels: {unknown('label', label, counts)} (in {train.source})")
    labels = tuple(names.get(label, label) for label in sorted(counts, key=_label_order))
    if len(labels) < 2:
        raise DataError(f"{train.source} has one label only, '{labels[0]}': there is nothing to tell apart")
    name, times = Counter(labels).most_common(1)[0]
    if times > 1:
        raise UserError(f"--labels gives the name '{name}' to two labels: choose different ones")
    for table in filter(None, (dev, test)):
        for index, row in enumerate(table.rows):
            if row.label not in counts:
                message = (
                    f"label '{cut(row.label, _SHOWN)}' does not occur in {train.source}, which has {_listed(counts)}"
                )
                raise DataError(f"{table.place(index)}: {message}")
    tables = Tables(_rename(train, names), _rename(dev, names), _rename(test, names) if test else None, labels)
    return replace(tables, warnings=tuple(_warnings(tables)), names=names)


def _rename(table: LabelledTable, names: Mapping[str, str]) -> LabelledTable:
    return replace(table, rows=tuple(replace(row, label=names.get(row.label, row.label)) for row in table.rows))


def _label_order(label: str) -> tuple[int, float, str]:
    """Numbers by value, then words alphabetically."""
    return (0, float(label), label) if re.fullmatch(r"-?\d+(\.\d+)?", label) else (1, 0.0, label)


def _listed(labels: Iterable[str], most: int = 6) -> str:
    ordered = [cut(label, _SHOWN) for label in sorted(labels, key=_label_order)]
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


def _same_text(text: str) -> str:
    """A text without differences in space and case."""
    return " ".join(text.split()).casefold()


def _warnings(tables: Tables) -> Iterator[str]:
    """Leaks between tables, texts with two labels, labels that cannot be evaluated."""

    def counted(texts: int) -> str:
        return f"{texts:,} text{'' if texts == 1 else 's'}"

    for earlier, table in combinations(tables.parts.values(), 2):
        seen = set(map(_same_text, earlier.texts))
        if twice := [text for text in table.texts if _same_text(text) in seen]:
            appear = "appears" if len(twice) == 1 else "appear"
            yield (
                f"{counted(len(twice))} of {table.source} also {appear} in {earlier.source}, such as"
                f" “{cut(twice[0], _SHOWN)}”: correct answers there prove nothing"
            )
    labels: dict[str, set[str]] = {}
    for row in (row for table in tables.parts.values() for row in table.rows):
        labels.setdefault(_same_text(row.text), set()).add(row.label)
    if ambiguous := {text: names for text, names in labels.items() if len(names) > 1}:
        text, names = next(iter(ambiguous.items()))
        yield f"{counted(len(ambiguous))} with two labels, such as “{cut(text, _SHOWN)}” ({_listed(names)})"
    for label in tables.labels:
        if label not in tables.dev.counts:
            yield f"no text of {tables.dev.source} has the label {label}: it will not be evaluated"
