"""Compile a C++ file on first use, test it once in a separate process, cache the library, and load it.

    library = build.load("additive")   # None if it cannot be built; one line on standard error says why

The name of a library in the cache contains a hash of everything it depends on (source, flags, compiler, processor) and the
sha256 of its content. It gets that name only after its probe has passed, so that two processes may build at once, and a
file that was damaged later no longer matches its name and is rebuilt. A hash does not stop an attacker: a library is loaded
only if it belongs to this user, in a folder that nobody else can write to. A failure to build is recorded there too.
ATTNLAB_KERNELS=0 turns kernels off, ATTNLAB_CACHE names the folder, CXX the compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from attnlab.errors import StorageError
from attnlab.machine import cache_folder, cpu_name, is_main_process, temporary_folder, writable
from attnlab.reading import read_bytes
from attnlab.store.folders import digest

FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-w",
    # The safe part of fast math: NaN and infinity keep their meaning, sums keep their order.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffp-contract=fast",
)
NATIVE = "-mcpu=native" if platform.machine().lower() in ("arm64", "aarch64") else "-march=native"
# Runs the library's own probe and, for the kernels of this folder, compares it with plain torch.
_PROBE = """
import ctypes, importlib, sys
path, module, root = sys.argv[1:]
library = ctypes.CDLL(path)
if failed := library.probe():
    sys.exit(failed)
if module:
    sys.path.insert(0, root)
    from attnlab.kernels import build
    build.load = lambda name: library
    if not importlib.import_module(module).matches_plain():
        sys.exit("its numbers differ from those of plain torch")
"""
_ROOT = Path(__file__).parents[2]  # where the probe finds attnlab
PATIENCE = 120  # seconds


class KernelError(Exception):
    """A kernel cannot be built or used; the message says why, and plain torch is used instead."""


def load(name: str) -> ctypes.CDLL | None:
    """Load the library of a kernel in this folder, building it if needed; None if that fails."""
    if os.environ.get("ATTNLAB_KERNELS") == "0":
        return None
    return load_file(Path(__file__).with_name(f"{name}.cpp"), f"{__package__}.{name}")


@functools.cache
def load_file(source: Path, module: str = "") -> ctypes.CDLL | None:
    """Load the library of a source file, building it if needed; if that fails, return None and print why.

    `module` has a function `matches_plain`, which compares a new library with plain torch.
    """
    try:
        return ctypes.CDLL(str(find_library(source, module)))
    except (KernelError, StorageError, OSError) as error:
        _say(f"the {source.stem} kernel runs in plain torch, the same but slower: {error}")
        return None


def function(kernel: str, name: str, arguments: type[ctypes.Structure]) -> Callable[..., int]:
    """A function of a kernel that can be loaded: it takes a struct and a range of rows, and returns 0 unless it failed."""
    library = load(kernel)
    assert library is not None
    loaded = library[name]
    loaded.argtypes = [ctypes.POINTER(arguments), ctypes.c_int64, ctypes.c_int64]
    return loaded


def _say(line: str) -> None:
    """Print one line for the user, from the main process only."""
    if is_main_process():
        sys.stderr.write(f"attnlab: {line}\n")


def find_library(source: Path, module: str = "") -> Path:
    """Return the path of the library, building it if needed."""
    compiler = find_compiler()
    name = f"{source.stem}-{fingerprint(source, compiler)}"
    folder = private_folder()
    kept = [*folder.glob(f"{name}-*.so")]
    for path in kept:
        if is_intact(path):
            return path
        with contextlib.suppress(OSError):
            path.unlink()
    failed = folder / f"{name}.failed"
    if failed.exists():
        raise KernelError(f"{read_bytes(failed).decode(errors='replace')} (to try again, remove {failed})")
    if not kept:
        _say(f"compiling the {source.stem} kernel for this processor, once; it takes some seconds")
    return make(source, writable(folder) / name, compiler, module)


def private_folder() -> Path:
    """Return the private folder of libraries, or a temporary one for this process if that is impossible."""
    folder = cache_folder() / "kernels"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder):
            shutil.rmtree(folder)  # others may have put files there
            folder.mkdir(mode=0o700)
        if _is_private(folder):
            return folder
    return temporary_folder()


def _is_private(path: Path) -> bool:
    """Whether a file or folder belongs to this user and nobody else can write to it; a link is never private."""
    status = path.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def is_intact(path: Path) -> bool:
    """Whether a library is private and its content matches the hash in its name."""
    try:
        return _is_private(path) and path.stem.endswith(f"-{digest(read_bytes(path))}")
    except OSError:
        return False


def find_compiler() -> tuple[str, ...]:
    """Return the C++ compiler of the user (CXX) or the system."""
    asked = shlex.split(os.environ.get("CXX", ""))
    if asked:
        if shutil.which(asked[0]) is None:
            raise KernelError(f"CXX names {asked[0]}, which is not there: set it to a C++ compiler")
        return tuple(asked)
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return (path,)
    raise KernelError("there is no C++ compiler: install g++ or clang++, or set ATTNLAB_KERNELS=0 to stop this message")


def fingerprint(source: Path, compiler: tuple[str, ...]) -> str:
    """A hash of everything that a library depends on, with the headers beside its source; 16 characters."""
    version = run([*compiler, "--version"], "the compiler does not say its version")
    texts = (path.read_text(encoding="utf-8") for path in (source, *sorted(source.parent.glob("*.h"))))
    parts = (*texts, *FLAGS, NATIVE, *compiler, version, processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def processor() -> str:
    """The processor and its features: a home folder may be shared by machines that need different libraries."""
    features = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {cpu_name()} {features}"


def make(source: Path, target: Path, compiler: tuple[str, ...], module: str) -> Path:
    """Compile for this processor, else for any of its architecture; rename the library once it has passed its probe."""
    reason = ""
    for flags in ((*FLAGS, NATIVE), FLAGS):
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
            library = Path(folder) / "made.so"
            try:
                run([*compiler, *flags, str(source), "-o", str(library)], "it does not compile")
                library.chmod(0o700)
                kept = target.with_name(f"{target.name}-{digest(read_bytes(library))}.so")
                run([sys.executable, "-P", "-c", _PROBE, str(library), module, str(_ROOT)], "its probe failed")
            except KernelError as error:
                reason = reason or str(error)
            else:
                return library.replace(kept)
    with contextlib.suppress(OSError):
        target.with_name(f"{target.name}.failed").write_text(reason, encoding="utf-8")
    raise KernelError(reason)


def run(command: list[str], failure: str) -> str:
    """Return the output of a command, or raise KernelError with the last line of its error that names one."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{failure}: {error}") from None
    if done.returncode == 0:
        return done.stdout
    if done.returncode < 0:
        raise KernelError(f"{failure}: killed by {signal.Signals(-done.returncode).name}")
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    raise KernelError(f"{failure}: {([line for line in lines if 'rror' in line] or lines)[-1]}")
