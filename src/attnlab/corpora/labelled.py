"""Tables of labelled texts: `label<TAB>text` or `text<TAB>label`, read, recognised and checked.

Why: which column holds the label, and what a label means, is where fine-tuning goes wrong without a word: one public copy of
a well-known data set calls positive 0. So the column is recognised by a rule that can be told, and everything that
can be seen to be wrong (a label that was never learned, a text that stands in two files) is found before anything is trained.
It must not know about models or tokens.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from attnlab.corpora.files import numbered_lines, opened
from attnlab.errors import DataError, UserError, unknown

Column = Literal["label-first", "text-first"]
COLUMNS: tuple[Column, ...] = get_args(Column)
LABEL_WORDS = {"label", "labels", "class", "category", "sentiment", "target", "topic", "y", "gold", "polarity"}
TEXT_WORDS = {"text", "texts", "sentence", "sentences", "review", "content", "document", "comment", "phrase", "tweet"}
LONGEST_LABEL = 40  # characters
QUOTED = re.compile(r'^(?:"(?P<left>[^"]*)"\t(?P<rest>[^\t]*)|(?P<first>[^\t]*)\t"(?P<right>[^"]*)")$')


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


# Reading


def split(line: str, place: str) -> tuple[str, str]:
    """The two columns of a line; tabs inside a quoted column belong to its text."""
    parts = line.split("\t")
    if len(parts) > 2 and (match := QUOTED.match(line)):
        found = match.groupdict()
        parts = [found["left"], found["rest"]] if found["left"] is not None else [found["first"], found["right"]]
    if len(parts) == 1:
        raise DataError(f"{place}: no tab between label and text; write label<TAB>text or text<TAB>label")
    if len(parts) > 2:
        raise DataError(f"{place}: {len(parts)} columns; leave two, label and text, and only the one tab between them")
    first, second = (unicodedata.normalize("NFC", part).strip() for part in parts)
    if not first or not second:
        side = "before" if not first else "after"
        raise DataError(f"{place}: nothing {side} the tab; write a label and a text, or remove the line")
    return first, second


def heading(pair: tuple[str, str]) -> Column | None:
    """The order of the columns, if the line is a heading that names them."""
    first, second = (cell.lower() for cell in pair)
    if first in LABEL_WORDS and second in TEXT_WORDS:
        return "label-first"
    return "text-first" if first in TEXT_WORDS and second in LABEL_WORDS else None


@dataclass(frozen=True)
class Raw:
    """A file as two columns, before anybody knows which is which."""

    source: str
    pairs: tuple[tuple[str, str], ...]
    numbers: tuple[int, ...]
    heading: Column | None
    blank: int
    sha256: str


def read_pairs(path: str | Path) -> Raw:
    """The two columns of a file, without its heading and its blank lines."""
    path = Path(path)
    with opened(path) as stream:
        data = stream.read()
    lines = list(numbered_lines(path))
    every = data.count(b"\n") + (not data.endswith(b"\n"))
    pairs = [split(line, f"{path.name}:{number}") for number, line in lines]
    head = heading(pairs[0])
    if head:
        pairs, lines = pairs[1:], lines[1:]
    if not pairs:
        raise DataError(f"{path} has a heading and no texts; add lines of label<TAB>text")
    numbers = tuple(number for number, _ in lines)
    return Raw(
        path.name, tuple(pairs), numbers, head, every - len(lines) - bool(head), hashlib.sha256(data).hexdigest()
    )


def like_labels(values: Sequence[str]) -> bool:
    """Whether a column could be one of labels: short values, few of them, each used twice on average or more."""
    kinds = set(values)
    return 2 * len(kinds) <= len(values) and all(len(value) <= LONGEST_LABEL for value in kinds)


def recognise(raw: Raw) -> tuple[Column, str]:
    """Which column holds the labels, and how one can tell."""
    if raw.heading:
        return raw.heading, f"its heading says {raw.heading.replace('-', ' ')}"
    columns = [[pair[place] for pair in raw.pairs] for place in (0, 1)]
    kinds = [len(set(values)) for values in columns]
    fits = [like_labels(values) for values in columns]
    if fits[0] == fits[1] and (not fits[0] or kinds[0] == kinds[1]):
        raise DataError(
            f"{raw.source}: cannot tell labels from texts ({kinds[0]:,} different values in the first column,"
            f" {kinds[1]:,} in the second); say --column label-first or --column text-first"
        )
    place = (0 if kinds[0] < kinds[1] else 1) if fits[0] == fits[1] else fits.index(True)
    side = ("first", "second")[place]
    how = (
        f"the {side} column has {kinds[place]:,} short values that repeat, the other {kinds[1 - place]:,} in"
        f" {len(raw.pairs):,} lines"
    )
    return COLUMNS[place], how


def as_table(raw: Raw, column: Column, how: str) -> LabelledTable:
    """A file whose columns are known."""
    place = COLUMNS.index(column)
    rows = tuple(Labelled(pair[place], pair[1 - place]) for pair in raw.pairs)
    return LabelledTable(raw.source, rows, raw.sha256, column, how, raw.blank, raw.heading is not None, raw.numbers)


def read_other(path: str | Path, labels: Iterable[str], column: Column, forced: bool) -> LabelledTable:
    """A further file: its columns stand as in the training table, or the other way round if only so its labels are known."""
    raw, known = read_pairs(path), set(labels)
    if not forced:
        fits = {one: all(pair[place] in known for pair in raw.pairs) for place, one in enumerate(COLUMNS)}
        other = COLUMNS[1 - COLUMNS.index(column)]
        if fits[other] and not fits[column]:
            return as_table(raw, other, "its labels stand in the other column than those of the training table")
    return as_table(raw, column, "as in the training table" if not forced else f"as --column says, {column}")


def read_tables(
    train: str | Path,
    dev: str | Path,
    test: str | Path | None = None,
    column: Column | None = None,
    names: Mapping[str, str] | None = None,
) -> Tables:
    """The user's tables, recognised, renamed and checked."""
    raw = read_pairs(train)
    found, how = (column, f"as --column says, {column}") if column else recognise(raw)
    learned = as_table(raw, found, how)
    others = [read_other(path, learned.counts, found, column is not None) for path in (dev, test) if path is not None]
    return checked(learned, others[0], others[1] if test is not None else None, names)


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
    labels = tuple(names.get(label, label) for label in sorted(counts, key=label_order))
    tables = Tables(rename(train, names), rename(dev, names), rename(test, names) if test else None, labels)
    return replace(tables, warnings=tuple(warnings(tables)), names=names)


