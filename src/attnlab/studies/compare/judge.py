"""From finished runs to a result: figures with intervals, tests, verdicts in words. Trains and loads nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from attnlab import stats
from attnlab.config import flatten
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.lm.perplexity import Probe
from attnlab.lm.word_split import word_lengths
from attnlab.measure.audit.leaks import LIMIT
from attnlab.report.parts import LossCurve
from attnlab.report.words import capital, listed
from attnlab.stats.bootstrap import exp_or_none
from attnlab.store.runs import Run, lineage
from attnlab.studies.compare.plan import Plan, seen_before, stages_of
from attnlab.studies.compare.records import (
    READ_TWICE,
    AuditSummary,
    Comparison,
    ComparisonResult,
    DataSummary,
    Difference,
    Effect,
    Explanation,
    Figure,
    Gain,
    Kind,
    MeanProbe,
    Quality,
    Ratio,
    Readings,
    Record,
    Records,
    Registration,
    SeedPair,
    SeedRun,
    Spread,
    Texts,
    Tuning,
    VariantResult,
    figures,
    notes_on,
    read_records,
    refuse_differences,
    some,
)
from attnlab.studies.compare.tuning import choice_of, with_choice

_AHEAD = 0.005  # relative difference of perplexity, read whole and word by word, that rounding cannot explain
_ALPHA = 0.05
_ONE_BY_ONE = 4  # more comparisons than this that show no difference share a sentence
_CURVE = ("step", "tokens", "loss")  # kept per step
_NEARLY_ALL = 0.9  # share of a gain from which on it is called the leak
_FUTURE = ("future", "gradient", "prefix", "padding")  # checks of the audit that find leaks from the future


def judge(plan: Plan, folder: Path, audits: Mapping[str, AuditSummary]) -> ComparisonResult:
    """Judge the finished runs of a comparison."""
    plan, tuning = with_choice(plan, folder), choice_of(folder)
    records = read_records(plan, folder)
    refuse_differences(plan, records)
    runs = [run for rows in records.values() for run in rows]
    columns = [figure for figure in figures(plan.words) if all(figure.key in run.values for run in runs)]
    reference = plan.variants[0].name
    variants = [
        _describe(plan, folder, name, rows, records[reference], columns, audits[name]) for name, rows in records.items()
    ]
    leaking = {variant.name for variant in variants if variant.leaks}
    comparisons = compare_all(plan, records, columns[0], leaking, _settings_in_words(plan, tuning), plan.clusters)
    data, text_quality = _describe_data(plan), runs[0].text.text_quality if plan.words else None
    explanation = explain(variants, text_quality)
    config = stages.stored_config(runs[0].run)
    return ComparisonResult(
        kind=plan.name,
        title=plan.title,
        question=plan.question,
        command=plan.command + _seeds_added(plan),
        seconds=round(sum(run.values["seconds"] + run.measured.measuring for run in runs), 1),
        quick=plan.quick,
        task=config.task.name,
        preset=config.preset,
        varied=plan.varied,
        seeds=plan.seeds,
        workers=plan.at_a_time,
        order=tuple(plan.order()),
        data=data,
        figures=tuple(columns),
        variants=tuple(variants),
        comparisons=tuple(comparisons),
        paired=tuple(
            difference(a, b, column, records)
            for a, b in plan.compared()
            for column in columns[1:]
            if column.kind != "count"
        ),
        settings={name: settings_of(rows[0].run) for name, rows in records.items()},
        published=plan.published(),
        text_quality=text_quality,
        verdict=(
            *(part.paragraphs[-1] for part in explanation),
            *_sentences(comparisons),
            *_notes_on_data(plan, data),
            *_notes_on_tuning(tuning),
            *_notes_on_looks(plan),
            *([plan.few_documents] if plan.few_documents else []),
            *notes_on(records),
        ),
        explanation=tuple(explanation),
        registration=_registration(plan, columns[0]),
        tuning=tuning,
        lengths=tuple(word_lengths(plan.data.corpus(plan.corpus).lines)) if plan.words and plan.corpus else (),
    )


def _sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """All comparisons in words; many that show nothing share one sentence per reference, placed last."""
    silent: dict[str, dict[str, float]] = {}  # p by name, by reference
    for pair in comparisons:
        if pair.adjusted is not None and pair.valid and not pair.shown and pair.equivalence is None:
            silent.setdefault(pair.b, {})[pair.a] = pair.adjusted
    together = {other: names for other, names in silent.items() if len(names) > _ONE_BY_ONE}
    sentences = [pair.sentence for pair in comparisons if pair.a not in together.get(pair.b, ())]
    settings = f", {comparisons[0].settings}" if comparisons and comparisons[0].settings else ""
    for other, names in together.items():
        sentences.append(
            f"{listed(names)} against {other}{settings}: no difference shown,"
            f" {stats.p_in_words(min(names.values()))} or more after correction. What each interval excludes is in the report."
        )
    return sentences


def _registration(plan: Plan, column: Figure) -> Registration:
    first = plan.looks[0] if plan.looks else plan.seeds
    return Registration(
        started=plan.started,
        hypothesis=plan.hypothesis or f"two-sided: the {column.title} of the two sides of a pair differ",
        figure=column.title,
        pairs=tuple(plan.compared()),
        alpha=_ALPHA,
        margin=plan.margin,
        seeds=first,
        looks=len(plan.looks) + 1,
        seeds_added=tuple(seed for seed in plan.seeds if seed not in first),
        checksums=plan.fingerprints(),
        before_training=not plan.runs,
    )


def _seeds_added(plan: Plan) -> str:
    """The command that added seeds, if any were added."""
    return f"; attnlab resume FOLDER --seeds {','.join(map(str, plan.seeds))}" if plan.looks else ""


def _notes_on_data(plan: Plan, data: DataSummary) -> list[str]:
    notes = []
    if data.seen_before:
        items = "sentences" if plan.words else "questions"
        notes.append(
            f"{data.seen_before:,} of the measured {items} are in the training data: read the figures with that in mind."
        )
    if plan.hypothesis:
        notes.append(f"Expected beforehand: {plan.hypothesis.rstrip('.')}. The tests are two-sided.")
    return notes


def _notes_on_looks(plan: Plan) -> list[str]:
    if not plan.looks:
        return []
    added, looks = ", ".join(str(seed) for seed in plan.seeds if seed not in plan.looks[0]), len(plan.looks) + 1
    chance = 100 * _ALPHA * sum(1 / look for look in range(1, looks + 1))
    return [
        f"Seeds {added} were added after a result was known: this is look {looks}. Every p is multiplied by the number of"
        " looks. The earlier results were tested before that, so the chance of a false difference in any of them is up to"
        f" {chance:.1f} %."
    ]


def _notes_on_tuning(tuning: Tuning | None) -> list[str]:
    if tuning is None:
        return []
    notes = [
        f"The best {' and '.join(keys)} of {name} is at the edge of the values tried: try values beyond it."
        for name, keys in tuning.at_edge.items()
    ]
    if tuning.tied:
        notes.append(f"Several of the values tried are equally good for {', '.join(tuning.tied)}: the first was taken.")
    if failed := sum(trial.figure is None for trial in tuning.trials):
        notes.append(f"{failed} of {len(tuning.trials)} trials of tuning diverged.")
    return notes


def _settings_in_words(plan: Plan, tuning: Tuning | None) -> str:
    """Half a sentence that says whether settings were tuned."""
    if plan.runs:
        return "with the settings they were trained with"
    if tuning is None:
        return "with the settings of the preset, not tuned for each"
    names = " and ".join(tuned.setting for tuned in tuning.settings)
    tried = math.prod(len(tuned.values) for tuned in tuning.settings)
    what = "sentences" if plan.words else "questions"
    stage = " of pretraining" if len(stages_of(plan.variants[0], plan)) > 1 else ""
    return f"each with its best {names}{stage} of {tried} tried, chosen on {tuning.items:,} other {what}"


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of a run without its seed."""
    return {key: value for key, value in run.record.settings.items() if key != "seed"}


