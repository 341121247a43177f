"""What all studies share: a typed plan, a check before training, a folder that can be resumed, a result.

A study is a folder with study.json (its name, its plan, checksums of what it reads) and, when it is complete, result.json
and the report. Starting, locking, resuming and refusing changed data are implemented here, once for all studies.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from attnlab import corpora
from attnlab.config import RunConfig, Settings, Stage, absolute_given, code_named_in, resolve
from attnlab.corpora import Corpus, Question
from attnlab.errors import Interrupted, UserError
from attnlab.lm import stages
from attnlab.lm.progress import display
from attnlab.lm.tokenizers import Tokenizer
from attnlab.machine import environment
from attnlab.report import Shown, screen, strict, write_document
from attnlab.report.document import Document
from attnlab.store.folders import (
    add_files,
    digest,
    is_written,
    locked,
    read_json,
    refuse_existing,
    reporting_damage,
    to_json,
    write_folder,
)
from attnlab.store.records import plain, restored
from attnlab.store.runs import Run
from attnlab.tasks import task_class

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    P = TypeVar("P", bound=DataclassInstance)
else:
    P = TypeVar("P")

Result = dict[str, Any]  # the content of result.json; `kind` names the report


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What the results of all studies have in common."""

    kind: str
    study: str
    title: str
    command: str
    finished: str = field(default_factory=lambda: date.today().isoformat())
    seconds: float
    environment: dict[str, Any] = field(default_factory=environment)


@dataclass(frozen=True, kw_only=True)
class Study(Generic[P]):
    """One kind of study: its plan, and what is done with it, in this order."""

    plan: type[P]  # a frozen dataclass, stored in study.json
    name: Callable[[P], str]
    check: Callable[[P], None]  # raises on errors in settings and data
    fingerprints: Callable[[P], dict[str, str]]  # checksums of what could change before a resume
    train: Callable[[P, Path, Console], None]  # starts or resumes what is not trained yet
    judge: Callable[[P, Path, Console], StudyResult]  # measures and judges what is trained
    document: Callable[[Result], Document]  # the report of a result
    sources: tuple[str, ...] = ()  # fields of the plan that name data
    files: Callable[[P], dict[str, bytes]] = lambda _plan: {}  # stored beside study.json
    example: Callable[[Result], str] = lambda _result: ""  # a question to ask the model of the study

    def begin(self, plan: P, folder: Path, console: Console) -> Result:
        """Start a study in a new folder; errors are found before the folder is created."""
        refuse_existing(folder)
        plan = _with_absolute_paths(plan, self.sources)
        self.check(plan)
        stored = {"study": self.name(plan), "plan": plain(plan), "fingerprints": self.fingerprints(plan)}
        write_folder(folder, "study", {"study.json": to_json(stored), **self.files(plan)})
        return self._run(folder, plan, console)

    def resume(self, folder: Path, stored: Mapping[str, Any], console: Console) -> Result:
        """Resume a study from the plan stored in its folder."""
        with reporting_damage(folder / "study.json"):
            plan = restored(self.plan, stored)
        return self._run(folder, plan, console)

    def _run(self, folder: Path, plan: P, console: Console) -> Result:
        """Do what is not done yet and show the result; when stopped, say how to resume."""
        try:
            with locked(folder):
                result = self._result(folder, plan, console)
        except (Interrupted, KeyboardInterrupt):
            command = f"attnlab resume {shlex.quote(str(folder))}"
            raise Interrupted(f"stopped; everything is saved. Resume with: {command}") from None
        screen.show(self.document(result), console)
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
        if question := self.example(result):
            console.print(f"ask it: attnlab ask {shlex.quote(str(folder))} {shlex.quote(question)}", soft_wrap=True)
        return Shown(result)

    def _result(self, folder: Path, plan: P, console: Console) -> Result:
        if is_written(folder / "result.json"):
            return read_json(folder / "result.json")
        refuse_changes(read_json(folder / "study.json").get("fingerprints", {}), self.fingerprints(plan))
        self.train(plan, folder, console)
        result: Result = strict(plain(self.judge(plan, folder, console)))
        write_document(self.document(result), folder)
        add_files(folder, {"result.json": to_json(result)})
        return result


def _with_absolute_paths(plan: P, sources: tuple[str, ...]) -> P:
    """Make the paths of a plan valid in any folder: data, settings file, and code named in settings."""
    named: dict[str, Any] = {key: stages.absolute(name) for key in sources if (name := getattr(plan, key))}
    if isinstance(plan, Training):
        named |= {"file": str(Path(plan.file).resolve()) if plan.file else None, "given": absolute_given(plan.given)}
    return replace(plan, **named)


