"""The viewer of heads: a small picture of each to choose from, and one large map that shows the chosen one.

For any page whose template uses the macros `heads_style` and `heads`. Plain numbers in, markup out; knows no mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup

from attnlab.report.attention import Head, Pattern, compact, first_to_show, visible
from attnlab.report.heat import Shading, heat_cells, heat_map

SHADING = Shading(power=0.5)


@dataclass(frozen=True)
class HeadFigure:
    """One head with its cells, which the large map uses again."""

    head: Head
    key: str
    cells: Markup
    chosen: bool


@dataclass(frozen=True)
class Row:
    """The heads of a layer, with a word on the layer where there is one."""

    number: int
    note: str
    figures: Sequence[HeadFigure]


@dataclass(frozen=True)
class Viewer:
    """What the template needs: the heads by layer, the map with its names, and the weights for the tooltips."""

    rows: Sequence[Row]
    chart: Markup
    size: int
    tokens: Sequence[str]
    data: dict[str, Any]

    @property
    def figures(self) -> list[HeadFigure]:
        """All heads, layer by layer."""
        return [one for row in self.rows for one in row.figures]


def cells(pattern: Pattern) -> str:
    """The cells of a head; weights below zero, which some mechanisms have, in a group of another colour."""
    drawn = heat_cells(pattern, SHADING)
    if any(weight < 0 for row in pattern for weight in row):
        below = heat_cells([[-weight for weight in row] for row in pattern], SHADING)
        drawn += f'<g class="below">{below}</g>'
    return drawn


def viewer(every: Sequence[Head], tokens: Sequence[str], row: int, cell: float, notes: Mapping[int, str]) -> Viewer:
    """The viewer over these heads, with one row outlined; shown first is the head that looks hardest there."""
    first, names = first_to_show(every, row), [visible(token) for token in tokens]
    figures = [
        HeadFigure(head, f"{head.layer}-{head.number}", Markup(cells(head.pattern)), head is first) for head in every
    ]
    chart = heat_map(
        (),
        names,
        names,
        label="Heat map of the chosen head: what each token, a row, looks at, a column",
        shading=SHADING,
        cell=cell,
        written=lambda value: f"{100 * value:g} %",
        marked_row=row,
        cells="".join(f'<use data-head="{one.key}" href="#cells-{one.key}"/>' for one in figures),
    )
    by_layer = groupby(figures, key=lambda one: one.head.layer)
    rows = [Row(layer, notes.get(layer, ""), list(some)) for layer, some in by_layer]
    weights = {one.key: compact(one.head.pattern) for one in figures}
    return Viewer(rows, Markup(chart), 10 * len(names), names, {"tokens": names, "heads": weights})
