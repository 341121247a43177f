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

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from attnlab.config import Settings, TaskTraits
from attnlab.errors import CheckpointError, DataError, UserError
from attnlab.machine import environment
from attnlab.store.folders import (
    digest,
    hide,
    is_written,
    os_errors,
    parse_json,
    read_bytes,
    read_json,
    refuse_existing,
    reporting_damage,
    to_json,
    unlist,
    write_bytes,
    write_folder,
)
from attnlab.store.listing import run_folder
from attnlab.store.records import plain, restored

FORMAT = 1  # version of run, model and checkpoint folders
_KEPT_CHECKPOINTS = 2


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
    format: int | None = FORMAT

    @classmethod
    def read(cls, run: Path) -> RunRecord:
        """Read config.json; relative paths of data are resolved."""
        path = run / "config.json"
        stored = read_json(path)

        def data(name: str) -> DataSource | None:
            entry = (stored.get("data") or {}).get(name)
            if entry is None:
                return None
            source = entry["source"]
            if source.startswith(".."):
                source = os.path.normpath(run.resolve() / source)
            return DataSource(source, entry["sha256"])

        with reporting_damage(path):
            stage, settings, base = stored.get("stage", ""), stored.get("config", {}), stored.get("base")
            if not (isinstance(stage, str) and isinstance(settings, dict) and isinstance(base, str | None)):
                raise TypeError("stage, config or base is of the wrong type")
            task = restored(TaskTraits, stored["task"])
            return cls(stage, settings, task, data("corpus"), data("facts"), base, data("dev"), stored.get("format"))

    @property
    def running_text(self) -> bool:
        """Whether its corpus is running text."""
        return self.task.reads == "running text"

    def to_json(self) -> bytes:
        """Return the content of config.json."""
        data = {"corpus": self.corpus, "facts": self.facts, **({"dev": self.dev} if self.dev else {})}
        stored = {"format": self.format, "stage": self.stage, "config": self.settings, "task": self.task}
        return to_json(plain({**stored, "data": data, "base": self.base}))


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
        refuse_existing(path)
        files = {"config.json": record.to_json(), "env.json": to_json(environment()), **(code or {})}
        write_folder(path, "run", files)
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open an existing run, or the fine-tuned model of a study."""
        return cls(run_folder(Path(path)))

    @property
    def record(self) -> RunRecord:
        """What the run was asked to do."""
        return RunRecord.read(self.path)

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return is_written(self.path / "result.json")

    def _repr_html_(self) -> str:
        """The stage, the mechanism and the result as a table, for notebooks."""
        record = self.record
        rows = {"run": self.path, "stage": record.stage, "mechanism": record.settings["model"]["mechanism"]}
        rows |= self.result if self.complete else {"state": "not complete: resume it"}
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
        return f"<table>{''.join(cells)}</table>"

    @property
    def result(self) -> dict[str, Any]:
        """The result of a complete run."""
        return read_json(self.path / "result.json")

    @property
    def model(self) -> Path:
        """The folder of the finished model."""
        if not (self.path / "model").is_dir():
            raise UserError(f"{self.path} has no finished model: resume training with `attnlab resume {self.path}`")
        return self.path / "model"

    def metrics(self) -> list[dict[str, Any]]:
        """Return all recorded steps; a last line truncated by a kill is left out."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        content = read_bytes(path) if is_written(path) else path.read_bytes()
        lines = content.split(b"\n")
        lines.pop()  # empty, or truncated
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = parse_json(line)
                if not isinstance(row["step"], int):
                    raise TypeError
            except (ValueError, KeyError, TypeError):
                if number == len(lines):
                    break
                raise CheckpointError(
                    f"{path} is damaged at line {number}: restore it from a copy; or, to train from the beginning, remove"
                    " it together with the folder checkpoints"
                ) from None
            rows.append(row)
        return rows

    def metrics_mark(self) -> MetricsMark:
        """Flush the metrics and return the length and sha256 of the file, for a checkpoint."""
        with os_errors(self.path), (self.path / "metrics.jsonl").open("rb") as stream:
            os.fsync(stream.fileno())
            content = stream.read()
        return MetricsMark(len(content), digest(content))

    def rewind_metrics(self, step: int = 0, mark: MetricsMark | None = None) -> None:
        """Drop metrics recorded after a step; `mark` comes from its checkpoint, and is None in older ones."""
        path = self.path / "metrics.jsonl"
        if mark is None:
            kept = [row for row in self.metrics() if row["step"] <= step] if step else []
            content = "".join(json.dumps(row) + "\n" for row in kept).encode()
        else:
            content = path.read_bytes()[: mark.bytes] if path.is_file() else b""
            if digest(content) != mark.sha256:
                raise CheckpointError(
                    f"{path} is damaged before step {step}: restore it from a copy; or, to train from the beginning, remove"
                    " it together with the folder checkpoints"
                )
        unlist(self.path, "metrics.jsonl", "result.json")  # present if a user removed result.json of a complete run
        write_bytes(path, content)

    def save_checkpoint(self, step: int, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint, then remove the oldest ones, and later ones that were not resumed from."""
        write_folder(self.path / "checkpoints" / f"step-{step:06d}", "checkpoint", files, replace=True)
        self.tidy_checkpoints(step)

    def tidy_checkpoints(self, step: int) -> None:
        """Keep the newest checkpoints up to a step; remove others, and what a killed process left behind."""
        saved = self.checkpoints()
        past = [one for one in saved if _step_of(one) <= step]
        for old in (*past[:-_KEPT_CHECKPOINTS], *saved[len(past) :]):
            hide(old)
        for hidden in (self.path / "checkpoints").glob(".step-*.tmp"):
            shutil.rmtree(hidden)

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        found = (self.path / "checkpoints").glob("step-*")
        return sorted((path for path in found if re.fullmatch(r"step-[0-9]{1,18}", path.name)), key=_step_of)


def movable(data: DataSource, run: Path) -> DataSource:
    """Make the path of a file in the study of a run relative to the run, so that the study can be moved."""
    place = run.absolute()
    studies = (one for one in place.parents if (one / "study.json").is_file())
    if not any(Path(data.source).is_relative_to(one.resolve()) for one in studies):
        return data
    return replace(data, source=os.path.relpath(data.source, place.parent.resolve() / place.name))


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def lineage(run: Run) -> list[Run]:
    """Return a run, the run it was trained from, and so on; a missing one is an error."""
    found = [run]
    while base := found[-1].record.base:
        try:
            earlier = Run.open(found[-1].path / base)
        except UserError as error:
            raise DataError(f"{found[-1].path} was trained from a run that is missing: restore it ({error})") from None
        if earlier.path.resolve() in {one.path.resolve() for one in found}:
            break
        found.append(earlier)
    return found
