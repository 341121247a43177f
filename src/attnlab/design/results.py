"""Answers of the solver: solved, impossible or undecided, rendered for a terminal, a notebook and a program."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from attnlab.design.exact import Array

Certificate = dict[str, Any]  # a proof as the JSON object that the verifier reads
Extra = Array | float  # a number, vector or matrix
Status = Literal["solved", "impossible", "impossible within a radius", "undecided"]
_COLOURS = {"solved": ("green", "#2a7d3f"), "impossible": ("red", "#b3261e"), "undecided": ("yellow", "#9a6b00")}
_SHOWN_ROWS = 12


@dataclass(frozen=True)
class RowVerdict:
    """The verdict on one of several queries."""

    status: Status
    statement: str
    certificate: Certificate | None


@dataclass(frozen=True)
class Result:
    """One verdict with everything needed to check it.

    `bound` is guaranteed for the query shown, `error` is measured, and `lower_bound` is proved for every query.
    `reading` is how the numbers of the input were read. The certificate repeats it, and so does the statement where it
    matters: where something is proved to be impossible, or where numbers were not read as they are written.
    `more` holds what only some tasks have (matrices, a new key). In the JSON its entries are fields like the others, as are
    the verdicts on the `rows` of several queries.
    """

    task: str
    status: Status
    statement: str
    query: Array | None = None
    weights: Array | None = None
    output: Array | None = None
    target: Array | None = None
    bound: float | None = None
    error: dict[str, float] | None = None
    tolerance: float | None = None
    certificate: Certificate | None = None
    lower_bound: float = 0.0
    margins: Array | None = None
    reading: str | None = None
    more: Mapping[str, Extra] = field(default_factory=dict)
    rows: tuple[RowVerdict, ...] = ()

    def __post_init__(self) -> None:
        """Name the reading in the statement and in the certificate."""
        if self.reading is not None:
            note = f"This reads the {self.reading}."
            matters = self.status.startswith("impossible") or "binary" in self.reading
            if matters and not self.statement.endswith(note):
                object.__setattr__(self, "statement", f"{self.statement} {note}")
            if self.certificate is not None:
                object.__setattr__(self, "certificate", {**self.certificate, "reading": self.reading})

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers; a number that is not finite becomes null."""
        names = [field.name for field in fields(self) if field.name not in ("more", "rows")]
        rows = {"rows": [asdict(row) for row in self.rows]} if self.rows else {}
        return plain({**{name: getattr(self, name) for name in names}, **self.more, **rows})

    def to_json(self) -> str:
        """One object, as `--json` prints it."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def _table(self) -> list[list[str]]:
        """A header and one row per key, the heaviest of many; for several queries one row per query."""
        if self.rows and self.query is not None:
            shown = list(zip(self.rows, self.query, strict=True))[:_SHOWN_ROWS]
            verdicts = [[str(j), row.status, vector(q)] for j, (row, q) in enumerate(shown)]
            return [["value", "verdict", "query"], *verdicts]
        if self.weights is None or self.weights.ndim != 1:
            return []
        many = len(self.weights) > _SHOWN_ROWS
        order = np.argsort(-self.weights, kind="stable")[:_SHOWN_ROWS] if many else range(len(self.weights))
        rows = [["key", "weight"], *([str(i), number(self.weights[i])] for i in order)]
        if self.margins is not None:
            margins = ["chosen" if math.isnan(self.margins[i]) else number(self.margins[i]) for i in order]
            rows = [[*row, margin] for row, margin in zip(rows, ["margin", *margins], strict=True)]
        return rows

    def facts(self) -> list[tuple[str, str]]:
        """The numbers to show, with their names."""
        rows: list[tuple[str, str]] = []
        if self.query is not None and self.query.ndim == 1:
            rows += [("query", vector(self.query)), ("norm of the query", number(float(np.linalg.norm(self.query))))]
        for name, point in (("output", self.output), ("wanted", self.target)):
            if point is not None and point.ndim == 1:
                rows.append((name, vector(point)))
        if self.error is not None:
            double, single = number(self.error["float64"]), number(self.error["float32"])
            rows.append(("measured error", f"{double} in float64, {single} in float32"))
        if self.bound is not None:
            allowed = "" if self.tolerance is None else f"   (allowed {number(self.tolerance)})"
            rows.append(("guaranteed error", f"at most {at_most(self.bound)}{allowed}"))
        if self.lower_bound > 0:
            rows.append(("proved minimum error", at_least(self.lower_bound)))
        for name, value in self.more.items():
            rows.append((name if name.startswith("W_") else name.replace("_", " "), _shown(value)))
        return rows

    def __rich__(self) -> RenderableType:
        title = Text.assemble((self.task, "bold"), ": ", (self.status, f"bold {_COLOURS[self.status.split()[0]][0]}"))
        parts: list[RenderableType] = [title, Text(self.statement), rich_facts(self.facts())]
        if rows := self._table():
            parts.append(rich_table(rows))
            if self.weights is not None and len(self.weights) > len(rows) - 1:
                which = "the first" if self.weights.ndim == 2 else "the heaviest"
                parts.append(Text(f"... {which} {len(rows) - 1} of {len(self.weights)}", style="dim"))
        return Group(*parts)

    def _repr_html_(self) -> str:
        colour = _COLOURS[self.status.split()[0]][1]
        head = f"<b>{html.escape(self.task)}</b>: <b style='color:{colour}'>{self.status}</b>"
        tables = html_table(self.facts()) + html_table(self._table())
        return f"<div>{head}<p>{html.escape(self.statement)}</p>{tables}</div>"


def rich_facts(facts: Sequence[tuple[str, str]]) -> Table:
    """Names and values for the terminal."""
    table = Table.grid(Column(style="dim", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    for name, value in facts:
        table.add_row(name, Text(value))
    return table


def rich_table(rows: Sequence[Sequence[str]], *, first: Literal["left", "right"] = "right") -> Table:
    """A table for the terminal from a header and rows of text; all columns but the first are right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, title in enumerate(rows[0]):
        table.add_column(title, justify="right" if place else first, no_wrap=first == "left")
    for row in rows[1:]:
        table.add_row(*row, style="dim" if row[0].startswith(" ") else None)
    return table


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table for a notebook; empty for no rows."""
    cells = ("".join(f"<td style='text-align:right'>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table>{body}</table>" if body else ""


def number(x: float) -> str:
    """A number for reading, with four digits."""
    return "not finite" if not math.isfinite(x) else f"{x + 0.0:.4g}"


def percent(share: float) -> str:
    """A share in per cent, with one decimal."""
    return f"{100 * share:.1f} %"


def at_most(x: float) -> str:
    """An upper bound for reading, rounded up."""
    return _rounded(x, ROUND_CEILING)


def at_least(x: float) -> str:
    """A lower bound for reading, rounded down."""
    return _rounded(x, ROUND_FLOOR)


def _rounded(x: float, direction: str) -> str:
    if not math.isfinite(x) or x == 0:
        return number(x)
    return f"{float(Context(prec=4, rounding=direction).create_decimal(repr(float(x)))):.4g}"


def vector(numbers: Iterable[float | Fraction]) -> str:
    """A vector for reading; the middle of a long one is left out."""
    shown = [number(float(x)) for x in numbers]
    return "[" + ", ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-2:]]) + "]"


def _shown(value: Extra) -> str:
    if not isinstance(value, np.ndarray):
        return str(value) if isinstance(value, int) else number(value)
    if value.ndim == 1:
        return vector(value)
    return "\n".join(vector(row) for row in value[:8]) + ("\n..." if len(value) > 8 else "")


def plain(value: Any) -> Any:
    """Arrays as lists, and a number that is not finite as None, ready for JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
