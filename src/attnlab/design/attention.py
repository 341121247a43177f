"""Attention evaluated forwards: weights, outputs, and bounds on the rounding error of floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from attnlab.design.exact import Array, Matrix, Rows, dot, rational, read_as

Scale = Literal["none", "sqrt"]

UNIT = 2.0**-52
_PRECISIONS = (60, 400)  # digits of an exponential; the second is used where the first leaves a verdict open


def factor(scale: Scale, width: int) -> float:
    """The number that the products of queries and keys are multiplied by."""
    return 1.0 if scale == "none" else 1.0 / float(np.sqrt(width))


def softmax(scores: Array) -> Array:
    """Weights along the last axis; the largest score is subtracted first, so nothing overflows."""
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def log_sum_exp(scores: Array) -> float:
    """ln sum e^scores, without overflow."""
    top = float(scores.max())
    return top + float(np.log(np.exp(scores - top).sum()))


def _error_of_weights(
    scores: Sequence[Fraction], root: int, values: Matrix, target: Sequence[Fraction], precision: int
) -> tuple[list[Fraction], Fraction]:
    """The error per coordinate of attention with the weights softmax(scores / sqrt(root)), and a limit on the rounding error
    of these numbers.

    Exponentials are rounded to `precision` digits. The limit is generous: a thousand times that for each of a million
    keys.
    """
    context = Context(prec=precision + 10)
    top, width = max(scores), context.sqrt(Decimal(root))
    raised = []
    for below in (score - top for score in scores):
        if below * below > (3 * precision) ** 2 * root:
            raised.append(0)
            continue
        exponent = context.divide(Decimal(below.numerator), context.multiply(Decimal(below.denominator), width))
        raised.append(int(context.exp(exponent).scaleb(precision, context)))
    apart = [[x - y for x, y in zip(row, target, strict=True)] for row in values]
    off = [dot(raised, [row[c] for row in apart]) / sum(raised) for c in range(len(target))]
    spread = max(abs(x) for row in apart for x in row)
    return off, spread / 10 ** (precision - 9) if any(score != top for score in scores) else Fraction(0)


class _Judged(NamedTuple):
    """Whether the exact error of a query is within the tolerance, the error per coordinate, and an upper bound on it."""

    within: bool
    off: list[Fraction]
    bound: float


@dataclass(frozen=True)
class Problem:
    """Keys k, values v and the output y that one query should give, within eps in the maximum norm.

    Verdicts are about these exact numbers; the search uses their floats: `keys`, `values`, `target` and `tolerance`.
    """

    k: Rows
    v: Rows
    y: Rows
    eps: Fraction
    scale: Scale = "none"
    keys: Array = field(init=False)
    values: Array = field(init=False)
    target: Array = field(init=False)
    tolerance: float = field(init=False)
    unit: float = field(init=False)
    points: Array = field(init=False)
    basis: Array = field(init=False)

    def __post_init__(self) -> None:
        """Compute `points`, the keys in whitened coordinates: centred, without the directions in which they agree, of equal
        width in the others. Up to a constant, z gives `points` the scores that `query(z)` gives the keys.
        """
        keys = self.k.floats
        moved = keys - keys.mean(axis=0)
        unit = float(np.abs(moved).max()) or 1.0
        _, sizes, axes = np.linalg.svd(moved / unit, full_matrices=False)
        rank = max(1, int((sizes > 1e-11 * sizes[0]).sum()))
        width = np.where(sizes[:rank] > 0, np.sqrt(len(moved)) / np.maximum(sizes[:rank], 1e-300), 0.0)
        basis = axes[:rank].T * width
        floats = {"keys": keys, "values": self.v.floats, "target": self.y.floats[0], "tolerance": float(self.eps)}
        for name, value in {**floats, "unit": unit, "points": (moved / unit) @ basis, "basis": basis}.items():
            object.__setattr__(self, name, value)

    @property
    def factor(self) -> float:
        """The scale as a number."""
        return factor(self.scale, self.keys.shape[1])

    @property
    def reading(self) -> str:
        """How keys and values were read."""
        return read_as(keys=self.k, values=self.v)

    @property
    def means(self) -> Array:
        """The values, each replaced by the mean over the keys equal to its own: these have equal weights for every query."""
        groups: dict[tuple[Fraction, ...], int] = {}
        same = [groups.setdefault(tuple(row), len(groups)) for row in self.k.exact]
        return np.array([np.bincount(same, column) / np.bincount(same) for column in self.values.T]).T[same]

    def judge(self, query: Sequence[Fraction]) -> _Judged:
        """The error of a query in exact arithmetic."""
        scores = [dot(row, query) for row in self.k.exact]
        root = 1 if self.scale == "none" else len(query)
        for precision in _PRECISIONS:
            off, rounding = _error_of_weights(scores, root, self.v.exact, self.y.exact[0], precision)
            error = max(map(abs, off))
            if not error - rounding <= self.eps < error + rounding:
                break
        limit = float(error + rounding)
        bound = limit if limit >= error + rounding else float(np.nextafter(limit, np.inf))
        return _Judged(error - rounding <= self.eps, off, bound)

    def certified(self, query: Array) -> float | None:
        """An upper bound on the exact error if it is within the tolerance, both for the floats of the query and for the
        decimals that they are printed as.
        """
        readings = ([Fraction(x) for x in query.tolist()], [rational(x) for x in query])
        judged = [self.judge(reading) for reading in readings]
        return max(verdict.bound for verdict in judged) if all(verdict.within for verdict in judged) else None

    def query(self, z: Array) -> Array:
        """The query that gives the keys the scores that z gives `points`."""
        return np.asarray(self.basis @ z) / (self.factor * self.unit)

    def weights(self, query: Array) -> Array:
        """softmax(scale · K q)."""
        return softmax(self.factor * (self.keys @ query))

    def error(self, query: Array) -> float:
        """Distance of the output from the target, in float64."""
        return float(np.abs(self.weights(query) @ self.values - self.target).max())

    def guaranteed(self, query: Array) -> float:
        """An upper bound on the error in exact arithmetic: the float64 error plus a bound on its rounding."""
        spread = float((self.weights(query) @ np.abs(self.values - self.target)).max())
        sums = (len(self.keys) + 8) * UNIT * float(max(np.abs(self.values).max(), np.abs(self.target).max()))
        return self.error(query) + float(np.expm1(min(2 * self.score_rounding(query), 50.0))) * spread + sums

    def score_rounding(self, query: Array) -> float:
        """An upper bound on the rounding error of any score in float64."""
        return (len(query) + 4) * UNIT * self.factor * float((np.abs(self.keys) @ np.abs(query)).max())

    def measured(self, query: Array) -> dict[str, float]:
        """The error that a program sees, in float32 and in float64."""
        with np.errstate(over="ignore", invalid="ignore"):
            single = [np.asarray(x, dtype=np.float32) for x in (self.keys, self.values, query)]
            scores = np.float32(self.factor) * (single[0] @ single[2])
            raised = np.exp(scores - scores.max())
            output = (raised / raised.sum()) @ single[1]
        low = float(np.abs(output.astype(np.float64) - self.target).max())
        return {"float32": low, "float64": self.error(query)}
