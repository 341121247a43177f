"""The run folder: settings, environment, metrics, checkpoints, model and result.

    runs/pretrain-small-1/
      config.json     settings, data with their checksums, stage
      env.json        machine and versions
      code/           users' mechanism and task files, if any (also in checkpoints and model)
      metrics.jsonl   one line per step, written as it happens
      checkpoints/    step-000400/ ...: everything needed to resume
      model/          the finished model
      result.json     written last
      manifest.json   the sha256 of these files; the run is complete when it lists result.json
      .lock           held by the process that writes the run

Every file is written atomically and checked when it is read. Knows nothing about torch.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # locks need Unix
    fcntl = None  # type: ignore[assignment]

from attnlab import __version__
from attnlab.config import parse_json
from attnlab.errors import (
    AttnlabError,
    AttnlabWarning,
    CheckpointError,
    DataError,
    OutputExists,
    StorageError,
    UserError,
)
from attnlab.machine import cores, cpu_name
from attnlab.manifest import NAME as MANIFEST
from attnlab.manifest import Manifest, digest, refuse_other_models

_KEPT_CHECKPOINTS = 2


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn errors of the disk into one line with the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"the disk is full, and {path} was not written: free some space, then resume") from None
        raise StorageError(f"cannot write {path} ({error.strerror}): choose another folder") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk(path):
        try:
            _write_through(temporary, content)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Flush the entries of a folder to disk, if the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def to_json(value: Any) -> bytes:
    """Serialize to indented JSON."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, to_json(value))


def read_bytes(path: Path, folder: Path | None = None) -> bytes:
    """Read a file written by attnlab and check it against the manifest of its folder, if there is one."""
    folder = folder or path.parent
    name = path.relative_to(folder).as_posix()
    manifest = Manifest.read(folder)
    try:
        if manifest is not None and name not in manifest.files:
            raise FileNotFoundError
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: the folder is incomplete") from None
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): check what it is, and its permissions"
        ) from None
    if manifest is not None:
        manifest.check(path, name, content)
    return content


def is_written(path: Path) -> bool:
    """Whether a file was written completely; one that a killed process left unlisted was not."""
    if not path.is_file():
        return False
    manifest = Manifest.read(path.parent)
    return manifest is None or path.name in manifest.files


def verify(folder: Path) -> None:
    """Check every file listed in the manifest of a folder."""
    manifest = Manifest.read(folder)
    for name in manifest.files if manifest is not None else ():
        read_bytes(folder / name, folder)


def note_without_manifest(folder: Path) -> None:
    """Warn that a folder cannot be checked, since an older version wrote it or its manifest was removed."""
    if Manifest.read(folder) is None:
        warnings.warn(
            f"{folder} has no {MANIFEST}, so its files are not checked for damage", AttnlabWarning, stacklevel=3
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object written by attnlab, or raise an error that says what is wrong with it."""
    try:
        value = parse_json(read_bytes(path).decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}): use an older checkpoint or train again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged (not a JSON object): use an older checkpoint or train again")
    return value


@contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Report a stored file as damaged if its content cannot be used."""
    try:
        yield
    except AttnlabError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"{path} is damaged, or of another version ({said:.200}): restore it from a copy, or make it again"
        ) from error


def write_folder(path: Path, kind: str, files: Mapping[str, bytes], replace: bool = False) -> None:
    """Write a folder with its manifest atomically; an existing one is an error unless `replace`."""
    temporary = path.with_name(f".{path.name}.tmp")
    sealed = {**files, MANIFEST: Manifest.of(kind, files).to_bytes()}
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _one_writer(path.parent):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                for name, content in sealed.items():
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    _write_through(temporary / name, content)
                aside = _hide(path) if replace else None
                refuse_existing(path)
                temporary.rename(path)
                _sync(path.parent)
                if aside:
                    shutil.rmtree(aside, ignore_errors=True)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise


