"""Training objectives, one file each, found by the registry. A task turns text and questions into training examples.

The contract. A task is built as `Task(data, *, options)` and has

    examples(rng) -> Sequence[Example]  the examples of one epoch, drawn with the generator
    reads_questions                     whether it uses questions

and may have

    reads_running_text                  whether its corpus is a RunningText, which may be larger than memory
    held_out() -> Sequence[Example]     the examples of a share of the text that is kept for validation
    held_out_text() -> str              that share as text
    validation() -> Sequence[Example]   the examples to validate on, if the whole text is kept for it; else examples(rng)

Examples may be made when they are asked for. If they have an attribute `uniform`, the number of ids of every example, they
are already in random order, and batches are slices of them.

Knows tokens and text, not models, batches or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from attnlab import registry
from attnlab.config import TaskConfig
from attnlab.corpora import Corpus, Question, RunningText
from attnlab.errors import ConfigError, DataError
from attnlab.lm.tokenizers import MASK, Tokenizer


@dataclass(frozen=True)
class Example:
    """One sequence; the loss counts from token `start` (at least 1) to the end or the padding."""

    ids: Any  # a list of whole numbers, or an array of numpy
    start: int
    padding: int = 0  # tokens at the end
    # positions above 0 at which a further document begins, which does not see those before it
    starts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The first token of the padding."""
        return len(self.ids) - self.padding


@dataclass(frozen=True)
class TaskData:
    """The data that a task makes examples from."""

    tokenizer: Tokenizer
    block_size: int
    corpus: Corpus | RunningText | None = None
    questions: tuple[Question, ...] = ()

    @cached_property
    def answered(self) -> list[Example]:
        """Every question with its answer: `question ⁇ answer ⁇`."""
        tokenizer, examples = self.tokenizer, []
        for number, item in enumerate(self.questions, start=1):
            if item.answer is None:
                raise DataError(f"question {number} has no answer: training needs `question<TAB>answer` lines")
            cue = [*tokenizer.encode(item.question), tokenizer.mask]
            ids = [*cue, *tokenizer.encode(item.answer), tokenizer.mask]
            if len(ids) > self.block_size:
                raise DataError(
                    f"question {number} ({item.question[:40]!r}) takes {len(ids)} tokens with its answer, and the block"
                    f" holds {self.block_size}: shorten it, or pretrain with a larger --model.block_size"
                )
            examples.append(Example(ids, len(cue)))
        return examples

    def lines(self, task: str) -> tuple[str, ...]:
        """Return the lines of the corpus, or raise an error if there is none."""
        if self.corpus is None:
            raise DataError(f"task '{task}' reads text: give --corpus")
        if isinstance(self.corpus, RunningText):
            raise DataError(f"task '{task}' reads lines, not running text: open the corpus with load_corpus")
        return self.corpus.lines


class Task(Protocol):
    """Turns text and questions into training examples."""

    reads_questions: bool

    def examples(self, rng: np.random.Generator) -> Sequence[Example]:
        """Return the examples of one epoch."""


def make_task(config: TaskConfig, data: TaskData) -> Task:
    """Build a task after checking its options."""
    entry = registry.find("task", config.name)
    try:
        task: Task = entry.build(data, **entry.check(config.options))
    except TypeError as error:
        raise ConfigError(f"task '{entry.name}' is not built as Task(data): {error}") from None
    return task


def show(example: Example, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return an example as two texts: the input, and what the model must write after the last `⁇` that asks."""
    ids, split = list(map(int, example.ids)), example.start
    if split == 1 and not tokenizer.words:  # every token is a target: split where the hidden span is asked for
        asked = [position for position, token in enumerate(ids) if token == tokenizer.mask]
        split = asked[-1] + 1 if asked else 0
    return tokenizer.decode(ids[:split]), tokenizer.decode(ids[split:])


def cut_at(ids: Sequence[int], stops: tuple[int, ...]) -> list[int]:
    """Return the ids before the first stop symbol."""
    ends = [position for position, token in enumerate(ids) if token in stops]
    return list(ids[: ends[0]] if ends else ids)


__all__ = ["MASK", "Example", "Task", "TaskData", "cut_at", "make_task", "show"]
