"""The folders under runs/: tell their kinds, list them, find them by name or by any setting, show one in full, delete.

Every folder becomes an `Entry`, whatever its state: complete, stopped, damaged, or not written by attnlab.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attnlab.config import RunConfig, flatten, resolve
from attnlab.errors import AttnlabError, CheckpointError, ConfigError, StorageError, UserError, unknown
from attnlab.store.folders import (
    MANIFEST,
    Manifest,
    is_locked,
    is_written,
    note_without_manifest,
    parse_json,
    peek,
    read_json,
)
from attnlab.store.usercode import split_names

_OURS = ("run", "study", "classifier", "output")  # kinds written by attnlab, which may be deleted
_COLUMNS = (
    *("name", "kind", "what", "state", "when", "preset", "mechanism", "task", "seed"),
    *("progress", "tokens", "seconds", "loss", "accuracy", "note"),
)
_OF_RUNS = ("preset", "mechanism", "task", "seed")  # columns that a study takes from its runs
_OUTPUTS = {  # kinds in manifests: the command that writes such a folder, and what it is
    "approximation": ("mechanisms show", "patterns and errors of a mechanism"),
    "bench": ("bench", "a benchmark"),
    "corpus": ("corpus export", "built-in data"),
    "evaluation": ("evaluate", "an evaluation"),
    "export": ("export", "a model for transformers"),
    "look": ("look", "attention weights"),
    "predictions": ("classify --predict", "labels for texts"),
    "report": ("report", "a report"),
    "tensorboard": ("runs export", "curves for TensorBoard"),
}
_PARTS = ("checkpoint", "measurement", "model", "questions", "training", "trials")  # kinds inside runs and studies
_REPORT = re.compile(r"report\.(html|md|json|tex)|report-[a-z0-9-]+\.csv")  # files of a report without a manifest
_DEPTH = 3  # folders between a study and its runs
_TAIL = 2**15  # bytes at the end of metrics.jsonl that hold the recent steps
SMOOTHING = 0.95  # of the loss while a run trains: the weight of a step relative to the next


@dataclass(frozen=True)
class Entry:
    """One folder: its kind, its state and its main figures; None where a figure is unknown."""

    path: Path
    kind: str  # run, study, classifier, output, damaged, foreign, link
    what: str  # stage of a run, name of a study, command that wrote anything else
    state: str  # complete, stopped, active; empty for others
    when: float  # seconds since 1970
    preset: str | None = None
    mechanism: str | None = None
    task: str | None = None
    seed: int | None = None
    progress: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    loss: float | None = None  # mean of the last steps, as training shows it
    accuracy: float | None = None
    note: str = ""  # what is wrong, or what it is about
    settings: Mapping[str, object] = field(default_factory=dict)  # by dotted name
    runs: tuple[Entry, ...] = ()  # those inside a study

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def mechanisms(self) -> list[str]:
        """The names of its mechanisms, as they are repeated over the layers."""
        return split_names(self.mechanism) if self.mechanism else []

    def columns(self) -> dict[str, object]:
        """The figures by name, as lists, filters and programs see them."""
        return {name: getattr(self, name) for name in _COLUMNS}

    def plain(self) -> dict[str, Any]:
        """The entry as JSON data."""
        when = datetime.fromtimestamp(self.when, UTC).isoformat(timespec="seconds")
        inside = {"runs": [one.plain() for one in self.runs]} if self.kind == "study" else {}
        return {"path": str(self.path), **self.columns(), "when": when, "settings": dict(self.settings), **inside}


# Kinds


def kind_of(folder: Path) -> str:
    """Return the kind of a folder from its manifest, else from its files; "" for an unknown folder."""
    try:
        manifest = Manifest.read(folder)
    except CheckpointError:
        manifest = None
    return manifest.kind if manifest is not None else _kind_by_files(folder)


def _kind_by_files(folder: Path) -> str:
    """The kind of a folder without a manifest, as older versions wrote them."""
    config, result = peek(folder / "config.json"), peek(folder / "result.json")
    if (folder / "study.json").is_file():
        return "study"
    if (folder / "predictions.tsv").is_file() and {"best_epoch", "labels", "dev"} <= result.keys():
        return "classifier"
    return "run" if "stage" in config else ""


def refuse_other_models(folder: Path) -> None:
    """Refuse a folder whose model is one of transformers, and say what to do with it."""
    kind, architecture = kind_of(folder), peek(folder / "config.json").get("model_type")
    named = shlex.quote(str(folder))
    if kind == "classifier" and not (folder / "model" / "config.json").is_file():
        raise UserError(
            f"{folder} is a bag-of-words classifier, not a run: `attnlab runs show {named}` shows its results,"
            f" and `attnlab classify --model {named} --predict FILE` labels texts"
        )
    if kind == "classifier":
        load = f"AutoModelForSequenceClassification.from_pretrained({str(folder / 'model')!r})"
        raise UserError(f"{folder} is a transformers classifier already: load it with {load}")
    if architecture in ("gpt2", "attnlab"):
        raise UserError(
            f"{folder} is a transformers model already: to convert it to a run, use `attnlab import {named} runs/NAME`"
        )
    if isinstance(architecture, str):
        raise UserError(
            f"{folder} is a model ({architecture}) of transformers already: load it with"
            f" AutoModel.from_pretrained({str(folder)!r}), or fine-tune it: attnlab classify --model {named}"
        )


def run_folder(path: Path) -> Path:
    """Return the folder of a run, or of the fine-tuned model of a study; anything else is refused with advice."""
    if kind_of(path) == "study":
        several = sorted(one.parent for one in path.glob("*/seed-*/config.json"))
        if several or "variants" in read_json(path / "study.json").get("plan", {}):
            example = several[0] if several else path / "VARIANT" / "seed-0"
            raise UserError(f"{path} is a comparison of several runs: name one of them, such as {example}")
        refuse_other_models(path / "best")
        if not (path / "finetune" / "model").is_dir():
            if is_written(path / "result.json"):
                raise UserError(f"{path} is a finished study, not a run: see `attnlab runs show {path}`")
            raise UserError(f"{path} was stopped before its model was finished: resume with `attnlab resume {path}`")
        path = path / "finetune"
    if not path.is_dir():
        raise UserError(f"{path}: no such run folder; `attnlab runs` shows those of this folder")
    refuse_other_models(path)
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is not a run folder: it has no config.json")
    return path


# Reading folders


def read_all(root: Path) -> list[Entry]:
    """Read every folder under `root`, by name; hidden ones are left out, because they are unfinished."""
    if (root / "config.json").is_file():
        raise UserError(f"{root} is a run itself: see it with `attnlab runs show {root}`")
    try:
        folders = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{root} cannot be listed ({error.strerror}): name a folder of runs") from None
    return [read(path) for path in folders if path.is_dir() or path.is_symlink()]


def read(path: Path) -> Entry:
    """Read one folder, whatever it is; links are not followed."""
    if path.is_symlink():
        return Entry(path, "link", "link", "", _changed(path), note=f"a link to {path.readlink()}")
    try:
        kind = kind_of(path)
        if kind == "study":
            return _read_study(path)
        if kind == "classifier":
            return _read_classifier(path)
        if kind in _OUTPUTS:
            return _read_output(path, kind)
        if kind in _PARTS:
            return Entry(path, "foreign", "not a run", "", _changed(path), note=f"a {kind}, part of a run or study")
        if kind == "run" or (path / "config.json").is_file():
            return _read_run(path)
        return _read_output(path, _older_output(path))
    except (AttnlabError, OSError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error).split(": ")[0]
        return Entry(path, "damaged", "damaged", "", _changed(path), note=str(said))


def _read_run(path: Path) -> Entry:
    stored = read_json(path / "config.json")
    settings = stored.get("config")
    if not isinstance(settings, dict) or not isinstance(stored.get("stage"), str):
        return Entry(path, "foreign", "not a run", "", _changed(path), note="its config.json is of another program")
    result = _read_result(path)
    last = last_step(path / "metrics.jsonl") if result is None else result
    dotted = dict(flatten(settings))
    return Entry(
        path,
        "run",
        stored["stage"],
        "complete" if result is not None else "active" if is_locked(path) else "stopped",
        _changed(path / "result.json", path / "metrics.jsonl", path / "config.json"),
        preset=_text(settings.get("preset")),
        mechanism=_text(dotted.get("model.mechanism")),
        task=_text(dotted.get("task.name")),
        seed=_integer(settings.get("seed")),
        progress=1.0 if result is not None else as_number(last.get("progress")),
        tokens=_integer(last.get("tokens")),
        seconds=as_number(last.get("seconds")),
        loss=as_number(last.get("loss" if result is None else "final_loss")),
        accuracy=as_number(last.get("accuracy")),
        settings=dotted,
    )


def _read_study(path: Path) -> Entry:
    stored = read_json(path / "study.json")
    plan = stored.get("plan")
    if not isinstance(stored.get("study"), str) or not isinstance(plan, dict):
        return Entry(path, "foreign", "not a study", "", _changed(path), note="its study.json is of another program")
    result = _read_result(path)
    runs = tuple(_runs_inside(path))
    running = is_locked(path) or any(one.state == "active" for one in runs)
    seconds = as_number((result or {}).get("seconds"))
    return Entry(
        path,
        "study",
        stored["study"],
        "complete" if result is not None else "active" if running else "stopped",
        max([_changed(path / "result.json", path / "study.json"), *(one.when for one in runs)]),
        preset=_text(plan.get("preset")) or _joined(one.preset for one in runs),
        mechanism=_joined(one.mechanism for one in runs),
        task=_joined(one.task for one in runs),
        progress=1.0 if result is not None else None,
        tokens=sum(one.tokens or 0 for one in runs) if runs else None,
        seconds=sum(one.seconds or 0.0 for one in runs) if runs and seconds is None else seconds,
        accuracy=_accuracy_of(result or {}),
        runs=runs,
    )


def _accuracy_of(result: Mapping[str, object]) -> float | None:
    """The accuracy of a study: its own, or that of its first row."""
    own, rows = as_number(result.get("accuracy")), result.get("rows")
    first = as_table(rows[0] if isinstance(rows, list) and rows else None)
    return own if own is not None else as_number(first.get("accuracy"))


def _runs_inside(path: Path, depth: int = _DEPTH) -> Iterator[Entry]:
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
    """Read a classifier, with loss and accuracy on validation."""
    result = read_json(path / "result.json")
    settings, measured = as_table(result.get("settings")), as_table(result.get("dev"))
    return Entry(
        path,
        "classifier",
        "classify",
        "complete",  # such folders are written in one step
        _changed(path / "result.json"),
        seed=_integer(settings.get("seed")),
        progress=1.0,
        tokens=_integer(result.get("tokens")),
        seconds=as_number(result.get("seconds")),
        loss=as_number(measured.get("loss")),
        accuracy=as_number(measured.get("accuracy")),
        note=_text(result.get("title")) or "",
        settings=dict(flatten(settings)),
    )


def _read_output(path: Path, kind: str) -> Entry:
    """Read the output of a command that examines or reports; it may hold nothing but what attnlab wrote."""
    manifest = Manifest.read(path) if kind else None
    written = {MANIFEST, *(name.split("/")[0] for name in manifest.files)} if manifest else set()
    others = sorted(one.name for one in path.iterdir() if one.name not in written) if manifest else []
    if not kind or others:
        note = f"it also holds {others[0]}" if others else "it has no config.json and no study.json"
        return Entry(path, "foreign", "not a run", "", _changed(path), note=note)
    result = _read_result(path) or {}
    command, note = _OUTPUTS[kind]
    source = _text(result.get("run"))
    return Entry(
        path,
        "output",
        command,
        "complete",  # such folders are written in one step
        _changed(*path.iterdir()),
        loss=as_number(result.get("loss")),
        accuracy=as_number(result.get("accuracy")),
        note=f"of {source}" if source else note,
    )


def _older_output(path: Path) -> str:
    """The kind of an output without a manifest, from its files; empty for anything else."""
    inside = {one.name for one in path.iterdir()}
    if inside and all(map(_REPORT.fullmatch, inside)):
        return "report"
    result = _read_result(path) or {}
    if not isinstance(result.get("run"), str):
        return ""
    return "look" if "look.html" in inside else "evaluation" if result.keys() & {"exam", "probes"} else ""


def _read_result(path: Path) -> dict[str, object] | None:
    return read_json(path / "result.json") if is_written(path / "result.json") else None


def last_step(path: Path) -> dict[str, Any]:
    """The last step of a metrics file, with the mean loss of the recent steps; empty where there is none."""
    if not path.is_file():
        return {}
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL))
        lines = stream.read().split(b"\n")
    last: dict[str, Any] = {}
    total = weight = 0.0  # of the mean that progress bars show
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "step" in row:
            last, loss = row, as_number(row.get("loss"))
            if loss is not None:
                total, weight = SMOOTHING * total + loss, SMOOTHING * weight + 1
    return {**last, "loss": total / weight} if weight else last


def share_done(progress: float) -> str:
    """How far a training has come in per cent, rounded down, as everywhere: only a complete one has 100 %."""
    return f"{int(100 * progress)} %"


def _changed(*paths: Path) -> float:
    """When the newest of some files was written; 0 where there is none."""
    return max((path.lstat().st_mtime for path in paths if os.path.lexists(path)), default=0.0)


def as_table(value: object) -> dict[str, object]:
    """A stored value if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_number(value: object) -> float | None:
    """A stored value if it is a finite number."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if fine else None  # type: ignore[return-value]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


# Finding entries


@dataclass(frozen=True)
class Filter:
    """A condition on one column or setting, such as mechanism=dot or train.lr>=0.001."""

    key: str
    sign: str
    value: str

    @classmethod
    def parse(cls, given: str) -> Filter:
        """Parse a condition of the command line."""
        parts = re.fullmatch(r"\s*([\w.-]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", given)
        if not parts:
            raise UserError(f"a filter is NAME=VALUE (or != < <= > >=), such as mechanism=dot, not '{given}'")
        found = cls(*parts.groups())
        if found.sign not in ("=", "!=") and found.number is None:
            raise UserError(f"'{given}' compares with '{found.value}', which is not a number")
        return found

    @property
    def number(self) -> float | None:
        """The value as a number, if it is one."""
        try:
            return float(self.value)
        except ValueError:
            return None

    def holds(self, value: Any) -> bool:
        """Whether a value meets the condition; a missing value meets only !=."""
        wanted, is_number = self.number, as_number(value) is not None
        if self.sign in ("=", "!="):
            if is_number and wanted is not None:
                equal = value == wanted
            elif isinstance(value, bool):
                equal = str(value).lower() == self.value.lower()
            else:
                choices = [str(value), *str(value).replace(" ", "").split(",")] if value is not None else []
                equal = any(fnmatchcase(choice, self.value) for choice in choices)
            return equal == (self.sign == "=")
        if not is_number or wanted is None:
            return False
        compared = {"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}
        return compared[self.sign]


def _values(entry: Entry) -> dict[str, object]:
    """Everything that a filter can ask for: settings and columns, and `what` under the name of its kind."""
    named = {"run": {"stage": entry.what}, "study": {"study": entry.what}}.get(entry.kind, {})
    return {**entry.settings, **entry.columns(), **named}


def _look_up(key: str, values: Mapping[str, object]) -> object:
    """A column or setting by its name, or by the last part of it."""
    if key in values:
        return values[key]
    return next((value for name, value in values.items() if name.endswith(f".{key}")), None)


def _check_key(key: str, entries: Sequence[Entry]) -> None:
    """Refuse a name that no entry and no setting has, and the last part of a name that stands for two."""
    known = {*RunConfig().flat(), *_COLUMNS, "stage", "study"}
    known |= {name for entry in with_inner(entries) for name in entry.settings}
    meant = [key] if key in known else sorted(name for name in known if name.endswith(f".{key}"))
    if not meant:
        few = "choose a column, such as mechanism, state or loss, or a setting that attnlab settings lists"
        raise UserError(unknown("column or setting", key, known, few))
    if len(meant) > 1:
        raise UserError(f"'{key}' could be {' or '.join(meant)}: write it in full")


def choose(entries: Sequence[Entry], filters: Sequence[Filter]) -> list[Entry]:
    """The entries that meet all conditions; a study does if one of its runs meets those that the study does not decide."""
    for one in filters:
        _check_key(one.key, entries)

    def meets(values: Mapping[str, object]) -> bool:
        return all(one.holds(_look_up(one.key, values)) for one in filters)

    def fits(entry: Entry) -> bool:
        own = _values(entry)
        shared = {name: value for name, value in own.items() if name not in _OF_RUNS and value is not None}
        return meets(own) or any(meets({**_values(run), **shared}) for run in entry.runs)

    return [entry for entry in entries if fits(entry)]


def arrange(entries: Sequence[Entry], key: str = "when", reverse: bool = False) -> list[Entry]:
    """The entries sorted by a column or setting, smallest first; those without it always come last."""
    _check_key(key, entries)

    def order(pair: tuple[Any, Entry]) -> tuple[int, float, str]:  # numbers before texts
        value = pair[0]
        return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))

    found = [(_look_up(key, _values(entry)), entry) for entry in entries]
    present = sorted((pair for pair in found if pair[0] is not None), key=order, reverse=reverse)
    return [entry for _, entry in present] + [entry for value, entry in found if value is None]


def with_inner(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each study followed by its runs."""
    return [inner for entry in entries for inner in (entry, *entry.runs)]


