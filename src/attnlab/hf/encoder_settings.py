"""The settings of a small encoder and of its pretraining. Knows nothing of torch, transformers or files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnlab.config import MOST, require, require_seed, setting


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
