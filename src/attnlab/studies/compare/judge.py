"""From finished runs to a result: figures with intervals, tests, verdicts in words. Trains and loads nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from attnlab import stages, stats
from attnlab.config import flatten
from attnlab.errors import UserError
from attnlab.measure.audit.leaks import LIMIT
from attnlab.perplexity import Probe
from attnlab.records import flat, optional
from attnlab.runs import Run, lineage
from attnlab.stats.perplexity import exp_or_none
from attnlab.studies.compare.plan import Plan, seen_before
from attnlab.studies.compare.records import (
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
)
from attnlab.studies.study import StudyResult

_AHEAD = 0.005  # relative difference of perplexity, read whole and word by word, that rounding cannot explain
_ALPHA = 0.05
_CURVE = ("step", "tokens", "loss", "seconds")  # kept per step
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
    believed: bool = True  # False if one of the two sees the future
    by_seed: tuple[_SeedPair, ...] = ()

    @property
    def sentence(self) -> str:
        """The comparison as a sentence."""
        words = f"{self.a} against {self.b}: {self.words}."
        return words if self.believed else f"{words} This is invalid, since one of the two sees the future."


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
    """A specimen's probes (means over seeds) and samples (of the first seed)."""

    probes: tuple[_MeanProbe, ...]
    samples: tuple[str, ...]
    sample_quality: Quality


@dataclass(frozen=True)
class Gain:
    """The perplexity of a leaking specimen over that of the reference: read whole, and word by word."""

    whole: Ratio
    word_by_word: Ratio


@dataclass(frozen=True)
class _SeedRun:
    seed: int
    folder: str
    values: dict[str, float]
    metrics: list[dict[str, float]]


@dataclass(frozen=True)
class Judged:
    """One specimen with all its runs."""

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


@dataclass(frozen=True)
class _DataSummary:
    corpus: str | None
    dev: str | None
    facts: str | None
    exam: str | None
    sentences: int
    dev_sentences: int | None
    questions: int | None
    seen_before: int


@dataclass(frozen=True)
class _Explanation:
    """What the leak of a specimen is worth; the last paragraph is the verdict."""

    title: str
    paragraphs: list[str]


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
    specimens: list[Judged]
    comparisons: list[Comparison]
    paired: list[Difference]
    settings: dict[str, dict[str, Any]]
    theirs: tuple[dict[str, Any], ...] | None = optional()
    text_quality: Quality | None = optional()
    verdict: list[str]
    explanation: list[_Explanation]


def judge(plan: Plan, folder: Path, audits: Mapping[str, Audit]) -> ComparisonResult:
    """Judge the finished runs of a comparison."""
    records = read_records(plan, folder)
    refuse_differences(plan, records)
    every = [one for rows in records.values() for one in rows]
    columns = [one for one in figures(plan.words) if all(one.key in record.values for record in every)]
    reference = plan.specimens[0].name
    specimens = [
        _describe(plan, folder, name, rows, records[reference], columns, audits[name]) for name, rows in records.items()
    ]
    leaking = {one.name for one in specimens if one.leaks}
    comparisons = compare_all(plan, records, columns[0], leaking)
    data, text_quality = _describe_data(plan), every[0].text.text_quality if plan.words else None
    explanation = explain(specimens, text_quality)
    seen = (
        f"{data.seen_before:,} of the measured {'sentences' if plan.words else 'questions'} are in the training data:"
    )
    config = stages.stored_config(every[0].run)
    return ComparisonResult(
        study=plan.study,
        title=plan.title,
        question=plan.question,
        command=plan.command,
        seconds=round(sum(one.values["seconds"] + one.measured.measuring for one in every), 1),
        quick=plan.quick,
        task=config.task.name,
        preset=config.preset,
        varied=plan.varied,
        seeds=plan.seeds,
        jobs=plan.jobs,
        order=plan.order(),
        data=data,
        figures=columns,
        specimens=specimens,
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
            *(one.sentence for one in comparisons),
            *([f"{seen} read the figures with that in mind."] if data.seen_before else []),
            *notes_on(records),
        ],
        explanation=explanation,
    )


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
        dev_sentences=len(plan.data.corpus(plan.dev).lines) if plan.dev else None,
        questions=len(plan.data.questions(plan.exam)) if plan.exam else None,
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
    """One specimen with all its runs."""
    readings = [row.measured.word_by_word for row in rows]
    ahead = max(abs(one.word_by_word / one.whole - 1) for one in readings)
    leaks = any(check in audit["faults"] for check in _FUTURE) or ahead > _AHEAD
    whole, apart = (stats.geometric_mean([getattr(one, key) for one in readings]) for key in ("whole", "word_by_word"))
    return Judged(
        name=name,
        reference=rows is reference,
        leaks=leaks,
        audit=audit,
        settings={plan.varied: dict(flatten(settings_of(lineage(rows[0].run)[-1]))).get(plan.varied)},
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
        gain=_gain(rows, reference) if leaks and plan.words and rows is not reference else None,
    )


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


