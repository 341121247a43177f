"""Child processes: functions and commands that run apart from this process, within limits, and never outlive it.

A child is a Python process in a session of its own with a private temporary folder. Functions are called by name; their
arguments and values are records in msgpack, never pickles, so that a child that runs foreign code cannot run code here.
When this process ends, even by SIGKILL, the system ends the whole process group of the child: the child holds one end of
a pipe whose other end only this process has. Limits guard against mistakes; code from others runs in a child with a sandbox.
Whatever such a child sends is read as data, and cannot keep this process waiting beyond the time limit.

This module must not know what the children compute, and must not import torch. POSIX only.
"""

from __future__ import annotations

import fcntl
import importlib
import inspect
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self, TypeVar, get_type_hints

import msgspec

from attnlab import sandbox as confinement
from attnlab.errors import AttnlabError
from attnlab.machine import memory_held
from attnlab.store import records

_START_SECONDS = 300.0  # to start and import
_END_SECONDS = 1.0  # to end once the connection is closed
_POLL = 0.1  # seconds
_CHUNK = 2**16  # bytes read at a time
_HEADER = 8  # bytes of a message's length
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)  # how libraries end that do not check their allocations
_T = TypeVar("_T")
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH")  # variables that a sandbox inherits


@dataclass(frozen=True)
class Limits:
    """What a call may use."""

    seconds: float | None = None  # of wall time, counted from when the child has started and imported its modules
    memory: int | None = None  # bytes beyond what the child held before the call; not enforced by macOS
    file: int | None = None  # bytes of any file that it writes
    message: int = 2**30  # bytes of a message that it sends


NO_LIMITS = Limits()


class ChildError(AttnlabError):
    """A call in a child process has no value: it took too long, the child ended, or what it sent cannot be read."""


class MemoryExceeded(ChildError):
    """It needed more memory than its limit."""


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


