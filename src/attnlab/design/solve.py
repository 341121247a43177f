"""Queries for wanted outputs: select one value, blend several, reach any point; and a new key for a fixed query.

The first three try, in this order: the query zero; a construction whose bound is proved beforehand (given scores inside
the subset, a margin outside); a descent from many starts; a proof of impossibility. If all fail, the verdict is undecided.
The verdict is about the output; what is known about the weights is reported next to it.

Changing key j moves the output along the open segment from attention without j to v_j, so the distance from the target to
that segment decides whether there is such a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import UNIT, Problem, Scale, log_sum_exp, softmax
from attnlab.design.exact import Array, Rows, binary
from attnlab.design.inputs import Data, Real
from attnlab.design.optimize import descend, least_norm, linear_program, starts, through_rounding, towards
from attnlab.design.proofs import Cases, Refuter, explain
from attnlab.design.results import Certificate, Extra, Result, RowVerdict, Status, at_least, at_most, number
from attnlab.design.verifier import NotAProof, misses_segment, verify

_SECONDS = 5.0  # time limit of a proof by cases
_NODES = 150  # boxes per second of that time, at most


def select(
    keys: Data,
    values: Data,
    index: int | None = None,
    *,
    tolerance: Real = 0.01,
    scale: Scale = "none",
    seconds: float = _SECONDS,
) -> Result:
    """A query whose output is value `index` within the tolerance; without an index, one query for every row."""
    k, v = inputs.pair(keys, values)
    eps = inputs.tolerance(tolerance)
    if index is None:
        return _together([_select(k, v, j, eps, scale, seconds) for j in range(len(k.floats))], float(eps))
    return _select(k, v, inputs.index(index, len(k.floats)), eps, scale, seconds)


def _select(k: Rows, v: Rows, j: int, eps: Fraction, scale: Scale, seconds: float) -> Result:
    problem = Problem(k, v, v.take([j]), eps, inputs.scale(scale))
    return _answer(problem, f"select value {j}", [j], np.ones(1), seconds)


def blend(
    keys: Data,
    values: Data,
    indices: Sequence[int] | None = None,
    weights: Data | None = None,
    *,
    tolerance: Real = 0.01,
    scale: Scale = "none",
    seconds: float = _SECONDS,
) -> Result:
    """A query whose output is the weighted mean of the chosen values; by default of all values, with equal weights."""
    k, v = inputs.pair(keys, values)
    chosen = inputs.indices(indices, len(k.floats))
    shares = inputs.weights(weights, len(chosen))
    target = inputs.mixture(shares, v.take(chosen))
    problem = Problem(k, v, target, inputs.tolerance(tolerance), inputs.scale(scale))
    w = shares.floats[0]
    which = "all values" if len(chosen) == len(k.floats) else "values " + ", ".join(map(str, chosen))
    shown = f"average {which}" if np.ptp(w) < 1e-12 else f"blend {which} as {':'.join(number(x) for x in w)}"
    return _answer(problem, shown, chosen, w, seconds)


average = blend


def reach(
    keys: Data,
    values: Data,
    target: Data,
    *,
    query: Data | None = None,
    tolerance: Real = 0.01,
    scale: Scale = "none",
    seconds: float = _SECONDS,
) -> Result:
    """A query whose output is the target within the tolerance or, if a query is given, how close it comes."""
    k, v = inputs.pair(keys, values)
    y = inputs.vector(target, "target", v.floats.shape[1], of="value")
    problem = Problem(k, v, y, inputs.tolerance(tolerance), inputs.scale(scale))
    if query is None:
        return _answer(problem, "reach the target", None, None, seconds)
    q = inputs.vector(query, "query", k.floats.shape[1], of="key")
    judged = problem.judge(q.exact[0])
    statement = f"The given query comes within {at_most(judged.bound)} of the target."
    if not judged.within:
        statement += " Leave it out to search for a better one."
    status: Status = "solved" if judged.within else "undecided"
    return _evaluated(problem, "the query given", status, statement, q.floats[0], None, judged.bound)


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
    """The key `index`, nearest to the present one, for which the fixed query gives the target; by default value `index`."""
    k, v = inputs.pair(keys, values)
    j = inputs.index(index, len(k.floats))
    q = inputs.vector(query, "query", k.floats.shape[1], of="key")
    if norm is not None:
        norm = inputs.positive(norm, "norm")
    y = v.take([j]) if target is None else inputs.vector(target, "target", v.floats.shape[1], of="value")
    problem = Problem(k, v, y, inputs.tolerance(tolerance), inputs.scale(scale))
    return _Edit(problem, q.floats[0], j, norm).answer()


def _answer(problem: Problem, task: str, chosen: list[int] | None, w: Array | None, seconds: float) -> Result:
    """The first that succeeds of: the query zero, the construction by margins, the search."""
    seconds = inputs.seconds(seconds)
    zero = np.zeros(problem.keys.shape[1])
    bound = _bound(problem, zero)
    if _good(problem, zero, bound):
        statement = (
            "The query 0 gives every key the same weight, whatever the keys are: the mean of all values is within the "
            "tolerance."
        )
        return _evaluated(problem, task, "solved", statement, zero, chosen, bound)
    if chosen is None or w is None:
        return _searched(problem, task, None, _near(problem.values, problem.target), seconds)
    for share in (1 - 1e-6, 0.99, 0.7):
        construction = by_margin(problem, chosen, w, share * problem.tolerance)
        if construction is None:
            break
        query, bound = construction
        if _good(problem, query, bound):
            statement = _margin_statement(problem, query, bound, chosen)
            return _evaluated(problem, task, "solved", statement, query, chosen, bound)
    wanted = np.zeros(len(problem.keys))
    wanted[chosen] = w
    return _searched(problem, task, chosen, wanted, seconds)


def _searched(problem: Problem, task: str, chosen: list[int] | None, wanted: Array, seconds: float) -> Result:
    """Alternate descent and proof, each with more effort the second time."""
    nearest = towards(problem.points, wanted)
    more: dict[str, Extra] = {}
    if chosen is not None:  # how close the weights themselves can come, a convex problem
        weights = softmax(problem.points @ nearest)
        logs = np.log(wanted[chosen]) - np.log(np.maximum(weights[chosen], 1e-300))
        more = {"least_divergence": float(wanted[chosen] @ logs), "nearest_weights": weights}
    certificate = None
    best = problem.query(descend(problem, np.vstack([nearest, starts(problem, _starts(problem, 24))])))
    if not _good(problem, best, _bound(problem, best)):
        refuter = Refuter(problem, seconds)
        certificate = refuter.run()
        if certificate is None:
            longer = problem.query(descend(problem, starts(problem, _starts(problem, 120), seed=1), steps=200))
            best = min(best, longer, key=problem.error)
            if not _good(problem, best, _bound(problem, best)):
                certificate, best = _by_cases(refuter, best, seconds)
    bound = _bound(problem, best)
    if _good(problem, best, bound):
        statement = f"Found by descent: in exact arithmetic the output is within {at_most(bound)} of the target."
        return _evaluated(problem, task, "solved", statement, best, chosen, bound, more=more)
    proved = _proved(problem, certificate, problem.eps)
    if certificate is not None and proved is not None:
        if chosen is not None and len(chosen) == 1 and certificate.get("radius") is not None:
            beyond = through_rounding(problem, chosen[0])  # the proof excludes long queries: is one of them right?
            if beyond is not None:
                query, bound = beyond
                statement = (
                    "The keys in the way differ by rounding only, and this long query separates them: in exact arithmetic "
                    f"the output is within {at_most(bound)} of the target."
                )
                return _evaluated(problem, task, "solved", statement, query, chosen, bound, more=more)
        status: Status = "impossible" if certificate.get("radius") is None else "impossible within a radius"
        statement = explain(certificate, problem, proved)
        return _evaluated(problem, task, status, statement, best, chosen, None, certificate, proved, more)
    lower = _proved(problem, refuter.certificate(), 0.0) or 0.0
    statement = (
        f"The best query found misses by {number(problem.error(best))}; it is proved only that every query misses by at "
        f"least {at_least(lower)}. More time for the proof may decide."
    )
    return _evaluated(problem, task, "undecided", statement, best, chosen, lower=lower, more=more)


def by_margin(problem: Problem, chosen: list[int], w: Array, aim: float) -> tuple[Array, float] | None:
    """The query of least norm with scores ln w inside the subset and a margin below them outside, and its error bound."""
    keys = problem.keys * problem.factor
    low = int(w.argmin())
    inside = np.arange(len(chosen)) != low
    equal = (keys[chosen][inside] - keys[chosen[low]]) / problem.unit
    level = np.log(w[inside] / w[low])
    outside = np.setdiff1d(np.arange(len(keys)), chosen)
    far = float(np.abs(problem.values[outside] - problem.target).max(initial=0.0))
    rows, margin = np.zeros((0, keys.shape[1])), 0.0
    if far > aim:
        rows = (keys[chosen[low]] - keys[outside]) / problem.unit
        margin = float(np.log(len(outside) * w[low] * (far - aim) / aim))
    scaled = least_norm(equal, level, rows, np.full(len(rows), margin))
    if scaled is None:
        return None
    query = scaled / problem.unit
    return query, _margin_bound(problem, query, chosen, w, far)


def _margin_bound(problem: Problem, query: Array, chosen: list[int], w: Array, far: float) -> float:
    """The error bound that the scores of this query prove: the weight outside is at most r/(1+r), and the weights inside are
    off by a factor of at most e^(2·deviation).
    """
    scores = problem.factor * (problem.keys @ query)
    rounding = problem.score_rounding(query)
    low = chosen[int(w.argmin())]
    level = scores[chosen] - np.log(w)
    off = float(np.abs(level - level[chosen.index(low)]).max()) + 2 * rounding
    outside = np.setdiff1d(np.arange(len(scores)), chosen)
    margin = float((scores[low] - scores[outside]).min(initial=np.inf)) - 2 * rounding
    ratio = len(outside) * float(w.min()) * float(np.exp(min(off - margin, 500.0))) if len(outside) else 0.0
    spread = float((w @ np.abs(problem.values[chosen] - problem.target)).max())
    return (
        ratio / (1 + ratio) * far
        + float(np.expm1(min(2 * off, 500.0))) * spread
        + (len(chosen) + 8) * UNIT * float(np.abs(problem.values).max())
    )


def _margin_statement(problem: Problem, query: Array, bound: float, chosen: list[int]) -> str:
    scores = problem.factor * (problem.keys @ query)
    outside = np.setdiff1d(np.arange(len(scores)), chosen)
    within = f"so the output is within {at_most(bound)} of the target."
    if not len(outside):
        return f"The scores of the keys differ by exactly the logarithms of the wanted weights, {within}"
    margin = float(scores[chosen].min() - scores[outside].max())
    if len(chosen) > 1:
        return f"The chosen keys have the required scores and lead every other key by at least {at_least(margin)}, {within}"
    ratio = len(outside) * float(np.exp(-margin))
    return (
        f"Key {chosen[0]} leads every other key by at least {at_least(margin)}: the others together weigh at most "
        f"{at_most(ratio / (1 + ratio))}, {within}"
    )


def _by_cases(refuter: Refuter, best: Array, seconds: float) -> tuple[Certificate | None, Array]:
    """A proof by cases if the problem is small enough, then three attempts at a larger bound; or else no proof and the
    best query, also from the boxes that were not excluded.
    """
    if not refuter.exact or len(refuter.points) > 64:
        return None, best
    problem = refuter.problem
    low, high = problem.tolerance, problem.error(best)
    if low < problem.eps:
        low = float(np.nextafter(low, np.inf))
    cases = Cases(refuter, low, int(_NODES * seconds), seconds)
    certificate = cases.run()
    if certificate is None:
        hints = np.array(cases.hints[-40:] + cases.hints[:40]).reshape(-1, refuter.points.shape[1])
        query = problem.query(descend(problem, hints)) if len(hints) else best
        return None, min(best, query, key=problem.error)
    for _ in range(3):
        middle = float(f"{(low * high) ** 0.5:.3g}")
        more = Cases(refuter, middle, int(_NODES * seconds / 20), seconds / 20).run() if low < middle < high else None
        low, high, certificate = (low, middle, certificate) if more is None else (middle, high, more)
    return certificate, best


def _starts(problem: Problem, most: int) -> int:
    """The number of starts, so that large and small problems take about equally long."""
    size = len(problem.keys) * problem.points.shape[1] * problem.values.shape[1]
    return int(np.clip(2e7 / size, 1, most))


def _good(problem: Problem, query: Array, bound: float) -> bool:
    """Whether the error is within the tolerance, both as proved and as measured."""
    return bound <= problem.tolerance and problem.error(query) <= problem.tolerance * (1 + 1e-12)


def _bound(problem: Problem, query: Array) -> float:
    """The guaranteed error of a query; computed in exact arithmetic where only the rounding of floats is in doubt."""
    bound = problem.guaranteed(query)
    if bound > problem.tolerance and problem.error(query) <= problem.tolerance * (1 + 1e-12):
        exact = problem.certified(query)
        bound = bound if exact is None else min(exact, problem.tolerance)
    return bound


def _proved(problem: Problem, certificate: Certificate | None, tolerance: Fraction | float) -> float | None:
    """The bound that the independent verifier accepts, rounded down."""
    if certificate is None:
        return None
    try:
        bound = verify(certificate, problem.k.exact, problem.v.exact, problem.y.exact[0], tolerance)
    except NotAProof:
        return None
    return float(np.nextafter(float(bound), 0.0))


def _near(values: Array, target: Array) -> Array:
    """Positive weights, as even as possible, for which the mean of the values is near the target."""
    size = float(np.abs(values - target).max()) or 1.0
    moved = (values - target) / size
    stretched = np.vstack([moved, np.zeros(moved.shape[1])])
    wanted = np.append(np.zeros(len(moved)), 1.0)
    return softmax(moved @ towards(stretched, wanted, steps=30))


def _evaluated(
    problem: Problem,
    task: str,
    status: Status,
    statement: str,
    query: Array,
    chosen: list[int] | None,
    bound: float | None = None,
    certificate: Certificate | None = None,
    lower: float = 0.0,
    more: Mapping[str, Extra] | None = None,
    reading: str | None = None,
) -> Result:
    """The verdict with the weights, output and error of its query, and the margins of the chosen keys."""
    weights = problem.weights(query)
    scores = problem.factor * (problem.keys @ query)
    margins = None
    if chosen is not None:
        margins = scores[chosen].min() - scores
        margins[chosen] = np.nan
    return Result(
        task=task,
        status=status,
        statement=statement,
        query=query,
        weights=weights,
        output=weights @ problem.values,
        target=problem.target,
        bound=problem.guaranteed(query) if bound is None else bound,
        error=problem.measured(query),
        tolerance=problem.tolerance,
        certificate=certificate,
        lower_bound=lower,
        margins=margins,
        reading=reading or problem.reading,
        more=more or {},
    )


def _together(parts: list[Result], eps: float) -> Result:
    """Many rows as one result: the worst status, the largest error, and the verdict on each row in `rows`."""
    worst: tuple[Status, ...] = ("impossible", "impossible within a radius", "undecided", "solved")
    status = next(s for s in worst if any(p.status == s for p in parts))
    first = next(p for p in parts if p.status == status)
    every = f"All {len(parts)} rows: one query each."
    errors = [p.error for p in parts if p.error is not None]
    return Result(
        task="select every value",
        status=status,
        statement=every if status == "solved" else f"{first.task}: {first.statement}",
        query=np.array([p.query for p in parts]),
        weights=np.array([p.weights for p in parts]),
        output=np.array([p.output for p in parts]),
        target=np.array([p.target for p in parts]),
        bound=max(p.bound for p in parts if p.bound is not None),
        error={kind: max(e[kind] for e in errors) for kind in ("float32", "float64")},
        tolerance=eps,
        certificate=first.certificate,
        lower_bound=max(p.lower_bound for p in parts),
        reading=parts[0].reading,
        rows=tuple(RowVerdict(p.status, p.statement, p.certificate) for p in parts),
    )


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
        self, status: Status, statement: str, key: Array, certificate: Certificate | None = None, lower: float = 0.0
    ) -> Result:
        keys = self.problem.keys.copy()
        keys[self.j] = key
        after = replace(self.problem, k=binary(keys))
        norm, moved = (float(np.linalg.norm(x)) for x in (key, key - self.problem.keys[self.j]))
        more: dict[str, Extra] = {"key": key, "key_norm": norm, "moved_by": moved}
        task, reading = f"edit key {self.j}", self.problem.reading
        return _evaluated(after, task, status, statement, self.q, None, None, certificate, lower, more, reading)

    def _solved(self, score: float) -> Result | None:
        """The key for this score, if it has the wanted norm and its error is proved to be within the tolerance."""
        key = self._key(score)
        if self.norm is not None and abs(float(np.linalg.norm(key)) - self.norm) > 1e-9 * self.norm:
            return None
        weight = self._share(score) if np.isfinite(self.rest) else 1.0
        effect = f"gives value {self.j} the weight {number(weight)}, and the output is the target."
        result = self._result("solved", f"With this key the query {effect}", key)
        return result if result.bound is not None and result.bound <= self.problem.tolerance else None

    def _missed(self, start: Array, line: Array, ends: tuple[float, float]) -> Result:
        """The distance in the maximum norm from the target to the segment; its multipliers are a separating direction."""
        m, present = len(line), self.problem.keys[self.j]
        rows = np.column_stack([np.append(line, -line), -np.ones(2 * m)])
        nearest = linear_program(
            np.array([0.0, 1.0]), A_ub=rows, b_ub=np.append(-start, start), bounds=[ends, (0, None)]
        )
        if nearest is None:
            return self._undecided(
                "with one dimension and a fixed norm only two keys are left, and neither fits", present
            )
        best = present
        if np.isfinite(self.rest):
            best = self._key(float(np.clip(self._score(min(max(nearest.x[0], 1e-12), 1 - 1e-12)), *self.levels)))
        direction = nearest.multipliers[m:] - nearest.multipliers[:m]
        certificate: Certificate = {"type": "separating", "direction": direction.tolist(), "norm": self.norm}
        bound = self._proved(certificate)
        if bound <= self.problem.tolerance:
            return self._undecided(f"the segment is only {number(max(bound, 0.0))} away", best)
        limit = ""
        if self.norm is not None:
            shares = f"{number(ends[0])} and {number(ends[1])}"
            limit = f", and with norm {number(self.norm)} its weight stays between {shares}"
        statement = (
            f"Whatever key {self.j} is, the output lies on the segment from attention without it to value {self.j}{limit}; "
            f"that segment misses the target by at least {at_least(bound)}."
        )
        return self._result("impossible", statement, best, certificate, bound)

    def _undecided(self, why: str, key: Array) -> Result:
        return self._result("undecided", f"No key was found and no proof that there is none: {why}.", key)

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
