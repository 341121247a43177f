"""Is this certificate a proof? An independent judge: standard library only, exact rationals, no line shared with the solver.

It reads the certificate as a program would receive it (plain lists, numbers and strings such as "1/3") together with the
problem, and either returns the bound that is proved or says what fails. Numbers of the problem are the decimals they are
written as. The only inexact step is the logarithm, whose error the judge bounds and counts against the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Rows = Sequence[Sequence[float]]


class NotAProof(Exception):
    """The certificate does not prove what it claims."""


def verify(certificate: Mapping[str, Any], keys: Rows, values: Rows, target: Sequence[float], tolerance: float) -> Fraction:
    """The proved lower bound on the maximum-norm error of every query (for `range`: the tolerance itself).

    With a "radius" in the certificate the proof is about the queries with |scale · q| <= radius.
    """
    k, v, y, eps = _matrix(keys), _matrix(values), [_exact(x) for x in target], _exact(tolerance)
    kind = certificate.get("type")
    if kind == "separating":
        bound = _leaf_bound({"direction": certificate["direction"], "multipliers": []}, [], (), v, y)
    elif kind == "convex_combination":
        cuts = certificate["combinations"]
        for cut in cuts:
            _check_cut(cut, k, certificate.get("radius"))
        bound = _case_bound(certificate["cases"], cuts, (), v, y)
    elif kind == "range":
        _check_vector(certificate, k, v, y, eps)
        return eps
    else:
        raise NotAProof(f"no rule for certificates of type {kind!r}")
    if bound <= eps:
        raise NotAProof(f"proves only that the error is at least {float(bound):.6g}, and {float(eps):.6g} is allowed")
    return bound


def holds(certificate: Mapping[str, Any], keys: Rows, values: Rows, target: Sequence[float], tolerance: float) -> bool:
    """Whether `verify` accepts."""
    try:
        verify(certificate, keys, values, target, tolerance)
    except (NotAProof, KeyError, ValueError, TypeError, IndexError, ZeroDivisionError):
        return False
    return True


def _exact(x: float | str) -> Fraction:
    return Fraction(x) if isinstance(x, str) else Fraction(repr(float(x)))


def _matrix(rows: Rows) -> list[list[Fraction]]:
    return [[_exact(x) for x in row] for row in rows]


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def _log(x: Fraction) -> float:
    """ln x for any positive rational, also one that no float can hold."""
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    return math.log(float(x / Fraction(2) ** shift)) + shift * math.log(2)


def _give(residual: Sequence[Fraction], radius: float | None) -> float:
    """How much residual·q can be for |q| <= radius; no residual is allowed when the proof is about every query."""
    if not any(residual):
        return 0.0
    if radius is None:
        raise NotAProof("the keys do not combine exactly, and no radius restricts the queries")
    return math.sqrt(sum(float(x) ** 2 for x in residual)) * float(radius) * (1 + 1e-9)


def _check_cut(cut: Mapping[str, Any], k: list[list[Fraction]], radius: float | None) -> None:
    """a_j <= sum b_i a_i under the split conditions: weighted means, with key j = sum p_i key_i - sum nu (key_a - key_b)."""
    j = int(cut["index"])
    p = {int(i): _exact(x) for i, x in cut["weights"].items()}
    b = {int(i): _exact(x) for i, x in cut["factors"].items()}
    if min(p.values()) < 0 or sum(p.values()) != 1 or min([j, *p]) < 0:
        raise NotAProof(f"the weights for key {j} are not a convex combination")
    mix = [sum((w * k[i][c] for i, w in p.items()), -k[j][c]) for c in range(len(k[j]))]
    gain, size = 0.0, 1.0
    for i, o, tau, nu in cut["splits"]:
        share = _exact(nu)
        if share < 0:
            raise NotAProof("a split enters with a negative share")
        mix = [x - share * (k[i][c] - k[o][c]) for c, x in enumerate(mix)]
        gain += float(share) * float(tau)
        size += abs(float(share) * float(tau))
    for i, w in p.items():
        if w > 0:
            term = float(w) * (_log(b[i]) - _log(w))
            gain += term
            size += abs(term)
    if gain < 1e-12 * size + _give(mix, radius):
        raise NotAProof(f"the factors for key {j} are too small for the inequality of means")


def _case_bound(
    case: Mapping[str, Any], cuts: Sequence[Mapping[str, Any]], given: tuple[tuple[int, int, float], ...], v: list[list[Fraction]], y: list[Fraction]
) -> Fraction:
    """The least bound over the two halves of a split: every query satisfies one of the two conditions."""
    if "split" not in case:
        return _leaf_bound(case, cuts, given, v, y)
    i, o, tau = int(case["split"][0]), int(case["split"][1]), float(case["split"][2])
    above = _case_bound(case["above"], cuts, (*given, (i, o, tau)), v, y)
    return min(above, _case_bound(case["below"], cuts, (*given, (o, i, -tau)), v, y))


def _leaf_bound(
    leaf: Mapping[str, Any], cuts: Sequence[Mapping[str, Any]], given: tuple[tuple[int, int, float], ...], v: list[list[Fraction]], y: list[Fraction]
) -> Fraction:
    """min_i of w·(v_i - y) + sum mu (a cut's row)_i, over |w|_1: a bound for every mixture of values that obeys the cuts."""
    w = [_exact(x) for x in leaf["direction"]]
    bounds = [_dot(w, row) - _dot(w, y) for row in v]
    for c, mu in leaf["multipliers"]:
        cut, share = cuts[int(c)], _exact(mu)
        if share < 0:
            raise NotAProof("a cut enters with a negative share")
        if any((int(i), int(o), float(tau)) not in given for i, o, tau, _ in cut["splits"]):
            raise NotAProof("a cut is used outside the part of the queries that it was made for")
        bounds[int(cut["index"])] += share
        for i, b in cut["factors"].items():
            bounds[int(i)] -= share * _exact(b)
    return min(bounds) / sum(abs(x) for x in w)


def _check_vector(certificate: Mapping[str, Any], k: list[list[Fraction]], v: list[list[Fraction]], y: list[Fraction], eps: Fraction) -> None:
    """sum u_i ln a_i = 0 for every query, but is positive for all weights whose output is within eps of y."""
    u = {int(i): _exact(x) for i, x in certificate["vector"].items()}
    if sum(u.values()) != 0 or min(u) < 0:
        raise NotAProof("the vector does not sum to zero")
    residual = [sum((x * k[i][c] for i, x in u.items()), Fraction(0)) for c in range(len(k[0]))]
    total, size = 0.0, 1.0
    for i, x in u.items():
        z = [_exact(s) for s in certificate["bounds"][str(i)]]
        reach = [Fraction(int(r == i)) - _dot(z, row) + _dot(z, y) for r, row in enumerate(v)]
        give = eps * sum(abs(s) for s in z)
        limit = min(reach) - give if x > 0 else max(reach) + give
        if x > 0 and limit <= 0:
            raise NotAProof(f"nothing keeps weight {i} away from zero")
        if x < 0 and limit <= 0:
            raise NotAProof(f"weight {i} would have to be negative: use a separating certificate")
        term = float(x) * _log(limit)
        total, size = total + term, size + abs(term)
    if total <= 1e-12 * size + _give(residual, certificate.get("radius")):
        raise NotAProof("the weights near the target do not lie on one side")
