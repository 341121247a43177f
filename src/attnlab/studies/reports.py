"""The recall experiments of the course reports, with their models, batches and learning rates.

Three models: one that is fine-tuned alone, one that is pretrained first, and one that is pretrained with a bottleneck. The
reports pretrained for 650 epochs, which takes most of a day on two cores. Here the schedule is compressed into fewer epochs,
several times, so that accuracy against epochs shows the trend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from rich.console import Console

from attnlab.config import RunConfig, Stage
from attnlab.errors import UserError
from attnlab.lm.evaluate import examine
from attnlab.lm.exams import Scored, constant, majority
from attnlab.lm.model import load_model
from attnlab.report import parts
from attnlab.report.document import Axis, Cell, Document, Table, section
from attnlab.report.words import NOTHING, capital, figure, span
from attnlab.store.runs import Run
from attnlab.studies import options as opt
from attnlab.studies.study import study
from attnlab.studies.training import DataSummary, Training, TrainingResult, accuracy_curves, read_run

_ALONE, _PLAIN, _PERCEIVER = "fine-tuned alone", "pretrained", "pretrained, perceiver"
_PRESETS = {_PLAIN: "mingpt", _PERCEIVER: "mingpt-perceiver"}
_CONSTANT = "London"  # the constant answer of the reports
_FULL = 650  # epochs of pretraining in the reports
_CORPUS = "823bb536fca77c8b5a15b34b0dead6355d0cf1f806e822464bca28806c2fd055"  # checksum of theirs
# Shares of right answers in the reports, of 500 names.
_REPORTED = {_ALONE: (0.006, 0.012, 0.020), _PLAIN: (0.188, 0.210, 0.230), _PERCEIVER: (0.166,), _CONSTANT: (0.05,)}


@dataclass(frozen=True, kw_only=True)
class Row(Scored):
    """A model or a constant answer: epochs of pretraining, its score, and the accuracies of the reports."""

    model: str = ""
    epochs: int = 0
    reported: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReportsResult(TrainingResult):
    """The result of the study."""

    full: int = _FULL  # epochs of pretraining in the reports
    data: DataSummary
    as_reported: bool  # whether the corpus is that of the reports
    rows: list[Row]


@study("reports")
class Reports(Training[ReportsResult]):
    """Repeat the recall experiments of the course reports.

    A model fine-tuned alone, one pretrained first, and one with a bottleneck (presets mingpt and
    mingpt-perceiver). --epochs 650 is the full length and takes many hours.
    """

    preset: opt.Hidden[str] = "mingpt"  # of the first two models
    epochs: Annotated[
        opt.Numbers, opt.about("Epochs of pretraining, compressed from 650."), opt.default("10,20,40")
    ] = ()

    def completed(self) -> Self:
        """Fill in the built-in people and the usual numbers of epochs."""
        return replace(super().completed(), epochs=self.epochs or ((2, 4) if self.quick else (10, 20, 40)))

    def stage(self, model: str, stage: Stage, epochs: int = _FULL) -> RunConfig:
        """Return the settings of a stage; pretraining has the reports' schedule compressed into its epochs."""
        settings = replace(self, preset=_PRESETS.get(model, "mingpt")).settings(stage)
        if stage != "pretrain":
            return settings
        train, share = settings.train, epochs / settings.train.epochs
        # The warm-up keeps its length in steps, under one.
        shorter = replace(
            train, epochs=float(epochs), horizon=train.horizon * share, warmup=min(1.0, train.warmup / share)
        )
        return replace(settings, train=shorter)

    def check(self) -> None:
        """Find errors before training: settings of every stage, data, an exam without answers."""
        opt.require_distinct("epochs", self.epochs)
        if self.given.get("train", {}).keys() & {"epochs", "steps"}:
            raise UserError(
                "`run reports` sets the length of pretraining itself: use --epochs, such as --epochs 10,20,40"
            )
        exam = self.data.answered(self.exam)
        sources = self.data.sources(self.corpus, self.facts)
        for preset in _PRESETS.values():
            replace(self, preset=preset).check_stages(get_args(Stage), sources, exam)

    def train(self, folder: Path, console: Console) -> None:
        """Start or resume all models: the shortest first."""

        def train(name: str, settings: RunConfig, stage: Stage, base: Run | None = None) -> Run:
            return self.train_stage(folder / name, settings, stage, (self.corpus, self.facts), console, base)

        train("no-pretraining", self.stage(_ALONE, "scratch"), "scratch")
        for epochs in sorted(self.epochs):
            for model, preset in _PRESETS.items():
                base = train(f"{preset}-{epochs}-pretrain", self.stage(model, "pretrain", epochs), "pretrain")
                train(f"{preset}-{epochs}-finetune", self.stage(model, "finetune"), "finetune", base)

    def judge(self, folder: Path, console: Console) -> ReportsResult:
        """Examine every model and the constant answers."""
        facts, exam = self.data.questions(self.facts), self.data.questions(self.exam)
        runs: dict[str, parts.TrainedRun] = {}

        def row(model: str, note: str, *names: str, **more: Any) -> Row:
            opened = [Run.open(folder / name) for name in names]
            runs.update({name: read_run(run) for name, run in zip(names, opened, strict=True)})
            seconds = sum(runs[name].seconds for name in names)
            fields = {"name": model, "reported": _REPORTED[model], **more}
            examination = examine(*load_model(opened[-1].model), exam)
            return examination.scored(Row, kind="model", model=model, note=note, seconds=seconds, **fields)

        rows = [row(_ALONE, "75 epochs of the training questions", "no-pretraining")]
        for model, preset in _PRESETS.items():
            for epochs in sorted(self.epochs):
                names = [f"{preset}-{epochs}-{stage}" for stage in ("pretrain", "finetune")]
                note, name = "then 10 epochs of the training questions", f"{model}, {epochs} epochs"
                rows.append(row(model, note, *names, epochs=epochs, name=name))
        rows += [
            constant(_CONSTANT, exam).scored(
                Row, name=f"always {_CONSTANT}", kind="baseline", model=_CONSTANT, reported=_REPORTED[_CONSTANT]
            ),
            majority(facts, exam).scored(
                Row, name="majority answer", kind="baseline", note="always the most common training answer"
            ),
        ]
        as_reported = self.data.corpus(self.corpus).sha256 == _CORPUS
        return ReportsResult(
            title="The recall experiments of the course reports",
            data=self.data_summary(facts),
            as_reported=as_reported,
            rows=rows,
            runs=runs,
            verdict=_verdict(rows, as_reported),
        )

    def document(self, result: ReportsResult) -> Document:
        """Return the whole report."""
        rows = result.rows
        axis = Axis("epochs of pretraining, each with the whole schedule", low=0.0)
        points = [(row.model, row.epochs, row) for row in rows if row.epochs]
        chart = accuracy_curves("Right answers against epochs of pretraining", axis, rows[0], points)
        sections = [
            *section(
                "Results", parts.accuracy_chart(rows), chart, parts.results_table(rows), parts.commonest_table(rows)
            ),
            *section("Beside the reports", _reported_table(rows)),
        ]
        return self.report(result, sections, result.data.facts(), result.data.notices())


