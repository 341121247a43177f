"""What was measured, and what follows from it: forecasts, ratios, crossover lengths, a report. Plain numbers, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnlab.report import document as blocks
from attnlab.report.document import Cell, Column, Document, Section, Table

NOISE = 0.05  # a gain below this may be none
STEEPEST = 3.0  # no attention grows faster than the cube of the length


@dataclass(frozen=True)
class Point:
    """One contestant at one length: the least time of its runs, and peak memory; or why there are none."""

    tokens: int
    seconds: float | None = None
    bytes: int | None = None
    runs: int = 0
    skipped: str = ""


@dataclass(frozen=True)
class Row:
    """One contestant at all lengths; `bar` is the label of the row that it is compared with."""

    label: str
    bar: str
    points: tuple[Point, ...]

    def seconds(self, tokens: int) -> float | None:
        """The time at a length, if it was measured."""
        return next((one.seconds for one in self.points if one.tokens == tokens), None)


@dataclass(frozen=True)
class Conditions:
    """What all contestants had in common: sizes, the limits of a step in seconds and bytes, and how it was timed."""

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


@dataclass(frozen=True)
class Result:
    """All contestants, in which setting they ran, on which machine, and who could not run at all."""

    rows: tuple[Row, ...]
    setting: Conditions
    environment: Mapping[str, object]
    refused: Mapping[str, str]

    def row(self, label: str) -> Row:
        """The row of a contestant."""
        return next(one for one in self.rows if one.label == label)

    @property
    def lengths(self) -> list[int]:
        """The lengths, from short to long."""
        return [one.tokens for one in self.rows[0].points]


# Growth


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """The exponent by which the last two costs grow with the length; at least in proportion, since small costs deceive."""
    (n0, cost0), (n1, cost1) = points[-2:]
    return min(STEEPEST, max(1.0, math.log(cost1 / cost0) / math.log(n1 / n0)))


def forecast(points: Sequence[tuple[int, float]], tokens: int) -> float | None:
    """What a longer text will cost; None if fewer than two lengths are known."""
    known = [(n, cost) for n, cost in points if cost > 0]
    if len(known) < 2:
        return None
    return known[-1][1] * (tokens / known[-1][0]) ** _slope(known)


def affordable(points: Sequence[tuple[int, float]], budget: float) -> int | None:
    """The length that a budget will do for, by the same rule."""
    known = [(n, cost) for n, cost in points if cost > 0]
    if len(known) < 2:
        return None
    return int(known[-1][0] * (budget / known[-1][1]) ** (1 / _slope(known)))


# Against the bar


def ratios(row: Row, bar: Row) -> list[tuple[int, float]]:
    """Time as a multiple of the bar's, at the lengths where both were measured."""
    both = [(one.tokens, one.seconds, bar.seconds(one.tokens)) for one in row.points]
    return [(tokens, mine / its) for tokens, mine, its in both if mine is not None and its]


def crossover(pairs: Sequence[tuple[int, float]], level: float = 1 - NOISE) -> float | None:
    """The length from which on the ratio stays below `level`, straight between points on logarithmic axes.

    None if the ratio at the last length is not below it; the first length if all are.
    """
    if not pairs or pairs[-1][1] >= level:
        return None
    slow = [at for at, (_, ratio) in enumerate(pairs) if ratio >= level]
    if not slow:
        return float(pairs[0][0])
    (n0, above), (n1, below) = pairs[slow[-1] : slow[-1] + 2]
    share = math.log(above / level) / math.log(above / below)
    return n0 * (n1 / n0) ** share


def say_crossover(pairs: Sequence[tuple[int, float]]) -> str:
    """The crossover for people."""
    found = crossover(pairs)
    if not pairs:
        return "not measured"
    if found is None:
        return f"never up to {pairs[-1][0]:,}"
    return f"{found:,.0f}" if found > pairs[0][0] else f"{found:,.0f} or less"


# A report


