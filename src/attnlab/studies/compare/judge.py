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
from attnlab.lm.exams import Score
from attnlab.lm.perplexity import Probe
from attnlab.lm.word_split import word_lengths
from attnlab.measure.audit.leaks import LIMIT
from attnlab.report.words import listed
from attnlab.stats.perplexity import exp_or_none
from attnlab.store.records import flat, optional
from attnlab.store.runs import Run, lineage
from attnlab.studies.compare.attention_time import AttentionTime, attention_times, batch_of
from attnlab.studies.compare.plan import Plan, fingerprints, seen_before, stages_of
from attnlab.studies.compare.records import (
    READ_TWICE,
    Figure,
    Kind,
    Quality,
    Readings,
    Record,
    Records,
    figures,
    notes_on,
    read_records,
    refuse_differences,
    some,
)
from attnlab.studies.compare.tuning import Tuning, choice_of, with_choice
from attnlab.studies.compare.variance import Sources, sources_of_variance
from attnlab.studies.study import StudyResult

_AHEAD = 0.005  # relative difference of perplexity, read whole and word by word, that rounding cannot explain
_ALPHA = 0.05
_ONE_BY_ONE = 4  # more comparisons than this that show no difference share a sentence
_CURVE = ("step", "tokens", "loss", "seconds")  # kept per step
_NEARLY_ALL = 0.9  # share of a gain from which on it is called the leak
_FUTURE = ("future", "gradient", "prefix", "padding")  # checks of the audit that find leaks from the future

Audit = Mapping[str, Any]  # a report of attnlab.measure.audit, as stored


@dataclass(frozen=True)
class Spread:
    """A figure over the seeds: its mean with a 95 % interval, and the value of each seed."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    note: str
    each: list[float]


@dataclass(frozen=True)
class Ratio:
    """A ratio of perplexities with its 95 % interval."""

    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    p: float | None

    @property
    def shown(self) -> bool:
        """Whether the ratio is shown to differ from one."""
        return self.p is not None and self.p < _ALPHA

    def __str__(self) -> str:
        """The ratio in words."""
        if self.ratio_low is None:
            return f"{self.ratio:.3g} times"
        return f"{self.ratio:.3g} times ({self.ratio_low:.3g} to {self.ratio_high:.3g})"


@dataclass(frozen=True)
class _TextEffect(Ratio):
    """The tested ratio of two token perplexities."""

    test: str
    details: stats.Perplexities


@dataclass(frozen=True)
class _AnswerEffect:
    """The tested difference of two shares of right answers."""

    difference: float
    low: float | None
    high: float | None
    p: float | None
    test: str
    details: stats.McNemar | stats.SeedsByQuestions


@dataclass(frozen=True)
class _SeedPair:
    """The figure of both sides with one seed; for answers, with McNemar's test."""

    seed: int
    a: float
    b: float
    difference: float
    mcnemar: stats.McNemar | None = optional()


@dataclass(frozen=True)
class Comparison:
    """One tested pair."""

    a: str
    b: str
    figure: str
    words: str
    effect: _TextEffect | _AnswerEffect = flat()
    adjusted: float | None = None  # p after Holm's correction
    shown: bool = False
    valid: bool = True  # False if one of the two sees the future
    by_seed: tuple[_SeedPair, ...] = ()
    level: float = 1 - _ALPHA  # of the interval, so that those of all comparisons hold together
    equivalence: stats.Equivalence | None = optional()  # of the difference, or of the logarithm of the ratio
    settings: str = ""  # whether settings were tuned, in half a sentence

    @property
    def sentence(self) -> str:
        """The comparison as a sentence."""
        settings = f", {self.settings}" if self.settings else ""
        words = f"{self.a} against {self.b}{settings}: {self.words}."
        return words if self.valid else f"{words} This is invalid, since one of the two sees the future."


@dataclass(frozen=True)
class Difference:
    """A minus B of a further figure, paired by seed: described, not tested."""

    a: str
    b: str
    figure: str
    difference: float
    low: float | None
    high: float | None
    ratio: float | None


