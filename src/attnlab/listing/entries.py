"""A folder of runs read: every run, study and output as an entry, whatever state it is in."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.config import flatten, parse_json
from attnlab.errors import AttnlabError, UserError
from attnlab.manifest import NAME as MANIFEST
from attnlab.manifest import kind_of
from attnlab.runs import is_locked, is_written, read_json

OURS = ("run", "study", "classifier", "encoder", "output")  # kinds that this program made, and may take away
_REPORT = re.compile(
    r"report\.(html|md|json|tex)|report-[a-z0-9-]+\.csv|" + re.escape(MANIFEST)
)  # of a report's folder
DEPTH = 3  # folders between a study and its runs
_TAIL = 4096  # bytes at the end of a file of metrics that surely hold its last step


@dataclass(frozen=True)
class Entry:
    """One folder: what it is, how far it came, and what came out; None where there is nothing to say."""

    path: Path
    kind: str  # run, study, classifier, encoder, output, damaged, foreign, link
    what: str  # stage of a run, name of a study, verb that made something else
    state: str  # complete, stopped, active; empty for others
    when: float  # seconds since 1970
    preset: str | None = None
    mechanism: str | None = None
    task: str | None = None
    seed: int | None = None
    progress: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    note: str = ""  # what is wrong, or what it is about
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted name
    runs: tuple[Entry, ...] = ()  # those of a study

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    def columns(self) -> dict[str, Any]:
        """The figures by name, as lists, filters and programs see them."""
        names = (
            *("name", "kind", "what", "state", "when", "preset", "mechanism", "task", "seed"),
            *("progress", "tokens", "seconds", "loss", "accuracy", "note"),
        )
        return {name: getattr(self, name) for name in names}

    def plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        when = datetime.fromtimestamp(self.when, UTC).isoformat(timespec="seconds")
        inside = {"runs": [one.plain() for one in self.runs]} if self.kind == "study" else {}
        return {"path": str(self.path), **self.columns(), "when": when, "settings": dict(self.settings), **inside}


def read_all(root: Path) -> list[Entry]:
    """Every folder under `root`, by name; hidden ones are left out, since they are halves of something."""
    if (root / "config.json").is_file():
        raise UserError(f"{root} is a run itself: see it with `attnlab runs show {root}`")
    try:
        folders = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{root} cannot be listed ({error.strerror}): name a folder of runs") from None
    return [read(path) for path in folders if path.is_dir() or path.is_symlink()]


def read(path: Path) -> Entry:
    """One folder, whatever it is; links are not followed."""
    if path.is_symlink():
        return Entry(path, "link", "link", "", changed(path), note=f"a link to {path.readlink()}")
    try:
        if (path / "study.json").is_file():
            return _read_study(path)
        kind = kind_of(path)
        if kind == "encoder":
            return _read_encoder(path)
        if kind == "classifier":
            return _read_classifier(path)
        if (path / "config.json").is_file():
            return _read_run(path)
        return _read_output(path)
    except (AttnlabError, OSError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error).split(": ")[0]
        return Entry(path, "damaged", "damaged", "", changed(path), note=str(said))


def _read_run(path: Path) -> Entry:
    """A run, complete or not."""
    stored = read_json(path / "config.json")
    settings = stored.get("config")
    if not isinstance(settings, dict) or not isinstance(stored.get("stage"), str):
        return Entry(path, "foreign", "not a run", "", changed(path), note="its config.json is of another program")
    result = read_json(path / "result.json") if is_written(path / "result.json") else None
    last = result if result is not None else last_step(path / "metrics.jsonl")
    when = changed(path / "result.json", path / "metrics.jsonl", path / "config.json")
    dotted = dict(flatten(settings))
    return Entry(
        path,
        "run",
        stored["stage"],
        "complete" if result is not None else "active" if is_locked(path) else "stopped",
        when,
        preset=text(settings.get("preset")),
        mechanism=text(dotted.get("model.mechanism")),
        task=text(dotted.get("task.name")),
        seed=whole(settings.get("seed")),
        progress=1.0 if result is not None else number(last.get("progress")),
        tokens=whole(last.get("tokens")),
        seconds=number(last.get("seconds")),
        loss=number(last.get("loss" if result is None else "final_loss")),
        accuracy=number(last.get("accuracy")),
        settings=dotted,
    )


def _read_study(path: Path) -> Entry:
    """A study with the runs inside it."""
    stored = read_json(path / "study.json")
    plan = stored.get("plan")
    if not isinstance(stored.get("study"), str) or not isinstance(plan, dict):
        return Entry(path, "foreign", "not a study", "", changed(path), note="its study.json is of another program")
    result = read_json(path / "result.json") if is_written(path / "result.json") else None
    runs = tuple(_runs_inside(path))
    running = is_locked(path) or any(one.state == "active" for one in runs)
    when = max([changed(path / "result.json", path / "study.json"), *(one.when for one in runs)])
    spent = number((result or {}).get("seconds"))
    return Entry(
        path,
        "study",
        stored["study"],
        "complete" if result is not None else "active" if running else "stopped",
        when,
        preset=text(plan.get("preset")) or _joined(one.preset for one in runs),
        mechanism=_joined(one.mechanism for one in runs),
        task=_joined(one.task for one in runs),
        progress=1.0 if result is not None else None,
        tokens=sum(one.tokens or 0 for one in runs) if runs else None,
        seconds=spent if spent is not None else sum(one.seconds or 0.0 for one in runs) if runs else None,
        accuracy=_accuracy_of(result or {}),
        runs=runs,
    )


def _runs_inside(path: Path, depth: int = DEPTH) -> Iterable[Entry]:
    """The runs under a study's folder."""
    for inner in sorted(path.iterdir()):
        if inner.name.startswith(".") or inner.is_symlink() or not inner.is_dir():
            continue
        if (inner / "config.json").is_file():
            entry = read(inner)
            if entry.kind in ("run", "damaged"):
                yield entry
        elif depth > 1:
            yield from _runs_inside(inner, depth - 1)


