"""How far a budget goes: the longest text whose forward + backward stays within so much memory, or so much time.

Lengths are doubled until the budget is spent, then the place between is closed in, and the answer is a length that was run
and stayed within. Where a run would take longer than anybody waits, the answer is extrapolated and says so. That is the
case of torch's fused attention under a budget of memory: its memory grows in proportion to the length, as that of the
sparse mechanisms does, and time is what ends it. Naive attention, which the papers mean by full attention, is the one
whose memory explodes; so memory is compared with naive, and time with SDPA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from attnlab.errors import UserError
from attnlab.machine import environment
from attnlab.measure.bench.contestants import NAIVE, SDPA, Case
from attnlab.measure.bench.memory import Gauge, measurable, readable
from attnlab.measure.bench.results import Conditions, affordable, machine
from attnlab.measure.bench.timing import Limits, Scout, conditions
from attnlab.report.document import Cell, Column, Document, Row, Section, Table

SHORTEST, LONGEST = 256, 2**22
CLOSE = 1.03  # the answer is within so much of where the budget ends
TRIES = 5
Kind = Literal["bytes", "seconds"]
KINDS: tuple[Kind, ...] = ("bytes", "seconds")
UNITS: dict[str, tuple[Kind, float]] = {
    "gb": ("bytes", 1e9),
    "mb": ("bytes", 1e6),
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
}


@dataclass(frozen=True)
class Budget:
    """An amount of memory (bytes) or of time (seconds)."""

    kind: Kind
    amount: float

    def __str__(self) -> str:
        return readable(self.amount) if self.kind == "bytes" else f"{self.amount:g} s"

    @property
    def rival(self) -> str:
        """Who has most trouble with this kind of budget."""
        return NAIVE if self.kind == "bytes" else SDPA


@dataclass(frozen=True)
class Reached:
    """The longest text of a contestant within a budget, and whether it was run or extrapolated."""

    label: str
    tokens: int
    measured: bool

    @property
    def length(self) -> str:
        """The length for people; what was extrapolated has two digits worth reading."""
        return f"{self.tokens:,}" if self.measured else f"about {float(f'{self.tokens:.1e}'):,.0f}"


@dataclass(frozen=True)
class Reach:
    """The answers for one budget."""

    budget: Budget
    reached: tuple[Reached, ...]

    @property
    def rival(self) -> Reached:
        """Whom the others are compared with; the first where whole modules run alone."""
        return next((one for one in self.reached if one.label == self.budget.rival), self.reached[0])

    def ratio(self, one: Reached) -> float | None:
        """How many times as long a text as the rival's."""
        return one.tokens / self.rival.tokens if self.rival.tokens else None


class Run(NamedTuple):
    """What one text took."""

    tokens: int
    bytes: int | None
    seconds: float


@dataclass(frozen=True)
class Reaches:
    """All answers, with every run on the way by label."""

    reaches: tuple[Reach, ...]
    runs: dict[str, list[Run]]
    setting: Conditions
    environment: Mapping[str, object]


def read_budgets(text: str) -> list[Budget]:
    """`1GB` or `1GB,10s` as budgets."""
    budgets = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]+)\s*", part)
        if match is None or match[2].lower() not in UNITS or not re.fullmatch(r"\d+\.?\d*|\.\d+", match[1]):
            raise UserError(f"--reach is an amount of memory or time, such as 1GB, 500MB or 10s, not '{part.strip()}'")
        kind, unit = UNITS[match[2].lower()]
        budgets.append(Budget(kind, float(match[1]) * unit))
    if any(one.amount <= 0 for one in budgets):
        raise UserError("--reach must be more than nothing")
    return budgets


def _close_in(fits: Callable[[int], bool], lower: int, upper: int, guess: Callable[[], int]) -> int:
    """The longest length known to fit, when `lower` does and `upper` does not; `guess` extrapolates from what fitted."""
    margin = CLOSE**0.5
    for _ in range(TRIES):
        looked = int(guess() / margin)
        if looked <= lower * margin or upper <= lower * CLOSE:
            break
        if looked >= upper:  # the guess was refuted
            looked = int((lower * upper) ** 0.5)
        if fits(looked):
            lower = looked
        else:
            upper = looked
    return lower


