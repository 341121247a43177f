"""The baseline: tf-idf of words and pairs of words, logistic regression over them (scikit-learn).

It knows no word order beyond pairs, is not pretrained, and trains in seconds: an encoder is worth what it adds to this. The
regularisation strength is chosen by cross-validation within the training table, so that the baseline has not seen the
validation table. Stored as numbers and a list of words, never as code. Imports scikit-learn, and is therefore imported late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from attnlab.corpora.labelled import LabelledTable, Tables
from attnlab.errors import CheckpointError, DataError
from attnlab.hf.classify import ModelFacts, Outcome, ScoredTable, StrengthTrial
from attnlab.hf.settings import FineTuning
from attnlab.lm.stages import Show
from attnlab.store.folders import read_bytes, read_json, reporting_damage, write_bytes, write_json

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

    def probabilities(self, texts: list[str]) -> Any:
        """The probability of every label for every text."""
        scores = self._reader.transform(texts) @ self.weights.T + self.offsets
        return softmax(scores, axis=1)

    def save(self, folder: Path) -> None:
        """Write it as JSON and numbers."""
        write_json(folder / "bag.json", {"labels": self.labels, "words": self.words})
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


def _fit(tables: Tables, seed: int) -> tuple[Bag, list[StrengthTrial]]:
    """The baseline with the strength that predicts held-out parts of the training table best; of equals, the smaller."""
    texts, gold = tables.train.texts, tables.ids(tables.train)
    trials = _cross_validate(texts, gold, _folds_of(tables), seed)
    reader = TfidfVectorizer(**_WORDS)
    model = LogisticRegression(C=_best_of(trials).strength, max_iter=_MOST_ROUNDS).fit(
        reader.fit_transform(texts), gold
    )
    weights, offsets = model.coef_, model.intercept_
    if len(tables.labels) == 2:  # scikit-learn keeps one row for two labels
        weights, offsets = np.vstack([np.zeros_like(weights), weights]), np.array([0.0, offsets[0]])
    words = [str(word) for word in reader.get_feature_names_out()]
    return Bag(list(tables.labels), words, reader.idf_, np.ascontiguousarray(weights), offsets), trials


def _folds_of(tables: Tables) -> int:
    """The number of folds: each needs a text of every label."""
    label, least = min(tables.train.counts.items(), key=lambda pair: pair[1])
    if least < 2:
        raise DataError(f"{tables.train.source}: label '{label}' has one text only; cross-validation needs two of each")
    return min(_FOLDS, least)


def _cross_validate(texts: list[str], gold: list[int], folds: int, seed: int) -> list[StrengthTrial]:
    """The accuracy of every strength on folds that it did not see; the words of a fold are counted once for all strengths."""
    labels, right = np.array(gold), dict.fromkeys(_STRENGTHS, 0)
    for seen, unseen in StratifiedKFold(folds, shuffle=True, random_state=seed).split(texts, gold):
        reader = TfidfVectorizer(**_WORDS)
        learned, asked = (
            reader.fit_transform([texts[at] for at in seen]),
            reader.transform([texts[at] for at in unseen]),
        )
        model = LogisticRegression(max_iter=_MOST_ROUNDS, warm_start=True)
        for strength in _STRENGTHS:
            model.set_params(C=strength).fit(learned, labels[seen])
            right[strength] += int((model.predict(asked) == labels[unseen]).sum())
    return [StrengthTrial(strength, many / len(gold)) for strength, many in right.items()]


def _best_of(trials: Sequence[StrengthTrial]) -> StrengthTrial:
    """The trial with the highest accuracy; of equals, the smallest strength."""
    return max(trials, key=lambda trial: trial.accuracy)


def _score(bag: Bag, table: LabelledTable, gold: list[int]) -> ScoredTable:
    chances = bag.probabilities(table.texts)
    loss = float(-np.log(np.maximum(chances[np.arange(len(gold)), gold], 1e-300)).mean())
    return ScoredTable(tuple(gold), tuple(map(tuple, chances.tolist())), loss)


def run(tables: Tables, settings: FineTuning, folder: Path | None, show: Show) -> Outcome:
    """Fit the baseline; with a folder it is saved there, and measured on the test table if there is one."""
    began = time.perf_counter()
    show.line(f"{len(_STRENGTHS)} strengths, cross-validated on {_folds_of(tables)} parts of {tables.train.source}")
    bag, trials = _fit(tables, settings.seed)
    chosen = _best_of(trials)
    right = f"{100 * chosen.accuracy:.1f} % right in cross-validation within {tables.train.source}"
    show.line(f"strength {chosen.strength:g}: {right}")
    dev, test = _score(bag, tables.dev, tables.ids(tables.dev)), None
    if folder is not None:
        bag.save(folder)
        if tables.test is not None:
            test = _score(bag, tables.test, tables.ids(tables.test))
    facts = ModelFacts(
        architecture="tf-idf of words and pairs, logistic regression",
        parameters=int(bag.weights.size + bag.offsets.size),
        vocabulary=len(bag.words),
        strength=chosen.strength,
        folds=_folds_of(tables),
    )
    seconds = time.perf_counter() - began
    return Outcome(seconds=seconds, facts=facts, trials=tuple(trials), labels=tables.labels, dev=dev, test=test)
