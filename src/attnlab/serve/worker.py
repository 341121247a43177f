"""Processes that compute for the server, so that its event loop never waits.

A worker runs one task at a time, a module-level function that returns a value or yields several. What tasks keep in their
modules, such as a loaded model, stays there for the next one. A task that is cancelled is asked to stop: one that yields
does so after its next value, and its process stays. A task that does not stop soon, or takes too long, is ended with its
process; the next task gets a new one. The temporary files of a process are deleted with it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from attnlab.errors import AttnlabError
from attnlab.machine import end_with_parent
from attnlab.terminal import unexpected

_Started = tuple[BaseProcess, Connection, str]  # the last is its folder for temporary files
_Put = Callable[[tuple[str, Any]], None]
_GRACE = 2.0  # seconds for a cancelled task to stop
_ENDED = "the computation ended unexpectedly, perhaps for lack of memory: try again with less"


class Busy(AttnlabError):
    """Too many tasks wait already."""


class TimeLimit(AttnlabError):
    """A task took too long."""


class Worker:
    """A process that runs tasks one after the other; it starts with the first."""

    def __init__(self, waiting: int = 16) -> None:
        self.most_waiting = waiting
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._starting: asyncio.Future[_Started] | None = None
        self._started: _Started | None = None
        self._closed = False

    async def run(self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> Any:
        """The value of a task."""
        values = [value async for value in self.stream(task, *arguments, timeout=timeout)]
        return values[-1]

    async def stream(self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> AsyncGenerator[Any]:
        """The values that a task yields, and last the one that it returns.

        They are kept until they are asked for, so that a slow reader does not keep others waiting.
        """
        if self._waiting >= self.most_waiting:
            raise Busy("the server is busy: try again in a moment")
        messages = asyncio.Queue[tuple[str, Any]]()
        running = asyncio.create_task(self._compute(task, arguments, timeout, messages.put_nowait))
        self._waiting += 1
        running.add_done_callback(self._leave)
        try:
            kind = "item"
            while kind == "item":
                kind, value = await messages.get()
                if kind == "error":
                    raise value
                yield value
        finally:
            running.cancel()

    def _leave(self, _: asyncio.Task[None]) -> None:
        self._waiting -= 1

    async def _compute(self, task: Callable[..., Any], arguments: Sequence[Any], timeout: float, put: _Put) -> None:
        """Have the process run a task, and put its messages; the last is not an item."""
        async with self._turn:
            connection, finished = None, False
            try:
                async with asyncio.timeout(timeout):
                    started = await self._start()
                    await asyncio.to_thread(started.send, (task, arguments))
                    connection = started
                    await _relay(connection, put)
                    finished = True
            except asyncio.CancelledError:
                finished = connection is not None and await _stop(connection)
                raise
            except TimeoutError:
                put(("error", TimeLimit(f"this took longer than {timeout:g} seconds, and was ended")))
            except (EOFError, OSError):
                put(("error", AttnlabError(_ENDED)))
            except Exception as error:  # such as a value that cannot be sent
                put(("error", error))
            finally:
                if not finished and self._started:
                    asyncio.get_running_loop().run_in_executor(None, _end, *self._started)
                    self._started = None

    async def _start(self) -> Connection:
        """The connection to the process; a start goes on if the task that needs it is cancelled, for the next one."""
        if self._started is None or not self._started[0].is_alive():
            await asyncio.to_thread(self._discard)
            # In a thread of the event loop's pool, which lasts: Linux ends the process with the thread that started it.
            self._starting = self._starting or asyncio.ensure_future(asyncio.to_thread(self._launch))
            try:
                self._started = await asyncio.shield(self._starting)
            finally:
                if self._starting.done():
                    self._starting = None
        return self._started[1]

    def _launch(self) -> _Started:
        """Start a process, which ends at once if the worker was closed meanwhile."""
        started = _start()
        if self._closed:
            _end(*started)
        return started

    def _discard(self) -> None:
        if self._started:
            _end(*self._started)
        self._started = None

    def close(self) -> None:
        """End the process and what it computes, also one that nobody waits for any more."""
        self._closed = True
        starting = self._starting
        if starting is not None and starting.done() and not starting.cancelled() and not starting.exception():
            _end(*starting.result())
        self._discard()


def _start() -> _Started:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    folder = tempfile.mkdtemp(prefix="attnlab-worker-")
    process = context.Process(target=_work, args=(theirs, folder), daemon=True)
    try:
        process.start()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    theirs.close()
    return process, ours, folder


def _end(process: BaseProcess, connection: Connection, folder: str) -> None:
    """End a process; the connection is closed last, because a thread may still write to it."""
    process.kill()
    process.join(5)
    connection.close()
    shutil.rmtree(folder, ignore_errors=True)


async def _relay(connection: Connection, put: _Put) -> None:
    """Put the messages of a task until the last."""
    kind = "item"
    while kind == "item":
        kind, value = await _receive(connection)
        put((kind, value))


async def _stop(connection: Connection) -> bool:
    """Ask a task to stop; whether it did so soon."""
    try:
        connection.send(None)
        async with asyncio.timeout(_GRACE):
            await _relay(connection, lambda _: None)
    except (TimeoutError, EOFError, OSError):
        return False
    return True


async def _receive(connection: Connection) -> tuple[str, Any]:
    """The next message, without a thread that would outlive a cancelled request."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection.fileno())
        os.set_blocking(connection.fileno(), True)  # uvloop makes it non-blocking, which cuts long messages
    return connection.recv()


def import_all(*names: str) -> None:
    """A task that imports modules, so that the first task that needs them does not wait."""
    for name in names:
        importlib.import_module(name)


def _work(connection: Connection, folder: str) -> None:
    """Run tasks until the server ends; temporary files, also those of child processes, go to a folder of their own."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    end_with_parent(signal.SIGKILL)
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            asked = connection.recv()
            if asked is None:  # a task was asked to stop when it had just ended
                continue
            task, arguments = asked
            try:
                value = task(*arguments)
                if inspect.isgenerator(value):
                    value = _drain(value, connection)
                message = ("done", value)
            except AttnlabError as error:
                message = ("error", error)
            except Exception as error:
                message = ("error", AttnlabError(unexpected(error)[0]))
            connection.send(message)


def _drain(values: Any, connection: Connection) -> Any:
    """Send what a task yields until it ends or is asked to stop; return what it returns."""
    while not connection.poll():
        try:
            connection.send(("item", next(values)))
        except StopIteration as end:
            return end.value
    values.close()
    return None
