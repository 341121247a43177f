"""Workers on other machines: a Ray cluster, or Slurm through submitit.

A worker starts the command as a process of its own machine and waits for it, so that a run has a fresh process as it has
here, and that the process stops when its worker does. The folder of the study must have the same path on all machines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnlab.errors import AttnlabError, Interrupted, UserError, one_line
from attnlab.studies.workers import MANY, PATIENCE, PAUSE, Command, Task, Workers

_TRIES = 3
_LOST = -signal.SIGKILL  # exit code of a command whose worker is gone
_FAILED = AttnlabError.exit_code  # of one that could not be started
_SAVING = PATIENCE - 5.0  # seconds to save the state, before the study ends the worker that waits for it
_MINUTES = 365 * 24 * 60  # submitit queues a job that ends sooner again, however often
SLURM = "slurm"  # the cluster of submitit; tests use "local"


class Attendant:
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
        self._process = self.command.launch()
        try:
            while self._process.poll() is None:
                time.sleep(PAUSE)
        finally:
            self._end()
        return self._process.returncode

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_SAVING)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def checkpoint(self) -> Any:
        """What submitit calls before a time limit or a preemption: save, and queue the command again."""
        from submitit.helpers import DelayedSubmission

        self._end()
        return DelayedSubmission(Attendant(self.command))


class _RayTask:
    """A command on a Ray cluster."""

    def __init__(self, ray: Any, command: Command) -> None:
        self.reason = ""
        self._ray = ray
        self._code: int | None = None
        # Tried again by the study, which says so, and not by Ray.
        options = {"num_cpus": command.threads, "num_gpus": int(command.gpu), "max_retries": 0}
        self._reference = ray.remote(**options)(_attend).remote(command)

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


def _attend(command: Command) -> int:
    """The task of Ray."""
    return Attendant(command)()


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
        machines = [one["Resources"] for one in self._ray.nodes() if one["Alive"]]
        sizes = [(one.get("GPU", 0) >= command.gpu, one.get("CPU", 0)) for one in machines]
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


class _SlurmTask:
    """A command as a job of Slurm."""

    def __init__(self, job: Any) -> None:
        self.reason = ""
        self._job, self._stopped = job, False

    def poll(self) -> int | None:
        if not self._job.done():
            return None
        try:
            return self._job.result()
        except Exception as error:  # of submitit: the job ended without a result, or its function failed
            failed = type(error).__name__ == "FailedJobError"  # which it would again
            self.reason = f"its job {self._job.job_id} {'failed' if failed else 'was lost'} ({_last_line(error)})"
            return Interrupted.exit_code if self._stopped else _FAILED if failed else _LOST

    def stop(self) -> None:
        self._stopped = True
        self._job.cancel(check=False)

    def kill(self) -> None:
        self.stop()
        if SLURM == "slurm":  # which waits half a minute after it has asked a job to end
            line = ["scancel", "--full", "--signal=KILL", str(self._job.job_id)]
            subprocess.run(line, capture_output=True, check=False)


class _Slurm:
    """Slurm, which queues one job per command."""

    at_a_time, tries, place = MANY, _TRIES, "Slurm"

    def __init__(self, folder: Path) -> None:
        import submitit

        self._executor = submitit.AutoExecutor(folder=folder / "logs" / "submitit", cluster=SLURM)
        _leave_time_limit(self._executor._executor)

    def start(self, command: Command) -> Task:
        self._executor.update_parameters(
            name=command.log.stem, timeout_min=_MINUTES, cpus_per_task=command.threads, gpus_per_node=int(command.gpu)
        )
        return _SlurmTask(self._executor.submit(Attendant(command)))


def _leave_time_limit(executor: Any) -> None:
    """Leave the time limit to the partition and SBATCH_TIMELIMIT: that of submitit may be refused."""
    written = executor._make_submission_file_text
    executor._make_submission_file_text = lambda *given: re.sub(r"(?m)^#SBATCH --time=.*\n", "", written(*given))


@contextmanager
def slurm(folder: Path) -> Iterator[Workers]:
    """Slurm as it is set up on this machine; partition, account and so on come from sbatch's variables, SBATCH_*."""
    if SLURM == "slurm" and shutil.which("sbatch") is None:
        raise UserError("--workers slurm needs sbatch: start this on a machine from which jobs can be submitted")
    yield _Slurm(folder)


def _last_line(error: BaseException) -> str:
    """The last line of an error that may quote a whole log."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()[:200]
