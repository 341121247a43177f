"""Where a model looks, in the shapes that other programs draw: bertviz and circuitsvis.

attnlab's own page is `attnlab look`; this hands the same patterns on.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from attnlab.look import look, rounded
from attnlab.model import LanguageModel
from attnlab.tokenizers import Tokenizer


def attentions_of(
    model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False
) -> tuple[list[str], tuple[Float[Tensor, "1 H T T"], ...]]:
    """The tokens of a text and where every head looks, layer by layer: what bertviz's head_view and model_view take.

    A layer without weights over tokens shows its influence, in shares of a row, in every head.
    """
    view = look(model, tokenizer, text, question=question)
    heads = model.config.n_head
    return list(view.tokens), tuple(layer.shares().expand(heads, -1, -1)[None] for layer in view.layers)


def circuits_of(
    model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False
) -> tuple[list[str], list[Float[Tensor, "H T T"]]]:
    """The same as circuitsvis takes it: tokens, and for every layer [heads, destination, source]."""
    tokens, layers = attentions_of(model, tokenizer, text, question=question)
    return tokens, [layer[0] for layer in layers]


def as_json(model: LanguageModel, tokenizer: Tokenizer, text: str, *, question: bool = False) -> dict[str, Any]:
    """The same as plain values: tokens, and attention as [layer][head][destination][source]."""
    tokens, layers = circuits_of(model, tokenizer, text, question=question)
    return {"tokens": tokens, "attention": [rounded(layer.tolist()) for layer in layers]}
