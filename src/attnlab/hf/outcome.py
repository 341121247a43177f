"""What came out of a fine-tuning: per text, per epoch, and as plain data for result.json, the page and the screen. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from attnlab.corpora.labelled import LabelledTable, Tables
from attnlab.hf.settings import FineTuning
from attnlab.stats import proportion_interval

MISTAKES = 20  # that are told, the most confident first


@dataclass(frozen=True)
class Scored:
    """One table as a model sees it: the probability of every label for every text, in the order of the table."""

    gold: tuple[int, ...]
    probabilities: tuple[tuple[float, ...], ...]
    loss: float

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """The likeliest label of each text; -1, which is nobody's, where the probabilities are no numbers."""
        return tuple(
            max(range(len(row)), key=row.__getitem__) if all(map(isfinite, row)) else -1 for row in self.probabilities
        )

    @cached_property
    def right(self) -> tuple[bool, ...]:
        """Whether each text got its label."""
        return tuple(said == meant for said, meant in zip(self.predicted, self.gold, strict=True))

    @property
    def accuracy(self) -> float:
        """The share of texts that got their label."""
        return sum(self.right) / len(self.right)


@dataclass(frozen=True)
class Epoch:
    """One pass over the training table; its own loss and accuracy are counted while the weights change, with dropout."""

    epoch: int
    train_loss: float
    train_accuracy: float
    dev_loss: float
    dev_accuracy: float
    seconds: float  # of training, the look at the validation table left out


@dataclass(frozen=True)
class Trial:
    """One strength of the bag-of-words baseline, judged within the training table."""

    strength: float
    accuracy: float


@dataclass(frozen=True)
class Outcome:
    """A finished fine-tuning. `dev` is the best epoch's; `test` is there if a model was kept and a test table given."""

    labels: tuple[str, ...]
    dev: Scored
    test: Scored | None
    epochs: tuple[Epoch, ...]
    best_epoch: int  # counted from 1; 0 where there are no epochs
    seconds: float
    steps: int = 0
    tokens: int = 0  # read in training, padding left out
    padding: int = 0  # places computed for nothing
    facts: Mapping[str, Any] = field(default_factory=dict)
    trials: Sequence[Trial] = ()

    @property
    def accuracy(self) -> float:
        """Validation accuracy of the best epoch."""
        return self.dev.accuracy

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether the best epoch is right, for every text of the validation table in its order."""
        return self.dev.right

    @property
    def curve(self) -> list[float]:
        """Validation accuracy, epoch by epoch."""
        return [one.dev_accuracy for one in self.epochs]


# The result


def make_result(model: str, tables: Tables, settings: FineTuning, outcome: Outcome) -> dict[str, Any]:
    """The result of a run, but for where and when it was made."""
    return {
        "kind": "classification",
        "title": f"{short_name(model)} on {tables.train.source}",
        "model": model,
        "name": short_name(model),
        "settings": {**asdict(settings), "lr": settings.rate} if outcome.epochs else {"seed": settings.seed},
        **describe_tables(tables),
        "epochs": [asdict(one) for one in outcome.epochs],
        "best_epoch": outcome.best_epoch,
        "trials": [asdict(one) for one in outcome.trials],
        "dev": _measured(outcome.dev, tables.dev, tables.labels),
        "test": _measured(outcome.test, tables.test, tables.labels) if outcome.test and tables.test else None,
        "seconds": outcome.seconds,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "padding": outcome.padding,
        "facts": dict(outcome.facts),
    }


def describe_tables(tables: Tables) -> dict[str, Any]:
    """The data as they were read: counts, checksums, how the label was recognised, texts of every label."""
    return {
        "labels": list(tables.labels),
        "renamed": dict(tables.names),
        "data": {
            name: {
                "source": table.source,
                "texts": len(table.rows),
                "counts": {label: table.counts.get(label, 0) for label in tables.labels},
                "sha256": table.sha256,
                "column": table.column,
                "recognised": table.how,
                "heading": table.header,
                "blank": table.blank,
            }
            for name, table in tables.parts.items()
        },
        "examples": {label: tables.examples(label) for label in tables.labels},
        "warnings": list(tables.warnings),
    }


def _measured(scored: Scored, table: LabelledTable, labels: Sequence[str]) -> dict[str, Any]:
    """Everything that is reported of one table."""
    right, texts = sum(scored.right), len(scored.right)
    low, high = proportion_interval(right, texts)
    counts = _confusion(scored, labels)
    largest = max(sum(row) for row in counts)
    return {
        "texts": texts,
        "right": right,
        "accuracy": right / texts,
        "low": low,
        "high": high,
        "commonest": largest / texts,
        "loss": scored.loss,
        "confusion": counts,
        "by_label": _by_label(counts, labels),
        "mistakes": _mistakes(scored, table, labels),
    }


def _confusion(scored: Scored, labels: Sequence[str]) -> list[list[int]]:
    """How many texts of each label (rows) were given each label (columns)."""
    table = [[0] * len(labels) for _ in labels]
    for meant, said in zip(scored.gold, scored.predicted, strict=True):
        table[meant][said] += 1
    return table


def _by_label(table: Sequence[Sequence[int]], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Precision, recall and F1 of every label; None where there is nothing to divide by."""
    rows = []
    for place, label in enumerate(labels):
        right, texts, said = table[place][place], sum(table[place]), sum(row[place] for row in table)
        rows.append(
            {
                "label": label,
                "texts": texts,
                "predicted": said,
                "precision": right / said if said else None,
                "recall": right / texts if texts else None,
                "f1": 2 * right / (texts + said) if texts + said else None,
            }
        )
    return rows


def _mistakes(scored: Scored, table: LabelledTable, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The mistakes that it was surest of, the surest first."""
    sure = [max(row) for row in scored.probabilities]
    wrong = sorted((place for place, right in enumerate(scored.right) if not right), key=lambda place: -sure[place])
    return [
        {
            "place": table.place(place),
            "text": table.rows[place].text,
            "label": labels[scored.gold[place]],
            "predicted": labels[scored.predicted[place]],
            "confidence": sure[place],
        }
        for place in wrong[:MISTAKES]
    ]


def predictions(tables: Tables, outcome: Outcome) -> Iterator[str]:
    """Every text of the validation and test tables with what was said of it, as lines of a table."""
    yield "part\tlabel\tpredicted\tconfidence\ttext"
    for part, scored in (("dev", outcome.dev), ("test", outcome.test)):
        if scored is None:
            continue
        for row, said, chances in zip(tables.parts[part].rows, scored.predicted, scored.probabilities, strict=True):
            text = " ".join(row.text.split("\t"))
            yield f"{part}\t{row.label}\t{tables.labels[said]}\t{max(chances):.6f}\t{text}"


def short_name(model: str) -> str:
    """A model's name for people: that of its folder, or the one that the hub knows."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    whole = folder.resolve()
    return whole.parent.name if whole.name == "model" else whole.name
