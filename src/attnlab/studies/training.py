"""What studies of a model of their own have in common: settings by stage, lasting paths, stages begun or gone on with."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from attnlab import corpora, stages
from attnlab.comparing.checks import sums_of_files
from attnlab.config import RunConfig, Stage, lasting_given, resolve
from attnlab.progress import display
from attnlab.runs import Run


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the models of a study are trained."""

    preset: str = "small"
    file: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def settings(self, stage: Stage) -> RunConfig:
        """The settings of a stage; what is given by hand for training and task is meant for pretraining."""
        given = (
            self.given if stage == "pretrain" else {k: v for k, v in self.given.items() if k not in ("train", "task")}
        )
        return resolve(self.preset, stage, Path(self.file) if self.file else None, given)


Planned = TypeVar("Planned", bound=Training)


def lasting(plan: Planned, *sources: str) -> Planned:
    """The same plan, with names of files that hold wherever the study is gone on with."""
    named: dict[str, Any] = {key: stages.lasting(name) for key in sources if (name := getattr(plan, key))}
    file = str(Path(plan.file).resolve()) if plan.file else None
    return replace(plan, **named, file=file, given=lasting_given(plan.given))


def fingerprints(plan: Training, *sources: str) -> dict[str, str]:
    """Checksums of what a study reads and that could change under it: its sources by field, and the user's own files."""
    found = {}
    for key in sources:
        if name := getattr(plan, key):
            of_text = key == "corpus"
            found[key] = corpora.load_corpus(name).sha256 if of_text else stages.checksum(corpora.load_questions(name))
    return found | sums_of_files(plan.file, plan.given)


def train(
    plan: Training, path: Path, stage: Stage, corpus: str, facts: str, console: Console, base: Run | None = None
) -> Run:
    """One stage in its folder: begun, gone on with, or left as it is when complete."""
    settings = plan.settings(stage)
    with display(path.name, console) as show:
        if path.exists():
            return stages.resume(Run.open(path), show)
        if stage == "pretrain":
            return stages.pretrain(settings, corpus, facts if stages.reads_questions(settings) else None, path, show)
        return stages.finetune(settings, base, facts, corpus, path, show)


def describe_run(one: Run) -> dict[str, Any]:
    """A run as the report shows it."""
    config = one.config
    return {
        "folder": one.path.name,
        "stage": config["stage"],
        "settings": config["config"],
        "result": one.result,
        "metrics": one.metrics(),
    }


def invite(folder: Path, question: str, console: Console) -> None:
    """How to ask the model of a study."""
    console.print(f"ask it: attnlab ask {shlex.quote(str(folder))} {shlex.quote(question)}", soft_wrap=True)
