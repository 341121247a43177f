"""Tables of labelled texts: `label<TAB>text` or `text<TAB>label`, read and recognised.

Why: which column holds the label, and what a label means, is where fine-tuning goes wrong without a word: one public copy of
a well-known data set calls positive 0. So the column is recognised by a rule that can be told.
It must not know about models or tokens.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnlab.corpora.files import numbered_lines, opened
from attnlab.corpora.labels import COLUMNS, Column, Labelled, LabelledTable, Tables, checked, parse_names
from attnlab.errors import DataError

__all__ = [
    "Column",
    "Labelled",
    "LabelledTable",
    "Tables",
    "built_in_tables",
    "checked",
    "parse_names",
    "read_tables",
]

_LABEL_WORDS = {"label", "labels", "class", "category", "sentiment", "target", "topic", "y", "gold", "polarity"}
_TEXT_WORDS = {"text", "texts", "sentence", "sentences", "review", "content", "document", "comment", "phrase", "tweet"}
_LONGEST_LABEL = 40  # characters
_QUOTED = re.compile(r'^(?:"(?P<left>[^"]*)"\t(?P<rest>[^\t]*)|(?P<first>[^\t]*)\t"(?P<right>[^"]*)")$')


def split(line: str, place: str) -> tuple[str, str]:
    """The two columns of a line; tabs inside a quoted column belong to its text."""
    parts = line.split("\t")
    if len(parts) > 2 and (match := _QUOTED.match(line)):
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
    first, second = (cell.strip('"').lower() for cell in pair)
    if first in _LABEL_WORDS and second in _TEXT_WORDS:
        return "label-first"
    return "text-first" if first in _TEXT_WORDS and second in _LABEL_WORDS else None


@dataclass(frozen=True)
class _Raw:
    """A file as two columns, before anybody knows which is which."""

    source: str
    pairs: tuple[tuple[str, str], ...]
    numbers: tuple[int, ...]
    heading: Column | None
    blank: int
    sha256: str
    taken: tuple[str, str] | None = None  # a first line that was taken for a heading, though it names neither column


def read_pairs(path: str | Path) -> _Raw:
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
    return _Raw(
        path.name, tuple(pairs), numbers, head, every - len(lines) - bool(head), hashlib.sha256(data).hexdigest()
    )


def _like_labels(values: Sequence[str]) -> bool:
    """Whether a column could be one of labels: short values, few of them, each used twice on average or more."""
    kinds = set(values)
    return 2 * len(kinds) <= len(values) and all(len(value) <= _LONGEST_LABEL for value in kinds)


def _recognise(raw: _Raw) -> tuple[Column, str]:
    """Which column holds the labels, and how one can tell."""
    if raw.heading:
        return raw.heading, f"its heading says {raw.heading.replace('-', ' ')}"
    columns = [[pair[place] for pair in raw.pairs] for place in (0, 1)]
    kinds = [len(set(values)) for values in columns]
    fits = [_like_labels(values) for values in columns]
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


def text_column(lines: Sequence[str]) -> int | None:
    """The place of the texts in lines that are a labelled table by the same rule; None where they are not."""
    try:
        pairs = tuple(split(line, "") for line in lines)
        head = heading(pairs[0]) if pairs else None
        column, _ = _recognise(_Raw("", pairs[1:] if head else pairs, (), head, 0, ""))
    except DataError:
        return None
    return 1 - COLUMNS.index(column)


def cell_of(line: str, place: int) -> str:
    """One of the two columns of a line; a line that has not two is text as a whole."""
    try:
        return split(line, "")[place]
    except DataError:
        return line


def _without_heading(raw: _Raw, column: Column) -> _Raw:
    """The file without its first line, where that has a label that occurs nowhere else while every other label repeats."""
    place = COLUMNS.index(column)
    counts = Counter(pair[place] for pair in raw.pairs)
    others = [count for label, count in counts.items() if label != raw.pairs[0][place]]
    if raw.heading or counts[raw.pairs[0][place]] > 1 or len(others) < 2 or min(others) < 2:
        return raw
    return replace(raw, pairs=raw.pairs[1:], numbers=raw.numbers[1:], heading=column, taken=raw.pairs[0])


def _as_table(raw: _Raw, column: Column, how: str) -> LabelledTable:
    """A file whose columns are known."""
    place = COLUMNS.index(column)
    rows = tuple(Labelled(pair[place], pair[1 - place]) for pair in raw.pairs)
    return LabelledTable(raw.source, rows, raw.sha256, column, how, raw.blank, raw.heading is not None, raw.numbers)


def _read_other(
    path: str | Path, labels: Iterable[str], column: Column, forced: bool, taken: tuple[str, str] | None = None
) -> LabelledTable:
    """A further file: its columns stand as in the training table, or the other way round if only so its labels are known.

    What was taken for a heading there is one here.
    """
    raw, known = read_pairs(path), set(labels)
    if taken is not None and raw.pairs[0] == taken and len(raw.pairs) > 1:
        raw = replace(raw, pairs=raw.pairs[1:], numbers=raw.numbers[1:], heading=column)
    if raw.heading and raw.heading != column and not forced:
        return _as_table(raw, raw.heading, f"its heading says {raw.heading.replace('-', ' ')}")
    if not forced:
        fits = {one: all(pair[place] in known for pair in raw.pairs) for place, one in enumerate(COLUMNS)}
        other = COLUMNS[1 - COLUMNS.index(column)]
        if fits[other] and not fits[column]:
            return _as_table(raw, other, "its labels stand in the other column than those of the training table")
    return _as_table(raw, column, "as in the training table" if not forced else f"as --column says, {column}")


def read_tables(
    train: str | Path,
    dev: str | Path,
    test: str | Path | None = None,
    column: Column | None = None,
    names: Mapping[str, str] | None = None,
) -> Tables:
    """The user's tables, recognised, renamed and checked."""
    raw = read_pairs(train)
    if column and raw.heading and column != raw.heading:
        raise DataError(
            f"{raw.source}: its heading says {raw.heading.replace('-', ' ')}, --column says {column}: leave --column out, or"
            " mend the heading"
        )
    found, how = (column, f"as --column says, {column}") if column else _recognise(raw)
    raw = _without_heading(raw, found)
    if raw.taken:
        how += (
            f"; the first line, {' | '.join(raw.taken)[:60]!r}, is taken for a heading: its label occurs nowhere else"
        )
    learned = _as_table(raw, found, how)
    others = [
        _read_other(path, learned.counts, found, column is not None, raw.taken)
        for path in (dev, test)
        if path is not None
    ]
    return checked(learned, others[0], others[1] if test is not None else None, names)


def built_in_tables() -> Tables:
    """Sentences of the Python documentation by topic."""
    from attnlab.corpora.topics import topics

    parts = {name: _as_built_in(name, rows) for name, rows in topics().items()}
    return checked(parts["train"], parts["dev"], parts["test"])


def _as_built_in(name: str, rows: Sequence[tuple[str, str]]) -> LabelledTable:
    """A part of the built-in data."""
    pairs = tuple(Labelled(topic, unicodedata.normalize("NFC", sentence)) for topic, sentence in rows)
    data = "".join(f"{row.label}\t{row.text}\n" for row in pairs).encode()
    return LabelledTable(f"topics:{name}", pairs, hashlib.sha256(data).hexdigest(), how="built in")
