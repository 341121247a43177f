"""Inspect a model on a text: attention patterns per head, next-token predictions and per-token losses.

    view = look(model, tokenizer, "Hank Aaron was born in")
    view.patterns["blocks.0.attn.hook_pattern"]     # heads, queries, keys

A layer without attention weights over tokens is shown by its influence instead, and labelled so. Text in,
a view out, and from it a picture and a page; knows nothing about folders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab import ops
from attnlab.errors import UserError
from attnlab.inside.taps import capture, eval_mode, influence
from attnlab.lm.model import Block, LanguageModel
from attnlab.lm.tokenizers import MASK, PAD, Tokenizer
from attnlab.report.html import as_html
from attnlab.report.look import Guess, HeadNumbers, LayerMaps, Looked, Reading, document, picture
from attnlab.store.folders import to_json

_SAMPLES = 16  # random directions per influence: a standard deviation of at most 18 %, enough for a colour
_DECIMALS = 4  # of weights on the page


@dataclass(frozen=True)
class Layer:
    """The weights of one layer: its heads' patterns, or one map of influence for all of them."""

    tap: str
    mechanism: str
    kind: Literal["pattern", "influence"]
    maps: Float[Tensor, "H T T"]

    def shares(self) -> Float[Tensor, "H T T"]:
        """The weights to draw: a pattern unchanged, an influence, which has no unit, with rows normalised to sum to 1."""
        if self.kind == "pattern":
            return self.maps
        return self.maps / self.maps.sum(dim=-1, keepdim=True).clamp_min(1e-30)


