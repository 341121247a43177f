"""Where the runs of a study are worked on: processes of this machine, or a Ray cluster.

Each is a command in a child process, wherever it runs. It writes to the folder of the study, and what it prints to a log.
A worker of Ray starts the command on its own machine and waits for it, so that a run has a fresh process as it has here,
and that the process stops when its worker does. The folder of the study must have the same path on all machines.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from attnlab.errors import AttnlabError, Interrupted, UserError, one_line
from attnlab.lm.progress import say
from attnlab.machine import cores
from attnlab.store.folders import locked
from attnlab.supervisor import Child
from attnlab.terminal import unexpected

PAUSE = 0.2  # seconds between polls of the processes
PATIENCE = 60.0  # seconds that a process has to save its state when asked to stop
_MANY = 1_000_000  # more than any study starts
_TRIES = 3  # on a cluster
_SAVING = PATIENCE - 5.0  # seconds to save the state, before the study ends the worker that waits for it


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


@dataclass(frozen=True)
class Workers:
    """Those who work on commands."""

    place: str  # in messages
    at_a_time: int  # commands that are started at a time
    tries: int  # how often a command is started whose worker is lost
    start: Callable[[Command], Task]


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
        yield Workers("this machine", workers, 1, _LocalTask)
        return
    with ray_cluster(workers) as cluster:
        yield cluster


# A Ray cluster


class _RayTask:
    """A command on a Ray cluster."""

    def __init__(self, ray: Any, command: Command) -> None:
        _refuse_too_large(ray, command)
        self.reason = ""
        self._ray = ray
        self._code: int | None = None
        # Tried again by the study, which says so, and not by Ray.
        options = {"num_cpus": command.threads, "num_gpus": int(command.gpu), "max_retries": 0}
        self._reference = ray.remote(**options)(run_job).remote(command)

    def poll(self) -> int | None:
        errors = self._ray.exceptions
        if self._code is None and self._ray.wait([self._reference], timeout=0)[0]:
            try:
                self._code = self._ray.get(self._reference)
            except errors.TaskCancelledError:
                self._code = Interrupted.exit_code
            except errors.RayTaskError as error:  # which it would meet again
                self._code = AttnlabError.exit_code
                self.reason = f"its worker could not start it: {one_line(error.cause)}"
            except errors.RayError as error:  # which may quote a whole log
                last = (str(error).strip() or type(error).__name__).splitlines()[-1]
                self._code, self.reason = -signal.SIGKILL, f"its worker was lost ({last.strip()[:200]})"
        return self._code

    def stop(self) -> None:
        self._ray.cancel(self._reference)

    def kill(self) -> None:
        self._ray.cancel(self._reference, force=True)


def run_job(command: Command) -> int:
    """Run a command where this is called; when this process is asked to stop, the command is asked to save its state."""
    if not command.log.parent.is_dir():
        raise FileNotFoundError(
            "the study must be on a file system that all machines share (--out):"
            f" {socket.gethostname()} has no {command.log.parent}"
        )
    with command.start() as child:
        try:
            while (code := child.poll()) is None:
                time.sleep(PAUSE)
            return code
        finally:
            if child.poll() is None:
                child.interrupt()
                until = time.monotonic() + _SAVING
                while child.poll() is None and time.monotonic() < until:
                    time.sleep(PAUSE)


def _refuse_too_large(ray: Any, command: Command) -> None:
    """Raise UserError if no machine is large enough: Ray would wait for one for ever."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    sizes = [(machine.get("GPU", 0) >= command.gpu, machine.get("CPU", 0)) for machine in machines]
    fits, cpus = max(sizes, default=(False, 0))
    if not fits:
        raise UserError(
            "a run needs a GPU, and no machine of the Ray cluster has one: use --device cpu, or add a machine"
        )
    if cpus < command.threads:
        raise UserError(
            f"a run needs {command.threads} cores, and no machine of the Ray cluster has more than {cpus:.0f}"
            f"{' beside a GPU' if command.gpu else ''}: use --train.threads {max(1, int(cpus))}, or add a machine"
        )


@contextmanager
def ray_cluster(name: str) -> Iterator[Workers]:
    """Connect to the cluster ray://HOST:PORT; for `ray`, to that of RAY_ADDRESS or of this machine, or start one here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init("auto" if name == "ray" else name, **quiet)
        except ConnectionError:
            if name != "ray" or os.environ.get("RAY_ADDRESS"):
                raise
            ray.init("local", include_dashboard=False, **quiet)
    except Exception as error:
        with suppress(Exception):
            ray.shutdown()
        raise UserError(
            f"cannot connect to Ray ({one_line(error)}): check the address, or start one: ray start --head"
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray puts its own in place, which would end the study without saving
    try:
        place = f"Ray with {ray.cluster_resources().get('CPU', 0):.0f} cores"
        yield Workers(place, _MANY, _TRIES, partial(_RayTask, ray))
    finally:
        ray.shutdown()


# Commands that are started again


class Attempts:
    """A command that is started again, with a message, if its worker is lost."""

    def __init__(self, workers: Workers, command: Command, label: str, console: Console) -> None:
        self.command = command
        self.code: int | None = None
        self._workers, self._tries = workers, 1
        self._label, self._console = label, console
        self.task = workers.start(command)

    def poll(self) -> int | None:
        """Its exit code; None while it runs, or waits to be started again."""
        self.code = self.task.poll()
        lost = self.code is not None and (self.code < 0 or self.code == Interrupted.exit_code)
        if lost and self._tries < self._workers.tries:
            say(self._console, f"{self._label}: {self.failure()}; it is started again")
            self.task, self._tries, self.code = self._workers.start(self.command), self._tries + 1, None
        return self.code

    def failure(self) -> str:
        """Why it ended: the signal, or the last line that it wrote."""
        code = self.code or 0
        if self.task.reason:
            return self.task.reason
        if code < 0:
            return f"ended by {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
        lines = self.command.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with code {code}"


def stop_all(running: Sequence[Attempts]) -> None:
    """Ask commands to save their state and end, and wait for them; end those that take too long."""
    tasks = [attempts.task for attempts in running]
    for task in tasks:
        task.stop()
    until = time.monotonic() + PATIENCE
    for task in tasks:
        while task.poll() is None:
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
