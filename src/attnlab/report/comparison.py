"""The report of a comparison: tables, charts and texts of its specimens, and the tests in words.

A specimen that leaks is marked with a word in every table and chart, since its numbers must not be believed. The sentences
come from the judge that knows the numbers; here they are only put in their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any

from attnlab.report.document import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Mark,
    Notice,
    Row,
    Section,
    Series,
    Table,
    Text,
    section,
)
from attnlab.report.parts import QUICK, finished, folded, joint_losses, lines, reproduce, spread
from attnlab.report.words import (
    NOTHING,
    chance,
    count,
    figure,
    flat,
    magnitude,
    percent,
    plain,
    plural,
    signed,
    span,
    times,
)

Result = Mapping[str, Any]

LEAKS = "leaks"
QUALITY = (
    "perplexity",
    "loss",
    "share",
    "epoch",
)  # kinds of figures that say how good a specimen is; the others, its cost
PROBES_PER_TABLE = 5


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
    best_first = not one.get("lower_is_better", True)
    short, minor = one.get("short") or "", one["key"].startswith("train_")
    return Column(one["title"] + unit, note=one.get("note") or "", largest_first=best_first, short=short, minor=minor)


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
    return Table("Results", caption, [Column("Specimen", number=False), *map(heading, figures)], rows)


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
    return replace(specimens_table(result, figures, caption), brief=True)


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
    return Table("Time and memory", made.caption, made.columns, rows)


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
    columns = [Column("Specimen", number=False), Column("Seed"), *short]
    return Table("Runs", "Every run by itself.", columns, rows)


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
    return Table("Published figures", "Published figures beside ours.", columns, rows) if rows else None


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
    columns = [Column("Specimen", number=False), *(Column(name, number=False) for name in names)]
    return Table("What was varied", caption, columns, rows)


def order_of(result: Result) -> str:
    """The runs in the order in which they were started."""
    return ", ".join(f"{name} {seed}" for name, seed in result.get("order") or ())


def data_facts(result: Result) -> list[tuple[str, str]]:
    """Task, preset and data, as far as they are known."""
    known = {"task": result.get("task"), "preset": result.get("preset"), **(result.get("data") or {})}
    return [(name.replace("_", " ").capitalize(), plain(value)) for name, value in known.items() if value is not None]


# Pairs


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
            shown += ", invalid"
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
    caption = f"The tests hold {'; '.join(tests)}." if tests else "The tests in numbers."
    return Table("Comparisons", caption, columns, rows)


def by_seed_table(result: Result) -> Table | None:
    """The comparisons by seed, where there are several seeds."""
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
    return Table("Comparisons by seed", "What was compared, by seed.", columns, rows) if rows else None


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
    caption = "All other figures, by seed: described, not tested, and not corrected."
    return Table("Differences by seed", caption, columns, rows)


# Texts and leaks

SAMPLE_FIGURES = (
    ("tokens", "Tokens", "count"),
    ("unknown_share", "Unknown words", "share"),
    ("punctuation_share", "Punctuation", "share"),
    ("distinct_share", "Different words", "share"),
    ("mean_length", "Mean length", "perplexity"),
)
THE_TEXT = "the text itself"


def probes_tables(result: Result) -> list[Table]:
    """The loss and perplexity of the probe sentences, some sentences per table."""
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
    for begin in range(0, most, PROBES_PER_TABLE):
        places = range(begin, min(begin + PROBES_PER_TABLE, most))
        rows = [
            Row(
                Cell(one["name"]),
                [cell(one["probes"][place]) if place < len(one["probes"]) else Cell(NOTHING) for place in places],
                mark(one),
            )
            for one in read
        ]
        columns = [Column("Specimen", number=False), *(Column(f"Sentence {place + 1}") for place in places)]
        caption = "Perplexity of each sentence, and its loss in nats per token below."
        tables.append(Table("Probe sentences", caption, columns, rows))
    return tables


def probe_sentences(result: Result) -> list[tuple[str, str]]:
    """The probe sentences, each with a note on its length."""
    probes: list[Result] = next((one["probes"] for one in result["specimens"] if one.get("probes")), [])

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
    return Table("Samples", "What the samples are made of, in shares of their tokens.", columns, rows)


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
    return Table("Audit", "What the audit of every specimen found.", columns, rows)


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
        "Word by word",
        "Token perplexity of the same sentences, read whole and each word from its prefix alone:"
        " they differ only if a model sees the future.",
        [Column("Specimen", number=False), *map(Column, titles)],
        rows,
    )


# Charts


def loss_charts(result: Result) -> list[Chart]:
    """The loss curves of all specimens over their seeds; for runs told by epoch, accuracy and losses by epoch."""
    trained = [one for one in result["specimens"] if any(run.get("metrics") for run in one["runs"])]
    last = [run["metrics"][-1]["tokens"] for one in trained for run in one["runs"] if run.get("metrics")]
    size, unit = magnitude(max(last, default=0))
    runs = [(titled(one), [run.get("metrics") or [] for run in one["runs"]], bool(one.get("leaks"))) for one in trained]
    return joint_losses(runs, size, unit) or epoch_charts(result)


def epoch_curve(one: Result, key: str, factor: float = 1.0) -> Series:
    """The mean over seeds of a figure, epoch by epoch, in a band from the lowest to the highest; gaps where one has none."""
    rows = list(zip(*(run["epochs"] for run in one["runs"]), strict=True))
    values = [[nan if epoch[key] is None else factor * epoch[key] for epoch in row] for row in rows]
    means, band = [sum(row) / len(row) for row in values], len(one["runs"]) > 1
    return Series(
        one["name"],
        [float(row[0]["epoch"]) for row in rows],
        means,
        [mean if mean != mean else min(row) for mean, row in zip(means, values, strict=True)] if band else (),
        [mean if mean != mean else max(row) for mean, row in zip(means, values, strict=True)] if band else (),
    )


def epoch_charts(result: Result) -> list[Chart]:
    """Validation accuracy, validation loss and training loss over the epochs; none where there is one epoch, or none."""
    trained = [one for one in result["specimens"] if all(len(run.get("epochs") or ()) > 1 for run in one["runs"])]
    over = ", mean and range of the seeds" if any(len(one["runs"]) > 1 for one in trained) else ""
    kinds = (
        ("dev_accuracy", "Validation accuracy", Axis("right labels", "%"), 100.0),
        ("dev_loss", "Validation loss", Axis("loss", "nats per text"), 1.0),
        ("train_loss", "Training loss", Axis("loss", "nats per text"), 1.0),
    )
    return [
        lines(f"{title}{over}", [epoch_curve(one, key, factor) for one in trained], Axis("epoch"), axis, title.lower())
        for key, title, axis, factor in kinds
        if trained
    ]


def pair_charts(result: Result) -> list[Chart]:
    """The comparisons as points with intervals: a chart for each figure, and one for pairs that must not be believed.

    A leak is large, and beside it nobody could see how honest specimens differ.
    """
    names = {one["name"]: titled(one) for one in result["specimens"]}
    leaks = leaking(result)
    groups: dict[tuple[str, bool, bool], list[Result]] = {}
    for one in result.get("comparisons") or ():
        doubted = not one.get("believed", True) or bool({one["a"], one["b"]} & set(leaks))
        named = {**one, "a": names.get(one["a"], one["a"]), "b": names.get(one["b"], one["b"])}
        groups.setdefault((one["figure"], one.get("ratio") is not None, doubted), []).append(named)
    return [
        pair_chart(figure_named(result, key), pairs, ratios, doubted)
        for (key, ratios, doubted), pairs in sorted(groups.items(), key=lambda group: group[0][2])
    ]


def pair_chart(item: Result, pairs: Sequence[Result], ratios: bool, doubted: bool) -> Chart:
    """The pairs of one figure."""
    share = 100.0 if item["kind"] == "share" and not ratios else 1.0
    keys = ("ratio", "ratio_low", "ratio_high") if ratios else ("difference", "low", "high")

    def point(one: Result) -> Mark:
        value, low, high = (None if one.get(key) is None else share * one[key] for key in keys)
        text = times(value) if ratios else signed(one.get("difference"), item["kind"]).removesuffix(" points")
        faint = not one.get("shown")
        return Mark(pair_title(one), nan if value is None else value, text, low, high, faint, doubted)

    points = [point(one) for one in pairs]
    better = "below" if item.get("lower_is_better", True) else "above"
    words = f"{'ratio' if ratios else 'difference'}; {better} {1 if ratios else 0} the first is better"
    title = f"{item['title'][:1].upper()}{item['title'][1:]}, pair by pair, with 95 % intervals"
    if doubted:
        title += "; invalid, since a specimen sees the future"
    label = f"{title}. " + "; ".join(f"{one.name}: {one.text}" for one in points)
    axis = Axis(words, "" if ratios or share == 1 else "points")
    return Chart("points", title, label, axis, marks=points, origin=1.0 if ratios else 0.0)


def leak_chart(result: Result) -> Chart | None:
    """How much of every position's output comes from later tokens, for the specimens that leak."""
    series = [
        Series(titled(one), list(range(1, len(places) + 1)), [100 * (value or 0.0) for value in places], marked=True)
        for one in result["specimens"]
        if one.get("leaks") and (places := (one.get("audit") or {}).get("leak_by_position"))
    ]
    if not series:
        return None
    worst = "; ".join(f"{one.name}: up to {max(one.y):.1f} %" for one in series)
    label = f"Line chart of the leak by position. {worst}"
    x, y = Axis("position in the text"), Axis("moved by later tokens", "% of the output", low=0.0)
    return Chart("lines", "The leak by position", label, x, y, series, height=260)


