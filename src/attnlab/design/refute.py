"""Proving that no query gives an output within the tolerance.

Attention weights obey ln a = K q + constant, so every identity k_j = sum p_i k_i with p in the simplex gives, for every
query, a_j = prod a_i^p_i, and by the inequality of means a *linear* bound a_j <= sum b_i a_i whenever
sum p_i ln(b_i / p_i) >= 0. Linear bounds are cuts of a linear program over weights whose value is a lower bound on the error
of every query. Where one program is too weak the queries are split in two by the sign of s_i - s_k - tau, which adds
terms to the identities and sharpens the cuts. A second kind of proof fits values that fix the weights: a vector u with
K'u = 0 and sum u = 0 forces sum u_i ln a_i = 0, and the weights near the target may all lie on one side of that.

Everything found here is in floats, then repaired to exact rationals; `verify` judges it without this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter
from typing import Any

import numpy as np

from attnlab.design.attention import Array, Problem, softmax
from attnlab.design.exact import rational, solve
from attnlab.design.programs import linear_program
from attnlab.design.search import towards

Certificate = dict[str, Any]
Condition = tuple[int, int, float]  # s_i - s_k >= tau

LOG_SLACK = 1e-9  # what a cut gives away so that logarithms in floats can prove it
BALL_SLACK = 1e-3  # what it gives away where the keys only nearly fit, in exchange for a ball of queries
ROUNDING = 2.0**-47  # keys that fit this closely, relative to their size, differ by their own rounding


@dataclass(frozen=True)
class Cut:
    """a_index <= sum factors_i a_i, from key_index = sum weights_i key_i - sum splits (key_i - key_k)."""

    index: int
    weights: dict[int, Fraction]
    factors: dict[int, float]
    splits: tuple[tuple[Condition, Fraction], ...]
    radius: float

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
class Relaxed:
    """The relaxation at its optimum: the bound, the weights that attain it, and the multipliers that prove it."""

    value: float
    weights: Array
    direction: Array
    cuts: tuple[int, ...]
    multipliers: Array


class Refuter:
    """The search for a proof about one problem. Inside, values are relative to the target and of size 1."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.points = problem.points
        self.spread = float(np.abs(problem.values - problem.target).max()) or 1.0
        self.offsets = (problem.values - problem.target) / self.spread
        self.goal = problem.tolerance * (1 + 1e-9) / self.spread + 1e-12
        self.cuts: list[Cut] = []
        self.vertices: set[int] = set()
        self.exact = [[rational(x) for x in row] for row in problem.keys] if problem.keys.size <= 50_000 else []

    def run(self, nodes: int, seconds: float) -> Refutation:
        """The hull of the values, then cuts, then a vector u, then cases."""
        self.nodes, self.deadline = nodes, perf_counter() + seconds
        hull = self._relax(())
        if hull is None or not self.exact:
            return self._proof(hull, None if hull is None or hull.value <= self.goal else self._leaf(hull))
        root = self._tighten(hull, (), rounds=10)
        if root.value > self.goal:
            return self._proof(root, self._leaf(root))
        if len(self.points) <= 64 and (certificate := self._by_vector()) is not None:
            return Refutation(self.problem.tolerance, certificate)
        return self._proof(root, self._cases(root, ()))

    def _relax(self, cuts: tuple[int, ...]) -> Relaxed | None:
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
            return Relaxed(0.0, weights, direction, cuts, np.zeros(len(cuts)))
        multipliers = found.multipliers[2 * m :] / size[2 * m :] / total
        proved = self.offsets @ (direction / total) + multipliers @ rows[2 * m :, :n]
        return Relaxed(float(proved.min()), weights, direction / total, cuts, multipliers)

    def _tighten(self, best: Relaxed, conditions: tuple[Condition, ...], rounds: int) -> Relaxed:
        """Add cuts where the relaxation is happiest, until its value stops rising."""
        now = best
        for turn in range(rounds):
            if best.value > self.goal:
                break
            at = np.maximum(now.weights, 10.0 ** -(1 + turn % 4) / len(self.points))
            at /= at.sum()
            heavy = [int(j) for j in np.argsort(-now.weights)[:12] if now.weights[j] > 1e-7]
            fresh = [cut for j in heavy if (cut := self._cut(j, at, conditions)) is not None]
            if not fresh:
                break
            self.cuts += fresh
            more = self._relax((*now.cuts, *range(len(self.cuts) - len(fresh), len(self.cuts))))
            if more is None:
                break
            stalled = turn >= 4 and more.value < best.value + 1e-3 * self.goal
            now, best = more, max(best, more, key=lambda r: r.value)
            if stalled:
                break
        return best

    def _cut(self, j: int, at: Array, conditions: tuple[Condition, ...]) -> Cut | None:
        """The identity for key j whose cut is lowest at these weights."""
        if j in self.vertices and not conditions:
            return None
        others = [i for i in range(len(self.points)) if i != j]
        if not others:
            return None
        terms = np.array([self.points[k] - self.points[i] for i, k, _ in conditions]).reshape(-1, self.points.shape[1])
        columns = np.vstack([self.points[others] - self.points[j], terms])
        ones = np.append(np.ones(len(others)), np.zeros(len(conditions)))
        cost = np.append(np.log(at[others]), [-tau for *_, tau in conditions])
        upper = [(0, None)] * len(others) + [(0, 1e4)] * len(conditions)
        right = np.append(np.zeros(columns.shape[1]), 1.0)
        found = linear_program(cost, A_eq=np.vstack([columns.T, ones]), b_eq=right, bounds=upper)
        if found is None:
            if not conditions:
                self.vertices.add(j)
            return None
        x, radius = self._repair(j, others, conditions, np.where(found.x > 1e-11, found.x, 0.0))
        if x is None:
            return None
        weights = {i: w for i, w in zip(others, x, strict=False) if w}
        splits = tuple((c, w) for c, w in zip(conditions, x[len(others) :], strict=True) if w)
        slack = LOG_SLACK + (0.0 if radius == np.inf else BALL_SLACK)
        height = sum(float(w) * np.log(at[i]) for i, w in weights.items()) - sum(float(w) * c[2] for c, w in splits)
        size = slack * (1 + sum(abs(float(w) * c[2]) for c, w in splits)) + height
        factors = {i: float(np.exp(min(np.log(float(w)) + size - np.log(at[i]), 600.0))) for i, w in weights.items()}
        return Cut(j, weights, factors, splits, radius)

    def _repair(self, j: int, others: list[int], conditions: tuple[Condition, ...], x: Array) -> tuple[list[Fraction] | None, float]:
        """The float solution made exact, or, where the keys only nearly fit, exact about a ball of queries."""
        support = [int(c) for c in np.flatnonzero(x)]
        keys = self.exact

        def column(c: int) -> list[Fraction]:
            if c < len(others):
                return [a - b for a, b in zip(keys[others[c]], keys[j], strict=True)] + [Fraction(1)]
            i, k, _ = conditions[c - len(others)]
            return [b - a for a, b in zip(keys[i], keys[k], strict=True)] + [Fraction(0)]

        columns = [column(c) for c in support]
        width = len(keys[0])
        exact = solve(columns, [Fraction(0)] * width + [Fraction(1)], x[support])
        radius = np.inf
        if exact is None or min(exact) < 0:
            exact = [rational(v) for v in x[support]]
            total = sum((v for v, c in zip(exact, support, strict=True) if c < len(others)), Fraction(0))
            exact = [v / total if c < len(others) else v for v, c in zip(exact, support, strict=True)]
            miss = [sum((v * c[r] for v, c in zip(exact, columns, strict=True)), Fraction(0)) for r in range(width)]
            off = float(np.linalg.norm([float(v) for v in miss]))
            if off > ROUNDING * max(1.0, float(x.sum())) * float(np.abs(self.problem.keys).max()):
                return None, 0.0
            radius = BALL_SLACK / off / 2 if off else np.inf
        answer = [Fraction(0)] * len(x)
        for c, v in zip(support, exact, strict=True):
            answer[c] = v
        return answer, radius

    def _cases(self, relaxed: Relaxed, conditions: tuple[Condition, ...]) -> Certificate | None:
        """Split the queries in two until every part is refuted; None when the budget ends first."""
        if relaxed.value > self.goal:
            return self._leaf(relaxed)
        self.nodes -= 1
        if self.nodes < 0 or perf_counter() > self.deadline or len(conditions) > 30:
            return None
        split = self._split(relaxed, conditions)
        if split is None:
            return None
        i, k, tau = split
        parts = []
        for condition in ((i, k, tau), (k, i, -tau)):
            inside = (*conditions, condition)
            part = self._cases(self._tighten(relaxed, inside, rounds=4), inside)
            if part is None:
                return None
            parts.append(part)
        return {"split": [i, k, tau], "above": parts[0], "below": parts[1]}

    def _split(self, relaxed: Relaxed, conditions: tuple[Condition, ...]) -> Condition | None:
        """The pair of keys about whose ratio the relaxation is most wrong, and the ratio of the nearest attainable weights."""
        at = np.maximum(relaxed.weights, 1e-4 / len(self.points))
        at /= at.sum()
        z = towards(self.points, at)
        gap = np.log(at) - np.log(np.maximum(softmax(self.points @ z), 1e-300))
        apart = np.abs(gap[:, None] - gap[None, :]) * np.sqrt(np.maximum(at[:, None], at[None, :]))
        same = np.abs(self.points[:, None, :] - self.points[None, :, :]).max(axis=-1) < 1e-12
        for flat in np.argsort(-np.where(same, -1.0, apart), axis=None)[:8:2]:
            i, k = (int(x) for x in np.unravel_index(flat, apart.shape))
            if same[i, k]:
                break
            line = self.points[i] - self.points[k]
            low, high = self._range(line, conditions)
            tau = float(line @ z)
            if not low + 1e-6 < tau < high - 1e-6:
                tau = (low + high) / 2 if np.isfinite(low + high) else low + 2.0 if np.isfinite(low) else high - 2.0
            if np.isfinite(tau) and low + 1e-6 < tau < high - 1e-6:
                return i, k, float(f"{tau:.6g}")
        return None

    def _range(self, line: Array, conditions: tuple[Condition, ...]) -> tuple[float, float]:
        """The values line·z takes under the conditions."""
        if not conditions:
            return -np.inf, np.inf
        rows = np.array([self.points[k] - self.points[i] for i, k, _ in conditions])
        limits = {"A_ub": rows, "b_ub": np.array([-tau for *_, tau in conditions]), "bounds": (None, None)}
        low, high = linear_program(line, **limits), linear_program(-line, **limits)
        return -np.inf if low is None else low.value, np.inf if high is None else -high.value

    def _leaf(self, relaxed: Relaxed) -> Certificate:
        used = [(c, float(mu)) for c, mu in zip(relaxed.cuts, relaxed.multipliers, strict=True) if mu > 0]
        return {"direction": relaxed.direction.tolist(), "multipliers": used}

    def _proof(self, root: Relaxed | None, cases: Certificate | None) -> Refutation:
        """The certificate that stands on these cases, with the cuts that they use and no others."""
        bound = 0.0 if root is None else max(0.0, root.value * self.spread)
        if cases is None:
            return Refutation(bound, None)
        used: dict[int, int] = {}

        def renumber(case: Certificate) -> Certificate:
            if "split" in case:
                return {"split": case["split"], "above": renumber(case["above"]), "below": renumber(case["below"])}
            numbered = [[used.setdefault(c, len(used)), mu * self.spread] for c, mu in case["multipliers"]]
            return {"direction": case["direction"], "multipliers": numbered}

        cases = renumber(cases)
        bound = max(bound, self.problem.tolerance)
        if not used and "split" not in cases:
            return Refutation(bound, {"type": "separating", "direction": cases["direction"]})
        cuts = [self.cuts[c] for c in used]
        radius = min(cut.radius for cut in cuts) if cuts else np.inf
        combinations = [
            {
                "index": cut.index,
                "weights": {str(i): str(w) for i, w in cut.weights.items()},
                "factors": {str(i): b for i, b in cut.factors.items()},
                "splits": [[*condition, str(w)] for condition, w in cut.splits],
            }
            for cut in cuts
        ]
        certificate = {"type": "convex_combination", "combinations": combinations, "cases": cases}
        return Refutation(bound, certificate | {"radius": None if radius == np.inf else radius})

    def _by_vector(self) -> Certificate | None:
        """u with K'u = 0, sum u = 0 and sum u_i ln a_i > 0 for all weights whose output is near the target."""
        n = len(self.points)
        low, high, proofs = self._box()
        usable = low > 1e-12
        logs = np.concatenate([np.log(np.where(usable, low, 1.0)), -np.log(np.maximum(high, 1e-12))])
        equal = np.vstack([self.points.T, np.ones(n)])
        found = linear_program(
            -logs,
            A_eq=np.vstack([np.hstack([equal, -equal]), np.ones(2 * n)]),
            b_eq=np.append(np.zeros(len(equal)), 1.0),
            bounds=[(0, None if ok else 0) for ok in usable] + [(0, None)] * n,
        )
        if found is None or -found.value <= 1e-7:
            return None
        u = found.x[:n] - found.x[n:]
        support = [int(i) for i in np.flatnonzero(np.abs(u) > 1e-9)]
        lead = max(support, key=lambda i: abs(u[i]))
        rest = [i for i in support if i != lead]
        columns = [[*self.exact[i], Fraction(1)] for i in rest]
        right = [-x * rational(u[lead]) for x in [*self.exact[lead], Fraction(1)]]
        exact = solve(columns, right, u[rest])
        if exact is None or any(float(x) * u[i] < 0 for i, x in zip(rest, exact, strict=True)):
            return None
        vector = {str(lead): str(rational(u[lead]))} | {str(i): str(x) for i, x in zip(rest, exact, strict=True)}
        bounds = {str(i): (proofs[i][0] if u[i] > 0 else proofs[i][1]).tolist() for i in support}
        return {"type": "range", "vector": vector, "bounds": bounds, "radius": None}

    def _box(self) -> tuple[Array, Array, list[tuple[Array, Array]]]:
        """Between which limits each weight lies when the output is within the tolerance, with the directions that prove it."""
        n, m = self.offsets.shape
        rows = np.vstack([self.offsets.T, -self.offsets.T])
        limit = self.problem.tolerance / self.spread
        low, high, proofs = np.zeros(n), np.ones(n), []
        for i in range(n):
            unit = np.zeros(n)
            unit[i] = 1.0
            found = []
            for sign in (1.0, -1.0):
                lp = linear_program(
                    sign * unit, A_ub=rows, b_ub=np.full(2 * m, limit), A_eq=np.ones((1, n)), b_eq=np.ones(1), bounds=(0, None)
                )
                z = np.zeros(m) if lp is None else -sign * (lp.multipliers[:m] - lp.multipliers[m:])
                reach = unit - self.offsets @ z
                give = limit * float(np.abs(z).sum())
                found.append((z / self.spread, reach.min() - give, reach.max() + give))
            low[i], high[i] = found[0][1], found[1][2]
            proofs.append((found[0][0], found[1][0]))
        return low, np.minimum(high, 1.0), proofs
