"""A made-up result of a comparison: plausible numbers, none of them measured."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

Result = dict[str, Any]

FIGURES = [
    ("dev_sentence_perplexity", "dev perplexity (sentences)", "dev ppl/sent", "perplexity", True),
    ("dev_token_perplexity", "dev perplexity (tokens)", "dev ppl/tok", "perplexity", True),
    ("train_sentence_perplexity", "train perplexity (sentences)", "train ppl/sent", "perplexity", True),
    ("train_token_perplexity", "train perplexity (tokens)", "train ppl/tok", "perplexity", True),
    ("final_loss", "final loss", "loss", "loss", True),
    ("seconds", "training time", "time", "seconds", True),
    ("tokens_per_second", "tokens a second", "tokens/s", "rate", False),
    ("peak_memory", "peak memory", "memory", "bytes", True),
    ("parameters", "parameters", "parameters", "count", True),
    ("flops_per_token", "FLOPs a token", "FLOPs/token", "count", True),
]
LEVELS = {"dot": (380.8, 61.2), "additive": (386.0, 86.9), "zero_mask": (187.3, 60.4)}
PROBES = [
    "The quick brown fox jumps over the lazy dog .",
    "A very short one .",
    "Colourless green ideas sleep .",
    "It rains .",
]


def summary(values: Sequence[float]) -> Result:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"n": 1, "mean": mean, "sd": None, "low": None, "high": None, "note": "one value", "each": list(values)}
    reach = 4.303 * statistics.stdev(values) / math.sqrt(len(values))
    spread = {"sd": statistics.stdev(values), "low": mean - reach, "high": mean + reach}
    return {"n": len(values), "mean": mean, **spread, "note": "", "each": list(values)}


def make_metrics(last: float, steps: int, rng: random.Random) -> list[Result]:
    return [
        {
            "step": step,
            "tokens": 873 * step + rng.randrange(100),
            "loss": last + (10.2 - last) * math.exp(-6 * step / steps) + rng.gauss(0, 0.08),
            "seconds": 0.3 * step,
        }
        for step in range(1, steps + 1)
    ]


def make_variant(name: str, seeds: int, steps: int, rng: random.Random) -> Result:
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
            "parameters": 3_383_296,
            "flops_per_token": 20_345_678,
        }
        metrics = make_metrics(math.log(level), steps, rng)
        runs.append({"seed": seed, "folder": f"{name}/seed-{seed}", "values": values, "metrics": metrics})
    leaks = name == "zero_mask"
    places = [0.4 * (1 - place / 64) if leaks else 0.0 for place in range(64)]
    audit = {"verdict": "declared" if leaks else "pass", "causal_leak": max(places), "leak_by_position": places}
    audit |= {"defect": "masked scores are 0", "faults": {"future": "token 1 moves by 40 %"}} if leaks else {}
    probes = [
        {
            "sentence": text,
            "tokens": 11,
            "unknown": 2,
            "loss": 6.74,
            "perplexity": 845.6,
            "losses": [6.7, 6.8, 6.72][:seeds],
        }
        for text in PROBES
    ]
    return {
        "name": name,
        "reference": name == "dot",
        "leaks": leaks,
        "audit": audit,
        "settings": {"model.mechanism": name},
        "values": {key: summary([run["values"][key] for run in runs]) for key, *_ in FIGURES},
        "runs": runs,
        "probes": probes,
        "samples": [f"{name} wrote that the company said <UNK> , and it was said .", "It is <b>not</b> a <script> ."],
        "sample_quality": {"tokens": 1000, "unknown_share": 0.08, "punctuation_share": 0.12}
        | {"distinct_share": 0.31, "mean_length": 22.1},
        "word_by_word": {"sentences": 300, "whole": level, "word_by_word": level * (41.7 if leaks else 1)},
    }


def make_pair(a: Result, b: Result) -> Result:
    key = "dev_sentence_perplexity"
    one, other = a["values"][key], b["values"][key]
    ratio, leaks = one["mean"] / other["mean"], a["leaks"] or b["leaks"]
    lines = [
        {"seed": seed, "a": left, "b": right, "difference": left - right}
        for seed, (left, right) in enumerate(zip(one["each"], other["each"], strict=True))
    ]
    shown = abs(ratio - 1) > 0.03
    said = "differs" if shown else "no difference shown"
    return {
        "a": a["name"],
        "b": b["name"],
        "figure": key,
        "words": f"{said}: sentence perplexity {one['mean']:.1f} vs {other['mean']:.1f} on 1,000 sentences x 3 seeds",
        "test": "for new seeds and new sentences",
        "ratio": ratio,
        "ratio_low": ratio * 0.98,
        "ratio_high": ratio * 1.02,
        "p": 0.0001 if shown else 0.21,
        "adjusted": 0.0003 if shown else 0.42,
        "shown": shown,
        "valid": not leaks,
        "by_seed": lines,
        "details": {},
    }


def make_comparison(
    names: Sequence[str] = ("dot", "additive", "zero_mask"), seeds: int = 3, steps: int = 120
) -> Result:
    rng = random.Random(5)
    variants = [make_variant(name, seeds, steps, rng) for name in names]
    figures = [
        {"key": key, "title": title, "short": short, "unit": "", "lower_is_better": lower, "kind": kind}
        | {"note": f"what {title} means"}
        for key, title, short, kind, lower in FIGURES
    ]
    settings = {"model": {"n_layer": 4, "n_embd": 128}, "train": {"lr": 0.003}}
    paired = [
        {
            "a": one["name"],
            "b": names[0],
            "figure": "seconds",
            "difference": 25.7,
            "low": 20.0,
            "high": 31.4,
            "ratio": 1.42,
        }
        for one in variants[1:]
    ]
    quality = {"tokens": 20_000, "unknown_share": 0.03, "punctuation_share": 0.11, "distinct_share": 0.4}
    return {
        "kind": "comparison",
        "study": "masking",
        "title": "dot, additive, zero_mask: which is better at words?",
        "question": "Does additive attention learn more from the same sentences than dot-product attention?",
        "command": "attnlab compare dot additive zero_mask --task words --seeds 3",
        "finished": "2026-11-16",
        "seconds": 1234.5,
        "quick": True,
        "task": "words",
        "preset": "nano-words",
        "varied": "model.mechanism",
        "seeds": list(range(seeds)),
        "jobs": 2,
        "order": [[name, seed] for seed in range(seeds) for name in names],
        "data": {"corpus": "prose:train", "dev": "prose:dev", "exam": None, "sentences": 9000, "dev_sentences": 1000},
        "figures": figures,
        "variants": variants,
        "text_quality": quality | {"mean_length": 24.0},
        "comparisons": [make_pair(one, variants[0]) for one in variants[1:]],
        "paired": paired,
        "verdict": ["The gain of zero_mask is the leak: word by word it is worse.", "additive is not shown to differ."],
        "explanation": [
            {"title": "What the leak is worth", "paragraphs": ["It halves the perplexity.", "It is no gain."]}
        ],
        "theirs": [{"name": "dot", "values": {"dev_sentence_perplexity": 381.0}, "source": "course reports"}],
        "environment": {"attnlab": "0.1.0", "python": "3.11.7", "processor": "A Processor"},
        "settings": dict.fromkeys(names, settings),
    }
