"""The runs of a comparison, several at a time, each in a process of its own; stopped, all are saved and go on later."""

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

PAUSE = 0.2  # seconds between two looks at the processes
INTERRUPTED = 130  # the code of a job that was asked to stop, and saved its state
PATIENCE = 60.0  # seconds in which a process that was asked to stop may save its state


@dataclass
class Job:
    """A process that trains and measures one run."""

    name: str
    seed: int
    run: Path
    log: Path
    process: subprocess.Popen[bytes]
    began: float

    @property
    def label(self) -> str:
        """How it is called on the screen."""
        return f"{self.name}, seed {self.seed}"

    def progress(self) -> tuple[float, float | None]:
        """How far it came, and its loss."""
        last = last_step(self.run / "metrics.jsonl")
        if not last:  # of a run in two stages the first
            last = last_step(self.run.with_name(f"{self.run.name}-pretrain") / "metrics.jsonl")
        return last.get("progress", 0.0), last.get("loss")

    def failure(self) -> str:
        """Why it ended: the signal that ended it, or the last line that it wrote."""
        code = self.process.returncode
        if code < 0:
            return f"ended by {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with code {code}"


def start(plan: Plan, folder: Path, name: str, seed: int) -> Job:
    """Begin one job."""
    path = plan.path(folder, name, seed)
    log = folder / "logs" / f"{plan.find(name).folder}-seed-{seed}.txt"
    log.parent.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-P",
        "-m",
        "attnlab.studies.compare.job",
        str(folder),
        name,
        str(seed),
        str(os.getpid()),
    ]
    with log.open("ab") as stream:
        # A session of its own: Ctrl-C in the terminal is for the comparison, which then asks its jobs to stop.
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, start_new_session=True
        )
    return Job(name, seed, path, log, process, time.monotonic())


def done(plan: Plan, folder: Path, name: str, seed: int) -> bool:
    """Whether a run is there, complete and measured."""
    complete = is_written(plan.path(folder, name, seed) / "result.json")
    return complete and plan.measured(folder, name, seed).exists()


def train_all(plan: Plan, folder: Path, console: Console) -> None:
    """Every run that is not trained and measured yet, `plan.jobs` at a time, in the order of the plan.

    A run that fails does not keep the others from coming to their end.
    """
    waiting = [one for one in plan.order() if not done(plan, folder, *one)]
    total = len(plan.order())
    running: list[Job] = []
    failed: list[Job] = []
    if waiting:
        say(console, f"{total - len(waiting)} of {total} runs are done; {plan.jobs} at a time, each ends with a line")
    with screen(console) as show:
        try:
            while waiting or running:
                while waiting and len(running) < plan.jobs:
                    running.append(start(plan, folder, *waiting.pop(0)))
                time.sleep(PAUSE)
                for job in [one for one in running if one.process.poll() is not None]:
                    running.remove(job)
                    if job.process.returncode == INTERRUPTED:
                        raise Interrupted(job.failure())
                    if job.process.returncode != 0:
                        failed.append(job)
                        say(console, f"{job.label} failed: {job.failure()}")
                    else:
                        show.done(job, total - len(waiting) - len(running) - len(failed), total)
                show.update(running)
        finally:
            stop(running)
    if failed:
        first = failed[0]
        raise AttnlabError(
            f"{len(failed)} of {total} runs failed, the first {first.label}: {first.failure()} (all it wrote: {first.log});"
            f" the others are kept, and `attnlab resume {folder}` tries again"
        )


def stop(running: Sequence[Job]) -> None:
    """Have jobs save their state and end."""
    for job in running:
        job.process.send_signal(signal.SIGINT)
    until = time.monotonic() + PATIENCE
    for job in running:
        try:
            job.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.process.kill()


class Screen:
    """Lines where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def update(self, running: Sequence[Job]) -> None:
        """Show how far the jobs are."""

    def done(self, job: Job, number: int, total: int) -> None:
        """Say that one is complete."""
        loss = read_json(job.run / "result.json")["final_loss"]
        say(
            self.console,
            f"{number} of {total}: {job.label} done in {time.monotonic() - job.began:.0f} s, final loss {loss:.3f}",
        )


class Bars(Screen):
    """A bar for every job."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress.console)
        self.progress = progress
        self.bars: dict[str, TaskID] = {}

    def update(self, running: Sequence[Job]) -> None:
        """Move the bars."""
        for job in running:
            share, loss = job.progress()
            if job.label not in self.bars:
                self.bars[job.label] = self.progress.add_task(job.label, total=1.0, said="")
            said = "measuring" if (job.run / "result.json").is_file() else f"loss {loss:.3f}" if loss else "starting"
            self.progress.update(self.bars[job.label], completed=share, said=said)

    def done(self, job: Job, number: int, total: int) -> None:
        """Take a bar away, and leave its line."""
        if job.label in self.bars:
            self.progress.remove_task(self.bars.pop(job.label))
        super().done(job, number, total)


@contextmanager
def screen(console: Console) -> Iterator[Screen]:
    """Bars in a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield Screen(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield Bars(progress)
