"""Exact rational arithmetic for the solver and the checker: numbers as given, and linear systems without rounding.

The verifier does not use this module; it has its own few lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Matrix = list[list[Fraction]]
Reading = Literal["decimal", "binary"]

_DIGITS = 1000  # maximum length of a number, and its largest power of ten
_READINGS: dict[Reading, str] = {"decimal": "as the decimals written", "binary": "as binary float64 values"}


@dataclass(frozen=True, eq=False)
class Rows:
    """Vectors, one per row: float64 for the search, and, computed on demand, the exact numbers given."""

    floats: Array
    reading: Reading
    make: Callable[[], Matrix]

    @cached_property
    def exact(self) -> Matrix:
        """The numbers as given, as rationals."""
        return self.make()

    def take(self, rows: Sequence[int]) -> Rows:
        """The rows with these indices."""
        return Rows(self.floats[list(rows)], self.reading, lambda: [self.exact[i] for i in rows])


def binary(floats: Array) -> Rows:
    """Floats, which mean their binary values."""
    return Rows(floats, "binary", lambda: rationals(floats.tolist()))


def rationals(rows: Sequence[Sequence[float | Decimal | Fraction]]) -> Matrix:
    """The same numbers as rationals; NaN, which marks a free row, becomes 0."""
    return [[Fraction(x) if x == x else Fraction(0) for x in row] for row in rows]


def rational_rows(exact: Matrix, reading: Reading) -> Rows:
    """Rationals together with their nearest floats; an OverflowError where a float cannot hold them."""
    return Rows(np.array([[float(x) for x in row] for row in exact]), reading, lambda: exact)


def read_as(**matrices: Rows) -> str:
    """How the numbers were read: the first name, and the names whose reading differs from it."""
    first = next(iter(matrices.values())).reading
    shown = [name for place, (name, rows) in enumerate(matrices.items()) if not place or rows.reading != first]
    return ", ".join(f"{name} {_READINGS[matrices[name].reading]}" for name in shown)


def decimal(text: str) -> Decimal:
    """A number as written; a ValueError where it is not a number, or too long for exact arithmetic."""
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise ValueError("is not a number") from None
    if number.is_snan():
        raise ValueError("is not a number")
    if not number.is_finite():
        return number
    if len(text) > _DIGITS or (number and abs(number.adjusted()) > _DIGITS):
        raise ValueError(f"is too long; write at most {_DIGITS} digits and powers of ten")
    return number if number else Decimal(0)


def rational(number: float) -> Fraction:
    """The rational that this float is printed as: short, for numbers that the solver is free to choose."""
    return Fraction(repr(float(number)))


def dot(a: Sequence[Fraction | int], b: Sequence[Fraction]) -> Fraction:
    """The inner product of two vectors."""
    return sum((x * y for x, y in zip(a, b, strict=True) if x and y), Fraction(0))


def solve(columns: Sequence[Sequence[Fraction]], right: Sequence[Fraction], guess: Array) -> list[Fraction] | None:
    """An exact x with sum x_c · column_c = right, or None; variables without a pivot keep their guessed value.

    Fraction-free elimination (Bareiss) on integers: no intermediate number is longer than a determinant.
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
    """A nonzero x with sum x_c · column_c = 0, near the guess where possible; None if only x = 0 does."""
    right = [Fraction(0)] * len(columns[0])
    for start in (guess, np.ones(len(columns))):
        x = solve(columns, right, start)
        if x is not None and any(x):
            return x
    return None


def near_null_vector(columns: Sequence[Sequence[Fraction]], guess: Array) -> tuple[list[Fraction], float]:
    """An x near the guess, equal to it in its largest entry, with sum x_c · column_c = 0 exactly or, where no such x is
    near, approximately; and the norm of the residual.
    """
    lead = int(np.abs(guess).argmax())
    fixed = [[*column[:-1], Fraction(int(c == lead)), column[-1]] for c, column in enumerate(columns)]
    right = [Fraction(0)] * (len(columns[0]) - 1) + [rational(guess[lead]), Fraction(0)]
    return settle(fixed, right, guess)


def settle(
    columns: Sequence[Sequence[Fraction]], right: Sequence[Fraction], guess: Array
) -> tuple[list[Fraction], float]:
    """An x near the guess that solves the system exactly or, where no exact solution is near it, approximately; and the
    norm of the residual.
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
    exact_rows = list(zip(*columns, strict=True))
    if columns[-1][-1]:  # the last equation, a normalisation, holds exactly
        near[-1] -= (dot(near, exact_rows[-1]) - right[-1]) / columns[-1][-1]
    residual = [float(dot(near, row) - b) for row, b in zip(exact_rows, right, strict=True)]
    return near, float(np.linalg.norm(residual))


class Program(NamedTuple):
    """An exact linear program, solved: a point and its value, or a ray along which the value falls without end, or neither
    if no point satisfies the inequalities; and the multipliers of the inequalities.
    """

    x: list[Fraction] | None
    ray: list[Fraction] | None
    multipliers: list[Fraction]


def minimise(cost: Sequence[Fraction], rows: Matrix, least: Sequence[Fraction]) -> Program:
    """min cost·x over all x with rows·x >= least, by the simplex method on the dual with Bland's rule, which always ends.

    A ray has rows·ray >= 0 and cost·ray < 0; whether any point satisfies the inequalities is then left open.
    """
    d, m = len(cost), len(rows)
    signs = [-1 if c < 0 else 1 for c in cost]
    table = [
        [signs[k] * row[k] for row in rows] + [Fraction(int(k == e)) for e in range(d)] + [signs[k] * cost[k]]
        for k in range(d)
    ]
    basis = list(range(m, m + d))

    def pivot(r: int, c: int) -> None:
        table[r] = [x / table[r][c] for x in table[r]]
        for other in range(d):
            if other != r and table[other][c]:
                times = table[other][c]
                table[other] = [x - times * y for x, y in zip(table[other], table[r], strict=True)]
        basis[r] = c

    def climb(gain: Sequence[Fraction]) -> int | None:
        """Maximise the gain; the column along which it grows without end, if there is one."""
        while True:
            enters = (c for c in range(m) if gain[c] > sum(gain[basis[r]] * table[r][c] for r in range(d)))
            c = next(enters, None)
            if c is None:
                return None
            ratios = [(table[r][-1] / table[r][c], basis[r], r) for r in range(d) if table[r][c] > 0]
            if not ratios:
                return c
            pivot(min(ratios)[2], c)

    def prices(gain: Sequence[Fraction]) -> list[Fraction]:
        return [signs[k] * sum((gain[basis[r]] * table[r][m + k] for r in range(d)), Fraction(0)) for k in range(d)]

    first = [Fraction(0)] * m + [Fraction(-1)] * d
    climb(first)
    ray = prices(first)
    if dot(ray, list(cost)) < 0:
        return Program(None, ray, [])
    for r in range(d):
        if basis[r] >= m and (c := next((c for c in range(m) if table[r][c]), None)) is not None:
            pivot(r, c)
    gain = [*least, *[Fraction(0)] * d]
    endless = climb(gain)
    multipliers = [Fraction(0)] * m
    for r in range(d):
        if basis[r] < m:
            multipliers[basis[r]] = table[r][-1] if endless is None else -table[r][endless]
    if endless is not None:
        multipliers[endless] = Fraction(1)
        return Program(None, None, multipliers)
    return Program(prices(gain), None, multipliers)
