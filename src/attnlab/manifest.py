"""manifest.json: the kind of a folder, the sha256 of every file that belongs to it, and that of the manifest itself.

A folder that is written in one step gets its manifest with it. A file added later is listed after it was written, and
one that is replaced is removed from the list first. An existing but unlisted file was therefore being written when a
process died, and counts as missing. Checksums detect damage; they prove nothing about who wrote a folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnlab.errors import CheckpointError, UserError

NAME = "manifest.json"
_VERSION = 1


def digest(content: bytes) -> str:
    """Return the sha256 of some bytes as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def is_digest(text: object) -> bool:
    """Whether this is a sha256 as written by `digest`, rather than, say, a path."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def _canonical(kind: str, files: Mapping[str, str]) -> bytes:
    """What the manifest's own sha256 is taken of."""
    return json.dumps([kind, _VERSION, sorted(files.items())]).encode()


@dataclass(frozen=True)
class Manifest:
    """The kind of a folder and its files by name, relative to the folder, each with its sha256."""

    kind: str
    files: Mapping[str, str]

    @classmethod
    def of(cls, kind: str, contents: Mapping[str, bytes]) -> Manifest:
        """Make the manifest of files that are about to be written."""
        return cls(kind, {name: digest(content) for name, content in contents.items()})

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Read the manifest of a folder; None if there is none, as in folders of older versions."""
        path = folder / NAME
        try:
            stored = json.loads(path.read_bytes())
            kind, version, files = stored["kind"], stored["version"], stored["files"]
            if version != _VERSION:
                raise CheckpointError(
                    f"{path} has version {version!r}, but this attnlab reads {_VERSION}: upgrade attnlab"
                )
            if stored["sha256"] != digest(_canonical(kind, files)):
                raise ValueError("the manifest is not as it was written")
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}): check its permissions") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{path} is damaged: restore it from a copy, or make the folder again") from None
        return cls(kind, files)

    def to_bytes(self) -> bytes:
        """Return the content of manifest.json."""
        files = dict(sorted(self.files.items()))
        stored = {
            "kind": self.kind,
            "version": _VERSION,
            "files": files,
            "sha256": digest(_canonical(self.kind, files)),
        }
        return (json.dumps(stored, indent=1) + "\n").encode()

    def with_files(self, contents: Mapping[str, bytes]) -> Manifest:
        """Return a copy with files added or replaced."""
        return replace(self, files={**self.files, **Manifest.of(self.kind, contents).files})

    def without(self, *names: str) -> Manifest:
        """Return a copy without some files."""
        return replace(self, files={name: found for name, found in self.files.items() if name not in names})

    def check(self, path: Path, name: str, content: bytes) -> None:
        """Raise CheckpointError if a file is not what was written."""
        if digest(content) != self.files[name]:
            raise CheckpointError(
                f"{path} is damaged or was edited (its checksum differs from {NAME}): restore it from a copy, or"
                " make the folder again"
            )


def peek(path: Path) -> dict[str, Any]:
    """A JSON object, unchecked; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def kind_of(folder: Path) -> str:
    """What a folder is: what its manifest says, else what its files show; empty for anything else."""
    try:
        manifest = Manifest.read(folder)
    except CheckpointError:
        manifest = None
    return manifest.kind if manifest is not None else _kind_by_files(folder)


def _kind_by_files(folder: Path) -> str:
    """The kind of a folder from before there were manifests."""
    config, result = peek(folder / "config.json"), peek(folder / "result.json")
    if (folder / "study.json").is_file():
        return "study"
    if (folder / "predictions.tsv").is_file() and {"best_epoch", "labels", "dev"} <= result.keys():
        return "classifier"
    if "model_type" in config and {"history", "unigram", "validation_targets"} <= result.keys():
        return "encoder"
    return "run" if "stage" in config else ""


def refuse_other_models(folder: Path) -> None:
    """Refuse a folder whose model is one of transformers, and say what to do with it."""
    kind, architecture, named = (
        kind_of(folder),
        peek(folder / "config.json").get("model_type"),
        shlex.quote(str(folder)),
    )
    if kind == "classifier" and not (folder / "model" / "config.json").is_file():
        raise UserError(
            f"{folder} is a bag-of-words classifier, not a run: `attnlab runs show {named}` shows its results,"
            " and attnlab classify evaluates it on other texts with --test"
        )
    if kind == "classifier":
        load = f"AutoModelForSequenceClassification.from_pretrained({str(folder / 'model')!r})"
        raise UserError(f"{folder} is a transformers classifier already: load it with {load}")
    if architecture in ("gpt2", "attnlab"):
        raise UserError(
            f"{folder} is a transformers model already: to convert it to a run, use `attnlab import {named} runs/NAME`"
        )
    if isinstance(architecture, str):
        what = "an encoder" if kind == "encoder" else f"a model ({architecture})"
        raise UserError(
            f"{folder} is {what} of transformers already: load it with AutoModel.from_pretrained({str(folder)!r}), or"
            f" fine-tune it: attnlab classify --model {named}"
        )
