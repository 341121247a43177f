"""Extract v_a from v_a + v_b: the matrix that keeps one subspace and forgets another."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import UNIT, Array
from attnlab.design.exact import Rows, null_vector, read_as
from attnlab.design.inputs import Data, Real
from attnlab.design.programs import least_squares
from attnlab.design.results import Result, number
from attnlab.design.verifier import shares_vector
from attnlab.errors import UserError

_TASK = "keep one subspace, forget the other"
_MEETING = 1e-6  # bases whose smallest singular value is below this are asked, exactly, whether they share a vector
_LARGEST = 10_000  # numbers, for that question


def project(keep: Data, forget: Data, *, tolerance: Real = 1e-6) -> Result:
    """M with M(v_a + v_b) = v_a for v_a in the span of the rows of `keep` and v_b in that of `forget`.

    The tolerance is for the rows given; those shorter than 1 count as of length 1.
    """
    given = inputs.matrix(keep, "keep"), inputs.matrix(forget, "forget")
    a, b = (rows.floats for rows in given)
    eps = float(inputs.tolerance(tolerance))
    reading = read_as(keep=given[0], forget=given[1])
    if a.shape[1] != b.shape[1]:
        raise UserError(
            f"vectors to keep have {a.shape[1]} numbers and those to forget {b.shape[1]}; give both the same width"
        )
    for name, rows in (("keep", a), ("forget", b)):
        _independent(rows, name)
    both = np.vstack([a, b])
    unit = both / np.linalg.norm(both, axis=1, keepdims=True)
    crowded = len(both) > both.shape[1]
    if crowded or (np.linalg.svd(unit, compute_uv=False)[-1] < _MEETING and both.size <= _LARGEST):
        common = _common(*given, unit[: both.shape[1] + 1], eps, reading)
        if common is not None:
            return common
    return _oblique(a, b, unit, eps, reading)


def _independent(rows: Array, name: str) -> None:
    """A basis has no row to spare."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    for r in range(len(rows)):
        if np.linalg.matrix_rank(unit[: r + 1], tol=1e-12) <= r:
            raise UserError(f"{name}: row {r} is a combination of the rows before it; leave it out")


def _oblique(a: Array, b: Array, unit: Array, eps: float, reading: str) -> Result:
    """[A 0][A B]^+, which is A Aᵀ when everything is orthonormal and A (AᵀA)^-1 Aᵀ when A and B are orthogonal."""
    both, wanted = np.vstack([a, b]), np.vstack([a, np.zeros_like(b)])
    angle = _smallest_angle(unit[: len(a)], unit[len(a) :])
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
    norm = float(np.linalg.norm(matrix, 2))
    size = float(np.abs(both).sum(axis=1).max()) * max(float(np.abs(matrix).max()), 1.0)
    bound = error + (both.shape[1] + 4) * UNIT * size
    solved = bound <= eps
    return Result(
        task=_TASK,
        status="solved" if solved else "undecided",
        statement=_said(kind, norm, angle, bound, solved),
        bound=bound,
        error={"float32": float(single), "float64": error},
        tolerance=eps,
        reading=reading,
        more={"matrix": matrix, "norm": norm, "smallest_angle": angle, "condition": float(np.linalg.cond(unit))},
    )


def _smallest_angle(a: Array, b: Array) -> float:
    """The least principal angle between the spans, in degrees; small ones by their sine."""
    qa, qb = np.linalg.qr(a.T)[0], np.linalg.qr(b.T)[0]
    cosines = np.linalg.svd(qa.T @ qb, compute_uv=False)
    if cosines[0] < 0.7:
        return float(np.degrees(np.arccos(cosines[0])))
    if len(b) > len(a):
        qa, qb = qb, qa
    sines = np.linalg.svd(qb - qa @ (qa.T @ qb), compute_uv=False)
    return float(np.degrees(np.arcsin(min(1.0, float(sines[-1])))))


def _said(kind: str, norm: float, angle: float, bound: float, solved: bool) -> str:
    if solved:
        return (
            f"M(v_a + v_b) = v_a by {kind}. |M| = {number(norm)} = 1/sin of the smallest angle between the subspaces, "
            f"{number(angle)} degrees."
        )
    return (
        f"The subspaces nearly meet ({number(angle)} degrees): the best matrix that floats can hold is off by up to "
        f"{number(bound)}, and no vector that lies in both was found."
    )


def _common(keep: Rows, forget: Rows, unit: Array, eps: float, reading: str) -> Result | None:
    """A vector that lies in both subspaces, as exact coefficients; None when they only nearly meet."""
    a, b = keep.floats, forget.floats
    both = np.vstack([a, -b])[: len(unit)]
    null = np.linalg.svd(unit.T)[2][-1] / np.linalg.norm(both, axis=1)
    null *= np.append(np.ones(len(a)), -np.ones(len(unit) - len(a))) / np.abs(null).max()
    guess = np.where(np.abs(null) > 1e-9, null, 0.0)
    exact = [*keep.exact, *([-x for x in row] for row in forget.exact)]
    found = null_vector(exact[: len(unit)], guess)
    if found is None:
        return None
    scale = max(map(abs, found))
    shares = [x / scale for x in found] + [Fraction(0)] * (len(a) + len(b) - len(found))
    certificate = {
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
    return Result(
        task=_TASK,
        status="impossible",
        statement=f"The vector ({shown}) lies in both subspaces: M would have to keep it and forget it. "
        "No matrix extracts v_a.",
        tolerance=eps,
        reading=reading,
        certificate=certificate,
        lower_bound=float(np.abs(common).max() / parts.sum()) * (1 - 1e-9),
        more={"common_vector": common},
    )