def refuse_changes(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to resume a study whose data, settings or code have changed since it began."""
    changed = [name for name in before if now.get(name) != before[name]]
    if changed:
        raise UserError(
            f"{', '.join(changed)} changed since this study began, and its runs would not belong together:"
            " restore what changed, or start a new study"
        )


def sums_of_files(settings: str | None, given: Settings) -> dict[str, str]:
    """Checksums of the user's files that settings depend on: the settings file, and code that is named."""
    named = code_named_in({"file": settings, "given": given})
    found = {}
    for path in [*([Path(settings)] if settings else []), *(Path(one.rpartition(":")[0]).resolve() for one in named)]:
        try:
            found[str(path)] = digest(path.read_bytes())
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}), and the study needs it: restore it") from None
    return found


class Datasets:
    """Corpora and questions by name, each read once, with the tokenizers learned from them."""

    def __init__(self) -> None:
        self.corpus = cache(corpora.load_corpus)
        self.questions = cache(corpora.load_questions)
        self._tokenizers: dict[Any, Tokenizer] = {}

    def checksums(self, named: Mapping[str, str | None]) -> dict[str, str]:
        """Checksums of named data by use: `corpus` and `dev` are texts, all others are questions."""
        return {
            use: self.corpus(name).sha256 if use in ("corpus", "dev") else stages.checksum(self.questions(name))
            for use, name in named.items()
            if name
        }

    def sources(self, corpus: str | None, facts: str | None) -> stages.Sources:
        """The training data of a stage, by name."""
        text = self.corpus(corpus) if corpus is not None else None
        return self.made(text, self.questions(facts) if facts is not None else (), facts)

    def made(self, corpus: Corpus | None, facts: tuple[Question, ...], source: str | None = None) -> stages.Sources:
        """Training data in memory."""
        return stages.Sources(corpus, facts, source, tokenizers=self._tokenizers)


def all_or_none(corpus: str | None, facts: str | None, exam: str | None) -> tuple[str, str, str] | None:
    """The data that a user names; naming a part of it is an error."""
    if corpus is not None and facts is not None and exam is not None:
        return corpus, facts, exam
    if corpus is None and facts is None and exam is None:
        return None
    raise UserError("--corpus, --facts and --exam go together: give all three, or none for the built-in people")


# Studies that train models


def run_stage(
    data: Datasets,
    settings: RunConfig,
    stage: Stage,
    sources: tuple[str | None, str | None],
    path: Path,
    show: stages.Show = stages.QUIET,
    base: Run | None = None,
) -> Run:
    """Start or resume one stage with a corpus and facts by name; a complete one is left unchanged."""
    if path.exists():
        return stages.resume(Run.open(path), show)
    corpus, facts = sources
    asks = stage != "pretrain" or task_class(settings.task).reads_questions
    return stages.begin(settings, stage, data.sources(corpus, facts if asks else None), base, path, show)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the models of a study are trained."""

    preset: str = "small"
    file: str | None = None
    given: Settings = field(default_factory=dict)

    @cached_property
    def data(self) -> Datasets:
        """What the study has read."""
        return Datasets()

    def settings(self, stage: Stage) -> RunConfig:
        """The settings of a stage; training and task settings given by the user apply to pretraining only."""
        given = (
            self.given if stage == "pretrain" else {k: v for k, v in self.given.items() if k not in ("train", "task")}
        )
        return resolve(self.preset, stage, Path(self.file) if self.file else None, given)


def train_stage(
    plan: Training, path: Path, stage: Stage, corpus: str, facts: str, console: Console, base: Run | None = None
) -> Run:
    """Train one stage of a study, with a progress bar."""
    with display(path.name, console) as show:
        return run_stage(plan.data, plan.settings(stage), stage, (corpus, facts), path, show, base)


@dataclass(frozen=True)
class TrainedRun:
    """A run as the report shows it."""

    folder: str
    stage: str
    settings: Settings
    result: dict[str, Any]
    metrics: list[dict[str, Any]]

    @classmethod
    def read(cls, run: Run) -> TrainedRun:
        """Read a complete run."""
        record = run.record
        return cls(
            run.path.name, record.stage, record.settings, plain(run.result), [step.row() for step in run.metrics()]
        )
