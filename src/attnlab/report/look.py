"""The report of `attnlab look`: predictions, per-token losses and attention heads of one text, as a page and as one PNG."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attnlab.pictures import picture_bytes
from attnlab.report.charts import shorten
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
from attnlab.report.legacy_parts import cell, columns, folded, strongest, text_column
from attnlab.report.words import NOTHING, percent, plural, visible

_LARGEST, _SMALLEST = 24.0, 13.0  # pixels of a cell, so that names neither drift apart nor overlap
_ROOM = 760.0  # pixels that a map takes if its cells may shrink
_SURPRISED = math.log(100)  # the loss of a token whose probability was 1 %: fully shaded


@dataclass(frozen=True)
class Guess:
    """A token that may come next."""

    token: str
    probability: float


@dataclass(frozen=True)
class Reading:
    """A token of the text with its predicted probability and the most likely token; empty for the first token."""

    token: str
    probability: float | None = None
    loss: float | None = None
    expected: str | None = None


@dataclass(frozen=True)
class HeadNumbers:
    """Statistics of a head, averaged over rows; layers and heads count from 1, and head 0 stands for an influence."""

    layer: int
    head: int
    tap: str
    kind: str
    entropy: float  # of a row, in nats
    spread: float  # exp of the entropy: the effective number of tokens attended to
    distance: float  # mean distance in tokens
    first: float  # weight on the first token


@dataclass(frozen=True)
class LayerMaps:
    """The weights of one layer: a pattern per head, or one map of influence, as shares of its rows."""

    mechanism: str
    kind: Literal["pattern", "influence"]
    maps: Sequence[Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Looked:
    """What the page and the picture of one text show."""

    run: str
    command: str
    text: str
    tokens: Sequence[str]
    layers: Sequence[LayerMaps]
    next: Sequence[Guess]
    read: Sequence[Reading]
    heads: Sequence[HeadNumbers]
    loss: float | None


# The page


def _heads_of(view: Looked) -> Iterator[Head]:
    """Every map, with a sentence on its last row."""
    for number, layer in enumerate(view.layers, start=1):
        readable = layer.kind == "pattern"
        title, verb = ("", "looks at") if readable else ("all heads together", "is moved by")
        for place, pattern in enumerate(layer.maps, start=1):
            column = strongest(pattern[-1])
            most = f"“{visible(view.tokens[column])}” ({percent(pattern[-1][column])})"
            what = f"looks most at {most}" if readable else f"depends most on {most}, by its influence"
            yield Head(number, place, pattern, f"At the last token it {what}.", title, verb)


def _expectation_chart(view: Looked) -> Chart:
    marks = [Mark(visible(one.token), 100 * one.probability, percent(one.probability)) for one in view.next]
    label = "Bar chart of the likeliest next tokens. " + "; ".join(f"{one.name} {one.text}" for one in marks)
    title = f"The likeliest tokens after “{visible(view.tokens[-1])}”"
    return Chart("bars", title, label, Axis("probability", "%"), marks=marks)


def _heads_section(view: Looked, mechanisms: Sequence[str]) -> list[Section]:
    tokens, heads = view.tokens, list(_heads_of(view))
    readable = any(layer.kind == "pattern" for layer in view.layers)
    below = any(weight < 0 for head in heads for row in head.pattern for weight in row)
    words = (
        "The small pictures select a head. In the large one each row is a token and each cell in it how much that token looks"
        " at an earlier one or at itself. The outlined row is the last token, from which the next one is predicted. Shown first"
        " is the head with the largest weight on one earlier token in that row. Below, the text is shaded by the"
        " weights of one row."
        f"{' Weights below zero have another colour.' if below else ''}"
    )
    notes = dict(enumerate(mechanisms, start=1)) if len(set(mechanisms)) > 1 else None
    size = min(_LARGEST, max(_SMALLEST, _ROOM / len(tokens)))
    rows = [
        Row(
            Cell(f"layer {one.layer}, {one.head or 'influence'}"),
            [
                Cell(f"{one.spread:.1f}", one.spread),
                Cell(f"{one.distance:.1f}", one.distance),
                cell(one.first, "share"),
            ],
        )
        for one in view.heads
    ]
    caption = (
        "Means over all rows but the first, which can look at nothing but itself. The spread is the exponential of the entropy:"
        " the effective number of tokens looked at."
    )
    titles = ("Spread in tokens", "Tokens looked back", "On the first token")
    table = Table("Heads in numbers", caption, columns("Head", *titles), rows)
    viewer = Heads(tokens, heads, len(tokens) - 1, size, notes, strip=True)
    return section("Where it looks", Text([words]) if readable else None, viewer, folded("Heads in numbers", table))


def _surprise_section(view: Looked) -> Section:
    if view.loss is None:
        return Section("What surprised it", [Text(["One token: there was nothing before it to expect it from."])])
    words = (
        "The stronger the colour, the less the model expected a token from those before it; nothing expects the first. The mean"
        f" loss is {view.loss:.2f} nats per token. A model learns to expect only what its task asks for: where it is taught"
        " answers alone, a question may surprise it throughout."
    )
    rows, notes = [], []
    for place, one in enumerate(view.read):
        cells = [cell(one.probability, "share"), Cell(NOTHING), Cell(NOTHING)]
        if one.loss is not None:
            cells[1:] = [Cell(f"{one.loss:.2f}", one.loss), Cell(visible(one.expected or ""))]
        notes.append(f"{cells[0].text}; it expected {cells[2].text}" if one.loss is not None else "")
        rows.append(Row(Cell(str(place), place), [Cell(visible(one.token)), *cells]))
    titles = [Column("Position"), text_column("Token"), Column("Probability"), Column("Loss")]
    caption = "Loss is the negative logarithm of the probability, in nats."
    table = Table("By token", caption, [*titles, text_column("Expected most")], rows)
    shares = [min(1.0, (one.loss or 0.0) / _SURPRISED) for one in view.read]
    tokens = Tokens([visible(one.token) for one in view.read], shares, notes)
    return Section("What surprised it", [Text([words]), tokens, folded("By token", table)])


def document(view: Looked) -> Document:
    """The whole report."""
    names = [layer.mechanism.rpartition("/")[2] for layer in view.layers]
    hidden = [number for number, layer in enumerate(view.layers, start=1) if layer.kind != "pattern"]
    which = f"layer{'s' * (len(hidden) > 1)} {', '.join(map(str, hidden))}"
    notice = Notice(
        f"No pattern in {which}.",
        "The mechanism there has no weights over tokens. Shown instead is its influence: how strongly its output at one token"
        " (row) changes with its input at another (column), as a share of the row; see docs/looking.md.",
    )
    about = (
        f"The model of {view.run} has {plural(len(names), 'layer')} ({', '.join(dict.fromkeys(names))}). The text is"
        f" {plural(len(view.tokens), 'token')}, in which “·” is a space and “⏎” the end of a line."
    )
    python = (
        'In Python the same weights are capture(model)["blocks.0.attn.hook_pattern"] for layer 1, [0, 0] of it for the first'
        " text and head 1; patch changes them during the forward pass."
    )
    return Document(
        kind="look",
        title="Inside a model as it reads",
        lead=[f"“{view.text}”"],
        sections=[
            Section("What it expects next", [_expectation_chart(view)]),
            *_heads_section(view, names),
            _surprise_section(view),
            Section("Reproduce", [Code(view.command), Text([python])]),
        ],
        notices=[notice] if hidden else [],
        about=about,
        footer="All heads are in patterns.png, the numbers in result.json.",
    )


# The picture: all heads as one PNG, a row per layer, without any global state of matplotlib

_WIDEST = 20.0  # inches that the heads may take
_DPI = 150
_GAP, _TITLE = 0.12, 0.3  # inches between heads, and above each for its name
_LETTER = 0.075  # inches per letter of a token
_LEAST = 4.0  # points of height that a token's name needs
_HEAD = 0.55  # inches for the text
_LIGHT, _HEAT, _BELOW = "#ffffff", "#00477a", "#c04f00"


def picture(view: Looked) -> bytes:
    """All heads as a PNG, the tokens named where there is room."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers, tokens = view.layers, [shorten(visible(token), 100) for token in view.tokens]
    across = max(len(layer.maps) for layer in layers)
    side = min(max(1.7, 0.09 * len(tokens)), 4.0, _WIDEST / across)
    names = _LETTER * max(map(len, tokens)) + 0.2  # inches beside the first head and below the last layer
    width, height = names + across * (side + _GAP) + 0.9, _HEAD + len(layers) * (side + _TITLE) + names
    figure = Figure(figsize=(width, height))
    colours = _colour_map(any(weight < 0 for layer in layers for one in layer.maps for row in one for weight in row))
    for number, layer in enumerate(layers):
        for place, pattern in enumerate(layer.maps):
            left, top = names + place * (side + _GAP), _HEAD + number * (side + _TITLE) + _TITLE
            ax = figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))
            ax.imshow(_lifted(pattern), cmap=colours.cmap, norm=colours.norm, interpolation="nearest")
            for spine in ax.spines.values():
                spine.set_color("#c9ccd1")
            ax.tick_params(length=0, labelsize=6, pad=2)
            title = f"head {place + 1}" if layer.kind == "pattern" else "influence"
            ax.set_title(f"layer {number + 1}, {title}", fontsize=8, pad=3)
            _name_tokens(ax, tokens, 72 * side / len(tokens), place == 0, number == len(layers) - 1)
    bar = figure.add_axes((1 - 0.75 / width, 1 - (_HEAD + _TITLE + 1.7) / height, 0.15 / width, 1.7 / height))
    _draw_legend(bar, colours)
    text = shorten(visible(view.text).replace("·", " "), 90 * width)
    meaning = "What each token (row) looks at (column)"
    if any(layer.kind == "influence" for layer in layers):
        meaning += "; where there is no pattern, the influence of each token as a share of the row"
    for line, words in enumerate((f"“{text}”", meaning)):
        figure.text(0.15 / width, 1 - (0.25 + 0.2 * line) / height, words, fontsize=9, parse_math=False)
    FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # letters that the font lacks become boxes
        return picture_bytes(figure, dpi=_DPI)


