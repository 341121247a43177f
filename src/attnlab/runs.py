"""The run folder: what was asked (config.json), where (env.json), what happened (metrics.jsonl), what came out.

    runs/pretrain-small-1/
      config.json     settings, data with their checksums, stage
      env.json        machine and versions
      code/           users' files of mechanisms and tasks, if it uses any (also in checkpoints and model)
      metrics.jsonl   one line a step, as it happens
      checkpoints/    step-000400/ ...: everything needed to resume
      model/          the finished model
      result.json     written last
      manifest.json   the sha256 of these files; the run is complete when it lists result.json
      .lock           held by the process that writes the run

Every file appears whole or not at all, and is checked when it is read. Knows nothing of torch.
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
except ImportError:  # no Unix, no locks
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
    """Turn the disk's refusals into one line with the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"the disk is full while writing {path}: free some space, then resume") from None
        raise StorageError(f"cannot write {path} ({error.strerror}): choose another folder") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk(path):
        try:
            _write_through(temporary, content)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _write_through(path: Path, content: bytes) -> None:
    """Write a file as far as the disk."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Have the names in a folder reach the disk, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def to_json(value: Any) -> bytes:
    """Readable JSON as it is stored."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_bytes(path, to_json(value))


def read_bytes(path: Path, folder: Path | None = None) -> bytes:
    """A file that this program wrote, checked against the manifest of its folder where there is one."""
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
    """Whether a file is there whole; one that a killed process left unlisted is not."""
    if not path.is_file():
        return False
    manifest = Manifest.read(path.parent)
    return manifest is None or path.name in manifest.files


def verify(folder: Path) -> None:
    """Check every file that the manifest of a folder lists."""
    manifest = Manifest.read(folder)
    for name in manifest.files if manifest is not None else ():
        read_bytes(folder / name, folder)