def _describe_data(plan: Plan) -> DataSummary:
    corpus, dev, facts, exam = (
        Path(name).name if name else None for name in (plan.corpus, plan.dev, plan.facts, plan.exam)
    )
    return DataSummary(
        corpus,
        dev,
        facts,
        exam,
        sentences=len(plan.data.corpus(plan.corpus).lines) if plan.corpus else 0,
        dev_sentences=len(plan.sentences) if plan.dev else None,
        questions=len(plan.questions) if plan.exam else None,
        clusters=len(set(plan.clusters)) if plan.clusters else None,
        seen_before=seen_before(plan)[0],
    )


def _describe(
    plan: Plan,
    folder: Path,
    name: str,
    rows: Sequence[Record],
    reference: Sequence[Record],
    columns: Sequence[Figure],
    audit: AuditSummary,
) -> VariantResult:
    """One variant with all its runs."""
    readings = [row.measured.word_by_word for row in rows]
    ahead = max(abs(reading.word_by_word / reading.whole - 1) for reading in readings)
    leaks = any(check in audit.faults for check in _FUTURE) or ahead > _AHEAD
    whole = stats.geometric_mean([reading.whole for reading in readings])
    word_by_word = stats.geometric_mean([reading.word_by_word for reading in readings])
    return VariantResult(
        name=name,
        reference=rows is reference,
        leaks=leaks,
        audit=audit,
        settings={plan.varied: dict(flatten(settings_of(_varied_run(plan, rows[0].run)))).get(plan.varied)},
        values={column.key: spread_of([row.values[column.key] for row in rows], column.kind) for column in columns},
        runs=tuple(
            SeedRun(
                row.seed,
                os.path.relpath(row.run.path, folder),
                dict(row.values),
                LossCurve(*([getattr(step, key) for step in row.run.metrics()] for key in _CURVE)),
            )
            for row in rows
        ),
        word_by_word=Readings(readings[0].sentences, whole, word_by_word),
        texts=_texts(rows) if plan.words else None,
        gain=_gain(plan, rows, reference) if leaks and plan.words and rows is not reference else None,
        exam=rows[0].measured.answers,
    )


