"""Tables as data, so that page, Markdown and terminal show the same numbers, each in its own way.

A row that must not be taken at its word carries a `mark`, a word that stands beside its name wherever the table is shown;
its `tone` says how it is coloured. Knows neither HTML nor what the numbers are about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.report.markdown import safe, table


@dataclass(frozen=True)
class Cell:
    """A text, what it is sorted by, a second line, and the single values behind it."""

    text: str
    value: float | str | None = None
    under: str = ""
    each: str = ""

    @property
    def key(self) -> str:
        """What a script sorts by; empty where there is nothing to sort, which comes last."""
        if isinstance(self.value, float | int):
            return f"{self.value:.9g}"
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Column:
    """A heading: of numbers or of words, with a remark, and whether the largest value is the best."""

    title: str
    number: bool = True
    note: str = ""
    largest_first: bool = False


@dataclass(frozen=True)
class Row:
    """A name and the cells behind it."""

    name: Cell
    cells: Sequence[Cell]
    mark: str = ""
    tone: str = "leaks"


@dataclass(frozen=True)
class Table:
    """Columns (the first is that of the names) and rows, with a sentence about them."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    @property
    def each(self) -> bool:
        """Whether there are single values behind the cells."""
        return any(cell.each for row in self.rows for cell in row.cells)


def in_markdown(one: Table) -> str:
    """A table in Markdown, marks and second lines in brackets."""

    def written(cell: Cell, mark: str = "") -> str:
        parts = [safe(cell.text), f"({safe(cell.under)})" if cell.under else "", f"**({safe(mark)})**" if mark else ""]
        return " ".join(part for part in parts if part)

    rows = [[written(row.name, row.mark), *(written(cell) for cell in row.cells)] for row in one.rows]
    numbers = [place for place, column in enumerate(one.columns) if column.number]
    return table([safe(column.title) for column in one.columns], rows, numbers)