def find(name: str, root: Path = Path("runs")) -> Entry:
    """Find a run by its path, or by its name under `root`."""
    places = [place for place in (Path(name), root / name) if os.path.lexists(place)]
    found = [read(place) for place in places]
    if found:
        return next((entry for entry in found if entry.kind != "foreign"), found[0])
    names = [entry.name for entry in read_all(root)] if root.is_dir() else []
    if not names:
        raise UserError(f"{name}: no such run folder; `attnlab runs` shows those there are")
    raise UserError(unknown("run", name, names))


# One entry in full


@dataclass(frozen=True)
class Details:
    """An entry with its result, its files and, for a run, its data and its differences from the preset."""

    entry: Entry
    stored: Mapping[str, object]  # config.json of a run
    differences: Mapping[str, tuple[Any, Any]] | None  # (preset's, run's); None where the preset is unknown
    result: Mapping[str, object] | None
    files: Sequence[tuple[str, int]] | None  # with their bytes

    def plain(self) -> dict[str, Any]:
        """The details as JSON data."""
        shown = self.entry.plain()
        if self.entry.kind == "run":
            shown |= {"data": self.stored.get("data"), "base": self.stored.get("base")}
            shown["differences"] = self.differences
        if self.result is not None:
            shown["result"] = self.result
        if self.files is not None:
            shown["files"] = [{"name": name, "bytes": size} for name, size in self.files]
        return shown


