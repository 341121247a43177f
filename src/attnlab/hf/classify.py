"""A whole classification: a model is trained, measured and written into a folder, completely or not at all.

Also what came out of it, as records and as result.json, and what the studies of fine-tuning share: the request as they store
it, and checksums of everything that could change before a resume.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from math import isfinite
from pathlib import Path

from attnlab.corpora.labelled import Column, LabelledTable, Tables, built_in_tables, read_tables
from attnlab.errors import Interrupted, UserError
from attnlab.hf.loading import PACKAGES, load_encoder, locate, need_extra
from attnlab.hf.settings import BAG_OF_WORDS, FineTuning
from attnlab.lm.stages import QUIET, Show, silent
from attnlab.machine import environment
from attnlab.report import Shown, classification, strict, write_report
from attnlab.stats import proportion_interval
from attnlab.store.folders import folders_above, os_errors, refuse_existing, to_json, write_bytes, write_manifest
from attnlab.store.records import flat, plain
from attnlab.studies.legacy import Result

_MISTAKES = 20  # reported, the most confident first

Fact = str | int | float | Sequence[str]


@dataclass(frozen=True)
class Scored:
    """The predictions for one table: the probability of every label for every text, in the order of the table."""

    gold: tuple[int, ...]
    probabilities: tuple[tuple[float, ...], ...]
    loss: float

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """The likeliest label of each text; -1, which is no label, if its probabilities are not numbers."""
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
    """One pass over the training table; its own loss and accuracy are measured while the weights change, with dropout."""

    epoch: int
    train_loss: float
    train_accuracy: float
    dev_loss: float
    dev_accuracy: float
    seconds: float  # of training, without validation


@dataclass(frozen=True)
class Trial:
    """One regularisation strength of the bag-of-words baseline, judged within the training table."""

    strength: float
    accuracy: float


@dataclass(frozen=True)
class Figures:
    """The figures of a training."""

    epochs: tuple[Epoch, ...]
    best_epoch: int  # counted from 1; 0 if there are no epochs
    seconds: float
    steps: int = 0
    tokens: int = 0  # read in training, without padding
    padding: int = 0
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome(Figures):
    """A finished fine-tuning. `dev` belongs to the best epoch; `test` is there if a model was kept and a test table given."""

    labels: tuple[str, ...]
    dev: Scored
    test: Scored | None
    trials: tuple[Trial, ...] = ()

    @property
    def accuracy(self) -> float:
        """Validation accuracy of the best epoch."""
        return self.dev.accuracy

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether the best epoch is right, for every text of the validation table in its order."""
        return self.dev.right

    @property
    def figures(self) -> Figures:
        """The figures of the training alone."""
        return Figures(**{one.name: getattr(self, one.name) for one in fields(Figures)})

    @property
    def curve(self) -> list[float]:
        """Validation accuracy, epoch by epoch."""
        return [one.dev_accuracy for one in self.epochs]


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


def make_classifier(
    model: str, tables: Tables, settings: FineTuning, out: Path, show: Show = QUIET, command: str = ""
) -> Result:
    """Train, measure and report; the folder holds model/, result.json, predictions.tsv and the report."""
    refuse_existing(out)
    need_extra(*PACKAGES)
    with _staged(out) as folder:
        (folder / "model").mkdir()
        outcome = fine_tune(model, tables, settings, folder / "model", show)
        result: Result = strict(plain(_judge(model, tables, settings, outcome, command)))
        write_bytes(folder / "predictions.tsv", "".join(_predictions(tables, outcome)).encode())
        write_report(result, folder)
        write_bytes(folder / "result.json", to_json(result))
        write_manifest(folder / "model", "model")
        write_manifest(folder, "classifier")
    return Shown(result)


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


# The result


@dataclass(frozen=True)
class _LabelScore:
    """How well one label is found; None where there is nothing to divide by."""

    label: str
    texts: int
    predicted: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class _Mistake:
    place: str
    text: str
    label: str
    predicted: str
    confidence: float


@dataclass(frozen=True)
class _Measured:
    """Everything that is reported about one table."""

    texts: int
    right: int
    accuracy: float
    low: float
    high: float
    commonest: float  # share of the commonest label
    loss: float
    confusion: list[list[int]]  # texts per label (rows) and predicted label (columns)
    by_label: list[_LabelScore]
    mistakes: list[_Mistake]


@dataclass(frozen=True)
class _TableSummary:
    source: str
    texts: int
    counts: dict[str, int]
    sha256: str
    column: str
    recognised: str
    heading: bool
    blank: int


@dataclass(frozen=True)
class _TablesSummary:
    """The tables as they were read: counts, checksums, how the label was recognised, texts of every label."""

    labels: tuple[str, ...]
    renamed: dict[str, str]
    data: dict[str, _TableSummary]
    examples: dict[str, Sequence[str]]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class _Classification:
    """The result of a classification."""

    kind: str = "classification"
    title: str
    model: str
    name: str
    settings: dict[str, str | int | float]
    tables: _TablesSummary = flat()
    dev: _Measured
    test: _Measured | None
    figures: Figures = flat()
    trials: tuple[Trial, ...]
    command: str
    finished: str
    environment: dict[str, str | int]
    verdict: list[str] = field(default_factory=list)


