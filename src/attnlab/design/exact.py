"""Exact rationals for the solver: a number is the decimal it was written as, and linear systems are solved without
rounding.

The verifier does not use this module; it has its own few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from attnlab.design.attention import Array


def rational(number: float) -> Fraction:
    """The shortest decimal that names this float: what a person typed, where a person typed it."""
    return Fraction(repr(float(number)))


def solve(columns: Sequence[Sequence[Fraction]], right: Sequence[Fraction], guess: Array) -> list[Fraction] | None:
    """x with sum x_c · column_c = right, exactly, or None; columns without a pivot keep their guessed value.

    Fraction-free elimination (Bareiss) on integers: the numbers stay as short as determinants.
    """
    order = [int(c) for c in np.argsort(-np.abs(guess), kind="stable")]
    rows: list[list[int]] = []
    for r, b in enumerate(right):
        row = [columns[c][r] for c in order] + [b]
        common = lcm(*(x.denominator for x in row))
        rows.append([int(x * common) for x in row])
    pivots: list[int] = []
    previous, depth = 1, 0
    for c in range(len(order)):
        pick = next((r for r in range(depth, len(rows)) if rows[r][c]), None)
        if pick is None:
            continue
        rows[depth], rows[pick] = rows[pick], rows[depth]
        top = rows[depth]
        for r in range(depth + 1, len(rows)):
            head = rows[r][c]
            rows[r] = [0] * (c + 1) + [
                (top[c] * x - head * y) // previous for x, y in zip(rows[r][c + 1 :], top[c + 1 :], strict=True)
            ]
        previous, depth = top[c], depth + 1
        pivots.append(c)
    if any(row[-1] for row in rows[depth:]):
        return None
    x = [Fraction(0) if c in pivots else rational(guess[order[c]]) for c in range(len(order))]
    for r in reversed(range(depth)):
        line = rows[r]
        rest = sum((line[c] * x[c] for c in range(pivots[r] + 1, len(order)) if x[c]), Fraction(0))
        x[pivots[r]] = (line[-1] - rest) / line[pivots[r]]
    answer = [Fraction(0)] * len(order)
    for place, c in enumerate(order):
        answer[c] = x[place]
    return answer


def null_vector(columns: Sequence[Sequence[Fraction]], guess: Array) -> list[Fraction] | None:
    """x, not zero, with sum x_c · column_c = 0, near the guess where that is one; None when there is none."""
    right = [Fraction(0)] * len(columns[0])
    for start in (guess, np.ones(len(columns))):
        found = solve(columns, right, start)
        if found is not None and any(found):
            return found
    return None


def settle(
    columns: Sequence[Sequence[Fraction]], right: Sequence[Fraction], guess: Array
) -> tuple[list[Fraction], float]:
    """x near the guess that solves the system exactly, or, where only a wild one does, nearly; and the size of what
    is missed.
    """
    exact = solve(columns, right, guess)
    size = float(np.abs(guess).max())
    if exact is not None and max(abs(float(x) - g) for x, g in zip(exact, guess, strict=True)) <= 1e-6 * size:
        return exact, 0.0
    rows = np.array([[float(x) for x in column] for column in columns]).T
    unit = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-9 * np.abs(rows).max())
    moved = guess.copy()
    for _ in range(2):
        miss = np.array([float(b) for b in right]) - rows @ moved
        moved = moved + np.linalg.pinv(rows / unit, rcond=1e-11) @ (miss / unit[:, 0])
    near = [rational(x) if g else Fraction(0) for x, g in zip(moved, guess, strict=True)]
    left = [sum((x * c[r] for x, c in zip(near, columns, strict=True)), -b) for r, b in enumerate(right)]
    near[-1] -= left[-1] / columns[-1][-1]
    left = [sum((x * c[r] for x, c in zip(near, columns, strict=True)), -b) for r, b in enumerate(right)]
    return near, float(np.linalg.norm([float(x) for x in left]))
