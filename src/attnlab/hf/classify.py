"""Classifiers of texts: trained on tables, measured, written into a folder completely or not at all, and used to predict.

A model is an encoder (fine_tuning.py) or a bag of words (bag.py); both modules import large packages, and are imported when
they are needed. Here are the records of a training and of predictions, and the content of result.json. The reports are in
documents.py.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, Self

from attnlab.corpora.files import numbered_lines
from attnlab.corpora.labelled import LabelledTable, Tables
from attnlab.errors import DataError, Interrupted
from attnlab.hf import BAG_OF_WORDS, FineTuning
from attnlab.hf.loading import PACKAGES, need_extra
from attnlab.lm.progress import QUIET, Show, silent
from attnlab.machine import environment
from attnlab.report import write_document
from attnlab.report.parts import Accuracy, StudyResult
from attnlab.report.words import capital, percent
from attnlab.store import records
from attnlab.store.folders import folders_above, os_errors, refuse_existing, write_bytes, write_manifest

_MISTAKES = 20  # reported, the most confident first


def environment_with_packages() -> dict[str, Any]:
    """The machine and the versions of the packages that classification needs, by the names to install them."""
    names = ("scikit-learn" if name == "sklearn" else name for name in PACKAGES)
    return {**environment(), **{name: importlib.metadata.version(name) for name in names}}


# Training


@dataclass(frozen=True)
class ScoredTable:
    """The predictions for one table: the probability of every label for every text, in the order of the table.

    Where a model that diverged gives no numbers, the probabilities are 0 and the loss is None.
    """

    gold: tuple[int, ...]
    probabilities: tuple[tuple[float, ...], ...]
    loss: float | None

    @classmethod
    def of(cls, scores: Any, gold: Sequence[int]) -> Self:
        """The predictions that scores give, one row for every text: the softmax of a row are its probabilities."""
        import numpy as np
        from scipy.special import log_softmax

        logs = log_softmax(np.asarray(scores, dtype=np.float64), axis=1)
        loss = float(-logs[np.arange(len(gold)), list(gold)].mean())
        probabilities = np.nan_to_num(np.exp(logs), nan=0.0)
        return cls(tuple(gold), tuple(map(tuple, probabilities.tolist())), loss if isfinite(loss) else None)

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """The likeliest label of each text; -1, which is no label, if it has no probabilities."""
        return tuple(row.index(max(row)) if any(row) else -1 for row in self.probabilities)

    @cached_property
    def right(self) -> tuple[bool, ...]:
        """Whether each text got its label."""
        return tuple(label == gold for label, gold in zip(self.predicted, self.gold, strict=True))

    @property
    def accuracy(self) -> float:
        """The share of texts that got their label."""
        return sum(self.right) / len(self.right)


@dataclass(frozen=True)
class Epoch:
    """One pass over the training table; its own loss and accuracy are measured while the weights change, with dropout."""

    epoch: int
    train_loss: float | None  # None: not a number
    train_accuracy: float
    dev_loss: float | None
    dev_accuracy: float
    seconds: float  # of training, without validation


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model in numbers: an encoder, or a bag of words with its strength."""

    architecture: str
    parameters: int
    vocabulary: int
    positions: int | None = None
    max_length: int | None = None  # tokens; longer texts were truncated
    device: str = "cpu"
    new_weights: tuple[str, ...] = ()  # drawn at random
    strength: float | None = None  # the inverse of the penalty on large weights, chosen by cross-validation
    cross_validated: float | None = None  # its accuracy there


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """How a training went."""

    epochs: tuple[Epoch, ...] = ()
    best_epoch: int = 0  # counted from 1; 0 if there are no epochs
    seconds: float
    steps: int = 0
    tokens: int = 0  # read in training, without padding
    padding: int = 0
    facts: ModelFacts


@dataclass(frozen=True, kw_only=True)
class Outcome(TrainingRecord):
    """A finished fine-tuning. `dev` belongs to the best epoch; `test` is there if a model was kept and a test table given."""

    labels: tuple[str, ...]
    dev: ScoredTable
    test: ScoredTable | None

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
        return [epoch.dev_accuracy for epoch in self.epochs]


