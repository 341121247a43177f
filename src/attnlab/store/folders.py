"""The folders that attnlab writes: written atomically, each with a manifest, and checked when read.

manifest.json holds the kind of a folder, what it is in words (if it is the output of a command), the sha256 of every file
that belongs to it, and that of the manifest itself. A folder without one was not written by attnlab, or is damaged. A
folder that is written in one step gets its manifest with it. A file added later is listed after it was written, and one
that is replaced is removed from the list first. An existing but unlisted file was therefore being written when a process
died, and counts as missing. Checksums detect damage; they prove nothing about who wrote a folder. Knows nothing about torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

try:
    import fcntl
except ImportError:  # locks need Unix
    fcntl = None  # type: ignore[assignment]

from attnlab import reading
from attnlab.errors import AttnlabError, CheckpointError, OutputExists, StorageError, UserError

MANIFEST = "manifest.json"
_VERSION = 1


def digest(content: bytes) -> str:
    """Return the sha256 of some bytes as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def is_digest(text: object) -> bool:
    """Whether this is a sha256 as written by `digest`, rather than, say, a path."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


@dataclass(frozen=True)
class Manifest:
    """The kind of a folder, its files by name, relative to the folder, each with its sha256, and what it is in words."""

    kind: str
    files: Mapping[str, str]
    about: str = ""  # such as "a benchmark"; empty for runs, studies and their parts

    @classmethod
    def of(cls, kind: str, contents: Mapping[str, bytes], about: str = "") -> Manifest:
        """Make the manifest of files that are about to be written."""
        return cls(kind, {name: digest(content) for name, content in contents.items()}, about)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a folder; none is an error."""
        manifest = cls.find(folder)
        if manifest is None:
            raise CheckpointError(f"{folder} has no {MANIFEST}: it was not written by attnlab, or is damaged")
        return manifest

    @classmethod
    def find(cls, folder: Path) -> Manifest | None:
        """Read the manifest of a folder; None if there is none."""
        path = folder / MANIFEST
        try:
            stored = json.loads(reading.read_bytes(path))
            version, manifest = stored["version"], cls(stored["kind"], stored["files"], stored["about"])
            if version != _VERSION:
                raise CheckpointError(
                    f"{path} has version {version!r}, but this attnlab reads {_VERSION}: upgrade attnlab"
                )
            if stored["sha256"] != manifest.sha256:
                raise ValueError("the manifest is not as it was written")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}): restore it, or check its permissions"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{path} is damaged: restore it from a copy, or make the folder again") from None
        return manifest

    @property
    def sha256(self) -> str:
        """The checksum of the manifest itself."""
        return digest(json.dumps([self.kind, self.about, _VERSION, sorted(self.files.items())]).encode())

    def to_bytes(self) -> bytes:
        """Return the content of manifest.json."""
        files = dict(sorted(self.files.items()))
        stored = {"kind": self.kind, "about": self.about, "version": _VERSION, "files": files, "sha256": self.sha256}
        return (json.dumps(stored, indent=1) + "\n").encode()


# Writing


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
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
    with os_errors(path):
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


