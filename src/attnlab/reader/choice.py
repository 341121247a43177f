"""A log-linear model that chooses among the candidates of a line: a softmax over sums of weights, one weight per clue.

Two thousand questions are few and clues are many; a log-linear model with a prior on its weights learns from them in seconds,
always converges to the same weights, and gives probabilities. Each kind of question has its own weights in addition to
shared ones, so that what is common is learned from all kinds. Knows nothing about where clues come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import softmax

_Numbers = NDArray[np.float64]
Rows = list[list[str]]  # the clues of each candidate of one question
_PRIOR = 2.0  # the inverse variance of a weight
_LEAST_QUESTIONS = 2  # a clue that occurs in one question only would memorise it
_ROUNDS = 80


@dataclass(frozen=True)
class Lesson:
    """A training example: the kind of question, the clues of its candidates, and which of them are correct."""

    kind: int
    rows: Rows
    right: list[bool]


@dataclass(frozen=True)
class _Batch:
    """All lessons of one kind as one matrix with one row per candidate."""

    matrix: csr_array
    transposed: csr_array
    begins: NDArray[np.int64]
    lesson: NDArray[np.int64]
    right: NDArray[np.bool_]

    @classmethod
    def of(cls, lessons: Sequence[Lesson], numbers: dict[str, int]) -> _Batch:
        """The lessons of one kind, with the clues that have a number."""
        sizes = [len(lesson.rows) for lesson in lessons]
        matrix = _matrix_of([row for lesson in lessons for row in lesson.rows], numbers)
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        right = np.array([right for lesson in lessons for right in lesson.right])
        return cls(matrix, csr_array(matrix.T), begins, np.repeat(np.arange(len(sizes)), sizes), right)

    def log_sums(self, scores: _Numbers) -> _Numbers:
        """Log-sum-exp over the candidates of each lesson."""
        most = np.maximum.reduceat(scores, self.begins)
        return most + np.log(np.add.reduceat(np.exp(scores - most[self.lesson]), self.begins))

    def loss(self, weights: _Numbers) -> tuple[float, _Numbers]:
        """The negative log-likelihood of the correct candidates, and its gradient."""
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
        counts.update(dict.fromkeys((clue for row in lesson.rows for clue in row), 1))  # in order, unlike a set
    common = (clue for clue, count in counts.items() if count >= _LEAST_QUESTIONS)
    return {clue: number for number, clue in enumerate(common)}


def _matrix_of(rows: Sequence[Sequence[str]], numbers: dict[str, int]) -> csr_array:
    """A matrix of candidates by clues, 1 if a candidate has a clue; unknown clues are ignored."""
    columns: list[int] = []
    ends = [0]
    for row in rows:
        columns.extend(sorted({numbers[clue] for clue in row if clue in numbers}))
        ends.append(len(columns))
    ones = np.ones(len(columns), np.float32)
    return csr_array((ones, np.array(columns, np.int32), np.array(ends, np.int32)), shape=(len(rows), len(numbers)))


@dataclass(frozen=True)
class Choice:
    """The weights of every clue for every kind."""

    numbers: dict[str, int]
    weights: _Numbers
    """Kinds by clues, with the shared weights added."""

    @classmethod
    def learn(cls, lessons: Sequence[Lesson], kinds: int) -> Choice:
        """Fit the weights by penalised maximum likelihood."""
        numbers = _clue_numbers(lessons)
        parts = [[lesson for lesson in lessons if lesson.kind == kind] for kind in range(kinds)]
        # The rows of weights of each kind: the shared ones, and its own unless there is no other kind.
        rows_of = [[0, 1 + kind] if kinds > 1 else [0] for kind in range(kinds)]
        batches = [(rows, _Batch.of(part, numbers)) for rows, part in zip(rows_of, parts, strict=True) if part]
        shape = (1 + rows_of[-1][-1], len(numbers))

        def loss(flat: _Numbers) -> tuple[float, _Numbers]:
            table = flat.reshape(shape)
            total, slope = 0.5 * _PRIOR * float(flat @ flat), _PRIOR * table
            for rows, batch in batches:
                value, gradient = batch.loss(table[rows].sum(axis=0))
                total += value
                slope[rows] += gradient
            return total, slope.ravel()

        fit = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _ROUNDS})
        table = fit.x.reshape(shape)
        return cls(numbers, np.stack([table[rows].sum(axis=0) for rows in rows_of]))

    def probabilities(self, kind: int, rows: Rows) -> _Numbers:
        """Return the probability that each candidate of a question is correct."""
        scores: _Numbers = _matrix_of(rows, self.numbers) @ self.weights[kind]
        return softmax(scores)
