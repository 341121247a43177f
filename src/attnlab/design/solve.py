"""Queries from wanted outputs: select one value, blend several, reach any point.

All three try, in this order: the query zero; a construction whose bound is proved beforehand (given scores inside the
subset, a margin outside); a descent from many starts; a proof of impossibility. If all fail, the verdict is undecided.
The verdict is about the output; what is known about the weights is reported next to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import UNIT, Problem, Scale, softmax
from attnlab.design.exact import Array, Rows
from attnlab.design.inputs import Data, Real
from attnlab.design.optimize import descend, least_norm, starts, through_rounding, towards
from attnlab.design.proofs import Cases, Refuter, explain
from attnlab.design.results import Certificate, Extra, Result, RowVerdict, Status, at_least, at_most, number
from attnlab.design.verifier import NotAProof, verify

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
    problem = inputs.problem(k, v, v.take([j]), eps, inputs.scale(scale))
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
    problem = inputs.problem(k, v, target, inputs.tolerance(tolerance), inputs.scale(scale))
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
    problem = inputs.problem(k, v, y, inputs.tolerance(tolerance), inputs.scale(scale))
    if query is None:
        return _answer(problem, "reach the target", None, None, seconds)
    q = inputs.vector(query, "query", k.floats.shape[1], of="key")
    judged = problem.judge(q.exact[0])
    said = f"The given query comes within {at_most(judged.bound)} of the target."
    if not judged.within:
        said += " Leave it out to search for a better one."
    status: Status = "solved" if judged.within else "undecided"
    return evaluated(problem, "the query given", status, said, q.floats[0], None, judged.bound)


def _answer(problem: Problem, task: str, chosen: list[int] | None, w: Array | None, seconds: float) -> Result:
    """The first that succeeds of: the query zero, the construction by margins, the search."""
    seconds = inputs.seconds(seconds)
    zero = np.zeros(problem.keys.shape[1])
    bound = _bound(problem, zero)
    if _good(problem, zero, bound):
        said = (
            "The query 0 gives every key the same weight, whatever the keys are: the mean of all values is within the "
            "tolerance."
        )
        return evaluated(problem, task, "solved", said, zero, chosen, bound)
    if chosen is None or w is None:
        return _searched(problem, task, None, _near(problem.values, problem.target), seconds)
    for share in (1 - 1e-6, 0.99, 0.7):
        built = by_margin(problem, chosen, w, share * problem.tolerance)
        if built is None:
            break
        query, bound = built
        if _good(problem, query, bound):
            said = _margin_words(problem, query, bound, chosen)
            return evaluated(problem, task, "solved", said, query, chosen, bound)
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
        said = f"Found by descent: in exact arithmetic the output is within {at_most(bound)} of the target."
        return evaluated(problem, task, "solved", said, best, chosen, bound, more=more)
    proved = _proved(problem, certificate, problem.exact.tolerance)
    if certificate is not None and proved is not None:
        if chosen is not None and len(chosen) == 1 and certificate.get("radius") is not None:
            beyond = through_rounding(problem, chosen[0])  # the proof excludes long queries: is one of them right?
            if beyond is not None:
                query, bound = beyond
                said = (
                    "The keys in the way differ by rounding only, and this long query separates them: in exact arithmetic "
                    f"the output is within {at_most(bound)} of the target."
                )
                return evaluated(problem, task, "solved", said, query, chosen, bound, more=more)
        said = explain(certificate, problem, proved)
        return evaluated(problem, task, "impossible", said, best, chosen, None, certificate, proved, more)
    lower = _proved(problem, refuter.certificate(), 0.0) or 0.0
    said = (
        f"The best query found misses by {number(problem.error(best))}; it is proved only that every query misses by at "
        f"least {at_least(lower)}. More time for the proof may decide."
    )
    return evaluated(problem, task, "undecided", said, best, chosen, lower=lower, more=more)


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
    found = least_norm(equal, level, rows, np.full(len(rows), margin))
    if found is None:
        return None
    query = found / problem.unit
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


def _margin_words(problem: Problem, query: Array, bound: float, chosen: list[int]) -> str:
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
    if low < problem.exact.tolerance:
        low = float(np.nextafter(low, np.inf))
    cases = Cases(refuter, low, int(_NODES * seconds), seconds)
    certificate = cases.run()
    if certificate is None:
        hints = np.array(cases.hints[-40:] + cases.hints[:40]).reshape(-1, refuter.points.shape[1])
        found = problem.query(descend(problem, hints)) if len(hints) else best
        return None, min(best, found, key=problem.error)
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
    given = problem.exact
    if certificate is None:
        return None
    try:
        bound = verify(certificate, given.keys.exact, given.values.exact, given.target.exact[0], tolerance)
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


def evaluated(
    problem: Problem,
    task: str,
    status: Status,
    said: str,
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
        statement=said,
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
    worst: tuple[Status, ...] = ("impossible", "undecided", "solved")
    status = next(s for s in worst if any(p.status == s for p in parts))
    bad = [p for p in parts if p.status == status]
    said = f"All {len(parts)} rows: one query each." if status == "solved" else f"{bad[0].task}: {bad[0].statement}"
    errors = [p.error for p in parts if p.error is not None]
    return Result(
        task="select every value",
        status=status,
        statement=said,
        query=np.array([p.query for p in parts]),
        weights=np.array([p.weights for p in parts]),
        output=np.array([p.output for p in parts]),
        target=np.array([p.target for p in parts]),
        bound=max(p.bound for p in parts if p.bound is not None),
        error={kind: max(e[kind] for e in errors) for kind in ("float32", "float64")},
        tolerance=eps,
        certificate=bad[0].certificate,
        lower_bound=max(p.lower_bound for p in parts),
        reading=parts[0].reading,
        rows=tuple(RowVerdict(p.status, p.statement, p.certificate) for p in parts),
    )
