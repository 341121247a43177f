"""Batches: the examples of an epoch in groups, as padded tensors, and the held-out examples to validate on.

Batches hold about the same number of tokens in examples of similar length, instead of padding to the block. All
randomness follows from the seed and the epoch. Knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor

from attnlab.config import RunConfig
from attnlab.corpora import Question
from attnlab.tasks import Example, Task, UniformExamples

IGNORED = -100  # ignored target
COST_OF_A_PART = 100  # tokens; a call of the model takes as long as 49 to 127, measured for widths of 48 to 512
_COST_OF_ANSWERS = 4  # tokens that reading takes as long as writing the answer takes, per token of question and answer


def make_batches(lengths: Sequence[int], budget: int, rng: np.random.Generator) -> list[list[int]]:
    """Group indices into batches of at most `budget` tokens including padding, of similar lengths, in random order."""
    shuffled = rng.permutation(len(lengths))
    ordered = shuffled[np.argsort(np.asarray(lengths)[shuffled], kind="stable")]
    batches: list[list[int]] = []
    for index in ordered.tolist():
        if not batches or (len(batches[-1]) + 1) * lengths[index] > budget:
            batches.append([])
        batches[-1].append(index)
    return [batches[number] for number in rng.permutation(len(batches))]


def make_rows(count: int, rows: int, rng: np.random.Generator) -> list[list[int]]:
    """Group indices into batches of `rows` in random order, regardless of length; the last may have fewer.

    As in the course reports. Padded to the longest, such a batch has about twice the tokens of its sentences: see
    `split_by_length`.
    """
    shuffled = rng.permutation(count).tolist()
    return [shuffled[at : at + rows] for at in range(0, count, rows)]


Epoch = tuple[Sequence[Example], Sequence[Sequence[int]]]  # examples, and their indices by batch


def make_epoch(task: Task, config: RunConfig, epoch: int) -> Epoch:
    """Make the examples of an epoch, and group their indices into batches, by rows or by tokens."""
    settings = config.train
    rng = np.random.default_rng([config.seed if settings.order_seed < 0 else settings.order_seed, epoch])
    examples = task.examples(rng)
    if isinstance(examples, UniformExamples):
        rows = settings.rows_per_batch or max(1, settings.tokens_per_batch // (examples.length - 1))
        return examples, [range(at, min(at + rows, len(examples))) for at in range(0, len(examples), rows)]
    if settings.rows_per_batch:
        return examples, make_rows(len(examples), settings.rows_per_batch, rng)
    return examples, make_batches([len(example.ids) for example in examples], settings.tokens_per_batch, rng)


def split_by_length(rows: Sequence[Example], most: int, overhead: float = COST_OF_A_PART) -> list[list[Example]]:
    """Split a batch into parts of at most `most` rows of similar length, the longest first, at the lowest cost.

    The cost of a part is its number of tokens, padding included, plus the overhead of computing it apart. So rows of equal
    length are one part, in their order, unless they are too many.
    """
    ordered = sorted(rows, key=lambda example: len(example.ids))
    # Of the first rows, for every number of them: the lowest cost, and where the last part then begins.
    costs, begins = np.zeros(len(ordered) + 1), [0]
    for end, longest in enumerate(ordered, start=1):
        first = max(0, end - most)
        totals = costs[first:end] + overhead + (len(longest.ids) - 1) * np.arange(end - first, 0, -1)
        begins.append(first + int(totals.argmin()))
        costs[end] = totals.min()
    cuts = [len(ordered)]
    while cuts[-1]:
        cuts.append(begins[cuts[-1]])
    return [ordered[begin:end] for end, begin in pairwise(cuts)]


def batches_by_length(lengths: Sequence[int], *, tokens: int = 0, rows: int = 0) -> Iterator[list[int]]:
    """Yield the indices of sequences of equal length, at most so many tokens or rows at a time: they need no padding."""
    for length, group in groupby(sorted(range(len(lengths)), key=lengths.__getitem__), key=lengths.__getitem__):
        indices, most = list(group), rows or max(1, tokens // length)
        yield from (indices[at : at + most] for at in range(0, len(indices), most))


def collate(examples: Sequence[Example], pad: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a batch, padded to its longest example."""
    width = max(len(example.ids) for example in examples) - 1
    ids = np.full((len(examples), width), pad, dtype=np.int64)
    targets = np.full((len(examples), width), IGNORED, dtype=np.int64)
    for row, example in enumerate(examples):
        length = len(example.ids) - 1
        ids[row, :length] = example.ids[:-1]
        targets[row, example.start - 1 : example.end - 1] = example.ids[example.start : example.end]
    return torch.from_numpy(ids), torch.from_numpy(targets)


def number_documents(examples: Sequence[Example]) -> Tensor | None:
    """Number the documents in each row of a batch; None if no row has more than one."""
    if not any(example.starts for example in examples):
        return None
    width = max(len(example.ids) for example in examples) - 1
    numbers = np.zeros((len(examples), width), dtype=np.int64)
    for row, example in enumerate(examples):
        for start in example.starts:
            numbers[row, start:] += 1
    return torch.from_numpy(numbers)


def count_ids(examples: Sequence[Example]) -> int:
    """Count the ids of examples; those of equal length are not read."""
    if isinstance(examples, UniformExamples):
        return examples.length * len(examples)
    return sum(len(example.ids) for example in examples)


@dataclass(frozen=True)
class DevSet:
    """Held-out data to validate on: examples, and the questions if they are to be answered too."""

    examples: Sequence[Example]
    questions: tuple[Question, ...] = ()

    @cached_property
    def cost(self) -> int:
        """The time of a validation, as a number of tokens to read."""
        tokens = count_ids(self.examples)
        return tokens * (1 + _COST_OF_ANSWERS) if self.questions else tokens

    def spread(self, tokens: int) -> DevSet:
        """Return about so many tokens of it, evenly spread (0: all); questions go with their examples."""
        total = count_ids(self.examples)
        step = math.ceil(total / tokens) if tokens else 1
        places = range(0, len(self.examples), max(1, step))
        return DevSet([self.examples[place] for place in places], self.questions[:: max(1, step)])
