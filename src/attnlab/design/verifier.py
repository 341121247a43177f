"""Is this certificate a proof? An independent judge: standard library only, exact rationals, no line shared with the
solver.

It reads the certificate as a program would receive it (plain lists, numbers and strings such as "1/3") together with
the problem, and either returns the bound that is proved or says what fails. Numbers of the problem are the decimals
they are written as. The only inexact step is the logarithm, whose error the judge bounds and counts against the
certificate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Rows = Sequence[Sequence[float]]
Matrix = list[list[Fraction]]
Cut = Mapping[str, Any]
Box = list[tuple[Fraction, Fraction]]


class NotAProof(Exception):
    """The certificate does not prove what it claims."""


def verify(
    certificate: Mapping[str, Any], keys: Rows, values: Rows, target: Sequence[float], tolerance: float
) -> Fraction:
    """The proved lower bound on the maximum-norm error of every query.

    With a "radius" in the certificate the proof is about the queries with |scale · q| <= radius.
    """
    v, y, eps = _matrix(values), [_exact(x) for x in target], _exact(tolerance)
    kind, cuts, radius = certificate.get("type"), certificate.get("combinations", []), certificate.get("radius")
    for cut in cuts:
        _check_cut(cut, keys, radius)
    if kind == "separating":
        bound = _half_space(certificate["direction"], [], v, y)
    elif kind == "convex_combination":
        bound = _half_space(certificate["direction"], list(zip(cuts, certificate["multipliers"], strict=True)), v, y)
    elif kind == "range":
        if len(certificate["bounds"]) != len(v):
            raise NotAProof("there must be limits for every weight")
        bound = _exact(certificate["proves"])
        if bound < eps:
            raise NotAProof(
                f"proves only that the error is more than {float(bound):.6g}, and {float(eps):.6g} is allowed"
            )
        _check_case(
            certificate["cases"], cuts, _first_box(certificate["bounds"], v, y, bound), (keys, v, y, bound), radius
        )
        return bound
    else:
        raise NotAProof(f"no rule for certificates of type {kind!r}")
    if bound <= eps:
        raise NotAProof(f"proves only that the error is at least {float(bound):.6g}, and {float(eps):.6g} is allowed")
    return bound


def _exact(x: float | str) -> Fraction:
    return Fraction(x) if isinstance(x, str) else Fraction(repr(float(x)))


def _matrix(rows: Rows) -> Matrix:
    return [[_exact(x) for x in row] for row in rows]


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True) if x), Fraction(0))


def _mixed(shares: Mapping[int, Fraction], rows: Rows) -> list[Fraction]:
    """The sum of rows with these shares."""
    chosen = [(x, [_exact(a) for a in rows[i]]) for i, x in shares.items()]
    return [sum((x * row[c] for x, row in chosen), Fraction(0)) for c in range(len(rows[0]))]


def _log(x: Fraction) -> float:
    """ln x for any positive rational, also one that no float can hold."""
    if x <= 0:
        raise NotAProof("the logarithm of a number that is not positive")
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    return math.log(float(x / Fraction(2) ** shift)) + shift * math.log(2)


def _give(residual: Sequence[Fraction], radius: float | None) -> float:
    """How much residual·q can be for |q| <= radius; no residual is allowed when the proof is about every query."""
    if not any(residual):
        return 0.0
    if radius is None:
        raise NotAProof("the keys do not combine exactly, and no radius restricts the queries")
    return math.sqrt(sum(float(x) ** 2 for x in residual)) * float(radius) * (1 + 1e-9)


def _check_cut(cut: Mapping[str, Any], keys: Rows, radius: float | None) -> None:
    """a_j <= sum b_i a_i for every query, by weighted means: key j = sum p_i key_i and sum p_i ln(b_i / p_i) >= 0."""
    j = int(cut["index"])
    p = {int(i): _exact(x) for i, x in cut["weights"].items()}
    b = {int(i): _exact(x) for i, x in cut["factors"].items()}
    if min(p.values()) < 0 or sum(p.values()) != 1 or min([j, *p]) < 0:
        raise NotAProof(f"the weights for key {j} are not a convex combination")
    miss = _mixed({**p, j: p.get(j, Fraction(0)) - 1}, keys)
    terms = [float(w) * (_log(b[i]) - _log(w)) for i, w in p.items() if w]
    if sum(terms) < 1e-12 * (1 + sum(map(abs, terms))) + _give(miss, radius):
        raise NotAProof(f"the factors for key {j} are too small for the inequality of means")


def _rows(w: list[Fraction], shares: Sequence[tuple[Cut, float]], v: Matrix, y: list[Fraction]) -> list[Fraction]:
    """w·(y - v_i) + sum mu (row of the cut)_i: averaged over attainable weights, at most w·(y - output)."""
    there = _dot(w, y)
    rows = [there - _dot(w, value) for value in v]
    for cut, mu in shares:
        share = _exact(mu)
        if share < 0:
            raise NotAProof("a combination enters with a negative share")
        rows[int(cut["index"])] += share
        for i, b in cut["factors"].items():
            rows[int(i)] -= share * _exact(b)
    return rows


def _half_space(
    direction: Sequence[float], shares: Sequence[tuple[Cut, float]], v: Matrix, y: list[Fraction]
) -> Fraction:
    """The bound that one direction proves."""
    w = [_exact(x) for x in direction]
    if not any(w):
        raise NotAProof("the direction is zero")
    return min(_rows(w, shares, v, y)) / sum(abs(x) for x in w)


def _first_box(bounds: Sequence[Mapping[str, Any]], v: Matrix, y: list[Fraction], eps: Fraction) -> Box:
    """Limits on each weight of any mixture of values within eps of y: a_i = sum_r a_r (1[r = i] - z·(v_r - y)) +
    z·(c - y).
    """
    box = []
    for i, proof in enumerate(bounds):
        ends = []
        for side in ("lower", "upper"):
            z = [_exact(x) for x in proof[side]]
            reach = [Fraction(int(r == i)) - _dot(z, value) + _dot(z, y) for r, value in enumerate(v)]
            give = eps * sum(abs(x) for x in z)
            ends.append(max(min(reach) - give, Fraction(0)) if side == "lower" else min(max(reach) + give, Fraction(1)))
        box.append((ends[0], ends[1]))
    return box


def _check_case(
    case: Mapping[str, Any],
    cuts: Sequence[Cut],
    box: Box,
    problem: tuple[Rows, Matrix, list[Fraction], Fraction],
    radius: float | None,
) -> None:
    """No attainable weights in the box give an output within eps; a split covers both of its sides."""
    if "split" in case:
        i, at = int(case["split"][0]), _exact(case["split"][1])
        low, high = box[i]
        _check_case(case["above"], cuts, [*box[:i], (max(low, at), high), *box[i + 1 :]], problem, radius)
        _check_case(case["below"], cuts, [*box[:i], (low, min(high, at)), *box[i + 1 :]], problem, radius)
        return
    if any(low > high for low, high in box):
        return
    keys, v, y, eps = problem
    w = [_exact(x) for x in case["direction"]]
    rows = _rows(w, [(cuts[int(c)], mu) for c, mu in case["multipliers"]], v, y)
    u = {int(i): _exact(x) for i, x in case["vector"].items()}
    if u and (sum(u.values()) != 0 or min(u) < 0):
        raise NotAProof("the vector does not sum to zero")
    miss = _mixed(u, keys)
    constant, size = Fraction(0), 1.0
    for i, x in u.items():
        low, high = box[i]
        if x > 0:  # ln a <= ln b + a/b - 1
            touch = _exact(case["tangents"][str(i)])
            slope, start = 1 / touch, Fraction(_log(touch)) - 1
        else:  # ln a >= the chord between the limits
            if low <= 0:
                raise NotAProof(f"nothing keeps weight {i} away from zero")
            slope = Fraction((_log(high) - _log(low)) / float(high - low)) if high > low else 1 / low
            # rounded so that the chord stays below the logarithm at both ends
            start = min(Fraction(_log(low)) - slope * low, Fraction(_log(high)) - slope * high)
        rows[i] -= x * slope
        constant -= x * start
        size += abs(float(x)) * (1 + abs(float(start)) + float(slope * high))
    level = _exact(case["level"])
    value = level + sum(
        (min((r - level) * low, (r - level) * high) for r, (low, high) in zip(rows, box, strict=True)), Fraction(0)
    )
    if value + constant - Fraction(_give(miss, radius) + 1e-13 * size) <= eps * sum(abs(x) for x in w):
        raise NotAProof("one of the cases is not refuted")


def shares_vector(certificate: Mapping[str, Any], keep: Rows, forget: Rows) -> bool:
    """Whether the coefficients name one vector, not zero, that lies in both spans."""
    left = _mixed({i: _exact(x) for i, x in enumerate(certificate["keep"])}, keep)
    right = _mixed({i: _exact(x) for i, x in enumerate(certificate["forget"])}, forget)
    return left == right and any(left)


def misses_segment(
    certificate: Mapping[str, Any],
    keys: Rows,
    values: Rows,
    query: Sequence[float],
    j: int,
    target: Sequence[float],
    factor: float,
) -> float:
    """How far, along the direction, the outputs that a change of key j can give stay from the target (rounding
    counted against it).
    """
    scores = [factor * math.fsum(x * y for x, y in zip(key, query, strict=True)) for key in keys]
    others = [i for i in range(len(keys)) if i != j]
    top = max((scores[i] for i in others), default=0.0)
    rest = math.fsum(math.exp(scores[i] - top) for i in others)
    without = [
        math.fsum(math.exp(scores[i] - top) / rest * values[i][c] for i in others) if others else values[j][c]
        for c in range(len(target))
    ]
    shares = (0.0, 1.0) if others else (1.0, 1.0)
    if others and (certificate.get("norm") is not None or not any(query)):
        length = factor * math.hypot(*query) * float(certificate.get("norm") or 0.0)
        low, high = (1 / (1 + rest * math.exp(min(top - score, 700.0))) for score in (-length, length))
        shares = (low, high)
    w = [float(x) for x in certificate["direction"]]
    size = math.fsum(map(abs, w))
    bounds = [
        math.fsum(x * (y - o - t * (v - o)) for x, o, v, y in zip(w, without, values[j], target, strict=True))
        for t in shares
    ]
    spread = max(abs(x) for row in [*values, target] for x in row)
    rounding = 1e-13 * (len(keys) + max(map(abs, scores))) * spread
    return min(bounds) / size - rounding


def splits_equal_rows(certificate: Mapping[str, Any], x: Rows, y: Rows, tolerance: float) -> bool:
    """Whether two equal inputs are asked for outputs more than twice the tolerance apart."""
    i, j = (int(r) for r in certificate["rows"])
    apart = max(abs(_exact(a) - _exact(b)) for a, b in zip(y[i], y[j], strict=True))
    return list(x[i]) == list(x[j]) and apart > 2 * _exact(tolerance)


def outside_range(certificate: Mapping[str, Any], mixed: Sequence[Sequence[float | Fraction]], y: Rows) -> Fraction:
    """u with u·(W X) = 0: whatever the value matrix, some wanted output is missed by |u·Y| / |u|_1."""
    u = [_exact(x) for x in certificate["vector"]]
    rows = [[x if isinstance(x, Fraction) else _exact(x) for x in row] for row in mixed]
    if any(sum((a * row[c] for a, row in zip(u, rows, strict=True)), Fraction(0)) for c in range(len(rows[0]))):
        raise NotAProof("the vector does not cancel the attended inputs")
    out = _matrix(y)
    return max(
        abs(sum((a * row[c] for a, row in zip(u, out, strict=True)), Fraction(0))) for c in range(len(out[0]))
    ) / sum(abs(a) for a in u)
