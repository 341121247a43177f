"""The settings of a fine-tuning: one frozen record, strict, the same for a single run, a comparison and a search. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnlab.config import build, from_text, require, require_seed, setting, type_hints

BAG_OF_WORDS = "bag-of-words"  # instead of an encoder

Optimizer = Literal["adamw", "sgd", "adagrad", "muon"]
Batching = Literal["grouped", "random", "fixed"]

# SGD's steps shrink with the gradient and Adagrad's with time, so both need a larger number to move as far as AdamW; Muon's
# update of a matrix has the length of AdamW's at about thirty times its rate, at a width of 768.
RATES: dict[str, float] = {"adamw": 5e-5, "sgd": 1e-2, "adagrad": 5e-4, "muon": 1.5e-3}


@dataclass(frozen=True)
class FineTuning:
    """How a pretrained encoder is fine-tuned."""

    optimizer: Optimizer = setting(
        "adamw", "adamw, sgd (momentum 0.9), adagrad, or muon for matrices with adamw beside it"
    )
    lr: float = setting(
        0.0, f"peak learning rate; 0: {', '.join(f'{rate:g} for {name}' for name, rate in RATES.items())}"
    )
    batch_size: int = setting(64, "texts in a batch")
    epochs: int = setting(10, "passes over the training table; the best on validation is kept")
    max_length: int = setting(512, "longest text in tokens, special tokens included; what is beyond is cut off")
    batching: Batching = setting(
        "grouped", "texts of similar length in a batch; random: any; fixed: any, and all padded to max_length"
    )
    weight_decay: float = setting(0.0, "weight decay of matrices")
    warmup: float = setting(0.0, "share of the run in which the rate rises from zero; then it falls to zero in a line")
    seed: int = setting(0, "seed of the new weights, of dropout and of the order")

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


def from_given(values: Mapping[str, Any]) -> FineTuning:
    """Settings from what was given by hand, as texts or as values; None is not given."""
    hints = type_hints(FineTuning)
    given = {name: from_text(value, hints.get(name)) for name, value in values.items() if value is not None}
    return build(FineTuning, given, where="settings given")