@dataclass(frozen=True)
class _MeanProbe(Probe):
    """A probe sentence: the mean over the seeds, and the loss of each seed."""

    losses: list[float]


@dataclass(frozen=True)
class Texts:
    """A variant's probes (means over seeds) and samples (of the first seed)."""

    probes: tuple[_MeanProbe, ...]
    samples: tuple[str, ...]
    sample_quality: Quality
    spaced_probes: tuple[_MeanProbe, ...] = ()


@dataclass(frozen=True)
class Gain:
    """The perplexity of a leaking variant over that of the reference: read whole, and word by word.

    `kept` is the share of the gain, in logarithms, that is left word by word.
    """

    whole: Ratio
    word_by_word: Ratio
    kept: stats.RatioOfMeans | None = optional()


@dataclass(frozen=True)
class _SeedRun:
    seed: int
    folder: str
    values: dict[str, float]
    metrics: list[dict[str, float]]


@dataclass(frozen=True)
class Judged:
    """One variant with all its runs."""

    name: str
    reference: bool
    leaks: bool
    audit: Audit
    settings: dict[str, Any]
    values: dict[str, Spread]
    runs: tuple[_SeedRun, ...]
    word_by_word: Readings
    texts: Texts | None = flat(None)
    gain: Gain | None = optional()
    exam: Score | None = optional()  # of the first seed


@dataclass(frozen=True)
class _DataSummary:
    corpus: str | None
    dev: str | None
    facts: str | None
    exam: str | None
    sentences: int
    dev_sentences: int | None
    questions: int | None
    clusters: int | None  # documents or people that share them; None: each is alone
    seen_before: int


@dataclass(frozen=True)
class _Explanation:
    """What the leak of a variant is worth; the last paragraph is the verdict."""

    title: str
    paragraphs: list[str]


@dataclass(frozen=True)
class _Registration:
    """What was named beforehand, and what was changed after a result was known."""

    started: str
    hypothesis: str
    figure: str
    pairs: list[tuple[str, str]]
    alpha: float
    margin: float | None
    seeds: tuple[int, ...]  # of the first result
    looks: int
    seeds_added: tuple[int, ...]
    checksums: dict[str, str]
    before_training: bool = True  # False: finished runs were compared


@dataclass(frozen=True, kw_only=True)
class ComparisonResult(StudyResult):
    """The result of a comparison."""

    kind: str = "comparison"
    question: str
    quick: bool
    task: str
    preset: str
    varied: str
    seeds: tuple[int, ...]
    jobs: int
    order: list[tuple[str, int]]
    data: _DataSummary
    figures: list[Figure]
    variants: list[Judged]
    comparisons: list[Comparison]
    paired: list[Difference]
    settings: dict[str, dict[str, Any]]
    theirs: tuple[dict[str, Any], ...] | None = optional()
    text_quality: Quality | None = optional()
    verdict: list[str]
    explanation: list[_Explanation]
    registration: _Registration
    tuning: Tuning | None = optional()
    variance: list[Sources] | None = optional()
    lengths: tuple[dict[str, int], ...] | None = optional()  # a histogram of the words per sentence
    attention: list[AttentionTime] | None = optional()


