"""What makes a small model remember: the recipe of preset `recall` with one ingredient taken away at a time.

    ATTNLAB_DATA=path/to/data python benchmarks/ingredients.py DIR [--seeds 3] [--jobs 2] [--only whole,characters]

Every variant reads the same number of tokens, a quarter of what the preset reads of the CS224n birthplaces (where the
questions come afterwards, eight epochs of them more), and learns from the same 1,500 of the 2,000 training questions; the
other 500 are asked. A variant with another optimizer first tries several learning rates with one other seed, on 200 of the
1,500 questions, which are left out of those runs. Prints accuracy, and the difference from the whole recipe for new seeds and
new questions, with p after Holm and intervals that hold together. DIR keeps every run; called again, it trains what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from birthplaces import data_folder, options, split_questions

from attnlab import corpora, stats
from attnlab.config import RunConfig, resolve
from attnlab.lm import evaluate, stages
from attnlab.lm.model import load_model
from attnlab.store.runs import Run
from attnlab.tasks import TaskData, make_task

HELD_OUT, CHOOSING, SHARE, WHOLE = 500, 200, 0.25, "whole"
TUNING_SEED = 1000


@dataclass(frozen=True)
class Variant:
    """The recipe with something else in the place of one ingredient."""

    words: str
    given: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False  # whether the training questions come afterwards, by fine-tuning
    rates: tuple[float, ...] = ()  # learning rates to try first


def task(**options: float) -> dict[str, Any]:
    """Options of the task."""
    return {"task": {"options": options}}


VARIANTS = {
    WHOLE: Variant("the whole recipe"),
    "lines": Variant("whole lines instead of views", task(views=0, lines=1.0)),
    "bare": Variant("views without the text to their left", task(bare=1.0)),
    "unlisted": Variant("no views that list all spans", task(listed=0.0)),
    "tuned": Variant("training questions afterwards, not mixed in", task(questions=0.0), tuned=True),
    "characters": Variant(
        "characters instead of byte pairs", {"tokenizer": {"kind": "char"}, "model": {"vocab_size": 0}}
    ),
    "adamw": Variant(
        "AdamW at its best rate instead of Muon",
        {"train": {"optimizer": "adamw"}},
        rates=(1.25e-4, 2.5e-4, 5e-4, 2e-3, 4e-3),
    ),
    "places": Variant("learned positions instead of rotary ones", {"model": {"positions": "learned"}}),
    "block": Variant(
        "GELU, no QK-norm, no zero start",
        {"model": {"activation": "gelu", "qk_norm": False, "zero_init": False}},
    ),
}


def tokens_per_epoch(config: RunConfig, sources: stages.Sources) -> float:
    """The mean over three epochs."""
    tokenizer = stages.learn_tokenizer(config, sources)
    made = make_task(config.task, TaskData(tokenizer, config.model.block_size, sources.corpus, sources.facts))
    drawn = [made.examples(np.random.default_rng(seed)) for seed in range(3)]
    return float(np.mean([sum(example.end - 1 for example in examples) for examples in drawn]))


def best_rate(folder: Path, name: str) -> float:
    """The rate that answers most of the questions set aside for this choice; trains what is missing."""
    right = {}
    for rate in VARIANTS[name].rates:
        done = folder / f"{name}-{rate:g}" / f"{name}-{TUNING_SEED}.json"
        if not done.exists():
            done.parent.mkdir(exist_ok=True)
            split_questions(folder / "train.tsv", done.parent, 0, CHOOSING)
            train_one(done.parent, name, TUNING_SEED, rate)
        right[rate] = sum(json.loads(done.read_text(encoding="utf-8"))["right"])
    print(f"{name}: right answers of {CHOOSING} by learning rate: {right}", file=sys.stderr)
    return max(right, key=lambda rate: right[rate])


def train_one(folder: Path, name: str, seed: int, rate: float | None = None) -> None:
    """One run of one variant, examined."""
    corpus, facts, exam = (str(path) for path in files_of(folder))
    variant, sources = VARIANTS[name], stages.Sources.read(corpus, facts)
    if variant.rates:
        rate = rate or best_rate(folder, name)
        variant = replace(variant, given={**variant.given, "train": {**variant.given["train"], "lr": rate}})
    whole = resolve("recall")
    budget = SHARE * whole.train.epochs * tokens_per_epoch(whole, sources)
    config = resolve("recall", given={**variant.given, "seed": seed})
    epochs = budget / tokens_per_epoch(config, sources)
    config = replace(config, train=replace(config.train, epochs=epochs, threads=1))
    target = folder / f"{name}-{seed}"
    mixed = facts if config.task.options.get("questions", 1.0) else None
    begun = target.exists()
    run = stages.resume(Run.open(target)) if begun else stages.pretrain(config, corpus, mixed, target)
    if variant.tuned:
        given = {"train": {"epochs": 8.0, "lr": 3e-4, "muon_lr": 0.002, "threads": 1}, "seed": seed}
        tuned = Path(f"{target}-tuned")
        settings = resolve("recall", "finetune", given=given)
        run = stages.resume(Run.open(tuned)) if tuned.exists() else stages.finetune(settings, run, facts, corpus, tuned)
    found = evaluate.examine(*load_model(run.model), corpora.load_questions(exam))
    row = {"name": name, "seed": seed, "right": found.right, "tokens": run.result.tokens}
    (folder / f"{name}-{seed}.json").write_text(json.dumps(row), encoding="utf-8")


def files_of(folder: Path) -> tuple[Path, Path, Path]:
    """Corpus, training questions, and those to be asked."""
    data = data_folder()
    facts, exam = folder / "train.tsv", folder / "dev.tsv"
    if not exam.exists():
        split_questions(data / "birth_places_train.tsv", folder, 0, HELD_OUT)
    return data / "wiki.txt", facts, exam


def missing(folder: Path, names: list[str], seeds: int) -> list[tuple[str, int]]:
    """The runs that are not there yet, seed by seed."""
    wanted = [(name, seed) for seed in range(seeds) for name in names]
    return [(name, seed) for name, seed in wanted if not (folder / f"{name}-{seed}.json").exists()]


def show(folder: Path, names: list[str], seeds: int) -> None:
    """The table, of what is complete."""

    def answers(name: str) -> list[list[bool]]:
        paths = [folder / f"{name}-{seed}.json" for seed in range(seeds)]
        return [json.loads(path.read_text(encoding="utf-8"))["right"] for path in paths if path.exists()]

    tables = {name: np.array(answers(name), dtype=float) for name in (WHOLE, *names)}
    done = [name for name in names if name != WHOLE and len(tables[name]) == len(tables[WHOLE]) == seeds]
    found = {name: stats.crossed(tables[name] - tables[WHOLE], 0.05 / len(done)) for name in done}
    adjusted = dict(zip(done, stats.holm([one.p or 1.0 for one in found.values()]), strict=True))
    level = f"{100 * (1 - 0.05 / max(1, len(done))):.3g} %"
    print(f"| variant | accuracy by seed | mean | difference, with {level} interval | p | p after Holm |")
    print("|---|---|---|---|---|---|")
    for name in names:
        table = tables[name]
        if len(table) < seeds or len(tables[WHOLE]) < seeds:
            print(f"| {VARIANTS[name].words} | {len(table)} of {seeds} runs done | | | | |")
            continue
        shares = ", ".join(f"{100 * row.mean():.1f}" for row in table)
        beside = "| | |"
        if one := found.get(name):
            low, high, p = (float("nan") if value is None else value for value in (one.low, one.high, one.p))
            span = f"{100 * one.mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            beside = f"| {span} | {p:.2g} | {adjusted[name]:.2g}"
        print(f"| {VARIANTS[name].words} | {shares} | {100 * table.mean():.1f} % {beside} |")


def main() -> None:
    """Train what is missing, and print the table."""
    parser = options(__doc__, seeds=3, jobs=2, only=",".join(VARIANTS))
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--one", help="train only this run, VARIANT:SEED")
    given = parser.parse_args()
    seeds, jobs, folder = given.seeds, given.jobs, given.folder
    names = [name for name in given.only.split(",") if name]
    if unknown := set(names) - set(VARIANTS):
        parser.error(f"unknown variants: {', '.join(sorted(unknown))}; known: {', '.join(VARIANTS)}")
    data_folder()
    if given.one:
        name, seed = given.one.split(":")
        train_one(folder, name, int(seed))
        return
    folder.mkdir(parents=True, exist_ok=True)
    files_of(folder)

    def start(job: tuple[str, int]) -> None:
        command = [sys.executable, __file__, str(folder), "--one", f"{job[0]}:{job[1]}"]
        subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})  # the others continue

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(start, missing(folder, names, seeds)))
    show(folder, names, seeds)


if __name__ == "__main__":
    main()
