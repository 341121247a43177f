"""attnlab commands in forked children, and the faults that are injected into them. Nothing in src knows of this.

The parent imports torch once and never computes with it, so that a child is ready in milliseconds. A child counts its write
events: opening a file for writing, each write, rename, remove, mkdir and rmdir below its root. A fault strikes at the N-th.
The processes of a comparison are forked too, instead of started, and count with their parent.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib
import io
import json
import mmap
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "300", "MPLBACKEND": "Agg"}

import torch

from attnlab import cli, studies  # noqa: F401 - imported once, for all children
from attnlab.store.folders import verify
from attnlab.studies import workers
from attnlab.studies.compare import runs

LONGEST = 120  # seconds that a command may take; more is a hang
NOBODY = 65534
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Strike = Callable[[int, str, str], None]
"""What happens at an event: its number, its kind, and the path."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code, or minus the signal, and what it wrote to the terminal."""

    code: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        """Whether it ended in one line that names a mistake, not in a traceback or an unexpected error."""
        lines = [line for line in self.err.splitlines() if not line.startswith("note: ")]
        return self.code in (1, 2) and len(lines) == 1 and lines[0].startswith("attnlab: ")

    def __str__(self) -> str:
        return f"code {self.code}, {self.err.strip()[-400:] or self.out.strip()[-200:]!r}"


class Shared:
    """Numbers that a child and the processes it forks have in common."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8)

    def next(self) -> int:
        """The number of one more event; only one process writes at a time."""
        (count,) = struct.unpack("q", self.memory[:8])
        self.memory[:8] = struct.pack("q", count + 1)
        return count


class Counted(io.FileIO):
    """A file whose writes are events."""

    watch: Callable[[str, str, Any], Any]

    def write(self, data: Any) -> int:
        """Write, unless the fault strikes first; a kill leaves half of the data."""
        Counted.watch("write", str(self.name), lambda: super(Counted, self).write(bytes(data)[: len(data) // 2]))
        return super().write(data)


def inject(root: Path, strike: Strike) -> None:
    """From now on, tell `strike` of every write event of this process below a folder. There is no way back."""
    shared, top, plain, inside = Shared(), str(root.resolve()), io.open, [False]

    def watch(kind: str, path: str, halve: Callable[[], Any] | None = None) -> None:
        path = str(Path(path).absolute())
        if inside[0] or not path.startswith(top):
            return
        inside[0] = True
        try:
            watch.halve = halve  # type: ignore[attr-defined]
            strike(shared.next(), kind, path)
        finally:
            inside[0] = False

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | os.PathLike) and flags & WRITING:
                watch("open", os.fspath(path))
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            path, folder = arguments[0], arguments[-1]
            if isinstance(path, int):
                path = Path(f"/proc/self/fd/{path}").readlink()
            elif isinstance(folder, int) and folder >= 0 and event in ("os.remove", "os.rmdir"):
                path = Path(f"/proc/self/fd/{folder}").readlink() / os.fspath(path)
            kind = event.removeprefix("os.")
            if os.path.lexists(path) != (kind == "mkdir"):  # else it changes nothing
                watch(kind, os.fspath(path))

    def counted(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax") or "+" in mode:
            return plain(file, mode, buffering, *more, **named)
        stream = io.BufferedWriter(Counted(os.fspath(file), re.sub("[bt]", "", mode)))
        named = {key: value for key, value in named.items() if key in ("encoding", "errors", "newline")}
        given = dict(zip(("encoding", "errors", "newline"), more, strict=False)) | named
        return stream if "b" in mode else io.TextIOWrapper(stream, **given)

    Counted.watch = staticmethod(watch)
    inject.watch = watch  # type: ignore[attr-defined]
    io.open = counted  # type: ignore[assignment]
    sys.addaudithook(audit)


def kill_at(number: int) -> Strike:
    """kill -9 at the N-th event; a write is torn in the middle."""

    def strike(count: int, kind: str, path: str) -> None:
        if count == number:
            if kind == "write":
                inject.watch.halve()  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)

    return strike


def stop_at(number: int) -> Strike:
    """Stand still at the N-th event until somebody sends SIGCONT."""

    def strike(count: int, kind: str, path: str) -> None:
        if count == number:
            os.kill(os.getpid(), signal.SIGSTOP)

    return strike


def full_from(number: int) -> Strike:
    """From the N-th event on the disk is full: nothing can be created or written any more."""

    def strike(count: int, kind: str, path: str) -> None:
        if count >= number and kind in ("open", "write", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    return strike


def record_to(log: Path) -> Strike:
    """Write down every event, with the place in the code that caused it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def strike(count: int, kind: str, path: str) -> None:
        os.write(descriptor, (json.dumps([kind, path, place()]) + "\n").encode())

    return strike


def place() -> str:
    """The function of attnlab that is writing: the innermost outside runs.py and folders.py, and what it called there."""
    frame, called = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if "/attnlab/" in name:
            if not name.endswith(("/store/runs.py", "/store/folders.py")):
                return f"{name.rpartition('/attnlab/')[2]}:{frame.f_lineno}{called}"
            called = f" {frame.f_code.co_name}:{frame.f_lineno}{called}"
        frame = frame.f_back
    return called


