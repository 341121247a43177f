"""What it costs to answer 23 % of the CS224n birthplaces: the course reports' recipe beside a short run of ours.

    ATTNLAB_DATA=path/to/data python benchmarks/recall.py [--split 0] [--epochs 10] [--slice 8]

23.0 % is the reports' best after 650 epochs of pretraining and 10 of fine-tuning, so their cost is that of the whole recipe.
Its wall time is extrapolated from `--slice` measured training steps of each of its two stages; its FLOPs are those of one step
of each stage, counted, times the number of steps. Ours is trained in full, on the same machine in the same process, with 1,800
of the 2,000 training questions, and examined on the other 200; its FLOPs are counted over the batches of one epoch, times the
epochs. Matrix products of the optimizer (Muon's) are counted with ours.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from birthplaces import data_folder, options, split_questions
from training import bucketed_step, padded_step

from attnlab import corpora, machine
from attnlab.config import RunConfig, resolve
from attnlab.kernels.counting import Counter
from attnlab.lm import evaluate, optim, stages, train
from attnlab.lm.batches import make_batches
from attnlab.lm.model import LanguageModel, load_model
from attnlab.tasks import Example, TaskData, make_task

REACHED = 0.23
STAGES = {"pretrain": (650, 128), "finetune": (10, 256)}  # epochs, and rows a batch, of the course reports


def flops(step: Callable[[], None]) -> int:
    """What one step computes."""
    with Counter() as counter:
        step()
    return counter.total


def examples_of(config: RunConfig, sources: stages.Sources, seed: int) -> tuple[Sequence[Example], int]:
    """One epoch of a stage, and the symbol that fills a batch up."""
    tokenizer = stages.learn_tokenizer(config, sources)
    task = make_task(config.task, TaskData(tokenizer, config.model.block_size, sources.corpus, sources.facts))
    return list(task.examples(np.random.default_rng(seed))), tokenizer.pad


def theirs(sources: stages.Sources, measured: int) -> tuple[float, float]:
    """FLOPs and seconds of the reports' recipe, from a few steps of each stage."""
    work, seconds = 0.0, 0.0
    for stage, (epochs, rows) in STAGES.items():
        config = resolve("mingpt", stage)  # type: ignore[arg-type]
        examples, pad = examples_of(config, sources, 0)
        batch = examples[:rows]
        model = LanguageModel(config.model).train()
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
        steps = epochs * -(-len(examples) // rows)
        one = flops(lambda: padded_step(model, adam, batch, pad))  # noqa: B023 (called at once)
        times = []
        for _ in range(measured):
            began = time.perf_counter()
            padded_step(model, adam, batch, pad)
            times.append(time.perf_counter() - began)
        work, seconds = work + steps * one, seconds + steps * median(times)
        print(
            f"reports' {stage}: {steps:,} steps of {rows} rows, {one / 1e9:,.1f} GFLOP and {median(times):.2f} s each"
            f" (median of {measured}, {min(times):.2f} to {max(times):.2f})"
        )
    return work, seconds


def flops_of_epoch(config: RunConfig, sources: stages.Sources) -> int:
    """What one epoch of ours computes, batch by batch."""
    examples, pad = examples_of(config, sources, 0)
    model = LanguageModel(config.model).train()
    loss, optimizers = train.SummedLoss(model), optim.make_optimizers(model, config.train)
    lengths = [len(example.ids) for example in examples]
    batches = make_batches(lengths, config.train.tokens_per_batch, np.random.default_rng(0))

    def pass_over() -> None:
        for batch in batches:
            bucketed_step(loss, optimizers, [examples[index] for index in batch], pad)

    return flops(pass_over)


def main() -> None:
    """Measure both and print how many times less ours takes."""
    given, data = options(__doc__, split=0, epochs=10, slice=8).parse_args(), data_folder()
    split, epochs, measured = given.split, given.epochs, given.slice
    folder = Path(tempfile.mkdtemp(prefix="recall-"))
    facts, exam = (str(path) for path in split_questions(data / "birth_places_train.tsv", folder, split))
    sources = stages.Sources.read(str(data / "wiki.txt"), facts)
    config = resolve("small", given={"train": {"epochs": epochs}})
    torch.set_num_threads(train.choose_threads(config.model, 0))
    machine.retain_freed_memory()
    work, seconds = theirs(sources, measured)

    run = stages.pretrain(config, str(data / "wiki.txt"), facts, folder / "run")
    found = evaluate.examine(*load_model(run.model), corpora.load_questions(exam)).score()
    assert found.accuracy is not None
    assert found.low is not None
    assert found.high is not None
    our_seconds, our_work = run.result.seconds, epochs * flops_of_epoch(config, sources)
    print(
        f"ours: {run.result.tokens:,} tokens, {run.result.parameters:,} parameters,"
        f" {100 * found.accuracy:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f}) of {found.questions}"
        f" held-out questions"
    )
    if found.accuracy < REACHED:
        sys.exit(f"recall: that is below {100 * REACHED:.0f} %: give more --epochs than {epochs}")
    print(f"{'':22s}{'TFLOP':>12s}{'minutes':>10s}\nreports (extrapolated){work / 1e12:12,.1f}{seconds / 60:10,.1f}")
    print(f"{'ours':22s}{our_work / 1e12:12,.1f}{our_seconds / 60:10,.1f}")
    print(f"{'times less':22s}{work / our_work:12,.0f}{seconds / our_seconds:10,.0f}")
    print(f"{torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
