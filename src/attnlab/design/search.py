"""Finding a query by descent: many starts at once, for outputs that no closed construction reaches."""

from __future__ import annotations

import numpy as np

from attnlab.design.attention import Array, Problem, softmax


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
