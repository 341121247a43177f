"""Speed and memory of mechanisms: forward and backward beside torch's fused attention, over the length of the text.

cases.py    what is timed: attention on given queries, keys and values, or a whole module
memory.py   peak memory as the system counts it, in a child process
timing.py   rounds over all cases, which lengths a case skips, and the longest text within a budget

Here are the results: records, forecasts, ratios, crossover lengths, and the reports. Plain numbers, no torch. The package
works with whatever the registry holds and knows no mechanism by name, except `dot`, the baseline of whole modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attnlab.report import document as blocks
from attnlab.report.document import Axis, Block, Cell, Chart, Column, Document, Section, Series, Table, Text

SDPA, NAIVE = "SDPA", "naive"  # torch's fused attention, and the one that holds every weight in memory
NOISE = 0.05  # a smaller gain may be noise
_STEEPEST = 3.0  # no attention grows faster than the cube of the length


@dataclass(frozen=True)
class Point:
    """One case at one length: its shortest time and its peak memory, or why it was skipped."""

    tokens: int
    seconds: float | None = None
    bytes: int | None = None
    runs: int = 0
    skipped: str = ""


@dataclass(frozen=True)
class Conditions:
    """What all cases have in common: sizes, the limits of a step in seconds and bytes, and how it was timed."""

    batch: int
    n_head: int
    n_embd: int
    causal: bool
    seconds: float
    memory: float
    rounds: int
    threads: int
    memory_measured: bool

    def __str__(self) -> str:
        direction = "causal" if self.causal else "bidirectional"
        return f"{direction}, batch {self.batch}, {self.n_head} heads of {self.n_embd // self.n_head}, float32"


# Forecasts


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """The exponent between the last two costs; at least 1, since small costs are mostly overhead."""
    (n0, cost0), (n1, cost1) = points[-2:]
    return min(_STEEPEST, max(1.0, math.log(cost1 / cost0) / math.log(n1 / n0)))


def forecast(points: Sequence[tuple[int, float]], tokens: int) -> float | None:
    """The expected cost of a longer text; None if fewer than two lengths are known."""
    known = [(n, cost) for n, cost in points if cost > 0]
    if len(known) < 2:
        return None
    return known[-1][1] * (tokens / known[-1][0]) ** _slope(known)


def affordable(points: Sequence[tuple[int, float]], budget: float) -> int | None:
    """The length at which the forecast meets a budget."""
    known = [(n, cost) for n, cost in points if cost > 0]
    if len(known) < 2:
        return None
    return int(known[-1][0] * (budget / known[-1][1]) ** (1 / _slope(known)))


def format_bytes(size: float) -> str:
    """A number of bytes with its unit."""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if size >= u), (1e3, "KB"))
    return f"{size / unit:.0f} {name}" if size >= 10 * unit else f"{size / unit:.1f} {name}"


# Time and memory at given lengths


@dataclass(frozen=True)
class Row:
    """One case at all lengths; `baseline` is the label of the row it is compared with."""

    label: str
    baseline: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class BenchResult:
    """All cases, their conditions, the machine, and the mechanisms that could not run at all with the reasons."""

    rows: tuple[Row, ...]
    setting: Conditions
    environment: Mapping[str, object]
    refused: Mapping[str, str]

    def ratios(self, row: Row) -> dict[int, float]:
        """The time of a row as a multiple of its baseline's, by length."""
        return ratios(row, next(one for one in self.rows if one.label == row.baseline))

    @property
    def headline(self) -> str:
        """What was measured."""
        threads = self.setting.threads
        return f"Forward + backward, {self.setting}, " + (
            "1 thread, processor time" if threads == 1 else f"{threads} threads, wall time"
        )

    def document(self) -> Document:
        """The report."""
        lead = f"{self.headline}, the shortest of up to {self.setting.rounds} runs in turns; memory beyond the inputs."
        memory: Block = self._memory_table()
        if not self.setting.memory_measured:
            memory = Text(["Peak memory is not measured on this system (Linux can)."])
        sections = [Section("Time", [self._time_table()]), Section("Peak memory", [memory])]
        if notes := self._notes():
            sections.append(Section("Left out", [Text(notes, "list")]))
        return Document("bench", "Speed and memory", [lead], sections, about=_machine(self.environment))

    def charts(self) -> list[Chart]:
        """Time and, where it was measured, memory over the length."""
        time = self._chart("Time of a step", Axis("time", "ms", low=0), "seconds", 1e3)
        memory = self._chart("Peak memory of a step, beyond the inputs", Axis("memory", "MB", low=0), "bytes", 1e-6)
        return [time, memory] if self.setting.memory_measured else [time]

    def _chart(self, title: str, y: Axis, kind: Literal["seconds", "bytes"], unit: float) -> Chart:
        series = []
        for row in self.rows:
            known = [(one.tokens, unit * cost) for one in row.points if (cost := getattr(one, kind)) is not None]
            series.append(Series(row.label, [float(n) for n, _ in known], [cost for _, cost in known], dots=known))
        label = f"{title} over the length of the text, of {', '.join(row.label for row in self.rows)}"
        return Chart("lines", title, label, Axis("length", "tokens", low=0), y, series, readable=True)

    def _time_table(self) -> Table:
        """Milliseconds of baselines, multiples of them for the others; milliseconds too where the baseline was skipped."""
        rows = []
        for row in self.rows:
            is_baseline, known = row.label == row.baseline, self.ratios(row)
            cells = []
            for one in row.points:
                if one.seconds is None:
                    cells.append(Cell(_reason(one.skipped)))
                elif is_baseline or one.tokens not in known:
                    cells.append(Cell(_milliseconds(one.seconds), one.seconds))
                else:
                    cells.append(Cell(f"{known[one.tokens]:.2f}x", one.seconds))
            faster = Cell("" if is_baseline else crossover_text(known))
            rows.append(blocks.Row(Cell(row.label), [*cells, faster]))
        return Table("Time", "", [Column("time", number=False), *self._lengths(), Column("faster from")], rows)

    def _memory_table(self) -> Table:
        def cell(point: Point) -> Cell:
            if point.bytes is None:
                return Cell(_reason(point.skipped))
            megabytes = point.bytes / 1e6
            return Cell(f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:.1f}", point.bytes)

        rows = [blocks.Row(Cell(row.label), [cell(point) for point in row.points]) for row in self.rows]
        return Table("Peak memory", "", [Column("peak MB", number=False), *self._lengths()], rows)

    def _lengths(self) -> list[Column]:
        return [Column(f"{point.tokens:,}") for point in self.rows[0].points]

    def _notes(self) -> list[str]:
        """What was left out, and why; the first length of each row is enough."""
        lines = [f"{name}: left out: {reason}" for name, reason in self.refused.items()]
        for row in self.rows:
            skipped = [one for one in row.points if one.skipped]
            lines += [f"{row.label}: skipped from {skipped[0].tokens:,} on: {skipped[0].skipped}"] if skipped else []
        return lines

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        rows = []
        for row in self.rows:
            known = self.ratios(row)
            points = [{**asdict(one), "ratio": known.get(one.tokens)} for one in row.points]
            found = None if row.label == row.baseline else crossover(known)
            rows.append({"name": row.label, "bar": row.baseline, "crossover": found, "points": points})
        shared = {"setting": asdict(self.setting), "environment": dict(self.environment)}
        return {**shared, "refused": dict(self.refused), "rows": rows}


