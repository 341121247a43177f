"""A comparison as tables: what page, Markdown and terminal show of it, made once.

Pure functions from a result (plain data, as `result.json` of a comparison holds it) to tables. A specimen that leaks is
marked in every one of them with a word, since its numbers must not be believed; so is a pair with such a specimen in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnlab.report.tables import Cell, Column, Row, Table
from attnlab.report.words import NOTHING, chance, count, figure, percent, plural, signed, span, times

Result = Mapping[str, Any]

LEAKS = "leaks"
QUALITY = (
    "perplexity",
    "loss",
    "share",
)  # kinds of figures that say how good a specimen is; the others say what it costs
PROBES_A_TABLE = 5
SAMPLE_FIGURES = (
    ("tokens", "Tokens", "count"),
    ("unknown_share", "Unknown words", "share"),
    ("punctuation_share", "Punctuation", "share"),
    ("distinct_share", "Different words", "share"),
    ("mean_length", "Mean length", "perplexity"),
)
THE_TEXT = "the text itself"


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
    caption = f"Means over {plural(len(seeds), 'seed')}, with 95 % intervals for other seeds below."
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
    """Every run."""
    figures = figures_of(result)
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


# The comparisons


def doubtful(one: Result, leaks: Sequence[str]) -> str:
    """The word beside a pair of which one leaks; a figure that no leak can help is left unmarked."""
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


def by_seed_tables(result: Result) -> Iterator[tuple[str, Table]]:
    """The comparisons seed by seed, each with its title."""
    leaks = leaking(result)
    for one in result.get("comparisons") or ():
        item = figure_named(result, one["figure"])
        rows = [
            Row(
                Cell(str(line["seed"]), line["seed"]),
                [
                    Cell(figure(line.get("a"), item["kind"]), line.get("a")),
                    Cell(figure(line.get("b"), item["kind"]), line.get("b")),
                    Cell(signed(line.get("difference"), item["kind"]), line.get("difference")),
                ],
            )
            for line in one.get("by_seed") or ()
        ]
        names = [f"{name} ({LEAKS})" if name in leaks else name for name in (one["a"], one["b"])]
        if rows:
            title = f"{item['title']} of {names[0]} and {names[1]}"
            yield (
                title,
                Table(f"{title}, seed by seed", [Column("Seed"), *map(Column, names), Column("A minus B")], rows),
            )


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


# What they write and how they read


def probes_tables(result: Result) -> list[Table]:
    """The loss and perplexity of the probe sentences, some sentences a table."""
    read = [one for one in result["specimens"] if one.get("probes")]
    most = max((len(one["probes"]) for one in read), default=0)

    def cell(probe: Result) -> Cell:
        each = [figure(value, "loss") for value in probe.get("losses") or ()]
        return Cell(
            figure(probe.get("perplexity"), "perplexity"),
            probe.get("perplexity"),
            f"loss {figure(probe.get('loss'), 'loss')}",
            "loss " + ", ".join(each) if len(each) > 1 else "",
        )

    tables = []
    for begin in range(0, most, PROBES_A_TABLE):
        places = range(begin, min(begin + PROBES_A_TABLE, most))
        rows = [
            Row(
                Cell(one["name"]),
                [cell(one["probes"][place]) if place < len(one["probes"]) else Cell(NOTHING) for place in places],
                mark(one),
            )
            for one in read
        ]
        columns = [Column("Specimen", number=False), *(Column(f"Sentence {place + 1}") for place in places)]
        tables.append(Table("Perplexity of each sentence, and its loss in nats a token below.", columns, rows))
    return tables


def probe_sentences(result: Result) -> list[tuple[str, str]]:
    """The probe sentences, each with a note on its length."""
    probes = next((one["probes"] for one in result["specimens"] if one.get("probes")), [])

    def note(probe: Result) -> str:
        known = probe.get("tokens") is not None
        unknown = f", {count(probe['unknown'])} unknown" if probe.get("unknown") else ""
        return f"{plural(probe['tokens'], 'token')}{unknown}" if known else ""

    return [(probe["sentence"], note(probe)) for probe in probes]


def quality_table(result: Result) -> Table | None:
    """What the samples are made of, beside the text that was read."""
    wrote = [one for one in result["specimens"] if one.get("sample_quality")]
    if not wrote:
        return None

    def cells(quality: Result) -> list[Cell]:
        return [Cell(figure(quality.get(key), kind), quality.get(key)) for key, _, kind in SAMPLE_FIGURES]

    rows = [Row(Cell(one["name"]), cells(one["sample_quality"]), mark(one)) for one in wrote]
    if result.get("text_quality"):
        rows.append(Row(Cell(THE_TEXT), cells(result["text_quality"])))
    columns = [Column("Written by", number=False), *(Column(title) for _, title, _ in SAMPLE_FIGURES)]
    return Table("What the samples are made of, in shares of their tokens.", columns, rows)


# The leak


def audit_table(result: Result) -> Table | None:
    """What the audit found."""
    audited = [one for one in result["specimens"] if one.get("audit")]
    if not audited:
        return None

    def says(audit: Result) -> str:
        faults = "; ".join(f"{name}: {words}" for name, words in (audit.get("faults") or {}).items())
        declared = f"declared: {audit['defect']}" if audit.get("defect") else ""
        return "; ".join(part for part in (declared, faults) if part) or "no fault found"

    rows = []
    for one in audited:
        audit, leak = one["audit"], one["audit"].get("causal_leak")
        size = percent(leak) if leak is not None and leak >= 5e-4 else figure(leak, "") if leak else "0"
        cells = [Cell(audit.get("verdict", NOTHING)), Cell(size if leak is not None else NOTHING, leak)]
        rows.append(Row(Cell(one["name"]), [*cells, Cell(says(audit))], mark(one)))
    columns = (
        Column("Specimen", number=False),
        Column("Audit", number=False),
        Column("Largest leak", note="share of an output that later tokens move"),
        Column("In words", number=False),
    )
    return Table("Every specimen was audited before it was trained.", columns, rows)


def word_by_word_table(result: Result) -> Table | None:
    """The perplexity of the same sentences read whole and word by word."""
    read = [one for one in result["specimens"] if one.get("word_by_word")]
    if not read:
        return None
    rows = []
    for one in read:
        both = one["word_by_word"]
        whole, apart = both.get("whole"), both.get("word_by_word")
        ratio = apart / whole if whole and apart is not None else None
        values = [Cell(figure(value, "perplexity"), value) for value in (whole, apart)]
        cells = [Cell(count(both["sentences"]), both["sentences"]), *values, Cell(times(ratio), ratio)]
        rows.append(Row(Cell(one["name"]), cells, mark(one)))
    titles = ("Sentences", "Read whole", "Word by word", "Ratio")
    return Table(
        "Token perplexity of the same sentences, read whole and each word from its prefix alone:"
        " they differ only if a model sees the future.",
        [Column("Specimen", number=False), *map(Column, titles)],
        rows,
    )


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
