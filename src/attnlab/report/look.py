"""The report of one text inside a model: what it expected, what surprised it, where its heads look. Plain data in.

A view is a table as `attnlab.look.files` makes it: text, tokens, layers with their maps, heads in numbers, guesses. The rows
of an influence are shares of their sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnlab.report.document import (
    Axis,
    Cell,
    Chart,
    Code,
    Column,
    Document,
    Head,
    Heads,
    Mark,
    Notice,
    Row,
    Section,
    Table,
    Text,
    Tokens,
    section,
)
from attnlab.report.html import visible
from attnlab.report.parts import folded
from attnlab.report.recall import strongest
from attnlab.report.words import NOTHING, percent, plural

View = Mapping[str, Any]

LARGEST, SMALLEST = 24.0, 13.0  # pixels of a cell, so that names neither drift apart nor overlap
ROOM = 760.0  # pixels that a map takes if its cells may shrink
SURPRISED = math.log(100)  # the loss of a token that was given one chance in a hundred: fully shaded


def heads_of(view: View) -> Iterator[Head]:
    """Every map with what its last row says."""
    for number, layer in enumerate(view["layers"], start=1):
        readable = layer["kind"] == "pattern"
        title, verb = ("", "looks at") if readable else ("all heads together", "is moved by")
        for place, pattern in enumerate(layer["maps"], start=1):
            column = strongest(pattern[-1])
            most = f"“{visible(view['tokens'][column])}” ({percent(pattern[-1][column])})"
            what = f"looks most at {most}" if readable else f"depends most on {most}, by its influence"
            yield Head(number, place, pattern, f"At the last token it {what}.", title, verb)


def expectation_chart(guesses: Sequence[View], last: str) -> Chart:
    """The likeliest next tokens as bars."""
    marks = [Mark(visible(one["token"]), 100 * one["probability"], percent(one["probability"])) for one in guesses]
    label = "Bar chart of the likeliest next tokens. " + "; ".join(f"{one.name} {one.text}" for one in marks)
    title = f"The likeliest tokens after “{visible(last)}”"
    return Chart("bars", title, label, Axis("probability", "%"), marks=marks)


def heads_section(view: View, mechanisms: Sequence[str]) -> Section:
    """Where the heads look, as pictures and in numbers."""
    tokens, heads = view["tokens"], list(heads_of(view))
    readable = any(layer["kind"] == "pattern" for layer in view["layers"])
    below = any(weight < 0 for head in heads for row in head.pattern for weight in row)
    words = (
        "Each small picture is a head to choose. In the large one each row is a token and each cell in it how much that token"
        " looks at an earlier one or at itself. The outlined row is the last token, from which the next one is predicted. Shown"
        " first is the head that looks hardest at one token there. Under it the text is shaded as one token sees it."
        f"{' Weights below zero have another colour.' if below else ''}"
    )
    notes = dict(enumerate(mechanisms, start=1)) if len(set(mechanisms)) > 1 else None
    cell = min(LARGEST, max(SMALLEST, ROOM / len(tokens)))
    rows = [
        Row(
            Cell(f"layer {one['layer']}, {one['head'] or 'influence'}"),
            [
                Cell(f"{one['spread']:.1f}", one["spread"]),
                Cell(f"{one['distance']:.1f}", one["distance"]),
                Cell(percent(one["first"]), one["first"]),
            ],
        )
        for one in view["heads"]
    ]
    caption = (
        "Means over all rows but the first, which can look at nothing but itself. The spread is the exponential of the entropy:"
        " as if so many tokens were looked at alike."
    )
    titles = ("Spread in tokens", "Tokens looked back", "On the first token")
    table = Table("Heads in numbers", caption, [Column("Head", number=False), *map(Column, titles)], rows)
    viewer = Heads(tokens, heads, len(tokens) - 1, cell, notes, strip=True)
    (made,) = section("Where it looks", Text([words]) if readable else None, viewer, folded("Heads in numbers", table))
    return made


def surprise_section(view: View) -> Section:
    """How much every token surprised the model."""
    if view["loss"] is None:
        return Section("What surprised it", [Text(["One token: there was nothing before it to expect it from."])])
    words = (
        "The stronger the colour, the less the model expected a token from those before it; nothing expects the first. The mean"
        f" loss is {view['loss']:.2f} nats per token. A model learns to expect only what its task asks for: where it is taught"
        " answers alone, a question may surprise it throughout."
    )
    rows, notes = [], []
    for place, one in enumerate(view["read"]):
        cells = [Cell(NOTHING), Cell(NOTHING), Cell(NOTHING)]
        if one["loss"] is not None:
            cells = [
                Cell(percent(one["probability"]), one["probability"]),
                Cell(f"{one['loss']:.2f}", one["loss"]),
                Cell(visible(one["expected"])),
            ]
        notes.append(f"{cells[0].text}; it expected {cells[2].text}" if one["loss"] is not None else "")
        rows.append(Row(Cell(str(place), place), [Cell(visible(one["token"])), *cells]))
    columns = [Column("Position"), Column("Token", number=False), Column("Probability"), Column("Loss")]
    columns.append(Column("Expected most", number=False))
    table = Table("By token", "Loss is the negative logarithm of the probability, in nats.", columns, rows)
    shares = [min(1.0, (one["loss"] or 0.0) / SURPRISED) for one in view["read"]]
    tokens = Tokens([visible(one["token"]) for one in view["read"]], shares, notes)
    return Section("What surprised it", [Text([words]), tokens, folded("By token", table)])


def document(view: View) -> Document:
    """The whole report."""
    names = [layer["mechanism"].rpartition("/")[2] for layer in view["layers"]]
    hidden = [number for number, layer in enumerate(view["layers"], start=1) if layer["kind"] != "pattern"]
    which = f"layer{'s' * (len(hidden) > 1)} {', '.join(map(str, hidden))}"
    notice = Notice(
        f"No pattern in {which}.",
        "The mechanism there has no weights over the tokens that could be read. Shown instead is its influence: how strongly"
        " what it gives to a token (row) moves when what it is given of another (column) does, as a share of the row; see"
        " docs/looking.md.",
    )
    about = (
        f"The model of {view['run']} has {plural(len(names), 'layer')} ({', '.join(dict.fromkeys(names))}). The text is"
        f" {plural(len(view['tokens']), 'token')}, in which “·” is a space and “⏎” the end of a line."
    )
    python = (
        'In Python the same weights are capture(model)["blocks.0.attn.hook_pattern"] for layer 1, [0, 0] of it for the first'
        " text and head 1; patch changes them on the way."
    )
    return Document(
        kind="look",
        title="Inside a model as it reads",
        lead=[f"“{view['text']}”"],
        sections=[
            Section("What it expects next", [expectation_chart(view["next"], view["tokens"][-1])]),
            heads_section(view, names),
            surprise_section(view),
            Section("Reproduce", [Code(view["command"]), Text([python])]),
        ],
        notices=[notice] if hidden else [],
        about=about,
        footer="All heads are in patterns.png, the numbers in result.json.",
    )
