"""The runs of a comparison, several at a time, each in its own process, here or on a cluster.

When stopped, all are saved and can be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attnlab.errors import AttnlabError, Diverged, Interrupted
from attnlab.lm.progress import say
from attnlab.report.words import roughly
from attnlab.store.folders import is_written
from attnlab.store.listing import last_step
from attnlab.store.runs import Run
from attnlab.studies.compare.plan import Grid
from attnlab.studies.workers import PAUSE, Attempts, Command, opened, stop_all


@dataclass
class _Job:
    """A task that trains and measures one run."""

    name: str
    seed: int
    run: Path
    task: Attempts
    bar: TaskID
    began: float = field(default_factory=time.monotonic)

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.name}, seed {self.seed}"

    def progress(self) -> tuple[float, str]:
        """The share that is done, and the state."""
        last = last_step(self.run / "metrics.jsonl")
        if not last:  # the first of two stages
            last = last_step(self.run.with_name(f"{self.run.name}-pretrain") / "metrics.jsonl")
        state = f"loss {last.loss:.3f}" if last else "starting"
        return last.progress if last else 0.0, "measuring" if (self.run / "result.json").is_file() else state

    def outcome(self) -> str:
        """Time and loss of a finished run."""
        loss = Run(self.run).result.final_loss
        return f"{time.monotonic() - self.began:.0f} s, final loss {loss:.3f}"

    @property
    def diverged(self) -> bool:
        """Whether its loss was not finite."""
        return self.task.code == Diverged.exit_code


def _command(plan: Grid[Any], folder: Path, name: str, seed: int) -> Command:
    """The command of a run."""
    folder = folder.resolve()
    log = folder / "logs" / f"{plan.find(name).folder}-seed-{seed}.txt"
    log.parent.mkdir(exist_ok=True)
    train = plan.find(name).settings(seed).train
    gpu = train.device.startswith("cuda")
    return Command("attnlab.studies.compare.job", (str(folder), name, str(seed)), log, train.threads or 1, gpu)


def _done(plan: Grid[Any], folder: Path, name: str, seed: int) -> bool:
    """Whether a run is complete and measured."""
    complete = is_written(plan.path(folder, name, seed) / "result.json")
    return complete and plan.measured(folder, name, seed).exists()


def train_all(plan: Grid[Any], folder: Path, console: Console) -> None:
    """Train and measure every run that is not done yet, as many at a time as `plan.workers` says, in the order of the plan.

    The other runs are finished even if one fails.
    """
    refuse_failed(try_all(plan, folder, console), plan, folder)


def refuse_failed(failed: Sequence[_Job], plan: Grid[Any], folder: Path) -> None:
    """Raise an error that says what to do about runs that failed."""
    if not failed:
        return
    first = failed[0]
    again = f"`attnlab resume {folder}` tries again"
    if first.diverged:
        again = "do not leave it out: start a new comparison with a lower learning rate, or with --tune"
    raise AttnlabError(
        f"{len(failed)} of {len(plan.order())} runs failed, the first {first.label}: {first.task.failure()} (its output:"
        f" {first.task.command.log}); the others are kept, and {again}"
    )


def try_all(plan: Grid[Any], folder: Path, console: Console) -> list[_Job]:
    """Train and measure what is not done yet; return the jobs that failed."""
    waiting = [run for run in plan.order() if not _done(plan, folder, *run)]
    if not waiting:
        return []
    total, todo, began = len(plan.order()), len(waiting), time.monotonic()
    running: list[_Job] = []
    failed: list[_Job] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    hidden = not console.is_terminal
    with (
        opened(plan.at_a_time or plan.workers) as workers,
        Progress(*columns, console=console, refresh_per_second=4, disable=hidden) as bars,
    ):
        many = f"{plan.workers} run at a time" if plan.at_a_time else f"the others run on {workers.place}"
        say(console, f"{total - todo} of {total} runs are done; {many}, one line each when done")
        try:
            while waiting or running:
                while waiting and len(running) < workers.at_a_time:
                    name, seed = waiting.pop(0)
                    label = f"{name}, seed {seed}"
                    bar = bars.add_task(label, total=1.0, state="starting")
                    task = Attempts(workers, _command(plan, folder, name, seed), label, console)
                    running.append(_Job(name, seed, plan.path(folder, name, seed), task, bar))
                time.sleep(PAUSE)
                for job in list(running):
                    code = job.task.poll()
                    if code is None:
                        continue
                    running.remove(job)
                    bars.remove_task(job.bar)
                    if code == Interrupted.exit_code:
                        raise Interrupted(job.task.failure())
                    if code != 0:
                        failed.append(job)
                        say(console, f"{job.label} failed: {job.task.failure()}")
                        continue
                    left = len(waiting) + len(running)
                    worked = todo - left + sum(each.progress()[0] for each in running)
                    rest = (time.monotonic() - began) * (todo - worked) / worked
                    more = f"; about {roughly(rest)} left" if left else ""
                    say(console, f"{total - left - len(failed)} of {total}: {job.label} done in {job.outcome()}{more}")
                for job in () if hidden else running:
                    share, state = job.progress()
                    bars.update(job.bar, completed=share, state=state)
        finally:
            stop_all([job.task for job in running])
    return failed
