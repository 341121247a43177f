"""Exact rationals for the solver: a number is the decimal it was written as, and linear systems are solved without rounding.

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
    """x with sum x_c · column_c = right, exactly; columns without a pivot keep their guessed value. None if there is no x.

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
            rows[r] = [0] * (c + 1) + [(top[c] * x - head * y) // previous for x, y in zip(rows[r][c + 1 :], top[c + 1 :], strict=True)]
        previous, depth = top[c], depth + 1
        pivots.append(c)
    if any(row[-1] for row in rows[depth:]):
        return None
    x = [Fraction(0) if c in pivots else rational(guess[order[c]]) for c in range(len(order))]
    for r in reversed(range(depth)):
        row = rows[r]
        rest = sum((row[c] * x[c] for c in range(pivots[r] + 1, len(order)) if x[c]), Fraction(0))
        x[pivots[r]] = (row[-1] - rest) / row[pivots[r]]
    answer = [Fraction(0)] * len(order)
    for place, c in enumerate(order):
        answer[c] = x[place]
    return answer
