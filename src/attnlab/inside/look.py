"""Inspect a model on a text: attention patterns per head, next-token predictions and per-token losses.

    view = look(model, tokenizer, "Hank Aaron was born in")
    view.patterns["blocks.0.attn.hook_pattern"]     # heads, queries, keys

A layer without attention weights over tokens is shown by its influence instead, and labelled so. Text in,
a view out, and from it a page and a picture; knows nothing about folders.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from msgspec import structs
from torch import Tensor

from attnlab import ops
from attnlab.errors import UserError
from attnlab.inside.taps import capture, eval_mode, influence
from attnlab.lm.model import Block, LanguageModel
from attnlab.lm.tokenizers import MASK, PAD, Tokenizer
from attnlab.pictures import picture_bytes
from attnlab.report import document as blocks
from attnlab.report.charts import shorten
from attnlab.report.document import Cell, Column, Document, Section, Text
from attnlab.report.html import as_html, first_head
from attnlab.report.parts import cell, folded, strongest, text_column
from attnlab.report.words import NOTHING, legend, percent, plural, quoted, visible
from attnlab.store.records import encode as to_json

_MOST = 512  # tokens of a text longer than the block: patterns grow with their square
_SAMPLES = 16  # random directions per influence: a standard deviation of at most 18 %, enough for a colour
_DECIMALS = 4  # of weights in files
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
class Layer:
    """The weights of one layer: its heads' patterns, what their states hold, or one map of influence for all of them."""

    tap: str
    mechanism: str
    kind: Literal["pattern", "influence", "state"]
    maps: Float[Tensor, "H T T"]

    def shares(self) -> Float[Tensor, "H T T"]:
        """The weights to draw: unchanged, or for an influence, which has no unit, with rows normalised to sum to 1."""
        if self.kind != "influence":
            return self.maps
        return self.maps / self.maps.sum(dim=-1, keepdim=True).clamp_min(1e-30)

    def rounded(self) -> list[list[list[float]]]:
        """The same as numbers for files and pages: by head, row and column."""
        return [[[round(weight, _DECIMALS) for weight in row] for row in head] for head in self.shares().tolist()]


@dataclass(frozen=True)
class View:
    """What a model does with one text."""

    text: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    next: tuple[Guess, ...]
    read: tuple[Reading, ...]
    states: tuple[Layer, ...] = ()  # of recurrent layers: what each state returns for the key of every token

    @property
    def patterns(self) -> dict[str, Float[Tensor, "H T T"]]:
        """The patterns of all layers that have them, by the names of their taps."""
        return {layer.tap: layer.maps for layer in self.layers if layer.kind == "pattern"}

    @property
    def loss(self) -> float | None:
        """The mean loss in nats per token; None for a single token."""
        losses = [token.loss for token in self.read if token.loss is not None]
        return sum(losses) / len(losses) if losses else None

    @property
    def legend(self) -> str:
        """What the symbols in its tokens stand for."""
        return legend(*map(visible, (*self.tokens, *(guess.token for guess in self.next))))

    def heads(self) -> list[HeadNumbers]:
        """Statistics of every head."""
        return [
            HeadNumbers(number, place if layer.kind == "pattern" else 0, layer.tap, layer.kind, **head_numbers(weights))
            for number, layer in enumerate(self.layers, start=1)
            for place, weights in enumerate(layer.maps, start=1)
        ]

    def record(self) -> LookRecord:
        """Everything in numbers, ready for JSON."""
        attention = [layer.rounded() for layer in self.layers]
        states = {layer.tap: layer.rounded() for layer in self.states}
        return LookRecord(self.text, self.tokens, self.loss, self.next, self.read, self.heads(), attention, states)

    def document(self, run: str = "", command: str = "") -> Document:
        """The page."""
        names = [layer.mechanism.rpartition("/")[2] for layer in self.layers]
        about = (
            f"The model of {run} has {plural(len(names), 'layer')} ({', '.join(dict.fromkeys(names))}). The text is"
            f" {plural(len(self.tokens), 'token')}. {self.legend}"
        )
        python = (
            'In Python the same weights are capture(model)["blocks.0.attn.hook_pattern"] for layer 1, [0, 0] of it for the'
            " first text and head 1; patch changes them during the forward pass."
        )
        return Document(
            kind="look",
            title="Inside a model as it reads",
            lead=[f"“{self.text}”"],
            sections=[
                Section("What it expects next", [_expectation_chart(self)]),
                *_heads_section(self, names),
                _surprise_section(self),
                Section("Reproduce", [blocks.Code(command), Text([python])]),
            ],
            notices=no_pattern(
                [number for number, layer in enumerate(self.layers, start=1) if layer.kind != "pattern"],
                ". Shown instead is its influence: how strongly its output at one token (row) changes with its input at"
                " another (column), as a share of the row; see docs/looking.md.",
            ),
            about=about,
            footer="All heads are in patterns.png, the numbers in result.json.",
        )

    def files(self, run: str, command: str) -> dict[str, bytes]:
        """The page, the picture and the numbers, as files."""
        return look_files(run, self.document(run, command), "patterns.png", _picture(self), self.record())

    def _repr_html_(self) -> str:
        return self.document()._repr_html_()


