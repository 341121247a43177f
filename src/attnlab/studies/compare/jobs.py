"""The runs of a comparison, several at a time, each in its own process; when stopped, all are saved and can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attnlab.errors import AttnlabError, Interrupted
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

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.name}, seed {self.seed}"

    def progress(self) -> tuple[float, float | None]:
        """The share that is done, and the loss."""
        last = last_step(self.run / "metrics.jsonl")
        if not last:  # the first of two stages
            last = last_step(self.run.with_name(f"{self.run.name}-pretrain") / "metrics.jsonl")
        return last.get("progress", 0.0), last.get("loss")

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
    waiting = [one for one in plan.order() if not _done(plan, folder, *one)]
    total = len(plan.order())
    running: list[_Job] = []
    failed: list[_Job] = []
    if waiting:
        say(
            console,
            f"{total - len(waiting)} of {total} runs are done; {plan.jobs} run at a time, one line each when done",
        )
    with _screen(console) as show:
        try:
            while waiting or running:
                while waiting and len(running) < plan.jobs:
                    running.append(start(plan, folder, *waiting.pop(0)))
                time.sleep(PAUSE)
                for job in [one for one in running if one.process.poll() is not None]:
                    running.remove(job)
                    if job.process.returncode == _INTERRUPTED:
                        raise Interrupted(job.failure())
                    if job.process.returncode != 0:
                        failed.append(job)
                        say(console, f"{job.label} failed: {job.failure()}")
                    else:
                        show.done(job, total - len(waiting) - len(running) - len(failed), total)
                show.update(running)
        finally:
            _stop(running)
    if failed:
        first = failed[0]
        raise AttnlabError(
            f"{len(failed)} of {total} runs failed, the first {first.label}: {first.failure()} (its output: {first.log});"
            f" the others are kept, and `attnlab resume {folder}` tries again"
        )


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


class _Lines:
    """Shows finished jobs as lines."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def update(self, running: Sequence[_Job]) -> None:
        """Show the progress of the jobs."""

    def done(self, job: _Job, number: int, total: int) -> None:
        """Report a finished job."""
        loss = read_json(job.run / "result.json")["final_loss"]
        say(
            self.console,
            f"{number} of {total}: {job.label} done in {time.monotonic() - job.began:.0f} s, final loss {loss:.3f}",
        )


class _Bars(_Lines):
    """Shows a bar per job."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress.console)
        self.progress = progress
        self.bars: dict[str, TaskID] = {}

    def update(self, running: Sequence[_Job]) -> None:
        """Move the bars."""
        for job in running:
            share, loss = job.progress()
            if job.label not in self.bars:
                self.bars[job.label] = self.progress.add_task(job.label, total=1.0, said="")
            said = "measuring" if (job.run / "result.json").is_file() else f"loss {loss:.3f}" if loss else "starting"
            self.progress.update(self.bars[job.label], completed=share, said=said)

    def done(self, job: _Job, number: int, total: int) -> None:
        """Replace a bar by its line."""
        if job.label in self.bars:
            self.progress.remove_task(self.bars.pop(job.label))
        super().done(job, number, total)


@contextmanager
def _screen(console: Console) -> Iterator[_Lines]:
    """_Bars in a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield _Bars(progress)
