"""Span corruption: a span of the document is moved to the end, `prefix ⁇ suffix ⁇ span`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from attnlab.registry import task
from attnlab.tasks import Example, Task, TaskData


@task("spans")
class Spans(Task):
    """Each line once per epoch, truncated to a random length, with a random quarter of it hidden; every token is a target.

    The length is drawn from 4 tokens to 7/8 of the block; the hidden span is 1/8 to 3/8 of it. `□` ends the example.

    Parameters
    ----------
    pad
        fill the rest of the block with `□` and count it in the loss, which the course reports did not
    """

    preset = "mingpt"

    def __init__(self, data: TaskData, *, pad: bool = False) -> None:
        self.tokenizer = data.tokenizer
        self.block_size = data.block_size
        self.pad = pad
        self.lines = [array("I", self.tokenizer.encode(line)) for line in data.lines("spans")]

    def examples(self, rng: np.random.Generator) -> list[Example]:
        """Return the examples of one epoch."""
        return [self.corrupt(line, rng) for line in self.lines]

    def corrupt(self, line: Sequence[int], rng: np.random.Generator) -> Example:
        """Return a line with a span moved to its end."""
        longest = min(self.block_size * 7 // 8, self.block_size - 3)
        length = min(len(line), int(rng.integers(4, longest + 1)))
        hidden = int(rng.integers(max(1, length // 8), max(1, length * 3 // 8) + 1))
        begin = int(rng.integers(0, length - hidden + 1))
        mask, pad = self.tokenizer.mask, self.tokenizer.pad
        prefix, span, suffix = line[:begin], line[begin : begin + hidden], line[begin + hidden : length]
        ids = [*prefix, mask, *suffix, mask, *span, pad]
        if self.pad:
            ids += [pad] * (self.block_size - len(ids))
        return Example(ids[: self.block_size], 1)
