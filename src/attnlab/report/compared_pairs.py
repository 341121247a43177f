"""The pairs of a comparison as tables: what was tested, seed by seed, and what is merely described.

Pure functions, as in `compared`; a pair with a specimen that leaks is marked with a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.report.compared import LEAKS, Result, figure_named, leaking
from attnlab.report.tables import Cell, Column, Row, Table
from attnlab.report.words import chance, figure, signed, span, times


def doubtful(one: Result, leaks: Sequence[str]) -> str:
    """The words beside a pair of which one leaks, or both."""
    named = [name for name in (one["a"], one["b"]) if name in leaks]
    return f"{' and '.join(named)} {LEAKS if len(named) < 2 else 'leak'}" if named else ""


def pair_title(one: Result) -> str:
    """A pair as it stands in plots and tables."""
    return f"{one['a']} over {one['b']}" if one.get("ratio") is not None else f"{one['a']} minus {one['b']}"


def effect(one: Result, kind: str) -> tuple[str, str]:
    """The ratio or difference of a comparison, and its interval."""
    if one.get("ratio") is not None:
        low, high = one.get("ratio_low"), one.get("ratio_high")
        return times(one["ratio"]), f"{times(low)} to {times(high)}" if low is not None and high is not None else ""
    return signed(one.get("difference"), kind), span(one.get("low"), one.get("high"), kind, sign=True)


def comparisons_table(result: Result) -> Table | None:
    """The tests in numbers."""
    pairs, leaks = result.get("comparisons") or [], leaking(result)
    if not pairs:
        return None
    corrected = any(one.get("adjusted") is not None for one in pairs)
    rows = []
    for one in pairs:
        item = figure_named(result, one["figure"])
        value, interval = effect(one, item["kind"])
        size = one.get("ratio") if one.get("ratio") is not None else one.get("difference")
        holm = [Cell(chance(one.get("adjusted")), one.get("adjusted"))] if corrected else []
        shown = "yes" if one.get("shown") else "no"
        if not one.get("believed", True):
            shown += ", not to be believed"
        cells = [Cell(item["title"]), Cell(value, size, interval), Cell(chance(one.get("p")), one.get("p")), *holm]
        rows.append(Row(Cell(pair_title(one)), [*cells, Cell(shown)], doubtful(one, leaks)))
    columns = [
        Column("Compared", number=False),
        Column("Figure", number=False),
        Column("Ratio or difference", note="with its 95 % interval"),
        Column("p"),
        *([Column("p after Holm", note="corrected for the number of comparisons")] if corrected else []),
        Column("Difference shown", number=False),
    ]
    tests = dict.fromkeys(one["test"] for one in pairs if one.get("test"))
    return Table(f"The tests hold {'; '.join(tests)}." if tests else "The tests in numbers.", columns, rows)


def by_seed_table(result: Result) -> Table | None:
    """The comparisons seed by seed, where there are several seeds."""
    leaks, rows = leaking(result), []
    for one in result.get("comparisons") or ():
        item, lines = figure_named(result, one["figure"]), one.get("by_seed") or ()
        for line in lines if len(lines) > 1 else ():
            values = [Cell(figure(line.get(side), item["kind"]), line.get(side)) for side in ("a", "b")]
            difference = Cell(signed(line.get("difference"), item["kind"]), line.get("difference"))
            cells = [Cell(item["title"]), Cell(str(line["seed"]), line["seed"]), *values, difference]
            rows.append(Row(Cell(f"{one['a']} minus {one['b']}"), cells, doubtful(one, leaks)))
    columns = [Column("Compared", number=False), Column("Figure", number=False)]
    columns += map(Column, ("Seed", "First", "Second", "First minus second"))
    return Table("What was compared, seed by seed.", columns, rows) if rows else None


def paired_table(result: Result) -> Table | None:
    """The differences of all other figures, as they are."""
    pairs, leaks = result.get("paired") or [], leaking(result)
    if not pairs:
        return None
    rows = []
    for one in pairs:
        item = figure_named(result, one["figure"])
        difference = Cell(
            signed(one.get("difference"), item["kind"]),
            one.get("difference"),
            span(one.get("low"), one.get("high"), item["kind"], sign=True),
        )
        cells = [Cell(item["title"]), difference, Cell(times(one.get("ratio")), one.get("ratio"))]
        rows.append(Row(Cell(f"{one['a']} minus {one['b']}"), cells, doubtful(one, leaks)))
    columns = (Column("Compared", number=False), Column("Figure", number=False), Column("Difference"), Column("Ratio"))
    return Table("All other figures, seed by seed: described, not tested, and not corrected.", columns, rows)


@dataclass(frozen=True)
class Said:
    """What can be said of a pair, with the word for one that leaks."""

    title: str
    words: str
    mark: str
    believed: bool = True


def sentences(result: Result) -> list[Said]:
    """The comparisons in words."""
    leaks = leaking(result)
    return [
        Said(f"{one['a']} against {one['b']}", one.get("words") or "", doubtful(one, leaks), one.get("believed", True))
        for one in result.get("comparisons") or ()
    ]