def fine_tune(
    model: str,
    tables: Tables,
    settings: FineTuning,
    folder: Path | None = None,
    show: Show = QUIET,
    after_epoch: Callable[[Epoch], None] = silent,
) -> Outcome:
    """Fine-tune a model on tables; with a folder its best epoch is saved there and measured once on the test table.

    Without one nothing is written and the test table is not touched, so that a search can call it any number of times. An
    exception in `after_epoch` ends the training.
    """
    need_extra(*PACKAGES)
    if folder is not None:
        with os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    if model == BAG_OF_WORDS:
        from attnlab.hf import bag

        return bag.run(tables, settings, folder, show)
    from attnlab.hf import fine_tuning

    return fine_tuning.run(model, tables, settings, folder, show, after_epoch)


# The result


@dataclass(frozen=True)
class Mistake:
    """A text with a wrong label."""

    place: str
    text: str
    label: str
    predicted: str
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Measured(Accuracy):
    """Everything that is reported about one table."""

    commonest: float  # share of the commonest label
    loss: float | None
    confusion: list[list[int]]  # texts per label (rows) and predicted label (columns)
    mistakes: list[Mistake]


@dataclass(frozen=True)
class TableSummary:
    """One table as it was read."""

    source: str
    texts: int
    counts: dict[str, int]
    sha256: str
    column: str
    detected: str  # how the order of its columns was detected
    heading: bool
    blank: int


@dataclass(frozen=True)
class TablesSummary:
    """The tables as they were read: counts, checksums, how the label was detected, texts of every label."""

    labels: tuple[str, ...]
    renamed: dict[str, str]  # new names by the labels of the files
    data: dict[str, TableSummary]
    examples: dict[str, list[str]]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Classification(TrainingRecord, StudyResult):
    """The result of a classification."""

    kind: str = "classification"
    model: str
    name: str
    settings: FineTuning
    tables: TablesSummary
    dev: Measured
    test: Measured | None
    verdict: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=environment_with_packages)

    @property
    def measured(self) -> dict[str, Measured]:
        """The tables that were measured, by their names in a report."""
        return {"validation": self.dev, **({"test": self.test} if self.test else {})}

    def _repr_html_(self) -> str:
        from attnlab.hf.documents import classification_document

        return classification_document(self)._repr_html_()


