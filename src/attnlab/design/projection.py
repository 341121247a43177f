"""Extract v_a from v_a + v_b: the matrix that keeps one subspace and forgets another."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from attnlab.design import inputs
from attnlab.design.attention import Array
from attnlab.design.exact import rational, settle
from attnlab.design.programs import least_squares
from attnlab.design.results import Result, number
from attnlab.design.verifier import shares_vector
from attnlab.errors import UserError


def project(keep: ArrayLike, forget: ArrayLike) -> Result:
    """M with M(v_a + v_b) = v_a for v_a in the span of the rows of `keep` and v_b in that of `forget`."""
    a, b = inputs.matrix(keep, "keep"), inputs.matrix(forget, "forget")
    if a.shape[1] != b.shape[1]:
        raise UserError(
            f"vectors to keep have {a.shape[1]} numbers and those to forget {b.shape[1]}; give both the same width"
        )
    for name, rows in (("keep", a), ("forget", b)):
        _independent(rows, name)
    both = np.vstack([a, b])
    unit = both / np.linalg.norm(both, axis=1, keepdims=True)
    if np.linalg.svd(unit, compute_uv=False)[-1] < 1e-9 or len(both) > both.shape[1]:
        common = _common(a, b, unit)
        if common is not None:
            return common
    return _oblique(a, b, both)


def _independent(rows: Array, name: str) -> None:
    """A basis has no row to spare."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    for r in range(len(rows)):
        if np.linalg.matrix_rank(unit[: r + 1], tol=1e-12) <= r:
            raise UserError(f"{name}: row {r} is a combination of the rows before it; leave it out")


def _oblique(a: Array, b: Array, both: Array) -> Result:
    """[A 0][A B]^+, which is A Aᵀ when everything is orthonormal and A (AᵀA)^-1 Aᵀ when A and B are orthogonal."""
    wanted = np.vstack([a, np.zeros_like(b)])
    qa, qb = np.linalg.qr(a.T)[0], np.linalg.qr(b.T)[0]
    cosine = min(1.0, float(np.linalg.svd(qa.T @ qb, compute_uv=False).max()))
    orthonormal = np.allclose(both @ both.T, np.eye(len(both)), atol=1e-12)
    if orthonormal:
        kind, matrix = "orthonormal bases: M = A Aᵀ", a.T @ a
    elif cosine < 1e-12:
        kind, matrix = "orthogonal subspaces: M = A (AᵀA)^-1 Aᵀ", a.T @ np.linalg.solve(a @ a.T, a)
    else:
        kind, matrix = (
            "independent subspaces, an oblique projector: M = [A 0][A B]^+",
            least_squares(both, wanted).T,
        )
    error = float(np.abs(both @ matrix.T - wanted).max())
    single = np.abs(both.astype(np.float32) @ matrix.T.astype(np.float32) - wanted).max()
    norm = float(np.linalg.norm(matrix, 2))
    size = float(np.abs(both).sum(axis=1).max()) * float(np.abs(matrix).max())
    bound = error + (both.shape[1] + 2) * 2.0**-52 * size
    angle = float(np.degrees(np.arcsin(min(1.0, 1.0 / max(norm, 1.0)))))
    said = (
        f"M(v_a + v_b) = v_a by {kind}. |M| = {number(norm)} = 1/sin of the smallest angle between the subspaces, "
        f"{number(angle)} degrees."
    )
    return Result(
        task="keep one subspace, forget the other",
        status="solved",
        statement=said,
        bound=bound,
        error={"float32": float(single), "float64": error},
        more={"matrix": matrix, "norm": norm, "smallest_angle": angle, "condition": float(np.linalg.cond(both))},
    )


def _common(a: Array, b: Array, unit: Array) -> Result | None:
    """A vector that lies in both subspaces, as exact coefficients; None when they only nearly meet."""
    both = [*a, *(-b)]
    null = (
        np.linalg.svd(unit.T)[2][-1]
        / np.linalg.norm(np.vstack(both), axis=1)
        * np.append(np.ones(len(a)), -np.ones(len(b)))
    )
    null /= np.abs(null).max()
    null = np.where(np.abs(null) > 1e-9, null, 0.0)
    lead = int(np.abs(null).argmax())
    rest = [int(i) for i in np.flatnonzero(null) if i != lead]
    columns = [[*(rational(x) for x in both[i]), Fraction(0)] for i in rest] + [
        [*(rational(x) for x in both[lead]), Fraction(1)]
    ]
    right = [Fraction(0)] * a.shape[1] + [Fraction(1)]
    exact, off = settle(columns, right, np.append(null[rest] / null[lead], 1.0))
    if off:
        return None
    shares = [Fraction(0)] * len(both)
    for i, x in zip([*rest, lead], exact, strict=True):
        shares[i] = x
    certificate = {
        "type": "range",
        "keep": [str(x) for x in shares[: len(a)]],
        "forget": [str(x) for x in shares[len(a) :]],
    }
    if not shares_vector(certificate, a.tolist(), b.tolist()):
        return None
    common = np.array([float(x) for x in shares[: len(a)]]) @ a
    said = (
        f"The vector ({', '.join(number(x) for x in common[:8])}{', ...' if len(common) > 8 else ''}) lies in "
        f"both subspaces: M would have to keep it and forget it. "
        "No matrix extracts v_a."
    )
    size = float(np.abs(common).max())
    return Result(
        task="keep one subspace, forget the other",
        status="impossible",
        statement=said,
        certificate=certificate,
        lower_bound=size / 2,
        more={"common_vector": common},
    )