def details(entry: Entry) -> Details:
    """Read everything about one entry."""
    is_run = entry.kind == "run"
    if entry.kind in _OURS:
        note_without_manifest(entry.path)
    return Details(
        entry,
        read_json(entry.path / "config.json") if is_run else {},
        _differences(entry) if is_run else None,
        _read_result(entry.path) if entry.kind in _OURS else None,
        _contents(entry.path) if entry.kind != "link" else None,
    )


def _differences(entry: Entry) -> dict[str, tuple[Any, Any]] | None:
    """The settings in which a run differs from its preset; None if this version has no such preset."""
    try:
        stage = entry.what if entry.what in ("finetune", "scratch") else "pretrain"
        preset = dict(flatten(resolve(entry.preset or "", stage).to_dict()))  # type: ignore[arg-type]
    except ConfigError:
        return None
    # A run of an older version lacks what was added since, and an empty table is the same as none.
    own = {name: value for name, value in entry.settings.items() if value != {}}
    names = [name for name in own if preset.get(name) != own[name]]
    # Threads are chosen by the machine where the preset leaves them open.
    return {name: (preset.get(name), own[name]) for name in names if (name, preset.get(name)) != ("train.threads", 0)}


def _contents(path: Path) -> list[tuple[str, int]]:
    """What lies directly in a folder, with sizes; a folder's size is that of everything in it."""
    return [
        (f"{one.name}/", folder_size(one)[1])
        if one.is_dir() and not one.is_symlink()
        else (one.name, one.lstat().st_size)
        for one in sorted(path.iterdir())
    ]


