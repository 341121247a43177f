"""A Document as one HTML file that holds its styles, charts and scripts, and needs nothing else.

Everything that comes from a Document passes through the template with autoescape; only our own SVG is marked as safe, and
the charts escape what they are given. The browser is told to load nothing and to run nothing but the page's own script.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from attnlab import __version__
from attnlab.report.charts import NARROW, Shading, draw_chart, draw_heat_map, heat_cells, looks
from attnlab.report.document import Chart, Document, Head, Heads, HeatMap
from attnlab.report.words import visible

_SCRIPTS = ("page.js", "tables.js", "curves.js")
_ENHANCEMENTS = "const enhancements = [enhanceHeads, enhanceTables, enhanceCurves];\n"
_SHADING = Shading(power=0.5)  # of attention weights
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:h|min|s)\b)")  # a space between a number and its unit


def _drawn(block: Chart | HeatMap) -> Markup:
    """A heat map, or the two drawings of a chart, of which the style sheet shows the one that fits the screen."""
    if isinstance(block, HeatMap):
        return Markup(draw_heat_map(block))
    return Markup(draw_chart(block) + draw_chart(block, NARROW))


def _chart_data(chart: Chart) -> dict[str, object]:
    """The numbers of a line chart for the script, with five digits."""

    def short(values: Sequence[float]) -> list[float | None]:
        return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]

    series = [
        {"name": line.name, "look": look.colour} | {key: short(getattr(line, key)) for key in ("x", "y", "low", "high")}
        for line, look in zip(chart.series, looks(chart.series), strict=True)
    ]
    return {"x": str(chart.x), "y": str(chart.y), "series": series}


# The viewer of heads: a small picture of each to choose from, and one large map that shows the chosen one.


@dataclass(frozen=True)
class _HeadPicture:
    head: Head
    key: str
    cells: Markup
    chosen: bool


def first_head(block: Heads) -> Head:
    """The chosen head, or the one that looks hardest at one earlier token in the outlined row.

    The first token is left out, because heads with nothing to do rest on it, and so is the row's own.
    """
    if block.chosen is not None:
        return block.heads[block.chosen]
    return max(block.heads, key=lambda head: max(head.pattern[block.row][1 : block.row], default=0.0))


def pattern_cells(pattern: Sequence[Sequence[float]]) -> str:
    """The cells of a head; weights below zero, which some mechanisms have, get another colour."""
    cells = heat_cells(pattern, _SHADING)
    if any(weight < 0 for row in pattern for weight in row):
        cells += f'<g class="below">{heat_cells([[-weight for weight in row] for row in pattern], _SHADING)}</g>'
    return cells


def thousandths(pattern: Sequence[Sequence[float]]) -> list[list[int]]:
    """Weights in thousandths without the zeros at the end of each row: what the page's tooltips read."""
    rows = []
    for weights in pattern:
        whole = [round(1000 * weight) for weight in weights]
        while whole and whole[-1] == 0:
            whole.pop()
        rows.append(whole)
    return rows


def _viewer(block: Heads) -> dict[str, object]:
    """The data of the template: heads by layer, the map with its names, and the weights for the tooltips."""
    first, names = first_head(block), [visible(token) for token in block.tokens]
    pictures = [
        _HeadPicture(head, f"{int(head.layer)}-{int(head.number)}", Markup(pattern_cells(head.pattern)), head is first)
        for head in block.heads
    ]
    label = "Heat map of the chosen head: what each token, a row, looks at, a column"
    chart = draw_heat_map(
        HeatMap("", label, (), names, names, cell=block.cell),
        _SHADING,
        lambda value: f"{100 * value:g} %",
        block.row,
        "".join(f'<use data-head="{picture.key}" href="#cells-{picture.key}"/>' for picture in pictures),
    )
    layers = [
        {"name": group or f"layer {layer}", "note": (block.notes or {}).get(layer, ""), "pictures": list(some)}
        for (layer, group), some in groupby(pictures, key=lambda picture: (picture.head.layer, picture.head.group))
    ]
    data = {"tokens": names, "heads": {picture.key: thousandths(picture.head.pattern) for picture in pictures}}
    size = 10 * len(names)
    return {"pictures": pictures, "layers": layers, "chart": Markup(chart), "size": size, "names": names, "data": data}


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("attnlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "no_break": lambda text: _BEFORE_UNIT.sub("\u00a0", text),
        "kind": lambda block: type(block).__name__.lower(),
        "drawn": _drawn,
        "chart_data": _chart_data,
        "viewer": _viewer,
    }
    return environment


def style() -> str:
    """The style sheet of reports."""
    return _templates().get_template("page.css").render()


def script() -> str:
    """The script of reports: functions that make a part of the page interactive, listed in `enhancements`."""
    return "".join(_templates().get_template(name).render() for name in _SCRIPTS) + _ENHANCEMENTS


def as_fragment(document: Document, part: str = "") -> str:
    """The content of the page alone, for a page that has style and script.

    Where several documents are shown on one page, each is a `part` with a name, and has no title of its own.
    """
    part = f"{part}-" if part else ""
    return _templates().get_template("body.html.j2").render(document=document, part=part).strip()


def as_html(document: Document) -> str:
    """The whole page; its scripts are one, whose digest is all that the browser is told to trust."""
    whole = f"{script()}enhancements.forEach((enhance) => enhance(document));\n"
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    context = {
        "document": document,
        "part": "",
        "script": Markup(whole),
        "script_digest": digest,
        "version": __version__,
    }
    return _templates().get_template("document.html.j2").render(context).lstrip()


def as_frame(document: Document, height: int = 560) -> str:
    """The page in a frame of its own, for notebooks: its styles do not touch theirs, and nothing is loaded."""
    page = escape(as_html(document))
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" style="{style}"></iframe>'