def _descendants(kind: type[AttnlabError]) -> Iterator[type[AttnlabError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _descendants(child)


def _encode(message: msgspec.Struct) -> bytes:
    payload = records.encode_message(message)
    return len(payload).to_bytes(_HEADER, "big") + payload


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


def typed_arguments(function: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
    """Arguments as the records that a function declares, from the plain values of a message."""
    hints = get_type_hints(function)
    kinds = (hints.get(name, Any) for name in (inspect.signature(function).parameters if hints else ()))
    return [_convert(value, next(kinds, Any)) for value in values]


# In the parent


class Child:
    """A child process: it calls functions one after the other, or runs `main(arguments)` of a module as its command.

    Args:
        command: A module and its arguments; without one, the child waits for calls.
        imports: Modules that are imported before the first call, and whose import counts against no limit.
        output: A file to which all output is appended; without one, it is discarded.
        orphan_signal: What the process group receives when this process ends: SIGINT asks it to save its state.
        environment: Variables to add.
        sandbox: Bytes of memory beyond what its imports take, for code from others: the child then runs in a sandbox,
            with one thread and few variables. Without it, it has all rights of this user.
    """

    def __init__(
        self,
        *command: str,
        imports: Sequence[str] = (),
        output: Path | None = None,
        orphan_signal: signal.Signals = signal.SIGKILL,
        environment: Mapping[str, str] | None = None,
        sandbox: int = 0,
    ) -> None:
        with ExitStack() as held, ExitStack() as passed:  # closed at the end of the child, and once it has started
            temporary = tempfile.TemporaryDirectory(prefix="attnlab-", ignore_cleanup_errors=True)
            self.folder = Path(held.enter_context(temporary))
            self._socket, remote = map(held.enter_context, socket.socketpair())
            passed.enter_context(remote)
            reader, writer = os.pipe()
            lifeline = passed.enter_context(os.fdopen(reader, "rb"))
            self._lifeline = held.enter_context(os.fdopen(writer, "wb"))
            log = passed.enter_context((output or Path(os.devnull)).open("ab"))
            place = f"{reader},{remote.fileno()},{int(orphan_signal)},{'+'.join(imports)},{sandbox}"
            words = [sys.executable, "-P", "-m", "attnlab.supervisor", place, *command]
            inherited = _variables(self.folder) if sandbox else os.environ
            self._process = subprocess.Popen(
                confinement.wrapped(words, self.folder) if sandbox else words,
                env={**inherited, "TMPDIR": str(self.folder), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lifeline.fileno(), remote.fileno()),
                start_new_session=True,
            )
            self._held = held.pop_all()
        self.pid = self._process.pid
        self._socket.settimeout(_START_SECONDS)
        self._received = bytearray()
        self._ready, self._deadline = False, time.monotonic() + _START_SECONDS
        self._limits, self._returns, self._memory = NO_LIMITS, Any, sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def fileno(self) -> int:
        """The descriptor that is readable when there is something to receive."""
        return self._socket.fileno()

    def send(self, function: Callable[..., Any], *arguments: Any, limits: Limits = NO_LIMITS) -> None:
        """Have a function of a module called; `receive` returns its values."""
        message = _encode(Call(name_of(function), list(arguments), limits.memory, limits.file))
        self._limits = limits
        self._returns = Any if inspect.isgeneratorfunction(function) else get_type_hints(function).get("return", Any)
        if self._ready:
            self._start_clock()
        self._socket.settimeout(max(0.01, min(self._deadline - time.monotonic(), _START_SECONDS)))
        with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):  # told by `receive`
            self._socket.sendall(message)

    def stop(self) -> None:
        """Ask a function that yields to stop after its next value; it is then done."""
        with suppress(OSError):
            self._socket.sendall(_encode(Stop()))

    def receive(self, seconds: float | None = None) -> Item | Done | None:
        """The next value, or None if none comes within some seconds; errors of the call are raised."""
        until = time.monotonic() + (math.inf if seconds is None else seconds)
        while (message := self._next_message()) is None:
            wait = min(until, self._deadline) - time.monotonic()
            if select.select([self._socket], [], [], max(0.0, min(wait, 1e6)))[0]:
                self._read()
            elif time.monotonic() < self._deadline:
                return None
            if time.monotonic() >= self._deadline:
                raise ChildError(f"it takes more than {self._limits.seconds or _START_SECONDS:g} s")
        memory = self._limits.memory or self._memory
        if isinstance(message, Failed):
            if message.out_of_memory and memory:
                raise MemoryExceeded(f"it needs more than {memory / 1e9:g} GB of memory")
            raise message.error()
        if isinstance(message, Done):
            try:
                return Done(_convert(message.value, self._returns))
            except msgspec.ValidationError:
                raise ChildError("its answer cannot be read") from None
        return message

    def call(self, function: Callable[..., _T], *arguments: Any, limits: Limits = NO_LIMITS) -> _T:
        """The value of a function of a module."""
        self.send(function, *arguments, limits=limits)
        message = self.receive()
        if not isinstance(message, Done):
            raise ChildError("its answer cannot be read")
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

    def end(self) -> None:
        """Kill its process group, and delete its temporary folder."""
        if self._process.returncode is None:
            self._kill_group()
            self._process.wait()
        self._held.close()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _start_clock(self) -> None:
        self._deadline = time.monotonic() + (math.inf if self._limits.seconds is None else self._limits.seconds)

    def _read(self) -> None:
        """Read what has come; a closed connection is the end of the child, and an error."""
        with suppress(ConnectionResetError):
            if chunk := self._socket.recv(_CHUNK):
                self._received += chunk
                return
        memory = self._limits.memory or self._memory
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._kill_group()
        code = self._process.wait()
        if code >= 0:
            raise ChildError(f"it ended with exit code {code} before it was done")
        guess = f", probably because memory ran out ({memory / 1e9:g} GB)" if memory and -code in _CRASHES else ""
        raise ChildError(f"it ended by {signal.Signals(-code).name}{guess}")

    def _next_message(self) -> Item | Done | Failed | None:
        """The next message that has come as a whole; the clock of the call starts when the child is ready, once."""
        size = _HEADER + int.from_bytes(self._received[:_HEADER], "big")
        if len(self._received) < _HEADER:
            return None
        if size > _HEADER + self._limits.message:
            raise ChildError("its answer cannot be read: it is too long")
        if len(self._received) < size:
            return None
        payload = bytes(self._received[_HEADER:size])
        del self._received[:size]
        try:
            message = msgspec.msgpack.decode(payload, type=Ready | Item | Done | Failed)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise ChildError("its answer cannot be read") from None
        if not isinstance(message, Ready):
            return message
        if self._ready:
            raise ChildError("its answer cannot be read")
        self._ready = True
        self._start_clock()
        return self._next_message()


def call_each(
    function: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    limits: Limits,
    workers: int,
    imports: Sequence[str] = (),
) -> Iterator[tuple[int, list[Any], AttnlabError | None]]:
    """Call a function that yields with several arguments, in a few children at a time.

    Every call gives its number, the values that it yielded, and the error that ended it, if any; after one that is not
    attnlab's own its child is replaced.
    """
    waiting, idle = list(enumerate(calls))[::-1], list[Child]()
    running: dict[Child, tuple[int, list[Any]]] = {}
    with ExitStack() as started:
        while waiting or running:
            while waiting and len(running) < workers:
                child = idle.pop() if idle else started.enter_context(Child(imports=imports))
                number, arguments = waiting.pop()
                child.send(function, *arguments, limits=limits)
                running[child] = (number, [])
            select.select(list(running), [], [], _POLL)
            for child, (number, values) in list(running.items()):
                error: AttnlabError | None = None
                try:
                    message = child.receive(0)
                except AttnlabError as raised:
                    message, error = None, raised
                if isinstance(message, Item):
                    values.append(message.value)
                elif error is not None or message is not None:
                    del running[child]
                    if isinstance(error, ChildError):
                        child.end()
                    else:
                        idle.append(child)
                    yield number, values, error


def _variables(folder: Path) -> dict[str, str]:
    """The variables of a sandbox: nothing that could be secret, one thread, and where attnlab is."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONPATH": str(Path(__file__).parents[1]), "HOME": str(folder)}


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


@contextmanager
def _within(call: Call) -> Iterator[None]:
    """Set the limits of a call, then restore those before."""
    memory = None if call.memory is None else call.memory + (memory_held("VmSize") or 0)
    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: call.file}
    before = {kind: resource.getrlimit(kind) for kind, most in limits.items() if most is not None}
    try:
        for kind, (_, hard) in before.items():
            resource.setrlimit(kind, (limits[kind] or 0, hard))
        yield
    finally:
        for kind, both in before.items():
            resource.setrlimit(kind, both)


def _answer(call: Call, connection: socket.socket) -> Done | Failed:
    """Call a function, and send what it yields, until it ends or is asked to stop."""
    try:
        function = resolve_name(call.function)
        arguments = typed_arguments(function, call.arguments)
        with _within(call):
            value = function(*arguments)
            while inspect.isgenerator(value):
                if select.select([connection], [], [], 0)[0]:
                    value.close()
                    return Done(None)
                try:
                    connection.sendall(_encode(Item(next(value))))
                except StopIteration as end:
                    value = end.value
            return Done(value)
    except BaseException as error:  # whatever foreign code may raise
        out_of_memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
        notes = getattr(error, "__notes__", ())
        message = "\n".join((str(error), *notes)) if isinstance(error, AttnlabError) else " ".join(str(error).split())
        return Failed(type(error).__name__, message, out_of_memory)


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
    lifeline, connection, orphan_signal, imports, sandbox = place.split(",")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])  # Ray's workers block them
    can_save = int(orphan_signal) != signal.SIGKILL
    # SIGINT is sent by the parent, even if the parent itself ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler if can_save else signal.SIG_IGN)
    _end_with_parent(int(lifeline), int(orphan_signal))
    if int(sandbox):
        confinement.enter(Path(os.environ["TMPDIR"]))
    for module in filter(None, imports.split("+")):
        importlib.import_module(module)
    if int(sandbox):
        memory = int(sandbox) + (memory_held("VmSize") or 0)
        limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_NOFILE: 64}
        for kind, most in {**limits, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}.items():
            resource.setrlimit(kind, (most, most))
    with socket.socket(fileno=int(connection)) as connected:
        if command:
            module, *arguments = command
            return int(importlib.import_module(module).main(arguments))
        _serve(connected)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
