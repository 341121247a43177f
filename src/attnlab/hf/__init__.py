"""Hugging Face: classifiers, and exchange of models with transformers.

    from attnlab.hf import FineTuning, fine_tune
    from attnlab.corpora.labelled import read_tables
    outcome = fine_tune("roberta-base", read_tables("train.tsv", "dev.tsv"), FineTuning(epochs=3))

Each name is imported when it is first used: the command line reads the settings when it starts, and transformers takes seconds.
`import attnlab.exchange` imports transformers and registers attnlab's models and mechanisms with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnlab.hf.classify import (
        Classification,
        Epoch,
        Outcome,
        ScoredTable,
        describe_tables,
        fine_tune,
        make_classifier,
    )
    from attnlab.hf.exchange import export, import_model
    from attnlab.hf.loading import locate
    from attnlab.hf.predicting import LabelledText, Predictions, predict
    from attnlab.hf.settings import RATES, FineTuning

__all__ = [
    "RATES",
    "Classification",
    "Epoch",
    "FineTuning",
    "LabelledText",
    "Outcome",
    "Predictions",
    "ScoredTable",
    "describe_tables",
    "export",
    "fine_tune",
    "import_model",
    "locate",
    "make_classifier",
    "predict",
]
_MODULES = {
    "settings": ("RATES", "FineTuning"),
    "classify": (
        "Classification",
        "Epoch",
        "Outcome",
        "ScoredTable",
        "describe_tables",
        "fine_tune",
        "make_classifier",
    ),
    "exchange": ("export", "import_model"),
    "loading": ("locate",),
    "predicting": ("LabelledText", "Predictions", "predict"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"attnlab.hf.{module}"), name)
    raise AttributeError(f"module 'attnlab.hf' has no attribute '{name}'")
