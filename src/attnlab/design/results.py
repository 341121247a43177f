"""What a question gets back: solved, impossible or undecided, never a fourth; readable by a person, a notebook and
a program.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnlab.design.attention import Array

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Literal["solved", "impossible", "undecided"]
_COLOURS = {"solved": "green", "impossible": "red", "undecided": "yellow"}
_SHOWN_ROWS = 12


@dataclass(frozen=True)
class Result:
    """One verdict with everything needed to check it.

    `bound` is guaranteed for the query shown, `error` measured; `lower_bound` is proved for every query. `reading` says
    what the numbers of the input mean, which is repeated in the statement and the certificate. What a task
    has beyond these (matrices, a new key, verdicts of rows) is in `more`, and stands beside the others in the JSON.
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
    certificate: dict[str, Any] | None = None
    lower_bound: float = 0.0
    margins: Array | None = None
    reading: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Name the reading wherever a person or a program looks."""
        if self.reading is not None:
            said = f"Read: {self.reading}."
            if not self.statement.endswith(said):
                object.__setattr__(self, "statement", f"{self.statement} {said}")
            if self.certificate is not None:
                object.__setattr__(self, "certificate", {**self.certificate, "reading": self.reading})

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers; a number that is not finite becomes null."""
        names = [field.name for field in fields(self) if field.name != "more"]
        return {name: _plain(getattr(self, name)) for name in names} | {k: _plain(v) for k, v in self.more.items()}

    def to_json(self) -> str:
        """One object, as `--json` prints it."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def _rows(self) -> list[list[str]]:
        """A header and a row for every key, or for the heaviest of many; for many queries a row for each."""
        if "rows" in self.more and self.query is not None:
            parts = list(zip(self.more["rows"], self.query, strict=True))[:_SHOWN_ROWS]
            return [
                ["value", "verdict", "query"],
                *([str(j), row["status"], vector(q)] for j, (row, q) in enumerate(parts)),
            ]
        if self.weights is None or self.weights.ndim != 1:
            return []
        order = (
            np.argsort(-self.weights, kind="stable")[:_SHOWN_ROWS]
            if len(self.weights) > _SHOWN_ROWS
            else range(len(self.weights))
        )
        if self.margins is None:
            return [["key", "weight"], *([str(i), number(self.weights[i])] for i in order)]
        margins = ["chosen" if math.isnan(x) else number(x) for x in self.margins]
        return [["key", "weight", "margin"], *([str(i), number(self.weights[i]), margins[i]] for i in order)]

    def facts(self) -> list[tuple[str, str]]:
        """The numbers a person wants, named."""
        rows: list[tuple[str, str]] = []
        if self.query is not None and self.query.ndim == 1:
            rows += [("query", vector(self.query)), ("norm of the query", number(float(np.linalg.norm(self.query))))]
        if self.output is not None and self.output.ndim == 1:
            rows.append(("output", vector(self.output)))
        if self.target is not None and self.target.ndim == 1:
            rows.append(("wanted", vector(self.target)))
        if self.error is not None:
            rows.append(
                (
                    "measured error",
                    f"{number(self.error['float64'])} in float64, {number(self.error['float32'])} in float32",
                )
            )
        if self.bound is not None:
            allowed = "" if self.tolerance is None else f"   (allowed {number(self.tolerance)})"
            rows.append(("guaranteed error", f"at most {at_most(self.bound)}{allowed}"))
        if self.lower_bound > 0:
            rows.append(("nothing comes nearer than", at_least(self.lower_bound)))
        for name, value in self.more.items():
            shown = _shown(value)
            if shown:
                rows.append((name if name.startswith("W_") else name.replace("_", " "), shown))
        return rows

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        colour = _COLOURS[self.status]
        parts: list[RenderableType] = [
            Text.assemble((self.task, "bold"), ": ", (self.status, f"bold {colour}")),
            Text(self.statement),
        ]
        facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column()
        for name, value in self.facts():
            facts.add_row(name, Text(value))
        parts.append(facts)
        if rows := self._rows():
            table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
            for title in rows[0]:
                table.add_column(title, justify="right")
            for row in rows[1:]:
                table.add_row(*row)
            parts.append(table)
            if self.weights is not None and len(self.weights) > len(rows) - 1:
                which = "the first" if self.weights.ndim == 2 else "the heaviest"
                parts.append(Text(f"... {which} {len(rows) - 1} of {len(self.weights)}", style="dim"))
        return Group(*parts)

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><td style='opacity:.6'>{_safe(k)}</td><td><code>{_safe(v)}</code></td></tr>" for k, v in self.facts()
        )
        cells = "".join(
            "<tr>" + "".join(f"<td style='text-align:right'>{_safe(c)}</td>" for c in row) + "</tr>"
            for row in self._rows()
        )
        weights = f"<table>{cells}</table>" if cells else ""
        colour = {"solved": "#2a7d3f", "impossible": "#b3261e", "undecided": "#9a6b00"}[self.status]
        head = f"<b>{_safe(self.task)}</b>: <b style='color:{colour}'>{self.status}</b>"
        return f"<div>{head}<p>{_safe(self.statement)}</p><table>{facts}</table>{weights}</div>"


def number(x: float) -> str:
    """A number for reading: four digits, no noise."""
    return "not finite" if not math.isfinite(x) else f"{x + 0.0:.4g}"


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


def vector(x: Array) -> str:
    """A vector for reading; a long one is cut in the middle."""
    shown = [number(float(v)) for v in x]
    return "[" + ", ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-2:]]) + "]"


def _safe(text: str) -> str:
    return html.escape(text)


def _shown(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return vector(value)
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return "\n".join(vector(row) for row in value[:8]) + ("\n..." if len(value) > 8 else "")
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
