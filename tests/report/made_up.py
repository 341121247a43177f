"""Made-up results of every kind: plausible curves and numbers, none of them measured."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from attnlab import stats
from attnlab.corpora import Corpus, Question
from attnlab.hf.classify import Classification
from attnlab.hf.documents import classification_document
from attnlab.hf.optimizers import Optimizers, OptimizersResult
from attnlab.hf.search import Search, SearchResult
from attnlab.inside.look import Guess, Layer, Reading, View
from attnlab.lm.exams import Common, Examination
from attnlab.report.document import Document, Section, Text, section
from attnlab.report.parts import LossCurve, TrainedRun
from attnlab.report.runs import ShownRun, SideBySide
from attnlab.store.listing import Entry
from attnlab.store.records import convert, plain
from attnlab.studies import trust, why
from attnlab.studies.recall import RecallResult, Row, answers_section, attention_section, outcome
from attnlab.studies.reports import ReportsResult
from attnlab.studies.reports import Row as ReportedRow
from attnlab.studies.training import DataSummary, Share
from attnlab.studies.trust import Asked, TrustResult, describe
from attnlab.studies.why import Why, WhyResult
from attnlab.trust import CalibrationSummary
from attnlab.trust.verdict import SUPPORTED, UNSEEN

Result = dict[str, Any]

TOKENS = ["Where", " was", " Hank", " Aar", "on", " born", "?", "⁇", " Mob", "ile"]
SETTINGS = {
    "preset": "small",
    "seed": 1,
    "model": {"n_layer": 3, "n_head": 8, "n_embd": 256, "block_size": 128, "options": {}, "qk_norm": True},
    "train": {"epochs": 40.0, "lr": 0.003, "muon_lr": 0.02, "optimizer": "muon", "tokens_per_batch": 4096},
}


MACHINE = {"attnlab": "0.1.0", "system": "Linux x86_64", "processor": "A Processor", "cores": 2, "torch": "2.13.0"}


def interval(correct: int, questions: int) -> tuple[float, float]:
    """Wilson's interval, written out so that the tests of the report need nothing else."""
    z, p = 1.96, correct / questions
    middle, scale = p + z * z / (2 * questions), 1 + z * z / questions
    reach = z * math.sqrt(p * (1 - p) / questions + z * z / (4 * questions**2))
    return (middle - reach) / scale, (middle + reach) / scale


SPOKEN = {
    "pretrained + fine-tuned": {"subject": "the pretrained model"},
    "pretrained, not fine-tuned": {"subject": "the pretrained model, not fine-tuned,"},
    "crude open book": {"subject": "a reader with the book open"},
    "no pretraining": {"subject": "the same model without pretraining", "role": "control"},
    "majority answer": {"subject": "always saying Los Angeles", "role": "baseline"},
}


USUAL = [{"prediction": "Berlin", "share": 0.52}, {"prediction": "Brooklyn", "share": 0.46}]


def make_row(name: str, kind: str, correct: int | None, seconds: float | None = None, **more: Any) -> Result:
    questions = more.pop("questions", 750)
    row = {"name": name, "kind": kind, "questions": questions, "seconds": seconds, "note": f"what {name} means"}
    row |= {"commonest_prediction": "Chicago", "commonest_share": 0.031} | SPOKEN.get(name, {}) | more
    row = {"distinct_predictions": 7} | row
    row.setdefault("commonest", [{"prediction": row["commonest_prediction"], "share": row["commonest_share"]}])
    if correct is not None:
        low, high = interval(correct, questions)
        row |= {"correct": correct, "accuracy": correct / questions, "low": low, "high": high}
    return row


def make_rows() -> list[Result]:
    return [
        make_row("pretrained + fine-tuned", "model", 612, 321.0),
        make_row("pretrained, not fine-tuned", "model", 388, 300.1),
        make_row("no pretraining", "model", 22, 41.7, commonest=USUAL, distinct_predictions=9),
        make_row("majority answer", "baseline", 17, None, commonest_prediction="Los Angeles", commonest_share=1.0),
        make_row("crude open book", "baseline", 641, None),
    ]


