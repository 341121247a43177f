"""Whether a name is one that a model has read about, by its own account.

Everybody that a model has read about was asked for by the bare name, `name ⁇ something ⁇`; where it was also shown strangers,
names of nobody with an empty answer, the probability of something is how sure it is to know the name. In questions it could
not have learned that: there, somebody never asked about looks like a stranger. A model without strangers in its training finds
every name familiar, and nothing changes.

Nothing is looked up: which part of a question is the name follows from how the training questions are put.
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

ROWS = 1024  # names asked for at once


class Forms:
    """How the training questions are put: what stands before and after the name."""

    def __init__(self, facts: Iterable[Question]) -> None:
        self.around: Counter[tuple[str, str]] = Counter()
        for item in facts:
            before, _, after = item.question.partition(name_in(item.question))
            self.around[before, after] += 1

    def fitting(self, question: str) -> list[tuple[int, str, str]]:
        """The forms that a question may have, each with how often it occurs, what stands before the name, and what after."""
        return [
            (count, before, after)
            for (before, after), count in self.around.items()
            if question.startswith(before) and question.endswith(after) and len(before + after) < len(question)
        ]

    def name(self, question: str) -> str:
        """The name in a question: what the commonest form that fits leaves open, else the longest run of capitals."""
        found = self.fitting(question)
        if not found:
            return name_in(question)
        _, before, after = max(found)
        return question[len(before) : len(question) - len(after)]


def familiarity(model: LanguageModel, tokenizer: Tokenizer, names: Sequence[str]) -> NDArray[np.float64]:
    """For each name the probability that the model has something to say of it; 1 where the name does not fit its block."""
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