def _varied_run(plan: Plan, run: Run) -> Run:
    """The run whose settings are compared: of finished runs it is the last stage, else the first."""
    return run if plan.runs else lineage(run)[-1]


def spread_of(each: Sequence[float], kind: Kind) -> Spread:
    """The mean over the seeds with its interval, within the possible values; of perplexities, in logarithms."""
    interval = stats.mean_interval(each)
    low, high = interval.low, interval.high
    mean: float | None = interval.mean
    if kind == "perplexity":
        logs = stats.mean_interval([math.log(value) for value in each])
        mean, low, high = (exp_or_none(log) for log in (logs.mean, logs.low, logs.high))
    elif low is not None and high is not None:
        low, high = max(0.0, low), min(1.0, high) if kind == "share" else high
    return Spread(interval.n, mean, interval.sd, low, high, interval.note, tuple(each))


def _gain(plan: Plan, leaking: Sequence[Record], reference: Sequence[Record]) -> Gain:
    # The texts that are read twice are some of the sentences, and so are their clusters.
    how = Testing(clusters=tuple(some(plan.clusters, READ_TWICE)) if plan.clusters else None)
    effects = (_compare_text(leaking, reference, how, f"{name}.csv") for name in ("whole", "word_by_word"))
    whole, apart = (Ratio(effect.value or 0.0, effect.low, effect.high, effect.p) for effect in effects)
    gains = [stats.log_ratio_table(*_losses(leaking, reference, f"{name}.csv")) for name in ("word_by_word", "whole")]
    kept = stats.ratio_of_means(gains[0], gains[1], clusters=how.clusters) if whole.value != 1 else None
    return Gain(whole, apart, kept)


def _mean_probes(by_seed: Sequence[Sequence[Probe]]) -> tuple[MeanProbe, ...]:
    probes = []
    for same in zip(*by_seed, strict=True):
        losses = tuple(probe.loss for probe in same)
        loss = sum(losses) / len(losses)
        probes.append(MeanProbe(same[0].sentence, same[0].tokens, same[0].unknown, loss, math.exp(loss), losses))
    return tuple(probes)


def _texts(rows: Sequence[Record]) -> Texts:
    qualities = [astuple(row.text.sample_quality) for row in rows]
    means = (sum(column) / len(column) for column in zip(*qualities, strict=True))
    return Texts(
        _mean_probes([row.text.probes for row in rows]),
        rows[0].text.samples,
        Quality(*means),
        _mean_probes([row.text.spaced_probes for row in rows]),
    )


# Tests


