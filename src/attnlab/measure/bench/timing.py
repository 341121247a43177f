"""Time all cases at given lengths, or find the longest text that each can afford.

Before a case is timed at a length it runs there once in a child process that measures its memory and may not exceed the
limit. Two short texts before its first length, and what it took at every length since, predict the cost of the next one;
a case that would be too slow or too big is skipped with that number. Cases take turns, so that a machine that slows down
slows all of them, and the shortest time of a case counts, since other programs only ever add to it.

For a budget of memory or time, lengths are doubled until the budget is spent, then the range between is narrowed: the answer
is a length that was run and stayed within. Where a run would exceed the limit of time, the answer is extrapolated and says
so. That happens to torch's fused attention under a budget of memory, because its memory grows only in proportion to the
length. Naive attention, which papers call full attention, is the one whose memory grows with the square; so memory is
compared with naive attention, and time with SDPA.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import torch

from attnlab.errors import UserError, one_line
from attnlab.machine import environment, retain_freed_memory
from attnlab.measure.bench import (
    BenchResult,
    Budget,
    BudgetResult,
    Conditions,
    Longest,
    Point,
    ReachResult,
    Row,
    affordable,
    compared,
    forecast,
    format_bytes,
)
from attnlab.measure.bench.cases import LEAST_TOKENS, Case, Inputs, Step, forms_pattern, prepare
from attnlab.measure.bench.memory import MAKER, WARM_UP_TOKENS, MemoryProbe, clock, measurable

_SHORTEST, LONGEST = 256, 2**22  # tokens, for a budget
_ENOUGH_SECONDS = 3.0  # of runs of one case at one length
_PATTERNS = 3  # arrays of all pairs that forward + backward hold at once, where the pattern is formed
_CLOSE = 1.03  # the answer for a budget is within this factor of the longest length
_TRIES = 5
_UNITS: dict[str, tuple[Literal["bytes", "seconds"], float]] = {
    "gb": ("bytes", 1e9),
    "mb": ("bytes", 1e6),
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
}
_Tell = Callable[[str], None]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Limits:
    """How much a single step may take, and how often it is run."""

    seconds: float = 15.0
    memory: float = 0.0  # bytes
    rounds: int = 7
    threads: int = 1

    def checked(self) -> Limits:
        """The limits, or an error if nothing can run within them."""
        for name in ("seconds", "memory", "rounds", "threads"):
            if not getattr(self, name) > 0:
                shown = "memory_limit" if name == "memory" else name
                raise UserError(f"--{shown} must be more than 0, not {getattr(self, name):g}")
        return self

    def covering(self, budgets: Sequence[Budget]) -> Limits:
        """Limits that allow a run to exceed every budget a little."""
        most = {"bytes": self.memory, "seconds": self.seconds}
        for budget in budgets:
            most[budget.kind] = max(most[budget.kind], 1.25 * budget.amount)
        return replace(self, memory=most["bytes"], seconds=most["seconds"])


def spare_memory() -> float:
    """Half of the available memory in bytes."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * float(lines["MemAvailable"].split()[0]) / 2
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 if hasattr(os, "sysconf") else 4e9


def read_lengths(text: str) -> list[int]:
    """Parse `512,1024`; sorted."""
    try:
        lengths = sorted({int(part) for part in text.replace("_", "").split(",")})
    except ValueError:
        raise UserError(f"--lengths takes whole numbers joined by commas, such as 512,2048, not '{text}'") from None
    if lengths[0] < 1:
        raise UserError(f"--lengths must be at least 1, not {lengths[0]}")
    return lengths


def read_budgets(text: str) -> list[Budget]:
    """Parse `1GB` or `1GB,10s`."""
    budgets = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]+)\s*", part)
        if match is None or match[2].lower() not in _UNITS:
            raise UserError(f"--reach takes amounts of memory or time, such as 1GB, 500MB or 10s, not '{part.strip()}'")
        kind, unit = _UNITS[match[2].lower()]
        budgets.append(Budget(kind, float(match[1]) * unit))
    if any(budget.amount <= 0 for budget in budgets):
        raise UserError("--reach must be more than 0")
    return budgets


