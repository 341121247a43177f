"""The page of one text inside a model: what it expected, what surprised it, where its heads look. Plain data in, HTML out.

A view is a table as `attnlab.look.files` makes it: text, tokens, layers with their maps, heads in numbers,
guesses. The rows of an influence are shares of their sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from attnlab.report.attention import Head, strongest, visible
from attnlab.report.charts import WIDTH, Axis, Bar, bar_chart
from attnlab.report.heads import viewer
from attnlab.report.page import SMALL, Figure, render
from attnlab.report.words import percent, plural

LARGEST, SMALLEST = 24.0, 13.0  # pixels of a cell, so that names neither drift apart nor overlap
ROOM = 760.0  # pixels that a map takes if its cells may shrink
NORMAL, WIDEST = 816, 1280  # pixels of the page: as every report, or more for long texts and many heads
SURPRISED = math.log(100)  # the loss of a token that was given one chance in a hundred: fully shaded


def heads_of(view: Mapping[str, Any]) -> Iterator[Head]:
    """Every map with what its last row says."""
    for number, layer in enumerate(view["layers"], start=1):
        readable = layer["kind"] == "pattern"
        title, verb = ("", "looks at") if readable else ("all heads together", "is moved by")
        for place, pattern in enumerate(layer["maps"], start=1):
            column = strongest(pattern[-1])
            most = f"“{visible(view['tokens'][column])}” ({percent(pattern[-1][column])})"
            what = f"looks most at {most}" if readable else f"depends most on {most}, by its influence"
            yield Head(number, place, pattern, f"At the last token it {what}.", title, verb)


def expectation_figure(guesses: Sequence[Mapping[str, Any]], last: str) -> Figure:
    """The likeliest next tokens as bars."""
    bars = [Bar(visible(one["token"]), 100 * one["probability"]) for one in guesses]
    label = "Bar chart of the likeliest next tokens. " + "; ".join(
        f"{visible(one['token'])} {percent(one['probability'])}" for one in guesses
    )
    axis = Axis("probability", "%")
    wide, small = (
        bar_chart(bars, axis, label=label, width=width, written=lambda value: f"{value:.1f} %")
        for width in (WIDTH, SMALL)
    )
    return Figure(f"The likeliest tokens after “{visible(last)}”", Markup(wide), Markup(small))


def looking_page(view: Mapping[str, Any]) -> str:
    """The whole page."""
    tokens = view["tokens"]
    cell = min(LARGEST, max(SMALLEST, ROOM / len(tokens)))
    columns = max(len(layer["maps"]) for layer in view["layers"])
    names = [layer["mechanism"].rpartition("/")[2] for layer in view["layers"]]
    notes = dict(enumerate(names, start=1)) if len(set(names)) > 1 else {}
    unreadable = [number for number, layer in enumerate(view["layers"], start=1) if layer["kind"] != "pattern"]
    every = list(heads_of(view))
    context = {
        "view": view,
        "mechanisms": ", ".join(dict.fromkeys(names)),
        "below": any(weight < 0 for head in every for row in head.pattern for weight in row),
        "expected": expectation_figure(view["next"], tokens[-1]),
        "viewer": viewer(every, tokens, len(tokens) - 1, cell, notes),
        "unreadable": f"layer{'s' * (len(unreadable) > 1)} {', '.join(map(str, unreadable))}" if unreadable else "",
        "patterns": len(unreadable) < len(view["layers"]),
        "narrowest": round(0.7 * (cell * len(tokens) + 150)),  # smaller letters cannot be read: scroll instead
        "width": round(min(WIDEST, max(NORMAL, cell * len(tokens) + 220, 79 * columns + 150))),
        "layers": plural(len(view["layers"]), "layer"),
        "tokens": plural(len(tokens), "token"),
        "surprise": [min(1.0, (one["loss"] or 0.0) / SURPRISED) for one in view["read"]],
    }
    return render("looking.html.j2", context)
