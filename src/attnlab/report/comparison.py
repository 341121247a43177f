"""The report of a comparison: tables, charts and texts of its variants, and the tests in words.

A variant that leaks is marked in every table and chart, because its numbers are invalid. The sentences come from the judge
that knows the numbers; here they are only put in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import nan

from msgspec import structs

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
from attnlab.report.grounds import margin_in_words, registration, tuning_sections, variance_table
from attnlab.report.lengths import lengths_chart
from attnlab.report.parts import (
    QUICK,
    Result,
    cell,
    columns,
    commonest_table,
    folded,
    joint_losses,
    lines,
    named_facts,
    report_of,
    reproduce,
    side_by_side,
    text_column,
)
from attnlab.report.words import NOTHING, capital, count, figure, percent, plain, plural, signed, span, times

_LEAKS = "leaks"
_QUALITY = ("perplexity", "loss", "share", "epoch")  # kinds of figures that measure quality; the others measure cost
_PROBES_PER_TABLE = 5
_SAMPLE_FIGURES = (
    ("tokens", "Tokens", "count"),
    ("unknown_share", "Unknown words", "share"),
    ("punctuation_share", "Punctuation", "share"),
    ("distinct_share", "Different words", "share"),
    ("mean_length", "Mean length", "perplexity"),
)


@dataclass(frozen=True)
class _Figure:
    """A figure measured of every run: its key in `values`, its name, its kind (see `words.figure`), which way is better."""

    key: str
    title: str
    kind: str = ""
    short: str = ""
    note: str = ""
    unit: str = ""
    lower_is_better: bool = True

    @classmethod
    def read(cls, stored: Result) -> _Figure:
        names = {one.name for one in fields(cls)}
        return cls(**{key: value for key, value in stored.items() if key in names and value is not None})

    def column(self) -> Column:
        unit = f" ({self.unit})" if self.unit and self.unit != "%" else ""
        title, best_first = self.title + unit, not self.lower_is_better
        return Column(title, True, self.note, best_first, self.short, minor=self.key.startswith("train_"))


def _figures(result: Result) -> list[_Figure]:
    return [_Figure.read(one) for one in result["figures"]]


def _figure_named(result: Result, key: str) -> _Figure:
    found = (one for one in _figures(result) if one.key == key)
    return next(found, _Figure(key, key.replace("_", " ")))


def _leaking(result: Result) -> list[str]:
    return [one["name"] for one in result["variants"] if one.get("leaks")]


def _mark(one: Result) -> str:
    return _LEAKS if one.get("leaks") else ""


def _row(name: Cell, cells: Sequence[Cell], mark: str = "") -> Row:
    return Row(name, cells, mark, "leaks" if mark else "")


def _titled(one: Result) -> str:
    return f"{one['name']} ({_LEAKS})" if one.get("leaks") else str(one["name"])


# The variants


def _variants_table(
    title: str,
    caption: str,
    titles: Sequence[str | Column],
    variants: Sequence[Result],
    cells: Callable[[Result], Sequence[Cell]],
) -> Table:
    rows = [_row(Cell(one["name"]), cells(one), _mark(one)) for one in variants]
    return Table(title, caption, columns("Variant", *titles), rows)


def _mean_cell(summary: Result | None, kind: str) -> Cell:
    """A mean with its interval, and the value of every seed behind it."""
    if not summary:
        return Cell(NOTHING)
    mean, under = summary.get("mean"), span(summary.get("low"), summary.get("high"), kind)
    each = [figure(value, kind) for value in summary.get("each") or ()]
    return Cell(figure(mean, kind), mean, under, ", ".join(each) if len(set(each)) > 1 else "")


def _means_table(result: Result, title: str, caption: str, figures: Sequence[_Figure]) -> Table:
    def cells(one: Result) -> list[Cell]:
        return [_mean_cell(one["values"].get(item.key), item.kind) for item in figures]

    return _variants_table(title, caption, [item.column() for item in figures], result["variants"], cells)


def _summary_table(result: Result) -> Table:
    """The quality of each variant, and its time."""
    figures = [item for item in _figures(result) if item.kind in (*_QUALITY, "seconds")]
    seeds = result.get("seeds") or []
    caption = (
        f"Means over {plural(len(seeds), 'seed')}, with the 95 % interval for other seeds below, of each variant alone. Pairs"
        " share seeds and texts, so their differences are known more precisely."
    )
    if len(seeds) < 2:
        caption = "One seed each: how much another seed would change these numbers is not known."
    return structs.replace(_means_table(result, "Results", caption, figures), brief=True)


def _costs_table(result: Result) -> Table | None:
    figures = [item for item in _figures(result) if item.kind not in _QUALITY]
    if not figures:
        return None
    caption = f"Below each value, its ratio to that of {result['variants'][0]['name']}."
    made = _means_table(result, "Time and memory", caption, figures)
    reference = made.rows[0].cells

    def beside(one: Cell, own: Cell) -> Cell:
        known = isinstance(one.value, int | float) and isinstance(own.value, int | float) and own.value
        under = f"{times(one.value / own.value)} ×" if known and one is not own else ""  # type: ignore[operator]
        return Cell(one.text, one.value, under)

    rows = [replace(row, cells=list(map(beside, row.cells, reference))) for row in made.rows]
    return structs.replace(made, rows=rows)


def _seeds_table(result: Result) -> Table:
    """Every run; counts are the same for all seeds and left out."""
    figures = [item for item in _figures(result) if item.kind != "count"]
    rows = [
        _row(
            Cell(one["name"]),
            [
                Cell(str(run["seed"]), run["seed"]),
                *(cell(run["values"].get(item.key), item.kind) for item in figures),
            ],
            _mark(one),
        )
        for one in result["variants"]
        for run in one["runs"]
    ]
    titles = [Column(item.short or item.title, note=item.title) for item in figures]
    return Table("Runs", "Every run by itself.", columns("Variant", "Seed", *titles), rows)


def _published_table(result: Result) -> Table | None:
    ours = {one["name"]: one for one in result["variants"]}
    rows = []
    for one in result.get("theirs") or ():
        own = ours.get(one["name"], {})
        for key, value in one["values"].items():
            item = _figure_named(result, key)
            mine = (own.get("values") or {}).get(key) or {}
            mean = mine.get("mean")
            ratio = mean / value if mean is not None and value else None
            cells = [Cell(item.title), cell(value, item.kind), _mean_cell(mine, item.kind)]
            cells += [cell(ratio, "ratio"), Cell(one.get("source") or "")]
            rows.append(_row(Cell(one["name"]), cells, _mark(own)))
    titles = (text_column("Figure"), "Published", "Ours", "Ours over theirs", text_column("Source"))
    caption = "Published figures beside ours."
    return Table("Published figures", caption, columns("Variant", *titles), rows) if rows else None


def _varied_table(result: Result) -> Table:
    names = list(dict.fromkeys(name for one in result["variants"] for name in one.get("settings") or {}))
    seeds = ", ".join(map(str, result.get("seeds") or []))
    caption = f"Varied: {result.get('varied') or ', '.join(names) or 'nothing'}; seeds {seeds or NOTHING}."

    def cells(one: Result) -> list[Cell]:
        return [Cell(plain((one.get("settings") or {}).get(name))) for name in names]

    return _variants_table("What was varied", caption, [*map(text_column, names)], result["variants"], cells)


# Pairs


def _pair_mark(one: Result, leaks: Sequence[str]) -> str:
    """The words beside a pair of which one leaks, or both."""
    named = [name for name in (one["a"], one["b"]) if name in leaks]
    return f"{' and '.join(named)} {_LEAKS if len(named) < 2 else 'leak'}" if named else ""


def _pair_title(one: Result) -> str:
    return f"{one['a']} over {one['b']}" if one.get("ratio") is not None else f"{one['a']} minus {one['b']}"


def _difference_cell(one: Result, kind: str) -> Cell:
    value = one.get("difference")
    return Cell(signed(value, kind), value, span(one.get("low"), one.get("high"), kind, sign=True))


def _effect_cell(one: Result, kind: str) -> Cell:
    if one.get("ratio") is None:
        return _difference_cell(one, kind)
    low, high = one.get("ratio_low"), one.get("ratio_high")
    known = low is not None and high is not None
    return Cell(times(one["ratio"]), one["ratio"], f"{times(low)} to {times(high)}" if known else "")


def _level(pairs: Sequence[Result]) -> str:
    """The level of the intervals of pairs, such as 98.3 %."""
    return f"{100 * min(one.get('level', 0.95) for one in pairs):.3g} %"


def _equivalence_cell(same: Result | None) -> Cell:
    if same is None:
        return Cell(NOTHING)
    return Cell("yes" if same["p"] < same["alpha"] else "not shown", same["p"], f"p = {same['p']:.2g}")


def _tests_table(result: Result) -> Table | None:
    pairs, leaks = result.get("comparisons") or [], _leaking(result)
    if not pairs:
        return None
    corrected = any(one.get("adjusted") is not None for one in pairs)
    margin = (result.get("registration") or {}).get("margin")
    rows = []
    for one in pairs:
        item = _figure_named(result, one["figure"])
        tested = ("p", "adjusted") if corrected else ("p",)
        shown = ("yes" if one.get("shown") else "no") + ("" if one.get("valid", True) else ", invalid")
        cells = [Cell(item.title), _effect_cell(one, item.kind)]
        cells += [*(cell(one.get(key), "p") for key in tested), Cell(shown)]
        if margin:
            cells.append(_equivalence_cell(one.get("equivalence")))
        rows.append(_row(Cell(_pair_title(one)), cells, _pair_mark(one, leaks)))
    titles = columns(
        "Compared",
        text_column("Figure"),
        Column("Ratio or difference", note=f"with its {_level(pairs)} interval"),
        "p",
        *([Column("p after Holm", note="corrected for the number of comparisons")] if corrected else []),
        text_column("Difference shown"),
        *([text_column(f"Equivalent within {margin_in_words(result)}")] if margin else []),
    )
    tests = dict.fromkeys(one["test"] for one in pairs if one.get("test"))
    caption = f"The tests hold {'; '.join(tests)}." if tests else "The tests in numbers."
    return Table("Comparisons", caption, titles, rows)


def _tests_by_seed_table(result: Result) -> Table | None:
    """The compared figures by seed, where there are several seeds."""
    leaks, rows = _leaking(result), []
    for one in result.get("comparisons") or ():
        item, seeds = _figure_named(result, one["figure"]), one.get("by_seed") or ()
        for line in seeds if len(seeds) > 1 else ():
            cells = [Cell(item.title), Cell(str(line["seed"]), line["seed"])]
            cells += [cell(line.get("a"), item.kind), cell(line.get("b"), item.kind)]
            cells.append(Cell(signed(line.get("difference"), item.kind), line.get("difference")))
            rows.append(_row(Cell(f"{one['a']} minus {one['b']}"), cells, _pair_mark(one, leaks)))
    titles = columns("Compared", text_column("Figure"), "Seed", "First", "Second", "First minus second")
    return Table("Comparisons by seed", "What was compared, by seed.", titles, rows) if rows else None


def _differences_table(result: Result) -> Table | None:
    """The differences of all other figures, without tests."""
    leaks, rows = _leaking(result), []
    for one in result.get("paired") or ():
        item = _figure_named(result, one["figure"])
        cells = [Cell(item.title), _difference_cell(one, item.kind), cell(one.get("ratio"), "ratio")]
        rows.append(_row(Cell(f"{one['a']} minus {one['b']}"), cells, _pair_mark(one, leaks)))
    caption = "All other figures, by seed: described, not tested, and not corrected."
    titles = columns("Compared", text_column("Figure"), "Difference", "Ratio")
    return Table("Differences by seed", caption, titles, rows) if rows else None


def _pair_charts(result: Result) -> list[Chart]:
    """The comparisons as points with intervals: one chart per figure, and one for pairs with a variant that leaks.

    A leak is large: on the same axis, the differences between honest variants would be invisible.
    """
    names = {one["name"]: _titled(one) for one in result["variants"]}
    leaks = _leaking(result)
    groups: dict[tuple[str, bool, bool], list[Result]] = {}
    for one in result.get("comparisons") or ():
        marked = not one.get("valid", True) or bool({one["a"], one["b"]} & set(leaks))
        named = {**one, "a": names.get(one["a"], one["a"]), "b": names.get(one["b"], one["b"])}
        groups.setdefault((one["figure"], one.get("ratio") is not None, marked), []).append(named)
    return [
        _pair_chart(_figure_named(result, key), pairs, ratios, marked)
        for (key, ratios, marked), pairs in sorted(groups.items(), key=lambda group: group[0][2])
    ]


def _pair_chart(item: _Figure, pairs: Sequence[Result], ratios: bool, marked: bool) -> Chart:
    share = 100.0 if item.kind == "share" and not ratios else 1.0
    keys = ("ratio", "ratio_low", "ratio_high") if ratios else ("difference", "low", "high")

    def point(one: Result) -> Mark:
        value, low, high = (None if one.get(key) is None else share * one[key] for key in keys)
        text = times(value) if ratios else signed(one.get("difference"), item.kind).removesuffix(" points")
        faint = not one.get("shown")
        return Mark(_pair_title(one), nan if value is None else value, text, low, high, faint, marked)

    points = [point(one) for one in pairs]
    better = "below" if item.lower_is_better else "above"
    words = f"{'ratio' if ratios else 'difference'}; {better} {1 if ratios else 0} the first is better"
    title = f"{capital(item.title)}, pair by pair, with {_level(pairs)} intervals"
    if marked:  # a leak does not reach every figure
        valid = all(one.get("valid", True) for one in pairs)
        title += "; with a variant that sees the future" if valid else "; invalid, since a variant sees the future"
    label = f"{title}. " + "; ".join(f"{one.name}: {one.text}" for one in points)
    axis = Axis(words, "" if ratios or share == 1 else "points")
    return Chart("points", title, label, axis, marks=points, origin=1.0 if ratios else 0.0)


def _pair_heading(one: Result) -> str:
    settings = f", {one['settings']}" if one.get("settings") else ""
    return f"{one['a']} against {one['b']}{settings}"


def _compared_section(result: Result) -> list[Section]:
    table, by_seed, leaks = _tests_table(result), _tests_by_seed_table(result), _leaking(result)
    if table is None:
        return []
    together = " Those of all pairs hold together with 95 %." if len(result["comparisons"]) > 1 else ""
    legend = (
        "A filled point: a difference is shown. A hollow one: none is shown. The whiskers are"
        f" {_level(result['comparisons'])} intervals.{together}"
    )
    sentences = [
        Text([capital(one.get("words") or "")], title=_pair_heading(one), mark=_pair_mark(one, leaks))
        for one in result["comparisons"]
    ]
    blocks: list[Block] = [*_pair_charts(result), Text([legend], "quiet"), *sentences, table]
    return section("Compared", *blocks, folded("By seed", by_seed) if by_seed else None)


# Texts


def _probe_cell(probe: Result) -> Cell:
    each = [figure(value, "loss") for value in probe.get("losses") or ()]
    under, behind = f"loss {figure(probe.get('loss'), 'loss')}", "loss " + ", ".join(each) if len(each) > 1 else ""
    return replace(cell(probe.get("perplexity"), "perplexity"), under=under, each=behind)


def _probes_tables(variants: Sequence[Result], key: str = "probes", how: str = "") -> list[Table]:
    """The loss and perplexity of the probe sentences, a few sentences per table."""
    most = max((len(one[key]) for one in variants), default=0)
    caption = f"Perplexity of each sentence, and its loss in nats per token below{how}."

    def table(places: range) -> Table:
        def cells(one: Result) -> list[Cell]:
            probes = one[key]
            return [_probe_cell(probes[place]) if place < len(probes) else Cell(NOTHING) for place in places]

        titles = [f"Sentence {place + 1}" for place in places]
        return _variants_table("Probe sentences", caption, titles, variants, cells)

    return [table(range(begin, min(begin + _PROBES_PER_TABLE, most))) for begin in range(0, most, _PROBES_PER_TABLE)]


def _probe_line(probe: Result) -> str:
    if probe.get("tokens") is None:
        return str(probe["sentence"])
    unknown = f", {count(probe['unknown'])} unknown" if probe.get("unknown") else ""
    return f"{probe['sentence']} ({plural(probe['tokens'], 'token')}{unknown})"


def _quality_table(result: Result) -> Table | None:
    wrote = [
        (one["name"], one["sample_quality"], _mark(one)) for one in result["variants"] if one.get("sample_quality")
    ]
    if not wrote:
        return None
    if result.get("text_quality"):
        wrote.append(("the text itself", result["text_quality"], ""))
    rows = [
        _row(Cell(name), [cell(quality.get(key), kind) for key, _, kind in _SAMPLE_FIGURES], mark)
        for name, quality, mark in wrote
    ]
    titles = columns("Written by", *(title for _, title, _ in _SAMPLE_FIGURES))
    return Table("Samples", "What the samples are made of, in shares of their tokens.", titles, rows)


def _answers_table(result: Result) -> Table | None:
    """The most common answers of every variant, if questions were asked."""
    rows = [{"name": one["name"], **one["exam"]} for one in result["variants"] if one.get("exam")]
    return commonest_table(rows, "the first seed of each")


def _texts_sections(result: Result) -> list[Section]:
    read = [one for one in result["variants"] if one.get("probes")]
    probes = [_probe_line(probe) for probe in read[0]["probes"]] if read else []
    spaced = [one for one in read if one.get("spaced_probes")]
    unknown = sum(probe["unknown"] for probe in spaced[0]["spaced_probes"]) if spaced else 0
    how = (
        "; words split at spaces only, so that a comma or a full stop makes another word of the one before it"
        f" ({plural(unknown, 'word')} unknown): the course reports do not say how they split"
    )
    samples = [
        Text(one["samples"], "samples", one["name"], _mark(one)) for one in result["variants"] if one.get("samples")
    ]
    return [
        *(
            section(
                "Probe sentences",
                Text(probes, "numbered"),
                *_probes_tables(read),
                *(_probes_tables(spaced, "spaced_probes", how) if spaced else []),
            )
            if read
            else []
        ),
        *section("Samples", side_by_side(samples) if samples else None, _quality_table(result)),
    ]


# Leaks


def _audit_table(result: Result) -> Table | None:
    audited = [one for one in result["variants"] if one.get("audit")]

    def cells(one: Result) -> list[Cell]:
        audit, leak = one["audit"], one["audit"].get("causal_leak")
        size = percent(leak) if leak is not None and leak >= 5e-4 else f"{leak:.1e}" if leak else "0"
        words = [f"declared: {audit['defect']}"] if audit.get("defect") else []
        words += [f"{name}: {said}" for name, said in (audit.get("faults") or {}).items()]
        said = "; ".join(words) or "no fault found"
        return [Cell(audit.get("verdict", NOTHING)), Cell(size if leak is not None else NOTHING, leak), Cell(said)]

    largest = Column("Largest leak", note="share of an output that later tokens move")
    titles = (text_column("Audit"), largest, text_column("In words"))
    caption = "What the audit of every variant found."
    return _variants_table("Audit", caption, titles, audited, cells) if audited else None


def _word_by_word_table(result: Result) -> Table | None:
    read = [one for one in result["variants"] if one.get("word_by_word")]

    def cells(one: Result) -> list[Cell]:
        both = one["word_by_word"]
        whole, apart = both.get("whole"), both.get("word_by_word")
        ratio = apart / whole if whole and apart is not None else None
        values = [cell(value, "perplexity") for value in (whole, apart)]
        return [cell(both["sentences"], "count"), *values, cell(ratio, "ratio")]

    caption = (
        "Token perplexity of the same sentences, read whole and each word from its prefix alone:"
        " they differ only if a model sees the future."
    )
    titles = ("Sentences", "Read whole", "Word by word", "Ratio")
    return _variants_table("Word by word", caption, titles, read, cells) if read else None


def _leak_chart(result: Result) -> Chart | None:
    """How much of every position's output comes from later tokens, for the variants that leak."""
    series = [
        Series(_titled(one), list(range(1, len(places) + 1)), [100 * (value or 0.0) for value in places], marked=True)
        for one in result["variants"]
        if one.get("leaks") and (places := (one.get("audit") or {}).get("leak_by_position"))
    ]
    if not series:
        return None
    worst = "; ".join(f"{one.name}: up to {max(one.y):.1f} %" for one in series)
    label = f"Line chart of the leak by position. {worst}"
    x, y = Axis("position in the text"), Axis("moved by later tokens", "% of the output", low=0.0)
    return Chart("lines", "The leak by position", label, x, y, series, height=260)


