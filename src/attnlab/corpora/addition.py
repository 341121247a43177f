"""Sums of two numbers of some digits, such as 012+345=0357; the digits of the sum from the left, or reversed.

All problems of few digits, and as many as needed of more. A problem is in the same part as the one with its numbers swapped,
so that no part knows the answers of another. Knows nothing about tokens or models.
"""

from __future__ import annotations

import hashlib

import numpy as np

from attnlab.corpora.files import Question
from attnlab.errors import DataError

USUAL, MOST = 3, 9  # digits
_PROBLEMS = 20_000  # of all parts, if there are as many


def part_of(a: int, b: int) -> str:
    """Return the part of a problem, by a checksum of its numbers in any order; 80 % is for training."""
    digit = hashlib.sha256(f"{min(a, b)}+{max(a, b)}".encode()).digest()[0] % 10
    return {8: "dev", 9: "test"}.get(digit, "train")


def problems(digits: int | None = None, part: str | None = None, backwards: bool = False) -> tuple[Question, ...]:
    """Return the problems with numbers of so many digits; of these, all or those of one part."""
    width = USUAL if digits is None else digits
    if not 1 <= width <= MOST:
        raise DataError(f"numbers have 1 to {MOST} digits, not {width}: name as many")
    base = 10**width
    if base**2 <= _PROBLEMS:
        pairs = [divmod(number, base) for number in range(base**2)]
    else:
        drawn = np.random.default_rng(width).integers(0, base, size=(_PROBLEMS, 2))
        pairs = list(dict.fromkeys(map(tuple, drawn.tolist())))
    step = -1 if backwards else 1
    return tuple(
        Question(f"{a:0{width}}+{b:0{width}}=", f"{a + b:0{width + 1}}"[::step])
        for a, b in pairs
        if part in (None, part_of(a, b))
    )