def rename(table: LabelledTable, names: Mapping[str, str]) -> LabelledTable:
    """The table with its labels renamed."""
    rows = tuple(replace(row, label=names.get(row.label, row.label)) for row in table.rows)
    return replace(table, rows=rows)


def label_order(label: str) -> tuple[int, float, str]:
    """Numbers by their size, then words by their letters."""
    return (0, float(label), label) if re.fullmatch(r"-?\d+(\.\d+)?", label) else (1, 0.0, label)


def short(text: str, most: int = 60) -> str:
    """A text cut for a message."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def listed(labels: Iterable[str], most: int = 6) -> str:
    """Some labels for a message."""
    every = sorted(labels, key=label_order)
    return ", ".join(map(short, every[:most])) + (f" and {len(every) - most} more" if len(every) > most else "")


def same_text(text: str) -> str:
    """What two texts have in common that a reader would call the same."""
    return " ".join(text.split()).casefold()


def warnings(tables: Tables) -> Iterable[str]:
    """What looks wrong and is not refused: leaks, and texts with two labels."""
    learned = {same_text(row.text): row for row in tables.train.rows}
    seen = {same_text(row.text) for row in tables.dev.rows}
    for name, table in tables.parts.items():
        if name == "train":
            continue
        yield from leak(table, set(learned), tables.train.source)
        if name == "test":
            yield from leak(table, seen, tables.dev.source)
    labels: dict[str, set[str]] = {}
    for table in tables.parts.values():
        for row in table.rows:
            labels.setdefault(same_text(row.text), set()).add(row.label)
    torn = {text: found for text, found in labels.items() if len(found) > 1}
    if torn:
        text, found = next(iter(torn.items()))
        yield f"{counted(torn, 'text')} with two labels, such as “{short(text)}” ({listed(found)})"
    for label in tables.labels:
        if label not in tables.dev.counts:
            yield f"no text of {tables.dev.source} has the label {label}: nothing will be known of it"


def leak(table: LabelledTable, seen: set[str], where: str) -> Iterable[str]:
    """The texts of a table that stand elsewhere too."""
    twice = [row.text for row in table.rows if same_text(row.text) in seen]
    if twice:
        yield (
            f"{counted(twice, 'text')} of {table.source} {'stands' if len(twice) == 1 else 'stand'} in {where} too, such as"
            f" “{short(twice[0])}”: what it gets right there says nothing"
        )


def counted(items: Sequence[object] | Mapping[str, object], noun: str) -> str:
    """How many there are."""
    return f"{len(items):,} {noun}{'' if len(items) == 1 else 's'}"


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


def built_in_tables() -> Tables:
    """Sentences of the Python documentation by topic."""
    from attnlab.corpora.topics import topics

    parts = {name: as_built_in(name, rows) for name, rows in topics().items()}
    return checked(parts["train"], parts["dev"], parts["test"])


def as_built_in(name: str, rows: Sequence[tuple[str, str]]) -> LabelledTable:
    """A part of the built-in data."""
    pairs = tuple(Labelled(topic, unicodedata.normalize("NFC", sentence)) for topic, sentence in rows)
    data = "".join(f"{row.label}\t{row.text}\n" for row in pairs).encode()
    return LabelledTable(f"topics:{name}", pairs, hashlib.sha256(data).hexdigest(), how="built in")
