"""Folders made once from a corpus and opened from then on: one process builds, others wait, damage is found.

A folder is built under a temporary name and renamed when it is complete. manifest.json lists the sha256 of every file;
those of small folders are compared when a folder is opened, and of large ones the sizes. The checksums of files that were
read before are remembered while the files are unchanged. Knows nothing about what is stored.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attnlab.errors import AttnlabError, StorageError
from attnlab.machine import writable
from attnlab.store.folders import MANIFEST, Manifest, is_digest

CHECKED = 2**26  # bytes; every file of a smaller folder is hashed when it is opened, of a larger one sizes are compared
_RECENT = 2.0  # seconds; a file changed just now may change again within the resolution of its time stamp

Progress = Callable[[float], None]  # called with the completed share


def hash_of(path: Path) -> str:
    """Return the sha256 of a file that may not fit into memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remembered(path: Path, compute: Callable[[], str], folder: Path) -> str:
    """Return a checksum of a file; remembered while the file is unchanged, since reading a gigabyte takes time."""
    try:
        status = path.stat()
    except OSError:
        return compute()  # which says what is wrong
    known = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
    note = folder / "known" / hashlib.sha256(known.encode()).hexdigest()[:32]
    with suppress(OSError, UnicodeDecodeError):
        if is_digest(text := note.read_text(encoding="ascii")):
            return text
    checksum = compute()
    if time.time() - status.st_mtime > _RECENT and path.stat().st_mtime_ns == status.st_mtime_ns:
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(checksum, encoding="ascii")
    return checksum


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Wait until no other process builds in this folder, if the system has locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def seal(folder: Path, kind: str, files: list[Path]) -> None:
    """Write the manifest of a folder that is complete."""
    (folder / MANIFEST).write_bytes(Manifest(kind, {path.name: hash_of(path) for path in files}).to_bytes())


def _make(target: Path, kind: str, build: Callable[[Path], None]) -> None:
    """Build a folder under a temporary name, and rename it when it is complete."""
    temporary = target.with_name(f".{kind}-{target.name}.tmp")
    try:
        temporary.mkdir()
        build(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except AttnlabError:
        raise
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StorageError(
            f"the {kind} of the corpus cannot be written to {target.parent} ({reason}):"
            " free some space, or set ATTNLAB_CACHE to another folder"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def ensure(wanted: Path, kind: str, usable: Callable[[Path], bool], build: Callable[[Path], None]) -> tuple[Path, bool]:
    """Return a folder and whether it was built now: the wanted one, or a temporary one if that is not writable."""
    if usable(wanted):
        return wanted, False
    place = writable(wanted.parent)
    target = place / wanted.name
    with _exclusive(place):
        if usable(target):
            return target, False
        for left in place.glob(f".{kind}-*.tmp"):  # by a killed process, since no other builds now
            shutil.rmtree(left, ignore_errors=True)
        _make(target, kind, build)
    return target, True