# The whole report


def said_of_pairs(result: Result) -> list[Text]:
    """The comparisons in words, with a mark on those with a specimen that leaks."""
    leaks = leaking(result)
    return [
        Text([one.get("words") or ""], title=f"{one['a']} against {one['b']}", mark=doubtful(one, leaks))
        for one in result.get("comparisons") or ()
    ]


def compared_section(result: Result) -> list[Section]:
    """The tests: charts, sentences, numbers."""
    table, charts, by_seed = comparisons_table(result), pair_charts(result), by_seed_table(result)
    if table is None:
        return []
    legend = "A filled point: a difference is shown. A hollow one: none is shown. The whiskers are 95 % intervals."
    blocks: list[Block] = [*charts, Text([legend], "quiet"), *said_of_pairs(result), table]
    return section("Compared", *blocks, folded("By seed", by_seed) if by_seed else None)


def texts_sections(result: Result) -> list[Section]:
    """Probe sentences and samples."""
    probes = [f"{line} ({note})" if note else line for line, note in probe_sentences(result)]
    tables = probes_tables(result)
    wrote = [
        Text(one["samples"], "samples", one["name"], mark(one)) for one in result["specimens"] if one.get("samples")
    ]
    return [
        *(section("Probe sentences", Text(probes, "numbered"), *tables) if tables else []),
        *section("Samples", spread(wrote) if wrote else None, quality_table(result)),
    ]