def compare_all(
    plan: Plan,
    records: Records,
    column: Figure,
    leaking: set[str],
    settings: str = "",
    clusters: tuple[int, ...] | None = None,
) -> list[Comparison]:
    """Test every pair; several comparisons are corrected together, p by Holm and intervals by Bonferroni.

    If seeds were added after a result was known, every look counts.
    """
    pairs, looks = plan.compared(), len(plan.looks) + 1
    # Answers are written word by word, where there is no future; perplexities of models that see it are invalid.
    valid = [column.kind == "share" or not set(pair) & leaking for pair in pairs]
    family = max(1, sum(valid)) * looks
    test = _compare_text if column.kind == "perplexity" else compare_answers
    levels = [_ALPHA / family if each else _ALPHA for each in valid]
    tested = [
        test(records[a], records[b], Testing(alpha, plan.margin, clusters))
        for (a, b), alpha in zip(pairs, levels, strict=True)
    ]
    counted = {at: 1.0 if effect.p is None else effect.p for at, effect in enumerate(tested) if valid[at]}
    adjusted: dict[int, float] = {}
    if family > 1:
        corrected = (min(1.0, looks * p) for p in stats.holm(list(counted.values())))
        adjusted = {at: p for at, p in zip(counted, corrected, strict=True) if tested[at].p is not None}
    comparisons = []
    for at, ((a, b), effect) in enumerate(zip(pairs, tested, strict=True)):
        p = adjusted.get(at, effect.p)
        correction: dict[str, Any] = (
            {"adjusted": adjusted[at], "comparisons": len(counted), "looks": looks} if at in adjusted else {}
        )
        words = stats.in_words(effect.details, a, b, **correction)
        comparisons.append(
            Comparison(
                a,
                b,
                column.key,
                words,
                effect,
                adjusted.get(at),
                shown=p is not None and p < _ALPHA,
                valid=valid[at],
                by_seed=_by_seed(records[a], records[b], column),
                level=1 - levels[at],
                equivalence=effect.details.equivalence,
                settings=settings,
            )
        )
    return comparisons


def _by_seed(a: Sequence[Record], b: Sequence[Record], column: Figure) -> tuple[SeedPair, ...]:
    rows = []
    for first, second in zip(a, b, strict=True):
        left, right = first.values[column.key], second.values[column.key]
        test = stats.mcnemar(first.answers(), second.answers()) if column.kind == "share" else None
        rows.append(SeedPair(first.seed, left, right, left - right, test))
    return tuple(rows)


@dataclass(frozen=True)
class Testing:
    """How pairs are tested: the level of the intervals, the margin of equivalence, and items that belong together."""

    alpha: float = _ALPHA
    margin: float | None = None
    clusters: tuple[int, ...] | None = None  # None: every item by itself


def _losses(
    a: Sequence[Record], b: Sequence[Record], name: str
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]], tuple[int, ...]]:
    """The losses of both sides, one row per seed, and the tokens per sentence."""
    first, second = ([record.losses(name) for record in side] for side in (a, b))
    if len({(losses.tokens, losses.unknown) for losses in (*first, *second)}) > 1:
        raise UserError("the runs were not measured on the same words: their perplexities cannot be compared")
    return [losses.losses for losses in first], [losses.losses for losses in second], first[0].tokens


def _compare_text(a: Sequence[Record], b: Sequence[Record], how: Testing, name: str = "dev.csv") -> Effect:
    """Compare token perplexities of the same sentences: for new seeds and sentences; for one seed, new sentences."""
    first, second, tokens = _losses(a, b, name)
    test = stats.paired_bootstrap(
        first, second, weights=tokens, alpha=how.alpha, margin=how.margin, clusters=how.clusters
    )
    if test.both is None:
        scope = "new sentences, with this one seed"
        return Effect("ratio", test.ratio, test.ratio_low, test.ratio_high, test.p, scope, perplexities=test)
    low, high, scope = exp_or_none(test.both.low), exp_or_none(test.both.high), "new seeds and new sentences"
    return Effect("ratio", test.ratio, low, high, test.both.p, scope, perplexities=test)


def compare_answers(a: Sequence[Record], b: Sequence[Record], how: Testing) -> Effect:
    """Compare answers to the same questions: for new seeds and questions; for one seed, by McNemar's test.

    McNemar's test takes every question by itself: with clusters, one seed is tested over clusters instead.
    """
    first, second = ([record.answers() for record in side] for side in (a, b))
    scope = "new questions, with this one seed" if len(a) == 1 else "new seeds and new questions"
    if len(a) == 1 and how.clusters is None:
        alone = stats.mcnemar(first[0], second[0], how.alpha, how.margin)
        return Effect("difference", alone.difference, alone.low, alone.high, alone.p, scope, mcnemar=alone)
    test = stats.seeds_by_questions(first, second, alpha=how.alpha, margin=how.margin, clusters=how.clusters)
    both = test.both
    return Effect("difference", test.difference, both.low, both.high, both.p, scope, answers=test)