@dataclass(frozen=True)
class LookRecord:
    """A view in numbers; attention is [layer][head][destination][source], and an influence has one head.

    States are [head][key][value], by the names of their taps.
    """

    text: str
    tokens: tuple[str, ...]
    loss: float | None
    next: tuple[Guess, ...]
    read: tuple[Reading, ...]
    heads: list[HeadNumbers]
    attention: list[list[list[list[float]]]]
    states: dict[str, list[list[list[float]]]]


def look(model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False, top: int = 5) -> View:
    """Run a model on a text and record what it does; a `question` is encoded as in training, followed by `⁇`."""
    return look_at(model, tokenizer, encode_to_show(model, tokenizer, text, question), text, top=top)


def look_at(model: LanguageModel, tokenizer: Tokenizer, ids: Sequence[int], text: str, *, top: int = 5) -> View:
    """Run a model on the tokens of a text, such as one that it continued, and record what it does."""
    refuse_bottleneck(model)
    batch = torch.tensor([ids], device=model.device)
    with eval_mode(model), torch.no_grad(), capture(model) as seen:
        chances = model(batch)[0].log_softmax(dim=-1)
    return View(
        text=text,
        tokens=tuple(tokenizer.piece(token) for token in ids),
        layers=tuple(layer_of(model, number, seen) for number in range(model.config.n_layer)),
        next=guesses_of(chances[-1], tokenizer, top),
        read=_readings(chances, ids, tokenizer),
        states=tuple(
            Layer(tap, model.config.mechanisms[number % len(model.config.mechanisms)], "state", seen[tap][0])
            for number in range(model.config.n_layer)
            if (tap := f"blocks.{number}.attn.hook_state") in seen
        ),
    )


def refuse_bottleneck(model: LanguageModel) -> None:
    """Refuse a model whose layers attend to latents, so that patterns are not over tokens."""
    if model.latents is not None:
        raise UserError(
            "this model has a bottleneck, whose layers attend to latents instead of tokens: use attnlab.influence(model, ids)"
        )


def encode(tokenizer: Tokenizer, text: str, question: bool, longest: int) -> list[int]:
    """Encode a text in which `⁇` and `□` are the special symbols, or raise an error with the fix."""
    if not text.strip():
        raise UserError("the text is empty: write some, such as 'Hank Aaron was born in'")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError("the text is not UTF-8: type it again, or set the terminal to UTF-8")
    ids = tokenizer.opening(text) if tokenizer.words else _encode_with_symbols(tokenizer, text)
    ids += [tokenizer.mask] if question else []
    if len(ids) > longest:
        raise UserError(f"the text has {len(ids)} tokens, but the model's block holds {longest}: shorten it")
    return ids


def encode_to_show(model: LanguageModel, tokenizer: Tokenizer, text: str, question: bool) -> list[int]:
    """Encode a text whose patterns, of every token on every token, are kept and shown."""
    ids, most = encode(tokenizer, text, question, model.longest), max(model.config.block_size, _MOST)
    if len(ids) > most:
        raise UserError(f"the text has {len(ids)} tokens, and patterns are shown for up to {most}: shorten it")
    return ids


def _encode_with_symbols(tokenizer: Tokenizer, text: str) -> list[int]:
    parts = re.split(f"([{MASK}{PAD}])", text)
    if tokenizer.kind == "char":
        known = tokenizer.backend.get_vocab()
        strange = sorted({letter for letter in text if letter not in known})
        if strange:
            raise UserError(
                f"this model has no symbol for {' '.join(map(repr, strange[:5]))}: leave it out, or write {MASK} for it"
            )
    ids: list[int] = []
    for part in parts:
        symbol = {MASK: tokenizer.mask, PAD: tokenizer.pad}.get(part)
        # Pieces contain their own space, so the spaces beside a symbol are only for readability.
        plain = part if tokenizer.kind == "char" or len(parts) == 1 else part.strip(" ")
        ids += tokenizer.encode(plain) if symbol is None else [symbol]
    return ids