def _judge(model: str, tables: Tables, settings: FineTuning, outcome: Outcome, command: str) -> _Classification:
    judged = _Classification(
        title=f"{short_name(model)} on {tables.train.source}",
        model=model,
        name=short_name(model),
        settings={**asdict(settings), "lr": settings.rate} if outcome.epochs else {"seed": settings.seed},
        tables=describe_tables(tables),
        dev=_measured(outcome.dev, tables.dev, tables.labels),
        test=_measured(outcome.test, tables.test, tables.labels) if outcome.test and tables.test else None,
        figures=outcome.figures,
        trials=outcome.trials,
        command=command,
        finished=time.strftime("%Y-%m-%d %H:%M"),
        environment={**environment(), **versions()},
    )
    return replace(judged, verdict=[classification.outcome(plain(judged))])


def describe_tables(tables: Tables) -> _TablesSummary:
    """The tables as a report and the terminal show them."""
    return _TablesSummary(
        tables.labels,
        dict(tables.names),
        {
            name: _TableSummary(
                table.source,
                len(table.rows),
                {label: table.counts.get(label, 0) for label in tables.labels},
                table.sha256,
                table.column,
                table.how,
                table.header,
                table.blank,
            )
            for name, table in tables.parts.items()
        },
        {label: tables.examples(label) for label in tables.labels},
        tables.warnings,
    )


def _measured(scored: Scored, table: LabelledTable, labels: Sequence[str]) -> _Measured:
    right, texts = sum(scored.right), len(scored.right)
    counts = [[0] * len(labels) for _ in labels]
    for meant, said in zip(scored.gold, scored.predicted, strict=True):
        counts[meant][said] += 1
    sure = [max(row) for row in scored.probabilities]
    wrong = sorted((place for place, right in enumerate(scored.right) if not right), key=lambda place: -sure[place])
    mistakes = [
        _Mistake(
            table.place(place),
            table.rows[place].text,
            labels[scored.gold[place]],
            labels[scored.predicted[place]],
            sure[place],
        )
        for place in wrong[:_MISTAKES]
    ]
    low, high = proportion_interval(right, texts)
    commonest = max(sum(row) for row in counts) / texts
    by_label = [_label_score(counts, place, label) for place, label in enumerate(labels)]
    return _Measured(texts, right, right / texts, low, high, commonest, scored.loss, counts, by_label, mistakes)


def _label_score(counts: Sequence[Sequence[int]], place: int, label: str) -> _LabelScore:
    right, texts, said = counts[place][place], sum(counts[place]), sum(row[place] for row in counts)
    return _LabelScore(
        label,
        texts,
        said,
        right / said if said else None,
        right / texts if texts else None,
        2 * right / (texts + said) if texts + said else None,
    )


def _predictions(tables: Tables, outcome: Outcome) -> Iterator[str]:
    """Every text of the validation and test tables with its predicted label, as lines of a table."""
    yield "part\tlabel\tpredicted\tconfidence\ttext\n"
    for part, scored in (("dev", outcome.dev), ("test", outcome.test)):
        if scored is None:
            continue
        for row, said, chances in zip(tables.parts[part].rows, scored.predicted, scored.probabilities, strict=True):
            text = " ".join(row.text.split("\t"))
            yield f"{part}\t{row.label}\t{tables.labels[said]}\t{max(chances):.6f}\t{text}\n"


def short_name(model: str) -> str:
    """A model's name for people: that of its folder, or of the hub."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    whole = folder.resolve()
    return whole.parent.name if whole.name == "model" else whole.name


def versions() -> dict[str, str]:
    """The versions of the packages that classification needs, by the name to install them."""
    names = ("scikit-learn" if name == "sklearn" else name for name in PACKAGES)
    return {name: importlib.metadata.version(name) for name in names}


# What the studies of fine-tuning share


@dataclass(frozen=True)
class Request:
    """What is fine-tuned, on what, and how; without files, on the built-in sentences."""

    model: str
    settings: FineTuning
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    column: Column | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def absolute(self) -> Request:
        """The same with paths that hold from any folder."""
        train, dev, test = (str(Path(path).resolve()) if path else None for path in (self.train, self.dev, self.test))
        folder = Path(self.model).expanduser()
        model = str(folder.resolve()) if folder.is_dir() else self.model
        return replace(self, model=model, train=train, dev=dev, test=test)

    @cached_property
    def tables(self) -> Tables:
        """The tables, read once and checked."""
        if self.train and self.dev:
            return read_tables(self.train, self.dev, self.test, self.column, self.names)
        return built_in_tables()

    def check(self, why_no_bag: str, packages: tuple[str, ...] = PACKAGES) -> None:
        """Find mistakes before a folder is made: packages that are missing, a model that cannot be loaded."""
        if self.model == BAG_OF_WORDS:
            raise UserError(f"{BAG_OF_WORDS} {why_no_bag}: name an encoder, or leave the option out")
        need_extra(*packages)
        load_encoder(self.model, self.tables.labels)

    def fingerprints(self, tables: Tables) -> dict[str, str]:
        """Checksums of the tables, and of the model if it is a folder; models of the hub are not checked."""
        found = {f"{part} ({table.source})": table.sha256 for part, table in tables.parts.items()}
        place = Path(locate(self.model))
        if place.is_dir():
            digest = hashlib.sha256()
            for path in sorted(one for one in place.iterdir() if one.is_file()):
                with path.open("rb") as stream:
                    digest.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
            found[self.model] = digest.hexdigest()
        return found

    def describe(self, tables: Tables) -> dict[str, str | list[str]]:
        """The model and the tables in a few words, for a report."""
        meanings = {"train": "learned_from", "dev": "judged_on", "test": "measured_once"}
        sizes = {meanings[name]: f"{table.source}, {len(table.rows):,} texts" for name, table in tables.parts.items()}
        return {"model": short_name(self.model), **sizes, "labels": list(tables.labels)}
