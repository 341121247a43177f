"""A comparison as tables: what page, Markdown and terminal show of it, made once.

Pure functions from a result (plain data, as `result.json` of a comparison holds it) to tables. A specimen that leaks is
marked in every one of them with a word, since its numbers must not be believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.report.tables import Cell, Column, Row, Table
from attnlab.report.words import NOTHING, figure, plain, plural, span, times

Result = Mapping[str, Any]

LEAKS = "leaks"
QUALITY = (
    "perplexity",
    "loss",
    "share",
    "epoch",
)  # kinds of figures that say how good a specimen is; the others say what it costs


def leaking(result: Result) -> list[str]:
    """The names of the specimens that see the future."""
    return [one["name"] for one in result["specimens"] if one.get("leaks")]


def titled(one: Result) -> str:
    """A specimen's name in a plot, with the word for those that leak."""
    return f"{one['name']} ({LEAKS})" if one.get("leaks") else str(one["name"])


def mark(one: Result) -> str:
    """The word beside a specimen's name."""
    return LEAKS if one.get("leaks") else ""


def figures_of(result: Result, kinds: Sequence[str] | None = None) -> list[Result]:
    """The figures there are, or those of some kinds."""
    return [one for one in result["figures"] if kinds is None or one["kind"] in kinds]


def figure_named(result: Result, key: str) -> Result:
    """A figure by its key; one that is not described goes by its key."""
    found = (one for one in result["figures"] if one["key"] == key)
    return next(found, {"key": key, "title": key.replace("_", " "), "kind": "", "lower_is_better": True})


def heading(one: Result) -> Column:
    """The column of a figure."""
    unit = f" ({one['unit']})" if one.get("unit") and one["unit"] != "%" else ""
    return Column(one["title"] + unit, note=one.get("note") or "", largest_first=not one.get("lower_is_better", True))


def measured(summary: Result | None, kind: str) -> Cell:
    """A mean with its interval, and the value of every seed behind it."""
    if not summary:
        return Cell(NOTHING)
    mean, under = summary.get("mean"), span(summary.get("low"), summary.get("high"), kind)
    each = [figure(value, kind) for value in summary.get("each") or ()]
    same = len(set(each)) == 1
    return Cell(figure(mean, kind), mean, under, "" if same else ", ".join(each))


# The specimens


def specimens_table(result: Result, figures: Sequence[Result], caption: str) -> Table:
    """Specimens by figures."""
    rows = [
        Row(Cell(one["name"]), [measured(one["values"].get(item["key"]), item["kind"]) for item in figures], mark(one))
        for one in result["specimens"]
    ]
    return Table(caption, [Column("Specimen", number=False), *map(heading, figures)], rows)


def summary_table(result: Result) -> Table:
    """How good each specimen is, and how long it took."""
    figures = figures_of(result, (*QUALITY, "seconds"))
    seeds = result.get("seeds") or []
    caption = (
        f"Means over {plural(len(seeds), 'seed')}, with 95 % intervals for other seeds below: of each alone. Pairs share their"
        " seeds and texts, and are compared more closely than that."
    )
    if len(seeds) < 2:
        caption = "One seed each: how much another seed would change these numbers is not known."
    return specimens_table(result, figures, caption)


def costs_table(result: Result) -> Table | None:
    """Time, memory and size, each beside the reference."""
    figures = [one for one in result["figures"] if one["kind"] not in QUALITY]
    if not figures:
        return None
    first = result["specimens"][0]
    made = specimens_table(result, figures, f"Below each value how many times that of {first['name']} it is.")

    def beside(cell: Cell, own: Cell) -> Cell:
        pair = cell.value, own.value
        known = all(isinstance(value, int | float) for value in pair)
        under = f"{times(pair[0] / pair[1])} times" if known and pair[1] else ""  # type: ignore[operator]
        return Cell(cell.text, cell.value, "" if cell is own else under)

    reference = made.rows[0].cells
    rows = [
        Row(row.name, [beside(cell, own) for cell, own in zip(row.cells, reference, strict=True)], row.mark)
        for row in made.rows
    ]
    return Table(made.caption, made.columns, rows)


def seeds_table(result: Result) -> Table:
    """Every run; what is counted is the same for all seeds and left out."""
    figures = [one for one in result["figures"] if one["kind"] != "count"]
    rows = [
        Row(
            Cell(one["name"]),
            [
                Cell(str(run["seed"]), run["seed"]),
                *(
                    Cell(figure(run["values"].get(item["key"]), item["kind"]), run["values"].get(item["key"]))
                    for item in figures
                ),
            ],
            mark(one),
        )
        for one in result["specimens"]
        for run in one["runs"]
    ]
    short = [Column(item.get("short") or item["title"], note=item["title"]) for item in figures]
    return Table("Every run by itself.", [Column("Specimen", number=False), Column("Seed"), *short], rows)


def theirs_table(result: Result) -> Table | None:
    """Published figures beside ours."""
    ours = {one["name"]: one for one in result["specimens"]}
    rows = []
    for one in result.get("theirs") or ():
        own = ours.get(one["name"], {})
        for key, value in one["values"].items():
            item = figure_named(result, key)
            mine = (own.get("values") or {}).get(key) or {}
            mean = mine.get("mean")
            ratio = mean / value if mean is not None and value else None
            cells = [Cell(item["title"]), Cell(figure(value, item["kind"]), value), measured(mine, item["kind"])]
            cells += [Cell(times(ratio), ratio), Cell(one.get("source") or "")]
            rows.append(Row(Cell(one["name"]), cells, mark(own)))
    columns = (
        Column("Specimen", number=False),
        Column("Figure", number=False),
        Column("Published"),
        Column("Ours"),
        Column("Ours over theirs"),
        Column("Source", number=False),
    )
    return Table("Published figures beside ours.", columns, rows) if rows else None


# What was done


def varied_table(result: Result) -> Table:
    """What was varied, and its value in every specimen."""
    names = list(dict.fromkeys(name for one in result["specimens"] for name in one.get("settings") or {}))
    rows = [
        Row(
            Cell(one["name"]),
            [Cell(plain((one.get("settings") or {}).get(name))) for name in names],
            mark(one),
        )
        for one in result["specimens"]
    ]
    seeds = ", ".join(map(str, result.get("seeds") or []))
    caption = f"Varied: {result.get('varied') or ', '.join(names) or 'nothing'}; seeds {seeds or NOTHING}."
    return Table(caption, [Column("Specimen", number=False), *(Column(name, number=False) for name in names)], rows)


def order_of(result: Result) -> str:
    """The runs in the order in which they were started."""
    return ", ".join(f"{name} {seed}" for name, seed in result.get("order") or ())


def data_facts(result: Result) -> list[tuple[str, str]]:
    """Task, preset and data, as far as they are known."""
    known = {"task": result.get("task"), "preset": result.get("preset"), **(result.get("data") or {})}
    return [(name.replace("_", " ").capitalize(), plain(value)) for name, value in known.items() if value is not None]


def verdicts(result: Result) -> list[str]:
    """The sentences that stand at the top."""
    given = result.get("verdict") or []
    return [given] if isinstance(given, str) else list(given)
