"""Answer questions: `question ⁇ answer ⁇`, with the loss on the answer and its end."""

from __future__ import annotations

import numpy as np

from attnlab.errors import DataError
from attnlab.registry import task
from attnlab.tasks import Example, Task, TaskData


@task("questions")
class Questions(Task):
    """Every question once per epoch, with its answer."""

    reads = "questions"
    reads_questions = True

    def __init__(self, data: TaskData) -> None:
        self.answered = data.answered
        if not self.answered:
            raise DataError("task 'questions' needs questions with answers: give --facts")

    def examples(self, rng: np.random.Generator) -> list[Example]:
        """Return the examples of one epoch."""
        return self.answered
