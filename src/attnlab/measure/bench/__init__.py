"""Speed and memory of mechanisms: forward and backward beside torch's fused attention, over the length of the text.

cases.py    what is timed: attention on given queries, keys and values, or a whole module
timing.py   peak memory in a child process, rounds over all cases, which lengths a case skips, the longest text in a memory

Here are the results: records, forecasts, ratios, crossover lengths, and the reports. Plain numbers, no torch. The package
works with whatever the registry holds and knows no mechanism by name, except `dot`, the baseline of whole modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from attnlab.report import document as blocks
from attnlab.report.document import Axis, Block, Cell, Chart, Column, Document, Section, Series, Table, Text
from attnlab.report.words import NOTHING, sized

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


def _last_cost(points: Sequence[tuple[int, float]]) -> tuple[int, float, float] | None:
    """The longest text, its cost, and the exponent of its growth; None if fewer than two lengths are known.

    The exponent is at least 1, since small costs are mostly overhead.
    """
    known = [(tokens, cost) for tokens, cost in points if cost > 0]
    if len(known) < 2:
        return None
    (n0, cost0), (n1, cost1) = known[-2:]
    return n1, cost1, min(_STEEPEST, max(1.0, math.log(cost1 / cost0) / math.log(n1 / n0)))


def forecast(points: Sequence[tuple[int, float]], tokens: int) -> float | None:
    """The expected cost of a longer text, if it can be extrapolated."""
    last = _last_cost(points)
    return last and last[1] * (tokens / last[0]) ** last[2]


def affordable(points: Sequence[tuple[int, float]], budget: float) -> int | None:
    """The length at which the forecast meets a budget, if it can be extrapolated."""
    last = _last_cost(points)
    return last and int(last[0] * (budget / last[1]) ** (1 / last[2]))


# Time and memory at given lengths


@dataclass(frozen=True)
class Row:
    """One case at all lengths, compared with the row whose label is `baseline`."""

    label: str
    baseline: str
    points: tuple[Point, ...]
    ratios: dict[int, float] = field(default_factory=dict)  # time over that of the baseline, by length
    crossover: float | None = None  # tokens from which on it is faster than its baseline


@dataclass(frozen=True)
class BenchResult:
    """All cases, their conditions, the machine, and the mechanisms that could not run at all with the reasons."""

    rows: tuple[Row, ...]
    setting: Conditions
    environment: dict[str, str | int]
    refused: dict[str, str]

    def document(self) -> Document:
        """The report."""
        threads = self.setting.threads
        clock = "1 thread, processor time" if threads == 1 else f"{threads} threads, wall time"
        lead = (
            f"Forward + backward, {self.setting}, {clock}, the shortest of up to {self.setting.rounds} runs in turns;"
            " memory beyond the inputs."
        )
        memory: Block = self._memory_table()
        if not self.setting.memory_measured:
            memory = Text(["Peak memory is not measured on this system (Linux can)."])
        sections = [Section("Time", [self._time_table()]), Section("Peak memory", [memory])]
        sections.append(Section("Curves", self.charts()))
        if notes := self._notes():
            sections.append(Section("Left out", [Text(notes, "list")]))
        return Document("bench", "Speed and memory", [lead], sections, about=_machine(self.environment))

    def charts(self) -> list[Chart]:
        """Time and, where it was measured, memory over the length."""
        points = {row.label: row.points for row in self.rows}
        return [_chart(points, "seconds"), *([_chart(points, "bytes")] if self.setting.memory_measured else [])]

    def _time_table(self) -> Table:
        """Milliseconds of baselines, multiples of them for the others; milliseconds too where the baseline was skipped."""
        rows = []
        for row in self.rows:
            is_baseline = row.label == row.baseline
            cells = []
            for point in row.points:
                if point.seconds is None:
                    cells.append(Cell("skipped" if point.skipped else NOTHING))
                elif is_baseline or point.tokens not in row.ratios:
                    cells.append(Cell(_milliseconds(point.seconds), point.seconds))
                else:
                    cells.append(Cell(f"{row.ratios[point.tokens]:.2f}x", point.seconds))
            faster = Cell("" if is_baseline else crossover_text(row.ratios), row.crossover)
            rows.append(blocks.Row(Cell(row.label), [*cells, faster]))
        return Table("Time", "", [Column("time", number=False), *self._lengths(), Column("faster from")], rows)

    def _memory_table(self) -> Table:
        def cell(point: Point) -> Cell:
            if point.bytes is None:
                return Cell("skipped" if point.skipped else NOTHING)
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
            skipped = next((point for point in row.points if point.skipped), None)
            lines += [f"{row.label}: skipped from {skipped.tokens:,} on: {skipped.skipped}"] if skipped else []
        return lines


def _chart(points: Mapping[str, Sequence[Point]], kind: Literal["seconds", "bytes"], budget: float = 0.0) -> Chart:
    """Time in milliseconds or memory in megabytes over the length, with a budget as a line."""
    series, unit = [], 1e3 if kind == "seconds" else 1e-6
    for label, several in points.items():
        known = [(point.tokens, unit * cost) for point in several if (cost := getattr(point, kind)) is not None]
        series.append(Series(label, [float(n) for n, _ in known], [cost for _, cost in known], dots=known))
    if budget:
        series.append(Series("budget", [0.0, max(max(line.x, default=0.0) for line in series)], 2 * [unit * budget]))
    title = "Time of a step" if kind == "seconds" else "Peak memory of a step, beyond the inputs"
    y = Axis("time", "ms", low=0) if kind == "seconds" else Axis("memory", "MB", low=0)
    label = f"{title} over the length of the text, of {', '.join(points)}"
    return Chart("lines", title, label, Axis("length", "tokens", low=0), y, series, readable=True)


def compared(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with their ratios to their baselines and the crossovers."""
    by_label = {row.label: row for row in rows}
    completed = []
    for row in rows:
        its = ratios(row, by_label[row.baseline])
        completed.append(replace(row, ratios=its, crossover=None if row.label == row.baseline else crossover(its)))
    return tuple(completed)


