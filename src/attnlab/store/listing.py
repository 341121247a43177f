"""The folders under runs/: list them, find them by name or by any setting, describe one in full, delete.

Every folder becomes an `Entry`, whatever its state: complete, stopped, damaged, or not written by attnlab. The manifest
says what a folder is, and result.json holds its figures. Knows neither commands nor what studies and outputs hold.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from attnlab.config import RunConfig, Settings, flatten, resolve
from attnlab.errors import AttnlabError, ConfigError, StorageError, UserError, unknown
from attnlab.reading import open_file
from attnlab.store import records
from attnlab.store.folders import MANIFEST, Manifest, hide, is_locked, is_written, kind_of, read_json
from attnlab.store.runs import EXAMPLE, Run, RunRecord, Step, located
from attnlab.store.usercode import split_names

_OURS = ("run", "study", "classifier", "output")  # kinds written by attnlab, which may be deleted
_OF_RUNS = ("preset", "mechanism", "task", "seed")  # columns that a study takes from its runs
_DEPTH = 3  # folders between a study and its runs
_TAIL = 2**15  # bytes at the end of metrics.jsonl that hold the recent steps
_T = TypeVar("_T")
SMOOTHING = 0.95  # of the loss while a run trains: the weight of a step relative to the next


@dataclass(frozen=True)
class Entry:
    """One folder: its kind, its state and its main figures; None where a figure is unknown."""

    path: Path
    kind: str  # run, study, classifier, output, damaged, foreign, link
    what: str  # stage of a run, name of a study, kind of anything else
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
    settings: Settings = field(default_factory=dict)  # by dotted name
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
        inside = {"runs": [run.plain() for run in self.runs]} if self.kind == "study" else {}
        return {"path": str(self.path), **self.columns(), "when": when, "settings": dict(self.settings), **inside}


_COLUMNS = ("name", *(column.name for column in fields(Entry) if column.name not in ("path", "settings", "runs")))


# Reading folders


@dataclass(frozen=True)
class _Plan:
    """What lists show of a study.json."""

    study: str
    plan: dict[str, Any]


@dataclass(frozen=True)
class _Measured:
    """Figures on validation data, or of one row of a result."""

    loss: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class _Figures:
    """What lists show of a result.json, whatever wrote it."""

    title: str = ""
    run: str | None = None  # that it is about
    settings: dict[str, Any] = field(default_factory=dict)
    tokens: int | tuple[str, ...] | None = None  # how many, or the tokens of a text
    seconds: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    dev: _Measured | None = None
    rows: tuple[_Measured, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> _Figures | None:
        """Read the figures of a folder; None if it has no result yet."""
        return records.read(cls, folder / "result.json") if is_written(folder / "result.json") else None

    @property
    def main_accuracy(self) -> float | None:
        """Its own accuracy, or that of its validation, or that of its first row."""
        measured = [*([self.dev] if self.dev else []), *self.rows[:1]]
        accuracies = [self.accuracy, *(part.accuracy for part in measured)]
        return next((accuracy for accuracy in accuracies if accuracy is not None), None)


def read_all(root: Path) -> list[Entry]:
    """Read every folder under `root`, by name; hidden ones are left out, because they are unfinished."""
    if kind_of(root) == "run":
        raise UserError(f"{root} is a run itself: name the folder that holds it")
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
        manifest = Manifest.find(path)
        if manifest is None:
            return _foreign(path, f"it has no {MANIFEST}")
        if manifest.kind == "run":
            return _read_run(path)
        if manifest.kind == "study":
            return _read_study(path)
        if manifest.about or manifest.kind == "classifier":
            return _read_output(path, manifest)
        return _foreign(path, f"a {manifest.kind}, part of a run or study")
    except (AttnlabError, OSError, RecursionError) as error:
        message = error.strerror if isinstance(error, OSError) else str(error).split(": ")[0]
        return Entry(path, "damaged", "damaged", "", _changed(path), note=str(message))


def _foreign(path: Path, note: str) -> Entry:
    return Entry(path, "foreign", "not a run", "", _changed(path), note=note)


def _read_run(path: Path) -> Entry:
    run = Run(path)
    record, complete = run.record, run.complete
    settings = dict(flatten(record.settings))
    entry = Entry(
        path,
        "run",
        record.stage,
        "complete" if complete else "active" if is_locked(path) else "stopped",
        _changed(path / "result.json", path / "metrics.jsonl", path / "config.json"),
        preset=_typed(str, settings.get("preset")),
        mechanism=_typed(str, settings.get("model.mechanism")),
        task=_typed(str, settings.get("task.name")),
        seed=_typed(int, settings.get("seed")),
        settings=settings,
    )
    if complete:
        result = run.result
        return replace(entry, progress=1.0, tokens=result.tokens, seconds=result.seconds, loss=result.final_loss)
    last = last_step(path / "metrics.jsonl")
    if last is None:
        return entry
    return replace(entry, progress=last.progress, tokens=last.tokens, seconds=last.seconds, loss=last.loss)


def _read_study(path: Path) -> Entry:
    plan, result = records.read(_Plan, path / "study.json"), _Figures.read(path)
    runs = tuple(_runs_inside(path))
    running = is_locked(path) or any(run.state == "active" for run in runs)
    seconds = result.seconds if result else None
    return Entry(
        path,
        "study",
        plan.study,
        "complete" if result else "active" if running else "stopped",
        max([_changed(path / "result.json", path / "study.json"), *(run.when for run in runs)]),
        preset=_typed(str, plan.plan.get("preset")) or _joined(run.preset for run in runs),
        mechanism=_joined(run.mechanism for run in runs),
        task=_joined(run.task for run in runs),
        progress=1.0 if result else None,
        tokens=sum(run.tokens or 0 for run in runs) if runs else None,
        seconds=sum(run.seconds or 0.0 for run in runs) if runs and seconds is None else seconds,
        accuracy=result.main_accuracy if result else None,
        runs=runs,
    )


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


def _read_output(path: Path, manifest: Manifest) -> Entry:
    """Read what a command wrote in one step; an output may hold nothing but what attnlab wrote."""
    is_output = manifest.kind != "classifier"
    written = {MANIFEST, *(name.split("/")[0] for name in manifest.files)}
    others = sorted(inner.name for inner in path.iterdir() if inner.name not in written)
    if is_output and others:
        return _foreign(path, f"it also holds {others[0]}")
    result = _Figures.read(path) or _Figures()
    return Entry(
        path,
        "output" if is_output else manifest.kind,
        manifest.kind,
        "complete",
        _changed(path / "result.json") or _changed(*path.iterdir()),
        seed=_typed(int, result.settings.get("seed")),
        progress=None if is_output else 1.0,
        tokens=_typed(int, result.tokens),
        seconds=result.seconds,
        loss=result.dev.loss if result.dev else result.loss,
        accuracy=result.main_accuracy,
        note=f"of {result.run}" if result.run else manifest.about or result.title,
        settings=dict(flatten(result.settings)),
    )


def last_step(path: Path) -> Step | None:
    """The last step of a metrics file, with the mean loss of the recent steps; None where there is none."""
    try:
        stream = open_file(path)
    except OSError:  # absent, or no file
        return None
    with stream:
        stream.seek(max(0, path.stat().st_size - _TAIL))
        lines = stream.read(_TAIL).split(b"\n")
    last: Step | None = None
    total = weight = 0.0  # of the mean that progress bars show
    for line in lines:
        try:
            last = msgspec.json.decode(line, type=Step)
        except (ValueError, RecursionError):
            continue
        total, weight = SMOOTHING * total + last.loss, SMOOTHING * weight + 1
    return replace(last, loss=total / weight) if last else None


def share_done(progress: float) -> str:
    """How far a training has come in per cent, rounded down, as everywhere: only a complete one has 100 %."""
    return f"{int(100 * progress)} %"


def _changed(*paths: Path) -> float:
    """When the newest of some files was written; 0 where there is none."""
    return max((path.lstat().st_mtime for path in paths if os.path.lexists(path)), default=0.0)


def _typed(kind: type[_T], value: object) -> _T | None:
    """A setting as lists show it; None if it is missing, or of another type."""
    return value if isinstance(value, kind) else None


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


# Finding entries

_SIGNS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Filter:
    """A condition on one column or setting, such as mechanism=dot or train.lr>=0.001."""

    key: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse a condition of the command line."""
        parts = re.fullmatch(r"\s*([\w.-]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", text)
        if not parts:
            raise UserError(f"a filter is NAME=VALUE (or != < <= > >=), such as mechanism=dot, not '{text}'")
        condition = cls(*parts.groups())
        if condition.sign not in ("=", "!=") and condition.number is None:
            raise UserError(f"'{text}' compares with '{condition.value}', which is not a number")
        return condition

    @property
    def number(self) -> float | None:
        """The value as a number, if it is one."""
        try:
            return float(self.value)
        except ValueError:
            return None

    def holds(self, value: Any) -> bool:
        """Whether a value meets the condition; a missing value meets only !=."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and self.number is not None:
            return bool(_SIGNS[self.sign](value, self.number))
        if self.sign not in ("=", "!="):
            return False
        text, pattern = str(value), self.value
        if isinstance(value, bool):
            text, pattern = text.lower(), pattern.lower()
        choices = [] if value is None else [text, *text.replace(" ", "").split(",")]
        return any(fnmatchcase(choice, pattern) for choice in choices) == (self.sign == "=")


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
        few = "choose a column, such as mechanism, state or loss, or a setting"
        raise UserError(unknown("column or setting", key, known, few))
    if len(meant) > 1:
        raise UserError(f"'{key}' could be {' or '.join(meant)}: write it in full")


def choose(entries: Sequence[Entry], filters: Sequence[Filter]) -> list[Entry]:
    """The entries that meet all conditions; a study does if one of its runs meets those that the study does not decide."""
    for condition in filters:
        _check_key(condition.key, entries)

    def meets(values: Mapping[str, object]) -> bool:
        return all(condition.holds(_look_up(condition.key, values)) for condition in filters)

    def fits(entry: Entry) -> bool:
        own = _values(entry)
        shared = {name: value for name, value in own.items() if name not in _OF_RUNS and value is not None}
        return meets(own) or any(meets({**_values(run), **shared}) for run in entry.runs)

    return [entry for entry in entries if fits(entry)]


def arrange(entries: Sequence[Entry], key: str = "when", reverse: bool = False) -> list[Entry]:
    """The entries sorted by a column or setting, smallest first; those without it always come last."""
    _check_key(key, entries)

    def order(pair: tuple[Any, Entry]) -> tuple[bool, Any]:  # numbers before texts
        number = isinstance(pair[0], int | float)
        return not number, pair[0] if number else str(pair[0])

    pairs = [(_look_up(key, _values(entry)), entry) for entry in entries]
    present = sorted((pair for pair in pairs if pair[0] is not None), key=order, reverse=reverse)
    return [entry for _, entry in present] + [entry for value, entry in pairs if value is None]


def with_inner(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each study followed by its runs."""
    return [inner for entry in entries for inner in (entry, *entry.runs)]