# Time


def runs_wanted(times: Sequence[float], most: int) -> int:
    """How many runs a case should have in all, given the times so far: fewer if it is slow."""
    return most if not times else max(1, min(most, int(_ENOUGH_SECONDS / max(min(times), 1e-9))))


def take_turns(steps: Mapping[Key, Step], rounds: int, threads: int) -> dict[Key, list[float]]:
    """Seconds of every run, with the steps in turns."""
    now, times = clock(threads), {key: list[float]() for key in steps}
    for number in range(rounds):
        for key, step in steps.items():
            if number < runs_wanted(times[key], rounds):
                began = now()
                step()
                times[key].append(now() - began)
    return times


class Trials:
    """Runs cases once, remembers what they took, and predicts which would be too slow or too big."""

    def __init__(self, probe: MemoryProbe, limits: Limits) -> None:
        self.probe = probe
        self.limits = limits
        self.seen: dict[Case, dict[int, Point]] = defaultdict(dict)

    def run(self, case: Case, tokens: int) -> Point:
        """One run, in a child process where memory can be measured."""
        here = case.at(tokens)
        point = self.probe.measure(asdict(here)) if measurable() else self._run_here(here)
        if not point.skipped:
            self.seen[case][tokens] = point
        return point

    def _run_here(self, case: Case) -> Point:
        try:
            times = take_turns({case: prepare(case)}, 1, self.limits.threads)
        except Exception as error:  # whatever a user's module may raise
            return Point(case.tokens, skipped=one_line(error))
        return Point(case.tokens, times[case][0])

    def costs(self, case: Case, kind: Literal["bytes", "seconds"]) -> list[tuple[int, float]]:
        """Bytes or seconds of a case by length, as far as known."""
        costs = [(tokens, getattr(point, kind)) for tokens, point in sorted(self.seen[case].items())]
        return [(tokens, cost) for tokens, cost in costs if cost is not None]

    def objection(self, case: Case, tokens: int) -> str:
        """Why a case should not run at a length, or nothing."""
        need = forecast(self.costs(case, "bytes"), tokens)
        if need is None and forms_pattern(case):
            need = 4.0 * _PATTERNS * case.batch * case.n_head * tokens**2
        if need is not None and need > self.limits.memory:
            return f"would need {format_bytes(need)}"
        time = forecast(self.costs(case, "seconds"), tokens)
        if time is not None and time > self.limits.seconds:
            return f"would take {time:,.0f} s" if time >= 10 else f"would take {time:.1f} s"
        return ""

    def admit(self, case: Case, tokens: int) -> Point:
        """The memory of a case at a length, or why it is skipped; not its time, which is taken in turns."""
        if len(self.seen[case]) < 2:
            for shorter in (tokens // 8, tokens // 4):
                known = shorter in self.seen[case] or shorter < LEAST_TOKENS
                if not known and not self.objection(case, shorter):
                    self.run(case, shorter)
        reason = self.objection(case, tokens)
        return Point(tokens, skipped=reason) if reason else replace(self.run(case, tokens), seconds=None)


def measure(
    cases: Sequence[Case],
    lengths: Sequence[int],
    limits: Limits,
    refused: Mapping[str, str] | None = None,
    tell: _Tell = lambda _: None,
    maker: str = MAKER,
) -> BenchResult:
    """Time and memory of all cases at all lengths."""
    torch.set_num_threads(limits.threads)
    retain_freed_memory()
    for case in cases:  # libraries load and kernels are built before anything is timed: a slow case runs only once
        with suppress(Exception):  # reported later, with the reason
            prepare(case.at(WARM_UP_TOKENS))()
    points: dict[Case, list[Point]] = {case: [] for case in cases}
    with MemoryProbe(limits.memory, limits.threads, maker) as probe:
        trials = Trials(probe, limits)
        for tokens in lengths:
            inputs, steps, admitted = Inputs(), dict[Case, Step](), dict[Case, Point]()
            for case in cases:
                tell(f"{tokens:,} tokens: memory of {case.label}")
                admitted[case] = trials.admit(case, tokens)
                if not admitted[case].skipped:
                    steps[case] = prepare(case.at(tokens), inputs)
            tell(f"{tokens:,} tokens: timing {len(steps)} in turn")
            times = take_turns(steps, limits.rounds, limits.threads)
            for case, point in admitted.items():
                taken = times.get(case, [])
                points[case].append(replace(point, seconds=min(taken, default=None), runs=len(taken)))
    rows = [Row(case.label, case.baseline.label, tuple(of_case)) for case, of_case in points.items()]
    return BenchResult(compared(rows), _conditions(cases[0], limits), environment(), dict(refused or {}))


def _conditions(case: Case, limits: Limits) -> Conditions:
    return Conditions(case.batch, case.n_head, case.n_embd, case.causal, **asdict(limits), memory_measured=measurable())


# The longest text within a budget


def reach(
    cases: Sequence[Case], budgets: Sequence[Budget], limits: Limits, tell: _Tell = lambda _: None
) -> ReachResult:
    """The longest text of every case within every budget."""
    if any(budget.kind == "bytes" for budget in budgets) and not measurable():
        raise UserError("peak memory cannot be measured on this system (Linux can): give --reach a time, such as 10s")
    limits = limits.covering(budgets)
    timed = any(budget.kind == "seconds" for budget in budgets)
    with MemoryProbe(limits.memory, limits.threads, timed=timed) as probe:
        trials, reaches = Trials(probe, limits), []
        for budget in budgets:
            reached = []
            for case in cases:
                tell(f"{case.label} within {budget}")
                reached.append(longest(trials, case, budget))
            reaches.append(BudgetResult.of(budget, reached))
    runs = {case.label: tuple(point for _, point in sorted(trials.seen[case].items())) for case in cases}
    return ReachResult(tuple(reaches), runs, _conditions(cases[0], limits), environment())


def longest(trials: Trials, case: Case, budget: Budget) -> Longest:
    """The longest text of a case within a budget."""

    def fits(tokens: int) -> bool:
        if tokens not in trials.seen[case]:
            trials.run(case, tokens)
        cost = dict(trials.costs(case, budget.kind)).get(tokens)  # None: it was refused, or failed
        return cost is not None and cost <= budget.amount

    def expected() -> int | None:
        within = [(tokens, cost) for tokens, cost in trials.costs(case, budget.kind) if cost <= budget.amount]
        return affordable(within, budget.amount)

    lower, upper, objection = 0, _SHORTEST, ""
    while upper <= LONGEST and not (objection := trials.objection(case, upper)) and fits(upper):
        lower, upper = upper, 2 * upper
    extrapolated = expected()
    if lower and objection and extrapolated is not None and extrapolated >= upper:
        return Longest(case.label, extrapolated, False)
    if lower and upper <= LONGEST:
        lower = _narrow(fits, lower, upper, lambda: expected() or upper)
    return Longest(case.label, lower, True)


def _narrow(fits: Callable[[int], bool], lower: int, upper: int, guess: Callable[[], int]) -> int:
    """The longest length known to fit, when `lower` does and `upper` does not; `guess` extrapolates from what fitted."""
    margin = _CLOSE**0.5
    for _ in range(_TRIES):
        tried = int(guess() / margin)
        if tried <= lower * margin or upper <= lower * _CLOSE:
            break
        if tried >= upper:  # the guess was refuted
            tried = int((lower * upper) ** 0.5)
        if fits(tried):
            lower = tried
        else:
            upper = tried
    return lower