def _say_skipped(reason: str) -> str:
    """A reason in the width of a cell."""
    for beginning, short in (("would take", "slow"), ("would need", "big"), ("needs more than", "big")):
        if reason.startswith(beginning):
            return short
    return "failed" if reason else "–"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:,.0f} ms"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f}" if size >= 1e7 else f"{size / 1e6:.1f}"


def _lengths(result: Result) -> list[Column]:
    return [Column(f"{tokens:,}") for tokens in result.lengths]


def _time_table(result: Result) -> Table:
    """Milliseconds of the bars, multiples of them for the others, and from where on they are faster.

    Where its bar was skipped, a contestant's own milliseconds stand alone.
    """
    rows = []
    for row in result.rows:
        is_bar, known = row.label == row.bar, dict(ratios(row, result.row(row.bar)))
        cells = []
        for one in row.points:
            if one.seconds is None:
                cells.append(Cell(_say_skipped(one.skipped)))
            elif is_bar or one.tokens not in known:
                cells.append(Cell(_milliseconds(one.seconds), one.seconds))
            else:
                cells.append(Cell(f"{known[one.tokens]:.2f}x", one.seconds))
        faster = Cell("" if is_bar else say_crossover(list(known.items())))
        rows.append(blocks.Row(Cell(row.label), [*cells, faster]))
    return Table("Time", "", [Column("time", number=False), *_lengths(result), Column("faster from")], rows)


def _memory_table(result: Result) -> Table:
    """Peak memory beyond the inputs, in megabytes."""
    rows = []
    for row in result.rows:
        cells = [
            Cell(_say_skipped(one.skipped)) if one.bytes is None else Cell(_megabytes(one.bytes), one.bytes)
            for one in row.points
        ]
        rows.append(blocks.Row(Cell(row.label), cells))
    return Table("Peak memory", "", [Column("peak MB", number=False), *_lengths(result)], rows)


def notes(result: Result) -> list[str]:
    """Who was left out, where, and why; the first length of each reason is enough."""
    lines = [f"{name}: left out: {reason}" for name, reason in result.refused.items()]
    for row in result.rows:
        skipped = [one for one in row.points if one.skipped]
        lines += [f"{row.label}: from {skipped[0].tokens:,} on skipped: {skipped[0].skipped}"] if skipped else []
    return lines


def headline(result: Result) -> str:
    """What the numbers are, in a sentence."""
    threads = result.setting.threads
    clock = "1 thread, processor time" if threads == 1 else f"{threads} threads, wall time"
    return (
        f"Forward + backward, {result.setting}, {clock}, the least of up to {result.setting.rounds} runs in turns;"
        " memory beyond the inputs"
    )


def document(result: Result) -> Document:
    """The whole benchmark as a report."""
    memory: blocks.Block = _memory_table(result)
    if not result.setting.memory_measured:
        memory = blocks.Text(["Peak memory is not measured on this system (Linux can)."])
    sections = [Section("Time", [_time_table(result)]), Section("Peak memory", [memory])]
    if lines := notes(result):
        sections.append(Section("Left out", [blocks.Text(lines, "list")]))
    return Document("bench", "Speed and memory", [f"{headline(result)}."], sections, about=machine(result.environment))


def machine(environment: Mapping[str, object]) -> str:
    """The machine that was measured on."""
    return f"{environment.get('processor')}, torch {environment.get('torch')}."


def to_dict(result: Result) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    rows = []
    for row in result.rows:
        pairs = ratios(row, result.row(row.bar))
        known = dict(pairs)
        points = [{**asdict(one), "ratio": known.get(one.tokens)} for one in row.points]
        found = None if row.label == row.bar else crossover(pairs)
        rows.append({"name": row.label, "bar": row.bar, "crossover": found, "points": points})
    shared = {"setting": asdict(result.setting), "environment": dict(result.environment)}
    return {**shared, "refused": dict(result.refused), "rows": rows}
