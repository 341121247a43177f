"""Numerical optimisation for the solver: linear programs, the least-norm point of a polyhedron, and queries found by
descent from many starts.

Callers check what they get: nothing here is a proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm, log2
from typing import Any

import numpy as np

from attnlab.design.attention import Problem, log_sum_exp, softmax
from attnlab.design.exact import Array, dot


def least_squares(rows: Array, right: Array) -> Array:
    """The least-norm x that minimises |rows·x - right|; singular values below 1e-11 of the largest count as 0."""
    return np.asarray(np.linalg.lstsq(rows, right, rcond=1e-11)[0], dtype=np.float64)


def least_norm(equal: Array, level: Array, rows: Array, least: Array) -> Array | None:
    """The x of smallest norm with equal·x = level and rows·x >= least, or None where none was found."""
    u, s, vt = np.linalg.svd(equal, full_matrices=True)
    rank = int((s > 1e-11 * max(s.max(initial=0.0), 1e-300)).sum())

    def particular(right: Array) -> Array:
        return np.asarray(vt[:rank].T @ ((u[:, :rank].T @ right) / s[:rank]))

    first, free = particular(level), vt[rank:].T
    first += particular(level - equal @ first)  # one step of iterative refinement
    if np.abs(equal @ first - level).max(initial=0.0) > 1e-9 * (1 + np.abs(level).max(initial=0.0)):
        return None
    if not free.shape[1]:
        return first if (rows @ first >= least).all() else None
    z = least_distance(rows @ free, least - rows @ first)
    return None if z is None else first + free @ z


def least_distance(rows: Array, least: Array) -> Array | None:
    """The z of smallest norm with rows·z >= least, or None where none was found.

    Least-distance programming: z is the residual of one non-negative least-squares problem, scaled; a residual of zero
    means that there is no z.
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
    """z scaled up until g·z >= h, or None where no multiple of z satisfies it."""
    reach = g @ z
    need = h > 0
    if not np.isfinite(z).all() or (reach[need] <= 0).any():
        return None
    longer = z * max(1.0, float((h[need] / reach[need]).max(initial=1.0)))
    return longer if (g @ longer - h >= -1e-9).all() else None


@dataclass(frozen=True)
class _Linear:
    """A solved linear program: the point, and the multipliers of the inequalities (>= 0)."""

    x: Array
    multipliers: Array


def linear_program(cost: Array, **constraints: Any) -> _Linear | None:
    """min cost·x by HiGHS; None unless an optimum was found."""
    from scipy.optimize import linprog

    optimum = linprog(cost, method="highs", **constraints)
    if optimum.status != 0:
        return None
    multipliers = np.zeros(0)
    if constraints.get("A_ub") is not None:
        multipliers = np.maximum(-np.asarray(optimum.ineqlin.marginals), 0.0)
    return _Linear(np.asarray(optimum.x, dtype=np.float64), multipliers)