class Forked:
    """Stands in for the child process of a comparison's job."""

    def __init__(self, command: workers.Command) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        with command.log.open("ab") as log:
            self.pid = os.fork()
            if self.pid == 0:
                os.setsid()
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                leave(lambda: runs.main(list(command.arguments)))

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._wait(os.WNOHANG)

    def interrupt(self) -> None:
        """Ask it to save its state and end."""
        os.kill(self.pid, signal.SIGINT)

    def end(self) -> None:
        """Kill it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def leave(work: Callable[[], Any], after: Callable[[], Any] | None = None) -> None:
    """Do something, and one more thing after it, as the last of this process."""
    code = 70
    try:
        code = int(work() or 0)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        if after:
            after()
        os._exit(code)


@dataclass
class Child:
    """A command that is under way."""

    pid: int
    said: tuple[int, int]

    def wait(self, orphans: bool = True) -> Outcome | None:
        """How it ended; None when it stands still. The jobs of a comparison that was killed are waited for as well."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return None
        with suppress(ChildProcessError):
            while orphans:
                os.waitpid(-1, 0)
        texts = []
        for descriptor in self.said:
            os.lseek(descriptor, 0, os.SEEK_SET)
            with os.fdopen(descriptor, "rb") as stream:
                texts.append(stream.read().decode(errors="replace"))
        return Outcome(os.waitstatus_to_exitcode(status), *texts)


def start(
    root: Path,
    *arguments: str,
    strike: Strike | None = None,
    before: Callable[[], None] | None = None,
    after: Callable[[], Any] | None = None,
) -> Child:
    """Begin a command in the folder `root`/work; HOME and the user's other folders are `root`/home."""
    said = (os.memfd_create("out"), os.memfd_create("err"))
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, said)
    for number, descriptor in enumerate(said, start=1):
        os.dup2(descriptor, number)
    signal.alarm(LONGEST)
    os.chdir(root / "work")
    sys.argv = ["attnlab", *arguments]
    home = str(root / "home")
    os.environ |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "XDG_STATE_HOME": f"{home}/state"}
    torch.set_num_threads(1)
    workers.Command.start = lambda command: Forked(command)  # type: ignore[method-assign,assignment,return-value]
    runs.PAUSE = workers.PAUSE = 0.02
    if strike:
        inject(root, strike)
    if before:
        before()
    leave(lambda: cli.main(list(arguments)), after)
    raise AssertionError


def attnlab(root: Path, *arguments: str, **more: Any) -> Outcome:
    """Do a command to its end."""
    outcome = start(root, *arguments, **more).wait()
    assert outcome is not None
    return outcome


def warm_up(root: Path, *arguments: str, **more: Any) -> Outcome:
    """Do a command, then import here what it imported, so that later children find it there."""
    names = os.memfd_create("names")
    note = lambda: os.write(names, "\n".join(sys.modules).encode())  # noqa: E731
    outcome = attnlab(root, *arguments, after=note, **more)
    os.lseek(names, 0, os.SEEK_SET)
    with os.fdopen(names) as stream:
        for name in stream.read().split("\n"):
            with suppress(ImportError):
                importlib.import_module(name)
    return outcome


def adopt_orphans() -> None:
    """Become the parent of processes whose parent was killed, so that they can be waited for."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def limited_to(size: int) -> Callable[[], None]:
    """No file may grow larger."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def as_nobody() -> None:
    """Give up the rights of root, who may write anything."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


# What came out ----------------------------------------------------------------------------------------------------

# Times and memory, which no two runs share, and what follows from them.
UNSTEADY = re.compile(r"seconds|tokens_per_second|peak_memory|measuring|finished|environment|memory|time|when|speed")


def steady(value: Any) -> Any:
    """The same without times."""
    if isinstance(value, dict):
        if UNSTEADY.search(str(value.get("key", value.get("figure")))):
            return None
        return {key: steady(one) for key, one in value.items() if not UNSTEADY.search(key)}
    return [steady(one) for one in value] if isinstance(value, list) else value


def figures(folder: Path, spare: str = "") -> dict[str, Any]:
    """Everything that a run or study found out, to the last digit, by file; the path of the sandbox is left out."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (
            not path.is_file()
            or name == spare
            or path.name in (".lock", "manifest.json", "env.json")
            or name.startswith("logs/")
        ):
            continue
        if path.suffix == ".json":
            found[name] = steady(json.loads(path.read_text().replace(str(folder), "").replace(str(folder.parent), "")))
            found[name].pop("metrics", None)  # of a checkpoint: a checksum of lines with times
        elif path.suffix == ".jsonl":
            found[name] = [steady(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix in (".html", ".md"):
            found[name] = path.stat().st_size > 0
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def unlike(one: Any, other: Any) -> str:
    """The first place in which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key in sorted({*one, *other}) if one.get(key) != other.get(key))
        return f" [{key}]{unlike(one.get(key), other.get(key))}"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        at = next(at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        return f" [{at}]{unlike(one[at], other[at])}"
    return f" {str(one)[:100]} instead of {str(other)[:100]}"


def differences(folder: Path, wanted: dict[str, Any]) -> str:
    """In what a folder is not as it should be; empty where it is: figures, checksums, nothing left over."""
    try:
        found = figures(folder)
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    names = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
    if names:
        first = unlike(found.get(names[0]), wanted.get(names[0]))
        return f"differs in {', '.join(names[:5])}{first}"
    left = [path.name for path in (folder, *folder.rglob("*")) if path.name.endswith(".tmp")]
    if left:
        return f"left over: {', '.join(left)}"
    for manifest in folder.rglob("manifest.json"):
        verify(manifest.parent)
    return ""


def contents(folder: Path) -> dict[str, Any]:
    """Every file with what it holds, to see whether anything changes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != ".lock"
    }