@dataclass(frozen=True)
class View:
    """What a model does with one text."""

    text: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    next: tuple[Guess, ...]
    read: tuple[Reading, ...]

    @property
    def patterns(self) -> dict[str, Float[Tensor, "H T T"]]:
        """The patterns of all layers that have them, by the names of their taps."""
        return {layer.tap: layer.maps for layer in self.layers if layer.kind == "pattern"}

    @property
    def loss(self) -> float | None:
        """The mean loss in nats per token; None for a single token."""
        losses = [one.loss for one in self.read if one.loss is not None]
        return sum(losses) / len(losses) if losses else None

    def _repr_html_(self) -> str:
        return document(_looked(self))._repr_html_()

    def heads(self) -> list[HeadNumbers]:
        """Statistics of every head."""
        return [
            HeadNumbers(number, place if layer.kind == "pattern" else 0, layer.tap, layer.kind, **head_numbers(weights))
            for number, layer in enumerate(self.layers, start=1)
            for place, weights in enumerate(layer.maps, start=1)
        ]

    def summary(self) -> dict[str, object]:
        """Plain values, ready for JSON; attention is [layer][head][destination][source], an influence has one head."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "loss": self.loss,
            "next": [asdict(one) for one in self.next],
            "read": [asdict(one) for one in self.read],
            "heads": [asdict(one) for one in self.heads()],
            "attention": [_rounded(layer.shares().tolist()) for layer in self.layers],
        }


def look(model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False, top: int = 5) -> View:
    """Run a model on a text and record what it does; a `question` is encoded as in training, followed by `⁇`."""
    refuse_bottleneck(model)
    return look_at(model, tokenizer, encode(tokenizer, text, question, model.config.block_size), text, top=top)


def look_at(model: LanguageModel, tokenizer: Tokenizer, ids: Sequence[int], text: str, *, top: int = 5) -> View:
    """Run a model on the tokens of a text, such as one that it continued, and record what it does."""
    refuse_bottleneck(model)
    batch = torch.tensor([ids], device=model.device)
    with eval_mode(model), torch.no_grad(), capture(model) as seen:
        chances = model(batch)[0].log_softmax(dim=-1)
    return View(
        text=text,
        tokens=tuple(tokenizer.piece(token) for token in ids),
        layers=tuple(_layer_of(model, number, seen) for number in range(model.config.n_layer)),
        next=_guesses(chances[-1], tokenizer, top),
        read=_readings(chances, ids, tokenizer),
    )


def refuse_bottleneck(model: LanguageModel) -> None:
    """Refuse a model whose layers attend to latents, so that patterns are not over tokens."""
    if model.latents is not None:
        raise UserError(
            "this model has a bottleneck, whose layers attend to latents instead of tokens: use attnlab.influence(model, ids)"
        )


def encode(tokenizer: Tokenizer, text: str, question: bool, block_size: int) -> list[int]:
    """Encode a text in which `⁇` and `□` are the special symbols, or raise an error with the fix."""
    if not text.strip():
        raise UserError("the text is empty: write some, such as 'Hank Aaron was born in'")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError("the text is not UTF-8: type it again, or set the terminal to UTF-8")
    ids = tokenizer.opening(text) if tokenizer.words else _encode_with_symbols(tokenizer, text)
    ids += [tokenizer.mask] if question else []
    if len(ids) > block_size:
        raise UserError(f"the text has {len(ids)} tokens, but the model's block holds {block_size}: shorten it")
    return ids


def _encode_with_symbols(tokenizer: Tokenizer, text: str) -> list[int]:
    parts = re.split(f"([{MASK}{PAD}])", text)
    if tokenizer.characters:
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
        plain = part if tokenizer.characters or len(parts) == 1 else part.strip(" ")
        ids += tokenizer.encode(plain) if symbol is None else [symbol]
    return ids


def is_over_tokens(pattern: Tensor, tokens: int) -> bool:
    """Whether a pattern holds weights of tokens on tokens rather than on latents or slots."""
    # Weights over as many slots as there are tokens are recognised by their upper triangle: a model never looks ahead.
    return pattern.shape[-2:] == (tokens, tokens) and not pattern.triu(1).any()


def _layer_of(model: LanguageModel, number: int, seen: dict[str, Tensor]) -> Layer:
    """The pattern of a layer, or its influence if it has no weights over tokens."""
    tap = f"blocks.{number}.attn.hook_pattern"
    names = model.config.mechanisms
    name, tokens = names[number % len(names)], seen["hook_embed"].shape[1]
    if tap in seen and is_over_tokens(seen[tap], tokens):
        return Layer(tap, name, "pattern", seen[tap][0])
    block = model.blocks[number]
    assert isinstance(block, Block)
    given = block.norm1(seen[f"blocks.{number}.hook_resid_pre"])[0]
    return Layer(tap, name, "influence", influence(block.attn, given, samples=_SAMPLES)[None])


def _guesses(chances: Float[Tensor, " V"], tokenizer: Tokenizer, top: int) -> tuple[Guess, ...]:
    """The most likely next tokens; a model may have more output rows than its tokenizer has symbols."""
    values, tokens = chances[: tokenizer.size].exp().topk(min(top, tokenizer.size))
    return tuple(
        Guess(tokenizer.piece(token), value) for value, token in zip(values.tolist(), tokens.tolist(), strict=True)
    )


def _readings(chances: Float[Tensor, "T V"], ids: Sequence[int], tokenizer: Tokenizer) -> tuple[Reading, ...]:
    met: Int[Tensor, " N"] = torch.tensor(ids[1:], dtype=torch.long, device=chances.device)
    losses = ops.token_losses(chances[:-1], met)
    likeliest = chances[:-1, : tokenizer.size].argmax(dim=-1).tolist()
    found = [Reading(tokenizer.piece(ids[0]))]
    for token, loss, best in zip(ids[1:], losses.tolist(), likeliest, strict=True):
        found.append(Reading(tokenizer.piece(token), math.exp(-loss), loss, tokenizer.piece(best)))
    return tuple(found)


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


# Output files


def _looked(view: View, run: str = "", command: str = "") -> Looked:
    """A view as the report shows it."""
    layers = [LayerMaps(one.mechanism, one.kind, _rounded(one.shares().tolist())) for one in view.layers]
    return Looked(run, command, view.text, view.tokens, layers, view.next, view.read, view.heads(), view.loss)


def files(view: View, run: str, command: str) -> dict[str, bytes]:
    """Return the files of a view: page, picture and numbers."""
    shown = _looked(view, run, command)
    return {
        "look.html": as_html(document(shown)).encode("utf-8", errors="replace"),  # a path may hold surrogates
        "patterns.png": picture(shown),
        "result.json": to_json({"run": run, **view.summary()}),
    }


def _rounded(values: Any) -> Any:
    return [_rounded(one) for one in values] if isinstance(values, list) else round(values, _DECIMALS)


# Exports for bertviz and circuitsvis


def attentions_of(
    model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False
) -> tuple[list[str], tuple[Float[Tensor, "1 H T T"], ...]]:
    """Return the tokens of a text and the attention per layer, as bertviz's head_view and model_view expect them.

    A layer without weights over tokens shows its normalised influence in every head.
    """
    view = look(model, tokenizer, text, question=question)
    heads = model.config.n_head
    return list(view.tokens), tuple(layer.shares().expand(heads, -1, -1)[None] for layer in view.layers)


def circuits_of(
    model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False
) -> tuple[list[str], list[Float[Tensor, "H T T"]]]:
    """Return the same for circuitsvis: tokens, and per layer [heads, destination, source]."""
    tokens, layers = attentions_of(model, tokenizer, text, question=question)
    return tokens, [layer[0] for layer in layers]
