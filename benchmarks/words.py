"""How fast a word-level epoch is: preset nano-words by our training loop beside the same model in minGPT's manner.

    python benchmarks/words.py [--corpus FILE] [--rounds 12] [--steps 4] [--seed 0] [--json FILE]

All contestants train on the same sentences, in turns within one process, on one thread. A round is some batches of our own
cut of an epoch, spread evenly from short sentences to long, and the same sentences again in rows of 32 filled up to 100
tokens. What is told are seconds of processor time a thousand real tokens, padding not counted, and the epoch that follows. A
filled row takes the same time whatever is in it, so that it counts as a sentence of mean length. A ratio is the median over
the rounds, with the least and the greatest; no time is judged by the exit code.
The corpus is built-in prose, or a file with a sentence a line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from eager import EagerModel, EagerTrainer, copy_weights
from rich.console import Console
from rich.table import Table
from torch import Tensor

from attnlab import ops
from attnlab.config import RunConfig, resolve
from attnlab.lm import optim, stages
from attnlab.lm.batches import IGNORED, make_epoch
from attnlab.lm.model import LanguageModel
from attnlab.lm.processes import Ranks
from attnlab.lm.stages import Sources
from attnlab.lm.tokenizers import Tokenizer
from attnlab.lm.train import SummedLoss, Trainer
from attnlab.machine import environment, retain_freed_memory
from attnlab.store.runs import Run
from attnlab.tasks import Example, Task, TaskData, make_task

ROWS, LONGEST = 32, 100  # of the reports' batches
MINGPT, BUCKETED, OURS = "minGPT's manner", "minGPT's, unpadded", "ours"
DENSE, PLAIN, LOOPED = "ours, dense loss", "ours, uncompiled loss", "ours, looped AdamW"
MECHANISMS = ("additive", "shared_qk", "zero_mask")
FASTER, AS_FAST = 5.0, 1.5  # what is asked: ours against minGPT's manner, additive against dot

Batch = list[Example]
console = Console(markup=False, width=120)


class DenseLoss(SummedLoss):
    """The loss of a batch by the scores of all its targets at once."""

    def forward(self, ids: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Negative log probability of all targets."""
        counted = targets != IGNORED
        hidden = self.model.hidden(ids, wanted=counted)
        return ops.token_losses(self.model.head(hidden), targets[counted]).sum()


@dataclass(frozen=True)
class Contestant:
    """Who takes steps, and whether on batches of similar length or on rows filled up."""

    step: Callable[[Batch], object]
    padded: bool = False


@dataclass(frozen=True)
class World:
    """What all contestants share."""

    config: RunConfig
    tokenizer: Tokenizer
    task: Task

    @classmethod
    def read(cls, corpus: str, given: Mapping[str, Any] | None = None) -> World:
        """The preset on a corpus."""
        config, sources = resolve("nano-words", given=given), Sources.read(corpus, None)
        tokenizer = stages.learn_tokenizer(config, sources)
        config = replace(config, model=stages.fit_vocabulary(config, tokenizer))
        return cls(config, tokenizer, make_task(config.task, TaskData(tokenizer, LONGEST, sources.corpus)))

    def trainer(self, mechanism: str = "dot") -> Trainer:
        """Our training loop, before its first step; it writes nothing."""
        torch.manual_seed(self.config.seed)
        config = replace(self.config, model=replace(self.config.model, mechanism=mechanism))
        model = LanguageModel(config.model).train()
        return Trainer(Run(Path(os.devnull)), model, self.tokenizer, self.task, config, Ranks())

    def eager(self) -> EagerTrainer:
        """The plain script, with the same weights."""
        model = EagerModel(self.config.model)
        copy_weights(self.trainer().model, model)
        return EagerTrainer(model, self.config.train, self.tokenizer.pad)


def stepper(trainer: Trainer, loss: SummedLoss | None = None) -> Callable[[Batch], float]:
    """One step of our training loop."""
    trainer.forward = loss or trainer.forward
    return lambda batch: trainer.train_step(batch, 1.0)[0]


def uncompiled(step: Callable[[Batch], float]) -> Callable[[Batch], float]:
    """The same step in plain torch."""

    def plain(batch: Batch) -> float:
        with mock.patch.dict(os.environ, {"ATTNLAB_KERNELS": "0"}):
            return step(batch)

    return plain


def by_a_loop(trainer: Trainer) -> Trainer:
    """The same with AdamW as a plain construction makes it, parameter by parameter."""
    fused = optim.make_optimizers(trainer.model, trainer.settings)["adamw"]
    groups = [{key: group[key] for key in ("params", "weight_decay", "peak")} for group in fused.param_groups]
    betas = (trainer.settings.beta1, trainer.settings.beta2)
    trainer.optimizers = {"adamw": torch.optim.AdamW(groups, lr=trainer.settings.lr, betas=betas)}
    return trainer


def contestants(world: World) -> dict[str, Contestant]:
    """Everybody, each with a model of its own."""
    padded, bucketed, dense = world.eager(), world.eager(), world.trainer()
    found = {
        MINGPT: Contestant(lambda batch: padded.update(batch, LONGEST), padded=True),
        BUCKETED: Contestant(bucketed.update),
        DENSE: Contestant(stepper(dense, DenseLoss(dense.model))),
        PLAIN: Contestant(uncompiled(stepper(world.trainer()))),
        LOOPED: Contestant(stepper(by_a_loop(world.trainer()))),
        OURS: Contestant(stepper(world.trainer())),
    }
    return found | {f"{OURS}, {name}": Contestant(stepper(world.trainer(name))) for name in MECHANISMS}


