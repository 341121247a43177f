"""Proving that no query gives an output within the tolerance.

Attention weights obey ln a = K q + constant, so every identity k_j = sum p_i k_i with p in the simplex gives, for
every query, a_j = prod a_i^p_i, and by the inequality of means a *linear* bound a_j <= sum b_i a_i whenever sum p_i
ln(b_i / p_i) >= 0. Linear bounds are cuts of a linear program over weights whose value is a lower bound on the error
of every query. Without cuts it is the distance to the hull of the values. Where it is too weak, `cases` goes on.

Everything found here is in floats, then repaired to exact rationals; `verifier` judges it without this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from time import process_time
from typing import Any

import numpy as np

from attnlab.design.attention import Array, Problem
from attnlab.design.exact import Matrix, settle
from attnlab.design.programs import linear_program

Certificate = dict[str, Any]

_LOG_SLACK = 1e-9  # what a cut gives away so that logarithms in floats can prove it
BALL_SLACK = 1e-5  # what it gives away where the keys only nearly fit, in exchange for a ball of queries
ROUNDING = 2.0**-47  # keys that fit this closely, relative to their size, differ by their own rounding


@dataclass(frozen=True)
class _Cut:
    """a_index <= sum factors_i a_i, from key_index = sum weights_i key_i."""

    index: int
    weights: dict[int, Fraction]
    factors: dict[int, float]
    radius: float

    def plain(self) -> Certificate:
        """For JSON: exact weights as strings."""
        weights = {str(i): str(w) for i, w in self.weights.items()}
        return {"index": self.index, "weights": weights, "factors": {str(i): b for i, b in self.factors.items()}}

    def row(self, n: int) -> Array:
        """The cut as row·a <= 0."""
        row = np.zeros(n)
        row[self.index] = 1.0
        row[list(self.factors)] -= list(self.factors.values())
        return row


@dataclass(frozen=True)
class Refutation:
    """A lower bound on the error of every query, and its certificate when the bound passes the tolerance."""

    lower_bound: float
    certificate: Certificate | None


@dataclass(frozen=True)
class _Relaxed:
    """The relaxation at its optimum: the bound, the weights that attain it, and the multipliers that prove it."""

    value: float
    weights: Array
    direction: Array
    cuts: tuple[int, ...]
    multipliers: Array


class Refuter:
    """The search for a proof about one problem. Inside, values are relative to the target and of size 1."""

    def __init__(self, problem: Problem, seconds: float) -> None:
        self.problem = problem
        self.points = problem.points
        self.spread = float(np.abs(problem.values - problem.target).max()) or 1.0
        self.offsets = (problem.values - problem.target) / self.spread
        self.goal = problem.tolerance * (1 + 1e-9) / self.spread + 1e-12
        self.cuts: list[_Cut] = []
        self.vertices: set[int] = set()
        self.deadline = process_time() + seconds
        self.root: _Relaxed | None = None
        self.exact: Matrix = problem.exact.keys.exact if problem.keys.size <= 300_000 else []

    def run(self) -> Refutation:
        """The hull of the values, then cuts."""
        hull = self.relax(())
        if hull is None:
            return Refutation(0.0, None)
        self.root = self._tighten(hull, rounds=10) if self.exact else hull
        bound = max(0.0, self.root.value * self.spread)
        return Refutation(bound, self.certificate(self.root) if self.root.value > self.goal else None)

    def relax(self, cuts: tuple[int, ...]) -> _Relaxed | None:
        """min t over weights a with |V'a - y| <= t and the cuts; the value is what the multipliers prove."""
        n, m = self.offsets.shape
        rows = np.zeros((2 * m + len(cuts), n + 1))
        rows[:m, :n], rows[m : 2 * m, :n], rows[: 2 * m, n] = self.offsets.T, -self.offsets.T, -1.0
        for r, c in enumerate(cuts, start=2 * m):
            rows[r, :n] = self.cuts[c].row(n)
        size = np.abs(rows[:, :n]).max(axis=1)
        size[: 2 * m] = 1.0
        found = linear_program(
            np.append(np.zeros(n), 1.0),
            A_ub=rows / size[:, None],
            b_ub=np.zeros(len(rows)),
            A_eq=np.append(np.ones(n), 0.0)[None, :],
            b_eq=np.ones(1),
            bounds=(0, None),
        )
        if found is None:
            return None
        weights = np.maximum(found.x[:n], 0.0)
        direction = found.multipliers[:m] - found.multipliers[m : 2 * m]
        total = float(np.abs(direction).sum())
        if total == 0:
            return _Relaxed(0.0, weights, direction, cuts, np.zeros(len(cuts)))
        multipliers = found.multipliers[2 * m :] / size[2 * m :] / total
        proved = self.offsets @ (direction / total) + multipliers @ rows[2 * m :, :n]
        return _Relaxed(float(proved.min()), weights, direction / total, cuts, multipliers)

    def _tighten(self, best: _Relaxed, rounds: int) -> _Relaxed:
        """Add cuts where the relaxation is happiest, until its value stops rising."""
        now = best
        for turn in range(rounds):
            if best.value > self.goal or process_time() > self.deadline:
                break
            at = np.maximum(now.weights, 10.0 ** -(1 + turn % 4) / len(self.points))
            at /= at.sum()
            heavy = [int(j) for j in np.argsort(-now.weights)[:12] if now.weights[j] > 1e-7]
            fresh = [cut for j in heavy if process_time() < self.deadline and (cut := self._cut(j, at)) is not None]
            if not fresh:
                break
            self.cuts += fresh
            more = self.relax((*now.cuts, *range(len(self.cuts) - len(fresh), len(self.cuts))))
            if more is None:
                break
            stalled = turn >= 4 and more.value < best.value + 1e-3 * self.goal
            now, best = more, max(best, more, key=lambda r: r.value)
            if stalled:
                break
        return best

    def _cut(self, j: int, at: Array) -> _Cut | None:
        """The identity for key j whose cut is lowest at these weights; None when j is a vertex of the hull."""
        others = [i for i in range(len(self.points)) if i != j]
        if j in self.vertices or not others:
            return None
        rows = np.vstack([(self.points[others] - self.points[j]).T, np.ones(len(others))])
        right = np.append(np.zeros(len(rows) - 1), 1.0)
        found = linear_program(np.log(at[others]), A_eq=rows, b_eq=right, bounds=(0, None))
        repaired = None if found is None else self._repair(j, others, np.where(found.x > 1e-11, found.x, 0.0))
        if repaired is None:
            self.vertices.add(j)
            return None
        weights, radius = repaired
        height = sum(float(w) * np.log(at[i]) for i, w in weights.items())
        size = height + _LOG_SLACK + (0.0 if radius == np.inf else BALL_SLACK)
        factors = {i: float(np.exp(min(np.log(float(w)) + size - np.log(at[i]), 600.0))) for i, w in weights.items()}
        return _Cut(j, weights, factors, radius)

    def _repair(self, j: int, others: list[int], p: Array) -> tuple[dict[int, Fraction], float] | None:
        """The float combination made exact, or, where the keys only nearly fit, exact about a ball of queries."""
        support = [others[int(c)] for c in np.flatnonzero(p)]
        guess = p[p > 0]
        columns = [[*(a - b for a, b in zip(self.exact[i], self.exact[j], strict=True)), Fraction(1)] for i in support]
        right = [Fraction(0)] * len(self.exact[j]) + [Fraction(1)]
        exact, off = settle(columns, right, guess)
        if min(exact) < 0 or off > ROUNDING * float(np.abs(self.problem.keys).max()):
            return None
        return {i: w for i, w in zip(support, exact, strict=True) if w}, BALL_SLACK / off / 2 if off else np.inf

    def certificate(self, relaxed: _Relaxed) -> Certificate:
        """Only the cuts that the proof uses."""
        used = [
            (self.cuts[c], float(mu) * self.spread)
            for c, mu in zip(relaxed.cuts, relaxed.multipliers, strict=True)
            if mu > 0
        ]
        used.sort(key=lambda pair: -pair[1])
        direction = (-relaxed.direction).tolist()
        if not used:
            return {"type": "separating", "direction": direction}
        first = used[0][0]
        return {
            "type": "convex_combination",
            "index": first.index,
            "weights": [float(first.weights.get(i, 0)) for i in range(len(self.points))],
            "combinations": [cut.plain() for cut, _ in used],
            "direction": direction,
            "multipliers": [mu for _, mu in used],
            "radius": radius_of([cut.radius for cut, _ in used]),
        }


def radius_of(radii: list[float]) -> float | None:
    """The ball in which a proof holds whose parts hold in these; None for every query."""
    least = min(radii, default=np.inf)
    return None if least == np.inf else least
