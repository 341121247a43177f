"""The recall experiments of the course reports, with their models, batches and learning rates.

Three models: one that is fine-tuned alone, one that is pretrained first, and one that is pretrained with a bottleneck. The
reports pretrained for 650 epochs, which takes most of a day on two cores. Here the schedule is compressed into fewer epochs,
several times, so that accuracy against epochs shows the trend.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from rich.console import Console

from attnlab.config import RunConfig, Stage
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.lm.evaluate import examine
from attnlab.lm.exams import Score, constant, majority
from attnlab.lm.model import load_model
from attnlab.lm.progress import display
from attnlab.report.reports import document, verdict
from attnlab.store.records import flat, plain
from attnlab.store.runs import Run
from attnlab.studies.study import Study, StudyResult, TrainedRun, Training, run_stage

_SOURCES = ("corpus", "facts", "exam")  # fields of the plan that name data
_ALONE, _PLAIN, _PERCEIVER = "fine-tuned alone", "pretrained", "pretrained, perceiver"
_PRESETS = {_PLAIN: "mingpt", _PERCEIVER: "mingpt-perceiver"}
_CONSTANT = "London"  # the constant answer of the reports
_FULL = 650  # epochs of pretraining in the reports
_CORPUS = "823bb536fca77c8b5a15b34b0dead6355d0cf1f806e822464bca28806c2fd055"  # checksum of theirs
# Shares of right answers in the reports, of 500 names.
_REPORTED = {_ALONE: (0.006, 0.012, 0.020), _PLAIN: (0.188, 0.210, 0.230), _PERCEIVER: (0.166,), _CONSTANT: (0.05,)}


@dataclass(frozen=True, kw_only=True)
class Plan(Training):
    """The experiments with everything needed to repeat them."""

    corpus: str = "people"
    facts: str = "people:train"
    exam: str = "people:test"
    epochs: tuple[int, ...] = (10, 20, 40)  # of pretraining, each with the whole schedule
    command: str = "attnlab run reports"
    quick: bool = False

    def stage(self, model: str, stage: Stage, epochs: int = _FULL) -> RunConfig:
        """The settings of a stage of a model; pretraining has the reports' schedule compressed into its epochs."""
        settings = replace(self, preset=_PRESETS.get(model, "mingpt")).settings(stage)
        if stage != "pretrain":
            return settings
        train, share = settings.train, epochs / settings.train.epochs
        # The warm-up keeps its length in steps, under one.
        shorter = replace(
            train, epochs=float(epochs), horizon=train.horizon * share, warmup=min(1.0, train.warmup / share)
        )
        return replace(settings, train=shorter)


def check(plan: Plan) -> None:
    """Find errors before training: settings of every stage, data, an exam without answers."""
    if not plan.epochs or min(plan.epochs) < 1 or len(set(plan.epochs)) < len(plan.epochs):
        raise UserError(f"--epochs takes different numbers of at least 1, such as 10,20,40, not {plan.epochs}")
    if "epochs" in plan.given.get("train", {}) or "steps" in plan.given.get("train", {}):
        raise UserError("`run reports` sets the length of pretraining itself: use --epochs, such as --epochs 10,20,40")
    if any(item.answer is None for item in plan.data.questions(plan.exam)):
        raise UserError(f"{plan.exam} has no answers to compare with: name an exam with QUESTION<TAB>ANSWER per line")
    sources = plan.data.sources(plan.corpus, plan.facts)
    for model in _PRESETS:
        tokenizer = stages.learn_tokenizer(plan.stage(model, "pretrain"), sources)
        for stage in get_args(Stage):
            stages.check_settings(plan.stage(model, stage), sources, tokenizer)


