"""One key as the unknown: a new k_j for which a fixed query gives the wanted output.

Changing k_j moves the output along the open segment from attention without j to v_j, so the distance from the target to
that segment decides.
"""

from __future__ import annotations

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import Problem, Scale, log_sum_exp, softmax
from attnlab.design.exact import Array
from attnlab.design.inputs import Data, Real
from attnlab.design.optimize import linear_program
from attnlab.design.results import Certificate, Extra, Result, Status, at_least, number
from attnlab.design.solve import evaluated
from attnlab.design.verifier import NotAProof, misses_segment


def edit_key(
    keys: Data,
    values: Data,
    query: Data,
    index: int,
    target: Data | None = None,
    *,
    norm: float | None = None,
    tolerance: Real = 0.01,
    scale: Scale = "none",
) -> Result:
    """The key `index` nearest to the present one for which the fixed query gives the target, by default value `index`."""
    k, v = inputs.pair(keys, values)
    j = inputs.index(index, len(k.floats))
    q = inputs.vector(query, "query", k.floats.shape[1], of="key")
    if norm is not None:
        norm = inputs.positive(norm, "norm")
    y = v.take([j]) if target is None else inputs.vector(target, "target", v.floats.shape[1], of="value")
    problem = inputs.problem(k, v, y, inputs.tolerance(tolerance), inputs.scale(scale))
    return _Edit(problem, q.floats[0], j, norm).answer()


