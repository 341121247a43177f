"""Processes that compute for the server, so that its event loop never waits.

A worker runs one task at a time, a module-level function that returns a value or yields several. What tasks keep in their
modules, such as a loaded model, stays there for the next one. A task that is cancelled or takes too long is ended with its
process; the next task gets a new one.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from attnlab.errors import AttnlabError
from attnlab.machine import end_with_parent
from attnlab.terminal import unexpected

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
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    async def run(self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> Any:
        """The value of a task."""
        values = [value async for value in self.stream(task, *arguments, timeout=timeout)]
        return values[-1]

    async def stream(self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> AsyncIterator[Any]:
        """The values that a task yields, and last the one that it returns."""
        if self._waiting >= self.most_waiting:
            raise Busy("the server is busy: try again in a moment")
        self._waiting += 1
        try:
            async with self._turn:
                finished = False
                try:
                    async with asyncio.timeout(timeout):
                        connection = self._start()
                        connection.send((task, arguments))
                        while not finished:
                            kind, value = await self._receive(connection)
                            finished = kind != "item"
                            if kind == "error":
                                raise value
                            yield value
                except TimeoutError:
                    raise TimeLimit(f"this took longer than {timeout:g} seconds, and was ended") from None
                except (EOFError, OSError):
                    raise AttnlabError(_ENDED) from None
                finally:
                    if not finished:
                        self.close()
        finally:
            self._waiting -= 1

    def _start(self) -> Connection:
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._process = process
        assert self._connection is not None
        return self._connection

    async def _receive(self, connection: Connection) -> tuple[str, Any]:
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

    def close(self) -> None:
        """End the process and what it computes."""
        if self._process is not None:
            self._process.kill()
            self._process.join(5)
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _work(connection: Connection) -> None:
    """Run tasks until the server ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    end_with_parent(signal.SIGKILL)
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            task, arguments = connection.recv()
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
    """Send what a task yields; return what it returns."""
    while True:
        try:
            connection.send(("item", next(values)))
        except StopIteration as end:
            return end.value