def _read_classifier(path: Path) -> Entry:
    """What `attnlab classify` wrote; its figures are those of validation."""
    result = read_json(path / "result.json")
    dev = table(result.get("dev"))
    return replace(
        _read_finished(path, "classifier", "classify", result, table(result.get("settings"))),
        loss=number(dev.get("loss")),
        accuracy=number(dev.get("accuracy")),
        note=text(result.get("title")) or "",
    )


def _read_encoder(path: Path) -> Entry:
    """What `attnlab encoder pretrain` wrote; its loss is that of hidden tokens, which no other kind's is."""
    result = read_json(path / "result.json")
    sources = result.get("corpus")
    names = [text(table(one).get("name")) for one in sources] if isinstance(sources, list) else []
    return replace(
        _read_finished(path, "encoder", "encoder pretrain", result, table(result.get("config"))),
        loss=number(last_epoch(result).get("loss")),
        note=f"on {_joined(names)}" if _joined(names) else "",
    )


def _read_finished(path: Path, kind: str, verb: str, result: Mapping[str, Any], settings: Mapping[str, Any]) -> Entry:
    """A model of transformers, which is there whole or not at all."""
    return Entry(
        path,
        kind,
        verb,
        "complete",
        changed(path / "result.json"),
        seed=whole(settings.get("seed")),
        progress=1.0,
        tokens=whole(result.get("tokens")),
        seconds=number(result.get("seconds")),
        settings=dict(flatten(settings)),
    )


def last_epoch(result: Mapping[str, Any]) -> dict[str, Any]:
    """What an encoder's last validation found."""
    history = result.get("history")
    return table(history[-1]) if isinstance(history, list) and history else {}


def _read_output(path: Path) -> Entry:
    """What a verb that questions or reports runs has written, or a folder that has nothing to do with us."""
    inside = {one.name for one in path.iterdir()}
    if inside and all(map(_REPORT.fullmatch, inside)):
        return Entry(path, "output", "report", "complete", changed(*(path / name for name in inside)), note="a report")
    result = read_json(path / "result.json") if is_written(path / "result.json") else {}
    verb = "look" if (path / "look.html").is_file() else "evaluate" if result.keys() & {"exam", "probes"} else ""
    if not verb or not isinstance(result.get("run"), str):
        return Entry(path, "foreign", "not a run", "", changed(path), note="it has no config.json and no study.json")
    loss, accuracy = number(result.get("loss")), number(result.get("accuracy"))
    when, note = changed(path / "result.json"), f"of {result['run']}"
    return Entry(path, "output", verb, "complete", when, loss=loss, accuracy=accuracy, note=note)


def _accuracy_of(result: Mapping[str, Any]) -> float | None:
    """The accuracy a study is about: its own, or that of its first row."""
    rows = result.get("rows")
    first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    own = number(result.get("accuracy"))
    return own if own is not None else number(first.get("accuracy"))


def last_step(path: Path) -> dict[str, Any]:
    """The last whole line of a file of metrics; empty where there is none."""
    if not path.is_file():
        return {}
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL))
        lines = stream.read().split(b"\n")
    for line in reversed(lines):
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "step" in row:
            return row
    return {}


def changed(*paths: Path) -> float:
    """When the newest of some files was written; 0 where none is there."""
    return max((path.lstat().st_mtime for path in paths if os.path.lexists(path)), default=0.0)


def table(value: Any) -> dict[str, Any]:
    """A table, or an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str | None:
    """A text, or nothing."""
    return value if isinstance(value, str) else None


def number(value: Any) -> float | None:
    """A finite number, or nothing."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if fine else None


def whole(value: Any) -> int | None:
    """A whole number, or nothing."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _joined(values: Iterable[str | None]) -> str | None:
    """Different texts in their order."""
    found = list(dict.fromkeys(value for value in values if value))
    return ", ".join(found) or None
