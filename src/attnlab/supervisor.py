"""Child processes: functions and commands that run apart from this process, within limits, and never outlive it.

A child is a Python process in a session of its own with a private temporary folder. Functions are called by name; their
arguments and values are records in msgpack, never pickles, so that a child that runs foreign code cannot run code here.
When this process ends, even by SIGKILL, the system ends the whole process group of the child: the child holds one end of
a pipe whose other end only this process has. Limits guard against mistakes; `confine` is the place for protection
against malice, which there is none of yet.

This module must not know what the children compute, and must not import torch. POSIX only.
"""

from __future__ import annotations

import fcntl
import importlib
import inspect
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeVar, get_type_hints

import msgspec

from attnlab.errors import AttnlabError
from attnlab.store import records

_START_SECONDS = 300.0  # to start and import
_TAIL = 2**16  # bytes of output that are kept
_CHUNK = 2**16  # bytes read at a time
_HEADER = 8  # bytes of a message's length
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)  # how libraries end that do not check their allocations
_T = TypeVar("_T")
Confine = Callable[[list[str], Path], list[str]]


@dataclass(frozen=True)
class Limits:
    """What a call may use."""

    seconds: float | None = None  # of wall time, counted from when the child has started and imported its modules
    memory: int | None = None  # bytes beyond what the child held before the call; not enforced by macOS
    file: int | None = None  # bytes of any file that it writes
    message: int = 2**30  # bytes of a message that it sends


NO_LIMITS = Limits()


def unconfined(command: list[str], _folder: Path) -> list[str]:
    """Run a child with all rights of this user; another `Confine` may wrap its command in a sandbox."""
    return command


class ChildError(AttnlabError):
    """A call in a child process has no value."""


class TimeExceeded(ChildError):
    """It took longer than its limit."""


class MemoryExceeded(ChildError):
    """It needed more memory than its limit."""


class Died(ChildError):
    """The child ended before it answered."""


class Unreadable(ChildError):
    """The child sent something else than an answer."""


class Raised(ChildError):
    """The function raised an error that is not one of attnlab's own."""


# Messages


class Call(msgspec.Struct, tag=True):
    """Call a function, `module:name`, within limits of memory and file size."""

    function: str
    arguments: list[Any]
    memory: int | None = None
    file: int | None = None


class Stop(msgspec.Struct, tag=True):
    """Stop a function that yields values."""


class Ready(msgspec.Struct, tag=True):
    """The child has started and imported its modules."""


class Item(msgspec.Struct, tag=True):
    """A value that a function yields."""

    value: Any


class Done(msgspec.Struct, tag=True):
    """The value that a function returns."""

    value: Any


class Failed(msgspec.Struct, tag=True):
    """The error that a function raises, by the name of its class."""

    kind: str
    message: str
    out_of_memory: bool = False

    def error(self) -> AttnlabError:
        """The error to raise here: of the same class if it is one of attnlab's own."""
        for kind in _descendants(AttnlabError):
            if kind.__name__ == self.kind and not issubclass(kind, ChildError):
                return kind(self.message)
        return Raised(f"{self.kind}: {self.message}")


_Received = Ready | Item | Done | Failed


