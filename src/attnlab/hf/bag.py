"""The baseline: tf-idf of words and pairs of words, logistic regression over them (scikit-learn).

It knows no word order beyond pairs, is not pretrained, and trains in seconds: an encoder is worth what it adds to this. The
regularisation strength is chosen by cross-validation within the training table, so that the baseline has not seen the
validation table. Stored as numbers and a list of words, never as code. Imports scikit-learn, and is therefore imported late.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from attnlab.corpora.labelled import Tables
from attnlab.errors import CheckpointError, DataError
from attnlab.hf import FineTuning
from attnlab.hf.classify import ModelFacts, Outcome, ScoredTable
from attnlab.lm.progress import Show
from attnlab.store.folders import read_bytes, read_json, reporting_damage, to_json, write_bytes

_STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # the inverse of the penalty on large weights
_FOLDS = 5
_MOST_ROUNDS = 1000
_WORDS = {"ngram_range": (1, 2), "sublinear_tf": True, "token_pattern": r"(?u)\b\w+\b|[^\w\s]"}


class Bag:
    """A fitted baseline: words, their rarity, and the weights of the labels."""

    def __init__(self, labels: list[str], words: list[str], rarity: Any, weights: Any, offsets: Any) -> None:
        self.labels, self.words, self.rarity, self.weights, self.offsets = labels, words, rarity, weights, offsets
        self._reader = TfidfVectorizer(**_WORDS, vocabulary=words)
        self._reader.idf_ = rarity

    def scores(self, texts: list[str]) -> Any:
        """The score of every label for every text."""
        return self._reader.transform(texts) @ self.weights.T + self.offsets

    def probabilities(self, texts: list[str]) -> Any:
        """The probability of every label for every text."""
        return softmax(self.scores(texts), axis=1)

    def save(self, folder: Path) -> None:
        """Write it as JSON and numbers."""
        write_bytes(folder / "bag.json", to_json({"labels": self.labels, "words": self.words}))
        numbers = {"rarity": self.rarity, "weights": self.weights, "offsets": self.offsets}
        write_bytes(folder / "bag.safetensors", save(numbers))

    @classmethod
    def load(cls, folder: Path) -> Bag:
        """Read one that was saved."""
        stored = read_json(folder / "bag.json")
        try:
            with reporting_damage(folder):
                numbers = load(read_bytes(folder / "bag.safetensors"))
                return cls(stored["labels"], stored["words"], numbers["rarity"], numbers["weights"], numbers["offsets"])
        except SafetensorError as error:
            raise CheckpointError(f"{folder / 'bag.safetensors'} is damaged ({error}): make it again") from None


def _fit(tables: Tables, strength: float) -> Bag:
    """The baseline with a regularisation strength."""
    reader = TfidfVectorizer(**_WORDS)
    words = reader.fit_transform(tables.train.texts)
    model = LogisticRegression(C=strength, max_iter=_MOST_ROUNDS).fit(words, tables.ids(tables.train))
    weights, offsets = model.coef_, model.intercept_
    if len(tables.labels) == 2:  # scikit-learn keeps one row for two labels
        weights, offsets = np.vstack([np.zeros_like(weights), weights]), np.array([0.0, offsets[0]])
    names = [str(word) for word in reader.get_feature_names_out()]
    return Bag(list(tables.labels), names, reader.idf_, np.ascontiguousarray(weights), offsets)


def _folds_of(tables: Tables) -> int:
    """The number of folds: each needs a text of every label."""
    label, least = min(tables.train.counts.items(), key=lambda pair: pair[1])
    if least < 2:
        raise DataError(f"{tables.train.source}: label '{label}' has one text only; cross-validation needs two of each")
    return min(_FOLDS, least)


def cross_validate(tables: Tables, seed: int) -> dict[float, float]:
    """The accuracy of every strength on folds that it did not see; the words of a fold are counted once for all strengths."""
    texts, labels = tables.train.texts, np.array(tables.ids(tables.train))
    right = dict.fromkeys(_STRENGTHS, 0)
    for seen, unseen in StratifiedKFold(_folds_of(tables), shuffle=True, random_state=seed).split(texts, labels):
        reader = TfidfVectorizer(**_WORDS)
        learned = reader.fit_transform([texts[at] for at in seen])
        asked = reader.transform([texts[at] for at in unseen])
        model = LogisticRegression(max_iter=_MOST_ROUNDS, warm_start=True)
        for strength in _STRENGTHS:
            model.set_params(C=strength).fit(learned, labels[seen])
            right[strength] += int((model.predict(asked) == labels[unseen]).sum())
    return {strength: count / len(texts) for strength, count in right.items()}


def run(tables: Tables, settings: FineTuning, folder: Path | None, show: Show) -> Outcome:
    """Fit the baseline; with a folder it is saved there, and measured on the test table if there is one."""
    began = time.perf_counter()
    show.line(f"{len(_STRENGTHS)} strengths, cross-validated on {_folds_of(tables)} parts of {tables.train.source}")
    accuracies = cross_validate(tables, settings.seed)
    strength = max(accuracies, key=accuracies.__getitem__)  # of equals, the smallest
    right = f"{100 * accuracies[strength]:.1f} % right in cross-validation within {tables.train.source}"
    show.line(f"strength {strength:g}: {right}")
    bag = _fit(tables, strength)
    dev, test = ScoredTable.of(bag.scores(tables.dev.texts), tables.ids(tables.dev)), None
    if folder is not None:
        bag.save(folder)
        if tables.test is not None:
            test = ScoredTable.of(bag.scores(tables.test.texts), tables.ids(tables.test))
    facts = ModelFacts(
        architecture="tf-idf of words and pairs, logistic regression",
        parameters=int(bag.weights.size + bag.offsets.size),
        vocabulary=len(bag.words),
        strength=strength,
        cross_validated=accuracies[strength],
    )
    return Outcome(seconds=time.perf_counter() - began, facts=facts, labels=tables.labels, dev=dev, test=test)
