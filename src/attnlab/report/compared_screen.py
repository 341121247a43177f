"""A comparison in the terminal: the main figures as far as they fit the screen, then what can be said."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from attnlab.report.compared import Result, figures_of, specimens_table, verdicts
from attnlab.report.compared_pairs import sentences
from attnlab.report.tables import Cell, Row

GAP = 3  # between columns
WARNING = "red"


def written(cell: Cell, interval: bool) -> list[str]:
    """A cell in lines: the mean, and its interval below if it is wanted."""
    return [cell.text, *([cell.under] if cell.under and interval else [])]


def named(row: Row) -> str:
    """A row's name with its mark."""
    return f"{row.name.text} ({row.mark})" if row.mark else row.name.text


def widths(titles: Sequence[str], rows: Sequence[Row], intervals: int) -> list[int]:
    """The width that every figure needs, the first of them with their intervals; headings may break between words."""
    found = []
    for place, title in enumerate(titles):
        lines = [line for row in rows for line in written(row.cells[place], place < intervals)]
        found.append(max(map(len, (*title.split(), *lines)), default=0))
    return found


def fitting(needed: Sequence[int], rows: Sequence[Row], width: int) -> int:
    """How many columns of figures fit beside the names."""
    room = width - GAP - max((len(named(row)) for row in rows), default=0)
    return sum(total <= room for total in accumulate(one + GAP for one in needed))


def show_comparison(result: Result, console: Console) -> None:
    """Print the specimens by the figures that fit, leaking ones in red with a word, then the comparisons in words."""
    figures = figures_of(result)
    rows = specimens_table(result, figures, "").rows
    titles = [one.get("short") or one["title"] for one in figures]
    # On a narrow screen only the figure that the comparison is about has its interval, so that more of the others fit.
    needed = widths(titles, rows, intervals := len(titles))
    if fitting(needed, rows, console.width) < len(titles):
        needed = widths(titles, rows, intervals := 1)
    shown = max(1, fitting(needed, rows, console.width))
    seeds = len(result.get("seeds") or [0])
    means = f"means over {seeds} seeds, 95 % intervals below" if seeds > 1 else "one seed each"
    title = Text(f"{result['title']}\n{means}")
    table = rich_table.Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for heading, least in zip(titles[:shown], needed, strict=False):
        table.add_column(Text(heading), justify="right", min_width=least)
    for row in rows:
        cells = [written(cell, place < intervals) for place, cell in enumerate(row.cells[:shown])]
        lines = [Text("\n".join(one), no_wrap=True) for one in cells]
        table.add_row(Text(named(row)), *lines, style=WARNING if row.mark else "")
    console.print(table)
    if shown < len(titles):
        console.print(Text(f"({', '.join(titles[shown:])} left out, since the screen is narrow)"))
    for one in sentences(result):
        mark = f" ({one.mark})" if one.mark else ""
        head = Text(f"{one.title}{mark}: ", style=f"bold {WARNING}" if mark else "bold")
        console.print(head + Text(one.words, style=WARNING if mark else ""))
    for sentence in verdicts(result):
        console.print(Text(sentence))
