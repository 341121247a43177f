"""Files that others may have written: only regular ones, opened without waiting, and read up to a size.

A pipe would block for ever, and a device never ends. Every failure is an OSError that says in `strerror` what is wrong, so
that callers report it as they report a missing file.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from importlib import resources
from io import BufferedReader
from pathlib import Path

LARGEST = 100_000_000  # bytes of a file that is read as a whole


def without_waiting(path: str, flags: int) -> int:
    """Open a file, as `opener` of `open`, without waiting for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0), 0o666)


def open_file(path: Path, most: float = math.inf) -> BufferedReader:
    """Open a regular file of at most some bytes."""
    special = OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))
    try:
        stream = open(path, "rb", opener=without_waiting)  # noqa: SIM115
    except OSError as error:
        raise special if error.errno == errno.ENXIO else error from None  # a socket
    status = os.fstat(stream.fileno())
    wrong = None if stat.S_ISREG(status.st_mode) else special
    if status.st_size > most:
        wrong = wrong or OSError(errno.EFBIG, f"it is larger than {most / 1e6:,.0f} MB", str(path))
    if status.st_size > max(10 * LARGEST, 100 * 512 * status.st_blocks):  # reading its zeros would take minutes
        wrong = wrong or OSError(errno.EFBIG, "it is almost empty for its size", str(path))
    if wrong is not None:
        stream.close()
        raise wrong
    return stream


def read_bytes(path: Path) -> bytes:
    """Read a whole file; weights may be as large as memory allows, and metrics have a line for every step."""
    with open_file(path, {".safetensors": math.inf, ".jsonl": 10 * LARGEST}.get(path.suffix, LARGEST)) as stream:
        try:
            return stream.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, "it does not fit into memory", str(path)) from None


def packaged_text(package: str, *path: str) -> str:
    """Read a text file that one of attnlab's packages carries."""
    return resources.files(f"attnlab.{package}").joinpath(*path).read_text(encoding="utf-8")