# What they train on


def real_tokens(examples: Sequence[Example]) -> int:
    """Tokens that are predicted."""
    return sum(example.end - 1 for example in examples)


def rounds_of_batches(world: World, rounds: int, steps: int, seed: int) -> list[list[Batch]]:
    """Batches of our cut of an epoch for every round, spread evenly from short sentences to long."""
    rng = np.random.default_rng(seed)
    examples, batches = make_epoch(world.task, replace(world.trainer().config, seed=seed), 0)
    cut = sorted(batches, key=lambda batch: len(examples[batch[0]].ids))
    picked = []
    for _ in range(rounds):
        places = (np.arange(steps) + rng.random()) * len(cut) / steps
        picked.append([[examples[index] for index in cut[int(place)]] for place in rng.permutation(places)])
    return picked


def in_rows(batches: Sequence[Batch], rng: np.random.Generator) -> list[Batch]:
    """The same sentences in random rows; an incomplete last batch is left out, if it is not the only one."""
    sentences = [example for batch in batches for example in batch]
    order = rng.permutation(len(sentences))
    rows = [[sentences[index] for index in order[at : at + ROWS]] for at in range(0, len(order), ROWS)]
    return rows if len(rows) == 1 or len(rows[-1]) == ROWS else rows[:-1]


def take_turns(
    found: Mapping[str, Contestant], rounds: Sequence[list[Batch]], mean: float, seed: int
) -> dict[str, list[float]]:
    """Seconds a real token of every contestant in every round; `mean` tokens a sentence; who begins changes each round."""
    rng, names = np.random.default_rng(seed), list(found)
    costs: dict[str, list[float]] = {name: [] for name in names}
    for number, batches in enumerate(rounds):
        rows = in_rows(batches, rng)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            padded = found[name].padded
            mine = rows if padded else batches
            began = time.process_time()
            for batch in mine:
                found[name].step(batch)
            seconds = time.process_time() - began
            costs[name].append(seconds / sum(mean * len(one) if padded else real_tokens(one) for one in mine))
        sys.stderr.write(f"round {number + 1} of {len(rounds)}\n")
    return costs


# What is told


@dataclass(frozen=True)
class Ratio:
    """How many times as long one takes as another: the median over the rounds, the least and the greatest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, slow: Sequence[float], fast: Sequence[float]) -> Ratio:
        """Round by round."""
        ratios = [one / other for one, other in zip(slow, fast, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.least:.2f} to {self.most:.2f})"


def summary(costs: Mapping[str, Sequence[float]], epoch: int) -> list[dict[str, Any]]:
    """Every contestant in numbers; `epoch` is the number of real tokens of one."""
    return [
        {
            "name": name,
            "seconds_per_1000_tokens": 1000 * statistics.median(values),
            "epoch_minutes": epoch * statistics.median(values) / 60,
            "against_mingpt": vars(Ratio.of(costs[MINGPT], values)),
            "against_ours": vars(Ratio.of(values, costs[OURS])),
        }
        for name, values in costs.items()
    ]


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table, and what was asked."""
    table = Table("", "s / 1,000 tokens", "epoch, minutes", "times minGPT's speed", "times our time")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        ratios = [str(Ratio(**row[key])) for key in ("against_mingpt", "against_ours")]
        table.add_row(row["name"], f"{row['seconds_per_1000_tokens']:.3f}", f"{row['epoch_minutes']:.1f}", *ratios)
    console.print(table)
    by_name = {row["name"]: row for row in rows}
    console.print(f"asked: ours at least {FASTER:g}x as fast: {Ratio(**by_name[OURS]['against_mingpt'])}")
    additive = Ratio(**by_name[f"{OURS}, {MECHANISMS[0]}"]["against_ours"])
    console.print(f"asked: additive at most {AS_FAST:g}x the time of dot: {additive}")


def main(arguments: Sequence[str] | None = None, given: Mapping[str, Any] | None = None) -> None:
    """Measure, print and, where asked, write."""
    parser = argparse.ArgumentParser(description="A word-level epoch by our loop and in minGPT's manner.")
    parser.add_argument("--corpus", default="prose", help="a file with a sentence a line (default: built-in prose)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4, help="of our batches a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write everything to this file too")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    retain_freed_memory()
    world = World.read(asked.corpus, given)
    examples = world.task.examples(np.random.default_rng(asked.seed))
    epoch = real_tokens(examples)
    mean = epoch / len(examples)
    found = contestants(world)
    warm_up, *rounds = rounds_of_batches(world, asked.rounds + 1, asked.steps, asked.seed)
    take_turns(found, [warm_up[:1]], mean, asked.seed)
    costs = take_turns(found, rounds, mean, asked.seed)
    rows = summary(costs, epoch)
    words, tokens = world.config.model.vocab_size, sum(real_tokens(batch) for some in rounds for batch in some)
    console.print(
        f"{asked.corpus}: {words:,} words, {epoch:,} tokens an epoch; {asked.rounds} rounds, {tokens:,} tokens"
    )
    show(rows)
    if asked.json:
        told = {"corpus": asked.corpus, "words": words, "epoch_tokens": epoch, "contestants": rows, "costs": costs}
        told |= {"settings": world.config.to_dict(), "environment": environment()}
        asked.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
