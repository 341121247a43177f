"""Measure the classes that students hand in: audit, time beside `dot`, and loss after training.

The code of a class runs in a process of its own, in a sandbox, and only exchanges tensors with the process that measures it
(attnlab.measure.remote). A class that hangs, needs too much memory or exits affects nothing else.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from attnlab import registry
from attnlab.config import resolve
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.measure.audit import Report, audit_mechanism
from attnlab.measure.remote import Remote
from attnlab.registry import Entry
from attnlab.supervisor import ChildError

_ROUNDS = 7
_NAME = "the class"  # in the registry, and in messages
_BASELINES = b"""
from attnlab.mechanisms.dot import Dot
from torch import nn


class Copy(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()

    def forward(self, x):
        return x.clone()
"""


@dataclass(frozen=True)
class Training:
    """How a class is trained for its loss; with `dev` the loss is that on held-out text."""

    preset: str
    corpus: str
    dev: str | None
    settings: str  # as JSON


@dataclass(frozen=True)
class Job:
    """How classes are measured: sizes, what is wanted beyond the audit, and the limits."""

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


def measure(job: Job, content: bytes, file: str, name: str, sandbox: bool = True) -> Measured:
    """The audit of a class and, if it passes, its time as a multiple of dot's, and its loss."""
    torch.set_num_threads(1)
    with Remote(file, content, job.seconds, int(job.memory), sandbox) as remote:
        try:
            measured = _measure(job, remote.entry(name), remote)
        except (ChildError, UserError) as error:
            measured = Measured(ended=remote.ended or str(error))
        except Exception as error:  # of the class
            measured = Measured(ended=f"it raises {type(error).__name__}: {error}")
        return Measured(ended=remote.ended) if remote.ended else measured


def _measure(job: Job, entry: Entry, remote: Remote) -> Measured:
    registry.add(replace(entry, name=_NAME, causal=True, defect=""))  # what it declares excuses nothing
    report = audit_mechanism(_NAME, n_embd=job.n_embd, n_head=job.n_head, length=job.length)
    if report.verdict != "pass":
        return Measured(report=report)
    time_ratio = None if job.tokens is None else _time_ratio(job, entry, remote)
    loss = None if job.training is None else _loss(job.training)
    return Measured("", report, time_ratio, loss)


def _time_ratio(job: Job, entry: Entry, remote: Remote) -> float:
    """The processor time of a step as a multiple of dot's, both without what a call of another process costs."""
    own, sizes = _baselines(), (job.n_embd, job.n_head, job.tokens or 0)
    timed = {"class": (entry, remote), "dot": (own.entry("Dot"), own), "copy": (own.entry("Copy"), own)}
    modules = {name: each.make(sizes, causal=True).train() for name, (each, _) in timed.items()}
    seconds = dict.fromkeys(timed, math.inf)
    for _ in range(1 + _ROUNDS):  # the first call of each is slower
        x, gradient = torch.randn(2, 1, job.tokens or 0, job.n_embd)
        for name, module in modules.items():
            began = timed[name][1].processor_seconds()
            torch.autograd.grad(module(x.requires_grad_()), [x, *module.parameters()], gradient, allow_unused=True)
            seconds[name] = min(seconds[name], timed[name][1].processor_seconds() - began)
    return max(seconds["class"] - seconds["copy"], 0.0) / max(seconds["dot"] - seconds["copy"], 1e-9)


@cache
def _baselines() -> Remote:
    """A process for what classes are compared with, which serves all of them."""
    return Remote("baselines.py", _BASELINES, math.inf, 10**12, sandbox=False)


def _loss(training: Training) -> float:
    settings = json.loads(training.settings)
    model = {"positions": "learned", **settings.get("model", {}), "mechanism": _NAME}
    settings = {**settings, "model": model, "train": {**settings.get("train", {}), "threads": 1}}
    config = resolve(training.preset, given=settings)
    with tempfile.TemporaryDirectory() as folder:
        result = stages.pretrain(config, training.corpus, out=Path(folder) / "run", dev=training.dev).result
    return float((result.best_dev_loss if training.dev else result.final_loss) or math.nan)
