"""The machine and this process: cores, processor, memory, versions, cache folder, processes. No torch."""

from __future__ import annotations

import atexit
import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from attnlab import __version__
from attnlab.errors import StorageError, UserError

STATUS, MEMORY = Path("/proc/self/status"), Path("/proc/meminfo")  # of Linux


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Return the processor's name as reported by the system."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_held(field: str) -> int | None:
    """Return this process's memory in bytes: VmRSS now, VmHWM at the peak, VmSize virtual; None if the system does not say."""
    return _bytes_of(field, STATUS)


def memory_free() -> int | None:
    """Return the bytes of memory that processes can still take; None if the system does not say."""
    return _bytes_of("MemAvailable", MEMORY)


def _bytes_of(field: str, path: Path) -> int | None:
    try:
        match = re.search(rf"^{field}:\s+(\d+) kB$", path.read_text(), flags=re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(match[1]) if match else None


def retain_freed_memory() -> None:
    """Have glibc retain freed memory: mapping large tensors anew at every step is expensive."""
    limit_retained_memory(32 * 2**20, 2**31 - 1)  # glibc's maximum


def limit_retained_memory(block: int, total: int) -> None:
    """Have glibc return freed blocks above a size, and what is free above a total, to the system."""
    with suppress(AttributeError, OSError):
        mallopt, trim_threshold, mmap_threshold = ctypes.CDLL(None).mallopt, -1, -3
        mallopt(mmap_threshold, block)
        mallopt(trim_threshold, total)


def release_freed_memory() -> None:
    """Give the memory that glibc retains back to the system; without this, long runs hold more and more of it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def require_single_process(what: str) -> None:
    """Raise UserError under torchrun with several processes, which would all do the same work."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{what} runs in one process: under torchrun use pretrain, finetune, or resume of such a run")


def is_main_process() -> bool:
    """Whether this is the first process started by torchrun, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def environment() -> dict[str, str | int]:
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


def end_with_parent(number: int) -> None:
    """Have Linux send this process a signal when its parent ends."""
    when_the_parent_ends = 1
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(when_the_parent_ends, number)


def cache_folder() -> Path:
    """Return the absolute path of the cache folder: ATTNLAB_CACHE, or attnlab in the user's cache."""
    try:
        if asked := os.environ.get("ATTNLAB_CACHE"):
            return Path(asked).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "attnlab"
    except RuntimeError:
        raise StorageError("there is no home folder: set ATTNLAB_CACHE to a folder") from None


def writable(folder: Path) -> Path:
    """Return the folder, or a temporary one if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return temporary_folder()


def temporary_folder() -> Path:
    """Return a temporary folder that is removed when this process ends."""
    private = Path(tempfile.mkdtemp(prefix="attnlab-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private
