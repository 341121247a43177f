"""Processes that compute for the server, so that its event loop never waits.

A worker runs one task at a time, a module-level function that returns a value or yields several. What tasks keep in their
modules, such as a loaded model, stays there for the next one. A task that is cancelled is asked to stop: one that yields
does so after its next value, and its process stays. A task that does not stop soon, or takes too long, is ended with its
process; the next task gets a new one.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future
from pkgutil import resolve_name
from typing import Any, TypeVar

from attnlab.errors import AttnlabError
from attnlab.store.records import encode_line
from attnlab.supervisor import Child, ChildError, Done, Item, name_of, typed_arguments
from attnlab.terminal import unexpected

_T = TypeVar("_T")
_Put = Callable[[Item | Done | Exception], None]
_GRACE = 2.0  # seconds for a cancelled task to stop
_ENDED = "the computation ended unexpectedly, perhaps for lack of memory: try again with less"


class Busy(AttnlabError):
    """Too many tasks wait already."""

    status = 429


class TimeLimit(AttnlabError):
    """A task took too long."""

    status = 504


class Worker:
    """A process that runs tasks one after the other; it starts with the first."""

    def __init__(self, waiting: int = 16) -> None:
        self.most_waiting = waiting
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._child: Child | None = None

    async def run(self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> bytes:
        """The value of a task as JSON."""
        values = [value async for value in self.stream(task, *arguments, timeout=timeout)]
        assert values[-1] is not None
        return values[-1]

    async def stream(
        self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0
    ) -> AsyncGenerator[bytes | None]:
        """The values that a task yields, each as a line of JSON, then None; or the one value that it returns.

        They are kept until they are asked for, so that a slow reader does not keep others waiting.
        """
        if self._waiting >= self.most_waiting:
            raise Busy("the server is busy: try again in a moment")
        messages = asyncio.Queue[Item | Done | Exception]()
        running = asyncio.create_task(self._compute(task, arguments, timeout, messages.put_nowait))
        self._waiting += 1
        running.add_done_callback(self._leave)
        try:
            message: Item | Done | Exception = Item(None)
            while isinstance(message, Item):
                message = await messages.get()
                if isinstance(message, Exception):
                    raise message
                yield message.value
        finally:
            running.cancel()

    def _leave(self, _: asyncio.Task[None]) -> None:
        self._waiting -= 1

    async def _compute(self, task: Callable[..., Any], arguments: Sequence[Any], timeout: float, put: _Put) -> None:
        """Have the process run a task, and put its messages; the last is not an item."""
        async with self._turn:
            child = self._started()
            sent = stays = False
            try:
                async with asyncio.timeout(timeout):
                    await in_thread(child.send, _run_task, name_of(task), list(arguments))
                    sent = True
                    while isinstance(message := await _receive(child), Item):
                        put(message)
                    put(message)
                    stays = True
            except asyncio.CancelledError:
                stays = sent and await _stop(child)
                raise
            except TimeoutError:
                put(TimeLimit(f"this took longer than {timeout:g} seconds, and was ended"))
            except (ChildError, OSError):
                put(AttnlabError(_ENDED))
            except AttnlabError as error:
                put(error)
                stays = True
            except Exception as error:  # such as an argument that cannot be sent
                put(error)
            finally:
                if not stays:
                    self._child = None
                    threading.Thread(target=child.end, daemon=True).start()

    def _started(self) -> Child:
        """The process, or a new one if it has ended."""
        if self._child is not None and self._child.poll() is not None:
            self._child.end()
            self._child = None
        self._child = self._child or Child()
        return self._child

    def close(self) -> None:
        """End the process and what it computes; tasks that wait for it are refused."""
        self.most_waiting = 0
        if self._child is not None:
            self._child.end()


async def in_thread(function: Callable[..., _T], *arguments: Any) -> _T:
    """The value of a function that a thread calls; unlike those of asyncio, it does not keep the server from ending."""
    value = Future[_T]()
    value.set_running_or_notify_cancel()

    def call() -> None:
        try:
            value.set_result(function(*arguments))
        except BaseException as error:
            value.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(value)


async def _receive(child: Child) -> Item | Done:
    """The next message, without a thread that would outlive a cancelled request."""
    loop = asyncio.get_running_loop()
    while (message := child.receive(0)) is None:
        ready = asyncio.Event()
        loop.add_reader(child.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(child.fileno())
    return message


async def _stop(child: Child) -> bool:
    """Ask a task to stop; whether it did so soon."""
    try:
        child.stop()
        async with asyncio.timeout(_GRACE):
            while isinstance(await _receive(child), Item):
                pass
    except (TimeoutError, OSError, ValueError, AttnlabError) as error:  # the task has ended, or `close` its process
        return isinstance(error, AttnlabError) and not isinstance(error, ChildError)
    return True


# In the process


def _run_task(name: str, arguments: list[Any]) -> Generator[bytes, None, bytes | None]:
    """Run a task, and send what it returns or yields as JSON.

    The traceback of an unexpected error is saved in a file, which its message names.
    """
    try:
        task = resolve_name(name)
        value = task(*typed_arguments(task, arguments))
        if not inspect.isgenerator(value):
            return encode_line(value)
        for item in value:
            yield encode_line(item)
        return None
    except AttnlabError:
        raise
    except Exception as error:
        raise AttnlabError(unexpected(error)[0]) from None


def import_all(*names: str) -> None:
    """A task that imports modules, so that the first task that needs them does not wait."""
    for name in names:
        importlib.import_module(name)
