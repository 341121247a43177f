"""The run folder: settings, environment, metrics, checkpoints, model and result.

    runs/pretrain-small-1/
      config.json     settings, data with their checksums, stage
      env.json        machine and versions
      code/           users' mechanism and task files, if any (also in checkpoints and model)
      metrics.jsonl   one line per step, written as it happens
      checkpoints/    step-000400/ ...: everything needed to resume
      best/           the model with the lowest loss on held-out data, if there are any
      model/          the finished model
      result.json     written last
      manifest.json   the sha256 of these files; the run is complete when it lists result.json
      .lock           held by the process that writes the run

Every file is written atomically and checked when it is read. Knows nothing about torch.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path

import msgspec

from attnlab import reading
from attnlab.config import Settings, TaskTraits
from attnlab.errors import AttnlabWarning, CheckpointError, DataError, NotARun, UserError
from attnlab.machine import environment
from attnlab.store import folders, records

FORMAT = 1  # version of run, model and checkpoint folders
EXAMPLE = Path(__file__).parents[1] / "example"  # a run that comes with attnlab, made by tools/make_example.py
_KEPT_CHECKPOINTS = 2
_RESTORE = ": restore it from a copy; or, to train from the beginning, remove it together with the folder checkpoints"


def unused_path(stem: str, root: Path = Path("runs")) -> Path:
    """Return the first unused runs/STEM-N."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


@dataclass(frozen=True)
class DataSource:
    """A corpus or questions: the name of built-in data or a path, and the checksum of the content."""

    source: str
    sha256: str


@dataclass(frozen=True)
class RunRecord:
    """What a run was asked to do: the content of config.json."""

    stage: str = ""
    settings: Settings = field(default_factory=dict)
    task: TaskTraits = TaskTraits()
    corpus: DataSource | None = None
    facts: DataSource | None = None
    base: str | None = None  # path from the run to the run it was trained from
    dev: DataSource | None = None
    format: int = FORMAT

    @classmethod
    def read(cls, run: Path) -> RunRecord:
        """Read config.json; relative paths of data are resolved."""
        record = records.read(cls, run / "config.json")

        def resolved(data: DataSource | None) -> DataSource | None:
            if data is None or not data.source.startswith(".."):
                return data
            return replace(data, source=os.path.normpath(run.resolve() / data.source))

        corpus, facts, dev = map(resolved, (record.corpus, record.facts, record.dev))
        return replace(record, corpus=corpus, facts=facts, dev=dev)

    @property
    def data(self) -> dict[str, DataSource]:
        """The data by name: corpus, facts and dev, as far as they were given."""
        named = {"corpus": self.corpus, "facts": self.facts, "dev": self.dev}
        return {name: data for name, data in named.items() if data is not None}

    @property
    def running_text(self) -> bool:
        """Whether its corpus is running text."""
        return self.task.reads == "running text"


@dataclass(frozen=True)
class Step:
    """The record of one step: a line of metrics.jsonl."""

    step: int
    progress: float  # 0 to 1
    epoch: float
    loss: float
    rate: float  # learning rate as a share of its peak
    tokens: int  # since the start, without padding
    seconds: float  # since the start, without interruptions
    norm: float | None = None  # of the gradient, before clipping
    dev_loss: float | None = None  # mean over held-out targets, if validated after this step
    dev_accuracy: float | None = None  # share of held-out questions answered exactly
    sample: str | None = None  # what the model writes

    def row(self) -> dict[str, float | str]:
        """Return the values that are known, by name."""
        return {name: value for name, value in self.__dict__.items() if value is not None}


_STEP = msgspec.json.Decoder(Step)


