"""The choice among the candidates of a line: a softmax over sums of weights, one weight a clue.

Why: two thousand questions are few, clues are many, and a log-linear model with a prior on its weights learns from them in
seconds, always ends at the same weights, and says how sure it is. Where questions of several kinds are asked, each kind has
weights of its own beside those that all share, so that what is common is learned from all of them.
It must not know where clues come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array

_Numbers = NDArray[np.float64]
Rows = list[list[str]]  # the clues of each candidate of one question
_PRIOR = 2.0  # the inverse variance of a weight
_LEAST_QUESTIONS = 2  # a clue of one question only could do nothing but learn it by heart
_ROUNDS = 80


@dataclass(frozen=True)
class Lesson:
    """A question as the choice sees it: its kind, the clues of its candidates, and which of them are right."""

    kind: int
    rows: Rows
    right: list[bool]


@dataclass(frozen=True)
class _Batch:
    """All lessons of one kind as one matrix, candidate by candidate."""

    matrix: csr_array
    transposed: csr_array
    begins: NDArray[np.int64]
    lesson: NDArray[np.int64]
    right: NDArray[np.bool_]

    def log_sums(self, scores: _Numbers) -> _Numbers:
        """The logarithm of the sum of exponentials over the candidates of each lesson."""
        most = np.maximum.reduceat(scores, self.begins)
        return most + np.log(np.add.reduceat(np.exp(scores - most[self.lesson]), self.begins))

    def loss(self, weights: _Numbers) -> tuple[float, _Numbers]:
        """How unlikely the right candidates are, and the slope of it."""
        scores = (self.matrix @ weights.astype(np.float32)).astype(np.float64)
        all_of, right_of = self.log_sums(scores), self.log_sums(np.where(self.right, scores, -1e9))
        wanted = np.where(self.right, np.exp(np.minimum(scores - right_of[self.lesson], 0.0)), 0.0)
        residual = np.exp(scores - all_of[self.lesson]) - wanted
        slope = (self.transposed @ residual.astype(np.float32)).astype(np.float64)
        return float(np.sum(all_of - right_of)), slope


def _clue_numbers(lessons: Sequence[Lesson]) -> dict[str, int]:
    """A number for every clue that occurs in several lessons."""
    counts: Counter[str] = Counter()
    for lesson in lessons:
        counts.update({clue for row in lesson.rows for clue in row})
    return {
        clue: number for number, clue in enumerate(one for one, count in counts.items() if count >= _LEAST_QUESTIONS)
    }


def _matrix_of(rows: Sequence[Sequence[str]], numbers: dict[str, int]) -> csr_array:
    """Candidates by clues, ones where a candidate has a clue; unknown clues are left out."""
    columns: list[int] = []
    ends = [0]
    for row in rows:
        columns.extend(sorted({numbers[clue] for clue in row if clue in numbers}))
        ends.append(len(columns))
    ones = np.ones(len(columns), np.float32)
    return csr_array((ones, np.array(columns, np.int32), np.array(ends, np.int32)), shape=(len(rows), len(numbers)))


def _batch_of(lessons: Sequence[Lesson], numbers: dict[str, int]) -> _Batch:
    """Lessons of one kind as a batch."""
    sizes = [len(lesson.rows) for lesson in lessons]
    matrix = _matrix_of([row for lesson in lessons for row in lesson.rows], numbers)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    right = np.array([right for lesson in lessons for right in lesson.right])
    return _Batch(matrix, csr_array(matrix.T), begins, np.repeat(np.arange(len(sizes)), sizes), right)


@dataclass(frozen=True)
class Choice:
    """The weights of every clue for every kind."""

    numbers: dict[str, int]
    weights: _Numbers
    """Kinds by clues, what all kinds share already added."""

    @classmethod
    def learn(cls, lessons: Sequence[Lesson], kinds: int) -> Choice:
        """The weights that make the right candidates likely, and no larger than that is worth."""
        numbers = _clue_numbers(lessons)
        parts = [[lesson for lesson in lessons if lesson.kind == kind] for kind in range(kinds)]
        batches = [_batch_of(part, numbers) if part else None for part in parts]
        # One kind needs no second set of weights.
        shape = (1 + kinds if kinds > 1 else 1, len(numbers))

        def loss(flat: _Numbers) -> tuple[float, _Numbers]:
            table = flat.reshape(shape)
            total, slope = 0.5 * _PRIOR * float(flat @ flat), _PRIOR * table
            for kind, batch in enumerate(batches):
                if batch is not None:
                    own = table[0] if kinds == 1 else table[0] + table[1 + kind]
                    value, gradient = batch.loss(own)
                    total += value
                    slope[0] += gradient
                    if kinds > 1:
                        slope[1 + kind] += gradient
            return total, slope.ravel()

        found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _ROUNDS})
        table = found.x.reshape(shape)
        return cls(numbers, table if kinds == 1 else table[0] + table[1:])

    def probabilities(self, kind: int, rows: Rows) -> _Numbers:
        """How likely each candidate of a question is the right one."""
        scores: _Numbers = _matrix_of(rows, self.numbers) @ self.weights[kind]
        likely = np.exp(scores - scores.max())
        return likely / likely.sum()
