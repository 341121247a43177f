"""Whole layers: W_Q, W_K and W_V from inputs and wanted outputs.

First the attention weights W: the user's, or one token for every wanted row, chosen so that the smallest value
matrix does. Then W_V from W X W_Vᵀ = Y by least squares, then one bilinear form M of least norm whose scores x_i M
x_k have the order and margins that W needs (the program of `blend`, with x_i ⊗ x_k as keys), and M = W_Qᵀ W_K by
singular values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, product

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import Array, Problem, Scale, factor
from attnlab.design.exact import Rows, binary, rational, read_as, settle
from attnlab.design.inputs import Data, Real
from attnlab.design.programs import least_distance, least_squares
from attnlab.design.results import Result, at_least, at_most, number
from attnlab.design.solve import by_margin
from attnlab.design.verifier import NotAProof, outside_range, splits_equal_rows
from attnlab.errors import UserError

_TRIES = 4096


@dataclass(frozen=True)
class _Task:
    """Tokens, the rows whose output is wanted, and what is wanted there."""

    x: Array
    rows: list[int]
    y: Array
    tolerance: float
    scale: Scale
    tokens: Rows
    wanted: Rows
    exact_tolerance: Fraction

    @property
    def reading(self) -> str:
        """How tokens and outputs were read, in words."""
        return read_as(tokens=self.tokens, outputs=self.wanted)


def layer(
    tokens: Data,
    outputs: Data,
    *,
    weights: Data | None = None,
    width: int | None = None,
    tolerance: Real = 0.01,
    scale: Scale = "none",
) -> Result:
    """W_Q, W_K, W_V for which self-attention over the tokens gives the outputs; a row of NaN is free."""
    given = inputs.matrix(tokens, "tokens")
    every = inputs.matrix(outputs, "outputs", free_rows=True)
    x, wanted = given.floats, every.floats
    if len(x) != len(wanted):
        raise UserError(
            f"there are {len(x)} tokens and {len(wanted)} rows of outputs; give one a token, with nan where any "
            f"output will do"
        )
    rows = [i for i in range(len(x)) if not np.isnan(wanted[i]).any()]
    if not rows:
        raise UserError("every output is free; give at least one row of numbers")
    if width is not None and width < 1:
        raise UserError(f"width {width} must be at least 1")
    eps = inputs.tolerance(tolerance)
    task = _Task(x, rows, wanted[rows], float(eps), inputs.scale(scale), given, every, eps)
    if (equal := _equal_rows(task)) is not None:
        return equal
    if weights is not None:
        return _solve(task, _given(weights, task), "the weights given", width)
    best = None
    for chosen in _assignments(task):
        said = ", ".join(f"{i} to {t}" for i, t in zip(rows, chosen, strict=True))
        result = _solve(
            task, binary(np.eye(len(x))[chosen]), f"one token each, chosen for the smallest W_V (row {said})", width
        )
        if result.status == "solved":
            return result
        best = best or result
    if best is not None:
        return best
    said = (
        "No choice of one token for every wanted row has values linear in the tokens; give the weights you want "
        "with --weights."
    )
    return Result(task="layer", status="undecided", statement=said, tolerance=task.tolerance, reading=task.reading)


def _equal_rows(task: _Task) -> Result | None:
    for a, i in enumerate(task.rows):
        for b, j in enumerate(task.rows[:a]):
            apart = float(np.abs(task.y[a] - task.y[b]).max())
            if (task.x[i] != task.x[j]).any() or apart < task.tolerance:
                continue
            certificate = {"type": "equal_rows", "rows": [j, i], "difference": apart}
            if splits_equal_rows(certificate, task.tokens.exact, task.wanted.exact, task.exact_tolerance):
                said = (
                    f"Tokens {j} and {i} are equal, so every layer without a mask gives them one output; the "
                    f"wanted ones differ by {number(apart)}."
                )
                return Result(
                    task="layer",
                    status="impossible",
                    statement=said,
                    tolerance=task.tolerance,
                    certificate=certificate,
                    lower_bound=apart / 2,
                    reading=task.reading,
                )
    return None


def _given(weights: Data, task: _Task) -> Rows:
    w = inputs.matrix(weights, "weights")
    n = len(task.x)
    if w.floats.shape == (n, n):
        w = w.take(task.rows)
    if w.floats.shape != (len(task.rows), n):
        raise UserError(
            f"the weights are {w.floats.shape[0]} x {w.floats.shape[1]}; give {n} columns and a row for every token or for "
            f"every wanted output"
        )
    if w.floats.min() < 0 or np.abs(w.floats.sum(axis=1) - 1).max() > 1e-6:
        raise UserError("every row of weights must be non-negative and sum to 1; divide each row by its sum")
    return inputs.normalised(w)


def _assignments(task: _Task) -> Iterator[list[int]]:
    """Choices of one token a row that some W_V serves, smallest W_V first."""
    n, r = len(task.x), len(task.rows)
    every = list(islice(product(range(n), repeat=r), _TRIES)) if n**r <= _TRIES else _neighbours(task)
    scored = []
    for chosen in every:
        fit = least_squares(task.x[list(chosen)], task.y)
        if np.abs(task.x[list(chosen)] @ fit - task.y).max() <= task.tolerance / 4:
            alone = sum(i == t for i, t in zip(task.rows, chosen, strict=True))  # a tie goes to the choice that attends
            scored.append((round(float(np.linalg.norm(fit)), 9), alone, list(chosen)))
    return iter([chosen for *_, chosen in sorted(scored)[:16]])


def _neighbours(task: _Task) -> list[tuple[int, ...]]:
    """Every row at itself, and every change of one row from there: for sizes where all choices are too many."""
    same = tuple(task.rows)
    moves = [(*same[:a], t, *same[a + 1 :]) for a in range(len(same)) for t in range(len(task.x))]
    return [same, *moves[:_TRIES]]


def _solve(task: _Task, shares: Rows, said: str, width: int | None) -> Result:
    w = shares.floats
    mixed = w @ task.x
    w_v = least_squares(mixed, task.y).T
    left = float(np.abs(mixed @ w_v.T - task.y).max())
    if left > task.tolerance / 2:
        return _outside(task, shares, mixed, left)
    values = task.x @ w_v.T
    form = _bilinear(task, w, values)
    pair = None if form is None else _factored(form, width, task.scale)
    if pair is None:
        pair = _placed(task, w, values, 2 if width is None else width)
    if pair is None:
        why = (
            "no scores x_i M x_k with these margins were found"
            if form is None
            else f"no factors of width {width} were found; the scores have rank {np.linalg.matrix_rank(form, tol=1e-9)}"
        )
        return Result(
            task="layer",
            status="undecided",
            statement=f"For {said}: {why}.",
            tolerance=task.tolerance,
            reading=task.reading,
        )
    narrow = len(pair[0])
    for fewer in range(1, min(3, narrow)):
        smaller = _placed(task, w, values, fewer)
        if smaller is not None and _bound(task, w_v, *smaller) <= task.tolerance:
            narrow = fewer
            break
    return _checked(task, w, w_v, *pair, said, narrow)


def _outside(task: _Task, w: Rows, mixed: Array, left: float) -> Result:
    """With these weights no W_V: a combination of rows that attention cancels and the wanted outputs do not."""
    null = np.linalg.svd(mixed.T)[2][np.linalg.matrix_rank(mixed, tol=1e-10) :]
    certificate, bound = None, 0.0
    product_rows = inputs.mixture(w, task.tokens).exact
    wanted = task.wanted.take(task.rows).exact
    for direction in (null.T @ (null @ task.y)).T if len(null) else ():
        size = float(np.abs(direction).max())
        if size < 1e-12:
            continue
        u = np.where(np.abs(direction) > 1e-10 * size, direction / size, 0.0)
        lead = int(np.abs(u).argmax())
        columns = [[*row, Fraction(int(i == lead))] for i, row in enumerate(product_rows)]
        exact, off = settle(columns, [Fraction(0)] * len(product_rows[0]) + [rational(u[lead])], u)
        if off:
            continue
        found = {"type": "range", "vector": [str(v) for v in exact]}
        try:
            here = float(outside_range(found, product_rows, wanted))
        except NotAProof:
            continue
        if here > max(bound, task.tolerance):
            certificate, bound = found, here
    if certificate is None:
        said = f"With these weights the best W_V misses by {number(left)}; that none does better is not proved."
        return Result(task="layer", status="undecided", statement=said, tolerance=task.tolerance, reading=task.reading)
    said = (
        f"With exactly these weights every W_V misses some output by at least {at_least(bound)}: a combination of "
        f"rows is zero after attention and not in the outputs."
    )
    return Result(
        task="layer",
        status="impossible",
        statement=said,
        tolerance=task.tolerance,
        certificate=certificate,
        lower_bound=bound,
        reading=task.reading,
    )


def _bilinear(task: _Task, w: Array, values: Array) -> Array | None:
    """M of least norm, scale included, whose scores give every wanted row its weights within half the tolerance."""
    _, sizes, axes = np.linalg.svd(task.x, full_matrices=False)
    axes = axes[sizes > 1e-11 * max(sizes[0], 1e-300)]
    x = task.x @ axes.T
    equal, level, rows, least = [], [], [], []
    for i, weights, y in zip(task.rows, w, task.y, strict=True):
        inside = np.flatnonzero(weights > 0)
        outside = np.flatnonzero(weights == 0)
        low = int(inside[weights[inside].argmin()])
        far = float(np.abs(values[outside] - y).max(initial=0.0))
        aim = task.tolerance * 0.4
        for k in inside:
            if k != low:
                equal.append(np.kron(x[i], x[k] - x[low]))
                level.append(float(np.log(weights[k] / weights[low])))
        if far > aim:
            margin = float(np.log(len(outside) * weights[low] * (far - aim) / aim))
            rows += [np.kron(x[i], x[low] - x[k]) for k in outside]
            least += [margin] * len(outside)
    size = x.shape[1] ** 2
    first, free = np.zeros(size), np.eye(size)
    if equal:
        a, b = np.array(equal), np.array(level)
        first = least_squares(a, b)
        if np.abs(a @ first - b).max() > 1e-9 * (1 + np.abs(b).max()):
            return None
        full = np.linalg.svd(a)
        free = full[2][int((full[1] > 1e-11 * full[1][0]).sum()) :].T
    if rows:
        g = np.array(rows)
        z = least_distance(g @ free, np.array(least) - g @ first) if free.shape[1] else None
        if z is None:
            return None
        first = first + free @ z
    return np.asarray(axes.T @ first.reshape(x.shape[1], x.shape[1]) @ axes)


def _factored(form: Array, width: int | None, scale: Scale) -> tuple[Array, Array] | None:
    """form = factor · W_Qᵀ W_K, as narrow as its rank."""
    u, s, vt = np.linalg.svd(form)
    rank = max(1, int((s > 1e-9 * max(s[0], 1e-300)).sum()))
    if width is not None and width < rank:
        return None
    rank = rank if width is None else min(width, len(s))
    root = np.sqrt(s[:rank] / factor(scale, rank if width is None else width))
    w_q, w_k = root[:, None] * u[:, :rank].T, root[:, None] * vt[:rank]
    missing = 0 if width is None else width - rank
    pad = np.zeros((missing, form.shape[1]))
    return np.vstack([w_q, pad]), np.vstack([w_k, pad])


def _placed(task: _Task, w: Array, values: Array, width: int) -> tuple[Array, Array] | None:
    """Narrow heads where the tokens are independent: keys on a line (two choices) or on a circle (any number)."""
    n = len(task.x)
    if np.linalg.matrix_rank(task.x, tol=1e-10) < n or (w.max(axis=1) < 1).any():
        return None
    targets = sorted({int(t) for t in w.argmax(axis=1)})
    if width == 1 and len(targets) > 2:
        return None
    places = np.zeros((n, width))
    if width == 1:
        places[targets, 0] = [1.0, -1.0][: len(targets)]
    else:
        angle = 2 * np.pi * np.arange(n) / n
        places[:, 0], places[:, 1] = np.cos(angle), np.sin(angle)
    queries = []
    for row, y in zip(w, task.y, strict=True):
        built = by_margin(
            Problem(places, values, y, task.tolerance, task.scale),
            [int(row.argmax())],
            np.ones(1),
            0.45 * task.tolerance,
        )
        if built is None:
            return None
        queries.append(built[0])
    return least_squares(task.x[task.rows], np.array(queries)).T, least_squares(task.x, places).T


def _problems(task: _Task, w_v: Array, w_q: Array, w_k: Array) -> list[tuple[Problem, Array]]:
    """Every wanted row as a problem of its own, with the query that the layer asks."""
    keys, values = task.x @ w_k.T, task.x @ w_v.T
    queries = task.x[task.rows] @ w_q.T
    return [(Problem(keys, values, y, task.tolerance, task.scale), q) for y, q in zip(task.y, queries, strict=True)]


def _bound(task: _Task, w_v: Array, w_q: Array, w_k: Array) -> float:
    return max(problem.guaranteed(query) for problem, query in _problems(task, w_v, w_q, w_k))


def _checked(task: _Task, w: Array, w_v: Array, w_q: Array, w_k: Array, said: str, narrow: int) -> Result:
    """Everything recomputed from the matrices; the bound holds for them as they are."""
    w_v, w_q, w_k = (np.where(np.abs(m) < 1e-14 * np.abs(m).max(), 0.0, m) for m in (w_v, w_q, w_k))
    pairs = _problems(task, w_v, w_q, w_k)
    bound = max(problem.guaranteed(query) for problem, query in pairs)
    errors = [problem.measured(query) for problem, query in pairs]
    weights = np.array([problem.weights(query) for problem, query in pairs])
    also = f"; width {narrow} is enough (--width {narrow})" if narrow < len(w_q) else ""
    return Result(
        task="layer",
        status="solved" if bound <= task.tolerance else "undecided",
        statement=(
            f"Attention weights: {said}. Every wanted row is within {at_most(bound)} with a head of width "
            f"{len(w_q)}{also}."
        ),
        query=np.array([query for _, query in pairs]),
        weights=weights,
        output=weights @ pairs[0][0].values,
        target=task.y,
        bound=bound,
        error={kind: max(e[kind] for e in errors) for kind in ("float32", "float64")},
        tolerance=task.tolerance,
        reading=task.reading,
        more={"W_Q": w_q, "W_K": w_k, "W_V": w_v, "width": len(w_q), "sufficient_width": narrow, "wanted_weights": w},
    )
