"""The settings of fine-tuning and of pretraining a small encoder: frozen records, checked when they are made. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_type_hints

from attnlab.config import MOST, build, from_text, require, require_seed, setting

BAG_OF_WORDS = "bag-of-words"  # instead of an encoder

Optimizer = Literal["adamw", "sgd", "adagrad", "muon"]
_Batching = Literal["grouped", "random", "fixed"]

# SGD's steps shrink with the gradient and Adagrad's with time, so that both need a larger rate to move as far as AdamW. Muon's
# update of a matrix is as long as AdamW's at about thirty times its rate, at a width of 768.
RATES: dict[str, float] = {"adamw": 5e-5, "sgd": 1e-2, "adagrad": 5e-4, "muon": 1.5e-3}


@dataclass(frozen=True)
class FineTuning:
    """How a pretrained encoder is fine-tuned."""

    optimizer: Optimizer = setting("adamw", "optimizer: adamw, sgd (momentum 0.9), adagrad or muon")
    lr: float = setting(0.0, "peak learning rate; 0: the default of the optimizer")
    batch_size: int = setting(64, "texts per batch")
    epochs: int = setting(10, "passes over the training table; the best is kept")
    max_length: int = setting(512, "maximum tokens per text; longer texts are truncated")
    batching: _Batching = setting("grouped", "batches: grouped (by length), random or fixed")
    weight_decay: float = setting(0.0, "weight decay of matrices")
    warmup: float = setting(0.0, "share of the steps in which the rate rises from zero")
    seed: int = setting(0, "seed of new weights, dropout and order")

    def __post_init__(self) -> None:
        require(self.lr >= 0, f"lr must be positive, or 0 for the optimizer's own, not {self.lr:g}")
        for name, least in (("batch_size", 1), ("epochs", 1), ("max_length", 3)):
            require(getattr(self, name) >= least, f"{name} must be at least {least}, not {getattr(self, name)}")
        require(self.weight_decay >= 0, f"weight_decay must not be negative, but is {self.weight_decay:g}")
        require(0 <= self.warmup < 1, f"warmup must lie in [0, 1), not {self.warmup:g}")
        require_seed(self.seed)

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return self.lr or RATES[self.optimizer]


@dataclass(frozen=True)
class EncoderConfig:
    """A small RoBERTa, and how it is pretrained."""

    n_layer: int = setting(3, "number of layers")
    n_head: int = setting(4, "attention heads per layer")
    n_embd: int = setting(256, "width of the residual stream")
    block_size: int = setting(128, "maximum tokens per text")
    vocab_size: int = setting(8000, "byte-pair tokens, special ones included")
    dropout: float = setting(0.1, "dropout for later fine-tuning; pretraining uses none")
    hidden: float = setting(0.3, "share of masked tokens in training; 15 % in validation")
    epochs: float = setting(5.0, "passes over the corpus")
    minutes: float = setting(0.0, "time limit in minutes; 0: none")
    blocks_per_batch: int = setting(16, "blocks per batch")
    optimizer: Literal["muon", "adamw"] = setting("muon", "optimizer: muon (AdamW for vectors) or adamw")
    lr: float = setting(2e-3, "learning rate of AdamW")
    muon_lr: float = setting(0.02, "learning rate of Muon")
    weight_decay: float = setting(0.01, "weight decay of matrices")
    warmup: float = setting(0.05, "share of the steps in which the rate rises from zero")
    held_out: float = setting(0.02, "share of the texts held out for validation")
    seed: int = setting(0, "seed of weights, order and masks")

    def __post_init__(self) -> None:
        for name in ("n_layer", "n_head", "n_embd", "epochs", "blocks_per_batch", "lr", "muon_lr"):
            require(getattr(self, name) > 0, f"{name} must be above 0, not {getattr(self, name)}")
        require_seed(self.seed)
        for name in ("minutes", "weight_decay"):
            require(getattr(self, name) >= 0, f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("hidden", "held_out"):
            require(0 < getattr(self, name) < 1, f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        for name in ("dropout", "warmup"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1), not {getattr(self, name)}")
        for name, most in MOST.items():
            value = getattr(self, name, 0)
            require(value <= most, f"{name} must be at most {most:,}, not {value}")
        require(self.n_embd % self.n_head == 0, f"n_embd {self.n_embd} must be a multiple of n_head {self.n_head}")
        require(self.block_size >= 8, f"block_size must be at least 8, not {self.block_size}")
        require(self.vocab_size >= 300, f"vocab_size must be at least 300 (all bytes and some), not {self.vocab_size}")


S = TypeVar("S", FineTuning, EncoderConfig)


def from_given(kind: type[S], values: Mapping[str, object]) -> S:
    """Settings from texts or values that were given; None means not given."""
    hints = get_type_hints(kind)
    given = {name: from_text(value, hints.get(name)) for name, value in values.items() if value is not None}
    made: S = build(kind, given, where="settings given")
    return made
