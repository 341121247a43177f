"""Answer questions: `question ⁇ answer ⁇`, with the loss on the answer and its end."""

from __future__ import annotations

import numpy as np

from attnlab.errors import DataError
from attnlab.registry import task
from attnlab.tasks import Example, TaskData


@task("questions")
class Questions:
    """Every question once an epoch, asked and answered."""

    reads_questions = True

    def __init__(self, data: TaskData) -> None:
        self.answered = data.answered
        if not self.answered:
            raise DataError("task 'questions' needs questions with answers: give --facts")

    def examples(self, rng: np.random.Generator) -> list[Example]:
        """One epoch."""
        return self.answered
