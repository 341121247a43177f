"""Measure students' classes in child processes with limits of time and memory.

Every class has its own process, so that one that hangs, needs too much memory or exits affects no other. It works in a
temporary folder, and its output is discarded. The limits protect against mistakes, not against malice: the code runs with
the rights of the user who marks.
"""

from __future__ import annotations

import json
import math
import os
import select
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from attnlab.errors import UserError
from attnlab.machine import retain_freed_memory
from attnlab.measure.audit import Report, audit_mechanism
from attnlab.supervisor import Child, ChildError, Done, Limits, Raised

_LARGEST_FILE = 2**28  # bytes that a child may write to a file
_LONGEST_ANSWER = 10**6  # bytes that are read of what a child sends
_ROUNDS = 7
_POLL = 0.1  # seconds
_IMPORTS = ("attnlab.measure.audit", "attnlab.measure.bench.timing", "attnlab.lm.stages")  # what measuring needs


@dataclass(frozen=True)
class Training:
    """How a class is trained for its loss; with `dev` the loss is that on held-out text."""

    preset: str
    corpus: str
    dev: str | None
    settings: str  # as JSON


@dataclass(frozen=True)
class Job:
    """A class to measure: its name as path.py:Class, sizes, what is wanted beyond the audit, and the limits."""

    name: str
    n_embd: int
    n_head: int
    length: int  # of the audit, in tokens
    tokens: int | None = None  # of the text on which it is timed
    training: Training | None = None
    seconds: float = 60.0
    memory: float = 2e9  # bytes


@dataclass(frozen=True)
class Measured:
    """What was measured of a class, or why nothing was."""

    ended: str = ""  # the reason why there is nothing else
    report: Report | None = None
    time_ratio: float | None = None  # its time as a multiple of dot's
    loss: float | None = None


# In the child


def measure(job: Job) -> Measured:
    """The audit of a class and, if it passes, its time as a multiple of dot's, and its loss."""
    torch.set_num_threads(1)
    folder = tempfile.gettempdir()
    os.chdir(folder)
    os.environ["XDG_STATE_HOME"] = folder  # so that the class is trusted in this process only
    report = audit_mechanism(job.name, n_embd=job.n_embd, n_head=job.n_head, length=job.length)
    if report.verdict != "pass":
        return Measured(report=report)
    time_ratio = None if job.tokens is None else _time_ratio(job, job.tokens)
    loss = None if job.training is None else _loss(job, job.training, Path(folder))
    return Measured("", report, time_ratio, loss)


def _time_ratio(job: Job, tokens: int) -> float:
    from attnlab.measure.bench.cases import Case, Inputs, prepare
    from attnlab.measure.bench.timing import take_turns

    retain_freed_memory()
    case = Case(job.name, whole=True, tokens=tokens, n_head=job.n_head, n_embd=job.n_embd)
    inputs = Inputs()
    steps = {"class": prepare(case, inputs), "dot": prepare(case.baseline, inputs)}
    take_turns(steps, 1, 1)  # warm up
    times = take_turns(steps, _ROUNDS, 1)
    return min(times["class"]) / min(times["dot"])


def _loss(job: Job, training: Training, folder: Path) -> float:
    from attnlab.config import resolve
    from attnlab.lm import stages
    from attnlab.store.usercode import named_by_user

    settings = json.loads(training.settings)
    model = {"positions": "learned", **settings.get("model", {}), "mechanism": named_by_user(job.name)}
    settings = {**settings, "model": model, "train": {**settings.get("train", {}), "threads": 1}}
    config = resolve(training.preset, given=settings)
    result = stages.pretrain(config, training.corpus, out=folder / "run", dev=training.dev).result
    return float((result.best_dev_loss if training.dev else result.final_loss) or math.nan)


# In the parent


def run(jobs: Sequence[Job], workers: int, tell: Callable[[str], None] = lambda _: None) -> dict[Job, Measured]:
    """Measure every class in its own process, several at a time."""
    measured: dict[Job, Measured] = {}
    waiting, running = list(jobs), dict[Child, Job]()
    with ExitStack() as started:
        while waiting or running:
            while waiting and len(running) < workers:
                job, child = waiting.pop(0), started.enter_context(Child(imports=_IMPORTS))
                child.send(measure, job, limits=Limits(job.seconds, int(job.memory), _LARGEST_FILE, _LONGEST_ANSWER))
                running[child] = job
            select.select(list(running), [], [], _POLL)
            for child, job in list(running.items()):
                outcome = _outcome(child)
                if outcome is not None:
                    child.end()
                    del running[child]
                    measured[job] = outcome
                    tell(f"{len(measured)} of {len(jobs)} classes")
    return measured


def _outcome(child: Child) -> Measured | None:
    """What a child has measured, or why it has not; None while it works."""
    try:
        message = child.receive(0)
    except Raised as error:
        return Measured(ended=f"it raises {error}")
    except (ChildError, UserError) as error:
        return Measured(ended=str(error))
    return message.value if isinstance(message, Done) else None