def _colour_map(below: bool) -> Any:
    """From no weight to full weight; weights below zero have another colour."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    ends = [_BELOW, _LIGHT, _HEAT] if below else [_LIGHT, _HEAT]
    return ScalarMappable(Normalize(-1.0 if below else 0.0, 1.0), LinearSegmentedColormap.from_list("heads", ends))


def _lifted(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Square roots of the weights with their signs, so that weak ones are visible."""
    return [[math.copysign(abs(weight) ** 0.5, weight) for weight in row] for row in rows]


def _name_tokens(ax: Any, tokens: Sequence[str], room: float, left: bool, bottom: bool) -> None:
    """Name the tokens beside the first head of a layer and below the last layer; where there is no room, number them."""
    for axis, wanted, turned in ((ax.yaxis, left, 0), (ax.xaxis, bottom, 90)):
        if not wanted:
            axis.set_ticks([])
        elif room >= _LEAST:
            axis.set_ticks(range(len(tokens)), tokens)
            for label in axis.get_ticklabels():
                label.set(fontsize=min(7.0, room), rotation=turned, parse_math=False)


def _draw_legend(ax: Any, colours: Any) -> None:
    bar = ax.figure.colorbar(colours, cax=ax)
    weights = (-1.0, -0.25, 0.0, 0.25, 1.0) if colours.norm.vmin < 0 else (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
    bar.set_ticks(_lifted([weights])[0], labels=[f"{100 * weight:g} %" for weight in weights], fontsize=7)
    bar.outline.set_visible(False)
