"""A comparison in the terminal: the main figures as far as they fit the screen, then what can be said."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from attnlab.report.compared import Result, figures_of, specimens_table, verdicts
from attnlab.report.compared_pairs import sentences
from attnlab.report.tables import Cell, Row

GAP = 3  # between columns
WARNING = "red"
LONGEST = 32  # letters of a name
LESS = "train_"  # figures that a narrow screen leaves out first


def written(cell: Cell, interval: bool) -> list[str]:
    """A cell in lines: the mean, and its interval below if it is wanted."""
    return [cell.text, *([cell.under] if cell.under and interval else [])]


def named(row: Row) -> str:
    """A row's name with its mark; a class in a user's file goes without its folder."""
    name = row.name.text.rsplit(os.sep, 1)[-1]
    name = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    return f"{name} ({row.mark})" if row.mark else name


def width_of(title: str, cells: Sequence[Cell], interval: bool) -> int:
    """The width that a column needs; its heading may break between words, a number may not."""
    return max(map(len, (*title.split(), *(line for cell in cells for line in written(cell, interval)))), default=0)


def fits(widths: Sequence[int], rows: Sequence[Row], width: int) -> bool:
    """Whether columns of these widths fit beside the names."""
    return max((len(named(row)) for row in rows), default=0) + 2 + sum(one + GAP for one in (*widths, 0)) <= width


def columns_that_fit(figures: Sequence[Result], rows: Sequence[Row], width: int) -> tuple[dict[int, int], bool]:
    """The figures that fit, with the widths of their columns, and whether all of them have their intervals.

    On a narrow screen only the figure that the comparison is about has its interval, so that more of the others fit.
    """
    titles = [short_title(one) for one in figures]
    columns = [[row.cells[place] for row in rows] for place in range(len(figures))]
    everything = [width_of(*pair, True) for pair in zip(titles, columns, strict=True)]
    if fits(everything, rows, width):
        return dict(enumerate(everything)), True
    kept = {place: width_of(title, columns[place], place == 0) for place, title in enumerate(titles)}
    less = [place for place, one in enumerate(figures) if place and one["key"].startswith(LESS)]
    for place in (*less, *(place for place in range(len(figures) - 1, 0, -1) if place not in less)):
        if fits(list(kept.values()), rows, width):
            break
        del kept[place]
    return kept, False


def short_title(one: Result) -> str:
    """The heading of a figure."""
    return str(one.get("short") or one["title"])


def main_table(result: Result, width: int) -> tuple[rich_table.Table, list[str]]:
    """Specimens by the figures that fit, and the figures that do not."""
    figures = figures_of(result)
    rows = specimens_table(result, figures, "").rows
    kept, intervals = columns_that_fit(figures, rows, width)
    titles = {place: short_title(figures[place]) for place in kept}
    unbroken = {place: max(wide, len(titles[place])) for place, wide in kept.items()}
    widths = unbroken if fits(list(unbroken.values()), rows, width) else kept
    seeds = len(result.get("seeds") or [0])
    means = f"means over {seeds} seeds, 95 % intervals below" if seeds > 1 else "one seed each"
    title = Text(f"{result['title']}\n{means}")
    table = rich_table.Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for place in kept:
        table.add_column(Text(titles[place]), justify="right", width=widths[place])
    for row in rows:
        cells = [written(row.cells[place], intervals or place == 0) for place in kept]
        lines = [Text("\n".join(one), no_wrap=True) for one in cells]
        table.add_row(Text(named(row)), *lines, style=WARNING if row.mark else "")
    return table, [short_title(one) for place, one in enumerate(figures) if place not in kept]


def show_comparison(result: Result, console: Console) -> None:
    """Print the specimens by the figures that fit, leaking ones in red with a word, then the comparisons in words."""
    table, hidden = main_table(result, console.width)
    console.print(table)
    if hidden:
        console.print(Text(f"({', '.join(hidden)} left out, since the screen is narrow)"))
    compared = sentences(result)
    for sentence in verdicts(result):
        if not any(one.words in sentence for one in compared):  # those follow, with their marks
            console.print(Text(sentence))
    for one in compared:
        mark = f" ({one.mark})" if one.mark else ""
        head = Text(f"{one.title}{mark}: ", style=f"bold {WARNING}" if mark else "bold")
        doubt = "" if one.believed else ". Not to be believed"
        console.print(head + Text(f"{one.words}{doubt}", style=WARNING if mark else ""))