def _hide(folder: Path) -> Path:
    """Hide a folder before removing it, so that a partly removed one is never taken for a complete one."""
    hidden = folder.with_name(f".{folder.name}.old.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    if folder.exists():
        folder.rename(hidden)
    return hidden


def add_files(folder: Path, files: Mapping[str, bytes], existing: Sequence[str] = ()) -> None:
    """Write files into a folder and list them in its manifest, together with the `existing` ones.

    Replaced files are removed from the list first, so that whenever a process is killed, every listed file is intact.
    The caller holds the lock of the folder. A folder without a manifest gets none.
    """
    _unlist(folder, *files)
    for name, content in files.items():
        write_bytes(folder / name, content)
    manifest = Manifest.read(folder)
    if manifest is not None:
        listed = {**files, **{name: (folder / name).read_bytes() for name in existing}}
        write_bytes(folder / MANIFEST, manifest.with_files(listed).to_bytes())


def _unlist(folder: Path, *names: str) -> None:
    """Remove files from the manifest before they change."""
    manifest = Manifest.read(folder)
    if manifest is not None and not manifest.files.keys().isdisjoint(names):
        write_bytes(folder / MANIFEST, manifest.without(*names).to_bytes())


def write_manifest(folder: Path, kind: str) -> None:
    """Write the manifest of a folder whose files were written one by one; subfolders have their own."""
    inside = [one for one in folder.iterdir() if one.is_file() and one.name not in (MANIFEST, ".lock")]
    files = {one.name: one.read_bytes() for one in inside}
    write_bytes(folder / MANIFEST, Manifest.of(kind, files).to_bytes())


@contextmanager
def folders_above(folder: Path) -> Iterator[None]:
    """Create the parent folders of a folder to be written; remove them again if writing fails."""
    missing = [one for one in folder.parents if not one.exists()]
    try:
        with disk(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in missing:
            with suppress(OSError):  # another process has written there
                one.rmdir()
        raise


def refuse_existing(path: Path) -> None:
    """Raise OutputExists if an output folder exists."""
    if path.exists():
        raise OutputExists(f"{path} exists already: choose another name, or remove it first")


def unused_path(stem: str, root: Path = Path("runs")) -> Path:
    """Return the first unused runs/STEM-N."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process writes inside this folder."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Lock a folder against other writers; the lock ends with its process."""
    if fcntl is None:
        yield
        return
    with disk(folder):
        stream = (folder / name).open("ab")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is being written by another process: wait for it, or stop it") from None
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is writing this folder now."""
    if fcntl is None:
        return False
    try:
        with (folder / ".lock").open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def require_single_process(what: str) -> None:
    """Raise UserError under torchrun with several processes, which would all do the same work."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{what} runs in one process: under torchrun use pretrain, finetune, or resume of such a run")


def is_main_process() -> bool:
    """Whether this is the first process started by torchrun, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def environment() -> dict[str, Any]:
    """Return the machine and the versions that matter for a result; nothing that identifies a person."""
    packages = ("torch", "numpy", "tokenizers", "safetensors")
    return {
        "attnlab": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": cpu_name(),
        "cores": cores(),
        **{package: importlib.metadata.version(package) for package in packages},
    }


@dataclass(frozen=True)
class Run:
    """One run on disk."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], code: Mapping[str, bytes] | None = None) -> Run:
        """Create a run with the user code it needs; the folder must not exist."""
        refuse_existing(path)
        files = {"config.json": to_json(config), "env.json": to_json(environment()), **(code or {})}
        write_folder(path, "run", files)
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open an existing run."""
        path = Path(path)
        if (path / "study.json").is_file():
            several = sorted(one.parent for one in path.glob("*/seed-*/config.json"))
            if several or "specimens" in read_json(path / "study.json").get("plan", {}):
                example = several[0] if several else path / "SPECIMEN" / "seed-0"
                raise UserError(f"{path} is a comparison of several runs: name one of them, such as {example}")
            refuse_other_models(path / "best")
            if not (path / "finetune" / "model").is_dir():
                if is_written(path / "result.json"):
                    raise UserError(f"{path} is a finished study, not a run: see `attnlab runs show {path}`")
                raise UserError(
                    f"{path} was stopped before its model was finished: resume with `attnlab resume {path}`"
                )
            path = path / "finetune"
        if not path.is_dir():
            raise UserError(f"{path}: no such run folder; `attnlab runs` shows those of this folder")
        refuse_other_models(path)
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is not a run folder: it has no config.json")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """What was asked; data that were named by the way from the run to them, with their path now."""
        stored = read_json(self.path / "config.json")
        data = stored.get("data")
        for entry in data.values() if isinstance(data, dict) else ():
            source = entry.get("source") if isinstance(entry, dict) else None
            if isinstance(source, str) and source.startswith(".."):
                entry["source"] = os.path.normpath(self.path.resolve() / source)
        return stored

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return is_written(self.path / "result.json")

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

    def metrics_mark(self) -> dict[str, Any]:
        """Flush the metrics and return the length and sha256 of the file, for a checkpoint."""
        with disk(self.path), (self.path / "metrics.jsonl").open("rb") as stream:
            os.fsync(stream.fileno())
            content = stream.read()
        return {"bytes": len(content), "sha256": digest(content)}

    def rewind_metrics(self, step: int = 0, mark: Mapping[str, Any] | None = None) -> None:
        """Drop metrics recorded after a step; `mark` comes from its checkpoint, and is None in older ones."""
        path = self.path / "metrics.jsonl"
        if mark is None:
            kept = [row for row in self.metrics() if row["step"] <= step] if step else []
            content = "".join(json.dumps(row) + "\n" for row in kept).encode()
        else:
            content = path.read_bytes()[: mark["bytes"]] if path.is_file() else b""
            if digest(content) != mark["sha256"]:
                raise CheckpointError(
                    f"{path} is damaged before step {step}: restore it from a copy; or, to train from the beginning, remove"
                    " it together with the folder checkpoints"
                )
        _unlist(self.path, "metrics.jsonl", "result.json")  # present if a user removed result.json of a complete run
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
            _hide(old)
        for hidden in (self.path / "checkpoints").glob(".step-*.tmp"):
            shutil.rmtree(hidden)

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        found = (self.path / "checkpoints").glob("step-*")
        return sorted((path for path in found if re.fullmatch(r"step-[0-9]{1,18}", path.name)), key=_step_of)


def movable(source: str, run: Path) -> str:
    """The name of a file in the study that a run belongs to, as the way from the run, so that both can be moved."""
    place = run.absolute()
    inside = any((one / "study.json").is_file() for one in place.parents if Path(source).is_relative_to(one.resolve()))
    return os.path.relpath(source, place.parent.resolve() / place.name) if inside else source


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def lineage(run: Run) -> list[Run]:
    """Return a run, the run it was trained from, and so on; a missing one is an error."""
    found = [run]
    while base := found[-1].config.get("base"):
        try:
            earlier = Run.open(found[-1].path / base)
        except UserError as error:
            raise DataError(f"{found[-1].path} was trained from a run that is missing: restore it ({error})") from None
        if earlier.path.resolve() in {one.path.resolve() for one in found}:
            break
        found.append(earlier)
    return found
