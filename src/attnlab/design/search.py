"""Finding a query by descent: many starts at once, for outputs that no closed construction reaches."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, lcm, log2

import numpy as np

from attnlab.design.attention import Array, Problem, softmax
from attnlab.design.exact import dot


def starts(problem: Problem, count: int, seed: int = 0) -> Array:
    """Zero, the directions of the keys, and random ones at three lengths; for `problem.points`."""
    points = problem.points
    rng = np.random.default_rng(seed)
    d = points.shape[1]
    pick = rng.permutation(len(points))[: count // 3]
    random = rng.normal(size=(count, d)) * rng.choice([1.0, 4.0, 16.0], size=(count, 1))
    return np.vstack([np.zeros((1, d)), 4.0 * points[pick], random])


def descend(problem: Problem, first: Array, steps: int = 90) -> Array:
    """Damped Gauss-Newton on the output error from every row of `first`; the best z found, by maximum error.

    The last third weighs large coordinates more, which moves the least-squares answer towards the least maximum.
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
    """z that minimises KL(wanted || softmax(points·z)) by Newton with backtracking: convex, so no start is needed."""
    z = np.zeros(points.shape[1])
    mean = wanted @ points

    def gap(z: Array) -> float:
        s = points @ z
        top = float(s.max())
        return top + float(np.log(np.exp(s - top).sum())) - float(mean @ z)

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
    """A query that selects value j among keys which differ across some direction by rounding only, and its exact error.

    The direction gets small whole numbers and the length is a power of two, so that floats compute its scores without
    any rounding; None where that is not so, or where key j does not lead.
    """
    keys = problem.exact.keys.exact
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
    """Whether float64 adds up every score exactly, in any order: all partial sums are short multiples of one number."""
    for row in keys.tolist():
        terms = [Fraction(x) * Fraction(q) for x, q in zip(row, query.tolist(), strict=True)]
        grid = Fraction(1, lcm(*(x.denominator for x in terms)))
        while all((x / grid) % 2 == 0 for x in terms) and any(terms):
            grid *= 2
        if max(sum(x for x in terms if x > 0), -sum(x for x in terms if x < 0)) > grid * 2**53:
            return False
    return True
