"""A Document in the terminal: its brief tables, as far as they fit, then the sentences that lead it; or all of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from attnlab.report import document as blocks
from attnlab.report.document import (
    Answers,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Group,
    Heads,
    HeatMap,
    Row,
    Table,
    Tokens,
)
from attnlab.report.text import answer_rows
from attnlab.report.words import NOTHING

_GAP, _NARROW = 3, 1  # from one column to the next, on narrow screens too
_EDGES = 2  # of a table
_LONGEST = 40  # letters of a name
_WARNING = "red"
_TONES = {"": "", "good": "green", "bad": "red", "warning": "yellow", "quiet": "dim", "strong": "bold"}


def _name_of(row: Row) -> str:
    """A row's name with its mark; a class in a user's file is shown without its folder."""
    name = row.name.text.rsplit(os.sep, 1)[-1]
    name = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    return f"{name} ({row.mark})" if row.mark else name


def _lines_of(cell: Cell, under: bool) -> list[str]:
    return [cell.text, *([cell.under] if cell.under and under else [])]


def _width_of(table: Table, place: int, under: bool) -> int:
    """The width that a column needs; headings may break between words, numbers may not."""
    cells = (line for row in table.rows for line in _lines_of(row.cells[place], under))
    return max(map(len, (*_title_of(table.columns[place + 1]).split(), *cells)), default=0)


def _title_of(column: Column) -> str:
    return column.short or column.title


def _chosen_columns(table: Table, width: int) -> tuple[dict[int, int], bool, int]:
    """The columns that fit with their widths, whether with all second lines, and the gap between them.

    Minor columns are left out first, then the last ones; before any is left out, gaps and second lines are.
    """
    names = max(len(table.columns[0].title), *(len(_name_of(row)) for row in table.rows), 0) + _EDGES
    places = range(len(table.columns) - 1)

    def fits(widths: Mapping[int, int], gap: int) -> bool:
        return names + sum(one + gap for one in widths.values()) <= width

    whole = {place: _width_of(table, place, True) for place in places}
    if fits(whole, _NARROW):
        return whole, True, _GAP if fits(whole, _GAP) else _NARROW
    kept = {place: _width_of(table, place, place == 0) for place in places}
    order = sorted(places, key=lambda place: (not table.columns[place + 1].minor, -place))
    for place in order[:-1]:
        if fits(kept, _NARROW):
            break
        del kept[place]
    return kept, False, _GAP if fits(kept, _GAP) else _NARROW


def as_rich(table: Table, width: int) -> tuple[rich_table.Table, list[str]]:
    """The table as far as it fits, and the titles of the columns that do not."""
    kept, under, gap = _chosen_columns(table, width)
    shown = rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0))
    shown.add_column(Text(table.columns[0].title), no_wrap=True)
    for place, wide in kept.items():
        column = table.columns[place + 1]
        shown.add_column(Text(_title_of(column)), justify="right" if column.number else "left", width=wide)
    for row in table.rows:
        cells = [Text("\n".join(_lines_of(row.cells[place], under or place == 0))) for place in kept]
        shown.add_row(Text(_name_of(row)), *cells, style=_WARNING if row.mark and row.tone == "leaks" else "")
    return shown, [_title_of(column) for place, column in enumerate(table.columns[1:]) if place not in kept]


def show(document: Document, console: Console) -> None:
    """Print the brief tables with their captions, then the warnings and the sentences that lead the document."""
    console.print(Text(document.title, style="bold"))
    for table in document.tables():
        if table.brief:
            shown, hidden = as_rich(table, console.width)
            console.print(Text(table.caption, style="dim"))
            console.print(shown)
            if hidden:
                console.print(Text(f"(not shown, since the screen is narrow: {', '.join(hidden)})"))
    _show_notices(document, console)
    for sentence in document.lead:
        console.print(Text(sentence))


def _show_notices(document: Document, console: Console) -> None:
    for notice in document.notices:
        style = _WARNING if notice.tone == "leaks" else ""
        console.print(Text(f"{notice.title} ", style=f"bold {style}") + Text(notice.text, style=style))


def _whole_table(table: Table) -> rich_table.Table:
    """A table with all columns; words may break on a narrow screen, numbers may not."""
    gap = 1 if any(column.number for column in table.columns) else 2
    shown = rich_table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for place, column in enumerate(table.columns):
        side: Literal["left", "right"] = "right" if column.number and place else "left"
        shown.add_column(Text(_title_of(column)), justify=side, no_wrap=column.number and place > 0, overflow="fold")
    for row in table.rows:
        cells = [Text("\n".join(_lines_of(cell, under=True)), style=_TONES[cell.tone]) for cell in row.cells]
        name = f"{row.name.text} ({row.mark})" if row.mark else row.name.text
        style = _WARNING if row.mark and row.tone == "leaks" else ""
        shown.add_row(Text(name, style=_TONES[row.name.tone]), *cells, style=style)
    return shown


def _show_block(block: Block, console: Console) -> None:
    match block:
        case Table():
            if block.caption:
                console.print(Text(block.caption))
            console.print(_whole_table(block))
        case Facts():
            if block.title:
                console.print(Text(block.title, style="bold"))
            grid = rich_table.Table.grid(padding=(0, 2, 0, 0))
            for name, value in block.pairs:
                grid.add_row(Text(name, style="bold", no_wrap=True), Text(value))
            console.print(grid)
        case Code():
            console.print(Text(block.text), soft_wrap=True)
        case blocks.Text():
            if block.title:
                console.print(Text(f"{block.title} ({block.mark})" if block.mark else block.title, style="bold"))
            for number, line in enumerate(block.paragraphs, start=1):
                console.print(Text({"list": "- ", "numbered": f"{number}. "}.get(block.style, "") + line))
        case Answers(items=[]):
            console.print(Text(f"{block.title}: none"))
        case Answers():
            titles, rows = answer_rows(block)
            named = [Row(Cell(first or NOTHING), [Cell(one or NOTHING) for one in rest]) for first, *rest in rows]
            _show_block(Table("", block.title, [Column(one, number=False) for one in titles], named), console)
        case Chart() | HeatMap():
            console.print(Text(f"(chart in the HTML report: {block.title or block.label})", style="dim"))
        case Tokens():
            console.print(Text(" ".join(block.tokens)))
        case Heads():
            for head in block.heads:
                console.print(Text(f"- {head.name}: {head.sentence}"))
        case Group():
            if block.title:
                console.print(Text(block.title, style="bold"))
            for inner in block.blocks:
                _show_block(inner, console)


def show_all(document: Document, console: Console) -> None:
    """Print the whole document: title, sentences, and every block under the heading of its section."""
    console.print(Text(document.title, style="bold"), soft_wrap=True)
    for sentence in document.lead:
        console.print(Text(sentence))
    _show_notices(document, console)
    for section in document.sections:
        console.print(Text(f"\n{section.title}", style="bold"))
        for number, block in enumerate(section.blocks):
            if number:
                console.print()
            _show_block(block, console)
