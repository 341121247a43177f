"""A report as data: a title, leading sentences, and sections of blocks.

A Document is made where the numbers are known; the renderers (html, text, screen) show it without knowing its subject.
Everything in it is plain data, so that `as_json` of any Document can be stored, sent and rendered elsewhere. A row, series
or sentence that is invalid has a `mark`, a word shown beside it in every format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

# Tables

RowTone = Literal["", "leaks", "stopped", "good", "baseline"]


@dataclass(frozen=True)
class Cell:
    """A text, the value it is sorted by, a second line, the values of single seeds, and its emphasis."""

    text: str
    value: float | str | None = None
    under: str = ""
    each: str = ""
    tone: Literal["", "good", "warning", "bad", "quiet", "strong"] = ""

    @property
    def key(self) -> str:
        """What the page sorts by; empty values come last."""
        if isinstance(self.value, float | int):
            return f"{self.value:.9g}"
        return self.text if self.value is None else self.value


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


@dataclass(frozen=True)
class Table:
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
    """The label and unit of an axis, and its ends where the data do not determine them."""

    label: str
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class Series:
    """A line, optionally with a band from `low` to `high` and with faint dots."""

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
    """A bar or a point with its value as text and its interval if known; baselines are `faint`."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    faint: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Chart:
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


@dataclass(frozen=True)
class HeatMap:
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


@dataclass(frozen=True)
class Heads:
    """The attention heads over one text; `row` is outlined, `strip` also shows the text shaded by the weights."""

    tokens: Sequence[str]
    heads: Sequence[Head]
    row: int
    cell: float = 24.0
    notes: Mapping[int, str] | None = None  # by layer
    strip: bool = False
    chosen: int | None = None  # the place of the head that is shown first, instead of the one that looks hardest


# Words


@dataclass(frozen=True)
class Text:
    """Paragraphs, the items of a list, or quotations (`samples`)."""

    paragraphs: Sequence[str]
    style: Literal["plain", "quiet", "list", "numbered", "samples"] = "plain"
    title: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text, each shaded by a share from 0 to 1 and with a note."""

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
    """A part of a line; `role` is "answer", "prediction" or empty."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer beside the right one, with its confidence, its verdict and the line that contains the right answer."""

    question: str
    said: str
    right: bool | None  # None if unknown
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
            for one in blocks:
                if isinstance(one, Group):
                    yield from inside(one.blocks)
                else:
                    yield one

        for section in self.sections:
            yield from inside(section.blocks)

    def tables(self) -> list[Table]:
        """All tables in order."""
        return [one for one in self.blocks() if isinstance(one, Table)]


def section(title: str, *blocks: Block | None) -> list[Section]:
    """A section of the blocks that are not None; no section if there are none."""
    present = [one for one in blocks if one is not None]
    return [Section(title, present)] if present else []


def strict(value: Any) -> Any:
    """The same data with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value


def _plain_data(value: Any) -> Any:
    """A Document or a part of it as JSON data; `block` holds the kind of a block."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = {one.name: _plain_data(getattr(value, one.name)) for one in fields(value)}
        return {"block": type(value).__name__.lower(), **inside} if isinstance(value, Block) else inside
    if isinstance(value, Mapping):
        return {str(key): _plain_data(item) for key, item in value.items()}
    return [_plain_data(item) for item in value] if isinstance(value, list | tuple) else value


def as_json(document: Document) -> str:
    """A Document as strict JSON."""
    return json.dumps(strict(_plain_data(document)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(data: Mapping[str, Any]) -> Document:
    """A Document from the data that `as_json` writes."""
    found = _restored(Document, data)
    assert isinstance(found, Document)
    return found


_KINDS = {one.__name__.lower(): one for one in get_args(Block)}
_PLAIN: dict[Any, Any] = {str: str, bool: bool, int: int, float: (float, int)}


def _restored(kind: Any, value: Any) -> Any:
    """A part of a Document of the declared kind, or TypeError; numbers that JSON does not have were written as null."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is float and value is None:
        return math.nan
    if kind in _PLAIN and isinstance(value, _PLAIN[kind]):
        return value
    if origin is Literal and value in inside:
        return value
    if origin is UnionType:
        return _restored_as_one_of(inside, value)
    if is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        given = {one.name: value[one.name] for one in fields(kind) if one.name in value}
        return kind(**{name: _restored(hints[name], item) for name, item in given.items()})  # type: ignore[operator]
    if origin is tuple and isinstance(value, list):
        return tuple(_restored(one, item) for one, item in zip(inside, value, strict=True))
    if origin is Sequence and isinstance(value, list):
        return [_restored(inside[0], item) for item in value]
    if origin is Mapping and isinstance(value, dict):
        return {inside[0](key): _restored(inside[1], item) for key, item in value.items()}
    raise TypeError(f"{getattr(kind, '__name__', kind)} expected, not {value!r:.50}")


def _restored_as_one_of(kinds: Sequence[Any], value: Any) -> Any:
    """A block, by its name, or the first kind that fits."""
    if isinstance(value, dict) and value.get("block") in _KINDS and kinds == get_args(Block):
        return _restored(_KINDS[value["block"]], value)
    if value is None and NoneType in kinds:
        return None
    for one in kinds:
        with suppress(TypeError):
            return _restored(one, value)
    raise TypeError(f"unexpected value {value!r:.50}")