def _descendants(kind: type[AttnlabError]) -> Iterator[type[AttnlabError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _descendants(child)


def _encode(message: msgspec.Struct) -> bytes:
    payload = records.encode_message(message)
    return len(payload).to_bytes(_HEADER, "big") + payload


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of arguments and value, as far as they are declared and known while the program runs."""
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        with suppress(NameError, TypeError):  # imported for type checkers only
            holder = SimpleNamespace(__annotations__={name: annotation})
            hints |= get_type_hints(holder, getattr(function, "__globals__", {}))
    return hints


def _convert(value: Any, kind: Any) -> Any:
    try:
        return records.convert(kind, value)
    except (TypeError, NotImplementedError):  # the type of no record, such as that of an iterator
        return value


def name_of(function: Callable[..., Any]) -> str:
    """The name by which a function is called in another process, `module:name`."""
    name = f"{function.__module__}:{function.__qualname__}"
    if "<" in name or function.__module__ == "__main__":
        raise TypeError(f"{name} cannot be called in another process: it is no function of a module")
    return name


def find_function(name: str) -> Callable[..., Any]:
    """The function of a name."""
    module, _, path = name.partition(":")
    function: Any = importlib.import_module(module)
    for part in path.split("."):
        function = getattr(function, part)
    return function


def typed_arguments(function: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
    """Arguments as the records that a function declares, from the plain values of a message."""
    hints = _hints(function)
    kinds = (hints.get(name, Any) for name in (inspect.signature(function).parameters if hints else ()))
    return [_convert(value, next(kinds, Any)) for value in values]


# In the parent


class Child:
    """A child process: it calls functions one after the other, or runs `main(arguments)` of a module as its command.

    Args:
        command: A module and its arguments; without one, the child waits for calls.
        imports: Modules that are imported before the first call, and whose import counts against no limit.
        output: A file to which all output is appended; without one, the last 64 kB are kept for `tail`.
        orphan_signal: What the process group receives when this process ends: SIGINT asks it to save its state.
        environment: Variables to add.
        confine: How the child is confined: from its command and its folder, the command that is run instead.
    """

    def __init__(
        self,
        *command: str,
        imports: Sequence[str] = (),
        output: Path | None = None,
        orphan_signal: signal.Signals = signal.SIGKILL,
        environment: Mapping[str, str] | None = None,
        confine: Confine = unconfined,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="attnlab-"))
        self._socket, remote = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        words = [f"{lifeline},{remote.fileno()},{int(orphan_signal)},{'+'.join(imports)}", *command]
        log = output.open("ab") if output else None
        try:
            self._process = subprocess.Popen(
                confine([sys.executable, "-P", "-m", "attnlab.supervisor", *words], self.folder),
                env={**os.environ, "TMPDIR": str(self.folder), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log or subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(lifeline, remote.fileno()),
                start_new_session=True,
            )
        except BaseException:
            self._release()
            raise
        finally:
            remote.close()
            os.close(lifeline)
            if log:
                log.close()
        self.pid = self._process.pid
        self._socket.settimeout(_START_SECONDS)
        self._received = bytearray()
        self._ready, self._deadline = False, time.monotonic() + _START_SECONDS
        self._limits, self._returns = NO_LIMITS, Any
        self._tail = b""
        if self._process.stdout:
            threading.Thread(target=self._drain, args=(self._process.stdout,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def fileno(self) -> int:
        """The descriptor that is readable when there is something to receive."""
        return self._socket.fileno()

    def send(self, function: Callable[..., Any], *arguments: Any, limits: Limits = NO_LIMITS) -> None:
        """Have a function of a module called; `receive` returns its values."""
        message = _encode(Call(name_of(function), list(arguments), limits.memory, limits.file))
        self._limits = limits
        self._returns = Any if inspect.isgeneratorfunction(function) else _hints(function).get("return", Any)
        if self._ready:
            self._start_clock()
        with suppress(BrokenPipeError, ConnectionResetError):  # told by `receive`
            self._socket.sendall(message)

    def stop(self) -> None:
        """Ask a function that yields to stop after its next value; it is then done."""
        with suppress(OSError):
            self._socket.sendall(_encode(Stop()))

    def receive(self, seconds: float | None = None) -> Item | Done | None:
        """The next value, or None if none comes within some seconds; errors of the call are raised."""
        until = self._deadline if seconds is None else min(self._deadline, time.monotonic() + seconds)
        while (message := self._next_message()) is None or isinstance(message, Ready):
            if message is not None:
                self._ready = True
                self._start_clock()
                until = self._deadline if seconds is None else until
            elif not select.select([self._socket], [], [], max(0.0, min(until - time.monotonic(), 1e6)))[0]:
                if time.monotonic() >= self._deadline:
                    raise TimeExceeded(f"it takes more than {self._limits.seconds or _START_SECONDS:g} s")
                return None
            elif not self._read():
                raise Died(f"it {self.how_it_ended()}")
        if isinstance(message, Failed):
            if message.out_of_memory and self._limits.memory is not None:
                raise MemoryExceeded(f"it needs more than {self._limits.memory / 1e9:g} GB of memory")
            raise message.error()
        if isinstance(message, Done):
            try:
                return Done(_convert(message.value, self._returns))
            except msgspec.ValidationError:
                raise Unreadable("its answer cannot be read") from None
        return message

    def call(self, function: Callable[..., _T], *arguments: Any, limits: Limits = NO_LIMITS) -> _T:
        """The value of a function of a module."""
        self.send(function, *arguments, limits=limits)
        while not isinstance(message := self.receive(), Done):
            pass
        return message.value

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs. What is left of its process group is ended."""
        running = self._process.returncode is None
        code = self._process.poll()
        if running and code is not None:
            self._kill_group()
        return code

    def interrupt(self) -> None:
        """Ask it to save its state and end."""
        self._process.send_signal(signal.SIGINT)

    def tail(self) -> str:
        """The end of its output."""
        return self._tail.decode(errors="replace")

    def how_it_ended(self) -> str:
        """Wait for its end, and say what ended it."""
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code} before it was done"
        memory = self._limits.memory
        guess = f", probably because memory ran out ({memory / 1e9:g} GB)" if memory and -code in _CRASHES else ""
        return f"ended by {signal.Signals(-code).name}{guess}"

    def end(self) -> None:
        """Kill its process group, and delete its temporary folder."""
        if self._process.returncode is None:
            self._kill_group()
            self._process.wait()
        self._release()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _release(self) -> None:
        self._socket.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_clock(self) -> None:
        self._deadline = time.monotonic() + (float("inf") if self._limits.seconds is None else self._limits.seconds)

    def _read(self) -> bool:
        """Read what has come; whether the connection still stands."""
        try:
            chunk = self._socket.recv(_CHUNK)
        except ConnectionResetError:
            return False
        self._received += chunk
        return bool(chunk)

    def _next_message(self) -> _Received | None:
        size = int.from_bytes(self._received[:_HEADER], "big")
        if len(self._received) >= _HEADER and size > self._limits.message:
            raise Unreadable("its answer cannot be read: it is too long")
        if len(self._received) < _HEADER + size or len(self._received) < _HEADER:
            return None
        payload = bytes(self._received[_HEADER : _HEADER + size])
        del self._received[: _HEADER + size]
        try:
            message: _Received = msgspec.msgpack.decode(payload, type=_Received)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise Unreadable("its answer cannot be read") from None
        return message

    def _drain(self, stream: Any) -> None:
        """Keep the last output: it is read as it comes, so that the child never waits."""
        with stream:
            while chunk := stream.read1(_TAIL):
                self._tail = (self._tail + chunk)[-_TAIL:]


# In the child


def _end_with_parent(lifeline: int, number: int) -> None:
    """Have this process group receive a signal when the parent ends, which closes the other end of a pipe."""
    if hasattr(fcntl, "F_SETSIG"):  # Linux sends it, whatever this process is computing
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, number)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        if select.select([lifeline], [], [], 0)[0]:  # it has ended already
            os.killpg(0, number)
        return

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(0, number)

    threading.Thread(target=watch, daemon=True).start()


