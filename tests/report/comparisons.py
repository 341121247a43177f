"""A made-up result of a comparison: plausible numbers, none of them measured."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

from attnlab import stats
from attnlab.measure.audit import Report
from attnlab.report.parts import LossCurve
from attnlab.studies.compare import Compare
from attnlab.studies.compare.records import (
    Comparison,
    ComparisonResult,
    Difference,
    Effect,
    Figure,
    Kind,
    ProbeOverSeeds,
    Quality,
    Readings,
    SeedRun,
    Spread,
    TextsOverSeeds,
    VariantResult,
)
from attnlab.studies.compare.variants import Variant

FIGURES: list[tuple[str, str, str, Kind]] = [
    ("dev_sentence_perplexity", "dev perplexity (sentences)", "dev ppl/sent", "perplexity"),
    ("dev_token_perplexity", "dev perplexity (tokens)", "dev ppl/tok", "perplexity"),
    ("train_sentence_perplexity", "train perplexity (sentences)", "train ppl/sent", "perplexity"),
    ("train_token_perplexity", "train perplexity (tokens)", "train ppl/tok", "perplexity"),
    ("final_loss", "final loss", "loss", "loss"),
    ("seconds", "training time", "time", "seconds"),
    ("tokens_per_second", "tokens a second", "tokens/s", "rate"),
    ("peak_memory", "peak memory", "memory", "bytes"),
    ("parameters", "parameters", "parameters", "count"),
    ("flops_per_token", "FLOPs a token", "FLOPs/token", "count"),
]
LEVELS = {"dot": (380.8, 61.2), "additive": (386.0, 86.9), "zero_mask": (187.3, 60.4)}
PROBES = [
    "The quick brown fox jumps over the lazy dog .",
    "A very short one .",
    "Colourless green ideas sleep .",
    "It rains .",
]


def summary(values: Sequence[float]) -> Spread:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Spread(mean, None, None, None, tuple(values))
    reach = 4.303 * statistics.stdev(values) / math.sqrt(len(values))
    return Spread(mean, statistics.stdev(values), mean - reach, mean + reach, tuple(values))


def make_curve(last: float, steps: int, rng: random.Random) -> LossCurve:
    places = list(range(1, steps + 1))
    losses = [last + (10.2 - last) * math.exp(-6 * step / steps) + rng.gauss(0, 0.08) for step in places]
    return LossCurve(places, [873 * step + rng.randrange(100) for step in places], losses)


def make_variant(name: str, seeds: int, steps: int, rng: random.Random) -> VariantResult:
    level, seconds = LEVELS.get(name, (400.0, 70.0))
    runs = []
    for seed in range(seeds):
        sentence = level + rng.gauss(0, 2)
        values = {
            "dev_sentence_perplexity": sentence,
            "dev_token_perplexity": 0.8 * sentence,
            "train_sentence_perplexity": 0.95 * sentence,
            "train_token_perplexity": 0.76 * sentence,
            "final_loss": math.log(sentence),
            "seconds": seconds + rng.gauss(0, 1),
            "tokens_per_second": 250_000 / seconds,
            "peak_memory": 812e6 if name == "dot" else 1203e6,
            "parameters": 3_383_296.0,
            "flops_per_token": 20_345_678.0,
        }
        runs.append(SeedRun(seed, f"{name}/seed-{seed}", values, make_curve(math.log(level), steps, rng)))
    leaks = name == "zero_mask"
    places = tuple(0.4 * (1 - place / 64) if leaks else 0.0 for place in range(64))
    audit = Report(name, "pass", 0.0, "", {}, {}, (), places, (), (), ())
    if leaks:
        faults = {"future": "token 1 moves by 40 %"}
        audit = replace(audit, verdict="declared", causal_leak=max(places), defect="masked scores are 0", faults=faults)
    losses = (6.7, 6.8, 6.72)[:seeds]
    probes = tuple(ProbeOverSeeds(text, 11, 2, 6.74, 845.6, losses) for text in PROBES)
    samples = (f"{name} wrote that the company said <UNK> , and it was said .", "It is <b>not</b> a <script> .")
    return VariantResult(
        name,
        name,
        {key: summary([run.values[key] for run in runs]) for key, *_ in FIGURES},
        tuple(runs),
        leaks,
        audit,
        Readings(300, level, level * (41.7 if leaks else 1)),
        TextsOverSeeds(
            probes, samples, Quality(1000.0, 0.08, 0.12, 0.31, 22.1), Quality(20_000.0, 0.03, 0.11, 0.4, 24.0)
        ),
    )


def make_pair(a: VariantResult, b: VariantResult) -> Comparison:
    key = "dev_sentence_perplexity"
    left, right = a.values[key].each, b.values[key].each
    ratio, leaks = statistics.fmean(left) / statistics.fmean(right), a.leaks or b.leaks
    shown = abs(ratio - 1) > 0.03
    verb = "differs" if shown else "no difference shown"
    means = " vs ".join(f"{statistics.fmean(each):.1f}" for each in (left, right))
    words = f"{verb}: sentence perplexity {means} on 1,000 sentences x 3 seeds"
    tested = stats.mcnemar([True, False], [False, False])  # of another test: not shown
    scope = "new seeds and new sentences"
    effect = Effect("ratio", ratio, ratio * 0.98, ratio * 1.02, 0.0001 if shown else 0.21, scope, mcnemar=tested)
    return Comparison(a.name, b.name, words, effect, 0.0003 if shown else 0.42, shown, not leaks)


def make_comparison(
    names: Sequence[str] = ("dot", "additive", "zero_mask"), seeds: int = 3, steps: int = 120
) -> ComparisonResult:
    rng = random.Random(5)
    variants = tuple(make_variant(name, seeds, steps, rng) for name in names)
    settings = {"model": {"n_layer": 4, "n_embd": 128}, "train": {"lr": 0.003}}
    paragraphs = ("It halves the perplexity.", "It is no gain.")
    return ComparisonResult(
        kind="masking",
        title="dot, additive, zero_mask: which is better at words?",
        command="attnlab compare dot additive zero_mask --task words --seeds 3",
        finished="2026-11-16",
        seconds=1234.5,
        sizes={"training sentences": 9000, "measured sentences": 1000},
        checksums={"corpus": 64 * "5"},
        figures=tuple(Figure(key, title, short, kind, f"what {title} means") for key, title, short, kind in FIGURES),
        variants=variants,
        comparisons=tuple(make_pair(variant, variants[0]) for variant in variants[1:]),
        paired=tuple(Difference(variant.name, names[0], "seconds", 25.7, 20.0, 31.4, 1.42) for variant in variants[1:]),
        verdict=("The gain of zero_mask is the leak: word by word it is worse.", "additive is not shown to differ."),
        explanation={"zero_mask": paragraphs},
        published={"dot": {"dev_sentence_perplexity": 381.0}},
        environment={"attnlab": "0.1.0", "python": "3.11.7", "processor": "A Processor"},
        settings=dict.fromkeys(names, settings),
    )


class Asked(Compare):
    """A comparison with a question and a source of published figures."""

    question = "Does additive attention learn more from the same sentences than dot-product attention?"
    source = "course reports"


def plan_of(result: ComparisonResult, *, quick: bool = True) -> Compare:
    """The plan of a made-up result."""
    return Asked(
        quick=quick,
        corpus="prose:train",
        dev="prose:dev",
        varied="model.mechanism",
        seeds=tuple(run.seed for run in result.variants[0].runs),
        variants=tuple(Variant(variant.name) for variant in result.variants),
    )