def train(plan: Plan, folder: Path, console: Console) -> None:
    """Start or resume all models: the shortest first."""

    def trained(name: str, settings: RunConfig, stage: Stage, base: Run | None = None) -> Run:
        with display(name, console) as show:
            return run_stage(plan.data, settings, stage, (plan.corpus, plan.facts), folder / name, show, base)

    trained("no-pretraining", plan.stage(_ALONE, "scratch"), "scratch")
    for epochs in sorted(plan.epochs):
        for model, preset in _PRESETS.items():
            base = trained(f"{preset}-{epochs}-pretrain", plan.stage(model, "pretrain", epochs), "pretrain")
            trained(f"{preset}-{epochs}-finetune", plan.stage(model, "finetune"), "finetune", base)


# Results


@dataclass(frozen=True)
class Row:
    """A model or a constant answer: epochs of pretraining, seconds of training, the score, and those of the reports."""

    name: str
    model: str
    note: str
    score: Score = flat()
    kind: str = "model"
    epochs: int = 0
    seconds: float | None = None
    reported: tuple[float, ...] = ()


@dataclass(frozen=True)
class _WorldSummary:
    corpus: str
    documents: int
    characters: int
    training_questions: int
    exam: str
    exam_questions: int
    asked_before: int
    as_reported: bool  # whether the corpus is that of the reports
    quick: bool


@dataclass(frozen=True, kw_only=True)
class _ReportsResult(StudyResult):
    kind: str = "reports"
    study: str = "reports"
    title: str = "The recall experiments of the course reports"
    full: int = _FULL
    world: _WorldSummary
    rows: list[Row]
    runs: dict[str, TrainedRun] = field(default_factory=dict)
    verdict: list[str] = field(default_factory=list)


def judge(plan: Plan, folder: Path, _console: Console) -> _ReportsResult:
    """Examine every model and the constant answers."""
    began = time.perf_counter()
    corpus, facts, exam = plan.data.corpus(plan.corpus), *map(plan.data.questions, (plan.facts, plan.exam))
    runs: dict[str, Run] = {}

    def row(model: str, note: str, *names: str, epochs: int = 0) -> Row:
        mine = [Run.open(folder / name) for name in names]
        runs.update(zip(names, mine, strict=True))
        score = examine(*load_model(mine[-1].model), exam).score()
        name = f"{model}, {epochs} epochs" if epochs else model
        seconds = sum(one.result["seconds"] for one in mine)
        return Row(name, model, note, score, "model", epochs, seconds, _REPORTED[model])

    rows = [row(_ALONE, "75 epochs of the training questions", "no-pretraining")]
    for model, preset in _PRESETS.items():
        for epochs in sorted(plan.epochs):
            names = [f"{preset}-{epochs}-{stage}" for stage in ("pretrain", "finetune")]
            rows.append(row(model, "then 10 epochs of the training questions", *names, epochs=epochs))
    always = constant(_CONSTANT, exam).score()
    rows += [
        Row(f"always {_CONSTANT}", _CONSTANT, "", always, "baseline", reported=_REPORTED[_CONSTANT]),
        Row("majority answer", "", "always the most common training answer", majority(facts, exam).score(), "baseline"),
    ]
    world = _WorldSummary(
        corpus=Path(plan.corpus).name,
        documents=len(corpus.lines),
        characters=sum(len(line) + 1 for line in corpus.lines),
        training_questions=len(facts),
        exam=Path(plan.exam).name,
        exam_questions=len(exam),
        asked_before=len({item.question for item in facts} & {item.question for item in exam}),
        as_reported=corpus.sha256 == _CORPUS,
        quick=plan.quick,
    )
    training = sum(one.result["seconds"] for one in runs.values())
    result = _ReportsResult(
        command=plan.command,
        world=world,
        rows=rows,
        runs={name: TrainedRun.read(one) for name, one in runs.items()},
        seconds=round(training + time.perf_counter() - began, 1),
    )
    return replace(result, verdict=verdict(plain(rows), world.as_reported, _FULL))


STUDY = Study(
    plan=Plan,
    name=lambda _: "reports",
    check=check,
    fingerprints=lambda plan: plan.data.checksums({key: getattr(plan, key) for key in _SOURCES}),
    train=train,
    judge=judge,
    document=document,
    sources=_SOURCES,
)