def _gain(leaking: Sequence[Record], reference: Sequence[Record]) -> Gain:
    whole, apart = (_compare_text(leaking, reference, f"{name}.csv") for name in ("whole", "word_by_word"))
    return Gain(*(Ratio(one.ratio, one.ratio_low, one.ratio_high, one.p) for one in (whole, apart)))


def _texts(rows: Sequence[Record]) -> Texts:
    probes = []
    for same in zip(*(row.text.probes for row in rows), strict=True):
        losses = [one.loss for one in same]
        loss = sum(losses) / len(losses)
        probes.append(_MeanProbe(same[0].sentence, same[0].tokens, same[0].unknown, loss, math.exp(loss), losses))
    qualities = [astuple(row.text.sample_quality) for row in rows]
    means = (sum(column) / len(column) for column in zip(*qualities, strict=True))
    return Texts(tuple(probes), rows[0].text.samples, Quality(*means))


# Tests


def compare_all(plan: Plan, records: Records, column: Figure, leaking: set[str]) -> list[Comparison]:
    """Test every pair, with Holm's correction if there are several."""
    pairs = plan.compared()
    test = _compare_text if plan.words else compare_answers
    tested = [test(records[a], records[b]) for a, b in pairs]
    # Answers are written word by word, where there is no future; perplexities of models that see it are invalid.
    believed = [column.kind == "share" or not set(pair) & leaking for pair in pairs]
    known = {at: one.p for at, one in enumerate(tested) if one.p is not None and believed[at]}
    adjusted: dict[int, float] = {}
    if len(known) > 1:
        adjusted = dict(zip(known, stats.holm(list(known.values())), strict=True))
    found = []
    for at, ((a, b), one) in enumerate(zip(pairs, tested, strict=True)):
        p = adjusted.get(at, one.p)
        words = stats.in_words(
            one.details, a, b, adjusted=adjusted.get(at), comparisons=len(known) if at in adjusted else 1
        )
        found.append(
            Comparison(
                a,
                b,
                column.key,
                words,
                one,
                adjusted.get(at),
                shown=p is not None and p < _ALPHA,
                believed=believed[at],
                by_seed=_by_seed(records[a], records[b], column),
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


def _compare_text(a: Sequence[Record], b: Sequence[Record], name: str = "dev.csv") -> _TextEffect:
    """Compare token perplexities of the same sentences: for new seeds and sentences; for one seed, new sentences."""
    first, second = ([record.losses(name) for record in side] for side in (a, b))
    if len({(one.tokens, one.unknown) for one in (*first, *second)}) > 1:
        raise UserError("the runs were not measured on the same words: their perplexities cannot be compared")
    found = stats.paired_bootstrap(
        [one.losses for one in first], [one.losses for one in second], weights=first[0].tokens
    )
    low, high, p, test = found.ratio_low, found.ratio_high, found.p, "for new sentences, with this one seed"
    if found.both is not None:
        low, high, p = exp_or_none(found.both.low), exp_or_none(found.both.high), found.both.p
        test = "for new seeds and new sentences"
    return _TextEffect(found.ratio, low, high, p, test, found)


def compare_answers(a: Sequence[Record], b: Sequence[Record]) -> _AnswerEffect:
    """Compare answers to the same questions: for new seeds and questions; for one seed, by McNemar's test."""
    first, second = ([record.answers() for record in side] for side in (a, b))
    if len(a) == 1:
        alone = stats.mcnemar(first[0], second[0])
        test = "for new questions, with this one seed"
        return _AnswerEffect(alone.difference, alone.low, alone.high, alone.p, test, alone)
    found = stats.seeds_by_questions(first, second)
    both = found.both
    return _AnswerEffect(found.difference, both.low, both.high, both.p, "for new seeds and new questions", found)


def difference(a: str, b: str, column: Figure, records: Records) -> Difference:
    """Describe the difference of a further figure."""
    sides = [[row.values[column.key] for row in records[name]] for name in (a, b)]
    found = stats.paired(*sides)
    ratio = found.a / found.b if found.b else None
    return Difference(a, b, column.key, found.difference, found.low, found.high, ratio)


# Leaks in words


def explain(specimens: Sequence[Judged], text_quality: Quality | None) -> list[_Explanation]:
    """What the leaks are worth, compared with the first specimen."""
    return [_explain_leak(one, specimens[0], text_quality) for one in specimens if one.leaks]


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
        verdict = f"{name} sees the future, and the others are compared with it: name a sound specimen first."
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
    """Whether the gain of a leaking specimen is its leak: what remains of it without the future."""
    whole, honest = gain.whole, gain.word_by_word
    if not whole.shown or whole.ratio >= 1:
        return f"{name} sees the future, and no gain from it is shown: its token perplexity is {whole} that of {other}."
    readings = (
        f"{name} looks better than {other}, its token perplexity on the texts read twice {whole} that of {other};"
        f" word by word, where there is no future, it is {honest}."
    )
    if not honest.shown or honest.ratio >= 1:
        return f"The gain is the leak: {readings}"
    share = 1 - math.log(honest.ratio) / math.log(whole.ratio)
    return (
        f"{100 * share:.0f} % of the gain is the leak: {readings}"
        if share > 0
        else f"The gain is not the leak: {readings}"
    )
