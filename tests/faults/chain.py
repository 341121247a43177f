"""The chain of commands that faults are tried on: done once without any, and what recovery means for each of its links."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sandbox
from sandbox import Outcome, attnlab, contents, differences, figures, kill_at

TINY = """
[model]
n_layer = 1
n_head = 2
n_embd = 32
block_size = 64
vocab_size = 300
[train]
epochs = 3.0
tokens_per_batch = 1024
checkpoint_every = 3
threads = 1
[finetune.train]
epochs = 2.0
tokens_per_batch = 256
checkpoint_every = 3
threads = 1
[scratch.train]
epochs = 1.0
tokens_per_batch = 256
checkpoint_every = 3
threads = 1
"""
CONFIG = Path(tempfile.gettempdir()) / f"tiny-{os.getpid()}.toml"  # made when the program runs
DATA = ("--corpus", "people:60", "--facts", "people:60:train", "--config", str(CONFIG))
EXAM = ("--exam", "people:60:dev")
QUESTION = "Where was Hanser Alberto born?"


@dataclass(frozen=True)
class Link:
    """One command of the chain: what it needs, and the folder that it makes or changes."""

    name: str
    folder: str
    needs: tuple[str, ...]
    command: tuple[str, ...]
    again: bool = False  # given again after a fault, where there is nothing to resume
    state: str = "after"  # which state of the folders is needed


CHAIN = (
    Link("pretrain", "pretrain", (), ("pretrain", *DATA, "--out", "pretrain")),
    Link(
        "finetune",
        "finetune",
        ("pretrain",),
        ("finetune", "pretrain", "--facts", "people:60:train", "--config", str(CONFIG), "--out", "finetune"),
    ),
    Link("evaluate", "exam", ("pretrain", "finetune"), ("evaluate", "finetune", *EXAM, "--out", "exam"), True),
    Link("calibrate", "finetune", ("pretrain", "finetune"), ("calibrate", "finetune"), True),
    Link("report", "side", ("pretrain", "finetune"), ("report", "pretrain", "finetune", "--out", "side"), True),
    Link(
        "compare",
        "compare",
        (),
        (
            *("compare", "dot", "linear", "--task", "recall", "--seeds", "1", "--workers", "1"),
            *(*DATA, *EXAM, "--out", "compare"),
        ),
    ),
    # The audit takes seconds, and is kept: what comes after it is killed in a comparison that goes on.
    Link("compare, resumed", "compare", ("compare",), ("resume", "compare"), state="stopped"),
    Link("recall", "recall", (), ("run", "recall", *DATA, *EXAM, "--held-out", "10", "--out", "recall")),
)


@dataclass
class Golden:
    """The chain without faults."""

    root: Path
    scratch: Path
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)  # kind, path, place in the code

    def event(self, name: str, kind: str, path: str, nth: int = 0) -> int:
        """The number of an event: the n-th of its kind whose path ends so."""
        events = self.events[name]
        return [at for at, one in enumerate(events) if one[0] == kind and one[1].endswith(path)][nth]

    def stop(self, name: str, number: int, state: str) -> None:
        """Keep the folder of a command as it is when the command is killed at an event."""
        link = next(one for one in CHAIN if one.name == name)
        with self.sandbox(*link.needs) as place:
            attnlab(place, *link.command, strike=kill_at(number))
            self.keep(place / "work" / link.folder, state)

    @contextmanager
    def sandbox(self, *needs: str, of: str = "after") -> Iterator[Path]:
        """A fresh sandbox with some folders of the chain; of a stopped one the folder as it was then."""
        target = self.scratch / f"{os.getpid()}-{time.monotonic_ns()}"
        (target / "home").mkdir(parents=True)
        (target / "work").mkdir()
        for name in needs:
            shutil.copytree(self.root / of / name, target / "work" / name)
        try:
            yield target
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def keep(self, folder: Path, of: str) -> None:
        """Keep a folder as it is now."""
        target = self.root / of / folder.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)


def make_golden(root: Path, scratch: Path, links: Sequence[Link]) -> Golden:
    """Do the chain once, with every write event written down, and keep what some kills leave behind."""
    golden = Golden(root, scratch)
    for link in links:
        with golden.sandbox(*link.needs, of=link.state) as place:
            log = scratch / "events"
            log.unlink(missing_ok=True)
            outcome = sandbox.warm_up(place, *link.command, strike=sandbox.record_to(log))
            if outcome.code:
                raise SystemExit(f"the chain fails without a fault, at {link.name}: {outcome}")
            golden.events[link.name] = [tuple(json.loads(line)) for line in log.read_text().splitlines()]  # type: ignore[misc]
            golden.figures[link.name] = figures(place / "work" / link.folder)
            golden.keep(place / "work" / link.folder, "after")
        if link.name == "pretrain":
            golden.stop("pretrain", golden.event("pretrain", "write", "/metrics.jsonl", 8), "stopped")
        elif link.name == "finetune":
            golden.stop("finetune", golden.event("finetune", "write", "/metrics.jsonl", 7), "stopped")
        elif link.name == "compare":
            golden.stop("compare", golden.event("compare", "mkdir", "compare/logs"), "stopped")
        if link.name in ("compare", "recall"):
            golden.stop(link.name, golden.event(link.name, "open", f"{link.name}/.result.json.tmp"), "unjudged")
        if link.name == "recall":
            golden.stop("recall", golden.event("recall", "write", "finetune/metrics.jsonl", 4), "stopped")
    return golden


@dataclass
class Task:
    """One fault: the row of the table that it counts in, what it is, and a function that tries it.

    The function returns what went wrong, nothing where nothing did, or one of the words of SURVIVED.
    """

    row: str
    what: str
    work: Callable[[], str]


def recover(place: Path, link: Link) -> Outcome:
    """What a user does after a fault."""
    if link.again or not (place / "work" / link.folder).exists():
        if link.folder not in link.needs and (place / "work" / link.folder).exists():
            return Outcome(0, "it is there", "")
        return attnlab(place, *link.command)
    return attnlab(place, "resume", link.folder)


def judge(golden: Golden, place: Path, link: Link, outcome: Outcome, before: dict[str, Any]) -> str:
    """What is wrong after a recovery; empty where nothing is."""
    if outcome.code:
        return f"recovery failed: {outcome}"
    wrong = differences(place / "work" / link.folder, golden.figures[link.name])
    for name, content in before.items():
        if contents(place / "work" / name) != content and name != link.folder:
            wrong += f" {name} has changed"
    left = [path.name for path in (place / "work").iterdir() if path.name.startswith(".")]
    return wrong + (f" left over: {left}" if left else "")