def difference(a: str, b: str, column: Figure, records: Records) -> Difference:
    """Describe the difference of a further figure."""
    sides = [[row.values[column.key] for row in records[name]] for name in (a, b)]
    test = stats.paired(*sides)
    ratio = test.a / test.b if test.b else None
    return Difference(a, b, column.key, test.difference, test.low, test.high, ratio)


# Leaks in words


def explain(variants: Sequence[VariantResult], text_quality: Quality | None) -> list[Explanation]:
    """What the leaks are worth, compared with the first variant."""
    return [_explain_leak(variant, variants[0], text_quality) for variant in variants if variant.leaks]


def _explain_leak(leaking: VariantResult, reference: VariantResult, text_quality: Quality | None) -> Explanation:
    name = leaking.name
    assert leaking.audit is not None
    paragraphs = [audit_in_words(name, leaking.audit), _readings(leaking, reference)]
    if leaking.gain:
        assert leaking.texts is not None
        assert reference.texts is not None
        assert text_quality is not None
        written, beside = (_shares(texts.sample_quality) for texts in (leaking.texts, reference.texts))
        paragraphs.append(
            f"Their samples: {name} {written}; {reference.name} {beside}; the dev text {_shares(text_quality)}."
        )
        verdict = _verdict_on(name, reference.name, leaking.gain)
    elif leaking.reference and leaking.texts:
        verdict = f"{name} sees the future, and the others are compared with it: name a sound variant first."
    else:
        verdict = (
            f"{name} sees the future while it reads, so its training loss is invalid. Answers are written word by word,"
            " where there is no future: they are valid."
        )
    return Explanation(f"What the leak of {name} is worth", (*paragraphs, verdict))


def audit_in_words(name: str, audit: AuditSummary) -> str:
    """The audit in one sentence."""
    leaks = audit.leak_by_position
    seen = [at for at, value in enumerate(leaks) if value > LIMIT]
    if seen:
        worst = max(seen, key=lambda at: leaks[at])
        defect = f" {capital(audit.defect)}." if audit.defect else ""
        return (
            f"The audit: {len(seen)} of {len(leaks)} positions of {name} change when only later words do, by up to"
            f" {100 * leaks[worst]:.2g} % of their range (position {worst + 1}).{defect}"
        )
    if audit.faults:
        return f"The audit of {name}: {'; '.join(audit.faults.values())}."
    return f"The audit of {name} found no fault before training: the leak shows in the trained model only."


def _readings(leaking: VariantResult, reference: VariantResult) -> str:
    own, other = leaking.word_by_word, reference.word_by_word
    assert own is not None
    assert other is not None
    beside = "" if leaking is reference else f"; of {reference.name}: {other.whole:,.1f} and {other.word_by_word:,.1f}"
    return (
        f"The trained models read the same {own.sentences:,} texts twice: whole, as in training, and each word from"
        f" a text that ends before it, as in generation. Token perplexity of {leaking.name}: {own.whole:,.1f} whole,"
        f" {own.word_by_word:,.1f} word by word{beside}. For a model that cannot see the future, the two are equal."
    )


def _shares(quality: Quality) -> str:
    return (
        f"{100 * quality.unknown_share:.1f} % <UNK>, {100 * quality.punctuation_share:.1f} % punctuation,"
        f" {quality.mean_length:.0f} words per sentence"
    )


def _verdict_on(name: str, other: str, gain: Gain) -> str:
    """How much of the gain of a leaking variant is its leak, as far as the interval of that share tells."""
    whole, honest, kept = gain.whole, gain.word_by_word, gain.kept
    if whole.p is None or whole.p >= _ALPHA or whole.value >= 1:
        return f"{name} sees the future, and no gain from it is shown: its token perplexity is {whole} that of {other}."
    readings = (
        f"{name} looks better than {other}, its token perplexity on the texts read twice {whole} that of {other};"
        f" word by word, where there is no future, it is {honest}."
    )
    if kept is None or kept.low is None or kept.high is None:
        return f"How much of the gain is the leak is not shown: {readings}"
    least, most = 1 - kept.high, 1 - kept.low
    share = f"Word by word {_percent(1 - kept.value)} of the gain is gone (95 % interval {_percent(least)} to {_percent(most)})"
    if least >= _NEARLY_ALL:
        opening = "The gain is the leak"
    elif least > 0:
        opening = f"At least {_percent(least)} of the gain is the leak"
    else:
        opening = "Whether the gain is the leak is not shown"
    return f"{opening}: {readings} {share}."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