def make_run(name: str, steps: int, first: float, last: float, rng: random.Random) -> Result:
    metrics = []
    for step in range(1, steps + 1):
        progress = (step - 1) / max(1, steps - 1)
        loss = last + (first - last) * math.exp(-5 * progress) * (1 - progress) + rng.gauss(0, 0.06) * (0.3 + last)
        row = {"step": step, "progress": progress, "epoch": 40 * progress, "loss": max(loss, 0.01), "rate": 0.1}
        metrics.append(row | {"tokens": 4000 * step, "seconds": 0.15 * step})
    result = {"steps": steps, "tokens": 4000 * steps, "seconds": 0.15 * steps, "tokens_per_second": 26667}
    result |= {"final_loss": last, "parameters": 3_383_296, "threads": 2, "processes": 1, "epochs": 40.0}
    return {"folder": name, "stage": name, "settings": SETTINGS, "result": result, "metrics": metrics}


def make_patterns(
    rng: random.Random, layers: int = 3, heads: int = 8, tokens: Sequence[str] = TOKENS
) -> list[list[list[list[float]]]]:
    def weights(row: int, sharpness: float) -> list[float]:
        raw = [math.exp(sharpness * rng.gauss(0, 1)) for _ in range(row + 1)]
        return [round(value / sum(raw), 3) for value in raw] + [0.0] * (len(tokens) - row - 1)

    return [
        [[weights(row, 0.4 + 0.3 * head) for row in range(len(tokens))] for head in range(heads)] for _ in range(layers)
    ]


def make_answers() -> list[Section]:
    people = [
        (
            "Hank Aaron",
            "Mobile",
            "Atlanta",
            "Aaron was born in {}, Alabama, and died in Atlanta; he was mainly an outfielder .",
        ),
        (
            "Vida Blue",
            "Mansfield",
            "Oakland",
            "Originally from {}, Louisiana, Blue threw left and first played for Oakland .",
        ),
        (
            "Yogi Berra",
            "St. Louis",
            "Chicago",
            "The career of Yogi Berra began with New York in 1946, his life in {}, Missouri .",
        ),
    ]
    items = [
        (Question(f"Where was {name} born?", city), said, f"{name}. {line.format(city)}")
        for name, city, other, line in people * 3
        for said in (city, other)
    ]
    questions, predictions, lines = zip(*items, strict=True)
    return answers_section(Examination(questions, predictions), Corpus("made up", tuple(dict.fromkeys(lines))))


def make_trained(name: str, steps: int, first: float, last: float, rng: random.Random) -> Result:
    """A training run as studies store it."""
    run = make_run(name, steps, first, last, rng)
    metrics = run.pop("metrics")
    curve = {
        key: [row[name] for row in metrics]
        for key, name in (("steps", "step"), ("tokens", "tokens"), ("losses", "loss"))
    }
    return {**run.pop("result"), **run, "curve": curve}


DATA = {
    "corpus": "people",
    "documents": 3000,
    "characters": 420_000,
    "training_questions": 1800,
    "exam": "people:test",
    "exam_questions": 750,
    "asked_before": 0,
}


