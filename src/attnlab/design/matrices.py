"""Matrices from wanted outputs: W_Q, W_K and W_V of a whole layer, and the matrix that keeps one subspace and forgets
another.

`layer` first fixes the attention weights W: the given ones, or one token for every wanted row, chosen so that the
smallest value matrix suffices. Then it finds W_V from W X W_Vᵀ = Y by least squares, and the bilinear form M of least
norm whose scores x_i M x_k have the order and margins that W needs (the program of `blend`, with x_i ⊗ x_k as keys).
Singular values factor M = W_Qᵀ W_K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import UNIT, Problem, Scale, factor
from attnlab.design.exact import Array, Rows, binary, near_null_vector, null_vector, read_as
from attnlab.design.inputs import Data, Real
from attnlab.design.optimize import least_norm, least_squares
from attnlab.design.results import Certificate, Extra, Result, Status, at_least, at_most, number
from attnlab.design.solve import by_margin
from attnlab.design.verifier import NotAProof, outside_range, shares_vector, splits_equal_rows
from attnlab.errors import UserError

_TRIES = 4096  # choices of one token per row
_TASK = "keep one subspace, forget the other"
_MEETING = 1e-6  # bases whose smallest singular value is below this get an exact test for a common vector
_LARGEST = 10_000  # numbers, for that test


@dataclass(frozen=True)
class _Layer:
    """Tokens, the rows whose output is wanted, and the outputs wanted there."""

    x: Array
    rows: list[int]
    y: Array
    scale: Scale
    tokens: Rows
    outputs: Rows
    eps: Fraction

    @property
    def tolerance(self) -> float:
        return float(self.eps)

    def answer(
        self, status: Status, statement: str, certificate: Certificate | None = None, lower_bound: float = 0.0
    ) -> Result:
        """A result without matrices."""
        return Result(
            task="layer",
            status=status,
            statement=statement,
            tolerance=self.tolerance,
            certificate=certificate,
            lower_bound=lower_bound,
            reading=read_as(tokens=self.tokens, outputs=self.outputs),
        )

    def problems(self, w_v: Array, w_q: Array, w_k: Array) -> list[tuple[Problem, Array]]:
        """Every wanted row as a separate problem, with the query that the layer computes for it."""
        keys, values = binary(self.x @ w_k.T), binary(self.x @ w_v.T)
        queries = self.x[self.rows] @ w_q.T
        targets = [self.outputs.take([i]) for i in self.rows]
        problems = [Problem(keys, values, y, self.eps, self.scale) for y in targets]
        return list(zip(problems, queries, strict=True))


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
    token_rows, output_rows = inputs.matrix(tokens, "tokens"), inputs.matrix(outputs, "outputs", free_rows=True)
    x, y, rows = token_rows.floats, output_rows.floats, wanted_rows(token_rows, output_rows)
    if width is not None and width < 1:
        raise UserError(f"width {width} must be at least 1")
    task = _Layer(x, rows, y[rows], inputs.scale(scale), token_rows, output_rows, inputs.tolerance(tolerance))
    if (equal := _equal_rows(task)) is not None:
        return equal
    if weights is not None:
        return _solve(task, _wanted_weights(weights, task), "the weights given", width)
    best = None
    for chosen in _assignments(task):
        pairs = ", ".join(f"{i} to {t}" for i, t in zip(rows, chosen, strict=True))
        choice = f"one token each, chosen for the smallest W_V (row {pairs})"
        result = _solve(task, binary(np.eye(len(x))[chosen]), choice, width)
        if result.status == "solved":
            return result
        best = best or result
    return best or task.answer(
        "undecided",
        "No choice of one token per wanted row has values linear in the tokens; give the weights you want with --weights.",
    )


def wanted_rows(tokens: Rows, outputs: Rows) -> list[int]:
    """The tokens whose output is wanted; a row of NaN is free."""
    n, rows = len(tokens.floats), len(outputs.floats)
    if n != rows:
        raise UserError(
            f"there are {n} tokens and {rows} rows of outputs; give one row per token, of nan where it is free"
        )
    wanted = [i for i in range(n) if not np.isnan(outputs.floats[i]).any()]
    if not wanted:
        raise UserError("every output is free; give at least one row of numbers")
    return wanted


def _equal_rows(task: _Layer) -> Result | None:
    """A proof of impossibility from two equal tokens with different wanted outputs."""
    for a, i in enumerate(task.rows):
        for b, j in enumerate(task.rows[:a]):
            apart = float(np.abs(task.y[a] - task.y[b]).max())
            if (task.x[i] != task.x[j]).any() or apart < task.tolerance:
                continue
            certificate: Certificate = {"type": "equal_rows", "rows": [j, i], "difference": apart}
            if splits_equal_rows(certificate, task.tokens.exact, task.outputs.exact, task.eps):
                statement = (
                    f"Tokens {j} and {i} are equal, so every layer without a mask gives them the same output; the "
                    f"wanted ones differ by {number(apart)}."
                )
                return task.answer("impossible", statement, certificate, apart / 2)
    return None


def _wanted_weights(weights: Data, task: _Layer) -> Rows:
    w = inputs.matrix(weights, "weights")
    n = len(task.x)
    if w.floats.shape == (n, n):
        w = w.take(task.rows)
    if w.floats.shape != (len(task.rows), n):
        raise UserError(
            f"the weights are {w.floats.shape[0]} x {w.floats.shape[1]}; give {n} columns and one row per token or per "
            "wanted output"
        )
    if w.floats.min() < 0 or np.abs(w.floats.sum(axis=1) - 1).max() > 1e-6:
        raise UserError("every row of weights must be non-negative and sum to 1; divide each row by its sum")
    return inputs.normalised(w)


def _assignments(task: _Layer) -> list[list[int]]:
    """Choices of one token per row for which some W_V exists, smallest W_V first.

    Where there are too many choices, only each row's own token and every change of one row from there.
    """
    n, same = len(task.x), tuple(task.rows)
    if n ** len(same) <= _TRIES:
        every = list(product(range(n), repeat=len(same)))
    else:
        moves = [(*same[:a], t, *same[a + 1 :]) for a in range(len(same)) for t in range(n)]
        every = [same, *moves[:_TRIES]]
    scored = []
    for chosen in map(list, every):
        fit = least_squares(task.x[chosen], task.y)
        if np.abs(task.x[chosen] @ fit - task.y).max() <= task.tolerance / 4:
            # a tie goes to the choice with fewer rows that attend to themselves
            own = sum(i == t for i, t in zip(task.rows, chosen, strict=True))
            scored.append((round(float(np.linalg.norm(fit)), 9), own, chosen))
    return [chosen for *_, chosen in sorted(scored)[:16]]


def _solve(task: _Layer, shares: Rows, choice: str, width: int | None) -> Result:
    """The matrices for these weights, or a proof that no W_V fits them; `choice` says where the weights are from."""
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
        why = "no scores x_i M x_k with these margins were found"
        if form is not None:
            rank = np.linalg.matrix_rank(form, tol=1e-9)
            why = f"no factors of width {width} were found; the scores have rank {rank}"
        return task.answer("undecided", f"For {choice}: {why}.")
    narrow = len(pair[0])
    for fewer in range(1, min(3, narrow)):
        smaller = _placed(task, w, values, fewer)
        if smaller is not None and _bound(task.problems(w_v, *smaller)) <= task.tolerance:
            narrow = fewer
            break
    return _checked(task, w, w_v, *pair, choice, narrow)


def _bound(problems: list[tuple[Problem, Array]]) -> float:
    """The guaranteed error of all rows."""
    return max(problem.guaranteed(query) for problem, query in problems)


def _outside(task: _Layer, w: Rows, mixed: Array, left: float) -> Result:
    """A proof that no W_V fits these weights: a combination of rows that attention cancels and the outputs do not."""
    null = np.linalg.svd(mixed.T)[2][np.linalg.matrix_rank(mixed, tol=1e-10) :]
    certificate: Certificate | None = None
    bound = 0.0
    product_rows = inputs.mixture(w, task.tokens).exact
    wanted = task.outputs.take(task.rows).exact
    for direction in (null.T @ (null @ task.y)).T if len(null) else ():
        size = float(np.abs(direction).max())
        if size < 1e-12:
            continue
        u = np.where(np.abs(direction) > 1e-10 * size, direction / size, 0.0)
        exact, off = near_null_vector(product_rows, u)
        if off:
            continue
        candidate: Certificate = {"type": "range", "vector": [str(v) for v in exact]}
        try:
            proved = float(outside_range(candidate, product_rows, wanted))
        except NotAProof:
            continue
        if proved > max(bound, task.tolerance):
            certificate, bound = candidate, proved
    if certificate is None:
        best = f"With these weights the best W_V found misses by {number(left)}"
        return task.answer("undecided", f"{best}; there is no proof that none is better.")
    statement = (
        f"With exactly these weights every W_V misses some output by at least {at_least(bound)}: a combination of rows is "
        "zero after attention, but not in the outputs."
    )
    return task.answer("impossible", statement, certificate, bound)


def _bilinear(task: _Layer, w: Array, values: Array) -> Array | None:
    """The M of least norm, scale included, whose scores give every wanted row its weights within half the tolerance."""
    _, sizes, axes = np.linalg.svd(task.x, full_matrices=False)
    axes = axes[sizes > 1e-11 * max(sizes[0], 1e-300)]
    x = task.x @ axes.T
    size = x.shape[1] ** 2
    equal, level, rows, least = [np.zeros((0, size))], [], [np.zeros((0, size))], []
    for i, weights, y in zip(task.rows, w, task.y, strict=True):
        inside = np.flatnonzero(weights > 0)
        outside = np.flatnonzero(weights == 0)
        low = int(inside[weights[inside].argmin()])
        others = inside[inside != low]
        far = float(np.abs(values[outside] - y).max(initial=0.0))
        aim = task.tolerance * 0.4
        equal.append(np.kron(x[i], x[others] - x[low]))
        level += np.log(weights[others] / weights[low]).tolist()
        if far > aim:
            rows.append(np.kron(x[i], x[low] - x[outside]))
            least += [float(np.log(len(outside) * weights[low] * (far - aim) / aim))] * len(outside)
    form = least_norm(np.vstack(equal), np.array(level), np.vstack(rows), np.array(least))
    return None if form is None else np.asarray(axes.T @ form.reshape(x.shape[1], x.shape[1]) @ axes)


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


def _placed(task: _Layer, w: Array, values: Array, width: int) -> tuple[Array, Array] | None:
    """W_Q and W_K of a narrow head for independent tokens: keys on a line (two choices) or on a circle (any number)."""
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
    for row, i in zip(w, task.rows, strict=True):
        problem = Problem(binary(places), binary(values), task.outputs.take([i]), task.eps, task.scale)
        construction = by_margin(problem, [int(row.argmax())], np.ones(1), 0.45 * task.tolerance)
        if construction is None:
            return None
        queries.append(construction[0])
    return least_squares(task.x[task.rows], np.array(queries)).T, least_squares(task.x, places).T


def _checked(task: _Layer, w: Array, w_v: Array, w_q: Array, w_k: Array, choice: str, narrow: int) -> Result:
    """The result, with everything recomputed from the matrices; the bound holds for them as they are."""
    w_v, w_q, w_k = (np.where(np.abs(m) < 1e-14 * np.abs(m).max(), 0.0, m) for m in (w_v, w_q, w_k))
    pairs = task.problems(w_v, w_q, w_k)
    bound = _bound(pairs)
    errors = [problem.measured(query) for problem, query in pairs]
    weights = np.array([problem.weights(query) for problem, query in pairs])
    also = f"; width {narrow} is enough (--width {narrow})" if narrow < len(w_q) else ""
    within = f"Every wanted row is within {at_most(bound)} with a head of width {len(w_q)}{also}."
    more: Mapping[str, Extra] = {"W_Q": w_q, "W_K": w_k, "W_V": w_v, "width": len(w_q), "sufficient_width": narrow}
    return replace(
        task.answer("solved" if bound <= task.tolerance else "undecided", f"Attention weights: {choice}. {within}"),
        query=np.array([query for _, query in pairs]),
        weights=weights,
        output=weights @ pairs[0][0].values,
        target=task.y,
        bound=bound,
        error={kind: max(e[kind] for e in errors) for kind in ("float32", "float64")},
        more={**more, "wanted_weights": w},
    )


def project(keep: Data, forget: Data, *, tolerance: Real = 1e-6) -> Result:
    """M with M(v_a + v_b) = v_a for v_a in the span of the rows of `keep` and v_b in that of `forget`.

    The tolerance applies to the given rows; rows shorter than 1 count as of length 1.
    """
    bases = {"keep": inputs.matrix(keep, "keep"), "forget": inputs.matrix(forget, "forget")}
    a, b = (rows.floats for rows in bases.values())
    eps = float(inputs.tolerance(tolerance))
    if a.shape[1] != b.shape[1]:
        raise UserError(
            f"vectors to keep have {a.shape[1]} numbers and those to forget {b.shape[1]}; give both the same width"
        )
    for name, rows in bases.items():
        _check_independent(rows.floats, name)
    both = np.vstack([a, b])
    unit = both / np.linalg.norm(both, axis=1, keepdims=True)
    crowded = len(both) > both.shape[1]
    result = None
    if crowded or (np.linalg.svd(unit, compute_uv=False)[-1] < _MEETING and both.size <= _LARGEST):
        result = _common(**bases, unit=unit[: both.shape[1] + 1])
    return replace(result or _oblique(a, b, unit, eps), tolerance=eps, reading=read_as(**bases))


def _check_independent(rows: Array, name: str) -> None:
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    for r in range(len(rows)):
        if np.linalg.matrix_rank(unit[: r + 1], tol=1e-12) <= r:
            raise UserError(f"{name}: row {r} is a combination of the rows before it; leave it out")


def _oblique(a: Array, b: Array, unit: Array, eps: float) -> Result:
    """[A 0][A B]^+, which is A Aᵀ when everything is orthonormal and A (AᵀA)^-1 Aᵀ when A and B are orthogonal."""
    both, wanted = np.vstack([a, b]), np.vstack([a, np.zeros_like(b)])
    sizes = np.linalg.norm(both, axis=1, keepdims=True)
    if np.allclose(both @ both.T, np.eye(len(both)), atol=1e-12):
        kind, matrix = "orthonormal bases: M = A Aᵀ", a.T @ a
    elif np.abs(unit[: len(a)] @ unit[len(a) :].T).max() < 1e-12:
        rows = unit[: len(a)]
        kind, matrix = "orthogonal subspaces: M = A (AᵀA)^-1 Aᵀ", rows.T @ np.linalg.solve(rows @ rows.T, rows)
    else:
        kind = "independent subspaces, an oblique projector: M = [A 0][A B]^+"
        matrix = least_squares(unit, wanted / sizes).T
    both, wanted = both / np.minimum(sizes, 1.0), wanted / np.minimum(sizes, 1.0)
    error = float(np.abs(both @ matrix.T - wanted).max())
    single = np.abs(both.astype(np.float32) @ matrix.T.astype(np.float32) - wanted).max()
    size = float(np.abs(both).sum(axis=1).max()) * max(float(np.abs(matrix).max()), 1.0)
    bound = error + (both.shape[1] + 4) * UNIT * size
    norm, angle = float(np.linalg.norm(matrix, 2)), _smallest_angle(unit[: len(a)], unit[len(a) :])
    if bound <= eps:
        statement = (
            f"M(v_a + v_b) = v_a by {kind}. |M| = {number(norm)} = 1/sin of the smallest angle between the subspaces, "
            f"{number(angle)} degrees."
        )
    else:
        statement = (
            f"The subspaces nearly intersect ({number(angle)} degrees): the best matrix that floats can hold is off by up "
            f"to {number(bound)}, and no vector that lies in both was found."
        )
    return Result(
        task=_TASK,
        status="solved" if bound <= eps else "undecided",
        statement=statement,
        bound=bound,
        error={"float32": float(single), "float64": error},
        more={"matrix": matrix, "norm": norm, "smallest_angle": angle, "condition": float(np.linalg.cond(unit))},
    )


def _smallest_angle(a: Array, b: Array) -> float:
    """The smallest principal angle between the spans, in degrees; small angles are computed from their sine."""
    qa, qb = np.linalg.qr(a.T)[0], np.linalg.qr(b.T)[0]
    cosines = np.linalg.svd(qa.T @ qb, compute_uv=False)
    if cosines[0] < 0.7:
        return float(np.degrees(np.arccos(cosines[0])))
    if len(b) > len(a):
        qa, qb = qb, qa
    sines = np.linalg.svd(qb - qa @ (qa.T @ qb), compute_uv=False)
    return float(np.degrees(np.arcsin(min(1.0, float(sines[-1])))))


def _common(keep: Rows, forget: Rows, unit: Array) -> Result | None:
    """A vector in both subspaces, with exact coefficients; None if they only nearly intersect."""
    a, b = keep.floats, forget.floats
    both = np.vstack([a, -b])[: len(unit)]
    null = np.linalg.svd(unit.T)[2][-1] / np.linalg.norm(both, axis=1)
    null *= np.append(np.ones(len(a)), -np.ones(len(unit) - len(a))) / np.abs(null).max()
    guess = np.where(np.abs(null) > 1e-9, null, 0.0)
    exact = [*keep.exact, *([-x for x in row] for row in forget.exact)]
    coefficients = null_vector(exact[: len(unit)], guess)
    if coefficients is None:
        return None
    largest = max(map(abs, coefficients))
    shares = [x / largest for x in coefficients] + [Fraction(0)] * (len(a) + len(b) - len(coefficients))
    certificate: Certificate = {
        "type": "common_vector",
        "keep": [str(x) for x in shares[: len(a)]],
        "forget": [str(x) for x in shares[len(a) :]],
    }
    if not shares_vector(certificate, keep.exact, forget.exact):
        return None
    floats = np.array([float(x) for x in shares])
    common = floats[: len(a)] @ a
    parts = np.abs(floats) * np.maximum(np.linalg.norm(np.vstack([a, b]), axis=1), 1.0)
    shown = ", ".join(number(x) for x in common[:8]) + (", ..." if len(common) > 8 else "")
    why = f"The vector ({shown}) lies in both subspaces: M would have to both keep and forget it."
    return Result(
        task=_TASK,
        status="impossible",
        statement=f"{why} No matrix extracts v_a.",
        certificate=certificate,
        lower_bound=float(np.abs(common).max() / parts.sum()) * (1 - 1e-9),
        more={"common_vector": common},
    )