def is_over_tokens(pattern: Tensor, tokens: int) -> bool:
    """Whether a pattern holds weights of tokens on tokens rather than on latents or slots."""
    # Weights over as many slots as there are tokens are recognised by their upper triangle: a model never looks ahead.
    return pattern.shape[-2:] == (tokens, tokens) and not pattern.triu(1).any()


def layer_of(model: LanguageModel, number: int, seen: dict[str, Tensor]) -> Layer:
    """The pattern of a layer, or its influence if it has no weights over tokens."""
    tap = f"blocks.{number}.attn.hook_pattern"
    names = model.config.mechanisms
    name, tokens = names[number % len(names)], seen["hook_embed"].shape[1]
    if tap in seen and is_over_tokens(seen[tap], tokens):
        return Layer(tap, name, "pattern", seen[tap][0])
    block = model.blocks[number]
    assert isinstance(block, Block)
    inputs = block.normed(seen[f"blocks.{number}.hook_resid_pre"])[0]
    return Layer(tap, name, "influence", influence(block.attn, inputs, samples=_SAMPLES)[None])


def guesses_of(chances: Float[Tensor, " V"], tokenizer: Tokenizer, top: int) -> tuple[Guess, ...]:
    """The most likely next tokens; a model may have more output rows than its tokenizer has symbols."""
    values, tokens = chances[: tokenizer.size].exp().topk(min(top, tokenizer.size))
    return tuple(
        Guess(tokenizer.piece(token), value) for value, token in zip(values.tolist(), tokens.tolist(), strict=True)
    )


def _readings(chances: Float[Tensor, "T V"], ids: Sequence[int], tokenizer: Tokenizer) -> tuple[Reading, ...]:
    following: Int[Tensor, " N"] = torch.tensor(ids[1:], dtype=torch.long, device=chances.device)
    losses = ops.token_losses(chances[:-1], following)
    likeliest = chances[:-1, : tokenizer.size].argmax(dim=-1).tolist()
    readings = [Reading(tokenizer.piece(ids[0]))]
    for token, loss, best in zip(ids[1:], losses.tolist(), likeliest, strict=True):
        readings.append(Reading(tokenizer.piece(token), math.exp(-loss), loss, tokenizer.piece(best)))
    return tuple(readings)


def row_shares(weights: Float[Tensor, "*B T T"]) -> Float[Tensor, "*B T T"]:
    """Rows made absolute and normalised to sum to 1: some mechanisms have negative weights, or sums below 1."""
    rows = weights.double().abs()
    return rows / rows.sum(dim=-1, keepdim=True).clamp_min(1e-30)


def head_numbers(weights: Float[Tensor, "T T"]) -> dict[str, float]:
    """Entropy, spread, distance and weight on the first token, averaged over rows except the first."""
    rows = row_shares(weights.cpu())
    places = torch.arange(len(rows))
    entropy = torch.special.entr(rows).sum(dim=-1)
    distance = (rows * (places[:, None] - places).abs()).sum(dim=-1)
    kept = slice(1 if len(rows) > 1 else 0, None)
    return {
        "entropy": entropy[kept].mean().item(),
        "spread": entropy[kept].exp().mean().item(),
        "distance": distance[kept].mean().item(),
        "first": rows[kept, 0].mean().item(),
    }


def attentions_of(
    model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False
) -> tuple[list[str], tuple[Float[Tensor, "1 H T T"], ...]]:
    """Return the tokens of a text and the attention per layer, as bertviz's head_view and model_view expect them.

    circuitsvis expects the same without the first dimension. A layer without weights over tokens shows its normalised
    influence in every head.
    """
    view = look(model, tokenizer, text, question=question)
    heads = model.config.n_head
    return list(view.tokens), tuple(layer.shares().expand(heads, -1, -1)[None] for layer in view.layers)


# The page


def _heads_of(view: View) -> Iterator[blocks.Head]:
    """Every map, with a sentence on its last row."""
    for number, layer in enumerate(view.layers, start=1):
        readable = layer.kind == "pattern"
        title, verb = ("", "looks at") if readable else ("all heads together", "is moved by")
        for place, pattern in enumerate(layer.rounded(), start=1):
            column = strongest(pattern[-1])
            most = f"{quoted(view.tokens[column])} ({percent(pattern[-1][column])})"
            what = f"looks most at {most}" if readable else f"depends most on {most}, by its influence"
            yield blocks.Head(number, place, pattern, f"At the last token it {what}.", title, verb)


