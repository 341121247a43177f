"""Proofs that no query gives an output within the tolerance, and a sentence that explains each.

Attention weights satisfy ln a = K q + constant, so every identity k_j = sum p_i k_i with p in the simplex gives
a_j = prod a_i^p_i for every query, and by the inequality of means a *linear* bound a_j <= sum b_i a_i whenever
sum p_i ln(b_i / p_i) >= 0. Such bounds are cuts of a linear program over weights, whose value is a lower bound on the
error of every query. Without cuts it is the distance from the target to the hull of the values (`Problem.means`).

Where cuts are not enough, `Cases` splits the problem. Weights whose output is within the tolerance lie in a box that
linear programs prove. Inside a box ln a_i is below its tangents and above its chord, and ln a = K q + constant is
linear in q, so one linear program bounds the error from below. Its multipliers contain a vector u with K'u = 0 and
sum u = 0, so that sum u_i ln a_i = 0 for every query; made exact, that vector is the proof for the box. A box that
cannot be excluded is split at the weight whose logarithm the program gets most wrong.

Proofs are found in floats and then repaired to exact rationals; `verifier` judges them without this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from time import process_time

import numpy as np

from attnlab.design.attention import Problem
from attnlab.design.exact import Array, Matrix, near_null_vector, settle
from attnlab.design.optimize import linear_program
from attnlab.design.results import Certificate, at_least, number

_LOG_SLACK = 1e-9  # slack of a cut, so that logarithms in floats can prove it
_BALL_SLACK = 1e-5  # additional slack where the keys only nearly fit; the proof then holds for a ball of queries
_ROUNDING = 2.0**-47  # a misfit of keys up to this, relative to their size, is their own rounding
_GRID = np.array([1.0, 0.5, 0.2, 0.05, 1e-2, 1e-3, 1e-5])  # where the first tangents touch
_PENALTY = 100.0  # cost of violating a logarithm or a cut, which keeps every program feasible
_TINY = 1e-12


@dataclass(frozen=True)
class _Cut:
    """a_index <= sum factors_i a_i, from key_index = sum weights_i key_i."""

    index: int
    weights: dict[int, Fraction]
    factors: dict[int, float]
    radius: float

    def plain(self) -> Certificate:
        """The cut for JSON, with exact weights as strings."""
        weights = {str(i): str(w) for i, w in self.weights.items()}
        return {"index": self.index, "weights": weights, "factors": {str(i): b for i, b in self.factors.items()}}

    def row(self, n: int) -> Array:
        """The cut as row·a <= 0."""
        row = np.zeros(n)
        row[self.index] = 1.0
        row[list(self.factors)] -= list(self.factors.values())
        return row


@dataclass(frozen=True)
class _Relaxed:
    """The relaxation at its optimum: the bound, the weights that attain it, and the multipliers that prove it."""

    value: float
    weights: Array
    direction: Array
    cuts: tuple[int, ...]
    multipliers: Array


class Refuter:
    """The search for a proof about one problem. Internally values are relative to the target and of size 1."""

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
        self.exact: Matrix = problem.k.exact if problem.keys.size <= 300_000 else []

    def run(self) -> Certificate | None:
        """A certificate by the hull of the values or by cuts, or None."""
        hull = self._relax((), (self.problem.means - self.problem.target) / self.spread)
        if hull is None:
            return None
        self.root = self._tighten(hull, rounds=10) if self.exact else hull
        return self.certificate() if self.root.value > self.goal else None

    def _relax(self, cuts: tuple[int, ...], offsets: Array) -> _Relaxed | None:
        """min t over weights a with |V'a - y| <= t and the cuts; the value is what the multipliers prove."""
        n, m = offsets.shape
        rows = np.zeros((2 * m + len(cuts), n + 1))
        rows[:m, :n], rows[m : 2 * m, :n], rows[: 2 * m, n] = offsets.T, -offsets.T, -1.0
        for r, c in enumerate(cuts, start=2 * m):
            rows[r, :n] = self.cuts[c].row(n)
        size = np.abs(rows[:, :n]).max(axis=1)
        size[: 2 * m] = 1.0
        optimum = linear_program(
            np.append(np.zeros(n), 1.0),
            A_ub=rows / size[:, None],
            b_ub=np.zeros(len(rows)),
            A_eq=np.append(np.ones(n), 0.0)[None, :],
            b_eq=np.ones(1),
            bounds=(0, None),
        )
        if optimum is None:
            return None
        weights = np.maximum(optimum.x[:n], 0.0)
        direction = optimum.multipliers[:m] - optimum.multipliers[m : 2 * m]
        total = float(np.abs(direction).sum())
        if total == 0:
            return _Relaxed(0.0, weights, direction, cuts, np.zeros(len(cuts)))
        multipliers = optimum.multipliers[2 * m :] / size[2 * m :] / total
        proved = offsets @ (direction / total) + multipliers @ rows[2 * m :, :n]
        return _Relaxed(float(proved.min()), weights, direction / total, cuts, multipliers)

    def _tighten(self, best: _Relaxed, rounds: int) -> _Relaxed:
        """Add cuts at the optimum of the relaxation until its value stops rising."""
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
            more = self._relax((*now.cuts, *range(len(self.cuts) - len(fresh), len(self.cuts))), self.offsets)
            if more is None:
                break
            stalled = turn >= 4 and more.value < best.value + 1e-3 * self.goal
            now, best = more, max(best, more, key=lambda r: r.value)
            if stalled:
                break
        return best

    def _cut(self, j: int, at: Array) -> _Cut | None:
        """The identity for key j whose cut is tightest at these weights; None if j is a vertex of the hull."""
        others = [i for i in range(len(self.points)) if i != j]
        if j in self.vertices or not others:
            return None
        rows = np.vstack([(self.points[others] - self.points[j]).T, np.ones(len(others))])
        right = np.append(np.zeros(len(rows) - 1), 1.0)
        lp = linear_program(np.log(at[others]), A_eq=rows, b_eq=right, bounds=(0, None))
        repaired = None if lp is None else self._repair(j, others, np.where(lp.x > 1e-11, lp.x, 0.0))
        if repaired is None:
            self.vertices.add(j)
            return None
        weights, radius = repaired
        height = sum(float(w) * np.log(at[i]) for i, w in weights.items())
        size = height + _LOG_SLACK + (0.0 if radius == np.inf else _BALL_SLACK)
        factors = {i: float(np.exp(min(np.log(float(w)) + size - np.log(at[i]), 600.0))) for i, w in weights.items()}
        return _Cut(j, weights, factors, radius)

    def _repair(self, j: int, others: list[int], p: Array) -> tuple[dict[int, Fraction], float] | None:
        """The float combination made exact or, where the keys only nearly fit, valid for a ball of queries; with its radius."""
        support = [others[int(c)] for c in np.flatnonzero(p)]
        guess = p[p > 0]
        columns = [[*(a - b for a, b in zip(self.exact[i], self.exact[j], strict=True)), Fraction(1)] for i in support]
        right = [Fraction(0)] * len(self.exact[j]) + [Fraction(1)]
        exact, off = settle(columns, right, guess)
        if min(exact) < 0 or off > _ROUNDING * float(np.abs(self.problem.keys).max()):
            return None
        return {i: w for i, w in zip(support, exact, strict=True) if w}, _BALL_SLACK / off / 2 if off else np.inf

    def certificate(self) -> Certificate | None:
        """The bound of the tightened relaxation, with the cuts that it uses; None before `run`."""
        if self.root is None:
            return None
        shares = zip(self.root.cuts, self.root.multipliers, strict=True)
        used = [(self.cuts[c], float(mu) * self.spread) for c, mu in shares if mu > 0]
        used.sort(key=lambda pair: -pair[1])
        direction = (-self.root.direction).tolist()
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
            "radius": _least_radius([cut.radius for cut, _ in used]),
        }