@dataclass(frozen=True)
class RunResult:
    """The result of a complete run; an imported model has parameters only."""

    parameters: int
    steps: int = 0
    epochs: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    final_loss: float | None = None  # mean of the last twentieth of the steps
    threads: int | None = None
    processes: int | None = None
    peak_memory: int | None = None  # bytes of the first process, libraries included
    device: str = ""
    precision: str = ""
    best_dev_loss: float | None = None
    best_step: int | None = None
    validation_seconds: float | None = None
    stopped_early: bool = False
    imported: str = ""  # name of the folder or file that it was imported from

    def known(self) -> dict[str, float | str]:
        """Return the values that the run has, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True)
class MetricsMark:
    """The length and sha256 of metrics.jsonl when a checkpoint was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Run:
    """One run on disk."""

    path: Path

    @classmethod
    def create(cls, path: Path, record: RunRecord, code: Mapping[str, bytes] | None = None) -> Run:
        """Create a run with the user code it needs; the folder must not exist."""
        folders.refuse_existing(path)
        files = {"config.json": records.encode(record), "env.json": folders.to_json(environment()), **(code or {})}
        folders.write_folder(path, "run", files)
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open an existing run or the model of a study, by its folder, its name under runs/, or as `example`."""
        return cls(run_folder(located(path)))

    @property
    def record(self) -> RunRecord:
        """What the run was asked to do."""
        return RunRecord.read(self.path)

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return folders.is_written(self.path / "result.json")

    def _repr_html_(self) -> str:
        """The stage, the mechanism and the result as a table, for notebooks."""
        record = self.record
        rows = {"run": self.path, "stage": record.stage, "mechanism": record.settings["model"]["mechanism"]}
        rows |= self.result.known() if self.complete else {"state": "not complete: resume it"}
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
        return f"<table>{''.join(cells)}</table>"

    @property
    def result(self) -> RunResult:
        """The result of a complete run."""
        return records.read(RunResult, self.path / "result.json")

    @property
    def model(self) -> Path:
        """The folder of the finished model; before that of the best or else the last checkpoint, with a note."""
        if (self.path / "model").is_dir():
            return self.path / "model"
        checkpoints, command = self.checkpoints(), f"`attnlab resume {self.path}`"
        best = self.path / "best"
        if not best.is_dir() and not checkpoints:
            raise UserError(f"{self.path} has no model yet: train it with {command}")
        which = "best checkpoint" if best.is_dir() else f"last checkpoint, step {_step_of(checkpoints[-1]):,}"
        message = f"{self.path} is not finished: this is its {which}; {command} continues"
        warnings.warn(message, AttnlabWarning, stacklevel=1)
        return best if best.is_dir() else checkpoints[-1]

    def metrics(self) -> list[Step]:
        """Return all recorded steps; a last line truncated by a kill, or without a finite loss, is left out."""
        path = self.path / "metrics.jsonl"
        if not os.path.lexists(path):
            return []
        content = folders.read_bytes(path) if folders.is_written(path) else reading.read_bytes(path)
        lines = content.split(b"\n")
        lines.pop()  # empty, or truncated
        steps = []
        for number, line in enumerate(lines, start=1):
            try:
                steps.append(_STEP.decode(line))
            except (ValueError, RecursionError):
                if number == len(lines):
                    break
                raise CheckpointError(f"{path} is damaged at line {number}{_RESTORE}") from None
        return steps

    def metrics_mark(self) -> MetricsMark:
        """Flush the metrics and return the length and sha256 of the file, for a checkpoint."""
        with folders.os_errors(self.path), reading.open_file(self.path / "metrics.jsonl") as stream:
            os.fsync(stream.fileno())
            content = stream.read()
        return MetricsMark(len(content), folders.digest(content))

    def rewind_metrics(self, mark: MetricsMark | None = None) -> None:
        """Drop what was recorded after a checkpoint, which has stored its mark, or everything."""
        path, content = self.path / "metrics.jsonl", b""
        if mark is not None:
            content = reading.read_bytes(path)[: mark.bytes] if path.is_file() else b""
            if folders.digest(content) != mark.sha256:
                raise CheckpointError(f"{path} is damaged before its byte {mark.bytes:,}{_RESTORE}")
        folders.unlist(
            self.path, "metrics.jsonl", "result.json"
        )  # present if a user removed result.json of a complete run
        folders.write_bytes(path, content)

    def save_checkpoint(self, step: int, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint, then remove the oldest ones, and later ones that were not resumed from."""
        folders.write_folder(self.path / "checkpoints" / f"step-{step:06d}", "checkpoint", files, replace=True)
        self.tidy_checkpoints(step)

    def tidy_checkpoints(self, step: int) -> None:
        """Keep the newest checkpoints up to a step; remove others, and what a killed process left behind."""
        saved = self.checkpoints()
        past = [folder for folder in saved if _step_of(folder) <= step]
        for old in (*past[:-_KEPT_CHECKPOINTS], *saved[len(past) :]):
            folders.hide(old)
        for hidden in (self.path / "checkpoints").glob(".step-*.tmp"):
            shutil.rmtree(hidden)

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        folders = (self.path / "checkpoints").glob("step-*")
        return sorted((path for path in folders if re.fullmatch(r"step-[0-9]{1,18}", path.name)), key=_step_of)


