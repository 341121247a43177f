"""The convex programs underneath: the least-norm point of a polyhedron (by non-negative least squares) and linear
programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.design.attention import Array


def least_squares(rows: Array, right: Array) -> Array:
    """The least x for which rows·x is nearest to the right side; directions below 1e-11 count as none."""
    return np.asarray(np.linalg.lstsq(rows, right, rcond=1e-11)[0], dtype=np.float64)


def least_distance(rows: Array, least: Array) -> Array | None:
    """The z of smallest norm with rows·z >= least, or None where none was found.

    Least-distance programming: the residual of one non-negative least-squares problem is the answer, and a residual of
    zero says that there is none. Callers check what they get; None is not a proof.
    """
    from scipy.optimize import nnls

    size = float(np.abs(rows).max(initial=0.0))
    height = float(np.abs(least).max(initial=0.0))
    if least.max(initial=0.0) <= 0:
        return np.zeros(rows.shape[1])
    if size == 0:
        return None
    g, h = rows / size, least / height
    system = np.vstack([g.T, h])
    try:
        dual, _ = nnls(system, np.append(np.zeros(g.shape[1]), 1.0))
    except RuntimeError:
        return None
    residual = np.append(g.T @ dual, h @ dual - 1.0)
    active = dual > 0
    tries = [least_squares(g[active], h[active])] if active.any() else []
    if residual[-1] < 0:
        tries.append(-residual[:-1] / residual[-1])
    tries.append(residual[:-1])
    fits = [z for z in (_stretched(g, h, z) for z in tries) if z is not None]
    return min(fits, key=lambda z: float(z @ z)) * (height / size) if fits else None


def _stretched(g: Array, h: Array, z: Array) -> Array | None:
    """z, lengthened until g·z >= h where a longer one can do that."""
    reach = g @ z
    need = h > 0
    if not np.isfinite(z).all() or (reach[need] <= 0).any():
        return None
    longer = z * max(1.0, float((h[need] / reach[need]).max(initial=1.0)))
    return longer if (g @ longer - h >= -1e-9).all() else None


@dataclass(frozen=True)
class _Linear:
    """A solved linear program: the point, the value, and the multipliers of the inequalities (>= 0)."""

    x: Array
    value: float
    multipliers: Array


def linear_program(cost: Array, **constraints: Any) -> _Linear | None:
    """min cost·x by HiGHS; None unless an optimum was found."""
    from scipy.optimize import linprog

    found = linprog(cost, method="highs", **constraints)
    if found.status != 0:
        return None
    slack = np.zeros(0) if constraints.get("A_ub") is None else np.maximum(-np.asarray(found.ineqlin.marginals), 0.0)
    x = np.asarray(found.x, dtype=np.float64)
    return _Linear(x, float(cost @ x), slack)


def hull_distance(points: Array, target: Array) -> float:
    """Euclidean distance from the target to the convex hull of the points (rows)."""
    from scipy.optimize import nnls

    size = float(np.abs(points - target).max()) or 1.0
    moved = (points - target).T / size
    weights, _ = nnls(np.vstack([moved, np.ones(moved.shape[1])]), np.append(np.zeros(moved.shape[0]), 1.0))
    return size * float(np.linalg.norm(moved @ weights)) / float(weights.sum())