def _expectation_chart(view: View) -> blocks.Chart:
    marks = [
        blocks.Mark(quoted(guess.token), 100 * guess.probability, percent(guess.probability)) for guess in view.next
    ]
    label = "Bar chart of the likeliest next tokens. " + "; ".join(f"{mark.name} {mark.text}" for mark in marks)
    title = f"The likeliest tokens after {quoted(view.tokens[-1])}"
    return blocks.Chart("bars", title, label, blocks.Axis("probability", "%"), marks=marks)


def _heads_section(view: View, mechanisms: Sequence[str]) -> list[Section]:
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
    states = (
        "A recurrent layer keeps no tokens, only a state per head. In its picture each row reads the state after the text with"
        " the key of one token: a weight of 100 % on the diagonal means that the value of that token comes back, 0 % that it"
        " was forgotten or overwritten. The other cells of the row are values of other tokens that are mixed in."
    )
    named = [*mechanisms, *(layer.mechanism for layer in view.states)]
    notes = dict(enumerate(named, start=1)) if len(set(mechanisms)) > 1 else None
    size = min(_LARGEST, max(_SMALLEST, _ROOM / len(tokens)))
    viewer = blocks.Heads(tokens, heads, len(tokens) - 1, size, notes, strip=True)
    viewer = structs.replace(viewer, heads=[*heads, *_states_of(view)], chosen=heads.index(first_head(viewer)))
    paragraphs = [*([words] if readable else []), *([states] if view.states else [])]
    return blocks.section("Where it looks", Text(paragraphs) if paragraphs else None, viewer)


def _states_of(view: View) -> Iterator[blocks.Head]:
    """What the state of every recurrent head still holds, as further rows of pictures."""
    for row, layer in enumerate(view.states, start=len(view.layers) + 1):
        number = int(layer.tap.split(".")[1]) + 1
        for place, held in enumerate(layer.rounded(), start=1):
            kept = sum(weights[token] >= 0.5 for token, weights in enumerate(held))
            sentence = (
                f"After the text it returns at least half of the value of {kept} of {plural(len(held), 'token')}."
            )
            yield blocks.Head(row, place, held, sentence, verb="returns", group=f"state of layer {number}")


def _surprise_section(view: View) -> Section:
    if view.loss is None:
        return Section("What surprised it", [Text(["One token: there was nothing before it to expect it from."])])
    words = (
        "The stronger the colour, the less the model expected a token from those before it; nothing expects the first. The mean"
        f" loss is {view.loss:.2f} nats per token. A model learns to expect only what its task asks for: where it is taught"
        " answers alone, a question may surprise it throughout."
    )
    rows, notes = [], []
    for place, token in enumerate(view.read):
        cells = [cell(token.probability, "share"), Cell(NOTHING), Cell(NOTHING)]
        if token.loss is not None:
            cells[1:] = [Cell(f"{token.loss:.2f}", token.loss), Cell(quoted(token.expected or ""))]
        notes.append(f"{cells[0].text}; it expected {cells[2].text}" if token.loss is not None else "")
        rows.append(blocks.Row(Cell(str(place), place), [Cell(quoted(token.token)), *cells]))
    titles = [Column("Position"), text_column("Token"), Column("Probability"), Column("Loss")]
    caption = "Loss is the negative logarithm of the probability, in nats."
    table = blocks.Table("By token", caption, [*titles, text_column("Expected most")], rows)
    shares = [min(1.0, (token.loss or 0.0) / _SURPRISED) for token in view.read]
    tokens = blocks.Tokens([visible(token.token) for token in view.read], shares, notes)
    return Section("What surprised it", [Text([words]), tokens, folded("By token", table)])


def look_files(run: str, document: Document, name: str, picture: bytes, record: object) -> dict[str, bytes]:
    """The files of a look: its page, a picture under some name, and its record."""
    page = as_html(document).encode("utf-8", errors="replace")  # a path may hold surrogates
    return {"look.html": page, name: picture, "result.json": to_json({"run": run, **vars(record)})}