def _least_radius(radii: list[float]) -> float | None:
    """The radius of the ball of queries for which all parts of a proof hold; None for every query."""
    least = min(radii, default=np.inf)
    return None if least == np.inf else least


@dataclass(frozen=True)
class _Box:
    """Limits on the weights."""

    low: Array
    high: Array

    def chords(self) -> Array:
        """Slopes of the chords of ln between the limits; meaningless where the lower limit is zero."""
        low = np.maximum(self.low, _TINY)
        width = self.high - low
        flat = width < 1e-12 * self.high
        return np.where(flat, 1 / self.high, np.log(self.high / low) / np.where(flat, 1.0, width))

    def least(self, row: Array) -> tuple[float, float]:
        """min row·a over weights in the box, and the level y of its dual, y + sum_i min (row_i - y)·a_i."""
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
    """The program over one box at its optimum: whether it is a proof, the proof, and the point that attains it."""

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
        self.hints: list[Array] = []  # queries of boxes not excluded: a solution would have to be near one
        self.nodes, self.deadline = nodes, process_time() + seconds

    def run(self) -> Certificate | None:
        """The certificate, or None if the budget ran out first."""
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
            "radius": _least_radius(self.radii + [self.cuts[c].radius for c in used]),
        }

    def _close(self, box: _Box, depth: int) -> Certificate | None:
        """A proof for this box, split where one is not enough."""
        self.nodes -= 1
        if not box.low.sum() <= 1 <= box.high.sum():
            return self._leaf(box, np.zeros(self.offsets.shape[1]), {}, {}, {}, 1.0 if box.high.sum() < 1 else -1.0)[1]
        bounded = self._program(box)
        if bounded is None or bounded.closed:
            return None if bounded is None else bounded.leaf
        if self.nodes < 0 or process_time() > self.deadline or depth > 60:
            return None
        self.hints.append(bounded.query)
        weights = np.maximum(bounded.weights, _TINY)
        wrong = weights - np.exp(np.minimum(bounded.logs, 0.0))  # weight in excess of what its logarithm allows
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
        """min t over weights a, queries z and the constant; solved a second time with tangents at the first optimum."""
        n, m = self.offsets.shape
        d = self.points.shape[1]
        logs = np.hstack([self.points, -np.ones((n, 1))])  # ln a_i = points_i·z - constant
        touch = np.clip(np.tile(_GRID, (n, 1)), np.maximum(box.low, _TINY)[:, None], box.high[:, None])
        some = np.flatnonzero(box.low > 0)
        slope = box.chords()[some]
        bounded = None
        for _ in range(2):
            key, at = np.repeat(np.arange(n), touch.shape[1]), touch.ravel()
            outer = np.vstack([self.offsets.T, -self.offsets.T])
            parts = [
                (outer, np.zeros((2 * m, d + 1))),
                (-np.eye(n)[key] / at[:, None], logs[key]),
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
            optimum = linear_program(
                np.append(np.zeros(n + d + 1), [1.0, _PENALTY]),
                A_ub=np.hstack([rows / size[:, None], slack]),
                b_ub=np.concatenate(right) / size,
                A_eq=np.append(np.ones(n), np.zeros(d + 3))[None, :],
                b_eq=np.ones(1),
                bounds=[*zip(box.low, box.high, strict=True), *[(None, None)] * (d + 1), (0, None), (0, None)],
            )
            if optimum is None:
                return bounded
            outside, tangents, chords, cuts = np.split(optimum.multipliers / size, ends[:-1])
            above = np.bincount(key, tangents, minlength=n)
            steep = np.bincount(key, tangents / at, minlength=n)
            u = above.astype(np.float64)
            u[some] -= chords
            touches = {int(i): float(above[i] / steep[i]) for i in np.flatnonzero(above > 0)}
            shares = {c: float(mu) for c, mu in enumerate(cuts) if mu > 0}
            closed, leaf = self._leaf(box, outside[:m] - outside[m:], self._exact_vector(u, box), touches, shares)
            x = optimum.x
            bounded = _Bounded(closed, leaf, x[:n], logs @ x[n : n + d + 1], x[n : n + d])
            if closed:
                break
            fresh = np.clip(x[:n], np.maximum(box.low, _TINY), box.high)
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
        """Whether these multipliers exclude the box, and the proof as plain numbers."""
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
            give += 2 * _BALL_SLACK * max(abs(float(x)) for x in u.values())
        leaf = {
            "direction": (-direction / self.spread).tolist(),
            "vector": {str(i): str(x) for i, x in u.items()},
            "tangents": {str(i): touches[i] for i, x in u.items() if x > 0},
            "multipliers": [[c, mu] for c, mu in cuts.items()],
            "level": level,
        }
        return value + constant - give > self.limit * float(np.abs(direction).sum()), leaf

    def _exact_vector(self, u: Array, box: _Box) -> dict[int, Fraction]:
        """u repaired so that K'u = 0 and sum u = 0 exactly; empty if the repair changes a sign that matters."""
        support = [int(i) for i in np.flatnonzero(np.abs(u) > 1e-9 * float(np.abs(u).max()))]
        if not support or float(np.abs(u).max()) < 1e-10:
            return {}
        exact, off = near_null_vector([[*self.exact[i], Fraction(1)] for i in support], u[support])
        vector = {i: x for i, x in zip(support, exact, strict=True) if x}
        if off > _ROUNDING * self.size * float(np.abs(u).sum()) or any(
            (x > 0) != (u[i] > 0) for i, x in vector.items()
        ):
            return {}
        if off:
            self.radii.append(_BALL_SLACK * float(np.abs(u).max()) / off)
        return vector if all(x > 0 or box.low[i] > 0 for i, x in vector.items()) else {}

    def _first_box(self) -> tuple[_Box, list[tuple[Array, Array]]]:
        """Limits on each weight when the output is within the tolerance, with the directions that prove them."""
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
    """Number the cuts in the order in which the leaves use them."""
    if "split" in case:
        _number_cuts(case["above"], used)
        _number_cuts(case["below"], used)
    for pair in case.get("multipliers", ()):
        pair[0] = used.setdefault(pair[0], len(used))


def explain(certificate: Certificate, problem: Problem, bound: float) -> str:
    """What a certificate proves, in one sentence."""
    ball = certificate.get("radius")
    every = "every query" if ball is None else f"every query with |scale·q| up to {at_least(ball)}"
    misses = f"{every} misses by at least {at_least(bound)}"
    if certificate["type"] == "separating":
        w = np.array(certificate["direction"])
        reach, want = float((problem.means @ w).max()), float(problem.target @ w)
        same = "" if np.array_equal(problem.means, problem.values) else ", averaged over equal keys"
        shown = ", ".join(number(x) for x in w) if len(w) <= 8 else f"{len(w)} numbers"
        return (
            f"The target lies outside the hull of the values{same}: along w = ({shown}) each of these is at most "
            f"{number(reach)} and the target {number(want)}, so {misses}{'' if same else ', whatever the keys are'}."
        )
    if certificate["type"] == "farkas":
        cases = _leaves(certificate["cases"])
        if cases > 1 or not certificate["cases"]["vector"]:
            return (
                f"In each of {cases} cases by the size of the weights, an identity between logarithms of weights is "
                f"violated, so {misses}."
            )
        u = {i: float(Fraction(x)) for i, x in certificate["cases"]["vector"].items()}
        most = max(abs(x) for x in u.values()) * (1 if next(iter(u.values())) > 0 else -1)
        terms = " ".join(f"{'+' if x / most > 0 else '-'} {_times(abs(x / most))}ln a_{i}" for i, x in u.items())
        return (
            f"For {every} {terms.removeprefix('+ ')} = 0, because these keys cancel; near the target this is impossible, "
            f"so {misses}."
        )
    cuts = certificate["combinations"]
    nearly = "" if ball is None else "nearly "
    weights = {i: float(Fraction(x)) for i, x in cuts[0]["weights"].items()}

    def mean(letter: str) -> str:
        shown = " + ".join(f"{number(w)}·{letter}_{i}" for i, w in list(weights.items())[:6])
        return shown + (" + ..." if len(weights) > 6 else "")

    j = cuts[0]["index"]
    bounds = f"bounds of this kind on {len(cuts)} weights" if len(cuts) > 1 else "this bound"
    return (
        f"Key {j} is {nearly}{mean('k')}, so its weight a_{j} is {nearly}at most {mean('a')} for {every}; "
        f"with {bounds} {misses}."
    )


def _times(share: float) -> str:
    return "" if number(share) == "1" else f"{number(share)}·"


def _leaves(case: Certificate) -> int:
    return _leaves(case["above"]) + _leaves(case["below"]) if "split" in case else 1