def ratios(row: Row, baseline: Row) -> dict[int, float]:
    """The time of a row as a multiple of another's, at the lengths where both were measured."""
    base = {point.tokens: point.seconds for point in baseline.points}
    return {
        one.tokens: one.seconds / its for one in row.points if one.seconds is not None and (its := base.get(one.tokens))
    }


def crossover(by_length: Mapping[int, float], level: float = 1 - NOISE) -> float | None:
    """The length from which on the ratio stays below `level`, interpolated on logarithmic axes.

    None if the ratio at the last length is not below it; the first length if all are.
    """
    pairs = list(by_length.items())
    if not pairs or pairs[-1][1] >= level:
        return None
    slow = [at for at, (_, ratio) in enumerate(pairs) if ratio >= level]
    if not slow:
        return float(pairs[0][0])
    (n0, above), (n1, below) = pairs[slow[-1] : slow[-1] + 2]
    share = math.log(above / level) / math.log(above / below)
    return n0 * (n1 / n0) ** share


def crossover_text(by_length: Mapping[int, float]) -> str:
    """The crossover in the words of the table."""
    if not by_length:
        return "not measured"
    found = crossover(by_length)
    if found is None:
        return f"never up to {max(by_length):,}"
    return f"{found:,.0f}" if found > min(by_length) else f"{found:,.0f} or less"