def find(name: str, root: Path = Path("runs")) -> Entry:
    """Find a run by its path, or by its name under `root`."""
    if os.path.lexists(place := located(name, root)):
        return read(place)
    names = [entry.name for entry in read_all(root)] if root.is_dir() else []
    if not names:
        raise UserError(f"{name}: no such run folder")
    raise UserError(unknown("run", name, names))


# One entry in full


@dataclass(frozen=True)
class Details:
    """An entry with its result, its files and, for a run, its data and its differences from the preset."""

    entry: Entry
    record: RunRecord | None  # of a run
    differences: Mapping[str, tuple[Any, Any]] | None  # (preset's, run's); None where the preset is unknown
    result: Mapping[str, object] | None
    files: Sequence[tuple[str, int]] | None  # with their bytes

    def plain(self) -> dict[str, Any]:
        """The details as JSON data."""
        shown = self.entry.plain()
        if self.record:
            data = {name: asdict(source) for name, source in self.record.data.items()}
            shown |= {"data": data, "base": self.record.base, "differences": self.differences}
        if self.result is not None:
            shown["result"] = self.result
        if self.files is not None:
            shown["files"] = [{"name": name, "bytes": size} for name, size in self.files]
        return shown


def details(entry: Entry) -> Details:
    """Read everything about one entry."""
    is_run, has_result = entry.kind == "run", entry.kind in _OURS and is_written(entry.path / "result.json")
    return Details(
        entry,
        RunRecord.read(entry.path) if is_run else None,
        _differences(entry) if is_run else None,
        read_json(entry.path / "result.json") if has_result else None,
        _contents(entry.path) if entry.kind != "link" else None,
    )


