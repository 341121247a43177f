"""Labels for texts that have none, from a saved classifier: an encoder with a head, or a bag of words.

Imports torch, transformers and scikit-learn only when a model is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.corpora.files import numbered_lines
from attnlab.errors import DataError, UserError
from attnlab.hf.loading import (
    PACKAGES,
    load_tokenizer,
    load_weights,
    locate,
    longest_text,
    need_extra,
    quietly,
    require_reachable,
)
from attnlab.store.folders import peek

_ROWS = 64  # texts computed at once


@dataclass(frozen=True)
class LabelledText:
    """A text with its likeliest label, and the probability of every label."""

    text: str
    label: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        """The probability of its label."""
        return self.probabilities[self.label]


@dataclass(frozen=True)
class Predictions:
    """Texts with their labels, in their order."""

    model: str
    labels: tuple[str, ...]
    texts: tuple[LabelledText, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many texts got each label."""
        found = Counter(one.label for one in self.texts)
        return {label: found[label] for label in self.labels}

    def to_tsv(self) -> bytes:
        """A table of label, probabilities and text."""
        heading = ["label", *(f"p({label})" for label in self.labels), "text"]
        rows = [
            [one.label, *(f"{one.probabilities[label]:.6f}" for label in self.labels), one.text] for one in self.texts
        ]
        return "".join("\t".join(row) + "\n" for row in (heading, *rows)).encode()


def read_texts(path: str | Path) -> list[str]:
    """Read a file of one text per line; a blank line is an error, since every line gets a label."""
    texts = []
    for place, (number, line) in enumerate(numbered_lines(path), start=1):
        if number != place:
            raise DataError(f"{Path(path).name}:{place}: a blank line has no label; remove it")
        if "\t" in line:
            raise DataError(f"{Path(path).name}:{number}: a tab; give the texts alone, one per line, without labels")
        texts.append(line.strip())
    return texts


def predict(model: str | Path, texts: Sequence[str]) -> Predictions:
    """Label texts with a classifier that was saved by `attnlab classify`, or any other of transformers."""
    need_extra(*PACKAGES)
    name, path = str(model), Path(model).expanduser()
    folder = next((one for one in (path / "model", path) if (one / "bag.json").is_file()), None)
    labels, chances = _by_bag(folder, list(texts)) if folder else _by_encoder(name, list(texts))
    rows = (dict(zip(labels, row, strict=True)) for row in chances)
    said = (LabelledText(text, max(row, key=row.__getitem__), row) for text, row in zip(texts, rows, strict=True))
    return Predictions(name, tuple(labels), tuple(said))


def _by_bag(folder: Path, texts: list[str]) -> tuple[list[str], list[list[float]]]:
    from attnlab.hf.bag import Bag

    bag = Bag.load(folder)
    return bag.labels, bag.probabilities(texts).tolist()


def _by_encoder(name: str, texts: list[str]) -> tuple[list[str], list[list[float]]]:
    """The probabilities of an encoder; texts are truncated as they were in its training."""
    import torch

    from attnlab.lm.devices import choose_device

    tokenizer, place = load_tokenizer(name), require_reachable(locate(name))
    model, missing = load_weights("AutoModelForSequenceClassification", place, name)
    if missing:  # transformers would make them up
        raise UserError(
            f"{name} has no trained head for labels: make a classifier of it with attnlab classify TRAIN DEV"
        )
    model = model.eval().to(choose_device("auto"))
    facts = peek(Path(place).parent / "result.json").get("facts", {}) if Path(place).name == "model" else {}
    limit = min(longest_text(model, tokenizer), facts.get("max_length", 10**6))
    with quietly():
        encoded: Any = tokenizer(texts, truncation=True, max_length=limit)
    order = sorted(range(len(texts)), key=lambda place: -len(encoded["input_ids"][place]))
    chances: list[list[float]] = [[]] * len(texts)
    for begin in range(0, len(order), _ROWS):
        places = order[begin : begin + _ROWS]
        batch = tokenizer.pad([{key: encoded[key][at] for key in encoded} for at in places], return_tensors="pt")
        with torch.inference_mode():
            found = model(**batch.to(model.device)).logits.double().softmax(dim=-1).tolist()
        for at, row in zip(places, found, strict=True):
            chances[at] = row
    names = model.config.id2label
    return [names[number] for number in sorted(names)], chances