def _limit(call: Call) -> list[tuple[int, tuple[int, int]]]:
    """Set the limits of a call; return those to restore."""
    memory = call.memory
    if memory is not None:
        memory += _memory_mapped()
    before = []
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, call.file)):
        if most is not None:
            soft, hard = resource.getrlimit(kind)
            before.append((kind, (soft, hard)))
            resource.setrlimit(kind, (most, hard))
    return before


def _memory_mapped() -> int:
    """Bytes of virtual memory of this process; 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _answer(call: Call, connection: socket.socket) -> Done | Failed:
    """Call a function, and send what it yields, until it ends or is asked to stop."""
    before: list[tuple[int, tuple[int, int]]] = []
    try:
        function = find_function(call.function)
        arguments = typed_arguments(function, call.arguments)
        before = _limit(call)
        value = function(*arguments)
        while inspect.isgenerator(value):
            if select.select([connection], [], [], 0)[0]:
                value.close()
                value = None
                break
            try:
                connection.sendall(_encode(Item(next(value))))
            except StopIteration as end:
                value = end.value
        return Done(value)
    except BaseException as error:  # whatever foreign code may raise
        out_of_memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
        message = " ".join(str(error).split()) if not isinstance(error, AttnlabError) else str(error)
        return Failed(type(error).__name__, message, out_of_memory)
    finally:
        for kind, limits in before:
            resource.setrlimit(kind, limits)


def _serve(connection: socket.socket) -> None:
    """Answer calls until the parent closes the connection."""
    connection.sendall(_encode(Ready()))
    while header := connection.recv(_HEADER, socket.MSG_WAITALL):
        payload = connection.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL)
        message: Call | Stop = msgspec.msgpack.decode(payload, type=Call | Stop)
        if isinstance(message, Stop):  # the function had just ended
            continue
        answer = _answer(message, connection)
        try:
            encoded = _encode(answer)
        except Exception as error:  # such as a number of more than 64 bits
            encoded = _encode(Failed(type(error).__name__, str(error)))
        connection.sendall(encoded)


def _main(place: str, *command: str) -> int:
    lifeline, connection, orphan_signal, imports = place.split(",")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])  # Ray's workers block them
    can_save = int(orphan_signal) != signal.SIGKILL
    # SIGINT is sent by the parent, even if the parent itself ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler if can_save else signal.SIG_IGN)
    _end_with_parent(int(lifeline), int(orphan_signal))
    for module in filter(None, imports.split("+")):
        importlib.import_module(module)
    with socket.socket(fileno=int(connection)) as connected:
        if command:
            module, *arguments = command
            return int(importlib.import_module(module).main(arguments))
        _serve(connected)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
