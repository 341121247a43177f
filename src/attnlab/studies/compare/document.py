"""The report of a comparison: tables, charts and texts of its variants, and the tests in words.

A variant that leaks is marked in every table and chart, because its numbers are invalid. The sentences come from the judge
that knows the numbers; here they are only put in their places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from attnlab.lm.exams import Scored
from attnlab.measure.audit.leaks import LIMIT
from attnlab.report import document as blocks
from attnlab.report import parts, words
from attnlab.report.document import Axis, Cell, Chart, Column, Section, Table, Text, section
from attnlab.studies.compare.plan import ALPHA, Plan
from attnlab.studies.compare.records import (
    Comparison,
    ComparisonResult,
    Difference,
    Figure,
    LongTexts,
    ProbeOverSeeds,
    Spread,
    VariantResult,
)
from attnlab.studies.compare.variants import Tuned, Tuning

_LEAKS = "leaks"
_QUALITY = ("perplexity", "loss", "share")  # kinds of figures that measure quality; the others measure cost
_SPLIT_AT_SPACES = (
    "; words split at spaces only, so that a comma or a full stop makes another word of the one before it ({} unknown):"
    " the course reports do not say how they split"
)


def document(plan: Plan, result: ComparisonResult) -> blocks.Document:
    """The whole report."""
    notes = [(figure.title, figure.note) for figure in result.figures if figure.note]
    curves = [(_titled(variant), [run.curve for run in variant.runs], variant.leaks) for variant in result.variants]
    explained = [
        Text(paragraphs, title=f"What the leak of {name} is worth") for name, paragraphs in result.explanation.items()
    ]
    return parts.report_of(
        result.kind,
        result,
        [*([plan.question] if plan.question else []), *result.verdict],
        [
            *section(
                "Results",
                _summary_table(result, len(plan.seeds)),
                _answers_table(result),
                parts.folded("What the figures mean", blocks.Facts("What the figures mean", notes)),
            ),
            *_compared_section(plan, result),
            *_long_texts_section(plan, result),
            *(_tuning_section(result.tuning, result.figures[0]) if result.tuning else []),
            *section("Training", *parts.joint_losses(curves), _validation_chart(result)),
            *_texts_sections(result),
            *section("Who sees the future", _leak_chart(result), _word_by_word_table(result), _audit_table(result)),
            *section("What it means", *explained),
            *section("Published figures beside ours", _published_table(plan, result)),
            *section("By seed", _seeds_table(result), _differences_table(result)),
            *section("Time and memory", _costs_table(result)),
            *section("Sentence lengths", parts.lengths_chart(result.lengths) if result.lengths else None),
            _reproduce(plan, result),
        ],
        [*_leak_notice(result.leaking), *([parts.QUICK] if plan.quick else [])],
        "the compared runs took",
    )


def _validation_chart(result: ComparisonResult) -> Chart | None:
    """The validation loss of every variant by step, where there is one."""
    series = [
        parts.joint_curve(_titled(variant), [run.dev_curve for run in variant.runs], 1.0, variant.leaks, by_step=True)
        for variant in result.variants
    ]
    shown = [line for line in series if len(line.y) > 1]
    axes = Axis("step"), Axis("loss", "nats per token")
    return parts.lines("Validation loss by step", shown, *axes, "the validation loss") if shown else None


def _leak_notice(leaks: Sequence[str]) -> list[blocks.Notice]:
    verb = "leaks" if len(leaks) == 1 else "leak"
    text = "its outputs depend on later tokens or other texts. Perplexities and losses marked “leaks” are invalid."
    return [blocks.Notice(f"{', '.join(leaks)} {verb}:", text, "leaks")] if leaks else []


# The variants


def _column(of: Figure) -> Column:
    return Column(of.title, True, of.note, not of.lower_is_better, of.short, minor=of.key.startswith("train_"))


def _mark(variant: VariantResult) -> str:
    return _LEAKS if variant.leaks else ""


def _row(name: str, cells: Sequence[Cell], mark: str = "") -> blocks.Row:
    return blocks.Row(Cell(name), cells, mark, "leaks" if mark else "")


def _titled(variant: VariantResult) -> str:
    return f"{variant.name} ({_LEAKS})" if variant.leaks else variant.name


def _variants_table(
    title: str,
    caption: str,
    titles: Sequence[str | Column],
    variants: Sequence[VariantResult],
    cells: Callable[[VariantResult], Sequence[Cell]],
    *,
    brief: bool = False,
) -> Table:
    rows = [_row(variant.name, cells(variant), _mark(variant)) for variant in variants]
    return Table(title, caption, parts.columns("Variant", *titles), rows, brief=brief)


def _mean_cell(spread: Spread | None, kind: str) -> Cell:
    """A mean with its interval, and the value of every seed behind it."""
    if spread is None:
        return Cell(words.NOTHING)
    mean, low, high = spread.mean, spread.low, spread.high
    each = [words.figure(value, kind) for value in spread.each]
    behind = ", ".join(each) if len(set(each)) > 1 else ""
    return Cell(words.figure(mean, kind), mean, words.span(low, high, kind), behind, low=low, high=high)


def _summary_table(result: ComparisonResult, seeds: int) -> Table:
    """The quality of each variant, and its time."""
    shown = [figure for figure in result.figures if figure.kind in (*_QUALITY, "seconds")]
    lost = any(len(variant.runs) < seeds for variant in result.variants)
    caption = (
        f"Means over {'up to ' * lost}{words.plural(seeds, 'seed')}, of each variant alone, with 95 % intervals below: for"
        " other seeds and other items; of loss and time for other seeds. Pairs share both, so their differences are known"
        " more precisely."
    )
    if seeds < 2:
        caption = "One seed each, with 95 % intervals for other items: what another seed would change is not known."

    def cells(variant: VariantResult) -> list[Cell]:
        return [_mean_cell(variant.values.get(figure.key), figure.kind) for figure in shown]

    return _variants_table("Results", caption, list(map(_column, shown)), result.variants, cells, brief=True)


def _costs_table(result: ComparisonResult) -> Table | None:
    shown = [figure for figure in result.figures if figure.kind not in _QUALITY]
    first = result.variants[0]

    def cost(variant: VariantResult, of: Figure) -> Cell:
        own, reference = variant.values[of.key].mean, first.values[of.key].mean
        ratio = own / reference if variant is not first and own is not None and reference else None
        return Cell(words.figure(own, of.kind), own, "" if ratio is None else f"{words.times(ratio)} ×")

    def cells(variant: VariantResult) -> list[Cell]:
        return [cost(variant, of) for of in shown]

    caption = f"Below each value, its ratio to that of {first.name}."
    return _variants_table("Time and memory", caption, list(map(_column, shown)), result.variants, cells)


def _seeds_table(result: ComparisonResult) -> Table:
    """Every run; counts are the same for all seeds and left out."""
    shown = [of for of in result.figures if of.kind != "count" and of.key in result.variants[0].runs[0].values]
    rows = []
    for variant in result.variants:
        for run in variant.runs:
            values = (parts.cell(run.values.get(of.key), of.kind) for of in shown)
            rows.append(_row(variant.name, [Cell(str(run.seed), run.seed), *values], _mark(variant)))
    titles = [Column(of.short or of.title, note=of.title) for of in shown]
    return Table("Runs", "Every run by itself.", parts.columns("Variant", "Seed", *titles), rows)


def _published_table(plan: Plan, result: ComparisonResult) -> Table | None:
    rows = []
    for variant in result.variants:
        for key, value in result.published.get(variant.name, {}).items():
            of, own = result.figure(key), variant.values.get(key)
            ratio = own.mean / value if own and own.mean is not None and value else None
            cells = [Cell(of.title), parts.cell(value, of.kind), _mean_cell(own, of.kind), parts.cell(ratio, "ratio")]
            rows.append(_row(variant.name, cells, _mark(variant)))
    titles = parts.columns("Variant", parts.text_column("Figure"), "Published", "Ours", "Ours over published")
    return Table("Published figures", f"Published in: {plan.source}.", titles, rows) if rows else None


def _answers_table(result: ComparisonResult) -> Table | None:
    """The most common answers of every variant, if questions were asked."""
    rows = [
        Scored(name=variant.name, kind="model", **vars(variant.exam)) for variant in result.variants if variant.exam
    ]
    return parts.commonest_table(rows, "the first seed of each") if rows else None


# Pairs


def _pair_mark(pair: Comparison | Difference, leaks: Sequence[str]) -> str:
    """The words beside a pair of which one leaks, or both."""
    named = [name for name in (pair.a, pair.b) if name in leaks]
    return f"{' and '.join(named)} {_LEAKS if len(named) < 2 else 'leak'}" if named else ""


def _effect_cell(pair: Comparison, kind: str) -> Cell:
    effect = pair.effect
    if effect.kind == "difference":
        return parts.difference_cell(effect.value, effect.low, effect.high, kind)
    known = effect.low is not None and effect.high is not None
    interval = f"{words.times(effect.low)} to {words.times(effect.high)}" if known else ""
    return Cell(words.times(effect.value), effect.value, interval, low=effect.low, high=effect.high)


def _pair_title(pair: Comparison, a: str, b: str) -> str:
    return f"{a} over {b}" if pair.effect.kind == "ratio" else f"{a} minus {b}"


def _level(pairs: Sequence[Comparison]) -> str:
    """The level of the intervals of pairs, such as 98.3 %."""
    return f"{100 * min(pair.level for pair in pairs):.3g} %"


def _margin_in_words(margin: float, tested: Figure) -> str:
    """The margin of equivalence: in points of right answers, or as a share of the perplexity."""
    return f"{100 * margin:g} {'points' if tested.kind == 'share' else '%'}"


def _tests_table(
    plan: Plan, result: ComparisonResult, pairs: Sequence[Comparison], name: str = "Comparisons", of: str = ""
) -> Table:
    tested = result.figures[0]
    corrected = any(pair.adjusted is not None for pair in pairs)
    ratios = Column("Ratio or difference", note=f"with its {_level(pairs)} interval")
    titles = [ratios, Column("p")]
    titles += [Column("p after Holm", note="corrected for the number of comparisons")] if corrected else []
    titles += [parts.text_column("Difference shown")]
    titles += [parts.text_column(f"Equivalent within {_margin_in_words(plan.margin, tested)}")] if plan.margin else []
    rows = []
    for pair in pairs:
        cells = [_effect_cell(pair, tested.kind), parts.cell(pair.effect.p, "p")]
        cells += [parts.cell(pair.adjusted, "p")] if corrected else []
        shown = ("yes" if pair.shown else "no") + ("" if pair.valid else ", invalid")
        cells += [Cell(shown if pair.tested else "not tested")]
        if plan.margin:
            test = pair.equivalence
            same = "yes" if test and test.shown else "not shown"
            cells.append(Cell(same, test.p, f"p = {test.p:.2g}") if test else Cell("not tested"))
        mark = _pair_mark(pair, result.leaking) or ("" if pair.valid else _LEAKS)
        rows.append(_row(_pair_title(pair, pair.a, pair.b), cells, mark))
    scopes = dict.fromkeys(pair.effect.scope for pair in pairs if pair.tested)
    caption = of or f"{words.capital(tested.title)}."
    caption += f" Tests generalise to {words.listed(scopes)}." if scopes else ""
    return Table(name, caption, parts.columns("Compared", *titles), rows)


def _differences_table(result: ComparisonResult) -> Table | None:
    """The differences of all other figures, without tests."""
    rows = []
    for pair in result.paired:
        of = result.figure(pair.figure)
        difference = parts.difference_cell(pair.difference, pair.low, pair.high, of.kind)
        cells = [Cell(of.title), difference, parts.cell(pair.ratio, "ratio")]
        rows.append(_row(f"{pair.a} minus {pair.b}", cells, _pair_mark(pair, result.leaking)))
    caption = "All other figures, by seed: described, not tested, and not corrected."
    titles = parts.columns("Compared", parts.text_column("Figure"), "Difference", "Ratio")
    return Table("Differences by seed", caption, titles, rows) if rows else None


def _pair_charts(result: ComparisonResult) -> list[Chart]:
    """The comparisons as points with intervals, those with a variant that leaks in a chart of their own.

    A leak is large: on the same axis, the differences between honest variants would be invisible.
    """
    leaks, names = set(result.leaking), {variant.name: _titled(variant) for variant in result.variants}
    groups: dict[bool, list[Comparison]] = {False: [], True: []}
    for pair in (pair for pair in result.comparisons if pair.effect.value is not None):
        groups[not pair.valid or bool({pair.a, pair.b} & leaks)].append(pair)
    return [_pair_chart(result.figures[0], pairs, names, marked) for marked, pairs in groups.items() if pairs]


def _pair_chart(of: Figure, pairs: Sequence[Comparison], names: dict[str, str], marked: bool) -> Chart:
    ratios = pairs[0].effect.kind == "ratio"
    factor = 100.0 if of.kind == "share" and not ratios else 1.0

    def point(pair: Comparison) -> blocks.Mark:
        effect = pair.effect
        value, low, high = (None if end is None else factor * end for end in (effect.value, effect.low, effect.high))
        text = words.times(value) if ratios else words.signed(effect.value, of.kind).removesuffix(" points")
        title = _pair_title(pair, names[pair.a], names[pair.b])
        return blocks.Mark(title, math.nan if value is None else value, text, low, high, not pair.shown, marked)

    points = [point(pair) for pair in pairs]
    better = "below" if of.lower_is_better else "above"
    unit = f"{'ratio' if ratios else 'difference'}; {better} {1 if ratios else 0} the first is better"
    title = f"{words.capital(of.title)}, pair by pair, with {_level(pairs)} intervals"
    if marked:  # a leak does not reach every figure
        valid = all(pair.valid for pair in pairs)
        title += "; with a variant that leaks" if valid else "; invalid, since a variant leaks"
    label = f"{title}. " + "; ".join(f"{mark.name}: {mark.text}" for mark in points)
    axis = Axis(unit, "points" if factor > 1 else "")
    return Chart("points", title, label, axis, marks=points, origin=1.0 if ratios else 0.0)


def _compared_section(plan: Plan, result: ComparisonResult) -> list[Section]:
    if not result.comparisons:
        return []
    together = " Those of all pairs hold together with 95 %." if len(result.comparisons) > 1 else ""
    legend = (
        "A filled point: a difference is shown. A hollow one: none is shown. The whiskers are"
        f" {_level(result.comparisons)} intervals.{together}"
    )
    sentences = [
        Text(
            [words.capital(pair.words), *([pair.belief] if pair.belief else [])],
            title=pair.heading,
            mark=_pair_mark(pair, result.leaking),
        )
        for pair in result.comparisons
    ]
    charts = _pair_charts(result)
    legends = [Text([legend], "quiet")] if charts else []
    return section("Compared", *charts, *legends, *sentences, _tests_table(plan, result, result.comparisons))


# Longer texts


def _long_texts_section(plan: Plan, result: ComparisonResult) -> list[Section]:
    """Perplexity by length of context, and its tests."""
    found = result.long_texts
    if found is None:
        return []
    block, longest = found.lengths[0], found.lengths[-1]
    ended = Cell(words.NOTHING, under=f"reads no more than {block} tokens")

    def cells(variant: VariantResult) -> list[Cell]:
        return [_mean_cell(of, "perplexity") if of else ended for of in found.perplexities[variant.name]]

    caption = (
        f"Token perplexity of tokens {block + 1:,} to {longest:,} of {words.plural(found.documents, 'document')}, by the"
        f" number of tokens before each that are read, with 95 % intervals. With {block}, a window moves over the document."
    )
    titles = [f"{length:,} tokens" for length in found.lengths]
    gains = f"Token perplexity with more than {block} tokens of context over that with {block}"
    tests = (
        ("Gain by context", gains, found.gains),
        ("Variants by context", "Token perplexities with the same context", found.differences),
    )
    return section(
        "Longer texts",
        _long_texts_chart(result, found),
        _variants_table("Longer texts", caption, titles, result.variants, cells, brief=True),
        *(
            _tests_table(plan, result, pairs, name, f"{of}; p is corrected over this table.")
            for name, of, pairs in tests
            if pairs
        ),
    )


def _long_texts_chart(result: ComparisonResult, found: LongTexts) -> Chart:
    series = []
    for variant in result.variants:
        read = [each for each in zip(found.lengths, found.perplexities[variant.name], strict=True) if each[1]]
        x, y = [math.log2(length) for length, _ in read], [math.log(of.mean) for _, of in read if of and of.mean]
        dots = tuple(zip(x, y, strict=True))
        series.append(blocks.Series(_titled(variant), x, y, dots=dots, marked=variant.leaks))
    axes = Axis("log2 of the tokens of context"), Axis("loss", "nats per token")
    return parts.lines("Loss by length of context", series, *axes, "the loss by length of context")


# Tuning


def _tuning_section(tuning: Tuning, tested: Figure) -> list[Section]:
    """The trials of tuning: a curve per setting and a table."""
    names = [tuned.setting for tuned in tuning.settings]
    rows = []
    for trial in tuning.trials:
        values = [Cell(words.plain(trial.values[name]), trial.values[name]) for name in names]
        reached = Cell(f"diverged: {trial.failure}") if trial.figure is None else parts.cell(trial.figure, tested.kind)
        chosen = Cell("chosen" if tuning.chosen[trial.variant] == trial.values else "")
        rows.append(_row(trial.variant, [*values, reached, chosen]))
    caption = (
        f"The same trials for every variant, {words.plural(len(tuning.seeds), 'seed')} each, measured on"
        f" {words.count(tuning.items)} items that the verdict is not taken from."
    )
    titles = parts.columns("Variant", *names, Column(tested.title), parts.text_column("Chosen"))
    charts = [_tuning_curve(tuning, tuned, tested) for tuned in tuning.settings]
    return section("Tuning", *charts, Table("Trials", caption, titles, rows))


def _tuning_curve(tuning: Tuning, tuned: Tuned, tested: Figure) -> Chart | None:
    """The best figure at every value of a setting, one line per variant; None where values are not numbers."""
    name, values = tuned.setting, tuned.values
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    logs = min(values) > 0
    factor, best = (100.0, max) if tested.kind == "share" else (1.0, min)
    series = []
    for variant in tuning.chosen:
        reached: dict[float, list[float]] = {}
        for trial in tuning.trials:
            if trial.variant == variant and trial.figure is not None:
                reached.setdefault(trial.values[name], []).append(factor * trial.figure)
        x = [math.log10(value) if logs else value for value in sorted(values)]
        y = [best(reached.get(value, [math.nan])) for value in sorted(values)]
        dots = tuple(point for point in zip(x, y, strict=True) if math.isfinite(point[1]))
        series.append(blocks.Series(variant, x, y, dots=dots))
    title = f"{tested.title} by {name}"
    axes = Axis(f"log10 of {name}" if logs else name), Axis(tested.title, "%" if tested.kind == "share" else "")
    return parts.lines(words.capital(title), series, *axes, title)


# Texts


def _probes_table(
    variants: Sequence[VariantResult], probes: Sequence[Sequence[ProbeOverSeeds]], how: str = ""
) -> Table:
    """The loss and perplexity of the probe sentences of each variant."""
    by_name = {variant.name: row for variant, row in zip(variants, probes, strict=True)}

    def probe_cell(probe: ProbeOverSeeds) -> Cell:
        each = "loss " + ", ".join(words.figure(loss, "loss") for loss in probe.losses) if len(probe.losses) > 1 else ""
        under = f"loss {words.figure(probe.loss, 'loss')}"
        return Cell(words.figure(probe.perplexity, "perplexity"), probe.perplexity, under, each)

    caption = f"Perplexity of each sentence, and its loss in nats per token below{how}."
    titles = [f"Sentence {place + 1}" for place in range(len(probes[0]))]
    return _variants_table(
        "Probe sentences", caption, titles, variants, lambda variant: list(map(probe_cell, by_name[variant.name]))
    )


def _probe_line(probe: ProbeOverSeeds) -> str:
    unknown = f", {words.count(probe.unknown)} unknown" if probe.unknown else ""
    return f"{probe.sentence} ({words.plural(probe.tokens, 'token')}{unknown})"


def _quality_table(result: ComparisonResult) -> Table:
    qualities = [(row.name, row.texts.sample_quality, _mark(row)) for row in result.variants if row.texts]
    if first := result.variants[0].texts:
        qualities.append(("the text itself", first.text_quality, ""))
    rows = []
    for name, quality, mark in qualities:
        shares = (quality.unknown_share, quality.punctuation_share, quality.distinct_share)
        cells = [parts.cell(quality.tokens, "count"), *(parts.cell(share, "share") for share in shares)]
        rows.append(_row(name, [*cells, parts.cell(quality.mean_length, "perplexity")], mark))
    titles = parts.columns("Written by", "Tokens", "Unknown words", "Punctuation", "Different words", "Mean length")
    return Table("Samples", "What the samples are made of, in shares of their tokens.", titles, rows)


def _texts_sections(result: ComparisonResult) -> list[Section]:
    written = [(variant, variant.texts) for variant in result.variants if variant.texts]
    if not written:
        return []
    variants, first = [variant for variant, _ in written], written[0][1]
    tables = [_probes_table(variants, [texts.probes for _, texts in written])]
    if first.spaced_probes:
        unknown = words.plural(sum(probe.unknown for probe in first.spaced_probes), "word")
        spaced = [texts.spaced_probes for _, texts in written]
        tables.append(_probes_table(variants, spaced, _SPLIT_AT_SPACES.format(unknown)))
    samples = [Text(texts.samples, "samples", variant.name, _mark(variant)) for variant, texts in written]
    return [
        Section("Probe sentences", [Text([_probe_line(probe) for probe in first.probes], "numbered"), *tables]),
        Section("Samples", [parts.side_by_side(samples), _quality_table(result)]),
    ]


# Leaks


def _audit_table(result: ComparisonResult) -> Table:
    def cells(variant: VariantResult) -> list[Cell]:
        audit, leak = variant.audit, variant.audit.causal_leak
        size = words.NOTHING
        if leak is not None:
            size = words.percent(leak) if leak >= 5e-4 else f"{leak:.1e}" if leak else "0"
            size += " (rounding)" if 0 < leak <= LIMIT else ""
        faults = [f"declared: {audit.defect}"] if audit.defect else []
        faults += [f"{name}: {fault}" for name, fault in audit.faults.items()]
        return [Cell(audit.verdict), Cell(size, leak), Cell("; ".join(faults) or "no fault found")]

    largest = Column("Largest leak from the future", note="share of an output that later tokens move")
    titles = (parts.text_column("Audit"), largest, parts.text_column("In words"))
    caption = "What the audit of every variant found."
    return _variants_table("Audit", caption, titles, result.variants, cells)


def _word_by_word_table(result: ComparisonResult) -> Table:
    def cells(variant: VariantResult) -> list[Cell]:
        both = variant.word_by_word
        values = [parts.cell(value, "perplexity") for value in (both.whole, both.word_by_word)]
        return [parts.cell(both.sentences, "count"), *values, parts.cell(both.word_by_word / both.whole, "ratio")]

    caption = (
        "Token perplexity of the same sentences, read whole and each word from its prefix alone:"
        " they differ only if a model sees the future."
    )
    titles = ("Sentences", "Read whole", "Word by word", "Ratio")
    return _variants_table("Word by word", caption, titles, result.variants, cells)


def _leak_chart(result: ComparisonResult) -> Chart | None:
    """How much of every position's output comes from later tokens, for the variants that leak."""
    series = [
        blocks.Series(_titled(variant), list(range(1, len(places) + 1)), [100 * leak for leak in places], marked=True)
        for variant in result.variants
        if variant.leaks and (places := variant.audit.leak_by_position)
    ]
    if not series:
        return None
    worst = "; ".join(f"{line.name}: up to {max(line.y):.1f} %" for line in series)
    label = f"Line chart of the leak by position. {worst}"
    x, y = Axis("position in the text"), Axis("moved by later tokens", "% of the output", low=0.0)
    return Chart("lines", "The leak by position", label, x, y, series, height=260)


