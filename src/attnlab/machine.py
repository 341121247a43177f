"""The machine as this process finds it: cores, processor, memory, cache; an end that comes with the parent's. No torch."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from attnlab.errors import StorageError

STATUS = Path("/proc/self/status")  # of Linux


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_held(field: str) -> int | None:
    """Bytes of this process: VmRSS now, VmHWM at the peak, VmSize with what is only promised; None where nobody tells."""
    try:
        match = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(), flags=re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(match[1]) if match else None


def end_with_parent(number: int) -> None:
    """Have the system send this process a signal when its parent ends, where it can."""
    when_the_parent_ends = 1
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(when_the_parent_ends, number)


def cache_folder() -> Path:
    """Where what was made once is kept for the next time: ATTNLAB_CACHE, or the user's own cache; as a whole path."""
    try:
        if asked := os.environ.get("ATTNLAB_CACHE"):
            return Path(asked).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "attnlab"
    except RuntimeError:
        raise StorageError("there is no home folder: set ATTNLAB_CACHE to a folder") from None


def writable(folder: Path) -> Path:
    """The folder, or one for this process alone where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return temporary_folder()


def temporary_folder() -> Path:
    """A folder for this process alone, removed when it ends."""
    private = Path(tempfile.mkdtemp(prefix="attnlab-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private