def folder_size(path: Path) -> tuple[int, int]:
    """The number of files in a folder, and their bytes; links are not followed."""
    sizes = [(Path(base) / name).lstat().st_size for base, _, names in os.walk(path) for name in names]
    return len(sizes), sum(sizes)


# Deleting


def may_delete(entry: Entry) -> Entry:
    """The entry with its absolute path; refuse anything that attnlab did not certainly write."""
    if entry.kind == "link":
        raise UserError(f"{entry.path} is a link, which is not followed: remove the link by hand")
    if entry.kind not in _OURS:
        raise UserError(f"{entry.path} is {entry.what} ({entry.note}): remove it by hand if that is meant")
    real = entry.path.resolve()
    if Path.cwd().resolve().is_relative_to(real):
        raise UserError(f"{entry.path} is where you are: go elsewhere first")
    return replace(entry, path=real)


def outermost(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without repetitions, and without those inside others."""
    found = {entry.path: entry for entry in entries}
    return [entry for path, entry in found.items() if not any(other in path.parents for other in found)]


def reasons_to_keep(entry: Entry, others: Iterable[Entry]) -> list[str]:
    """Why an entry may still be needed: it is being written, part of a study, or the base of an unfinished run."""
    reasons = []
    if entry.state == "active":
        reasons.append("it is being written now")
    above = list(entry.path.parents)[:_DEPTH]
    reasons += [f"part of the study {folder.name}" for folder in above if (folder / "study.json").is_file()]
    for other in others:
        if other.kind == "run" and other.state != "complete" and entry.path != other.path.resolve():
            base = _text(read_json(other.path / "config.json").get("base"))
            if base and (other.path / base).resolve().is_relative_to(entry.path):
                reasons.append(f"{other.name} starts from it and is not finished")
    return reasons


def delete(path: Path) -> None:
    """Delete a folder, renaming it to a hidden name first, so that a half-deleted run is never taken for a whole one."""
    number = 1
    while os.path.lexists(hidden := path.with_name(f".{path.name}.deleted-{number}")):
        number += 1
    try:
        path.rename(hidden)
    except OSError as error:
        raise StorageError(f"cannot delete {path} ({error.strerror}): check whose folder it is") from None
    try:
        shutil.rmtree(hidden)  # links inside are removed, not followed
    except OSError as error:
        raise StorageError(f"{path} is only partly deleted ({error.strerror}): remove {hidden} by hand") from None
