"""Hugging Face: the settings of fine-tuning, classifiers, and exchange of models with transformers.

    from attnlab.hf import FineTuning, fine_tune
    from attnlab.corpora.labelled import read_tables
    outcome = fine_tune("roberta-base", read_tables("train.tsv", "dev.tsv"), FineTuning(epochs=3))

The settings are here, because the command line reads them when it starts. All other names are imported when they are first
used: transformers takes seconds. `import attnlab.exchange` imports transformers and registers attnlab's models and mechanisms
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_type_hints

from attnlab.config import build, check_bounds, from_text, require_seed, setting

_NAMES = {  # by module
    "audited": "Audited audit_transformers",
    "classify": "Classification Epoch LabelledText Outcome Predictions ScoredTable describe_tables fine_tune make_classifier"
    " predict",
    "exchange": "export import_model",
    "checkpoints": "import_checkpoint",
    "layers": "convert_layer",
    "loading": "locate",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["RATES", "FineTuning", *_MODULES]

BAG_OF_WORDS = "bag-of-words"  # instead of an encoder

Optimizer = Literal["adamw", "sgd", "adagrad", "muon"]
_Batching = Literal["grouped", "random", "fixed"]

# SGD's steps shrink with the gradient and Adagrad's with time, so that both need a larger rate to move as far as AdamW. Muon's
# update of a matrix is as long as AdamW's at about thirty times its rate, at a width of 768.
RATES: dict[Optimizer, float] = {"adamw": 5e-5, "sgd": 1e-2, "adagrad": 5e-4, "muon": 1.5e-3}


@dataclass(frozen=True)
class FineTuning:
    """How a pretrained encoder is fine-tuned."""

    optimizer: Optimizer = setting("adamw", "optimizer: adamw, sgd (momentum 0.9), adagrad or muon")
    lr: float = setting(0.0, "peak learning rate; 0: the default of the optimizer", least=0)
    batch_size: int = setting(64, "texts per batch", least=1)
    epochs: int = setting(10, "passes over the training table; the best is kept", least=1)
    max_length: int = setting(512, "maximum tokens per text; longer texts are truncated", least=3)
    batching: _Batching = setting("grouped", "batches: grouped (by length), random or fixed")
    weight_decay: float = setting(0.0, "weight decay of matrices", least=0)
    warmup: float = setting(0.0, "share of the steps in which the rate rises from zero", least=0, below=1)
    seed: int = setting(0, "seed of new weights, dropout and order")

    def __post_init__(self) -> None:
        check_bounds(self, "")
        require_seed(self.seed)

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return self.lr or RATES[self.optimizer]

    @classmethod
    def from_options(cls, values: Mapping[str, object]) -> FineTuning:
        """Settings from texts or values that a user gave; None means not given."""
        hints = get_type_hints(cls)
        typed = {name: from_text(value, hints.get(name)) for name, value in values.items() if value is not None}
        settings: FineTuning = build(cls, typed, where="settings")
        return settings


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attnlab.hf' has no attribute '{name}'")
    return getattr(import_module(f"attnlab.hf.{_MODULES[name]}"), name)
