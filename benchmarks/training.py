"""How fast the training loop is: `mingpt` in batches of similar length against the same model padded to its block.

    python benchmarks/training.py [CORPUS] [--rounds 5]

Both train the same model on the same span-corruption examples, in turns within one process. Padded is the course reports'
method: 128 rows of 128 characters per batch, with the loss over all positions, padding included. Useful tokens are those that
are not padding. Each round trains about the same number of useful tokens both ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from birthplaces import options
from torch.nn import functional as F

from attnlab import corpora, machine
from attnlab.config import resolve
from attnlab.lm import optim, train
from attnlab.lm.batches import collate, make_batches
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer
from attnlab.tasks import Example, TaskData, make_task

ROWS, BLOCK, BATCHES = 128, 128, 4


def padded_step(model: LanguageModel, optimizer: torch.optim.Optimizer, batch: Sequence[Example], pad: int) -> None:
    """One step as the reports' trainer makes it."""
    rows = torch.tensor([[*example.ids, *[pad] * (BLOCK - len(example.ids))] for example in batch])
    logits = model(rows[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def bucketed_step(
    loss: train.SummedLoss, optimizers: dict[str, torch.optim.Optimizer], batch: Sequence[Example], pad: int
) -> None:
    """One step as our loop makes it."""
    ids, targets = collate(batch, pad)
    (loss(ids, targets) / sum(len(example.ids) - example.start for example in batch)).backward()
    torch.nn.utils.clip_grad_norm_(loss.model.parameters(), 1.0)
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()


def timed(step: Callable[[list[Example]], None], batches: list[list[Example]]) -> tuple[float, int]:
    """Seconds and useful tokens of some batches."""
    began = time.perf_counter()
    for batch in batches:
        step(batch)
    return time.perf_counter() - began, sum(len(example.ids) - 1 for batch in batches for example in batch)


def main() -> None:
    """Print the tokens per second of both, and their ratio."""
    parser = options(__doc__, rounds=5)
    parser.add_argument("corpus", nargs="?", default="people", help="default: people")
    given = parser.parse_args()
    config, corpus, rounds = resolve("mingpt"), corpora.load_corpus(given.corpus), given.rounds
    torch.set_num_threads(train.choose_threads(config.model, 0))
    machine.retain_freed_memory()
    tokenizer = Tokenizer.train("char", corpus.lines, config.model.vocab_size)
    task = make_task(config.task, TaskData(tokenizer, BLOCK, corpus))
    models = [LanguageModel(config.model).train() for _ in range(2)]
    plain = torch.optim.AdamW(models[0].parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    ours, loss = optim.make_optimizers(models[1], config.train), train.SummedLoss(models[1])
    rates: dict[str, list[float]] = {"padded": [], "bucketed": []}
    for number in range(rounds + 1):
        rng = np.random.default_rng(number)
        examples = list(task.examples(rng)[: BATCHES * ROWS])
        indices = make_batches([len(e.ids) for e in examples], config.train.tokens_per_batch, rng)
        blocks = [list(examples[at : at + ROWS]) for at in range(0, len(examples), ROWS)]
        packed = [[examples[index] for index in batch] for batch in indices]
        results = {
            "padded": timed(lambda batch: padded_step(models[0], plain, batch, tokenizer.pad), blocks),
            "bucketed": timed(lambda batch: bucketed_step(loss, ours, batch, tokenizer.pad), packed),
        }
        if number:  # the first round warms up
            for name, (seconds, tokens) in results.items():
                rates[name].append(tokens / seconds)
    medians = {name: float(np.median(values)) for name, values in rates.items()}
    for name, value in medians.items():
        print(f"{name:9s} {value:8,.0f} useful tokens/s  (rounds: {', '.join(f'{rate:,.0f}' for rate in rates[name])})")
    print(f"ratio     {medians['bucketed'] / medians['padded']:8.2f}x on {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
