"""Rounds over all contestants of a length, and who is left out of it.

Before a contestant is timed at a length it runs there once in a child process that measures its memory and may not exceed
the limit. Two short texts before its first length, and what it took at every length since, say what the next one would cost;
who would be too slow or too big is skipped with that number. Times are taken in turns, so that a machine that slows down
slows everybody, and the least of a contestant's runs counts, since other programs only ever add.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch

from attnlab.errors import UserError
from attnlab.machine import environment
from attnlab.measure.bench import contestants
from attnlab.measure.bench.contestants import Case, Inputs, Step
from attnlab.measure.bench.memory import MAKER, WARM_UP_TOKENS, Gauge, Glance, clock, describe, measurable, readable
from attnlab.measure.bench.results import Conditions, Point, Result, Row, forecast
from attnlab.train import retain_freed_memory

ENOUGH_SECONDS = 3.0  # of runs of one contestant at one length
PATTERNS = 3  # arrays of all pairs that forward + backward hold at once, where the pattern is formed
Key = TypeVar("Key")


@dataclass(frozen=True)
class Limits:
    """How much a single step may take, and how often it is run."""

    seconds: float = 15.0
    memory: float = 0.0  # bytes
    rounds: int = 7
    threads: int = 1

    def checked(self) -> Limits:
        """Itself, if anything can run within it."""
        for name in ("seconds", "memory", "rounds", "threads"):
            if not getattr(self, name) > 0:
                shown = "memory_limit" if name == "memory" else name
                raise UserError(f"--{shown} must be more than 0, not {getattr(self, name):g}")
        return self


def spare_memory() -> float:
    """Half of what this machine could give now, in bytes."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * float(lines["MemAvailable"].split()[0]) / 2
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 if hasattr(os, "sysconf") else 4e9


def read_lengths(text: str) -> list[int]:
    """`512,1024` as numbers, from short to long."""
    try:
        lengths = sorted({int(part) for part in text.replace("_", "").split(",")})
    except ValueError:
        raise UserError(f"--lengths are whole numbers with commas between, such as 512,2048, not '{text}'") from None
    if lengths[0] < 1:
        raise UserError(f"--lengths must be at least 1, not {lengths[0]}")
    return lengths


# Time


def runs_wanted(times: Sequence[float], most: int) -> int:
    """How many runs there should be, after those that were: fewer of slow ones."""
    return most if not times else max(1, min(most, int(ENOUGH_SECONDS / max(min(times), 1e-9))))


def take_turns(steps: Mapping[Key, Step], rounds: int, threads: int) -> dict[Key, list[float]]:
    """Seconds of every run, the contestants in turns."""
    now, times = clock(threads), {key: list[float]() for key in steps}
    for number in range(rounds):
        for key, step in steps.items():
            if number < runs_wanted(times[key], rounds):
                began = now()
                step()
                times[key].append(now() - began)
    return times


def _warm_up(cases: Sequence[Case]) -> None:
    """Have libraries load and kernels be built before anything is timed: a slow contestant runs only once."""
    for case in cases:
        with suppress(Exception):  # who cannot run is told of later, with the reason
            contestants.prepare(case.at(WARM_UP_TOKENS))()


# Who runs


class Scout:
    """Runs contestants once, remembers what they took, and says who would be too slow or too big."""

    def __init__(self, gauge: Gauge, limits: Limits) -> None:
        self.gauge = gauge
        self.limits = limits
        self.seen: dict[Case, dict[int, Glance]] = defaultdict(dict)

    def glance(self, case: Case, tokens: int) -> Glance:
        """One run, in a child where memory can be measured."""
        here = case.at(tokens)
        glance = self.gauge.glance(asdict(here)) if measurable() else self.run_here(here)
        if not glance.failed:
            self.seen[case][tokens] = glance
        return glance

    def run_here(self, case: Case) -> Glance:
        """One run in this process: time, and no memory."""
        try:
            times = take_turns({case: contestants.prepare(case)}, 1, self.limits.threads)
        except Exception as error:  # whatever a user's module may raise
            return Glance(failed=describe(error))
        return Glance(seconds=times[case][0])

    def costs(self, case: Case, kind: str) -> list[tuple[int, float]]:
        """Bytes or seconds of a contestant by length, as far as known."""
        costs = [(tokens, getattr(self.seen[case][tokens], kind)) for tokens in sorted(self.seen[case])]
        return [(tokens, cost) for tokens, cost in costs if cost is not None]

    def objection(self, case: Case, tokens: int) -> str:
        """Why a contestant should not run at a length, or nothing."""
        need = forecast(self.costs(case, "bytes"), tokens)
        if need is None and contestants.forms_pattern(case):
            need = 4.0 * PATTERNS * case.batch * case.n_head * tokens**2
        if need is not None and need > self.limits.memory:
            return f"would need {readable(need)}"
        time = forecast(self.costs(case, "seconds"), tokens)
        if time is not None and time > self.limits.seconds:
            return f"would take {time:,.0f} s" if time >= 10 else f"would take {time:.1f} s"
        return ""

    def admit(self, case: Case, tokens: int) -> Point:
        """A contestant's memory at a length, or why it is skipped."""
        if len(self.seen[case]) < 2:
            for shorter in (tokens // 8, tokens // 4):
                known = shorter in self.seen[case] or shorter < contestants.LEAST_TOKENS
                if not known and not self.objection(case, shorter):
                    self.glance(case, shorter)
        reason = self.objection(case, tokens)
        glance = self.glance(case, tokens) if not reason else Glance(failed=reason)
        return Point(tokens, None, glance.bytes, skipped=glance.failed)


def measure(
    cases: Sequence[Case],
    lengths: Sequence[int],
    limits: Limits,
    refused: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    maker: str = MAKER,
) -> Result:
    """Time and memory of all contestants at all lengths."""
    torch.set_num_threads(limits.threads)
    retain_freed_memory()
    _warm_up(cases)
    points: dict[Case, list[Point]] = {case: [] for case in cases}
    with Gauge(limits.memory, limits.threads, maker) as gauge:
        scout = Scout(gauge, limits)
        for tokens in lengths:
            inputs, steps, admitted = Inputs(), dict[Case, Step](), dict[Case, Point]()
            for case in cases:
                tell(f"{tokens:,} tokens: memory of {case.label}")
                admitted[case] = scout.admit(case, tokens)
                if not admitted[case].skipped:
                    steps[case] = contestants.prepare(case.at(tokens), inputs)
            tell(f"{tokens:,} tokens: time of {len(steps)} in turns")
            times = take_turns(steps, limits.rounds, limits.threads)
            for case, point in admitted.items():
                taken = times.get(case, [])
                least = min(taken, default=None)
                points[case].append(Point(tokens, least, point.bytes, len(taken), point.skipped))
    rows = tuple(Row(case.label, case.bar.label, tuple(found)) for case, found in points.items())
    return Result(rows, conditions(cases[0], limits), environment(), dict(refused or {}))


def conditions(case: Case, limits: Limits) -> Conditions:
    """What all contestants have in common."""
    return Conditions(case.batch, case.n_head, case.n_embd, case.causal, **asdict(limits), memory_measured=measurable())
