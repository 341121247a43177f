"""The model's own probability that it has read about a name.

Every person in the corpus occurs in training by the bare name, `name ⁇ something ⁇`. If training also contained strangers,
invented names with an empty answer, the probability of a nonempty answer is the confidence that the name is known. Questions
could not teach this: there, a person without a training question looks like a stranger. For a model trained without
strangers every name is familiar, and nothing changes.

Nothing is looked up: the name in a question is found from the form of the training questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnlab.corpora import Question
from attnlab.corpora.evidence import name_in
from attnlab.model import LanguageModel
from attnlab.taps import eval_mode
from attnlab.tokenizers import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 1024  # names per batch


class Forms:
    """The forms of the training questions: the text before and after the name."""

    def __init__(self, facts: Iterable[Question]) -> None:
        self.around: Counter[tuple[str, str]] = Counter()
        for item in facts:
            before, _, after = item.question.partition(name_in(item.question))
            self.around[before, after] += 1

    def fitting(self, question: str) -> list[tuple[int, str, str]]:
        """Return the forms that fit a question: count, text before the name, text after it."""
        return [
            (count, before, after)
            for (before, after), count in self.around.items()
            if question.startswith(before) and question.endswith(after) and len(before + after) < len(question)
        ]

    def name(self, question: str) -> str:
        """Return the name in a question by the most common form that fits, else the longest run of capitalised words."""
        found = self.fitting(question)
        if not found:
            return name_in(question)
        _, before, after = max(found)
        return question[len(before) : len(question) - len(after)]


def familiarity(model: LanguageModel, tokenizer: Tokenizer, names: Sequence[str]) -> NDArray[np.float64]:
    """Return, per name, the probability of a nonempty answer; 1 if the name does not fit into the block."""
    cues = [[*tokenizer.encode(name), tokenizer.mask] for name in names]
    found = np.ones(len(cues))
    fitting = [place for place, ids in enumerate(cues) if len(ids) <= model.config.block_size]
    with eval_mode(model), torch.inference_mode():
        for _, group in groupby(
            sorted(fitting, key=lambda place: len(cues[place])), key=lambda place: len(cues[place])
        ):
            places = list(group)
            for begin in range(0, len(places), ROWS):
                rows = places[begin : begin + ROWS]
                scores = model.head(model.hidden(torch.tensor([cues[row] for row in rows]))[:, -1])
                nothing = scores.softmax(dim=-1)[:, list(tokenizer.stops)].sum(dim=-1)
                found[rows] = 1 - nothing.double().numpy()
    return found
