"""Folders made once from a corpus and opened from then on: one process builds, others wait, damage is found.

A folder is built under a temporary name and renamed when it is complete. manifest.json lists the sha256 of every file;
those of small files are compared when a folder is opened. The checksums of a user's files are remembered while the files
are unchanged. Knows nothing about what is stored.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from attnlab.corpora.files import opened
from attnlab.errors import AttnlabError, StorageError
from attnlab.machine import cache_folder, writable
from attnlab.reading import read_bytes
from attnlab.store.folders import MANIFEST, Manifest, is_digest, one_writer

_CHECKED = 2**26  # bytes; a larger file is not hashed when its folder is opened, but checked by its reader
_RECENT = 2.0  # seconds; a file changed just now may change again within the resolution of its time stamp


def _hash(path: Path) -> str:
    """The sha256 of a file that may not fit into memory."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remembered_hash(path: Path) -> str:
    """Return the sha256 of a file; remembered while the file is unchanged, since reading a gigabyte takes time."""
    with opened(path):
        status = path.stat()
    known = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
    note = cache_folder() / "texts" / "known" / hashlib.sha256(known.encode()).hexdigest()[:32]
    with suppress(OSError, UnicodeDecodeError):
        if is_digest(text := read_bytes(note).decode()):
            return text
    checksum = _hash(path)
    if time.time() - status.st_mtime > _RECENT and path.stat().st_mtime_ns == status.st_mtime_ns:
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(checksum, encoding="ascii")
    return checksum


def _is_intact(folder: Path) -> bool:
    """Whether a folder is complete and as it was written."""
    try:
        files = {folder / name: sha256 for name, sha256 in Manifest.read(folder).files.items()}
        return all(path.stat().st_size > _CHECKED or _hash(path) == sha256 for path, sha256 in files.items())
    except (AttnlabError, OSError, ValueError, KeyError, TypeError):
        return False


def _make(target: Path, kind: str, build: Callable[[Path], None]) -> None:
    """Build a folder under a temporary name, and rename it when it is complete."""
    temporary = target.with_name(f".{kind}-{target.name}.tmp")
    try:
        temporary.mkdir()
        build(temporary)
        manifest = Manifest(kind, {path.name: _hash(path) for path in temporary.iterdir()})
        (temporary / MANIFEST).write_bytes(manifest.to_bytes())
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


def ensure(wanted: Path, kind: str, build: Callable[[Path], None]) -> tuple[Path, bool]:
    """Return a folder and whether it was built now: the wanted one, or a temporary one if that is not writable."""
    if _is_intact(wanted):
        return wanted, False
    place = writable(wanted.parent)
    target = place / wanted.name
    with one_writer(place):
        if _is_intact(target):
            return target, False
        for left in place.glob(f".{kind}-*.tmp"):  # by a killed process, since no other builds now
            shutil.rmtree(left, ignore_errors=True)
        _make(target, kind, build)
    return target, True