# Training


def _loss_charts(result: Result) -> list[Chart]:
    """The loss curves of all variants over their seeds; for runs recorded by epoch, accuracy and losses by epoch."""
    runs = [
        (_titled(one), [run.get("metrics") or [] for run in one["runs"]], bool(one.get("leaks")))
        for one in result["variants"]
    ]
    return joint_losses(runs) or epoch_charts(result)


def _epoch_curve(one: Result, key: str, factor: float) -> Series:
    """The mean over seeds of a figure by epoch, in a band from the lowest to the highest; gaps where a value is missing."""
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
    """Validation accuracy, validation loss and training loss by epoch; none where there is at most one epoch."""
    trained = [one for one in result["variants"] if all(len(run.get("epochs") or ()) > 1 for run in one["runs"])]
    over = ", mean and range of the seeds" if any(len(one["runs"]) > 1 for one in trained) else ""
    kinds = (
        ("dev_accuracy", "Validation accuracy", Axis("right labels", "%"), 100.0),
        ("dev_loss", "Validation loss", Axis("loss", "nats per text"), 1.0),
        ("train_loss", "Training loss", Axis("loss", "nats per text"), 1.0),
    )
    return [
        lines(f"{title}{over}", [_epoch_curve(one, key, factor) for one in trained], Axis("epoch"), axis, title.lower())
        for key, title, axis, factor in kinds
        if trained
    ]