def write_folder(path: Path, kind: str, files: Mapping[str, bytes], replace: bool = False, *, about: str = "") -> None:
    """Write a folder with its manifest atomically; an existing one is an error unless `replace`.

    `about` says in words what the output of a command is, for lists of folders.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    sealed = {**files, MANIFEST: Manifest.of(kind, files, about).to_bytes()}
    with os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with one_writer(path.parent):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                for name, content in sealed.items():
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    _write_through(temporary / name, content)
                aside = hide(path) if replace else None
                refuse_existing(path)
                temporary.rename(path)
                _sync(path.parent)
                if aside:
                    shutil.rmtree(aside, ignore_errors=True)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise


def hide(folder: Path) -> Path:
    """Hide a folder before removing it, so that a partly removed one is never taken for a complete one."""
    hidden = folder.with_name(f".{folder.name}.old.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    if folder.exists():
        folder.rename(hidden)
    return hidden


def add_files(folder: Path, files: Mapping[str, bytes], existing: Sequence[str] = ()) -> None:
    """Write files into a folder and list them in its manifest, together with the `existing` ones.

    Replaced files are removed from the list first, so that whenever a process is killed, every listed file is intact.
    The caller holds the lock of the folder.
    """
    unlist(folder, *files)
    for name, content in files.items():
        write_bytes(folder / name, content)
    listed = {**files, **{name: reading.read_bytes(folder / name) for name in existing}}
    manifest = Manifest.read(folder)
    added = Manifest.of(manifest.kind, listed).files
    write_bytes(folder / MANIFEST, replace(manifest, files={**manifest.files, **added}).to_bytes())


def unlist(folder: Path, *names: str) -> None:
    """Remove files from the manifest before they change."""
    manifest = Manifest.read(folder)
    kept = {name: sha256 for name, sha256 in manifest.files.items() if name not in names}
    if len(kept) < len(manifest.files):
        write_bytes(folder / MANIFEST, replace(manifest, files=kept).to_bytes())


def write_manifest(folder: Path, kind: str, about: str = "") -> None:
    """Write the manifest of a folder whose files were written one by one; subfolders have their own."""
    inside = [path for path in folder.iterdir() if path.is_file() and path.name not in (MANIFEST, ".lock")]
    files = {path.name: reading.read_bytes(path) for path in inside}
    write_bytes(folder / MANIFEST, Manifest.of(kind, files, about).to_bytes())


@contextmanager
def folders_above(folder: Path) -> Iterator[None]:
    """Create the parent folders of a folder to be written; remove them again if writing fails."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        with os_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # another process has written there
                parent.rmdir()
        raise


def refuse_existing(path: Path) -> None:
    """Raise OutputExists if an output folder exists."""
    if path.exists():
        raise OutputExists(f"{path} exists already: choose another name, or remove it first")


# Reading


def read_bytes(path: Path, folder: Path | None = None) -> bytes:
    """Read a file written by attnlab and check it against the manifest of its folder."""
    folder = folder or path.parent
    name = path.relative_to(folder).as_posix()
    try:
        content = reading.read_bytes(path)
        manifest = Manifest.read(folder)
        if name not in manifest.files:
            raise FileNotFoundError
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: the folder is incomplete") from None
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): check what it is, and its permissions"
        ) from None
    if digest(content) != manifest.files[name]:
        raise CheckpointError(
            f"{path} is damaged or was edited (its checksum differs from {MANIFEST}): restore it from a copy, or"
            " make the folder again"
        )
    return content


def is_written(path: Path) -> bool:
    """Whether a file was written completely; one that a killed process left unlisted was not."""
    if not os.path.lexists(path):
        return False
    manifest = Manifest.find(path.parent)
    return manifest is not None and path.name in manifest.files


def kind_of(folder: Path) -> str:
    """Return the kind of a folder; empty if attnlab did not write it."""
    manifest = Manifest.find(folder)
    return manifest.kind if manifest else ""


def verify(folder: Path) -> None:
    """Check every file listed in the manifest of a folder."""
    for name in Manifest.read(folder).files:
        read_bytes(folder / name, folder)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object written by attnlab, or raise an error that says what is wrong with it."""
    try:
        return msgspec.json.decode(read_bytes(path), type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): use an older checkpoint or train again") from None


def peek(path: Path) -> dict[str, Any]:
    """Read a JSON object without checking it; return {} if that is impossible."""
    try:
        value = json.loads(reading.read_bytes(path))
    except (ValueError, OSError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Report a stored file as damaged if its content cannot be used."""
    try:
        yield
    except AttnlabError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"{path} is damaged, or of another version ({message:.200}): restore it from a copy, or make it again"
        ) from error


# Locks


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
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
    with os_errors(folder):
        stream = open(folder / name, "ab", opener=reading.without_waiting)  # noqa: SIM115
    with stream:
        for pause in (0.01, 0.05, 0.1, 0.3, 0.5, None):  # `is_locked` takes the lock for a moment too
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if pause is None:
                    raise UserError(f"{folder} is being written by another process: wait for it, or stop it") from None
            time.sleep(pause)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is writing this folder now."""
    if fcntl is None:
        return False
    try:
        with reading.open_file(folder / ".lock") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
