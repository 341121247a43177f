"""From a C++ file to a loaded library: compiled on first use, tried once in a process of its own, kept for the next time.

    library = build.load("additive")   # None where it cannot be had, and one line on standard error says why

A library stands in the cache under a name made from everything it depends on: source, flags, compiler, processor. It gets
that name only after its probe has passed, so that two processes may build at once and neither meets half a file. A failure
is remembered beside it. ATTNLAB_KERNELS=0 turns kernels off, ATTNLAB_CACHE names the folder, CXX the compiler.
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
from attnlab.machine import cache_folder, cpu_name, writable
from attnlab.runs import speaks

FLAGS = (
    *("-std=c++17", "-O3", "-shared", "-fPIC", "-w"),
    # What of fast arithmetic is safe: NaN and infinity keep their meaning, sums keep their order.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-ffp-contract=fast"),
)
NATIVE = "-mcpu=native" if platform.machine().lower() in ("arm64", "aarch64") else "-march=native"
PROBE = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).probe())"
PATIENCE = 120  # seconds


class KernelError(Exception):
    """A kernel cannot be had; the message says why, and plain torch takes its place."""


def load(name: str) -> ctypes.CDLL | None:
    """The library of a kernel in this folder, built if need be, or None."""
    if os.environ.get("ATTNLAB_KERNELS") == "0":
        return None
    return load_file(Path(__file__).with_name(f"{name}.cpp"))


@functools.cache
def load_file(source: Path) -> ctypes.CDLL | None:
    """The library of a source file, built if need be; where it cannot be had, None and one line that says why."""
    try:
        return ctypes.CDLL(str(find_library(source)))
    except (KernelError, StorageError, OSError) as error:
        say(f"the {source.stem} kernel runs in plain torch, the same but slower: {error}")
        return None


def say(line: str) -> None:
    """One line for the user, from one process."""
    if speaks():
        sys.stderr.write(f"attnlab: {line}\n")
        sys.stderr.flush()


def find_library(source: Path) -> Path:
    """Where the library is, after building it if need be."""
    compiler = find_compiler()
    name = f"{source.stem}-{fingerprint(whole(source), compiler)}.so"
    kept = cache_folder() / name
    if is_there(kept):
        return kept
    failed = kept.with_suffix(".failed")
    if is_there(failed):
        raise KernelError(f"{failed.read_text(encoding='utf-8')} (to try again, remove {failed})")
    say(f"compiling the {source.stem} kernel for this processor, once; it takes some seconds")
    target = writable(kept.parent) / name
    make(source, target, compiler)
    return target


def is_there(path: Path) -> bool:
    """Whether a file can be reached: in a folder that may not even be entered, it cannot."""
    try:
        return path.exists()
    except OSError:
        return False


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


def make(source: Path, target: Path, compiler: tuple[str, ...]) -> None:
    """Compile for this processor, or else for any of its kind; a library that passes its probe gets its name."""
    reason = ""
    for flags in ((*FLAGS, NATIVE), FLAGS):
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
            made = Path(folder) / target.name
            try:
                run([*compiler, *flags, str(source), "-o", str(made)], "it does not compile")
                run([sys.executable, "-I", "-S", "-c", PROBE, str(made)], "its probe failed")
            except KernelError as error:
                reason = reason or str(error)
            else:
                made.replace(target)
                return
    with contextlib.suppress(OSError):
        target.with_suffix(".failed").write_text(reason, encoding="utf-8")
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