def judge(plan: Plan, folder: Path, audits: Mapping[str, Audit]) -> ComparisonResult:
    """Judge the finished runs of a comparison."""
    plan, tuning = with_choice(plan, folder), choice_of(folder)
    records = read_records(plan, folder)
    refuse_differences(plan, records)
    every = [one for rows in records.values() for one in rows]
    columns = [one for one in figures(plan.words) if all(one.key in record.values for record in every)]
    reference = plan.variants[0].name
    variants = [
        _describe(plan, folder, name, rows, records[reference], columns, audits[name]) for name, rows in records.items()
    ]
    leaking = {one.name for one in variants if one.leaks}
    settings = _settings_in_words(plan, tuning)
    comparisons = compare_all(plan, records, columns[0], leaking, settings, plan.clusters)
    data, text_quality = _describe_data(plan), every[0].text.text_quality if plan.words else None
    explanation = explain(variants, text_quality)
    seen = (
        f"{data.seen_before:,} of the measured {'sentences' if plan.words else 'questions'} are in the training data:"
    )
    config = stages.stored_config(every[0].run)
    return ComparisonResult(
        study=plan.study,
        title=plan.title,
        question=plan.question,
        command=plan.command + _seeds_added(plan),
        seconds=round(sum(one.values["seconds"] + one.measured.measuring for one in every), 1),
        quick=plan.quick,
        task=config.task.name,
        preset=config.preset,
        varied=plan.varied,
        seeds=plan.seeds,
        jobs=plan.at_a_time,
        order=plan.order(),
        data=data,
        figures=columns,
        variants=variants,
        comparisons=comparisons,
        paired=[
            difference(a, b, column, records)
            for a, b in plan.compared()
            for column in columns[1:]
            if column.kind != "count"
        ],
        settings={name: settings_of(rows[0].run) for name, rows in records.items()},
        theirs=plan.theirs or None,
        text_quality=text_quality,
        verdict=[
            *(one.paragraphs[-1] for one in explanation),
            *_sentences(comparisons),
            *([f"{seen} read the figures with that in mind."] if data.seen_before else []),
            *(
                [f"Expected beforehand: {plan.hypothesis.rstrip('.')}. The tests are two-sided."]
                if plan.hypothesis
                else []
            ),
            *_notes_on_tuning(tuning),
            *_notes_on_looks(plan),
            *([plan.few_documents] if plan.few_documents else []),
            *notes_on(records),
        ],
        explanation=explanation,
        registration=_registration(plan, columns[0]),
        tuning=tuning,
        variance=sources_of_variance(plan, folder) if plan.variance else None,
        lengths=word_lengths(plan.data.corpus(plan.corpus).lines) if plan.words and plan.corpus else None,
        attention=_attention_times(plan, {name: rows[0].run for name, rows in records.items()}),
    )


def _sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """All comparisons in words; many that show nothing share one sentence per reference, placed last."""
    silent: dict[str, dict[str, float]] = {}  # p by name, by reference
    for one in comparisons:
        if one.adjusted is not None and one.valid and not one.shown and one.equivalence is None:
            silent.setdefault(one.b, {})[one.a] = one.adjusted
    together = {other: found for other, found in silent.items() if len(found) > _ONE_BY_ONE}
    said = [one.sentence for one in comparisons if one.a not in together.get(one.b, ())]
    settings = f", {comparisons[0].settings}" if comparisons and comparisons[0].settings else ""
    for other, found in together.items():
        said.append(
            f"{listed(found)} against {other}{settings}: no difference shown,"
            f" {stats.p_in_words(min(found.values()))} or more after correction. What each interval excludes is in the report."
        )
    return said


def _attention_times(plan: Plan, runs: Mapping[str, Run]) -> list[AttentionTime] | None:
    """The time of attention alone, where mechanisms are compared on sentences."""
    if not plan.words or plan.varied != "model.mechanism":
        return None
    models = {name: stages.stored_config(run).model for name, run in runs.items()}
    return attention_times(models, *batch_of(next(iter(runs.values())))) or None


def _registration(plan: Plan, column: Figure) -> _Registration:
    first = plan.looks[0] if plan.looks else plan.seeds
    return _Registration(
        started=plan.started,
        hypothesis=plan.hypothesis or f"two-sided: the {column.title} of the two sides of a pair differ",
        figure=column.title,
        pairs=plan.compared(),
        alpha=_ALPHA,
        margin=plan.margin,
        seeds=first,
        looks=len(plan.looks) + 1,
        seeds_added=tuple(seed for seed in plan.seeds if seed not in first),
        checksums=fingerprints(plan),
        before_training=not plan.runs,
    )


def _seeds_added(plan: Plan) -> str:
    """The command that added seeds, if any were added."""
    return f"; attnlab resume FOLDER --seeds {','.join(map(str, plan.seeds))}" if plan.looks else ""


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
    found = tuning.at_edge if tuning else {}
    failed = sum(one.figure is None for one in tuning.trials) if tuning else 0
    notes = [
        f"The best {' and '.join(keys)} of {name} is at the edge of the values tried: try values beyond it."
        for name, keys in found.items()
    ]
    if tuning and tuning.tied:
        notes.append(f"Several of the values tried are equally good for {', '.join(tuning.tied)}: the first was taken.")
    return [*notes, *([f"{failed} of {len(tuning.trials)} trials of tuning diverged."] if tuning and failed else [])]


