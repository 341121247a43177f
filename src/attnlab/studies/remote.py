"""Workers on other machines: a Ray cluster.

A worker starts the command as a child process on its own machine and waits for it, so that a run has a fresh process as it
has here, and that the process stops when its worker does. The folder of the study must have the same path on all machines.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from attnlab.errors import AttnlabError, Interrupted, UserError, one_line
from attnlab.studies.workers import MANY, PATIENCE, PAUSE, Command, Task, Workers
from attnlab.supervisor import Child

_TRIES = 3
_LOST = -signal.SIGKILL  # exit code of a command whose worker is gone
_FAILED = AttnlabError.exit_code  # of one that could not be started
_SAVING = PATIENCE - 5.0  # seconds to save the state, before the study ends the worker that waits for it


class JobRunner:
    """Starts a command where it is called, waits for it, and asks it to stop when this process is asked to."""

    def __init__(self, command: Command) -> None:
        self.command = command

    def __call__(self) -> int:
        """The exit code of the command."""
        if not self.command.log.parent.is_dir():
            raise FileNotFoundError(
                "the study must be on a file system that all machines share (--out):"
                f" {socket.gethostname()} has no {self.command.log.parent}"
            )
        with self.command.start() as child:
            try:
                return self.wait(child)
            finally:
                if child.poll() is None:
                    child.interrupt()
                    self.wait(child, _SAVING)

    @staticmethod
    def wait(child: Child, seconds: float = float("inf")) -> int:
        """The exit code of a child, or that of a killed one if it has not ended after some seconds."""
        until = time.monotonic() + seconds
        while (code := child.poll()) is None:
            if time.monotonic() > until:
                return _LOST
            time.sleep(PAUSE)
        return code


class _RayTask:
    """A command on a Ray cluster."""

    def __init__(self, ray: Any, command: Command) -> None:
        self.reason = ""
        self._ray = ray
        self._code: int | None = None
        # Tried again by the study, which says so, and not by Ray.
        options = {"num_cpus": command.threads, "num_gpus": int(command.gpu), "max_retries": 0}
        self._reference = ray.remote(**options)(_run_job).remote(command)

    def poll(self) -> int | None:
        if self._code is None and self._ray.wait([self._reference], timeout=0)[0]:
            try:
                self._code = self._ray.get(self._reference)
            except self._ray.exceptions.TaskCancelledError:
                self._code = Interrupted.exit_code
            except self._ray.exceptions.RayTaskError as error:  # which it would meet again
                self._code, self.reason = _FAILED, f"its worker could not start it: {one_line(error.cause)}"
            except self._ray.exceptions.RayError as error:
                self._code, self.reason = _LOST, f"its worker was lost ({_last_line(error)})"
        return self._code

    def stop(self) -> None:
        self._ray.cancel(self._reference)

    def kill(self) -> None:
        self._ray.cancel(self._reference, force=True)


def _run_job(command: Command) -> int:
    """The task of Ray."""
    return JobRunner(command)()


class _Ray:
    """A Ray cluster, which decides by free cores how many commands run at a time."""

    at_a_time, tries = MANY, _TRIES

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.place = f"Ray with {ray.cluster_resources().get('CPU', 0):.0f} cores"

    def start(self, command: Command) -> Task:
        self._refuse_too_large(command)
        return _RayTask(self._ray, command)

    def _refuse_too_large(self, command: Command) -> None:
        """Raise UserError if no machine is large enough: Ray would wait for one for ever."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
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
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    here = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if name == "ray":
            try:
                ray.init("auto", **quiet)
            except ConnectionError:
                if os.environ.get("RAY_ADDRESS"):
                    raise
                ray.init("local", include_dashboard=False, **quiet)
        else:
            ray.init(name, **quiet)
    except Exception as error:
        with suppress(Exception):
            ray.shutdown()
        raise UserError(
            f"cannot connect to Ray ({one_line(error)}): check the address, or start one: ray start --head"
        ) from None
    if here:
        signal.signal(signal.SIGTERM, handler)  # Ray puts its own in place, which would end the study without saving
    try:
        yield _Ray(ray)
    finally:
        ray.shutdown()


def _last_line(error: BaseException) -> str:
    """The last line of an error that may quote a whole log."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()[:200]
