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

Vector = list[float]


@dataclass(frozen=True)
class Point:
    """The residual stream at a tap, and what the model would predict if it ended there (the logit lens)."""

    tap: str
    values: Vector
    guesses: list[tuple[str, float]]
    final: float  # probability of the token that the whole model predicts


@dataclass(frozen=True)
class LayerTrace:
    """One layer at the followed token, by head; what a mechanism does not have is empty.

    Keys and values are those of the tokens in `rows`, which have the largest weights. Products are query·key / √width.
    """

    mechanism: str
    kind: Literal["pattern", "influence", "state"]
    weights: list[Vector]
    products: list[Vector]
    queries: list[Vector]
    rows: list[list[int]]
    keys: list[list[Vector]]
    values: list[list[Vector]]
    outputs: list[Vector]
    softmax: bool  # whether the weights are the softmax of the products
    averages: bool  # whether the outputs are the averages of the values by the weights
    attention: Vector
    hidden: Vector
    mlp: Vector


@dataclass(frozen=True)
class Trace:
    """All steps from a text, of which the first tokens were `given`, to the prediction after the followed `token`."""

    tokens: list[str]
    ids: list[int]
    given: int
    token: int
    embeddings: list[Vector]  # of the last tokens up to the followed one
    position: Vector  # what is added for the position, if anything
    points: list[Point]  # after the embedding, and in every layer after attention and, if there is one, after the MLP
    layers: list[LayerTrace]
    scores: Vector  # logits of the last point's guesses