def _settings_in_words(plan: Plan, tuning: Tuning | None) -> str:
    """Half a sentence that says whether settings were tuned."""
    if plan.runs:
        return "with the settings they were trained with"
    if tuning is None:
        return "with the settings of the preset, not tuned for each"
    names, tried = (
        " and ".join(one.setting for one in tuning.settings),
        math.prod(len(one.values) for one in tuning.settings),
    )
    what = "sentences" if plan.words else "questions"
    stage = " of pretraining" if len(stages_of(plan.variants[0], plan)) > 1 else ""
    return f"each with its best {names}{stage} of {tried} tried, chosen on {tuning.items:,} other {what}"


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of a run without its seed."""
    return {key: value for key, value in run.record.settings.items() if key != "seed"}


def _describe_data(plan: Plan) -> _DataSummary:
    corpus, dev, facts, exam = (
        Path(name).name if name else None for name in (plan.corpus, plan.dev, plan.facts, plan.exam)
    )
    return _DataSummary(
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
    audit: Audit,
) -> Judged:
    """One variant with all its runs."""
    readings = [row.measured.word_by_word for row in rows]
    ahead = max(abs(one.word_by_word / one.whole - 1) for one in readings)
    leaks = any(check in audit["faults"] for check in _FUTURE) or ahead > _AHEAD
    whole, apart = (stats.geometric_mean([getattr(one, key) for one in readings]) for key in ("whole", "word_by_word"))
    return Judged(
        name=name,
        reference=rows is reference,
        leaks=leaks,
        audit=audit,
        settings={plan.varied: dict(flatten(settings_of(_varied_run(plan, rows[0].run)))).get(plan.varied)},
        values={one.key: spread_of([row.values[one.key] for row in rows], one.kind) for one in columns},
        runs=tuple(
            _SeedRun(
                row.seed,
                os.path.relpath(row.run.path, folder),
                row.values,
                [{key: step[key] for key in _CURVE} for step in row.run.metrics()],
            )
            for row in rows
        ),
        word_by_word=Readings(readings[0].sentences, whole, apart),
        texts=_texts(rows) if plan.words else None,
        gain=_gain(plan, rows, reference) if leaks and plan.words and rows is not reference else None,
        exam=rows[0].measured.answers,
    )


def _varied_run(plan: Plan, run: Run) -> Run:
    """The run whose settings are compared: of finished runs it is the last stage, else the first."""
    return run if plan.runs else lineage(run)[-1]


def spread_of(each: Sequence[float], kind: Kind) -> Spread:
    """The mean over the seeds with its interval, within the possible values; of perplexities, in logarithms."""
    found = stats.mean_interval(each)
    low, high = found.low, found.high
    mean: float | None = found.mean
    if kind == "perplexity":
        logs = stats.mean_interval([math.log(value) for value in each])
        mean, low, high = (exp_or_none(one) for one in (logs.mean, logs.low, logs.high))
    elif low is not None and high is not None:
        low, high = max(0.0, low), min(1.0, high) if kind == "share" else high
    return Spread(found.n, mean, found.sd, low, high, found.note, list(each))


def _gain(plan: Plan, leaking: Sequence[Record], reference: Sequence[Record]) -> Gain:
    # The texts that are read twice are some of the sentences, and so are their clusters.
    how = Testing(clusters=tuple(some(plan.clusters, READ_TWICE)) if plan.clusters else None)
    whole, apart = (_compare_text(leaking, reference, how, f"{name}.csv") for name in ("whole", "word_by_word"))
    gains = [stats.log_ratio_table(*_losses(leaking, reference, f"{name}.csv")) for name in ("word_by_word", "whole")]
    kept = stats.ratio_of_means(gains[0], gains[1], clusters=how.clusters) if whole.ratio != 1 else None
    first, second = (Ratio(one.ratio, one.ratio_low, one.ratio_high, one.p) for one in (whole, apart))
    return Gain(first, second, kept)


def _mean_probes(by_seed: Sequence[Sequence[Probe]]) -> tuple[_MeanProbe, ...]:
    probes = []
    for same in zip(*by_seed, strict=True):
        losses = [one.loss for one in same]
        loss = sum(losses) / len(losses)
        probes.append(_MeanProbe(same[0].sentence, same[0].tokens, same[0].unknown, loss, math.exp(loss), losses))
    return tuple(probes)


def _texts(rows: Sequence[Record]) -> Texts:
    qualities = [astuple(row.text.sample_quality) for row in rows]
    means = (sum(column) / len(column) for column in zip(*qualities, strict=True))
    spaced = [row.text.spaced_probes for row in rows]
    return Texts(
        _mean_probes([row.text.probes for row in rows]),
        rows[0].text.samples,
        Quality(*means),
        _mean_probes(spaced) if all(spaced) else (),  # earlier versions did not measure them
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
    counted = {at: 1.0 if one.p is None else one.p for at, one in enumerate(tested) if valid[at]}
    adjusted: dict[int, float] = {}
    if family > 1:
        corrected = (min(1.0, looks * p) for p in stats.holm(list(counted.values())))
        adjusted = {at: p for at, p in zip(counted, corrected, strict=True) if tested[at].p is not None}
    found = []
    for at, ((a, b), one) in enumerate(zip(pairs, tested, strict=True)):
        p = adjusted.get(at, one.p)
        correction: dict[str, Any] = (
            {"adjusted": adjusted[at], "comparisons": len(counted), "looks": looks} if at in adjusted else {}
        )
        words = stats.in_words(one.details, a, b, **correction)
        found.append(
            Comparison(
                a,
                b,
                column.key,
                words,
                one,
                adjusted.get(at),
                shown=p is not None and p < _ALPHA,
                valid=valid[at],
                by_seed=_by_seed(records[a], records[b], column),
                level=1 - levels[at],
                equivalence=one.details.equivalence,
                settings=settings,
            )
        )
    return found


def _by_seed(a: Sequence[Record], b: Sequence[Record], column: Figure) -> tuple[_SeedPair, ...]:
    rows = []
    for one, other in zip(a, b, strict=True):
        left, right = one.values[column.key], other.values[column.key]
        test = stats.mcnemar(one.answers(), other.answers()) if column.kind == "share" else None
        rows.append(_SeedPair(one.seed, left, right, left - right, test))
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
    if len({(one.tokens, one.unknown) for one in (*first, *second)}) > 1:
        raise UserError("the runs were not measured on the same words: their perplexities cannot be compared")
    return [one.losses for one in first], [one.losses for one in second], first[0].tokens


def _compare_text(a: Sequence[Record], b: Sequence[Record], how: Testing, name: str = "dev.csv") -> _TextEffect:
    """Compare token perplexities of the same sentences: for new seeds and sentences; for one seed, new sentences."""
    first, second, tokens = _losses(a, b, name)
    found = stats.paired_bootstrap(
        first, second, weights=tokens, alpha=how.alpha, margin=how.margin, clusters=how.clusters
    )
    low, high, p, test = found.ratio_low, found.ratio_high, found.p, "for new sentences, with this one seed"
    if found.both is not None:
        low, high, p = exp_or_none(found.both.low), exp_or_none(found.both.high), found.both.p
        test = "for new seeds and new sentences"
    return _TextEffect(found.ratio, low, high, p, test, found)


def compare_answers(a: Sequence[Record], b: Sequence[Record], how: Testing) -> _AnswerEffect:
    """Compare answers to the same questions: for new seeds and questions; for one seed, by McNemar's test.

    McNemar's test takes every question by itself: with clusters, one seed is tested over clusters instead.
    """
    first, second = ([record.answers() for record in side] for side in (a, b))
    test = "for new questions, with this one seed"
    if len(a) == 1 and how.clusters is None:
        alone = stats.mcnemar(first[0], second[0], how.alpha, how.margin)
        return _AnswerEffect(alone.difference, alone.low, alone.high, alone.p, test, alone)
    found = stats.seeds_by_questions(first, second, alpha=how.alpha, margin=how.margin, clusters=how.clusters)
    test = test if len(a) == 1 else "for new seeds and new questions"
    return _AnswerEffect(found.difference, found.both.low, found.both.high, found.both.p, test, found)


def difference(a: str, b: str, column: Figure, records: Records) -> Difference:
    """Describe the difference of a further figure."""
    sides = [[row.values[column.key] for row in records[name]] for name in (a, b)]
    found = stats.paired(*sides)
    ratio = found.a / found.b if found.b else None
    return Difference(a, b, column.key, found.difference, found.low, found.high, ratio)


# Leaks in words


def explain(variants: Sequence[Judged], text_quality: Quality | None) -> list[_Explanation]:
    """What the leaks are worth, compared with the first variant."""
    return [_explain_leak(one, variants[0], text_quality) for one in variants if one.leaks]


def _explain_leak(leaking: Judged, reference: Judged, text_quality: Quality | None) -> _Explanation:
    name = leaking.name
    paragraphs = [audit_in_words(name, leaking.audit), _readings(leaking, reference)]
    if leaking.gain:
        assert leaking.texts is not None
        assert reference.texts is not None
        assert text_quality is not None
        written = [_shares(one.texts.sample_quality) for one in (leaking, reference) if one.texts]
        paragraphs.append(
            f"Their samples: {name} {written[0]}; {reference.name} {written[1]}; the dev text {_shares(text_quality)}."
        )
        verdict = _verdict_on(name, reference.name, leaking.gain)
    elif leaking.reference and leaking.texts:
        verdict = f"{name} sees the future, and the others are compared with it: name a sound variant first."
    else:
        verdict = (
            f"{name} sees the future while it reads, so its training loss is invalid. Answers are written word by word,"
            " where there is no future: they are valid."
        )
    return _Explanation(f"What the leak of {name} is worth", [*paragraphs, verdict])


def audit_in_words(name: str, audit: Audit) -> str:
    """The audit in one sentence."""
    leaks, faults = audit["leak_by_position"], audit["faults"]
    seen = [at for at, value in enumerate(leaks) if value > LIMIT]
    if seen:
        worst = max(seen, key=lambda at: leaks[at])
        defect = f" {audit['defect'][:1].upper()}{audit['defect'][1:]}." if audit["defect"] else ""
        return (
            f"The audit: {len(seen)} of {len(leaks)} positions of {name} change when only later words do, by up to"
            f" {100 * leaks[worst]:.2g} % of their range (position {worst + 1}).{defect}"
        )
    if faults:
        return f"The audit of {name}: {'; '.join(faults.values())}."
    return f"The audit of {name} found no fault before training: the leak shows in the trained model only."


def _readings(leaking: Judged, reference: Judged) -> str:
    mine, others = leaking.word_by_word, reference.word_by_word
    beside = (
        "" if leaking is reference else f"; of {reference.name}: {others.whole:,.1f} and {others.word_by_word:,.1f}"
    )
    return (
        f"The trained models read the same {mine.sentences:,} texts twice: whole, as in training, and each word from"
        f" a text that ends before it, as in generation. Token perplexity of {leaking.name}: {mine.whole:,.1f} whole,"
        f" {mine.word_by_word:,.1f} word by word{beside}. For a model that cannot see the future, the two are equal."
    )


def _shares(quality: Quality) -> str:
    return (
        f"{100 * quality.unknown_share:.1f} % <UNK>, {100 * quality.punctuation_share:.1f} % punctuation,"
        f" {quality.mean_length:.0f} words per sentence"
    )


def _verdict_on(name: str, other: str, gain: Gain) -> str:
    """How much of the gain of a leaking variant is its leak, as far as the interval of that share tells."""
    whole, honest, kept = gain.whole, gain.word_by_word, gain.kept
    if not whole.shown or whole.ratio >= 1:
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