def starts(problem: Problem, count: int, seed: int = 0) -> Array:
    """Zero, directions of some keys, and random directions at three lengths, in the coordinates of `problem.points`."""
    points = problem.points
    rng = np.random.default_rng(seed)
    d = points.shape[1]
    pick = rng.permutation(len(points))[: count // 3]
    random = rng.normal(size=(count, d)) * rng.choice([1.0, 4.0, 16.0], size=(count, 1))
    return np.vstack([np.zeros((1, d)), 4.0 * points[pick], random])


def descend(problem: Problem, first: Array, steps: int = 90) -> Array:
    """Damped Gauss-Newton on the output error from every row of `first`; the z of least maximum error.

    The last third of the steps gives large coordinates more weight, which moves the least-squares solution towards the
    minimax solution.
    """
    points, values, target = problem.points, problem.values, problem.target
    size = float(np.abs(values - target).max()) or 1.0
    values, target = (values - target) / size, np.zeros_like(target)
    enough = 0.9 * problem.tolerance / size
    z, damping = first.copy(), np.full(len(first), 1e-2)
    weight = np.ones((len(first), values.shape[1]))
    best, least = z[0], np.inf
    eye = np.eye(values.shape[1])

    def state(z: Array) -> tuple[Array, Array]:
        a = softmax(z @ points.T)
        return a, a @ values

    a, c = state(z)
    for step in range(steps):
        worst = np.abs(c).max(axis=1)
        here = int(worst.argmin())
        if worst[here] < least:
            best, least = z[here].copy(), float(worst[here])
        if least <= enough:
            break
        if step >= 2 * steps // 3:
            weight = (np.abs(c) / worst[:, None]) ** 3 + 1e-3
        turn = (a[:, None, :] * values.T) @ points - c[:, :, None] * (a @ points)[:, None, :]
        jacobian = weight[:, :, None] * turn
        residual = weight * c
        square = jacobian @ jacobian.transpose(0, 2, 1) + damping[:, None, None] * eye
        move = np.einsum("bmd,bm->bd", jacobian, np.linalg.solve(square, residual[..., None])[..., 0])
        length = np.linalg.norm(move, axis=1, keepdims=True)
        moved = z - move * np.minimum(1.0, 8.0 / np.maximum(length, 1e-30))
        a_new, c_new = state(moved)
        better = (weight * c_new**2 * weight).sum(axis=1) < (residual**2).sum(axis=1)
        z, a, c = (np.where(better[:, None], new, old) for new, old in ((moved, z), (a_new, a), (c_new, c)))
        damping = np.clip(np.where(better, damping / 4, damping * 6), 1e-12, 1e8)
    return best


def towards(points: Array, wanted: Array, steps: int = 60) -> Array:
    """The z that minimises KL(wanted || softmax(points·z)), which is convex: Newton's method with backtracking."""
    z = np.zeros(points.shape[1])
    mean = wanted @ points

    def gap(z: Array) -> float:
        return log_sum_exp(points @ z) - float(mean @ z)

    value = gap(z)
    for _ in range(steps):
        a = softmax(points @ z)
        gradient = a @ points - mean
        if np.abs(gradient).max() < 1e-12:
            break
        moved = points - a @ points
        hessian = (moved * a[:, None]).T @ moved + 1e-10 * np.eye(len(z))
        move = np.linalg.solve(hessian, gradient)
        move *= min(1.0, 20.0 / max(float(np.linalg.norm(move)), 1e-30))
        step = 1.0
        while step > 1e-6 and gap(z - step * move) > value - 1e-4 * step * float(gradient @ move):
            step /= 2
        z, before = z - step * move, value
        value = gap(z)
        if before - value < 1e-14 * (1 + abs(value)):
            break
    return z


def through_rounding(problem: Problem, j: int) -> tuple[Array, float] | None:
    """A query that selects value j along a direction in which the keys differ by rounding only, and its exact error.

    The direction has small integer entries and the length is a power of two, so that floats compute the scores without
    rounding; None where they do not, or where key j does not have the largest score.
    """
    keys = problem.k.exact
    moved = problem.keys - problem.keys[j]
    _, sizes, axes = np.linalg.svd(moved / problem.unit, full_matrices=True)
    sizes = np.append(sizes, np.zeros(len(axes) - len(sizes)))
    for axis in axes[sizes < 1e-9 * max(sizes[0], 1e-300)]:
        near = [Fraction(x).limit_denominator(64) for x in axis / np.abs(axis).max()]
        unit = lcm(*(x.denominator for x in near))
        for direction in ([int(sign * x * unit) for x in near] for sign in (1, -1)):
            scores = [dot(direction, row) for row in keys]
            lead = min((scores[j] - s for i, s in enumerate(scores) if i != j), default=Fraction(0))
            if lead <= 0:
                continue
            far = float(np.abs(problem.values - problem.target).max())
            margin = 2.0 + np.log(max(len(keys) * far / problem.tolerance, 1.0))
            power = ceil(log2(margin / problem.factor) - log2(lead.numerator) + log2(lead.denominator))
            query = np.ldexp(np.array(direction, dtype=np.float64), min(power, 300))
            if _without_rounding(problem.keys, query) and problem.error(query) <= problem.tolerance:
                bound = problem.certified(query)
                if bound is not None:
                    return query, bound
    return None


def _without_rounding(keys: Array, query: Array) -> bool:
    """Whether float64 computes every score exactly, in any order: all partial sums are short multiples of one number."""
    for row in keys.tolist():
        terms = [Fraction(x) * Fraction(q) for x, q in zip(row, query.tolist(), strict=True)]
        grid = Fraction(1, lcm(*(x.denominator for x in terms)))
        while all((x / grid) % 2 == 0 for x in terms) and any(terms):
            grid *= 2
        if max(sum(x for x in terms if x > 0), -sum(x for x in terms if x < 0)) > grid * 2**53:
            return False
    return True