def heat_picture(heat: blocks.HeatMap, *title: str) -> bytes:
    """A heat map of numbers of either sign, as a picture."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    size = max(5.0, 0.85 * len(heat.columns) + 2.0), 1.7 + 0.35 * len(heat.rows)
    figure = Figure(figsize=size, layout="constrained")
    ax = figure.subplots()
    colours = LinearSegmentedColormap.from_list("heat", COLOURS)
    ax.imshow(heat.values, cmap=colours, vmin=-heat.high, vmax=heat.high, aspect="auto", interpolation="nearest")
    for row, values in enumerate(heat.values):
        for column, value in enumerate(values):
            text = NOTHING if math.isnan(value) else f"{value:,g}".replace("-", "−")
            colour = "white" if abs(value) > 0.55 * heat.high else "#222222"
            ax.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    ax.set_xticks(range(len(heat.columns)), heat.columns, fontsize=8)
    ax.set_yticks(range(len(heat.rows)), heat.rows, fontsize=8)
    ax.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.spines[:].set_color("#c9ccd1")
    ax.set_title("\n".join(shorten(line, 700) for line in title), fontsize=9, parse_math=False)
    return picture_bytes(figure)


def no_pattern(layers: Sequence[int], words: str) -> list[blocks.Notice]:
    """A notice about layers without weights over tokens, if there are any."""
    if not layers:
        return []
    which = f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"
    return [blocks.Notice(f"No pattern in {which}.", f"The mechanism there has no weights over tokens{words}")]


# The picture, without any global state of matplotlib

COLOURS = ("#c04f00", "#ffffff", "#00477a")  # of weights of -1, 0 and 1
_WIDEST = 20.0  # inches that the heads may take
_GAP, _TITLE = 0.12, 0.3  # inches between heads, and above each for its name
_LETTER = 0.075  # inches per letter of a token
_LEAST = 4.0  # points of height that a token's name needs
_TOP, _RIGHT = 0.55, 0.9  # inches for the text, and for the legend


def _picture(view: View) -> bytes:
    """All heads with a legend; tokens are named beside the first heads and below the last, or numbered."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import FuncNorm, LinearSegmentedColormap
    from matplotlib.figure import Figure

    layers, tokens = view.layers, [shorten(visible(token), 100) for token in view.tokens]
    signed = any(bool((layer.maps < 0).any()) for layer in layers)
    # Square roots with their signs, so that weak weights are visible.
    roots = (lambda weight: np.sign(weight) * abs(weight) ** 0.5), (lambda root: root * abs(root))
    norm = FuncNorm(roots, -1.0 if signed else 0.0, 1.0)
    colours = ScalarMappable(norm, LinearSegmentedColormap.from_list("weights", COLOURS[0 if signed else 1 :]))
    across = max(len(layer.maps) for layer in layers)
    side = min(max(1.7, 0.09 * len(tokens)), 4.0, _WIDEST / across)
    names = _LETTER * max(map(len, tokens)) + 0.2  # inches
    width = names + across * (side + _GAP) - _GAP + _RIGHT
    height = _TOP + len(layers) * (side + _TITLE) + names
    figure = Figure(figsize=(width, height))
    inner = {"left": names / width, "right": 1 - _RIGHT / width, "wspace": _GAP / side, "hspace": _TITLE / side}
    edges = {"bottom": names / height, "top": 1 - (_TOP + _TITLE) / height}
    for number, axes in enumerate(figure.subplots(len(layers), across, squeeze=False, gridspec_kw=inner | edges)):
        maps = layers[number].shares().cpu().numpy()
        for place, ax in enumerate(axes):
            if place >= len(maps):
                ax.remove()
                continue
            ax.imshow(maps[place], cmap=colours.cmap, norm=norm, interpolation="nearest")
            ax.spines[:].set_color("#c9ccd1")
            ax.tick_params(length=0, labelsize=6, pad=2)
            title = f"head {place + 1}" if layers[number].kind == "pattern" else "influence"
            ax.set_title(f"layer {number + 1}, {title}", fontsize=8, pad=3)
            size = min(7.0, 72 * side / len(tokens))
            for axis, named, turn in ((ax.yaxis, place == 0, 0), (ax.xaxis, number == len(layers) - 1, 90)):
                if not named:
                    axis.set_ticks([])
                elif size >= _LEAST:
                    axis.set_ticks(range(len(tokens)), tokens, fontsize=size, rotation=turn, parse_math=False)
    legend = figure.add_axes((1 - 0.75 / width, 1 - (_TOP + _TITLE + 1.7) / height, 0.15 / width, 1.7 / height))
    bar = figure.colorbar(colours, cax=legend)
    weights = (-1.0, -0.25, 0.0, 0.25, 1.0) if signed else (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
    bar.set_ticks(weights, labels=[f"{100 * weight:g} %" for weight in weights], fontsize=7)
    bar.outline.set_visible(False)
    meaning = "What each token (row) looks at (column)"
    if any(layer.kind == "influence" for layer in layers):
        meaning += "; where there is no pattern, the influence of each token as a share of the row"
    text = shorten(visible(view.text).replace("·", " "), 90 * width)
    heading = f"“{text}”\n{meaning}"
    figure.text(0.15 / width, 1 - 0.1 / height, heading, fontsize=9, va="top", parse_math=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # letters that the font lacks become boxes
        return picture_bytes(figure)
