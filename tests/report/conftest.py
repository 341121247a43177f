"""A made-up result of the recall study: plausible curves and numbers, none of them measured."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

Result = dict[str, Any]

TOKENS = ["Where", " was", " Hank", " Aar", "on", " born", "?", "⁇", " Mob", "ile"]
SETTINGS = {
    "preset": "small",
    "seed": 1,
    "model": {"n_layer": 3, "n_head": 8, "n_embd": 256, "block_size": 128, "options": {}, "qk_norm": True},
    "train": {"epochs": 40.0, "lr": 0.003, "muon_lr": 0.02, "optimizer": "muon", "tokens_per_batch": 4096},
}


def interval(correct: int, questions: int) -> tuple[float, float]:
    """Wilson's interval, written out so that the tests of the report need nothing else."""
    z, p = 1.96, correct / questions
    middle, scale = p + z * z / (2 * questions), 1 + z * z / questions
    reach = z * math.sqrt(p * (1 - p) / questions + z * z / (4 * questions**2))
    return (middle - reach) / scale, (middle + reach) / scale


SPOKEN = {
    "pretrained + fine-tuned": {"subject": "the pretrained model"},
    "no pretraining": {"subject": "the same model without pretraining", "role": "control"},
    "majority answer": {"subject": "always saying Los Angeles", "role": "baseline"},
}


def make_row(name: str, kind: str, correct: int | None, seconds: float | None = None, **more: Any) -> Result:
    questions = more.pop("questions", 750)
    row = {"name": name, "kind": kind, "questions": questions, "seconds": seconds, "note": f"what {name} means"}
    row |= {"commonest_prediction": "Chicago", "commonest_share": 0.031} | SPOKEN.get(name, {}) | more
    if correct is not None:
        low, high = interval(correct, questions)
        row |= {"correct": correct, "accuracy": correct / questions, "low": low, "high": high}
    return row


def make_rows() -> list[Result]:
    return [
        make_row("pretrained + fine-tuned", "model", 612, 321.0),
        make_row("pretrained only", "model", 388, 300.1),
        make_row("no pretraining", "model", 22, 41.7),
        make_row("majority answer", "baseline", 17, None, commonest_prediction="Los Angeles", commonest_share=1.0),
        make_row("open book", "baseline", 641, None),
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


def make_attention(rng: random.Random, layers: int = 3, heads: int = 8, tokens: list[str] = TOKENS) -> Result:
    def weights(row: int, sharpness: float) -> list[float]:
        raw = [math.exp(sharpness * rng.gauss(0, 1)) for _ in range(row + 1)]
        return [round(value / sum(raw), 3) for value in raw] + [0.0] * (len(tokens) - row - 1)

    patterns = [
        [[weights(row, 0.4 + 0.3 * head) for row in range(len(tokens))] for head in range(heads)] for _ in range(layers)
    ]
    return {"question": "Where was Hank Aaron born?", "answer": "Mobile", "tokens": tokens, "patterns": patterns}


def make_answers() -> dict[str, list[Result]]:
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
    picked: dict[str, list[Result]] = {"right": [], "wrong": []}
    for name, city, other, line in people * 3:
        item = {"question": f"Where was {name} born?", "answer": city, "source": f"{name}. {line.format(city)}"}
        picked["right"].append({**item, "prediction": city})
        picked["wrong"].append({**item, "prediction": other})
    return picked


def make_result(steps: int = 500) -> Result:
    rng = random.Random(7)
    return {
        "study": "recall",
        "title": "What does a small model remember?",
        "command": "attnlab run --model.n_layer 3",
        "seconds": 412.3,
        "finished": "2026-11-15",
        "world": {
            "corpus": "people",
            "documents": 3000,
            "characters": 420_000,
            "training_questions": 1800,
            "exam": "people:test",
            "exam_questions": 750,
            "quick": False,
        },
        "rows": make_rows(),
        "runs": {
            "pretrain": make_run("pretrain", steps, 7.6, 0.41, rng),
            "finetune": make_run("finetune", max(1, steps // 8), 1.1, 0.12, rng),
            "no-pretraining": make_run("no-pretraining", max(1, steps // 8), 7.5, 2.9, rng),
        },
        "answers": make_answers(),
        "attention": make_attention(rng),
        "environment": {"attnlab": "0.1.0", "python": "3.11.7", "system": "Linux x86_64", "processor": "A Processor"}
        | {"cores": 2, "torch": "2.13.0"},
    }


@pytest.fixture
def result() -> Result:
    return make_result()


@pytest.fixture
def new_row() -> Callable[..., Result]:
    return make_row


@pytest.fixture
def long_result() -> Result:
    """As large as a result gets: thousands of steps, 25 tokens, a dozen answers a side."""
    made = make_result(6000)
    made["attention"] = make_attention(random.Random(3), tokens=[f" word{place}" for place in range(25)])
    made["answers"] = {side: (items * 2)[:12] for side, items in made["answers"].items()}
    return made