def make_recall(steps: int = 200) -> RecallResult:
    rng = random.Random(7)
    rows = make_rows()
    made = {
        "kind": "recall",
        "written_questions": 0,
        "held_out": 0,
        "verdict": [outcome(convert(list[Row], rows), convert(DataSummary, DATA))],
        "title": "What does a small model remember?",
        "command": "attnlab run --model.n_layer 3",
        "seconds": 412.3,
        "finished": "2026-11-15",
        "data": DATA,
        "rows": rows,
        "runs": {
            "pretrain": make_trained("pretrain", steps, 7.6, 0.41, rng),
            "finetune": make_trained("finetune", max(1, steps // 8), 1.1, 0.12, rng),
            "no-pretraining": make_trained("no-pretraining", max(1, steps // 8), 7.5, 2.9, rng),
        },
        "answers": plain(make_answers()),
        "attention": plain(attention_section("“Where was Hank Aaron born?” – Mobile", TOKENS, make_patterns(rng))),
        "example": "Where was Hank Aaron born?",
        "calibration": make_calibration(),
        "environment": MACHINE,
    }
    return convert(RecallResult, made)


def make_calibration() -> Result:
    rule = stats.selective_rule([0.99 - n / 1000 for n in range(100)], [True] * 100, 0.1)
    words = "Of answers with a confidence of 0.93 or more at most 10 % are wrong."
    return {
        "questions": 200,
        "strangers": None,
        "repeated": 0,
        "correct": 162,
        "accuracy": 0.81,
        "low": 0.75,
        "high": 0.86,
        "candidates": 412,
        "ece_before": 0.092,
        "ece_after": 0.031,
        "ece_if_calibrated": 0.028,
        "auroc": {"known": 162, "unknown": 38, "value": 0.871, "low": 0.82, "high": 0.91, "method": "DeLong"},
        "rules": [{**plain(rule), "words": words}],
    }


# Trust


def make_trust(max_risk: float = 0.1, met: bool = True) -> TrustResult:
    """A result as the study makes it, of 100 known names of which the 80 most confident are right."""

    def ask(name: str, confidence: list[float], verdict: str, rule: stats.SelectiveRule) -> list[Asked]:
        least = math.inf if rule.threshold is None else rule.threshold
        return [
            Asked(*make_asked(name, n), "York", sure, sure >= least, verdict, False)
            for n, sure in enumerate(confidence)
        ]

    def make_asked(name: str, n: int) -> tuple[str, str]:
        return f"Where was {name} <{n}> born?", "York" if n < 80 else "Bath"

    sure = [0.99 - n / 1000 for n in range(80)] + [0.4 - n / 1000 for n in range(20)]
    judged = len(sure) if met else 4
    rule = stats.selective_rule(sure[:judged], [n < 80 for n in range(judged)], max_risk)
    known = ask("known", sure, SUPPORTED, rule)
    withheld = ask("withheld", [0.1 + n / 100 for n in range(20)], UNSEEN, rule)
    groups = [describe(name, items, known) for name, items in (("known", known), ("withheld", withheld))]
    calibration = CalibrationSummary(100, 0, 0, 9, 80, 0.8, 0.7, 0.9, 0.09, 0.03, 0.028, None, (rule,))
    losses = LossCurve([1, 2, 3], [4096, 8192, 12288], [7.6, 1.2, 0.4])
    about: Result = {"folder": "pretrain", "stage": "pretrain", "settings": SETTINGS, "curve": losses}
    run = TrainedRun(3_383_296, 3, 1.0, 12288, 3.0, 4096, 0.4, **about)
    return TrustResult(
        kind="trust",
        title="Does it know what it does not know?",
        command="attnlab run trust",
        finished="2030-01-01",
        seconds=61.0,
        environment=MACHINE,
        sizes={"documents": 2800},
        groups=groups,
        fallback=section("What it falls back on", Text(["For 20.0 % of the withheld names ..."])),
        calibration=calibration,
        runs={"pretrain": run},
        verdict=trust.outcome(groups, rule),
    )


# The course reports


def make_reports() -> ReportsResult:
    rows = [
        make_row("fine-tuned alone", "model", 6, 90.0, model="alone", epochs=0, reported=[0.006, 0.02]),
        make_row("pretrained, 10 epochs", "model", 30, 900.0, model="pretrained", epochs=10, reported=[0.188, 0.23]),
        make_row("pretrained, 40 epochs", "model", 90, 3600.0, model="pretrained", epochs=40, reported=[0.188, 0.23]),
        make_row("always London", "baseline", 38, None, model="London", epochs=0, reported=[0.05]),
    ]
    recall = make_recall()
    return ReportsResult(
        kind="reports",
        title="The recall experiments of the course reports",
        command=recall.command,
        seconds=recall.seconds,
        finished=recall.finished,
        environment=MACHINE,
        data=recall.data,
        as_reported=False,
        rows=convert(list[ReportedRow], rows),
        runs=recall.runs,
        verdict=["Pretrained, 40 epochs: 12.0 % of 750."],
    )


# Why


def make_why() -> WhyResult:
    def share(right: float) -> Share:
        return Share(right, max(0.0, right - 0.05), min(1.0, right + 0.05), 300, [right - 0.01, right + 0.01])

    def row(reading: why.Reading, right: float) -> why.Row:
        read = reading.way != "nothing"
        return why.Row(
            name=reading.name,
            kind="model" if read else "baseline",
            questions=300,
            commonest_prediction="York",
            commonest_share=0.3,
            distinct_predictions=40,
            commonest=(Common("York", 0.3), Common("Bath <1>", 0.2)),
            accuracy=right,
            low=share(right).low,
            high=share(right).high,
            seconds=31.5,
            reading=reading,
            right=share(right),
            by_heart=share(0.9) if read else None,
            tokens=40_000 * reading.exposures if read else None,
        )

    grid = Why(forms=(1, 2), exposures=(4, 20)).grid
    test = stats.Contrast("2 forms", "1 form", 0.2, 0.4, 0.0001, 0.0004, "2 forms better by 30.0 points")
    findings = dict.fromkeys(("Does reading help?", "Do several forms help?"), test)
    return WhyResult(
        kind="why",
        title="Why does reading help?",
        command="attnlab run why --quick",
        finished="2026-11-16",
        seconds=900.0,
        environment=MACHINE,
        people=500,
        training_questions=300,
        rows=[row(reading, 0.02 + 0.01 * reading.forms * reading.exposures) for reading in grid],
        findings=findings,
        settings={"2 forms 20 times, pretrain": SETTINGS},
        verdict=[f"{question} {test.words}." for question, test in findings.items()],
    )


# Classification and search


def make_scores(right: int, texts: int, mistakes: int) -> Result:
    low, high = interval(right, texts)
    half, wrong = texts // 2, texts - right
    counts = [[half - wrong, wrong], [0, texts - half]]
    found = {"place": "line 7", "text": "Not =bad at all", "label": "good", "predicted": "bad", "confidence": 0.98}
    scores = {"texts": texts, "right": right, "accuracy": right / texts, "low": low, "high": high, "loss": 0.213}
    return scores | {"commonest": 0.5, "confusion": counts, "mistakes": [found] * mistakes}


_TABLE = {"texts": 160, "counts": {"bad": 80, "good": 80}, "sha256": "0" * 64, "column": "label-first"}
_TABLE |= {"detected": "two short values that repeat", "heading": False, "blank": 2}
_TABLES: Result = {
    "labels": ["bad", "good"],
    "renamed": {"pos": "good"},
    "data": {name: {"source": f"{name}.tsv", **_TABLE} for name in ("train", "dev", "test")},
    "examples": {"bad": ["It is dull."], "good": ["It is fun.", "I like it."]},
    "warnings": ["3 texts occur twice"],
}


def classification_result() -> Document:
    epochs = [
        {
            "epoch": number,
            "train_loss": loss,
            "train_accuracy": 0.7,
            "dev_loss": 0.4,
            "dev_accuracy": 0.8,
            "seconds": 9.0,
        }
        for number, loss in ((1, None), (2, 0.31), (3, 0.22))
    ]
    values = {
        "title": "roberta on train.tsv",
        "model": "roberta",
        "name": "roberta",
        "command": "attnlab classify train.tsv dev.tsv",
        "finished": "2026-11-16",
        "seconds": 33.0,
        "settings": {"epochs": 3, "lr": 5e-5},
        "tables": _TABLES,
        "epochs": epochs,
        "best_epoch": 2,
        "dev": make_scores(72, 80, 1),
        "test": make_scores(70, 80, 2),
        "steps": 30,
        "tokens": 4000,
        "padding": 400,
        "facts": {
            "architecture": "Roberta",
            "parameters": 124_000_000,
            "vocabulary": 50_000,
            "new_weights": ["classifier.dense"],
        },
        "environment": MACHINE,
        "verdict": ["roberta gives 87.5 % of the 80 test texts their label."],
    }
    return classification_document(convert(Classification, values))


_TUNING: Result = {"model": "roberta", "texts": {}, "settings": {"epochs": 3}}
_STUDIED: Result = {
    "title": "roberta on train.tsv: which settings?",
    "command": "attnlab classify train.tsv dev.tsv --search",
    "finished": "2026-11-16",
    "seconds": 120.0,
    "tables": _TABLES,
    "verdict": ["The best of 3 trials: 95.0 %.", "It is the highest of 3, and therefore optimistic."],
    "environment": MACHINE,
}


def search_result() -> Document:
    def trial(number: int, right: int, pruned: bool = False) -> Result:
        low, high = interval(right, 200)
        params = {"number": number, "batch_size": 16, "lr": 3e-5 * number, "epochs": 3, "pruned": pruned}
        scores = {"right": right, "texts": 200, "accuracy": right / 200, "low": low, "high": high}
        return params | scores | {"best_epoch": 1 if pruned else 2, "seconds": 20.0}

    trials = [trial(1, 170), trial(2, 120, pruned=True), trial(3, 190)]
    kept = make_scores(190, 200, 0)
    values = _STUDIED | {"trials": trials, "best": 3, "corrected": None, "accuracy": 0.95, "dev": kept, "test": kept}
    return convert(Search, _TUNING).document(convert(SearchResult, values))


def optimizers_result() -> Document:
    summary = {"rate": 5e-5, "accuracy": 0.8, "low": 0.7, "high": 0.9, "diverged": 0, "best_epochs": [2, 3]}
    summary |= {"seconds_per_epoch": 9.0, "curves": [[0.6, 0.8, 0.8], [0.5, 0.7, 0.8]]}
    pair = {
        "a": "adamw",
        "b": "sgd",
        "low": -0.1,
        "high": 0.2,
        "p": 0.4,
        "adjusted": 0.4,
        "words": "no difference shown",
    }
    both = [{"name": name, **summary} for name in ("adamw", "sgd")]
    plan = convert(Optimizers, {**_TUNING, "rates": {"adamw": 5e-5, "sgd": 0.01}})
    return plan.document(convert(OptimizersResult, _STUDIED | {"optimizers": both, "pairs": [pair]}))


# Runs side by side, and one text inside a model


def make_runs() -> SideBySide:
    def run(name: str, state: str, defect: str, **settings: Any) -> ShownRun:
        figures = {"progress": 0.4, "tokens": 160_000, "seconds": 12.0, "loss": 2.0}
        everything = {"stage": "pretrain", "seed": 1, **settings}
        return ShownRun(
            name=name,
            entry=Entry(Path("runs", name), "run", "pretrain", state, 0.0, **figures, settings=everything),
            defect=defect,
            steps=40,
            tokens_per_second=13_333.3,
            parameters=3_383_296,
            peak_memory=512_000_000,
            curve=convert(LossCurve, make_trained(name, 40, 6.0, 2.0, random.Random(4))["curve"]),
            validation=LossCurve([20, 40], [20_000, 40_000], [4.0, 4.5]),
        )

    return SideBySide(
        title="3 runs side by side",
        command="attnlab report whole leaky stopped",
        finished="2026-11-16",
        note="The study s is not finished",
        differs=("model.mechanism",),
        runs=(
            run("whole", "complete", "", **{"model.mechanism": "dot"}),
            run("leaky", "complete", "zero_mask: the future leaks", **{"model.mechanism": "zero_mask"}),
            run("stopped", "stopped", "", **{"model.mechanism": "linear"}),
        ),
        environment=MACHINE,
    )


def make_view(tokens: list[str] = TOKENS) -> View:
    patterns = torch.tensor(make_patterns(random.Random(1), 2, 4, tokens))
    below = torch.cat([patterns[0], -patterns[1][:1] / 2])
    return View(
        text="".join(tokens),
        tokens=tuple(tokens),
        layers=(
            Layer("blocks.0.attn.hook_pattern", "dot", "pattern", below),
            Layer("blocks.1.attn.hook_pattern", "mine/mean.py:Mean", "influence", patterns[1][:1]),
        ),
        next=(Guess(" Mob", 0.62), Guess("\n", 0.1)),
        read=(Reading(tokens[0]), *(Reading(token, 0.2, 1.6, " the") for token in tokens[1:])),
    )
