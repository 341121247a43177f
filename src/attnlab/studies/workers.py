"""Where the runs of a study are worked on: processes of this machine, or a Ray cluster (remote).

Each is a command in a child process, wherever it runs. It writes to the folder of the study, and what it prints to a log.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from attnlab.errors import AttnlabError, Interrupted, UserError
from attnlab.lm.progress import say
from attnlab.machine import cores
from attnlab.store.folders import locked
from attnlab.supervisor import Child
from attnlab.terminal import unexpected

PAUSE = 0.2  # seconds between polls of the processes
PATIENCE = 60.0  # seconds that a process has to save its state when asked to stop
MANY = 1_000_000  # more than any study starts


@dataclass(frozen=True)
class Command:
    """`main(ARGUMENTS)` of a module; `threads` is the number of cores that it needs, `gpu` whether it needs a GPU."""

    module: str
    arguments: tuple[str, ...]
    log: Path
    threads: int = 1
    gpu: bool = False

    def start(self) -> Child:
        """Start it here; if this process ends, it is asked to save its state."""
        shared = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"  # the default of torch.compile
        cache = {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(shared))}
        return Child(self.module, *self.arguments, output=self.log, orphan_signal=signal.SIGINT, environment=cache)


class Task(Protocol):
    """A command that was started."""

    reason: str  # why it ended, if its log does not say

    def poll(self) -> int | None:
        """Its exit code, negative if a signal ended it or its worker was lost; None while it runs or waits."""

    def stop(self) -> None:
        """Ask it to save its state and end."""

    def kill(self) -> None:
        """End it at once."""


class Workers(Protocol):
    """Those who work on commands."""

    @property
    def at_a_time(self) -> int:
        """How many commands are started at a time."""

    @property
    def tries(self) -> int:
        """How often a command is started whose worker is lost."""

    @property
    def place(self) -> str:
        """Its name in messages."""

    def start(self, command: Command) -> Task:
        """Start a command, or queue it."""


class _LocalTask:
    """A command in a child process of this one."""

    reason = ""

    def __init__(self, command: Command) -> None:
        self._child = command.start()

    def poll(self) -> int | None:
        code = self._child.poll()
        if code is not None:
            self._child.end()
        return code

    def stop(self) -> None:
        self._child.interrupt()

    def kill(self) -> None:
        self._child.end()


@dataclass(frozen=True)
class _Local:
    """Processes of this machine."""

    at_a_time: int
    tries: int = 1
    place: str = "this machine"

    def start(self, command: Command) -> Task:
        """Start a command."""
        return _LocalTask(command)


def read_workers(asked: int | str, threads: int = 1, runs: int | None = None) -> int | str:
    """A number of runs at a time, or the address of a Ray cluster; 0 asks for as many runs as there are cores for."""
    wrong = UserError(
        f"--workers must be a number of at least 1 (0: one per core), ray or ray://HOST:PORT, not {asked}"
    )
    if isinstance(asked, str) and not asked.lstrip("-").isdigit():
        if asked != "ray" and not (asked.startswith("ray://") and len(asked) > len("ray://")):
            raise wrong
        if importlib.util.find_spec("ray") is None:
            raise UserError(f"--workers {asked} needs ray: pip install 'attnlab[ray]'")
        return asked
    if (number := int(asked)) < 0:
        raise wrong
    most = cores() // threads
    return number or max(1, most if runs is None else min(most, runs))


@contextmanager
def opened(workers: int | str) -> Iterator[Workers]:
    """The workers of a study, as `read_workers` names them; a cluster is left when the study ends."""
    if isinstance(workers, int):
        yield _Local(workers)
        return
    from attnlab.studies.remote import ray_cluster

    with ray_cluster(workers) as cluster:
        yield cluster


class Attempts:
    """A command that is started again, with a message, if its worker is lost."""

    def __init__(self, workers: Workers, command: Command, label: str, console: Console) -> None:
        self.command = command
        self.code: int | None = None
        self._workers, self._tries = workers, 1
        self._label, self._console = label, console
        self._task = workers.start(command)

    def poll(self) -> int | None:
        """Its exit code; None while it runs, or waits to be started again."""
        self.code = self._task.poll()
        lost = self.code is not None and (self.code < 0 or self.code == Interrupted.exit_code)
        if lost and self._tries < self._workers.tries:
            say(self._console, f"{self._label}: {self.failure()}; it is started again")
            self._task, self._tries, self.code = self._workers.start(self.command), self._tries + 1, None
        return self.code

    def failure(self) -> str:
        """Why it ended: the signal, or the last line that it wrote."""
        code = self.code or 0
        if self._task.reason:
            return self._task.reason
        if code < 0:
            return f"ended by {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
        lines = self.command.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with code {code}"

    def stop(self) -> None:
        """Ask it to save its state and end."""
        self._task.stop()

    def kill(self) -> None:
        """End it at once."""
        self._task.kill()

    def ended(self) -> bool:
        """Whether it has ended, for good or to be started again."""
        return self._task.poll() is not None


def stop_all(tasks: Sequence[Attempts]) -> None:
    """Ask tasks to save their state and end, and wait for them; end those that take too long."""
    for task in tasks:
        task.stop()
    until = time.monotonic() + PATIENCE
    for task in tasks:
        while not task.ended():
            if time.monotonic() > until:
                task.kill()
                break
            time.sleep(PAUSE / 10)


# In the process of a command


@contextmanager
def lock_when_free(folder: Path, name: str) -> Iterator[None]:
    """Lock `name` in a folder. A process whose worker was lost may still hold it to save its state: it is waited for."""
    until = time.monotonic() + PATIENCE
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(folder, name))
                break
            except UserError:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE)
        yield


def exit_code_of(work: Callable[[], None]) -> int:
    """Do the work of a command; return its exit code, with an error in one line of its log."""
    try:
        work()
    except AttnlabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return Interrupted.exit_code
    except Exception as error:
        line, code = unexpected(error)
        sys.stderr.write(f"{line}\n")
        return code
    return 0