# The report


def _shares(values: Sequence[float]) -> str:
    """Reported shares in one phrase."""
    return f"{', '.join(f'{100 * value:.1f}' for value in values)} %"


def _verdict(rows: Sequence[Row], as_reported: bool) -> list[str]:
    """What came out, beside what the reports found."""
    people = "Their exam had other names" if as_reported else "They had other people, so the figures do not compare"
    sentences = []
    longest = {row.model: row for row in rows if row.epochs}  # the last of each model
    for row in (rows[0], *longest.values()):
        after = f" after {_FULL} epochs" if row.epochs not in (0, _FULL) else ""
        sentences.append(
            f"{capital(row.name)}: {figure(row.accuracy, 'share')} of {row.questions:,}"
            f" ({span(row.low, row.high, 'share')}); the reports{after}: {_shares(row.reported)}."
            f" Its most common answers: {parts.commonest_words(row)}."
        )
    return [*sentences, f"One run each: the intervals are for new questions, not for new seeds. {people}."]


def _reported_table(rows: Sequence[Row]) -> Table:
    """Our accuracies beside those of the reports."""

    def reported(row: Row) -> Cell:
        return Cell(_shares(row.reported), max(row.reported)) if row.reported else Cell(NOTHING, "")

    return parts.table_of(
        "Beside the reports",
        "The reports: one run each, of 500 names. Fewer epochs have the same schedule, compressed.",
        rows,
        [
            ("Model", lambda row: Cell(row.name)),
            ("Right answers", parts.accuracy_cell),
            ("In the reports", reported),
            ("Epochs of pretraining", lambda row: parts.cell(row.epochs, "count")),
            ("In the reports", lambda row: parts.cell(_FULL if row.epochs else 0, "count")),
            ("Training", lambda row: parts.cell(row.seconds, "seconds")),
        ],
        tone=parts.tone_of,
    )
