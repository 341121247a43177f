"""Plain language modelling, one sentence per line: every word is predicted from those before it in its sentence."""

from __future__ import annotations

import numpy as np

from attnlab.config import require
from attnlab.registry import task
from attnlab.tasks import Example, Task, TaskData


@task("words")
class Words(Task):
    """Each sentence once per epoch, `<START> w1 ... wn <STOP>`, truncated to `longest` tokens; all but the first are targets.

    Pieces and characters have no start symbol: their sentences begin with the first token, which is given, and end in `□`.

    Parameters
    ----------
    longest
        maximum tokens per sentence
    padded
        pad every example to `longest`, as the course reports did; padding is not a target, but attention that sees the
        future sees it
    replacement
        draw the sentences of an epoch with replacement, as the course reports did
    """

    reads = "sentences"
    tested = "sentences"
    preset = "nano-words"
    built_in = "prose"

    def __init__(self, data: TaskData, *, longest: int = 100, padded: bool = False, replacement: bool = False) -> None:
        require(longest >= 2, f"task words: longest must be at least 2, not {longest}")
        require(
            not padded or longest <= data.block_size,
            f"task words: padded to {longest} tokens, sentences do not fit the block of {data.block_size}:"
            f" set --task.options.longest={data.block_size}",
        )
        self.longest, self.padded = longest, padded
        longest = min(longest, data.block_size)
        sentences = [data.tokenizer.sentence(line, longest) for line in data.lines("words")]
        fill = [data.tokenizer.pad] if padded else []
        self.sentences = [
            Example(ids + fill * (longest - len(ids)), 1, len(fill) * (longest - len(ids)))
            for ids in sentences
            if len(ids) > 1
        ]
        self.replacement = replacement

    def examples(self, rng: np.random.Generator) -> list[Example]:
        """Return the examples of one epoch."""
        if not self.replacement:
            return self.sentences
        return [self.sentences[number] for number in rng.integers(0, len(self.sentences), len(self.sentences))]