class _Edit:
    """One problem with key j as the unknown; a share is a weight a_j that it can get."""

    def __init__(self, problem: Problem, q: Array, j: int, norm: float | None) -> None:
        self.problem, self.q, self.j, self.norm = problem, q, j, norm
        others = np.arange(len(problem.keys)) != j
        scores = problem.factor * (problem.keys @ q)
        self.present = float(scores[j])
        self.rest = log_sum_exp(scores[others]) if others.any() else -np.inf
        self.without = softmax(scores[others]) @ problem.values[others] if others.any() else problem.values[j]
        self.length = problem.factor * float(np.linalg.norm(q))
        reach = np.inf if norm is None else norm * self.length
        self.levels = (-reach, reach) if self.length > 0 else (0.0, 0.0)

    def _share(self, score: float) -> float:
        return float(1 / (1 + np.exp(np.clip(self.rest - score, -700, 700))))

    def _score(self, share: float) -> float:
        return self.rest + float(np.log(share) - np.log1p(-share))

    def answer(self) -> Result:
        """The key for the nearest score that fits, or the direction in which the segment misses the target."""
        start, line = self.without - self.problem.target, self.problem.values[self.j] - self.without
        ends = (self._share(self.levels[0]), self._share(self.levels[1])) if np.isfinite(self.rest) else (1.0, 1.0)
        ends = (max(ends[0], 0.0), min(ends[1], 1.0))
        one_dimensional = self.norm is not None and len(self.q) == 1
        for aim in (0.5 * self.problem.tolerance, self.problem.tolerance * (1 - 1e-9)):
            low, high = _interval(start, line, aim)
            if one_dimensional:
                fits = [score for score in self.levels if low <= self._share(score) <= high]
                solved = self._solved(min(fits, key=lambda score: abs(score - self.present))) if fits else None
            else:
                low, high = max(low, ends[0]), min(high, ends[1])
                open_end = low < 1 or self.norm is not None or not np.isfinite(self.rest) or self.length == 0
                solved = self._solved(self._nearest(low, high)) if low <= high and high > 0 and open_end else None
            if solved is not None:
                return solved
        return self._missed(start, line, ends)

    def _nearest(self, low: float, high: float) -> float:
        if self.length == 0 or not np.isfinite(self.rest):
            return float(np.clip(self.present, *self.levels))
        bottom = -np.inf if low <= self._share(self.levels[0]) else self._score(low)
        top = np.inf if high >= 1 else self._score(high)
        nearest = np.clip(self.present, min(bottom, top), max(bottom, top))
        return float(np.clip(nearest, *self.levels))

    def _key(self, score: float) -> Array:
        """The nearest key with this score, and with the wanted norm if there is one."""
        present, q = self.problem.keys[self.j], self.q
        along, across = np.zeros_like(q), present
        if self.length > 0:
            along = q * (score / (self.length * float(np.linalg.norm(q))))
            across = present - q * float(present @ q) / float(q @ q)
        if self.norm is None:
            return along + across
        if len(q) == 1:
            return along  # there is no direction across, and rounding must not be scaled up to the norm
        left = np.sqrt(max(self.norm**2 - float(along @ along), 0.0))
        size = float(np.linalg.norm(across))
        if size < 1e-12:
            across, size = np.linalg.svd(np.vstack([q, np.zeros_like(q)]))[2][-1], 1.0
        return along + across * (left / size)

    def _result(
        self, status: Status, said: str, key: Array, certificate: Certificate | None = None, lower: float = 0.0
    ) -> Result:
        keys = self.problem.keys.copy()
        keys[self.j] = key
        after = Problem(keys, self.problem.values, self.problem.target, self.problem.tolerance, self.problem.scale)
        norm, moved = (float(np.linalg.norm(x)) for x in (key, key - self.problem.keys[self.j]))
        more: dict[str, Extra] = {"key": key, "key_norm": norm, "moved_by": moved}
        task, reading = f"edit key {self.j}", self.problem.reading
        return evaluated(after, task, status, said, self.q, None, None, certificate, lower, more, reading)

    def _solved(self, score: float) -> Result | None:
        """The key for this score, if it has the wanted norm and its error is proved to be within the tolerance."""
        key = self._key(score)
        if self.norm is not None and abs(float(np.linalg.norm(key)) - self.norm) > 1e-9 * self.norm:
            return None
        weight = self._share(score) if np.isfinite(self.rest) else 1.0
        said = (
            f"With this key the query gives value {self.j} the weight {number(weight)}, and the output is the target."
        )
        result = self._result("solved", said, key)
        return result if result.bound is not None and result.bound <= self.problem.tolerance else None

    def _missed(self, start: Array, line: Array, ends: tuple[float, float]) -> Result:
        """The distance in the maximum norm from the target to the segment; its multipliers are a separating direction."""
        m, present = len(line), self.problem.keys[self.j]
        rows = np.column_stack([np.append(line, -line), -np.ones(2 * m)])
        found = linear_program(np.array([0.0, 1.0]), A_ub=rows, b_ub=np.append(-start, start), bounds=[ends, (0, None)])
        if found is None:
            why = "with one dimension and a fixed norm only two keys are left, and neither fits"
            return self._result("undecided", f"No key was found and no proof that there is none: {why}.", present)
        best = present
        if np.isfinite(self.rest):
            best = self._key(float(np.clip(self._score(min(max(found.x[0], 1e-12), 1 - 1e-12)), *self.levels)))
        direction = found.multipliers[m:] - found.multipliers[:m]
        certificate: Certificate = {"type": "separating", "direction": direction.tolist(), "norm": self.norm}
        bound = self._proved(certificate)
        if bound <= self.problem.tolerance:
            why = f"the segment is only {number(max(bound, 0.0))} away"
            return self._result("undecided", f"No key was found and no proof that there is none: {why}.", best)
        limit = ""
        if self.norm is not None:
            shares = f"{number(ends[0])} and {number(ends[1])}"
            limit = f", and with norm {number(self.norm)} its weight stays between {shares}"
        said = (
            f"Whatever key {self.j} is, the output lies on the segment from attention without it to value {self.j}{limit}; "
            f"that segment misses the target by at least {at_least(bound)}."
        )
        return self._result("impossible", said, best, certificate, bound)

    def _proved(self, certificate: Certificate) -> float:
        """The bound that the independent verifier accepts, or 0."""
        p = self.problem
        rows = (p.keys.tolist(), p.values.tolist(), self.q.tolist(), self.j, p.target.tolist())
        try:
            return misses_segment(certificate, *rows, p.factor, self.norm)
        except NotAProof:
            return 0.0


def _interval(start: Array, line: Array, aim: float) -> tuple[float, float]:
    """The interval of t in [0, 1] with |start + t·line| <= aim in every coordinate; (1, 0) if it is empty."""
    low, high = 0.0, 1.0
    for s, slope in zip(start, line, strict=True):
        if abs(slope) < 1e-300:
            if abs(s) > aim:
                return 1.0, 0.0
            continue
        ends = sorted(((-aim - s) / slope, (aim - s) / slope))
        low, high = max(low, ends[0]), min(high, ends[1])
    return low, high