# What it rests on


def _registration_facts(plan: Plan, result: ComparisonResult) -> blocks.Facts:
    """What was fixed beforehand, and what was added after a result was known."""
    tested, first = result.figures[0], plan.looks[0] if plan.looks else plan.seeds
    tuned = [f"{item.setting} in {words.plain(item.values)}" for item in plan.tuned]
    added = [str(seed) for seed in plan.seeds if seed not in first]
    default = f"two-sided: the {tested.title} of the two sides of a pair differ"
    facts = [
        ("Started", plan.started),
        ("Registered", "after the runs were trained" if plan.runs else "before training"),
        ("Hypothesis", plan.hypothesis or default),
        ("Tested figure", tested.title),
        ("Pairs", "; ".join(f"{a} against {b}" for a, b in plan.compared())),
        ("Error probability", f"{words.percent(ALPHA)} over all pairs, for differences and for equivalence each"),
        ("Margin of equivalence", _margin_in_words(plan.margin, tested) if plan.margin else words.NOTHING),
        ("Tuned", "; ".join(tuned) or "nothing"),
        ("Seeds", ", ".join(map(str, first))),
        ("Seeds added later", ", ".join(added) or "none"),
        ("Looks at the result", str(len(plan.looks) + 1)),
        *((f"Checksum of {name}", checksum[:16]) for name, checksum in result.checksums.items()),
    ]
    return blocks.Facts("Registration", facts)


def _reproduce(plan: Plan, result: ComparisonResult) -> Section:
    names = [(words.capital(use), Path(name).name) for use in plan.sources if (name := getattr(plan, use))]
    sizes = [(words.capital(name), words.count(size)) for name, size in result.sizes.items()]
    values = ", ".join(words.plain(variant.value) for variant in result.variants)
    varied = f"{plan.varied}: {values}" if len(plan.varied_settings) == 1 else ", ".join(plan.varied_settings)
    facts = [*names, *sizes, ("Varied", varied), ("Seeds", ", ".join(map(str, plan.seeds)))]
    return parts.reproduce(result, blocks.Facts("Data", facts), result.settings, [_registration_facts(plan, result)])