def movable(data: DataSource, run: Path) -> DataSource:
    """Make the path of a file in the study of a run relative to the run, so that the study can be moved."""
    place = run.absolute()
    studies = (parent for parent in place.parents if (parent / "study.json").is_file())
    if not any(Path(data.source).is_relative_to(study.resolve()) for study in studies):
        return data
    return replace(data, source=os.path.relpath(data.source, place.parent.resolve() / place.name))


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def located(name: Path | str, root: Path = Path("runs")) -> Path:
    """Return the folder of a run, given by its path or by its name under `root`; `example` comes with attnlab."""
    places = (Path(name), root / name)
    ours = (place for place in places if (place / folders.MANIFEST).is_file())
    missing = EXAMPLE if str(name) == EXAMPLE.name else places[0]
    return next(ours, next(filter(os.path.lexists, places), missing))


def run_folder(path: Path) -> Path:
    """Return the folder of a run, or of the last model that a study has fine-tuned or pretrained; else raise an error."""
    if folders.kind_of(path) == "study":
        begun = (path / stage for stage in ("finetune", "pretrain"))
        latest = next((run for run in begun if (run / "model").is_dir() or Run(run).checkpoints()), None)
        if latest is None:
            runs = [run for place in ("*", "*/*") for run in sorted(path.glob(place)) if folders.kind_of(run) == "run"]
            state = "has no model of its own" if folders.is_written(path / "result.json") else "is not finished"
            named = f" (name one of its runs, such as {runs[0]})" if runs else ""
            raise NotARun(f"{path} is a study that {state}{named}", path)
        if latest.name == "pretrain":
            message = f"{path} is not finished: this is {latest}, before fine-tuning; `attnlab resume {path}` continues"
            warnings.warn(message, AttnlabWarning, stacklevel=1)
        path = latest
    if not path.is_dir():
        raise NotARun(f"{path}: no such run folder", path)
    require_kind(path, "run")
    return path


def require_kind(folder: Path, *kinds: str) -> None:
    """Refuse a folder of another kind, or one that attnlab did not write."""
    manifest = folders.Manifest.find(folder)
    if manifest is None:
        raise NotARun(f"{folder} has no {folders.MANIFEST}: it was not written by attnlab, or is damaged", folder)
    if manifest.kind not in kinds:
        raise NotARun(f"{folder} is {manifest.about or f'a {manifest.kind}'}, not a run", folder)


def lineage(run: Run) -> list[Run]:
    """Return a run, the run it was trained from, and so on; a missing one is an error."""
    runs = [run]
    while base := runs[-1].record.base:
        try:
            earlier = Run.open(runs[-1].path / base)
        except UserError as error:
            raise DataError(f"{runs[-1].path} was trained from a run that is missing: restore it ({error})") from None
        if earlier.path.resolve() in {run.path.resolve() for run in runs}:
            break
        runs.append(earlier)
    return runs