def ratios(row: Row, baseline: Row) -> dict[int, float]:
    """The time of a row as a multiple of another's, at the lengths where both were measured."""
    base = {point.tokens: point.seconds for point in baseline.points}
    pairs = ((point.tokens, point.seconds, base.get(point.tokens)) for point in row.points)
    return {tokens: seconds / other for tokens, seconds, other in pairs if seconds is not None and other}


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
    tokens = crossover(by_length)
    if tokens is None:
        return f"never up to {max(by_length):,}"
    return f"{tokens:,.0f}" if tokens > min(by_length) else f"{tokens:,.0f} or less"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:,.0f} ms"


def _machine(environment: Mapping[str, str | int]) -> str:
    return f"{environment.get('processor')}, torch {environment.get('torch')}."


# The longest text in a given memory


@dataclass(frozen=True)
class Longest:
    """The longest text of a case, whether it was run or extrapolated, and its ratio to the baseline's."""

    label: str
    tokens: int
    measured: bool
    ratio: float | None = None

    @property
    def length(self) -> str:
        """The length as text; two digits if it was extrapolated."""
        return f"{self.tokens:,}" if self.measured else f"about {float(f'{self.tokens:.1e}'):,.0f} (extrapolated)"


@dataclass(frozen=True)
class ReachResult:
    """How far every case gets with a memory, with every run that was needed, by label."""

    budget: float  # bytes
    baseline: str  # the case whose length the ratios are multiples of
    reached: tuple[Longest, ...]
    runs: dict[str, tuple[Point, ...]]
    setting: Conditions
    environment: dict[str, str | int]

    def document(self) -> Document:
        """The report."""
        within = f"within {sized(self.budget)}"
        lead = (
            f"The longest text whose forward + backward stays {within}: {self.setting}, threads: {self.setting.threads};"
            " memory beyond the inputs."
        )
        rows = [
            blocks.Row(Cell(row.label), [Cell(row.length, row.tokens), Cell(_times(row.ratio), row.ratio)])
            for row in self.reached
        ]
        columns = [Column(within, number=False), Column("tokens"), Column(f"times {self.baseline}")]
        sections = [Section("Lengths", [Table("Lengths", "", columns, rows)]), Section("Curves", self.charts())]
        return Document("reach", "The longest text", [lead], sections, about=_machine(self.environment))

    def charts(self) -> list[Chart]:
        """The memory of every length that was run, with the budget."""
        return [_chart(self.runs, "bytes", self.budget)]


def with_ratios(reached: Sequence[Longest]) -> tuple[str, tuple[Longest, ...]]:
    """The baseline, and all lengths with their ratios to its length.

    The baseline is naive attention, whose memory grows with the square of the length, or the first case without it.
    """
    baseline = next((row for row in reached if row.label == NAIVE), reached[0])
    rows = (replace(row, ratio=row.tokens / baseline.tokens if baseline.tokens else None) for row in reached)
    return baseline.label, tuple(rows)


def _times(ratio: float | None) -> str:
    """A ratio with two significant digits."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"
