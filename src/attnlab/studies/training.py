"""What studies share that train models on a corpus and questions: data, settings of the stages, shares, the report's frame."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeVar

from rich.console import Console

from attnlab import stats
from attnlab.config import RunConfig, Settings, Stage, absolute_given, resolve
from attnlab.corpora import Question
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.lm.evaluate import encode_questions
from attnlab.lm.progress import display
from attnlab.report import parts
from attnlab.report.document import Axis, Cell, Chart, Document, Facts, Mark, Notice, Section, Series, section
from attnlab.report.parts import LossCurve, StudyResult, TrainedRun
from attnlab.report.words import NOTHING, count, figure, interval, percent, plural, span
from attnlab.store.runs import Run
from attnlab.studies import options as opt
from attnlab.studies.study import Study, checksums_of_files, files_named_in
from attnlab.tasks import task_class
from attnlab.trust import CalibrationSummary
from attnlab.trust.asking import MAX_RISK

Pairs = Sequence[tuple[str, str]]  # names with their values


@dataclass(frozen=True)
class DataSummary:
    """The data of a study in numbers."""

    corpus: str
    documents: int
    characters: int
    training_questions: int
    exam: str
    exam_questions: int
    asked_before: int  # exam questions that are training questions too

    def facts(self, *more: tuple[str, str]) -> Pairs:
        """Return names and values for a report."""
        return [
            ("Corpus", self.corpus),
            ("Documents", count(self.documents)),
            ("Characters", count(self.characters)),
            ("Training questions", count(self.training_questions)),
            *more,
            ("Exam", self.exam),
            ("Exam questions", count(self.exam_questions)),
            ("Exam questions asked in training", count(self.asked_before)),
        ]

    def notices(self) -> list[Notice]:
        """Return a warning if exam questions were also training questions."""
        if not self.asked_before:
            return []
        words = f"{count(self.asked_before)} of them asked in training; their answers may be known by heart."
        return [Notice(f"{plural(self.exam_questions, 'exam question')}:", words)]


@dataclass(frozen=True, kw_only=True)
class TrainingResult(StudyResult):
    """What results of studies that train models have in common."""

    runs: dict[str, TrainedRun]
    verdict: list[str]
    example: str = ""  # a question that it answers
    example_risk: float = MAX_RISK  # at which it answers it


T = TypeVar("T", bound=TrainingResult)


@dataclass(frozen=True, kw_only=True)
class Training(Study[T]):
    """A study that trains models on a corpus and questions, and examines them."""

    corpus: opt.Corpus = ""
    facts: opt.Facts = ""
    exam: opt.Exam = ""
    preset: Annotated[opt.Preset, opt.default("small, or recall for files")] = ""
    config: opt.Config | None = None
    given: opt.Hidden[Settings] = field(default_factory=dict)  # settings given as options

    sources: ClassVar[tuple[str, ...]] = ("corpus", "facts", "exam")

    def completed(self) -> Self:
        """Fill in the built-in people where no files are named, and the usual preset."""
        named = [bool(self.corpus), bool(self.facts), bool(self.exam)]
        if any(named) and not all(named):
            raise UserError("--corpus, --facts and --exam go together: give all three, or none for the built-in people")
        preset = self.preset or ("quick" if self.quick else "recall" if self.corpus else "small")
        if self.corpus:
            return replace(self, preset=preset)
        people = "people:300" if self.quick else "people"
        return replace(self, preset=preset, corpus=people, facts=f"{people}:train", exam=f"{people}:test")

    def with_absolute_paths(self) -> Self:
        """Return the plan with absolute paths of data, settings file and code."""
        plan = super().with_absolute_paths()
        file = self.config.resolve() if self.config else None
        return replace(plan, config=file, given=absolute_given(self.given))

    def fingerprints(self) -> dict[str, str]:
        """Return checksums of the data, the settings file and the code that settings name."""
        return super().fingerprints() | checksums_of_files(files_named_in(self.config, self.given))

    def settings(self, stage: Stage) -> RunConfig:
        """Return the settings of a stage; training and task settings given by the user apply to pretraining only."""
        table = {key: value for key, value in self.given.items() if stage == "pretrain" or key not in ("train", "task")}
        return resolve(self.preset, stage, self.config, table)

    def check_stages(self, names: Sequence[Stage], sources: stages.Sources, asked: Iterable[Question]) -> None:
        """Raise an error for settings of these stages, or questions, that a model cannot be trained with or asked."""
        check_training([self.settings(stage) for stage in names], sources, asked)

    def train_stage(
        self,
        path: Path,
        settings: RunConfig,
        stage: Stage,
        sources: tuple[str | None, str | None],
        console: Console,
        base: Run | None = None,
    ) -> Run:
        """Start or resume one stage with a corpus and facts by name, with a progress bar; a complete one is left unchanged."""
        with display(path.name, console) as show:
            if path.exists():
                return stages.resume(Run.open(path), show)
            corpus, facts = sources
            asks = stage != "pretrain" or task_class(settings.task).reads_questions
            return stages.begin(settings, stage, self.data.sources(corpus, facts if asks else None), base, path, show)

    def data_summary(self, facts: tuple[Question, ...]) -> DataSummary:
        """Describe the data, with the questions that were trained on."""
        corpus, exam = self.data.corpus(self.corpus), self.data.questions(self.exam)
        return DataSummary(
            corpus=Path(self.corpus).name,
            documents=len(corpus.lines),
            characters=sum(len(line) + 1 for line in corpus.lines),
            training_questions=len(facts),
            exam=Path(self.exam).name,
            exam_questions=len(exam),
            asked_before=len({item.question for item in facts} & {item.question for item in exam}),
        )

    def hint(self, folder: Path, result: T) -> str:
        """Return a command that asks the model: a question that it answers, or none if it answers none of the exam."""
        risk = ["--max-risk", f"{result.example_risk:g}"] if result.example_risk != MAX_RISK else []
        words = shlex.join(["attnlab", "ask", str(folder), *([result.example, *risk] if result.example else [])])
        why = f"\n(--max-risk: with so few calibration questions, no risk below {100 * result.example_risk:g} % is certified)"
        return f"ask it: {words}" + (why if risk else "")

    def complete_result(self, result: T, seconds: float) -> T:
        """Return the result with the time of training and measuring."""
        spent = sum(run.seconds for run in result.runs.values()) + seconds
        return super().complete_result(replace(result, seconds=round(spent, 1)), seconds)

    def report(self, result: T, sections: Sequence[Section], data: Pairs, notices: Sequence[Notice] = ()) -> Document:
        """Return the report with these sections, followed by the training runs and how to reproduce them."""
        settings = {name: run.settings for name, run in result.runs.items()}
        training = section("Training", *parts.training_blocks(result.runs))
        last = parts.reproduce(result, Facts("Data", data), settings)
        notices = [*([parts.QUICK] if self.quick else []), *notices]
        return parts.report_of(self.name, result, result.verdict, [*sections, *training, last], notices)


def check_training(settings: Sequence[RunConfig], sources: stages.Sources, asked: Iterable[Question]) -> None:
    """Raise an error for settings of stages that do not fit the data or the tokenizer, and for questions too long to ask."""
    tokenizer = stages.learn_tokenizer(settings[0], sources)
    for each in settings:
        stages.check_settings(each, sources, tokenizer)
    encode_questions(tokenizer, (item.question for item in asked), settings[0].model.block_size)


def read_run(run: Run) -> TrainedRun:
    """Read a complete run as reports show it."""
    record, curve = run.record, LossCurve.of(run.metrics())
    return TrainedRun(
        **vars(run.result), folder=run.path.name, stage=record.stage, settings=record.settings, curve=curve
    )


# Shares of right answers


@dataclass(frozen=True)
class Share:
    """A share of right answers with its 95 % interval, and that of each seed; without answers there is none."""

    accuracy: float | None
    low: float | None
    high: float | None
    of: int  # answers of a seed
    each: list[float]

    def cell(self) -> Cell:
        """Return the share with its interval below, and the seeds behind it."""
        return parts.accuracy_cell(self, ", ".join(map(percent, self.each)) if len(self.each) > 1 else "")

    def __str__(self) -> str:
        """The share in words."""
        return f"{figure(self.accuracy, 'share')} ({span(self.low, self.high, 'share')})"


def share_of(*right: Sequence[bool], clusters: Sequence[int] | None = None) -> Share:
    """The share of right answers of every seed, with an interval for new seeds and questions, or clusters of them.

    With one seed or without variation, the interval is Wilson's over the questions.
    """
    questions = len(right[0])
    if not questions:
        return Share(None, None, None, 0, [])
    crossed = stats.crossed(right, clusters=clusters)
    low, high = crossed.low, crossed.high
    if clusters is None and (len(right) == 1 or low is None):
        low, high = stats.proportion_interval(round(crossed.mean * questions), questions)
    ends = (None if low is None else max(0.0, low), None if high is None else min(1.0, high))
    return Share(crossed.mean, *ends, questions, [sum(row) / questions for row in right])


def accuracy_curves(
    title: str, x: Axis, start: parts.Measured, points: Iterable[tuple[str, float, parts.Measured]]
) -> Chart:
    """Right answers in per cent against a number, with their intervals; every curve, by name, begins at 0 with `start`."""
    curves: dict[str, list[tuple[float, Mark]]] = {}
    for name, place, score in points:
        curve = curves.setdefault(name, [(0.0, parts.accuracy_mark(name, start))])
        curve.append((float(place), parts.accuracy_mark(name, score)))
    series = []
    for name, curve in curves.items():
        dots = [(place, mark.value) for place, mark in curve]
        y, low, high = ([getattr(mark, key) for _, mark in curve] for key in ("value", "low", "high"))
        series.append(Series(name, [place for place, _ in dots], y, low, high, dots=dots))
    return parts.lines(title, series, x, Axis("right answers", "%", low=0.0), f"right answers in per cent against {x}")


def auroc_cell(area: stats.Auroc | None) -> Cell:
    """An area under the ROC curve with its interval below."""
    if area is None:
        return Cell(NOTHING)
    under = "" if area.low is None else f"{area.low:.3f} to {area.high:.3f}"
    return Cell(f"{area.value:.3f}", area.value, under, low=area.low, high=area.high)


def calibration_facts(calibration: CalibrationSummary) -> Facts:
    """A calibration in numbers."""
    area = auroc_cell(calibration.auroc)
    pairs = [
        ("Calibration questions", count(calibration.questions)),
        (
            "Most likely answers that are right",
            f"{percent(calibration.accuracy)} ({interval(calibration.low, calibration.high)})",
        ),
        ("Candidate answers", count(calibration.candidates)),
        ("Calibration error before", percent(calibration.ece_before)),
        ("Calibration error after, on other questions than the fit", percent(calibration.ece_after)),
        ("Calibration error by chance, if perfectly calibrated", percent(calibration.ece_if_calibrated)),
        ("AUROC, right against wrong answers", f"{area.text} ({area.under})" if area.under else area.text),
    ]
    return Facts("Calibration", pairs)