# The time of attention


def _attention_blocks(result: Result) -> list[Block]:
    """The time of attention alone, fused and written out, and what it says about training times."""
    found = result.get("attention") or []
    if not found:
        return []
    marks = {one["name"]: _mark(one) for one in result["variants"]}
    first = found[0]
    rows = [
        _row(
            Cell(one["name"]),
            [
                Cell("fused" if one["path"] == "fast" else "written out"),
                Cell(f"{1000 * one['seconds']:.2f} ms", one["seconds"]),
                Cell(times(one["ratio"]), one["ratio"], f"{times(one['low'])} to {times(one['high'])}"),
                cell(one["kept"], "bytes"),
            ],
            marks.get(one["name"], ""),
        )
        for one in found
    ]
    caption = (
        f"One layer, forward and backward, on {plural(first['texts'], 'text')} of {plural(first['tokens'], 'token')} with one"
        f" thread, all in turns. Ratios to {first['name']}: median, smallest and largest."
    )
    kept = Column("Kept for the backward pass", short="kept", note="beyond inputs and parameters")
    titles = columns("Variant", text_column("Path"), "Time", f"Over {first['name']}", kept)
    slow = [
        f"{one['name']} written out takes {times(one['ratio'])} times as long as {first['name']} and keeps"
        f" {figure(one['kept'], 'bytes')} instead of {figure(first['kept'], 'bytes')}: every pair of tokens has its numbers"
        " in memory."
        + "".join(
            f" Fused, it takes {times(other['ratio'])} times as long."
            for other in found
            if other["name"] == one["name"] and other["path"] == "fast"
        )
        for one in found
        if one["path"] != "fast" and one["name"] != first["name"]
    ]
    return [Table("Attention alone", caption, titles, rows), *([Text(slow)] if slow else [])]


