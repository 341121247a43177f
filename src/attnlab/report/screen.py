"""A Document in the terminal: its brief tables, as far as they fit, then the sentences that lead it; or all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from attnlab.report import document as blocks
from attnlab.report.document import Cell, Column, Document, Row, Table
from attnlab.report.text import answer_rows
from attnlab.report.words import NOTHING

_GAP, _NARROW = 3, 1  # from one column to the next, on narrow screens too
_EDGES = 2  # of a table
_LONGEST = 40  # letters of a name on one line
_WARNING = "red"
_ROWS = {"leaks": _WARNING, "stopped": "yellow"}  # colours of rows by their tone
_TONES = {"": "", "good": "green", "bad": "red", "warning": "yellow", "quiet": "dim", "strong": "bold"}


def _name_of(row: Row) -> str:
    """A row's name with its mark; a class in a user's file is shown without its folder."""
    name = row.name.text.rsplit(os.sep, 1)[-1] if ":" in row.name.text else row.name.text
    return f"{name} ({row.mark})" if row.mark else name


def _names_width(table: Table) -> int:
    return min(_LONGEST, max(map(len, (table.columns[0].title, *map(_name_of, table.rows)))))


def _lines_of(cell: Cell, under: bool) -> list[str]:
    return [cell.text, *([cell.under] if cell.under and under else [])]


def _width_of(table: Table, place: int, under: bool, wrapped: bool = False) -> int:
    """The width that a column needs; headings may break between words, words may too if `wrapped`, numbers may not."""
    cells = [line for row in table.rows for line in _lines_of(row.cells[place], under)]
    if wrapped and not table.columns[place + 1].number:
        cells = [word for line in cells for word in line.split()]
    return max(map(len, (*_title_of(table.columns[place + 1]).split(), *cells)), default=0)


def _title_of(column: Column) -> str:
    return column.short or column.title


def _chosen_columns(table: Table, width: int) -> tuple[dict[int, int], bool, int]:
    """The columns that fit with their widths, whether with all second lines, and the gap between them.

    Where the screen is narrow, gaps shrink, second lines are left out, then minor columns, the last first; then words wrap,
    and at last other columns are left out.
    """
    names, places = _names_width(table), range(len(table.columns) - 1)

    def room(widths: Mapping[int, int], gap: int = _NARROW) -> int:
        return width - names - _EDGES - sum(wide + gap for wide in widths.values())

    kept = {place: _width_of(table, place, True) for place in places}
    whole = room(kept) >= 0
    if not whole:
        kept = {place: _width_of(table, place, place == 0) for place in places}
    for place in reversed(places):
        if table.columns[place + 1].minor and room(kept) < 0:
            del kept[place]
    if room(kept) < 0:
        full, kept = kept, {place: _width_of(table, place, place == 0, wrapped=True) for place in kept}
        while len(kept) > 1 and room(kept) < 0:
            kept.popitem()
        for place in kept:
            kept[place] += max(0, min(room(kept), full[place] - kept[place]))
    return kept, whole, _GAP if room(kept, _GAP) >= 0 else _NARROW


def as_rich(table: Table, width: int) -> tuple[rich_table.Table, list[str]]:
    """The table as far as it fits, and the titles of the columns that do not."""
    kept, under, gap = _chosen_columns(table, width)
    shown = rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0))
    shown.add_column(Text(table.columns[0].title), width=_names_width(table), overflow="fold")
    for place, wide in kept.items():
        column = table.columns[place + 1]
        side: Literal["left", "right"] = "right" if column.number else "left"
        shown.add_column(Text(_title_of(column)), justify=side, width=wide, overflow="fold")
    _add_rows(shown, table, kept, under)
    return shown, [_title_of(column) for place, column in enumerate(table.columns[1:]) if place not in kept]


def _add_rows(shown: rich_table.Table, table: Table, places: Iterable[int], under: bool = True) -> None:
    for row in table.rows:
        cells = [
            Text("\n".join(_lines_of(row.cells[place], under or place == 0)), style=_TONES[row.cells[place].tone])
            for place in places
        ]
        shown.add_row(Text(_name_of(row), style=_TONES[row.name.tone]), *cells, style=_ROWS.get(row.tone, ""))


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
    _add_rows(shown, table, range(len(table.columns) - 1))
    return shown


def _show_block(block: blocks.Block, console: Console) -> None:
    match block:
        case Table():
            if block.caption:
                console.print(Text(block.caption))
            console.print(_whole_table(block))
        case blocks.Facts():
            if block.title:
                console.print(Text(block.title, style="bold"))
            grid = rich_table.Table.grid(padding=(0, 2, 0, 0))
            for name, value in block.pairs:
                grid.add_row(Text(name, style="bold", no_wrap=True), Text(value))
            console.print(grid)
        case blocks.Code():
            console.print(Text(block.text), soft_wrap=True)
        case blocks.Text():
            if block.title:
                console.print(Text(f"{block.title} ({block.mark})" if block.mark else block.title, style="bold"))
            for number, line in enumerate(block.paragraphs, start=1):
                console.print(Text({"list": "- ", "numbered": f"{number}. "}.get(block.style, "") + line))
        case blocks.Answers(items=[]):
            console.print(Text(f"{block.title}: none"))
        case blocks.Answers():
            titles, rows = answer_rows(block)
            named = [Row(Cell(first or NOTHING), [Cell(text or NOTHING) for text in rest]) for first, *rest in rows]
            _show_block(Table("", block.title, [Column(title, number=False) for title in titles], named), console)
        case blocks.Chart() | blocks.HeatMap():
            console.print(Text(f"(chart, shown in HTML only: {block.title or block.label})", style="dim"))
        case blocks.Tokens():
            console.print(Text(" ".join(block.tokens)))
        case blocks.Heads():
            for head in block.heads:
                console.print(Text(f"- {head.name}: {head.sentence}"))
        case blocks.Group():
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