def document(result: Result) -> Document:
    """The whole report."""
    notes = [(one["title"], one["note"]) for one in result["figures"] if one.get("note")]
    meanings = folded("What the figures mean", Facts("What the figures mean", notes)) if notes else None
    leaks, order = leaking(result), order_of(result)
    explained = [Text(one["paragraphs"], title=one.get("title") or "") for one in result.get("explanation") or ()]
    together = f" ({result['jobs']} at a time)" if result.get("jobs") else ""
    more: list[Block] = [varied_table(result)]
    if order:
        more.append(folded(f"Order of the runs{together}", Text([order], "quiet")))
    settings = {name: list(flat(values)) for name, values in (result.get("settings") or {}).items()}
    notices = [QUICK] if result.get("quick") else []
    if leaks:
        verb = "leaks" if len(leaks) == 1 else "leak"
        words = "its outputs depend on later tokens. Perplexities and losses marked “leaks” are invalid."
        notices.insert(0, Notice(f"{', '.join(leaks)} {verb}:", words, "leaks"))
    verdict = result.get("verdict") or []
    question = [result["question"]] if result.get("question") else []
    return Document(
        kind=result["study"],
        title=result["title"],
        lead=[*question, *([verdict] if isinstance(verdict, str) else verdict)],
        sections=[
            *section("Results", summary_table(result), meanings),
            *compared_section(result),
            *section("Training", *loss_charts(result)),
            *texts_sections(result),
            *section("Who sees the future", leak_chart(result), word_by_word_table(result), audit_table(result)),
            *section("What it means", *explained),
            *section("Published figures beside ours", theirs_table(result)),
            *section("By seed", seeds_table(result), paired_table(result)),
            *section("Time and memory", costs_table(result)),
            reproduce(result, [Facts("Data", data_facts(result))], settings, more),
        ],
        notices=notices,
        about=finished(result, "all runs together took"),
        command=result["command"],
        footer="The raw numbers are in result.json.",
    )
