"""Add numbers: `012+345= ⁇ 0357 ⁇`, with the loss on the sum and its end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnlab.corpora import Question
from attnlab.errors import DataError
from attnlab.registry import task
from attnlab.tasks import Example, Task, TaskData


@task("addition")
class Addition(Task):
    """Every line such as 012+345=0357 once per epoch; what follows the sign must be found.

    The data decide how many digits there are, and in which order those of the sum are written: addition:3 or
    addition-reversed:3. From the right, no digit of a sum depends on a later one.
    """

    reads_questions = True
    preset = "addition"
    built_in = "addition"

    def __init__(self, data: TaskData) -> None:
        pairs = [line.partition("=") for line in data.lines("addition")]
        if any(not sign or not answer for _, sign, answer in pairs):
            raise DataError("task 'addition' reads lines such as 012+345=0357: give --corpus addition:3:train")
        own = (Question(f"{problem}{sign}", answer) for problem, sign, answer in pairs)
        self.solved = replace(data, questions=tuple(dict.fromkeys((*own, *data.questions)))).answered

    def examples(self, rng: np.random.Generator) -> list[Example]:
        """Return the examples of one epoch."""
        return self.solved