def _reason(skipped: str) -> str:
    for beginning, short in (("would take", "slow"), ("would need", "big"), ("needs more than", "big")):
        if skipped.startswith(beginning):
            return short
    return "failed" if skipped else "–"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:,.0f} ms"


def _machine(environment: Mapping[str, object]) -> str:
    return f"{environment.get('processor')}, torch {environment.get('torch')}."


# The longest text within a budget


@dataclass(frozen=True)
class Budget:
    """An amount of memory (bytes) or of time (seconds)."""

    kind: Literal["bytes", "seconds"]
    amount: float

    def __str__(self) -> str:
        return format_bytes(self.amount) if self.kind == "bytes" else f"{self.amount:g} s"


@dataclass(frozen=True)
class Longest:
    """The longest text of a case within a budget, and whether it was run or extrapolated."""

    label: str
    tokens: int
    measured: bool

    @property
    def length(self) -> str:
        """The length as text; two digits if it was extrapolated."""
        return f"{self.tokens:,}" if self.measured else f"about {float(f'{self.tokens:.1e}'):,.0f}"


@dataclass(frozen=True)
class BudgetResult:
    """How far every case gets with one budget."""

    budget: Budget
    reached: tuple[Longest, ...]

    @property
    def baseline(self) -> Longest:
        """Naive attention for memory and SDPA for time; the first case if only whole modules run."""
        label = NAIVE if self.budget.kind == "bytes" else SDPA
        return next((one for one in self.reached if one.label == label), self.reached[0])

    def ratio(self, one: Longest) -> float | None:
        """A length as a multiple of the baseline's."""
        return one.tokens / self.baseline.tokens if self.baseline.tokens else None

    def table(self) -> Table:
        """Lengths and ratios."""
        rows = []
        for row in self.reached:
            ratio = self.ratio(row)
            tokens = Cell(row.length if row.measured else f"{row.length} (extrapolated)", row.tokens)
            rows.append(blocks.Row(Cell(row.label), [tokens, Cell("–" if ratio is None else times(ratio), ratio)]))
        columns = [Column(f"within {self.budget}", number=False), Column("tokens")]
        columns.append(Column(f"times {self.baseline.label}"))
        return Table(f"Within {self.budget}", "", columns, rows)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "budget": str(self.budget),
            "kind": self.budget.kind,
            "amount": self.budget.amount,
            "compared_with": self.baseline.label,
            "reached": [{**asdict(row), "ratio": self.ratio(row)} for row in self.reached],
        }


@dataclass(frozen=True)
class ReachResult:
    """The answers for all budgets, with every run that was needed, by label."""

    reaches: tuple[BudgetResult, ...]
    runs: Mapping[str, Sequence[Point]]
    setting: Conditions
    environment: Mapping[str, object]

    @property
    def headline(self) -> str:
        """What was measured."""
        return f"{self.setting}, threads: {self.setting.threads}"

    def document(self) -> Document:
        """The report."""
        lead = (
            "The longest text whose forward + backward stays within a budget:"
            f" {self.headline}; memory beyond the inputs."
        )
        sections = [Section(f"Within {one.budget}", [one.table()]) for one in self.reaches]
        return Document("reach", "How far a budget goes", [lead], sections, about=_machine(self.environment))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        runs = {
            label: [{"tokens": one.tokens, "bytes": one.bytes, "seconds": one.seconds or 0.0} for one in found]
            for label, found in self.runs.items()
        }
        shared = {"setting": asdict(self.setting), "environment": dict(self.environment)}
        return {**shared, "reach": [one.to_dict() for one in self.reaches], "runs": runs}


def times(ratio: float) -> str:
    """A ratio with two significant digits."""
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


# Stored results


def restored(values: Mapping[str, Any]) -> BenchResult | ReachResult:
    """A result from the plain values of its `to_dict`."""
    setting, machine = Conditions(**values["setting"]), values["environment"]
    if "reach" in values:
        runs = {label: [Point(**one) for one in found] for label, found in values["runs"].items()}
        return ReachResult(tuple(map(_restored_budget, values["reach"])), runs, setting, machine)
    rows = tuple(
        Row(one["name"], one["bar"], tuple(Point(**_without(point, "ratio")) for point in one["points"]))
        for one in values["rows"]
    )
    return BenchResult(rows, setting, machine, values["refused"])


def _restored_budget(values: Mapping[str, Any]) -> BudgetResult:
    reached = tuple(Longest(**_without(one, "ratio")) for one in values["reached"])
    return BudgetResult(Budget(values["kind"], values["amount"]), reached)


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
