"""All heads of a text as one PNG, a row a layer. Plain data in, bytes out; touches no state of matplotlib's."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.report.html import visible
from attnlab.report.svg import shorten

WIDEST = 20.0  # inches that the heads may take
DOTS = 150  # to an inch
GAP, TITLE = 0.12, 0.3  # inches between heads, and above each for its name
LETTER = 0.075  # inches of a token's letter
LEAST = 4.0  # points of height that a token's name needs
HEAD = 0.55  # inches for the text
LIGHT, HEAT, BELOW = "#ffffff", "#00477a", "#c04f00"


def looking_picture(view: Mapping[str, Any]) -> bytes:
    """The heads of a view (see `looking`), the tokens named where there is room."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers, tokens = view["layers"], [shorten(visible(token), 100) for token in view["tokens"]]
    columns = max(len(layer["maps"]) for layer in layers)
    side = min(max(1.7, 0.09 * len(tokens)), 4.0, WIDEST / columns)
    names = LETTER * max(map(len, tokens)) + 0.2  # inches beside the first head and below the last layer
    width, height = names + columns * (side + GAP) + 0.9, HEAD + len(layers) * (side + TITLE) + names
    figure = Figure(figsize=(width, height))
    colours = colour_map(any(value < 0 for layer in layers for one in layer["maps"] for row in one for value in row))
    for number, layer in enumerate(layers):
        for place in range(len(layer["maps"])):
            left, top = names + place * (side + GAP), HEAD + number * (side + TITLE) + TITLE
            ax = figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))
            draw_head(ax, layer, place, colours)
            title = f"head {place + 1}" if layer["kind"] == "pattern" else "influence"
            ax.set_title(f"layer {number + 1}, {title}", fontsize=8, pad=3)
            name_tokens(ax, tokens, 72 * side / len(tokens), place == 0, number == len(layers) - 1)
    legend(figure.add_axes((1 - 0.75 / width, 1 - (HEAD + TITLE + 1.7) / height, 0.15 / width, 1.7 / height)), colours)
    text = shorten(visible(view["text"]).replace("·", " "), 90 * width)
    meaning = "What each token (row) looks at (column)"
    if any(layer["kind"] == "influence" for layer in layers):
        meaning += "; where there is no pattern, the influence of each token as a share of the row"
    for line, words in enumerate((f"“{text}”", meaning)):
        figure.text(0.15 / width, 1 - (0.25 + 0.2 * line) / height, words, fontsize=9, parse_math=False)
    return to_png(FigureCanvasAgg(figure))


def colour_map(below: bool) -> Any:
    """From no weight to all of it, and where there are weights below zero, down to another colour."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    ends = [BELOW, LIGHT, HEAT] if below else [LIGHT, HEAT]
    return ScalarMappable(Normalize(-1.0 if below else 0.0, 1.0), LinearSegmentedColormap.from_list("heads", ends))


def lifted(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Roots of the weights with their signs, so that weak ones are seen."""
    return [[abs(weight) ** 0.5 * (1 if weight >= 0 else -1) for weight in row] for row in rows]


def draw_head(ax: Any, layer: Mapping[str, Any], place: int, colours: Any) -> None:
    """One head as an image."""
    ax.imshow(lifted(layer["maps"][place]), cmap=colours.cmap, norm=colours.norm, interpolation="nearest")
    for spine in ax.spines.values():
        spine.set_color("#c9ccd1")
    ax.tick_params(length=0, labelsize=6, pad=2)


def name_tokens(ax: Any, tokens: Sequence[str], room: float, left: bool, bottom: bool) -> None:
    """The tokens beside the first head of a layer and below the last layer, if there is room; else their positions."""
    for axis, wanted, turned in ((ax.yaxis, left, 0), (ax.xaxis, bottom, 90)):
        if not wanted:
            axis.set_ticks([])
        elif room >= LEAST:
            axis.set_ticks(range(len(tokens)), tokens)
            for label in axis.get_ticklabels():
                label.set(fontsize=min(7.0, room), rotation=turned, parse_math=False)


def legend(ax: Any, colours: Any) -> None:
    """The bar of colours with the weights they stand for."""
    bar = ax.figure.colorbar(colours, cax=ax)
    weights = (-1.0, -0.25, 0.0, 0.25, 1.0) if colours.norm.vmin < 0 else (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
    bar.set_ticks(lifted([weights])[0], labels=[f"{100 * weight:g} %" for weight in weights], fontsize=7)
    bar.outline.set_visible(False)


def to_png(canvas: Any) -> bytes:
    """The finished picture; letters that the font lacks become boxes without a word."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        canvas.figure.savefig(stream, format="png", dpi=DOTS)
    return stream.getvalue()
