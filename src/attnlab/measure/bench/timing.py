"""Time all cases at given lengths, or find the longest text that each can hold in a given memory.

Before a case is timed at a length it runs there once in a child process that measures its memory and may not exceed the
limit. Two short texts before its first length, and what it took at every length since, predict the cost of the next one;
a case that would be too slow or too big is skipped with that number. Cases take turns, so that a machine that slows down
slows all of them, and the shortest time of a case counts, since other programs only ever add to it.

Memory is counted by the system, since torch does not count it on a CPU, and counting its tensors would miss what libraries
allocate inside their kernels. A child process builds the inputs, resets the system's high-water mark, runs one step, and
answers with how far the mark rose: everything the step held at once beyond its inputs and beyond what was left over before.
The child's allocator returns freed memory at once, so that the mark shows what is needed and not what is retained.

For a given memory, lengths are doubled until it is spent, then the range between is narrowed: the answer is a length that
was run and stayed within. Where a run would exceed the limit of time, the answer is extrapolated and says so. That happens
to torch's fused attention, because its memory grows only in proportion to the length. Naive attention, which papers call
full attention, is the one whose memory grows with the square; so lengths are compared with that of naive attention.
"""

from __future__ import annotations

import gc
import re
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self, TypeVar

import torch

from attnlab import machine, supervisor
from attnlab.errors import AttnlabError, UserError, one_line
from attnlab.measure import bench
from attnlab.measure.bench import BenchResult, Conditions, Longest, Point, ReachResult, Row
from attnlab.measure.bench.cases import LEAST_TOKENS, Case, Inputs, Step, forms_pattern, prepare
from attnlab.report.words import sized

_SHORTEST, LONGEST = 256, 2**22  # tokens, for a given memory
_WARM_UP_TOKENS = 64
_ENOUGH_SECONDS = 3.0  # of runs of one case at one length
_PATTERNS = 3  # arrays of all pairs that forward + backward hold at once, where the pattern is formed
_CLOSE = 1.03  # the answer for a given memory is within this factor of the longest length
_TRIES = 5
_UNITS = {"gb": 1e9, "mb": 1e6}  # bytes
_MARK = Path("/proc/self/clear_refs")
_RESET = "5"  # written to the mark: the peak starts again from what is held now
_RETAINED_BLOCK = 2**16  # bytes; larger blocks go back to the system when they are freed
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


def spare_memory() -> float:
    """Half of the available memory in bytes; 4 GB if the system does not say."""
    return (machine.memory_free() or 8e9) / 2


def read_lengths(text: str) -> list[int]:
    """Parse `512,1024`; sorted."""
    try:
        lengths = sorted({int(part) for part in text.replace("_", "").split(",")})
    except ValueError:
        raise UserError(f"--lengths takes whole numbers joined by commas, such as 512,2048, not '{text}'") from None
    if lengths[0] < 1:
        raise UserError(f"--lengths must be at least 1, not {lengths[0]}")
    return lengths


