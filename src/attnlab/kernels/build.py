"""From a C++ file to a loaded library: compiled on first use, tried once in a process of its own, kept for the next time.

    library = build.load("additive")   # None where it cannot be had, and one line on standard error says why

The name of a library in the cache holds a hash of everything it depends on (source, flags, compiler, processor) and the
SHA-256 of its content. It gets that name only after its probe has passed, so that two processes may build at once, and a
file that was damaged later no longer matches its name and is built again. A hash does not stop an attacker: what is loaded
must belong to this user, in a folder of this user that is closed to everybody else. A failure to build is remembered there
too. ATTNLAB_KERNELS=0 turns kernels off, ATTNLAB_CACHE names the folder, CXX the compiler.
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
from pathlib import Path

from attnlab.errors import StorageError
from attnlab.machine import cache_folder, cpu_name, is_main_process, temporary_folder, writable

FLAGS = (
    *("-std=c++17", "-O3", "-shared", "-fPIC", "-w"),
    # What of fast arithmetic is safe: NaN and infinity keep their meaning, sums keep their order.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-ffp-contract=fast"),
)
NATIVE = "-mcpu=native" if platform.machine().lower() in ("arm64", "aarch64") else "-march=native"
# The library's own probe, and for the kernels of this folder a comparison with the plain form of their module.
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
    """A kernel cannot be had; the message says why, and plain torch takes its place."""


def load(name: str) -> ctypes.CDLL | None:
    """The library of a kernel in this folder, built if need be, or None."""
    if os.environ.get("ATTNLAB_KERNELS") == "0":
        return None
    return load_file(Path(__file__).with_name(f"{name}.cpp"), f"{__package__}.{name}")


@functools.cache
def load_file(source: Path, module: str = "") -> ctypes.CDLL | None:
    """The library of a source file, built if need be; where it cannot be had, None and one line that says why.

    `module` has a function `matches_plain`, which compares a new library with plain torch.
    """
    try:
        return ctypes.CDLL(str(find_library(source, module)))
    except (KernelError, StorageError, OSError) as error:
        _say(f"the {source.stem} kernel runs in plain torch, the same but slower: {error}")
        return None


def _say(line: str) -> None:
    """One line for the user, from one process."""
    if is_main_process():
        sys.stderr.write(f"attnlab: {line}\n")
        sys.stderr.flush()


def find_library(source: Path, module: str = "") -> Path:
    """The path of the library, after building it if need be."""
    compiler = find_compiler()
    name = f"{source.stem}-{fingerprint(whole(source), compiler)}"
    folder = private_folder()
    kept = [*folder.glob(f"{name}-*.so")]
    for path in kept:
        if is_intact(path):
            return path
        with contextlib.suppress(OSError):
            path.unlink()
    failed = folder / f"{name}.failed"
    if failed.exists():
        raise KernelError(f"{failed.read_text(encoding='utf-8', errors='replace')} (to try again, remove {failed})")
    if not kept:
        _say(f"compiling the {source.stem} kernel for this processor, once; it takes some seconds")
    return make(source, writable(folder) / name, compiler, module)


def private_folder() -> Path:
    """The folder of libraries, closed to others; where that cannot be had, one for this process."""
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
    """Whether a file or folder belongs to this user and is closed to others; a link never is."""
    if not hasattr(os, "geteuid"):
        return True  # a system without these permissions
    found = path.lstat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def is_intact(path: Path) -> bool:
    """Whether a library is private and has the content that its name says."""
    try:
        return _is_private(path) and path.stem.endswith(f"-{_content_hash(path)}")
    except OSError:
        return False


def _content_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def find_compiler() -> tuple[str, ...]:
    """The user's C++ compiler, or the system's."""
    asked = shlex.split(os.environ.get("CXX", ""))
    if asked:
        if shutil.which(asked[0]) is None:
            raise KernelError(f"CXX names {asked[0]}, which is not there: set it to a C++ compiler")
        return tuple(asked)
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return (found,)
    raise KernelError(
        "there is no C++ compiler: install g++ or clang++, or set ATTNLAB_KERNELS=0 to hear no more of it"
    )


def whole(source: Path) -> bytes:
    """A source with the headers beside it, which it may include."""
    return b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))


def fingerprint(source: bytes, compiler: tuple[str, ...]) -> str:
    """What a library depends on, in 16 characters."""
    version = run([*compiler, "--version"], "the compiler does not say its version")
    parts = (source.decode(), *FLAGS, NATIVE, *compiler, version, processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def processor() -> str:
    """The processor and what it can do: libraries must not travel to another one with a shared home folder."""
    abilities = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        abilities = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {cpu_name()} {abilities}"


def make(source: Path, target: Path, compiler: tuple[str, ...], module: str) -> Path:
    """Compile for this processor, or else for any of its kind; a library that passes its probe gets its name."""
    reason = ""
    for flags in ((*FLAGS, NATIVE), FLAGS):
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
            made = Path(folder) / "made.so"
            try:
                run([*compiler, *flags, str(source), "-o", str(made)], "it does not compile")
                made.chmod(0o700)
                kept = target.with_name(f"{target.name}-{_content_hash(made)}.so")
                run([sys.executable, "-P", "-c", _PROBE, str(made), module, str(_ROOT)], "its probe failed")
            except KernelError as error:
                reason = reason or str(error)
            else:
                return made.replace(kept)
    with contextlib.suppress(OSError):
        target.with_name(f"{target.name}.failed").write_text(reason, encoding="utf-8")
    raise KernelError(reason)


def run(command: list[str], failure: str) -> str:
    """What a command prints, or a KernelError with the first line of what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{failure}: {error}") from None
    if done.returncode == 0:
        return done.stdout
    if done.returncode < 0:
        raise KernelError(f"{failure}: killed by {signal.Signals(-done.returncode).name}")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    told = [line for line in lines if "rror" in line] or lines
    raise KernelError(f"{failure}: {told[-1] if told else f'exit code {done.returncode}'}")
