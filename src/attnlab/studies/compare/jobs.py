"""The runs of a comparison, several at a time, each in its own process; when stopped, all are saved and can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attnlab.errors import AttnlabError, Diverged, Interrupted
from attnlab.folders import is_written, read_json
from attnlab.listing import last_step
from attnlab.progress import say
from attnlab.studies.compare.plan import Plan

PAUSE = 0.2  # seconds between polls of the processes
_INTERRUPTED = 130  # exit code of a job that was asked to stop and has saved its state
PATIENCE = 60.0  # seconds that a process has to save its state when asked to stop


@dataclass
class _Job:
    """A process that trains and measures one run."""

    name: str
    seed: int
    run: Path
    log: Path
    process: subprocess.Popen[bytes]
    began: float
    bar: TaskID = TaskID(0)

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.name}, seed {self.seed}"

    def progress(self) -> tuple[float, str]:
        """The share that is done, and the state."""
        last = last_step(self.run / "metrics.jsonl")
        if not last:  # the first of two stages
            last = last_step(self.run.with_name(f"{self.run.name}-pretrain") / "metrics.jsonl")
        state = f"loss {last['loss']:.3f}" if last.get("loss") else "starting"
        return last.get("progress", 0.0), "measuring" if (self.run / "result.json").is_file() else state

    def outcome(self) -> str:
        """Time and loss of a finished run."""
        loss = read_json(self.run / "result.json")["final_loss"]
        return f"{time.monotonic() - self.began:.0f} s, final loss {loss:.3f}"

    @property
    def diverged(self) -> bool:
        """Whether its loss was not finite."""
        return self.process.returncode == Diverged.exit_code

    def failure(self) -> str:
        """Why it ended: the signal, or the last line that it wrote."""
        code = self.process.returncode
        if code < 0:
            return f"ended by {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with code {code}"


def start(plan: Plan, folder: Path, name: str, seed: int) -> _Job:
    """Start a job."""
    log = folder / "logs" / f"{plan.find(name).folder}-seed-{seed}.txt"
    log.parent.mkdir(exist_ok=True)
    module = [sys.executable, "-P", "-m", "attnlab.studies.compare.job"]
    command = [*module, str(folder), name, str(seed), str(os.getpid())]
    with log.open("ab") as stream:
        # A new session: Ctrl-C in the terminal reaches the comparison only, which then asks its jobs to stop.
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, start_new_session=True
        )
    return _Job(name, seed, plan.path(folder, name, seed), log, process, time.monotonic())


def _done(plan: Plan, folder: Path, name: str, seed: int) -> bool:
    """Whether a run is complete and measured."""
    complete = is_written(plan.path(folder, name, seed) / "result.json")
    return complete and plan.measured(folder, name, seed).exists()


def train_all(plan: Plan, folder: Path, console: Console) -> None:
    """Train and measure every run that is not done yet, `plan.jobs` at a time, in the order of the plan.

    The other runs are finished even if one fails.
    """
    refuse_failed(try_all(plan, folder, console), plan, folder)


def refuse_failed(failed: Sequence[_Job], plan: Plan, folder: Path) -> None:
    """Raise an error that says what to do about runs that failed."""
    if not failed:
        return
    first = failed[0]
    again = f"`attnlab resume {folder}` tries again"
    if first.diverged:
        again = "do not leave it out: start a new comparison with a lower learning rate, or with --tune"
    raise AttnlabError(
        f"{len(failed)} of {len(plan.order())} runs failed, the first {first.label}: {first.failure()} (its output:"
        f" {first.log}); the others are kept, and {again}"
    )


def try_all(plan: Plan, folder: Path, console: Console) -> list[_Job]:
    """Train and measure what is not done yet; return the jobs that failed."""
    waiting = [one for one in plan.order() if not _done(plan, folder, *one)]
    total = len(plan.order())
    running: list[_Job] = []
    failed: list[_Job] = []
    if waiting:
        say(
            console,
            f"{total - len(waiting)} of {total} runs are done; {plan.jobs} run at a time, one line each when done",
        )
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=4, disable=not console.is_terminal) as bars:
        try:
            while waiting or running:
                while waiting and len(running) < plan.jobs:
                    job = start(plan, folder, *waiting.pop(0))
                    job.bar = bars.add_task(job.label, total=1.0, state="starting")
                    running.append(job)
                time.sleep(PAUSE)
                for job in [one for one in running if one.process.poll() is not None]:
                    running.remove(job)
                    bars.remove_task(job.bar)
                    if job.process.returncode == _INTERRUPTED:
                        raise Interrupted(job.failure())
                    if job.process.returncode != 0:
                        failed.append(job)
                        say(console, f"{job.label} failed: {job.failure()}")
                    else:
                        number = total - len(waiting) - len(running) - len(failed)
                        say(console, f"{number} of {total}: {job.label} done in {job.outcome()}")
                for job in () if bars.disable else running:
                    share, state = job.progress()
                    bars.update(job.bar, completed=share, state=state)
        finally:
            _stop(running)
    return failed


def _stop(running: Sequence[_Job]) -> None:
    """Ask jobs to save their state and end."""
    for job in running:
        job.process.send_signal(signal.SIGINT)
    until = time.monotonic() + PATIENCE
    for job in running:
        try:
            job.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.process.kill()
