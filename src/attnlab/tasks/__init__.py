"""Training objectives, one file each, discovered by the registry. A task turns text and questions into training examples.

A task is a subclass of `Task`, built as `MyTask(data, *, options)`: the keyword-only parameters are its options. It must
define `examples`, and declares in class attributes what it reads and what is tested after training; everything else has a
default. Nothing outside this package knows a task by its name.

Knows tokens and text, not models, batches or files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from attnlab import registry
from attnlab.config import Reads, TaskConfig, TaskTraits, Tested
from attnlab.corpora import Corpus, Question, RunningText
from attnlab.errors import ConfigError, DataError
from attnlab.lm.tokenizers import Tokenizer


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


class UniformExamples(Sequence[Example], ABC):
    """Examples of equal length that are made on demand and are already in random order, so that batches are slices."""

    length: int  # ids per example


class Task(ABC):
    """Turns text and questions into training examples."""

    reads: ClassVar[Reads] = "documents"  # what its corpus holds
    reads_questions: ClassVar[bool] = False  # whether training questions are used
    tested: ClassVar[Tested] = "answers"  # what is measured after training
    preset: ClassVar[str] = "small"  # the preset made for it
    built_in: ClassVar[str] = "people"  # the built-in data made for it
    longest: int = 0  # tokens that a sentence is truncated to; 0: those of the block
    padded: bool = False  # whether sentences are padded to `longest`

    @abstractmethod
    def examples(self, rng: np.random.Generator) -> Sequence[Example]:
        """Return the examples of one epoch, drawn with the generator."""

    def validation(self) -> Sequence[Example]:
        """Return the examples to validate on, if the whole text is kept for that."""
        return self.examples(np.random.default_rng(0))

    def held_out(self) -> Sequence[Example]:
        """Return the examples of a share of the training text that is kept for validation."""
        return ()

    def held_out_text(self) -> str:
        """Return that share as text."""
        return ""

    def count_documents(self, corpus: Corpus | RunningText | None) -> int:
        """Count the documents of its corpus."""
        return len(corpus.lines) if isinstance(corpus, Corpus) else 0

    def prompt(self, example: Example, tokenizer: Tokenizer, length: int) -> str:
        """Return the beginning of a held-out example as text, from which the model writes a sample."""
        special = (tokenizer.start, tokenizer.pad, *tokenizer.stops)
        return tokenizer.decode([int(token) for token in example.ids[:length] if token not in special])

    def traits(self) -> TaskTraits:
        """Return what the task declares, as runs store it."""
        return TaskTraits(self.reads, self.tested, self.longest, self.padded)


def task_class(config: TaskConfig) -> type[Task]:
    """Return the class of a task, which declares what it reads and what is tested."""
    entry = registry.find("task", config.name)
    if not (isinstance(entry.build, type) and issubclass(entry.build, Task)):
        raise ConfigError(f"task '{entry.name}' is not a subclass of attnlab.tasks.Task: derive it from Task")
    return entry.build


def make_task(config: TaskConfig, data: TaskData) -> Task:
    """Build a task after checking its options."""
    entry, build = registry.find("task", config.name), task_class(config)
    try:
        return build(data, **entry.check(config.options))  # type: ignore[call-arg]
    except TypeError as error:
        raise ConfigError(f"task '{entry.name}' is not built as Task(data): {error}") from None


def show_example(example: Example, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return an example as two texts: the input, and what the model must write after the last `⁇` that asks."""
    ids, split = list(map(int, example.ids)), example.start
    if split == 1 and not tokenizer.words:  # every token is a target: split where the hidden span is asked for
        split = max((position + 1 for position, token in enumerate(ids) if token == tokenizer.mask), default=0)
    return tokenizer.decode(ids[:split]), tokenizer.decode(ids[split:])