def read_memory(text: str) -> float:
    """Parse `1GB` or `500MB` into bytes."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([gm]b)\s*", text.lower())
    if match is None or float(match[1]) == 0:
        raise UserError(f"--reach takes an amount of memory, such as 1GB or 500MB, not '{text.strip()}'")
    return float(match[1]) * _UNITS[match[2]]


# Memory, in the child process


def measurable() -> bool:
    """Whether this system reports the peak of a process: Linux does."""
    return machine.STATUS.exists() and _MARK.exists()


def watch(step: Step, threads: int = 1) -> tuple[int, float]:
    """Bytes at the peak of a step beyond what was held before, and its seconds."""
    now = clock(threads)
    gc.collect()
    _MARK.write_text(_RESET)
    before, began = machine.memory_held("VmRSS"), now()
    result = step()
    seconds = now() - began
    del result
    peak = machine.memory_held("VmHWM")
    assert before is not None
    assert peak is not None
    return max(resource.getpagesize(), peak - before), seconds  # the system counts whole pages


def measure_peak(case: Case, threads: int) -> Point:
    """Memory at the peak of a step, and its time, after a short step in which libraries load what they need."""
    torch.set_num_threads(threads)
    # With another allocator than glibc's, the mark includes what that retains.
    machine.limit_retained_memory(_RETAINED_BLOCK, _RETAINED_BLOCK)
    with suppress(Exception):  # some need longer texts
        prepare(case.at(min(_WARM_UP_TOKENS, case.tokens)))()
    step = prepare(case)
    machine.release_freed_memory()
    size, seconds = watch(step, threads)
    return Point(case.tokens, seconds, size, runs=1)


# Time


def clock(threads: int) -> Callable[[], float]:
    """Processor time for one thread, which other programs do not lengthen; wall time for more."""
    return time.process_time if threads == 1 else time.perf_counter


def runs_wanted(times: Sequence[float], most: int) -> int:
    """How many runs a case should have in all, given the times so far: fewer if it is slow."""
    return most if not times else max(1, min(most, int(_ENOUGH_SECONDS / max(min(times), 1e-9))))


def take_turns(steps: Mapping[Key, Step], rounds: int, threads: int) -> dict[Key, list[float]]:
    """Seconds of every run, with the steps in turns, backwards in every second round: a step leaves its traces in the cache."""
    now, times, order = clock(threads), {key: list[float]() for key in steps}, [*steps.items()]
    for number in range(rounds):
        for key, step in order if number % 2 == 0 else order[::-1]:
            if number < runs_wanted(times[key], rounds):
                began = now()
                step()
                times[key].append(now() - began)
    return times


class Trials:
    """Runs cases once, remembers what they took, and predicts which would be too slow or too big.

    Cases run in a child process, which starts with the first and ends with the `with` block; one that dies is replaced.
    `imports` are modules that the child imports, for cases from other libraries.
    """

    def __init__(self, limits: Limits, imports: Sequence[str] = ()) -> None:
        self.limits = limits
        self.imports = ("attnlab.measure.bench.timing", *imports)
        self.seen: dict[Case, dict[int, Point]] = defaultdict(dict)
        self._child: supervisor.Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()

    def run(self, case: Case, tokens: int) -> Point:
        """One run, with its memory where that can be measured; or why it failed."""
        here = case.at(tokens)
        point = self._measure(here) if measurable() else self._time(here)
        if not point.skipped:
            self.seen[case][tokens] = point
        return point

    def _measure(self, case: Case) -> Point:
        if self._child is None or self._child.poll() is not None:
            self.__exit__()
            self._child = supervisor.Child(imports=self.imports)
        limits = supervisor.Limits(memory=int(self.limits.memory))
        try:
            return self._child.call(measure_peak, case, self.limits.threads, limits=limits)
        except supervisor.MemoryExceeded:
            return Point(case.tokens, skipped=f"needs more than {sized(self.limits.memory)}")
        except AttnlabError as error:
            return Point(case.tokens, skipped=str(error))

    def _time(self, case: Case) -> Point:
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
        need = bench.forecast(self.costs(case, "bytes"), tokens)
        if need is None and forms_pattern(case):
            need = 4.0 * _PATTERNS * case.batch * case.n_head * tokens**2
        if need is not None and need > self.limits.memory:
            return f"would need {sized(need)}"
        seconds = bench.forecast(self.costs(case, "seconds"), tokens)
        if seconds is not None and seconds > self.limits.seconds:
            return f"would take {seconds:,.0f} s" if seconds >= 10 else f"would take {seconds:.1f} s"
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
    imports: Sequence[str] = (),
) -> BenchResult:
    """Time and memory of all cases at all lengths."""
    torch.set_num_threads(limits.threads)
    machine.retain_freed_memory()
    for case in cases:  # libraries load and kernels are built before anything is timed: a slow case runs only once
        with suppress(Exception):  # reported later, with the reason
            prepare(case.at(_WARM_UP_TOKENS))()
    points: dict[Case, list[Point]] = {case: [] for case in cases}
    with Trials(limits, imports) as trials:
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
    return BenchResult(bench.compared(rows), _conditions(cases[0], limits), machine.environment(), dict(refused or {}))


def _conditions(case: Case, limits: Limits) -> Conditions:
    return Conditions(case.batch, case.n_head, case.n_embd, case.causal, **asdict(limits), memory_measured=measurable())


# The longest text in a given memory


def reach(cases: Sequence[Case], memory: float, limits: Limits, tell: _Tell = lambda _: None) -> ReachResult:
    """The longest text of every case in a given memory (bytes)."""
    if not measurable():
        raise UserError("--reach measures peak memory, which this system does not report (Linux does): leave it out")
    limits = replace(limits, memory=max(limits.memory, 1.25 * memory))  # a run may exceed the memory a little
    with Trials(limits) as trials:
        reached = []
        for case in cases:
            tell(f"{case.label} within {sized(memory)}")
            reached.append(longest(trials, case, memory))
    runs = {case.label: tuple(point for _, point in sorted(trials.seen[case].items())) for case in cases}
    return ReachResult(memory, *bench.with_ratios(reached), runs, _conditions(cases[0], limits), machine.environment())


def longest(trials: Trials, case: Case, memory: float) -> Longest:
    """The longest text of a case in a given memory (bytes)."""

    def fits(tokens: int) -> bool:
        if tokens not in trials.seen[case]:
            trials.run(case, tokens)
        cost = dict(trials.costs(case, "bytes")).get(tokens)  # None: it was refused, or failed
        return cost is not None and cost <= memory

    def expected() -> int | None:
        within = [(tokens, cost) for tokens, cost in trials.costs(case, "bytes") if cost <= memory]
        return bench.affordable(within, memory)

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
