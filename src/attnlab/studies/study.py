"""What every study has in common: a typed plan, a check before anything is trained, a folder that can be resumed, a result.

A study is a folder with study.json (its name, its plan, checksums of what it reads) and, in the end, result.json and the
report. Starting, locking, resuming and refusing changed data are done here, once for all studies.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from attnlab import corpora, stages
from attnlab.config import RunConfig, Settings, Stage, absolute_given, code_named_in, resolve
from attnlab.errors import Interrupted, UserError
from attnlab.folders import add_files, digest, is_written, locked, read_json, refuse_existing, to_json, write_folder
from attnlab.progress import display
from attnlab.report import show_result, write_report
from attnlab.runs import Run

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    P = TypeVar("P", bound=DataclassInstance)
else:
    P = TypeVar("P")

Result = dict[str, Any]  # what result.json holds; `kind` says whose it is


def _no_files(_plan: Any) -> dict[str, bytes]:
    return {}


def _nothing_more(_folder: Path, _result: Result, _console: Console) -> None:
    return None


@dataclass(frozen=True)
class Study(Generic[P]):
    """One kind of study, by what it does with its plan."""

    restore: Callable[[Mapping[str, Any]], P]  # a plan from what study.json holds
    check: Callable[[P], None]  # refuses mistakes in settings and data
    fingerprints: Callable[[P], dict[str, str]]  # checksums of what could change before a resume
    judge: Callable[[Path, P, Console], Result]  # trains what is not trained yet, then measures and judges
    name: Callable[[P], str]
    sources: tuple[str, ...] = ()  # fields of the plan that name data
    files: Callable[[P], dict[str, bytes]] = _no_files  # stored beside study.json
    epilogue: Callable[[Path, Result, Console], None] = _nothing_more  # said after the result

    def begin(self, plan: P, folder: Path, console: Console) -> Result:
        """Start a study in a new folder; mistakes are found before the folder is made."""
        refuse_existing(folder)
        plan = absolute(plan, self.sources)
        self.check(plan)
        stored = {"study": self.name(plan), "plan": asdict(plan), "fingerprints": self.fingerprints(plan)}
        write_folder(folder, "study", {"study.json": to_json(stored), **self.files(plan)})
        return self.run(folder, plan, console)

    def resume(self, folder: Path, stored: Mapping[str, Any], console: Console) -> Result:
        """Resume a study from the plan that its folder holds."""
        return self.run(folder, self.restore(stored), console)

    def run(self, folder: Path, plan: P, console: Console) -> Result:
        """Do what is not done yet, and show the result; when stopped, say how to resume."""
        try:
            with locked(folder):
                result = self._result(folder, plan, console)
        except (Interrupted, KeyboardInterrupt):
            command = f"attnlab resume {shlex.quote(str(folder))}"
            raise Interrupted(f"stopped; everything is saved. Resume with: {command}") from None
        show_result(result, console)
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
        self.epilogue(folder, result, console)
        return result

    def _result(self, folder: Path, plan: P, console: Console) -> Result:
        if is_written(folder / "result.json"):
            return read_json(folder / "result.json")
        refuse_changes(read_json(folder / "study.json").get("fingerprints", {}), self.fingerprints(plan))
        result = self.judge(folder, plan, console)
        write_report(result, folder)
        add_files(folder, {"result.json": to_json(result)})
        return result


def absolute(plan: P, sources: tuple[str, ...]) -> P:
    """The same plan with paths that hold from any folder: of its data, its settings file, and the code it names."""
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
    """Checksums of the user's own files that settings are made of: the settings file, and the code that is named."""
    named = code_named_in({"file": settings, "given": given})
    found = {}
    for path in [*([Path(settings)] if settings else []), *(Path(one.rpartition(":")[0]).resolve() for one in named)]:
        try:
            found[str(path)] = digest(path.read_bytes())
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}), and the study needs it: restore it") from None
    return found


# Studies that train models of their own


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the models of a study are trained."""

    preset: str = "small"
    file: str | None = None
    given: Settings = field(default_factory=dict)

    def settings(self, stage: Stage) -> RunConfig:
        """The settings of a stage; training and task settings given by hand are meant for pretraining."""
        given = (
            self.given if stage == "pretrain" else {k: v for k, v in self.given.items() if k not in ("train", "task")}
        )
        return resolve(self.preset, stage, Path(self.file) if self.file else None, given)


def fingerprints(plan: Training, sources: tuple[str, ...]) -> dict[str, str]:
    """Checksums of the data that a plan names by field, and of the user's own files."""
    found = {}
    for key in sources:
        if name := getattr(plan, key):
            of_text = key == "corpus"
            found[key] = corpora.load_corpus(name).sha256 if of_text else stages.checksum(corpora.load_questions(name))
    return found | sums_of_files(plan.file, plan.given)


def train(
    plan: Training, path: Path, stage: Stage, corpus: str, facts: str, console: Console, base: Run | None = None
) -> Run:
    """One stage in its folder: started, resumed, or left as it is when complete."""
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


def suggest_question(folder: Path, question: str, console: Console) -> None:
    """How to ask the model of a study."""
    console.print(f"ask it: attnlab ask {shlex.quote(str(folder))} {shlex.quote(question)}", soft_wrap=True)