# The whole report


def _notices(result: Result) -> list[Notice]:
    leaks, quick = _leaking(result), [QUICK] if result.get("quick") else []
    verb = "leaks" if len(leaks) == 1 else "leak"
    words = "its outputs depend on later tokens. Perplexities and losses marked “leaks” are invalid."
    return [*([Notice(f"{', '.join(leaks)} {verb}:", words, "leaks")] if leaks else []), *quick]


def _reproduce(result: Result) -> Section:
    known = {"task": result.get("task"), "preset": result.get("preset"), **(result.get("data") or {})}
    data = Facts("Data", named_facts({name: value for name, value in known.items() if value is not None}))
    together = f" ({result['jobs']} at a time)" if result.get("jobs") else ""
    order = ", ".join(f"{name} {seed}" for name, seed in result.get("order") or ())
    more: list[Block] = [_varied_table(result)]
    if order:
        more.append(folded(f"Order of the runs{together}", Text([order], "quiet")))
    fixed = registration(result)
    return reproduce(result, data, result.get("settings"), [*([fixed] if fixed else []), *more])


def document(result: Result) -> Document:
    """The whole report."""
    tested = _figures(result)[0]
    notes = [(one.title, one.note) for one in _figures(result) if one.note]
    meanings = folded("What the figures mean", Facts("What the figures mean", notes)) if notes else None
    explained = [Text(one["paragraphs"], title=one.get("title") or "") for one in result.get("explanation") or ()]
    verdict = result.get("verdict") or []
    question = [result["question"]] if result.get("question") else []
    return report_of(
        result["study"],
        result,
        [*question, *([verdict] if isinstance(verdict, str) else verdict)],
        [
            *section("Results", _summary_table(result), _answers_table(result), meanings),
            *_compared_section(result),
            *tuning_sections(result, tested.title, tested.kind),
            *section("Variation between runs", variance_table(result, tested.kind)),
            *section("Training", *_loss_charts(result)),
            *_texts_sections(result),
            *section("Who sees the future", _leak_chart(result), _word_by_word_table(result), _audit_table(result)),
            *section("What it means", *explained),
            *section("Published figures beside ours", _published_table(result)),
            *section("By seed", _seeds_table(result), _differences_table(result)),
            *section("Time and memory", _costs_table(result), *_attention_blocks(result)),
            *section("Sentence lengths", lengths_chart(result["lengths"]) if result.get("lengths") else None),
            _reproduce(result),
        ],
        _notices(result),
        "the compared runs took",
    )
