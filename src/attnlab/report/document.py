"""A report as data: a title, the sentences that lead it, and sections of blocks.

Whoever knows the numbers makes a Document; the renderers (html, text, terminal) show it and know nothing of what it is about.
Everything in it is plain data, so that `as_json` of any Document can be stored, sent and drawn elsewhere. A row, series or
sentence that must not be taken at its word carries a `mark`, a word that stands beside it wherever it is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

# Tables


@dataclass(frozen=True)
class Cell:
    """A text, the value that it is sorted by, a second line, and the value of every seed; `tone` is its emphasis."""

    text: str
    value: float | str | None = None
    under: str = ""
    each: str = ""
    tone: Literal["", "good", "warning", "bad", "quiet", "strong"] = ""

    @property
    def key(self) -> str:
        """What a script sorts by; empty where there is nothing to sort, which comes last."""
        if isinstance(self.value, float | int):
            return f"{self.value:.9g}"
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Column:
    """A heading, of numbers or of words, with a note; and whether the largest is best.

    The terminal takes the `short` title, and where it is narrow leaves out `minor` columns first.
    """

    title: str
    number: bool = True
    note: str = ""
    largest_first: bool = False
    short: str = ""
    minor: bool = False


@dataclass(frozen=True)
class Row:
    """A name and the cells after it; `tone` is how the row is coloured: leaks, stopped, or baseline."""

    name: Cell
    cells: Sequence[Cell]
    mark: str = ""
    tone: str = "leaks"


@dataclass(frozen=True)
class Table:
    """Columns (the first is that of the names) and rows; the title names its files. The terminal shows `brief` tables."""

    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    brief: bool = False

    @property
    def each(self) -> bool:
        """Whether there are values of single seeds behind the cells."""
        return any(cell.each for row in self.rows for cell in row.cells)


# Charts


@dataclass(frozen=True)
class Axis:
    """What an axis shows, in which unit, and its ends where they do not follow from the data."""

    label: str
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class Series:
    """A line, with a band from `low` to `high` and faint dots where there are any."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: Sequence[tuple[float, float]] = ()
    dots_name: str = ""
    marked: bool = False


@dataclass(frozen=True)
class Mark:
    """A bar or a point with its value as text, and its interval where it is known; `faint` ones stand back."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    faint: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis, or bars from zero, or points beside an `origin`, each with its interval.

    `label` tells the same to those who cannot see the chart. A page tells the values of `readable` lines under the pointer.
    """

    shape: Literal["lines", "bars", "points"]
    title: str
    label: str
    x: Axis
    y: Axis = Axis("")
    series: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    origin: float = 0.0
    height: float = 300
    readable: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A table of shaded cells with names on both sides, and with the numbers in the cells if asked for."""

    title: str
    label: str
    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    high: float = 1.0
    numbers: bool = False
    cell: float = 24.0


@dataclass(frozen=True)
class Head:
    """One attention head; layers and heads are counted from 1, as people do."""

    layer: int
    number: int
    pattern: Sequence[Sequence[float]]
    sentence: str
    title: str = ""  # in place of its number, where several heads are shown as one
    verb: str = "looks at"  # what a token does to those with weight in its row

    @property
    def name(self) -> str:
        """The head in words."""
        return f"layer {self.layer}, {self.title or f'head {self.number}'}"


@dataclass(frozen=True)
class Heads:
    """The attention heads over one text, to choose from; `row` is outlined, `strip` shows the text shaded by its weights."""

    tokens: Sequence[str]
    heads: Sequence[Head]
    row: int
    cell: float = 24.0
    notes: Mapping[int, str] | None = None  # by layer
    strip: bool = False


# Words


@dataclass(frozen=True)
class Text:
    """Paragraphs, or the items of a list; `samples` are quotations."""

    paragraphs: Sequence[str]
    style: Literal["plain", "quiet", "list", "numbered", "samples"] = "plain"
    title: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Tokens:
    """A text token by token, each shaded by a share from 0 to 1 and with a note of its own."""

    tokens: Sequence[str]
    shares: Sequence[float]
    notes: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    title: str
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    """A command or a program."""

    text: str


@dataclass(frozen=True)
class Piece:
    """A stretch of a line; `role` is "answer", "prediction" or empty."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class Answer:
    """One answer beside what is right, with its confidence, its verdict and the line that it should have come from."""

    question: str
    said: str
    right: bool | None  # None where nobody knows
    answer: str = ""
    confidence: str = ""
    verdict: str = ""
    source: Sequence[Piece] = ()


@dataclass(frozen=True)
class Answers:
    """Answers under a title."""

    title: str
    items: Sequence[Answer]


@dataclass(frozen=True)
class Group:
    """Blocks beside each other, or folded away under a title."""

    layout: Literal["columns", "folded"]
    blocks: Sequence[Block]
    title: str = ""


Block = Table | Chart | HeatMap | Heads | Text | Tokens | Facts | Code | Answers | Group


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Notice:
    """A warning at the top: what it is about, then what it says."""

    title: str
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    kind: str  # what it is about: recall, compare, trust, why, classify, search, runs, look ...
    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    notices: Sequence[Notice] = ()
    about: str = ""  # when it was finished, and how long it took
    command: str = ""
    footer: str = ""

    def blocks(self) -> Iterator[Block]:
        """All blocks in their order, those in groups too."""
        waiting: list[Block] = [one for section in self.sections for one in section.blocks]
        while waiting:
            one = waiting.pop(0)
            if isinstance(one, Group):
                waiting[:0] = one.blocks
            else:
                yield one

    def tables(self) -> list[Table]:
        """All tables in their order."""
        return [one for one in self.blocks() if isinstance(one, Table)]


def section(title: str, *blocks: Block | None) -> list[Section]:
    """A section of the blocks that are there, or none where there is none."""
    there = [one for one in blocks if one is not None]
    return [Section(title, there)] if there else []


def strict(value: Any) -> Any:
    """The same without numbers that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value


def _plain_data(value: Any) -> Any:
    """A Document or a part of it as plain data; a block says its kind under `block`."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = {one.name: _plain_data(getattr(value, one.name)) for one in fields(value)}
        return {"block": type(value).__name__.lower(), **inside} if isinstance(value, Block) else inside
    if isinstance(value, Mapping):
        return {str(key): _plain_data(item) for key, item in value.items()}
    return [_plain_data(item) for item in value] if isinstance(value, list | tuple) else value


def as_json(document: Document) -> str:
    """A Document as JSON that every program can read."""
    return json.dumps(strict(_plain_data(document)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
