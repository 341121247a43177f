"""Proving impossibility by cases, where one linear program over weights is too weak.

Weights whose output is within the tolerance lie in a box that linear programs prove. Inside a box ln a_i is below
its tangents and above its chord, and ln a = K q + constant is linear in q: one linear program bounds the error from
below. Its multipliers hold a vector u with K'u = 0 and sum u = 0, so that sum u_i ln a_i = 0 for every query; made
exact, that vector is the proof for the box. A box that resists is cut in two at the weight about whose logarithm the
program is most wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from time import process_time

import numpy as np

from attnlab.design.attention import Array
from attnlab.design.exact import rational, settle
from attnlab.design.programs import linear_program
from attnlab.design.refute import BALL_SLACK, ROUNDING, Certificate, Refuter, radius_of

_GRID = np.array([1.0, 0.5, 0.2, 0.05, 1e-2, 1e-3, 1e-5])  # where the first tangents touch
_PENALTY = 100.0  # the price of breaking a logarithm or a cut, which keeps every program feasible
_TINY = 1e-12


@dataclass(frozen=True)
class _Box:
    """Limits on the weights."""

    low: Array
    high: Array

    def chords(self) -> Array:
        """Slopes of the chords of ln between the limits; of no use where the lower limit is zero."""
        low = np.maximum(self.low, _TINY)
        width = self.high - low
        flat = width < 1e-12 * self.high
        return np.where(flat, 1 / self.high, np.log(self.high / low) / np.where(flat, 1.0, width))

    def least(self, row: Array) -> tuple[float, float]:
        """min row·a over weights in the box, and the level y of its dual: y + sum over i of the least (row_i -
        y)·a_i.
        """
        left, level = 1.0 - float(self.low.sum()), float(row.min())
        for i in np.argsort(row):
            level = float(row[i])
            left -= float(self.high[i] - self.low[i])
            if left <= 0:
                break
        gain = row - level
        return level + float((np.where(gain > 0, self.low, self.high) * gain).sum()), level


@dataclass(frozen=True)
class _Bounded:
    """The program over one box at its optimum: is it a proof, which one, and where it is happiest."""

    closed: bool
    leaf: Certificate
    weights: Array
    logs: Array
    query: Array


class Cases:
    """The tree of boxes for a problem whose refuter did not succeed with cuts alone."""

    def __init__(self, refuter: Refuter, tolerance: float, nodes: int, seconds: float) -> None:
        self.points, self.offsets, self.exact = refuter.points, refuter.offsets, refuter.exact
        self.spread, self.size = refuter.spread, float(np.abs(refuter.problem.keys).max())
        self.tolerance, self.limit = tolerance, tolerance / refuter.spread
        self.cuts = [refuter.cuts[c] for c in (refuter.root.cuts if refuter.root else ())[-40:]]
        self.cut_rows = np.array([cut.row(len(self.points)) for cut in self.cuts]).reshape(-1, len(self.points))
        self.radii: list[float] = []
        self.hints: list[Array] = []  # queries of boxes that resisted: where a solution would be, if there is one
        self.nodes, self.deadline = nodes, process_time() + seconds

    def run(self) -> Certificate | None:
        """The certificate, or None when the budget ended first."""
        box, proofs = self._first_box()
        cases = self._close(box, 0)
        if cases is None:
            return None
        used: dict[int, int] = {}
        _number_cuts(cases, used)
        return {
            "type": "farkas",
            "proves": self.tolerance,
            "bounds": [{"lower": low.tolist(), "upper": high.tolist()} for low, high in proofs],
            "combinations": [self.cuts[c].plain() for c in used],
            "cases": cases,
            "radius": radius_of(self.radii + [self.cuts[c].radius for c in used]),
        }

    def _close(self, box: _Box, depth: int) -> Certificate | None:
        """A proof for this box; two for its halves where one is not enough."""
        self.nodes -= 1
        if not box.low.sum() <= 1 <= box.high.sum():
            return self._leaf(box, np.zeros(self.offsets.shape[1]), {}, {}, {}, 1.0 if box.high.sum() < 1 else -1.0)[1]
        found = self._program(box)
        if found is None or found.closed:
            return None if found is None else found.leaf
        if self.nodes < 0 or process_time() > self.deadline or depth > 60:
            return None
        self.hints.append(found.query)
        weights = np.maximum(found.weights, _TINY)
        wrong = weights - np.exp(np.minimum(found.logs, 0.0))  # mass beyond what its own logarithm allows
        i = int(wrong.argmax())
        low, high = float(box.low[i]), float(box.high[i])
        inner = (low * (high / low) ** 0.15, low * (high / low) ** 0.85) if low > 0 else (0.0, high)
        at = float(f"{np.clip(weights[i] if low > 0 else weights[i] / 2, *inner):.4g}")
        if wrong[i] < 1e-9 or not low < at < high:
            return None
        here = np.arange(len(weights)) == i
        above = self._close(_Box(np.where(here, at, box.low), box.high), depth + 1)
        if above is None:
            return None
        below = self._close(_Box(box.low, np.where(here, at, box.high)), depth + 1)
        return None if below is None else {"split": [i, at], "above": above, "below": below}

    def _program(self, box: _Box) -> _Bounded | None:
        """min t over weights a, queries z and the constant; solved once more with tangents where it ended."""
        n, m = self.offsets.shape
        d = self.points.shape[1]
        logs = np.hstack([self.points, -np.ones((n, 1))])  # ln a_i = points_i·z - constant
        touch = np.clip(np.tile(_GRID, (n, 1)), np.maximum(box.low, _TINY)[:, None], box.high[:, None])
        some = np.flatnonzero(box.low > 0)
        slope = box.chords()[some]
        bounded = None
        for _ in range(2):
            who, at = np.repeat(np.arange(n), touch.shape[1]), touch.ravel()
            outer = np.vstack([self.offsets.T, -self.offsets.T])
            parts = [(outer, np.zeros((2 * m, d + 1))), (-np.eye(n)[who] / at[:, None], logs[who])]
            parts += [
                (np.eye(n)[some] * slope[:, None], -logs[some]),
                (self.cut_rows, np.zeros((len(self.cuts), d + 1))),
            ]
            rows = np.vstack([np.hstack(part) for part in parts])
            right = [
                np.zeros(2 * m),
                np.log(at) - 1,
                slope * box.low[some] - np.log(box.low[some]),
                np.zeros(len(self.cuts)),
            ]
            size = np.maximum(np.abs(rows).max(axis=1), 1.0)
            size[: 2 * m] = 1.0
            ends = np.cumsum([len(r) for r in right])
            slack = np.zeros((len(rows), 2))
            slack[: 2 * m, 0], slack[2 * m :, 1] = -1.0, -1.0
            found = linear_program(
                np.append(np.zeros(n + d + 1), [1.0, _PENALTY]),
                A_ub=np.hstack([rows / size[:, None], slack]),
                b_ub=np.concatenate(right) / size,
                A_eq=np.append(np.ones(n), np.zeros(d + 3))[None, :],
                b_eq=np.ones(1),
                bounds=[*zip(box.low, box.high, strict=True), *[(None, None)] * (d + 1), (0, None), (0, None)],
            )
            if found is None:
                return bounded
            outside, tangents, chords, cuts = np.split(found.multipliers / size, ends[:-1])
            above = np.bincount(who, tangents, minlength=n)
            steep = np.bincount(who, tangents / at, minlength=n)
            u = above.astype(np.float64)
            u[some] -= chords
            touches = {int(i): float(above[i] / steep[i]) for i in np.flatnonzero(above > 0)}
            shares = {c: float(mu) for c, mu in enumerate(cuts) if mu > 0}
            closed, leaf = self._leaf(box, outside[:m] - outside[m:], self._exact_vector(u, box), touches, shares)
            bounded = _Bounded(closed, leaf, found.x[:n], logs @ found.x[n : n + d + 1], found.x[n : n + d])
            if closed:
                break
            fresh = np.clip(found.x[:n], np.maximum(box.low, _TINY), box.high)
            touch = np.hstack([touch, fresh[:, None]])
        return bounded

    def _leaf(
        self,
        box: _Box,
        direction: Array,
        u: dict[int, Fraction],
        touches: dict[int, float],
        cuts: dict[int, float],
        level: float | None = None,
    ) -> tuple[bool, Certificate]:
        """Whether these multipliers prove the box empty, and the proof as plain numbers."""
        row, constant, give = self.offsets @ direction, 0.0, 1e-12
        slopes = box.chords()
        for i, x in u.items():
            share = float(x)
            at, slope = (touches[i], 1 / touches[i]) if share > 0 else (float(box.low[i]), float(slopes[i]))
            row[i] -= share * slope
            constant -= share * (np.log(at) - slope * at)
            give += 1e-8 * abs(share)
        for c, mu in cuts.items():
            row = row + mu * self.cut_rows[c]
        if level is None:
            value, level = box.least(row)
        else:
            value = level + float((np.where(-level > 0, box.low, box.high) * -level).sum())
        if self.radii and u:
            give += 2 * BALL_SLACK * max(abs(float(x)) for x in u.values())
        leaf = {
            "direction": (-direction / self.spread).tolist(),
            "vector": {str(i): str(x) for i, x in u.items()},
            "tangents": {str(i): touches[i] for i, x in u.items() if x > 0},
            "multipliers": [[c, mu] for c, mu in cuts.items()],
            "level": level,
        }
        return value + constant - give > self.limit * float(np.abs(direction).sum()), leaf

    def _exact_vector(self, u: Array, box: _Box) -> dict[int, Fraction]:
        """u repaired so that K'u = 0 and sum u = 0 exactly; empty when that changes a sign that matters."""
        support = [int(i) for i in np.flatnonzero(np.abs(u) > 1e-9 * float(np.abs(u).max()))]
        if not support or float(np.abs(u).max()) < 1e-10:
            return {}
        columns = [[*self.exact[i], Fraction(1)] for i in support]
        lead = max(range(len(support)), key=lambda c: abs(u[support[c]]))
        for c, column in enumerate(columns):
            column.insert(-1, Fraction(int(c == lead)))  # the largest entry stays as it is, or zero would do
        right = [Fraction(0)] * (len(columns[0]) - 2) + [rational(u[support[lead]]), Fraction(0)]
        exact, off = settle(columns, right, u[support])
        vector = {i: x for i, x in zip(support, exact, strict=True) if x}
        if off > ROUNDING * self.size * float(np.abs(u).sum()) or any((x > 0) != (u[i] > 0) for i, x in vector.items()):
            return {}
        if off:
            self.radii.append(BALL_SLACK * float(np.abs(u).max()) / off)
        return vector if all(x > 0 or box.low[i] > 0 for i, x in vector.items()) else {}

    def _first_box(self) -> tuple[_Box, list[tuple[Array, Array]]]:
        """Between which limits each weight lies when the output is within the tolerance, with the directions that
        prove it.
        """
        n, m = self.offsets.shape
        limits = {"A_ub": np.vstack([self.offsets.T, -self.offsets.T]), "b_ub": np.full(2 * m, self.limit)}
        limits |= {"A_eq": np.ones((1, n)), "b_eq": np.ones(1)}
        low, high, proofs = np.zeros(n), np.ones(n), []
        for i, unit in enumerate(np.eye(n)):
            directions = []
            for sign in (1.0, -1.0):
                lp = linear_program(sign * unit, **limits, bounds=(0, None))
                z = np.zeros(m) if lp is None else -sign * (lp.multipliers[:m] - lp.multipliers[m:])
                reach, give = unit - self.offsets @ z, self.limit * float(np.abs(z).sum())
                if sign > 0:
                    low[i] = (reach.min() - give) * (1 - 1e-9)
                else:
                    high[i] = min((reach.max() + give) * (1 + 1e-9), 1.0)
                directions.append(z / self.spread)
            proofs.append((directions[0], directions[1]))
        return _Box(np.where(low > 1e-9, low, 0.0), np.maximum(high, 1e-9)), proofs


def _number_cuts(case: Certificate, used: dict[int, int]) -> None:
    """Number the cuts that leaves use, in the order of their use."""
    if "split" in case:
        _number_cuts(case["above"], used)
        _number_cuts(case["below"], used)
    for pair in case.get("multipliers", ()):
        pair[0] = used.setdefault(pair[0], len(used))
