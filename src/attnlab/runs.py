"""The run folder: what was asked (config.json), where (env.json), what happened (metrics.jsonl), what came out.

    runs/pretrain-small-1/
      config.json     settings, data with their checksums, stage
      env.json        machine and versions
      metrics.jsonl   one line a step, as it happens
      checkpoints/    step-000400/ ...: everything needed to go on
      model/          the finished model
      result.json     written last: its presence means the run is complete

Every file appears whole or not at all. Knows nothing of torch.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no Unix, no locks
    fcntl = None  # type: ignore[assignment]

from attnlab import __version__
from attnlab.errors import AttnlabError, CheckpointError, DataError, OutputExists, StorageError, UserError
from attnlab.machine import cores, cpu_name

KEPT_CHECKPOINTS = 2


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
            with temporary.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def to_json(value: Any) -> bytes:
    """Readable JSON as it is stored."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_bytes(path, to_json(value))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON table that this program wrote, or an error that says what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: the folder is incomplete") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): use an older checkpoint or train again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged (no table inside): use an older checkpoint or train again")
    return value


def write_folder(path: Path, files: Mapping[str, bytes], replace: bool = False) -> None:
    """Write a folder of files so that it is there whole or not at all; another in its place only if it may be replaced."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            for name, content in files.items():
                write_bytes(temporary / name, content)
            if replace:
                shutil.rmtree(path, ignore_errors=True)
            refuse_existing(path)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def peek(path: Path) -> dict[str, Any]:
    """A JSON table, or an empty one where there is none that can be read."""
    try:
        return read_json(path)
    except (AttnlabError, OSError, RecursionError):
        return {}


def is_classifier(path: Path) -> bool:
    """Whether `attnlab classify` wrote this folder."""
    there = (path / "model").is_dir() and (path / "predictions.tsv").is_file()
    return there and {"best_epoch", "labels", "dev"} <= peek(path / "result.json").keys()


def is_encoder(path: Path) -> bool:
    """Whether `attnlab encoder pretrain` wrote this folder."""
    theirs = "model_type" in peek(path / "config.json")
    return theirs and {"history", "unigram", "validation_targets"} <= peek(path / "result.json").keys()


def refuse_models_of_transformers(path: Path) -> None:
    """Refuse a folder whose model is not attnlab's own, and say what can be done with it."""
    kind, named = peek(path / "config.json").get("model_type"), shlex.quote(str(path))
    if is_classifier(path):
        if not (path / "model" / "config.json").is_file():
            raise UserError(
                f"{path} is a classification by a bag of words, not a run: `attnlab runs show {named}` tells its figures,"
                " and attnlab classify measures other texts with --test"
            )
        load = f"AutoModelForSequenceClassification.from_pretrained({str(path / 'model')!r})"
        raise UserError(f"{path} is a classifier of transformers already: load it with {load}")
    if kind in ("gpt2", "attnlab"):
        raise UserError(
            f"{path} is a model of transformers already: to make a run of it, `attnlab import {named} runs/NAME`"
        )
    if isinstance(kind, str):
        what = "an encoder" if is_encoder(path) else f"a model ({kind})"
        raise UserError(
            f"{path} is {what} of transformers already: load it with AutoModel.from_pretrained({str(path)!r}), or fine-tune"
            f" it: attnlab classify --model {named}"
        )


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


def free_name(stem: str, root: Path = Path("runs")) -> Path:
    """The first unused runs/STEM-N."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from the same work; a lock goes with its process, however that ends."""
    if fcntl is None:
        yield
        return
    with disk(path), path.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path.parent} is being worked on by another process: wait for it, or end it") from None
        yield


def refuse_several(what: str) -> None:
    """Refuse work that several processes of torchrun would do on top of each other."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{what} runs in one process: under torchrun use pretrain, finetune, or resume of such a run")


def speaks() -> bool:
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
    def create(cls, path: Path, config: Mapping[str, Any]) -> Run:
        """A new run; the folder must not exist."""
        refuse_existing(path)
        write_folder(path, {"config.json": to_json(config), "env.json": to_json(environment())})
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
            refuse_models_of_transformers(path / "best")
            if not (path / "finetune" / "model").is_dir():
                if (path / "result.json").is_file():
                    raise UserError(f"{path} is a finished study and no run: `attnlab runs show {path}` tells about it")
                raise UserError(f"{path} was stopped before its model was finished: go on with `attnlab resume {path}`")
            path = path / "finetune"
        if not path.is_dir():
            raise UserError(f"{path}: no such run folder; `attnlab runs` shows those of this folder")
        refuse_models_of_transformers(path)
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is not a run folder: it has no config.json")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """What was asked."""
        return read_json(self.path / "config.json")

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "result.json").is_file()

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
        """All steps recorded so far; a line that was cut off by a kill is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        for line in path.read_text(encoding="utf-8").split("\n"):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                break
            if not isinstance(row, dict) or "step" not in row:
                break
            rows.append(row)
        return rows

    def rewind_metrics(self, step: int) -> None:
        """Forget what was recorded after a step."""
        kept = [row for row in self.metrics() if row["step"] <= step]
        write_bytes(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())

    def save_checkpoint(self, step: int, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint in a folder of its own, then drop the oldest."""
        folder = self.path / "checkpoints"
        write_folder(folder / f"step-{step:06d}", files, replace=True)
        for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))


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
