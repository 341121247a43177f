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
from attnlab.errors import DataError, UserError, cut
from attnlab.hf.classify import Classification
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
from attnlab.report.document import Cell, Document, Row, Table, section
from attnlab.report.parts import cell, columns, text_column
from attnlab.report.words import plural
from attnlab.store import records

_ROWS = 64  # texts computed at once
_MOST_SHOWN, _LONGEST_SHOWN = 20, 60  # texts, and characters of each


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
        counts = Counter(row.label for row in self.texts)
        return {label: counts[label] for label in self.labels}

    def to_tsv(self) -> bytes:
        """A table of label, probabilities and text."""
        heading = ["label", *(f"p({label})" for label in self.labels), "text"]
        rows = [
            [row.label, *(f"{row.probabilities[label]:.6f}" for label in self.labels), row.text] for row in self.texts
        ]
        return "".join("\t".join(row) + "\n" for row in (heading, *rows)).encode()

    def document(self, source: str) -> Document:
        """How often each label was given, and the first texts with their labels."""
        labels = [
            Row(Cell(name), [cell(times, "count"), cell(times / len(self.texts), "share")])
            for name, times in self.counts.items()
        ]
        first = self.texts[:_MOST_SHOWN]
        texts = [
            Row(Cell(row.label), [cell(row.probability, "share"), Cell(cut(row.text, _LONGEST_SHOWN))]) for row in first
        ]
        title = f"The first {len(first)} texts" if len(first) < len(self.texts) else "Texts"
        return Document(
            "predictions",
            f"{plural(len(self.texts), 'text')} of {source}, labelled by {self.model}",
            [],
            [
                *section("Labels", Table("Labels", "", columns("Label", "Texts", "Share"), labels)),
                *section(title, Table("Texts", "", columns("Label", "Probability", text_column("Text")), texts)),
            ],
        )


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
    folder = next((folder for folder in (path / "model", path) if (folder / "bag.json").is_file()), None)
    labels, chances = _by_bag(folder, list(texts)) if folder else _by_encoder(name, list(texts))
    rows = [dict(zip(labels, row, strict=True)) for row in chances]
    labelled = (LabelledText(text, max(row, key=row.__getitem__), row) for text, row in zip(texts, rows, strict=True))
    return Predictions(name, tuple(labels), tuple(labelled))


def _by_bag(folder: Path, texts: list[str]) -> tuple[list[str], list[list[float]]]:
    from attnlab.hf.bag import Bag

    bag = Bag.load(folder)
    return bag.labels, bag.probabilities(texts).tolist()


def _by_encoder(name: str, texts: list[str]) -> tuple[list[str], list[list[float]]]:
    """The probabilities of an encoder; texts are truncated as they were in its training."""

    from attnlab.lm.devices import choose_device

    tokenizer, place = load_tokenizer(name), require_reachable(locate(name))
    model, missing = load_weights("AutoModelForSequenceClassification", place, name)
    if missing:  # transformers would make them up
        raise UserError(
            f"{name} has no trained head for labels: make a classifier of it with attnlab classify TRAIN DEV"
        )
    stored = Path(place).parent / "result.json"
    trained = records.read(Classification, stored).facts.max_length if _is_ours(Path(place)) else None
    limit = min(longest_text(model, tokenizer), trained or 10**6)
    with quietly():
        from transformers import pipeline

        make: Any = pipeline  # typed for each task apart
        device = choose_device("auto")
        classifier = make("text-classification", model=model, tokenizer=tokenizer, device=device, top_k=None)
        options = {"function_to_apply": "softmax", "truncation": True, "max_length": limit, "batch_size": _ROWS}
        rows = classifier(texts, **options)
    names = model.config.id2label
    labels = [names[number] for number in sorted(names)]
    chances = [{score["label"]: score["score"] for score in row} for row in rows]
    return labels, [[row[label] for label in labels] for row in chances]


def _is_ours(place: Path) -> bool:
    """Whether a model is inside a folder that `attnlab classify` wrote."""
    return place.name == "model" and (place.parent / "predictions.tsv").is_file()
