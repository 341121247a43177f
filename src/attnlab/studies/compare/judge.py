"""From finished runs to a result: figures with intervals, tests, verdicts in words. Trains and loads nothing.

Runs that do not belong together are refused.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from attnlab import stats
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.lm.perplexity import Probe
from attnlab.lm.tokenizers import word_lengths
from attnlab.measure.audit import Report
from attnlab.measure.audit.leaks import LIMIT
from attnlab.report.parts import LossCurve
from attnlab.report.words import capital, listed, plain
from attnlab.stats.checks import Numbers
from attnlab.store.runs import lineage
from attnlab.studies.compare.cautions import read_cautions
from attnlab.studies.compare.plan import ALPHA, Plan
from attnlab.studies.compare.records import (
    COLLAPSED,
    Comparison,
    ComparisonResult,
    Difference,
    Effect,
    Figure,
    Gain,
    ProbeOverSeeds,
    Quality,
    Readings,
    SeedRun,
    Spread,
    TextsOverSeeds,
    VariantResult,
    figures,
)
from attnlab.studies.compare.runs import (
    Record,
    Records,
    notes_on,
    read_records,
    read_twice,
    settings_without_seed,
    some,
)
from attnlab.studies.compare.variants import Tuning, run_differences
from attnlab.studies.training import share_of

_AHEAD = 0.005  # relative difference of perplexity, read whole and word by word, that rounding cannot explain
_ONE_BY_ONE = 4  # more comparisons than this that show no difference share a sentence
_NEARLY_ALL = 0.9  # share of a gain from which on it is called the leak
_FUTURE = ("future", "gradient", "prefix")  # checks of the audit that find leaks from the future
_OTHER_TEXTS = ("batch", "packing")
_ROSE = 0.01  # nats above its lowest value from which on a validation loss calls for fewer epochs
_STUCK = 0.9  # share of the first training loss above which a run has not learned, if others have
_SAME = 1e-6  # difference of losses that rounding explains
_FEW_STEPS = 20  # in fewer no run learns


def judge(plan: Plan, folder: Path, audits: Mapping[str, Report]) -> ComparisonResult:
    """Judge the finished runs of a comparison."""
    plan, tuning = plan.as_trained(folder), plan.choice(folder)
    records = read_records(plan, folder)
    gone = [name for name, rows in records.items() if not rows]
    if gone:
        records = {name: rows for name, rows in records.items() if rows}
        plan = replace(plan, variants=tuple(map(plan.find, records)))
    plan.refuse_other_runs(folder)
    _refuse_differences(plan, records)
    runs = [run for rows in records.values() for run in rows]
    columns = [figure for figure in figures(plan.words) if all(figure.key in run.values for run in runs)]
    reference = records[plan.variants[0].name]
    variants = [_describe(plan, folder, name, rows, reference, columns, audits[name]) for name, rows in records.items()]
    leaking = {variant.name for variant in variants if variant.leaks}
    stored = read_cautions(plan, folder)
    comparisons = compare_all(
        plan,
        records,
        columns[0],
        [plan.compared()],
        leaking,
        plan.clusters,
        stored.equal,
        _settings_in_words(plan, tuning),
    )
    explanation = explain(variants)
    differing = [column for column in columns[1:] if column.kind != "count"]
    stuck = _stuck(records)
    if stuck or any(len(rows) < len(plan.seeds) for rows in records.values()):
        variants = [_with_collapsed(plan, variant, records[variant.name], columns[0], stuck) for variant in variants]
        columns = [columns[0], COLLAPSED, columns[0].of_trained, *columns[1:]]
    return ComparisonResult(
        title=plan.title,
        seconds=round(sum(run.total_seconds for run in runs), 1),
        sizes=_sizes(plan),
        checksums=plan.fingerprints(),
        figures=tuple(columns),
        variants=tuple(variants),
        comparisons=tuple(comparisons),
        paired=tuple(
            _difference(a, b, column, records)
            for a, b in plan.compared()
            for column in differing
            if len(records[a]) == len(records[b]) == len(plan.seeds)
        ),
        settings={name: settings_without_seed(rows[0].run) for name, rows in records.items()},
        published=plan.published(),
        verdict=(
            *(paragraphs[-1] for paragraphs in explanation.values()),
            *(
                f"Every run of {name} diverged: it is left out. Lower the learning rate for all, or tune it with --tune."
                for name in gone
            ),
            *_notes_on_collapsed(records, stuck),
            *_sentences(comparisons),
            *_notes_on_runs(plan, records, variants),
            *_notes_on_plan(plan, tuning),
            *stored.notes,
            *notes_on(records),
        ),
        explanation=explanation,
        tuning=tuning,
        lengths=tuple(word_lengths(plan.data.corpus(plan.corpus).lines)) if plan.words and plan.corpus else (),
    )


def _refuse_differences(plan: Plan, records: Records) -> None:
    """Refuse runs that differ in more than the variant and the seed; runs of one variant, in more than the seed."""
    first = lineage(records[plan.variants[0].name][0].run)
    allowed = {*plan.varied_settings, *(tuned.setting for tuned in plan.tuned)}
    for rows in records.values():
        for record in rows:
            own = lineage(record.run)
            names = run_differences(first, own, allowed) | run_differences(lineage(rows[0].run), own)
            # The base of a user's finished run may have another seed.
            if stages.stored_config(record.run).seed != record.seed:
                names.add("seed")
            if names:
                raise UserError(
                    f"{first[0].path} and {record.run.path} differ in {', '.join(sorted(names))} besides {plan.varied},"
                    " so their effects could not be separated: remove the wrong run and resume, or start a new comparison"
                )


# The plan in words


def _notes_on_plan(plan: Plan, tuning: Tuning | None) -> list[str]:
    """What a reader must know of the data, the tuning, and seeds that were added."""
    notes = []
    if plan.seen_before:
        notes.append(
            f"{plan.seen_before:,} of the measured {plan.noun} are in the training data: read the figures with that in mind."
        )
    if plan.hypothesis:
        notes.append(f"Expected beforehand: {plan.hypothesis.rstrip('.')}. The tests are two-sided.")
    if tuning:
        notes += [
            f"The best {' and '.join(keys)} of {name} is at the edge of the values tried: try values beyond it."
            for name, keys in tuning.at_edge.items()
        ]
        if failed := sum(trial.figure is None for trial in tuning.trials):
            notes.append(f"{failed} of {len(tuning.trials)} trials of tuning diverged.")
    if plan.looks:
        added = ", ".join(str(seed) for seed in plan.seeds if seed not in plan.looks[0])
        looks = len(plan.looks) + 1
        chance = 100 * ALPHA * sum(1 / look for look in range(1, looks + 1))
        notes.append(
            f"Seeds {added} were added after a result was known: this is look {looks}. Every p is multiplied by the number of"
            " looks. The earlier results were tested before that, so the chance of a false difference in any of them is up"
            f" to {chance:.1f} %."
        )
    return notes


def _notes_on_runs(plan: Plan, records: Records, variants: Sequence[VariantResult]) -> list[str]:
    """Runs that collapsed or overfitted, and faults of the audit that are no leaks."""
    notes = []
    for variant in variants:
        rows, faults = records[variant.name], variant.audit.faults
        if faults and not variant.leaks:
            found = "; ".join(f"{check}: {fault}" for check, fault in faults.items())
            notes.append(
                f"The audit of {variant.name} found a fault that is no leak: {found}. Its figures are valid, except under"
                " these conditions."
            )
        if lost := len(plan.seeds) - len(rows):
            notes.append(
                f"{lost} of {len(plan.seeds)} runs of {variant.name} diverged: its figures are those of the runs that"
                " trained, and it is not tested. Try a lower learning rate for all, or --tune."
            )
        rises = [rise for row in rows if (rise := _rise(row)) > 0]
        if rises and plan.words:
            text = "their own validation text" if plan.runs else "the measured sentences"
            notes.append(
                f"The validation loss of {variant.name} rose after its best step in {len(rises)} of {len(rows)} runs, by up"
                f" to {max(rises):.2g}: their figures are those of the best checkpoint, chosen on {text}."
                f"{' Train for fewer epochs.' if max(rises) > _ROSE else ''}"
            )
    return notes


def _rise(row: Record) -> float:
    """How far the validation loss of a run ended above its lowest value."""
    losses = [step.dev_loss for step in row.run.metrics() if step.dev_loss is not None]
    return losses[-1] - min(losses) if losses else 0.0


def _settings_in_words(plan: Plan, tuning: Tuning | None) -> str:
    """Half a sentence that says whether settings were tuned."""
    if plan.runs:
        return "with the settings they were trained with"
    if tuning is None:
        return "with the settings of the preset, not tuned for each"
    names = " and ".join(tuned.setting for tuned in tuning.settings)
    tried = math.prod(len(tuned.values) for tuned in tuning.settings)
    stage = " of pretraining" if len(plan.stages(plan.variants[0])) > 1 else ""
    return f"each with its best {names}{stage} of {tried} tried, chosen on {tuning.items:,} other {plan.noun}"


def _sizes(plan: Plan) -> dict[str, int]:
    """The sizes of the data; documents or people that items share are counted if there are any."""
    corpus = plan.data.corpus(plan.corpus).lines if plan.corpus else ()
    sizes = {"training sentences": len(corpus), f"measured {plan.noun}": len(plan.items)}
    shared = "their documents" if plan.words else "people they are about"
    sizes |= {shared: len(set(plan.clusters))} if plan.clusters else {}
    return {**sizes, f"{plan.noun} in the training data": plan.seen_before}


# Variants


def _describe(
    plan: Plan,
    folder: Path,
    name: str,
    rows: Sequence[Record],
    reference: Sequence[Record],
    columns: Sequence[Figure],
    audit: Report,
) -> VariantResult:
    """One variant with all its runs."""
    readings = [row.measured.word_by_word for row in rows]
    ahead = max(abs(reading.word_by_word / reading.whole - 1) for reading in readings)
    leaks = any(check in audit.faults for check in (*_FUTURE, *_OTHER_TEXTS)) or ahead > _AHEAD
    whole = stats.geometric_mean([reading.whole for reading in readings])
    word_by_word = stats.geometric_mean([reading.word_by_word for reading in readings])
    # Of finished runs the last stage is compared, else the first.
    varied = stages.stored_config(rows[0].run if plan.runs else lineage(rows[0].run)[-1]).flat()
    values = [varied.get(name) for name in plan.varied_settings]
    return VariantResult(
        name=name,
        value=values[0] if len(values) == 1 else ", ".join(map(plain, values)),
        values={column.key: spread(rows, column, plan.clusters) for column in columns},
        runs=tuple(
            SeedRun(
                row.seed,
                os.path.relpath(row.run.path, folder),
                {column.key: row.values[column.key] for column in columns},
                LossCurve.of(row.run.metrics()),
                LossCurve.of_validation(row.run.metrics()),
            )
            for row in rows
        ),
        leaks=leaks,
        audit=audit,
        word_by_word=Readings(readings[0].sentences, whole, word_by_word),
        texts=_texts(rows) if plan.words else None,
        gain=_gain(plan, rows, reference) if leaks and plan.words and rows is not reference else None,
        exam=rows[0].measured.answers,
    )


def _items(rows: Sequence[Record], column: Figure) -> Numbers:
    """The tested figure, or a perplexity, as a table of seeds x items whose mean it is; of a perplexity, in logarithms."""
    if column.kind == "share":
        return np.array([row.answers() for row in rows], dtype=float)
    part, _, kind = column.key.partition("_")
    losses = [row.losses(f"{part}.csv") for row in rows]
    return stats.log_perplexities(
        [one.losses for one in losses], losses[0].tokens if kind.startswith("token") else None
    )


def spread(rows: Sequence[Record], column: Figure, clusters: Sequence[int] | None) -> Spread:
    """A figure with its interval for other seeds and other items; of what has no items (time, loss), for other seeds."""
    each = tuple(row.values[column.key] for row in rows)
    over_seeds = stats.mean_interval(each)
    mean, low, high = over_seeds.mean, over_seeds.low, over_seeds.high
    if column.kind == "perplexity":
        # Training sentences were drawn one by one.
        of_training = column.key.startswith("train")
        found = stats.crossed(_items(rows, column), clusters=None if of_training else clusters)
        low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
        mean = math.exp(found.mean)
    elif column.key == "accuracy":
        right = share_of(*(row.answers() for row in rows), clusters=clusters)
        low, high = right.low, right.high
    elif low is not None:
        low = max(0.0, low)
    return Spread(mean, over_seeds.sd, low, high, each)


def _stuck(records: Records) -> dict[tuple[str, int], float]:
    """The runs that have not learned, by variant and seed, with the first loss of each.

    The loss has hardly fallen since the first step of the first stage, while that of another run has fallen further.
    """
    runs = [(name, row, lineage(row.run)[-1].metrics()) for name, rows in records.items() for row in rows]
    least = min(row.values["final_loss"] for _, row, _ in runs)
    return {
        (name, row.seed): steps[0].loss
        for name, row, steps in runs
        if len(steps) >= _FEW_STEPS and row.values["final_loss"] > max(_STUCK * steps[0].loss, least / _STUCK)
    }


def _notes_on_collapsed(records: Records, stuck: Mapping[tuple[str, int], float]) -> list[str]:
    """One sentence for each variant of which runs have not learned."""
    notes = []
    for name, rows in records.items():
        if lost := [row for row in rows if (name, row.seed) in stuck]:
            first, last = stuck[name, lost[0].seed], lost[0].values["final_loss"]
            notes.append(
                f"{len(lost)} of {len(rows)} runs of {name} collapsed (training loss {first:.2f} at first, {last:.2f} at the"
                " end): comparisons with it compare models that learned with models that did not. Lower the learning rate"
                " for all, or tune it with --tune."
            )
    return notes


def _with_collapsed(
    plan: Plan, variant: VariantResult, rows: Sequence[Record], column: Figure, stuck: Mapping[tuple[str, int], float]
) -> VariantResult:
    """The variant with the share of its runs that collapsed, and the tested figure of the others."""
    from scipy.stats import binomtest

    trained = [row for row in rows if (variant.name, row.seed) not in stuck]
    share = 1 - len(trained) / len(plan.seeds)
    ends = binomtest(len(plan.seeds) - len(trained), len(plan.seeds)).proportion_ci()
    values = {**variant.values, COLLAPSED.key: Spread(share, None, float(ends.low), float(ends.high), ())}
    if trained:
        values[column.of_trained.key] = spread(trained, column, plan.clusters)
    return replace(variant, values=values)


def _texts(rows: Sequence[Record]) -> TextsOverSeeds:
    """The means over the seeds, with the samples of the first."""
    texts = [row.text for row in rows]
    qualities = zip(*(astuple(text.sample_quality) for text in texts), strict=True)
    return TextsOverSeeds(
        probes=_mean_probes([text.probes for text in texts]),
        samples=texts[0].samples,
        sample_quality=Quality(*map(fmean, qualities)),
        text_quality=texts[0].text_quality,
        spaced_probes=_mean_probes([text.spaced_probes for text in texts]),
    )


def _mean_probes(by_seed: Sequence[Sequence[Probe]]) -> tuple[ProbeOverSeeds, ...]:
    probes = []
    for first, *others in zip(*by_seed, strict=True):
        losses = (first.loss, *(probe.loss for probe in others))
        loss = sum(losses) / len(losses)
        mean = replace(first, loss=loss, perplexity=math.exp(loss))
        probes.append(ProbeOverSeeds(**vars(mean), losses=losses))
    return tuple(probes)


def _gain(plan: Plan, leaking: Sequence[Record], reference: Sequence[Record]) -> Gain | None:
    # The texts that are read twice are some of the sentences, and so are their clusters.
    clusters = tuple(some(plan.clusters, read_twice(plan.sentences))) if plan.clusters else None
    files = ("whole.csv", "word_by_word.csv")
    seeds = {row.seed for row in leaking} & {row.seed for row in reference}
    leaking, reference = ([row for row in rows if row.seed in seeds] for rows in (leaking, reference))
    if not seeds:
        return None
    whole, apart = (compare_text(leaking, reference, clusters=clusters, name=name) for name in files)
    of_whole, of_words = (difference_table(leaking, reference, name) for name in files)
    kept = stats.ratio_of_means(of_words, of_whole, clusters=clusters) if whole.value != 1 else None
    return Gain(whole, apart, kept)


# Tests


def compare_all(
    plan: Plan,
    records: Records,
    column: Figure,
    groups: Sequence[Sequence[tuple[str, str]]],
    leaking: set[str],
    clusters: Sequence[int] | None,
    equal: Sequence[tuple[str, str]] = (),
    settings: str = "",
) -> list[Comparison]:
    """Test every pair; several comparisons are corrected together, p by Holm and intervals by Bonferroni.

    Pairs of one group share what they know about seeds. If seeds were added after a result was known, every look counts.
    """
    pairs, looks = list(itertools.chain(*groups)), len(plan.looks) + 1
    # Answers are written word by word, where there is no future; perplexities of models that leak are invalid.
    valid = [column.kind == "share" or not set(pair) & leaking for pair in pairs]
    refused = {pair: reason for pair in pairs if (reason := _not_tested(plan, records, *pair, pair in equal))}
    tested = [fair and pair not in refused for pair, fair in zip(pairs, valid, strict=True)]
    family = max(1, sum(tested)) * looks
    test = compare_text if column.kind == "perplexity" else compare_answers
    levels = [ALPHA / family if each else ALPHA for each in tested]
    fair = {pair for pair, each in zip(pairs, tested, strict=True) if each}
    shared: dict[tuple[str, str], stats.SharedSeeds | None] = {}
    for sharing in ([pair for pair in group if pair in fair] for group in groups):
        names = dict.fromkeys(name for pair in sharing for name in pair)
        tables = {name: _items(records[name], column) for name in names}
        if sharing:
            shared |= zip(sharing, stats.shared_seeds(tables, sharing, clusters), strict=True)
    effects = []
    kind: Literal["ratio", "difference"] = "ratio" if column.kind == "perplexity" else "difference"
    for (a, b), alpha in zip(pairs, levels, strict=True):
        if (a, b) in refused:
            effects.append(Effect(kind, None, None, None, None, ""))
        else:
            pooled = shared.get((a, b))
            effects.append(test(records[a], records[b], alpha, plan.margin, clusters, shared=pooled))
    counted = {at: 1.0 if effect.p is None else effect.p for at, effect in enumerate(effects) if tested[at]}
    adjusted: dict[int, float] = {}
    if family > 1:
        corrected = (min(1.0, looks * p) for p in stats.holm(list(counted.values())))
        adjusted = {at: p for at, p in zip(counted, corrected, strict=True) if effects[at].p is not None}
    comparisons = []
    for at, ((a, b), effect) in enumerate(zip(pairs, effects, strict=True)):
        p = adjusted.get(at, effect.p)
        tests = (len(counted), looks) if at in adjusted else (1, 1)
        words = refused.get((a, b), "")
        if effect.details is not None:
            words = stats.in_words(
                effect.details, a, b, adjusted=adjusted.get(at), comparisons=tests[0], looks=tests[1]
            )
        shown, level = p is not None and p < ALPHA, 1 - levels[at]
        belief = _belief(a, b, effect, plan.margin) if valid[at] else ""
        judged = (adjusted.get(at), shown, valid[at], level, settings, belief)
        comparisons.append(Comparison(a, b, words, effect, *judged))
    return comparisons


def _not_tested(plan: Plan, records: Records, a: str, b: str, equal: bool) -> str:
    """Why a pair cannot be tested: runs that diverged, or two variants that computed the same."""
    first, second = records[a], records[b]
    if lost := [
        f"{len(plan.seeds) - len(rows)} of {name}"
        for name, rows in ((a, first), (b, second))
        if len(rows) < len(plan.seeds)
    ]:
        return f"no test: of {len(plan.seeds)} runs, {' and '.join(lost)} diverged"
    losses = zip(*([row.losses("whole.csv").losses for row in rows] for rows in (first, second)), strict=True)
    if all(np.allclose(x, y, rtol=0, atol=_SAME) for x, y in losses):
        return "both computed the same, with equal losses of every text and seed: there is nothing to compare"
    if equal:
        return "both compute the same on texts as short as these, but for rounding: there is nothing to compare"
    return ""


def _belief(a: str, b: str, effect: Effect, margin: float | None) -> str:
    """The probabilities of an effect as a sentence."""
    if effect.better is None:
        return ""
    (name, other), chance = ((a, b), effect.better) if effect.better >= 0.5 else ((b, a), 1 - effect.better)
    size = "" if margin is None else f"{100 * margin:g} {'points' if effect.kind == 'difference' else '%'}"
    within = f"; that they differ by less than {size}: {_percent(effect.similar)}" if effect.similar is not None else ""
    return (
        f"Under a flat prior, the probability that {name} is better than {other} is {_percent(chance)}{within}. This is"
        " another reading of the same numbers, not a test, and not corrected for the number of pairs."
    )


def _percent(chance: float | None) -> str:
    """A probability in words; none is certain."""
    percent = 100 * (chance or 0.0)
    return "above 99.9 %" if percent > 99.9 else "below 0.1 %" if percent < 0.1 else f"{percent:.1f} %"


def losses_of(
    a: Sequence[Record], b: Sequence[Record], name: str
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]], tuple[int, ...]]:
    """The losses of both sides, one row per seed, and the tokens per sentence."""
    first, second = ([record.losses(name) for record in side] for side in (a, b))
    if len({(losses.tokens, losses.unknown) for losses in (*first, *second)}) > 1:
        raise UserError("the runs were not measured on the same words: their perplexities cannot be compared")
    return [losses.losses for losses in first], [losses.losses for losses in second], first[0].tokens


def difference_table(a: Sequence[Record], b: Sequence[Record], name: str) -> Numbers:
    """What each sentence adds to the logarithm of the ratio of two token perplexities: seeds x sentences."""
    *sides, tokens = losses_of(a, b, name)
    first, second = (stats.log_perplexities(side, tokens) for side in sides)
    return np.asarray(first - second)


def compare_text(
    a: Sequence[Record],
    b: Sequence[Record],
    alpha: float = ALPHA,
    margin: float | None = None,
    clusters: Sequence[int] | None = None,
    name: str = "dev.csv",
    shared: stats.SharedSeeds | None = None,
) -> Effect:
    """Compare token perplexities of the same sentences: for new seeds and sentences; for one seed, new sentences."""
    first, second, tokens = losses_of(a, b, name)
    test = stats.compare_perplexities(
        first, second, tokens, alpha=alpha, margin=margin, clusters=clusters, shared=shared
    )
    scope = "new sentences, with this one seed" if len(a) == 1 else "new seeds and new sentences"
    low, high = (None if end is None else math.exp(end) for end in (test.both.low, test.both.high))
    beliefs = _chances(test.both, -1, None if margin is None else math.log1p(margin))
    return Effect("ratio", test.ratio, low, high, test.both.p, scope, *beliefs, perplexities=test)


def compare_answers(
    a: Sequence[Record],
    b: Sequence[Record],
    alpha: float,
    margin: float | None,
    clusters: Sequence[int] | None,
    shared: stats.SharedSeeds | None = None,
) -> Effect:
    """Compare answers to the same questions: for new seeds and questions; for one seed, by McNemar's test.

    McNemar's test takes every question by itself: with clusters, one seed is tested over clusters instead.
    """
    first, second = ([record.answers() for record in side] for side in (a, b))
    scope = "new questions, with this one seed" if len(a) == 1 else "new seeds and new questions"
    test = stats.seeds_by_questions(first, second, alpha=alpha, margin=margin, clusters=clusters, shared=shared)
    both, beliefs = test.both, _chances(test.both, 1, margin)
    if len(a) == 1 and clusters is None:
        alone = stats.mcnemar(first[0], second[0], alpha, margin)
        return Effect("difference", alone.difference, alone.low, alone.high, alone.p, scope, *beliefs, mcnemar=alone)
    return Effect("difference", test.difference, both.low, both.high, both.p, scope, *beliefs, answers=test)


def _chances(both: stats.Crossed, sign: int, margin: float | None) -> tuple[float | None, float | None]:
    """The probabilities under a flat prior that A is better, and that the difference is within the margin."""
    ends = (0.0, math.inf) if sign > 0 else (-math.inf, 0.0)
    return both.chance(*ends), None if margin is None else both.chance(-margin, margin)


def _difference(a: str, b: str, column: Figure, records: Records) -> Difference:
    """Describe the difference of a further figure."""
    test = stats.paired(*([row.values[column.key] for row in records[name]] for name in (a, b)))
    ratio = test.a / test.b if test.b else None
    return Difference(a, b, column.key, test.difference, test.low, test.high, ratio)


def _sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """All comparisons in words; many that show nothing share one sentence per reference, placed last."""
    silent: dict[str, dict[str, float]] = {}  # p by name, by reference
    for pair in comparisons:
        if pair.adjusted is not None and pair.valid and not pair.shown and not pair.equivalence:
            silent.setdefault(pair.b, {})[pair.a] = pair.adjusted
    together = {other: names for other, names in silent.items() if len(names) > _ONE_BY_ONE}
    sentences = [pair.sentence for pair in comparisons if pair.a not in together.get(pair.b, ())]
    for other, names in together.items():
        settings = next(pair.settings for pair in comparisons)
        sentences.append(
            f"{listed(names)} against {other}, {settings}: no difference shown,"
            f" {stats.p_in_words(min(names.values()))} or more after correction. What each interval excludes is in the report."
        )
    return sentences


# Leaks in words


def explain(variants: Sequence[VariantResult]) -> dict[str, tuple[str, ...]]:
    """What the leaks are worth, compared with the first variant, in paragraphs by variant."""
    return {variant.name: _explain_leak(variant, variants[0]) for variant in variants if variant.leaks}


def _explain_leak(leaking: VariantResult, reference: VariantResult) -> tuple[str, ...]:
    name = leaking.name
    paragraphs = [audit_in_words(name, leaking.audit), _readings(leaking, reference)]
    if leaking.gain and leaking.texts and reference.texts:
        written, beside = (_shares(texts.sample_quality) for texts in (leaking.texts, reference.texts))
        paragraphs.append(
            f"Their samples: {name} {written}; {reference.name} {beside}; the dev text {_shares(leaking.texts.text_quality)}."
        )
        verdict = _verdict_on(f"{name} {_sees(leaking)}", name, reference.name, leaking.gain)
    elif leaking is reference and leaking.texts:
        verdict = f"{name} {_sees(leaking)}, and the others are compared with it: name a sound variant first."
    else:
        verdict = (
            f"{name} {_sees(leaking)} while it reads, so its training loss is invalid. Answers are written word by word,"
            " where there is no future: they are valid."
        )
    return (*paragraphs, verdict)


def audit_in_words(name: str, audit: Report) -> str:
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


def _sees(variant: VariantResult) -> str:
    """What a variant that leaks sees."""
    mixes, ahead = (any(check in variant.audit.faults for check in checks) for checks in (_OTHER_TEXTS, _FUTURE))
    return "sees the other texts of a batch" if mixes and not ahead else "sees the future"


def _verdict_on(opening: str, name: str, other: str, gain: Gain) -> str:
    """How much of the gain of a leaking variant is its leak, as far as the interval of that share tells."""
    whole, kept = gain.whole, gain.kept
    as_read, honest = (_times(effect) for effect in (whole, gain.word_by_word))
    if whole.value is None or whole.p is None or whole.p >= ALPHA or whole.value >= 1:
        return f"{opening}, and no gain from it is shown: its token perplexity is {as_read} that of {other}."
    readings = (
        f"{name} looks better than {other}, its token perplexity on the texts read twice {as_read} that of {other};"
        f" word by word, where there is no future, it is {honest}."
    )
    if kept is None or kept.low is None or kept.high is None:
        return f"How much of the gain is the leak is not shown: {readings}"
    gone, least, most = (f"{100 * (1 - share):.0f} %" for share in (kept.value, kept.high, kept.low))
    if 1 - kept.high >= _NEARLY_ALL:
        claim = "The gain is the leak"
    elif kept.high < 1:
        claim = f"At least {least} of the gain is the leak"
    else:
        claim = "Whether the gain is the leak is not shown"
    share = f"Word by word {gone} of the gain is gone (95 % interval {least} to {most})"
    return f"{claim}: {readings} {share}."


def _times(effect: Effect) -> str:
    """A ratio in words."""
    interval = "" if effect.low is None else f" ({effect.low:.3g} to {effect.high:.3g})"
    return f"{effect.value:.3g} times{interval}"
