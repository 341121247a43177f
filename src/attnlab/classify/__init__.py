"""Texts into classes: fine-tuning of any transformers encoder, and a bag-of-words baseline beside it.

    from attnlab.classify import FineTuning, fine_tune
    from attnlab.corpora.labelled import read_tables
    outcome = fine_tune("roberta-base", read_tables("train.tsv", "dev.tsv"), FineTuning(epochs=3))

    settings     how it is fine-tuned
    models       tokenizer and model by name
    optimizers   AdamW, SGD, Adagrad, Muon
    loading      tables as datasets, datasets as batches (imported late)
    trainer      transformers' Trainer, and what is written down as it goes (imported late)
    bag          the baseline: words, pairs of words, logistic regression
    batches      what tokenizer and loader make of texts, counted
    outcome      what came out: per text, per epoch
    results      the same as plain data for reports
    stage        all of it, into a folder

Names are imported when they are first used, since the command line reads the settings when it starts; transformers is imported
when something is trained, and not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.classify.outcome import Epoch, Outcome, Scored, Trial
    from attnlab.classify.results import describe_tables, make_result
    from attnlab.classify.settings import RATES, FineTuning
    from attnlab.classify.stage import fine_tune, make_classifier

_HOMES = {
    "Epoch": "outcome",
    "Outcome": "outcome",
    "Scored": "outcome",
    "Trial": "outcome",
    "describe_tables": "results",
    "make_result": "results",
    "RATES": "settings",
    "FineTuning": "settings",
    "fine_tune": "stage",
    "make_classifier": "stage",
}

__all__ = [
    "RATES",
    "Epoch",
    "FineTuning",
    "Outcome",
    "Scored",
    "Trial",
    "describe_tables",
    "fine_tune",
    "make_classifier",
    "make_result",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnlab.classify' has no attribute '{name}'")
    return getattr(import_module(f"attnlab.classify.{_HOMES[name]}"), name)
