"""Where the runs of a study are worked on: processes of this machine, a Ray cluster or Slurm (remote).

Each is a command in a process of its own, wherever it runs. It writes to the folder of the study, and what it prints to a log.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from attnlab.errors import Interrupted, UserError
from attnlab.lm.progress import say
from attnlab.machine import cores, end_with_parent
from attnlab.store.folders import locked

PAUSE = 0.2  # seconds between polls of the processes
PATIENCE = 60.0  # seconds that a process has to save its state when asked to stop
MANY = 1_000_000  # more than any study starts
_EXTRAS = {"ray": "ray", "slurm": "submitit"}  # the extras of attnlab and their packages


@dataclass(frozen=True)
class Command:
    """`python -m MODULE ARGUMENTS PARENT`; `threads` is the number of cores that it needs, `gpu` whether it needs a GPU."""

    module: str
    arguments: tuple[str, ...]
    log: Path
    threads: int = 1
    gpu: bool = False

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it here, as a process that is told who waits for it."""
        line = [sys.executable, "-P", "-m", self.module, *self.arguments, str(os.getpid())]
        with self.log.open("ab") as stream:
            # A new session: Ctrl-C in the terminal reaches the study only, which then asks its processes to stop.
            return subprocess.Popen(
                line, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, start_new_session=True
            )


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


class _Process:
    """A command in a process of this machine."""

    reason = ""

    def __init__(self, command: Command) -> None:
        self._process = command.launch()

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()


@dataclass(frozen=True)
class _Here:
    """Processes of this machine."""

    at_a_time: int
    tries: int = 1
    place: str = "this machine"

    def start(self, command: Command) -> Task:
        """Start a command."""
        return _Process(command)


def read_workers(asked: int | str, threads: int = 1, runs: int | None = None) -> int | str:
    """A number of runs at a time, or the name of a cluster; 0 asks for as many runs as there are cores for."""
    wrong = UserError(
        f"--workers must be a number of at least 1 (0: one per core), ray, ray://HOST:PORT or slurm, not {asked}"
    )
    if isinstance(asked, str) and not asked.lstrip("-").isdigit():
        name = asked.partition("://")[0]
        if asked not in _EXTRAS and not (name == "ray" and len(asked) > len("ray://")):
            raise wrong
        if importlib.util.find_spec(_EXTRAS[name]) is None:
            raise UserError(f"--workers {asked} needs {_EXTRAS[name]}: pip install 'attnlab[{name}]'")
        return asked
    if (number := int(asked)) < 0:
        raise wrong
    most = cores() // threads
    return number or max(1, most if runs is None else min(most, runs))


@contextmanager
def opened(workers: int | str, folder: Path) -> Iterator[Workers]:
    """The workers of a study, as `read_workers` names them; a cluster is left when the study ends."""
    if isinstance(workers, int):
        yield _Here(workers)
        return
    from attnlab.studies import remote

    with remote.slurm(folder) if workers == "slurm" else remote.ray_cluster(workers) as cluster:
        yield cluster


class Attempts:
    """A command that is started again, and this is said, if its worker is lost."""

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
    for one in tasks:
        one.stop()
    until = time.monotonic() + PATIENCE
    for one in tasks:
        while not one.ended():
            if time.monotonic() > until:
                one.kill()
                break
            time.sleep(PAUSE / 10)


@contextmanager
def started_by(parent: int, folder: Path, name: str) -> Iterator[None]:
    """What a command does first: stop when asked or when its parent ends, and lock `name` in a folder.

    A process whose worker was lost may still be saving its state: it is waited for.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # sent by the parent, even if it ignores Ctrl-C itself
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])  # Ray's workers block them
    end_with_parent(signal.SIGINT)
    if os.getppid() != parent:
        raise Interrupted("the process that started this one has ended")
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
