"""Looking into a trained model: taps, attention patterns, scores of heads, and changes of activations.

The functions are in the modules. Here are the records of attnlab.inside.ablation (what can be changed, and what comes of it)
and of attnlab.inside.trace. The page's server reads and writes them, so this file must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TapName = Literal["z", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post"]
TAPS: dict[TapName, str] = {  # the activations of a layer that can be replaced, and the end of the tap's name
    "z": "attn.hook_z",
    "attn_out": "hook_attn_out",
    "mlp_out": "hook_mlp_out",
    "resid_pre": "hook_resid_pre",
    "resid_mid": "hook_resid_mid",
    "resid_post": "hook_resid_post",
}


@dataclass(frozen=True)
class Intervention:
    """A change of one activation, by default of a head's output `z`; layers, heads and tokens count from 0.

    `head` and `position` None mean all heads and all tokens. The new value is zero, the mean over the tokens of the text, or
    the value at the same token of the `other` text.
    """

    layer: int
    tap: TapName = "z"
    head: int | None = None
    position: int | None = None
    by: Literal["zero", "mean", "text"] = "zero"
    other: str = ""

    @property
    def name(self) -> str:
        """The name of the tap."""
        return f"blocks.{self.layer}.{TAPS[self.tap]}"


@dataclass(frozen=True)
class Alternative:
    """An answer or next token with its probability without and with the changes; None if it was not among the likeliest."""

    answer: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Ablation:
    """What a model says without and with changes: `answer` was the likeliest before, `then` is the likeliest after."""

    answer: str
    before: float
    after: float | None
    then: str
    written_before: str
    written_after: str
    rows: tuple[Alternative, ...]


@dataclass(frozen=True)
class HeadEffect:
    """The probability of the model's own answer with one head switched off.

    Layer and head are None for the unchanged model; the probability is None where a mechanism has no heads to switch off.
    """

    layer: int | None
    head: int | None
    probability: float | None


# Of attnlab.inside.trace

Numbers = list[float]  # a vector


@dataclass(frozen=True)
class Point:
    """The residual stream at one place, and what the model would predict if it ended there (the logit lens)."""

    after: str
    values: Numbers
    guesses: list[tuple[str, float]]
    final: float  # probability of the token that the whole model predicts


@dataclass(frozen=True)
class HeadTrace:
    """One head at the followed token; `rows` are the tokens whose keys and values are kept, by position.

    Products are query·key / √width. What a mechanism does not have is empty.
    """

    weights: Numbers
    rows: list[int]
    products: Numbers
    query: Numbers
    keys: list[Numbers]
    values: list[Numbers]
    output: Numbers


@dataclass(frozen=True)
class LayerTrace:
    """One layer; `softmax` and `averages` say whether weights and outputs of its heads are just that, as measured."""

    mechanism: str
    kind: Literal["pattern", "influence", "state"]
    heads: list[HeadTrace]
    softmax: bool
    averages: bool
    attention: Numbers
    hidden: Numbers  # of the MLP, after the activation
    mlp: Numbers


@dataclass(frozen=True)
class Trace:
    """All steps from a text to the prediction after one of its tokens; the text is the `given` tokens and what was written.

    The points are after the embedding, and in every layer after attention and, if there is one, after the MLP.
    """

    tokens: list[str]
    ids: list[int]
    given: int
    token: int  # the position that is followed
    embeddings: list[Numbers]  # of the last tokens up to the followed one
    position: Numbers  # what is added for the position, if anything
    points: list[Point]
    layers: list[LayerTrace]
    scores: Numbers  # logits of the last point's guesses