def _differences(entry: Entry) -> dict[str, tuple[Any, Any]] | None:
    """The settings in which a run differs from its preset; None if this version has no such preset."""
    try:
        stage = entry.what if entry.what in ("finetune", "scratch") else "pretrain"
        preset = dict(flatten(resolve(entry.preset or "", stage).to_dict()))  # type: ignore[arg-type]
    except ConfigError:
        return None
    own = {name: value for name, value in entry.settings.items() if value != {}}  # an empty table is the same as none
    names = [name for name in own if preset.get(name) != own[name]]
    # Threads are chosen by the machine where the preset leaves them open.
    return {name: (preset.get(name), own[name]) for name in names if (name, preset.get(name)) != ("train.threads", 0)}


def _contents(path: Path) -> list[tuple[str, int]]:
    """What lies directly in a folder, with sizes; a folder's size is that of everything in it."""
    return [
        (f"{inner.name}/", folder_size(inner)[1])
        if inner.is_dir() and not inner.is_symlink()
        else (inner.name, inner.lstat().st_size)
        for inner in sorted(path.iterdir())
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
    if real == EXAMPLE.resolve():
        raise UserError("the example comes with attnlab and is not deleted: name runs of your own")
    if Path.cwd().resolve().is_relative_to(real):
        raise UserError(f"{entry.path} contains the current directory: go elsewhere first")
    return replace(entry, path=real)


def outermost(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without repetitions, and without those inside others."""
    by_path = {entry.path: entry for entry in entries}
    return [entry for path, entry in by_path.items() if not any(other in path.parents for other in by_path)]


def reasons_to_keep(entry: Entry, others: Iterable[Entry]) -> list[str]:
    """Why an entry may still be needed: it is being written, part of a study, or the base of an unfinished run."""
    reasons = []
    if entry.state == "active":
        reasons.append("it is being written now")
    above = list(entry.path.parents)[:_DEPTH]
    reasons += [f"part of the study {folder.name}" for folder in above if (folder / "study.json").is_file()]
    for other in others:
        if other.kind == "run" and other.state != "complete" and entry.path != other.path.resolve():
            base = RunRecord.read(other.path).base
            if base and (other.path / base).resolve().is_relative_to(entry.path):
                reasons.append(f"{other.name} starts from it and is not finished")
    return reasons


def delete(path: Path) -> None:
    """Delete a folder, hiding it first, so that a half-deleted run is never taken for a whole one."""
    try:
        hidden = hide(path)
    except OSError as error:
        raise StorageError(f"cannot delete {path} ({error.strerror}): check whose folder it is") from None
    try:
        shutil.rmtree(hidden)  # links inside are removed, not followed
    except OSError as error:
        raise StorageError(f"{path} is only partly deleted ({error.strerror}): remove {hidden} by hand") from None