def longest(scout: Scout, case: Case, budget: Budget) -> Reached:
    """The longest text of a contestant within a budget."""

    def fits(tokens: int) -> bool:
        if tokens not in scout.seen[case]:
            scout.glance(case, tokens)
        cost = dict(scout.costs(case, budget.kind)).get(tokens)  # none: it was refused, or broke
        return cost is not None and cost <= budget.amount

    def within() -> list[tuple[int, float]]:
        return [(tokens, cost) for tokens, cost in scout.costs(case, budget.kind) if cost <= budget.amount]

    lower, upper, objection = 0, SHORTEST, ""
    while upper <= LONGEST and not (objection := scout.objection(case, upper)) and fits(upper):
        lower, upper = upper, 2 * upper
    expected = affordable(within(), budget.amount)
    if lower and objection and expected is not None and expected >= upper:
        return Reached(case.label, expected, False)
    if lower and upper <= LONGEST:
        lower = _close_in(fits, lower, upper, lambda: affordable(within(), budget.amount) or upper)
    return Reached(case.label, lower, True)


def roomy(limits: Limits, budgets: Sequence[Budget]) -> Limits:
    """Limits of a single run that let every budget be overspent a little."""
    most = {kind: 1.25 * max((one.amount for one in budgets if one.kind == kind), default=0.0) for kind in KINDS}
    return replace(limits, memory=max(limits.memory, most["bytes"]), seconds=max(limits.seconds, most["seconds"]))


def reach(
    cases: Sequence[Case], budgets: Sequence[Budget], limits: Limits, tell: Callable[[str], None] = lambda _: None
) -> Reaches:
    """How far every contestant gets with every budget."""
    if any(budget.kind == "bytes" for budget in budgets) and not measurable():
        raise UserError("peak memory cannot be measured on this system (Linux can): give --reach a time, such as 10s")
    limits = roomy(limits, budgets)
    timed = any(budget.kind == "seconds" for budget in budgets)
    with Gauge(limits.memory, limits.threads, timed=timed) as gauge:
        scout, reaches = Scout(gauge, limits), []
        for budget in budgets:
            found = []
            for case in cases:
                tell(f"{case.label} within {budget}")
                found.append(longest(scout, case, budget))
            reaches.append(Reach(budget, tuple(found)))
    runs = {
        case.label: [Run(tokens, one.bytes, one.seconds or 0.0) for tokens, one in sorted(scout.seen[case].items())]
        for case in cases
    }
    return Reaches(tuple(reaches), runs, conditions(cases[0], limits), environment())


# A report


def _table(one: Reach) -> Table:
    """Who gets how far."""
    rows = []
    for row in one.reached:
        ratio = one.ratio(row)
        tokens = Cell(row.length if row.measured else f"{row.length} (extrapolated)", row.tokens)
        rows.append(Row(Cell(row.label), [tokens, Cell("–" if ratio is None else say_ratio(ratio), ratio)]))
    columns = [Column(f"within {one.budget}", number=False), Column("tokens"), Column(f"times {one.rival.label}")]
    return Table(f"Within {one.budget}", "", columns, rows)


def say_ratio(ratio: float) -> str:
    """A ratio with two digits worth reading."""
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def to_dict(reaches: Reaches) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    answers = [
        {
            "budget": str(one.budget),
            "kind": one.budget.kind,
            "amount": one.budget.amount,
            "compared_with": one.rival.label,
            "reached": [{**asdict(row), "ratio": one.ratio(row)} for row in one.reached],
        }
        for one in reaches.reaches
    ]
    shared = {"setting": asdict(reaches.setting), "environment": dict(reaches.environment)}
    runs = {label: [run._asdict() for run in found] for label, found in reaches.runs.items()}
    return {**shared, "reach": answers, "runs": runs}


def headline(reaches: Reaches) -> str:
    """What the numbers are, in a sentence."""
    return (
        f"The longest text whose forward + backward stays within a budget: {reaches.setting},"
        f" threads: {reaches.setting.threads}; memory beyond the inputs"
    )


def document(reaches: Reaches) -> Document:
    """The answers as a report."""
    sections = [Section(f"Within {one.budget}", [_table(one)]) for one in reaches.reaches]
    about = machine(reaches.environment)
    return Document("reach", "How far a budget goes", [f"{headline(reaches)}."], sections, about=about)