def make_classifier(
    model: str, tables: Tables, settings: FineTuning, out: Path, show: Show = QUIET, command: str = ""
) -> Classification:
    """Train, measure and report; the folder holds model/, result.json, predictions.tsv and the report."""
    from attnlab.hf.documents import classification_document

    refuse_existing(out)
    need_extra(*PACKAGES)
    with _staged(out) as folder:
        outcome = fine_tune(model, tables, settings, folder / "model", show)
        result = _judge(model, tables, settings, outcome, command)
        write_bytes(folder / "predictions.tsv", "".join(_predictions(tables, outcome)).encode())
        write_document(classification_document(result), folder)
        write_bytes(folder / "result.json", records.encode(result))
        write_manifest(folder / "model", "model")
        write_manifest(folder, "classifier")
    return result


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when everything is in it; if stopped, nothing is left behind."""
    try:
        with folders_above(out), tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
            filled = Path(work) / "filled"
            filled.mkdir()
            yield filled
            refuse_existing(out)
            with os_errors(out):
                filled.rename(out)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped: nothing was written to {out}; give the command again to start anew") from None


def _judge(model: str, tables: Tables, settings: FineTuning, outcome: Outcome, command: str) -> Classification:
    name = short_name(model)
    result = Classification(
        **{field.name: getattr(outcome, field.name) for field in fields(TrainingRecord)},
        title=f"{name} on {tables.train.source}",
        model=model,
        name=name,
        settings=replace(settings, lr=settings.rate),
        tables=describe_tables(tables),
        dev=_measured(outcome.dev, tables.dev, tables.labels),
        test=_measured(outcome.test, tables.test, tables.labels) if outcome.test and tables.test else None,
        command=command,
    )
    return replace(result, verdict=(_verdict(result),))


def _verdict(result: Classification) -> str:
    """The main result, in a few sentences."""
    part, measured = list(result.measured.items())[-1]
    epoch = f"Epoch {result.best_epoch} of {len(result.epochs)} was kept, the best on validation. "
    guess = f"always predicting the most common label gives {percent(measured.commonest)}."
    clear = measured.low > measured.commonest
    beside = capital(guess) if clear else f"That is not clearly more than guessing: {guess}"
    return f"{result.name} on the {part} table: {measured}. {epoch if result.best_epoch else ''}{beside}"


def describe_tables(tables: Tables) -> TablesSummary:
    """The tables as a report and the terminal show them."""

    def summary(table: LabelledTable) -> TableSummary:
        counts = {label: table.counts.get(label, 0) for label in tables.labels}
        reading = (table.sha256, table.column, table.how, table.header, table.blank)
        return TableSummary(table.source, len(table.rows), counts, *reading)

    data = {name: summary(table) for name, table in tables.parts.items()}
    examples = {label: tables.examples(label) for label in tables.labels}
    return TablesSummary(tables.labels, dict(tables.names), data, examples, tables.warnings)


def _measured(scored: ScoredTable, table: LabelledTable, labels: Sequence[str]) -> Measured:
    texts, counts = len(scored.right), [[0] * len(labels) for _ in labels]
    for gold, predicted in zip(scored.gold, scored.predicted, strict=True):
        counts[gold][predicted] += 1
    mistakes = [
        Mistake(table.place(place), table.rows[place].text, labels[gold], labels[predicted], max(probabilities))
        for place, (gold, predicted, probabilities) in enumerate(
            zip(scored.gold, scored.predicted, scored.probabilities, strict=True)
        )
        if gold != predicted
    ]
    return Measured.of(
        sum(scored.right),
        texts,
        commonest=max(sum(row) for row in counts) / texts,
        loss=scored.loss,
        confusion=counts,
        mistakes=sorted(mistakes, key=lambda mistake: -mistake.confidence)[:_MISTAKES],
    )


def _predictions(tables: Tables, outcome: Outcome) -> Iterator[str]:
    """Every text of the validation and test tables with its predicted label, as lines of a table."""
    yield "part\tlabel\tpredicted\tconfidence\ttext\n"
    for part, scored in (("dev", outcome.dev), ("test", outcome.test)):
        if scored is None:
            continue
        rows = zip(tables.parts[part].rows, scored.predicted, scored.probabilities, strict=True)
        for row, predicted, probabilities in rows:
            text = " ".join(row.text.split("\t"))
            yield f"{part}\t{row.label}\t{tables.labels[predicted]}\t{max(probabilities):.6f}\t{text}\n"


def short_name(model: str) -> str:
    """A model's name for people: that of its folder, or of the hub."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    whole = folder.resolve()
    return whole.parent.name if whole.name == "model" else whole.name


# Labels for texts that have none


@dataclass(frozen=True)
class LabelledText:
    """A text with its likeliest label, and the probability of every label."""

    text: str
    label: str
    probabilities: dict[str, float]


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
        rows = [["label", *(f"p({label})" for label in self.labels), "text"]]
        rows += [[row.label, *(f"{p:.6f}" for p in row.probabilities.values()), row.text] for row in self.texts]
        return "".join("\t".join(row) + "\n" for row in rows).encode()


def read_texts(path: Path) -> list[str]:
    """Read a file of one text per line; a blank line is an error, since every line gets a label."""
    texts = []
    for place, (number, line) in enumerate(numbered_lines(path), start=1):
        if number != place:
            raise DataError(f"{path.name}:{place}: a blank line has no label; remove it")
        if "\t" in line:
            raise DataError(f"{path.name}:{number}: a tab; give the texts alone, one per line, without labels")
        texts.append(line.strip())
    return texts


def predict(model: str | Path, texts: Sequence[str]) -> Predictions:
    """Label texts with a classifier that was saved by `attnlab classify`, or any other of transformers."""
    need_extra(*PACKAGES)
    path = Path(model).expanduser()
    folder = next((folder for folder in (path / "model", path) if (folder / "bag.json").is_file()), None)
    if folder:
        from attnlab.hf.bag import Bag

        bag = Bag.load(folder)
        labels, rows = bag.labels, bag.probabilities(list(texts)).tolist()
    else:
        from attnlab.hf import fine_tuning

        labels, rows = fine_tuning.predict(str(model), list(texts))
    labelled = []
    for text, row in zip(texts, rows, strict=True):
        labelled.append(LabelledText(text, labels[row.index(max(row))], dict(zip(labels, row, strict=True))))
    return Predictions(str(model), tuple(labels), tuple(labelled))