def note_without_manifest(folder: Path) -> None:
    """Tell that a folder cannot be checked, since an older version wrote it or its manifest was removed."""
    if Manifest.read(folder) is None:
        warnings.warn(
            f"{folder} has no {MANIFEST}, so its files are not checked for damage", AttnlabWarning, stacklevel=3
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON table that this program wrote, or an error that says what is wrong with it."""
    try:
        value = parse_json(read_bytes(path).decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}): use an older checkpoint or train again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged (no table inside): use an older checkpoint or train again")
    return value


@contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Say of a stored file that it is damaged, when what it holds cannot be used."""
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
    """Write a folder with its manifest so that it is there whole or not at all; an existing one only if it may be replaced."""
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
    """Hide a folder that is to be removed: half of one, without its manifest, must never be taken for a whole one."""
    hidden = folder.with_name(f".{folder.name}.old.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    if folder.exists():
        folder.rename(hidden)
    return hidden


def add_files(folder: Path, files: Mapping[str, bytes], existing: Sequence[str] = ()) -> None:
    """Write files into a folder and list them in its manifest, with those that are `existing` already.

    What is replaced leaves the list first, so that a kill at any point leaves nothing listed that is not as it should be.
    The caller holds the lock of the folder. In a folder without a manifest, nothing is listed.
    """
    _unlist(folder, *files)
    for name, content in files.items():
        write_bytes(folder / name, content)
    manifest = Manifest.read(folder)
    if manifest is not None:
        listed = {**files, **{name: (folder / name).read_bytes() for name in existing}}
        write_bytes(folder / MANIFEST, manifest.with_files(listed).to_bytes())


def _unlist(folder: Path, *names: str) -> None:
    """Have files of a folder no longer count, since they are about to change."""
    manifest = Manifest.read(folder)
    if manifest is not None and not manifest.files.keys().isdisjoint(names):
        write_bytes(folder / MANIFEST, manifest.without(*names).to_bytes())


def write_manifest(folder: Path, kind: str) -> None:
    """Write the manifest of a folder that was filled file by file; folders inside it have their own."""
    inside = [one for one in folder.iterdir() if one.is_file() and one.name not in (MANIFEST, ".lock")]
    files = {one.name: one.read_bytes() for one in inside}
    write_bytes(folder / MANIFEST, Manifest.of(kind, files).to_bytes())


@contextmanager
def folders_above(folder: Path) -> Iterator[None]:
    """Make the folders above one that is to be written; those that were made for nothing go again."""
    missing = [one for one in folder.parents if not one.exists()]
    try:
        with disk(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in missing:
            with suppress(OSError):  # somebody else has written there since
                one.rmdir()
        raise


def refuse_existing(path: Path) -> None:
    """Refuse an output folder that exists."""
    if path.exists():
        raise OutputExists(f"{path} exists already: choose another name, or remove it first")


def unused_path(stem: str, root: Path = Path("runs")) -> Path:
    """The first unused runs/STEM-N."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process writes a folder inside this one."""
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
    """Keep other processes from writing a folder; a lock goes with its process, however that ends."""
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
    """Whether a process writes this folder now."""
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
    """Refuse work that several processes of torchrun would do on top of each other."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{what} runs in one process: under torchrun use pretrain, finetune, or resume of such a run")


def is_main_process() -> bool:
    """Whether this process talks to the user: the first of those that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def environment() -> dict[str, Any]:
    """The machine and the versions that matter for a result; nothing that identifies a person."""
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
        """A new run, with the users' files of code that it carries; the folder must not exist."""
        refuse_existing(path)
        files = {"config.json": to_json(config), "env.json": to_json(environment()), **(code or {})}
        write_folder(path, "run", files)
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """An existing run."""
        path = Path(path)
        if (path / "study.json").is_file():
            several = sorted(one.parent for one in path.glob("*/seed-*/config.json"))
            if several or "specimens" in read_json(path / "study.json").get("plan", {}):
                example = several[0] if several else path / "SPECIMEN" / "seed-0"
                raise UserError(f"{path} is a comparison of several runs: name one of them, such as {example}")
            refuse_other_models(path / "best")
            if not (path / "finetune" / "model").is_dir():
                if is_written(path / "result.json"):
                    raise UserError(f"{path} is a finished study and no run: `attnlab runs show {path}` tells about it")
                raise UserError(f"{path} was stopped before its model was finished: go on with `attnlab resume {path}`")
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
        """Whether the run came to its end."""
        return is_written(self.path / "result.json")

    @property
    def result(self) -> dict[str, Any]:
        """What came out."""
        return read_json(self.path / "result.json")

    @property
    def model(self) -> Path:
        """The folder of the finished model."""
        if not (self.path / "model").is_dir():
            raise UserError(
                f"{self.path} has no finished model: `attnlab resume {self.path}` goes on with the training"
            )
        return self.path / "model"

    def metrics(self) -> list[dict[str, Any]]:
        """All steps recorded so far; a last line that was cut off by a kill is left out."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        content = read_bytes(path) if is_written(path) else path.read_bytes()
        lines = content.split(b"\n")
        lines.pop()  # empty, or cut off
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
        """How much is recorded so far, for a checkpoint: the length and the sha256 of the file, which reaches the disk."""
        with disk(self.path), (self.path / "metrics.jsonl").open("rb") as stream:
            os.fsync(stream.fileno())
            content = stream.read()
        return {"bytes": len(content), "sha256": digest(content)}

    def rewind_metrics(self, step: int = 0, mark: Mapping[str, Any] | None = None) -> None:
        """Forget what was recorded after a step; `mark` is that of its checkpoint, which older ones do not have."""
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
        _unlist(self.path, "metrics.jsonl", "result.json")  # where a user removed the result of a complete run
        write_bytes(path, content)

    def save_checkpoint(self, step: int, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint in a folder of its own, then drop the oldest, and later ones, which were not resumed from."""
        write_folder(self.path / "checkpoints" / f"step-{step:06d}", "checkpoint", files, replace=True)
        self.tidy_checkpoints(step)

    def tidy_checkpoints(self, step: int) -> None:
        """Keep the newest checkpoints up to a step; what a killed process left of others goes too."""
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
    """The step of a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def lineage(run: Run) -> list[Run]:
    """A run, the run that it was trained from, and so on; refused where one of them is gone."""
    found = [run]
    while base := found[-1].config.get("base"):
        try:
            earlier = Run.open(found[-1].path / base)
        except UserError as error:
            raise DataError(f"{found[-1].path} was trained from a run that is gone: put it back ({error})") from None
        if earlier.path.resolve() in {one.path.resolve() for one in found}:
            break
        found.append(earlier)
    return found
