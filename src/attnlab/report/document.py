"""A report as data: a title, leading sentences, and sections of blocks.

A Document is made where the numbers are known; the renderers (html, text, screen) show it without knowing its subject.
Everything in it is plain data, so that any Document can be stored as JSON (store/records.py), sent and rendered elsewhere;
there, `block` tells the kinds of blocks apart. A row, series or sentence that is invalid has a `mark`, a word shown beside
it in every format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec


class _Block(msgspec.Struct, frozen=True, tag_field="block", tag=str.lower):
    """A part of a section, told apart from others by the tag `block` in JSON."""


# Tables

RowTone = Literal["", "leaks", "stopped", "good", "baseline"]


@dataclass(frozen=True)
class Cell:
    """A text, the value it is sorted by, a second line, the values of single seeds, its emphasis, and an interval."""

    text: str
    value: float | str | None = None
    under: str = ""
    each: str = ""
    tone: Literal["", "good", "warning", "bad", "quiet", "strong"] = ""
    low: float | None = None
    high: float | None = None

    @property
    def key(self) -> str:
        """What the page sorts by; empty values come last."""
        value = self.low if self.value is None else self.value
        if isinstance(value, float | int):
            return f"{value:.9g}"
        return self.text if value is None else value


@dataclass(frozen=True)
class Column:
    """The heading of a column of numbers or words, with a note, and whether sorting starts with the largest.

    The terminal shows the `short` title, and leaves out `minor` columns first where it is narrow.
    """

    title: str
    number: bool = True
    note: str = ""
    largest_first: bool = False
    short: str = ""
    minor: bool = False


@dataclass(frozen=True)
class Row:
    """A name and the cells after it; `tone` is the style of the row or of its mark."""

    name: Cell
    cells: Sequence[Cell]
    mark: str = ""
    tone: RowTone = ""


class Table(_Block, frozen=True):
    """Columns, the first for the names, and rows; the title names its files, and the terminal shows `brief` tables."""

    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    brief: bool = False

    @property
    def each(self) -> bool:
        """Whether any cell has values of single seeds."""
        return any(cell.each for row in self.rows for cell in row.cells)


# Charts


@dataclass(frozen=True)
class Axis:
    """The label and unit of an axis, its ends where the data do not determine them, and whether it is logarithmic."""

    label: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False

    def __str__(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


if TYPE_CHECKING:
    _Value = float
else:
    _Value = float | None  # a gap of a line, NaN, is null in JSON


@dataclass(frozen=True)
class Series:
    """A line, optionally with a band from `low` to `high` and with faint dots; NaN is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[_Value]
    low: Sequence[_Value] = ()
    high: Sequence[_Value] = ()
    dots: Sequence[tuple[float, float]] = ()
    dots_name: str = ""
    marked: bool = False

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            values = [math.nan if value is None else value for value in getattr(self, name)]
            object.__setattr__(self, name, values)


@dataclass(frozen=True)
class Mark:
    """A bar or a point with its value as text and its interval if known; baselines are `faint`."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    faint: bool = False
    marked: bool = False


class Chart(_Block, frozen=True):
    """Lines over a common axis, bars from zero, or points beside an `origin`.

    `label` describes the chart to those who cannot see it. The page shows the values of `readable` lines at the pointer.
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


class HeatMap(_Block, frozen=True):
    """A table of shaded cells with names on both sides, optionally with the numbers in the cells."""

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
    """One attention head; layers and heads count from 1."""

    layer: int
    number: int
    pattern: Sequence[Sequence[float]]
    sentence: str
    title: str = ""  # instead of its number, where several heads are shown as one
    verb: str = "looks at"  # how a token relates to those with weight in its row
    group: str = ""  # instead of its layer, for patterns that are not those of a model

    @property
    def name(self) -> str:
        """Its layer or group, and its number or title."""
        return f"{self.group or f'layer {self.layer}'}, {self.title or f'head {self.number}'}"


class Heads(_Block, frozen=True):
    """The attention heads over one text; `row` is outlined, `strip` also shows the text shaded by the weights."""

    tokens: Sequence[str]
    heads: Sequence[Head]
    row: int
    cell: float = 24.0
    notes: Mapping[int, str] | None = None  # by layer
    strip: bool = False
    chosen: int | None = None  # the place of the head that is shown first, instead of the one that looks hardest


# Words


class Text(_Block, frozen=True):
    """Paragraphs, the items of a list, or quotations (`samples`)."""

    paragraphs: Sequence[str]
    style: Literal["plain", "quiet", "list", "numbered", "samples"] = "plain"
    title: str = ""
    mark: str = ""


class Tokens(_Block, frozen=True):
    """The tokens of a text, each shaded by a share from 0 to 1 and with a note."""

    tokens: Sequence[str]
    shares: Sequence[float]
    notes: Sequence[str]


class Facts(_Block, frozen=True):
    """Names with their values."""

    title: str
    pairs: Sequence[tuple[str, str]]


class Code(_Block, frozen=True):
    """A command or a program."""

    text: str


@dataclass(frozen=True)
class Piece:
    """A part of a line; `role` is "answer", "prediction" or empty."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class Answer:
    """A predicted answer beside the right one, with its confidence, its verdict and the line that contains the right answer."""

    question: str
    prediction: str
    right: bool | None  # None if unknown
    answer: str = ""
    confidence: str = ""
    verdict: str = ""
    source: Sequence[Piece] = ()


class Answers(_Block, frozen=True):
    """Answers under a title."""

    title: str
    items: Sequence[Answer]


class Group(_Block, frozen=True):
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
    """A warning at the top of a document."""

    title: str
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    kind: str  # recall, compare, trust, why, classification, search, runs, look ...
    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    notices: Sequence[Notice] = ()
    about: str = ""  # when it was finished, and how long it took
    command: str = ""
    footer: str = ""

    def _repr_html_(self) -> str:
        """The page, for notebooks."""
        from attnlab.report.html import as_frame

        return as_frame(self)

    def blocks(self) -> Iterator[Block]:
        """All blocks in order, with those inside groups."""

        def inside(blocks: Sequence[Block]) -> Iterator[Block]:
            for block in blocks:
                if isinstance(block, Group):
                    yield from inside(block.blocks)
                else:
                    yield block

        for section in self.sections:
            yield from inside(section.blocks)

    def tables(self) -> list[Table]:
        """All tables in order."""
        return [block for block in self.blocks() if isinstance(block, Table)]


def section(title: str, *blocks: Block | None) -> list[Section]:
    """A section of the blocks that are not None; no section if there are none."""
    present = [block for block in blocks if block is not None]
    return [Section(title, present)] if present else []
