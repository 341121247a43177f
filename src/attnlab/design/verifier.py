"""Whether a certificate is a proof: an independent check in exact rationals that uses only the standard library and
shares no line with the solver.

It reads the certificate as a program receives it (plain lists, numbers and strings such as "1/3") together with the
problem, and returns the bound that is proved, or raises NotAProof with the reason. Text such as "0.1", Decimal and Fraction
mean the number as written; a float means its binary value or, if that is the reading, the decimal that it is printed as.
The only inexact step is the logarithm, whose error is bounded and counted against the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

Number = float | str | Fraction  # or a Decimal
Rows = Sequence[Sequence[Number]]
Floats = Sequence[Sequence[float]]
Matrix = list[list[Fraction]]
Certificate = Mapping[str, Any]  # or a part of one; untrusted, so nothing is known about its keys and values
_Cut = tuple[int, dict[int, Fraction], dict[int, Fraction]]  # an index, its weights, their factors
_Box = list[tuple[Fraction, Fraction]]

_MALFORMED = (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError)


class NotAProof(Exception):
    """The certificate does not prove what it claims."""


def verify(
    certificate: Certificate,
    keys: Rows,
    values: Rows,
    target: Sequence[Number],
    tolerance: Number,
    *,
    reading: Literal["decimal", "binary"] | None = None,
) -> Fraction:
    """The proved lower bound on the maximum-norm error of every query.

    With a "radius" in the certificate the proof holds for the queries with |scale · q| <= radius. Floats are read as the
    certificate's reading says, unless another is requested; text, Decimal and Fraction mean the number as written.
    """
    try:
        for_keys, for_values = (reading == "decimal",) * 2 if reading else _readings(certificate.get("reading"))
        k, (y, (eps,)) = _matrix(keys, for_keys), _matrix([target, [tolerance]], for_values)
        return _judged(certificate, k, _matrix(values, for_values), y, eps)
    except _MALFORMED as error:
        raise _malformed(error) from None


def _readings(reading: str | None) -> tuple[bool, bool]:
    """Whether the floats of keys, and of values, mean the decimals that they are printed as."""
    keys = reading is not None and reading.startswith("keys as the decimals written")
    return keys, (
        keys if reading is None or "values as" not in reading else "values as the decimals written" in reading
    )


def _matrix(rows: Rows, decimal: bool) -> Matrix:
    return [[Fraction(repr(float(x))) if decimal and isinstance(x, float) else _exact(x) for x in row] for row in rows]


def _malformed(error: Exception) -> NotAProof:
    return NotAProof(f"the certificate is malformed ({type(error).__name__}: {error})")


def _judged(certificate: Certificate, keys: Rows, v: Matrix, y: list[Fraction], eps: Fraction) -> Fraction:
    kind, radius = certificate.get("type"), _radius(certificate.get("radius"))
    cuts = [_cut(cut, keys, radius) for cut in certificate.get("combinations", [])]
    if kind == "separating":
        bound = _half_space(certificate["direction"], [], _averaged(keys, v), y)
    elif kind == "convex_combination":
        _check_headline(certificate, cuts[0], len(v))
        bound = _half_space(certificate["direction"], list(zip(cuts, certificate["multipliers"], strict=True)), v, y)
    elif kind == "farkas":
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


def _exact(x: Number) -> Fraction:
    if isinstance(x, Fraction):
        return x
    if not isinstance(x, str):
        return Fraction(x) if hasattr(x, "as_integer_ratio") else Fraction(float(x))
    if "e" in x.lower():
        raise NotAProof(f"{x[:20]} must be written as a fraction, such as 1/3")
    return Fraction(x)


def _index(x: int | str, n: int) -> int:
    """A row number in its only valid spelling."""
    i = int(x)
    if isinstance(x, bool) or (str(x) != str(i)) or not 0 <= i < n:
        raise NotAProof(f"{x!r} is not one of the {n} indices")
    return i


def _shares(part: Certificate, n: int) -> dict[int, Fraction]:
    return {_index(i, n): _exact(x) for i, x in part.items()}


def _radius(stated: Any) -> Fraction | None:
    radius = None if stated is None else _exact(stated)
    if radius is not None and radius <= 0:
        raise NotAProof("the radius must be positive")
    return radius


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True) if x), Fraction(0))


def _mixed(shares: Mapping[int, Fraction], rows: Rows) -> list[Fraction]:
    """The combination of the rows with these coefficients."""
    chosen = [(x, [_exact(a) for a in rows[i]]) for i, x in shares.items()]
    return [sum((x * row[c] for x, row in chosen), Fraction(0)) for c in range(len(rows[0]))]


def _log(x: Fraction) -> float:
    """ln x for any positive rational, even beyond the range of floats."""
    if x <= 0:
        raise NotAProof("the logarithm of a number that is not positive")
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    return math.log(float(x / Fraction(2) ** shift)) + shift * math.log(2)


def _give(residual: Sequence[Fraction], radius: Fraction | None) -> float:
    """The maximum of residual·q for |q| <= radius; a proof about every query allows no residual."""
    most = max(map(abs, residual), default=Fraction(0))
    if not most:
        return 0.0
    if radius is None:
        raise NotAProof("the keys do not combine exactly, and no radius restricts the queries")
    return math.hypot(*(float(x / most) for x in residual)) * float(most * radius) * (1 + 1e-9)


def _cut(cut: Certificate, keys: Rows, radius: Fraction | None) -> _Cut:
    """a_j <= sum b_i a_i for every query, by weighted means: key j = sum p_i key_i and sum p_i ln(b_i / p_i) >= 0."""
    j = _index(cut["index"], len(keys))
    p, b = _shares(cut["weights"], len(keys)), _shares(cut["factors"], len(keys))
    if min(p.values()) < 0 or sum(p.values()) != 1:
        raise NotAProof(f"the weights for key {j} are not a convex combination")
    if set(b) != {i for i, w in p.items() if w} or min(b.values()) <= 0:
        raise NotAProof(f"the factors for key {j} must be positive, one for every key of the combination")
    miss = _mixed({**p, j: p.get(j, Fraction(0)) - 1}, keys)
    terms = [float(p[i]) * (_log(x) - _log(p[i])) for i, x in b.items()]
    if sum(terms) < 1e-12 * (1 + sum(map(abs, terms))) + _give(miss, radius):
        raise NotAProof(f"the factors for key {j} are too small for the inequality of means")
    return j, p, b


def _check_headline(certificate: Certificate, first: _Cut, n: int) -> None:
    """The index and weights at the top, which are there for readers, must be those of the first combination."""
    j, p, _ = first
    shown = [_exact(x) for x in certificate["weights"]]
    same = len(shown) == n and all(abs(x - p.get(i, 0)) <= Fraction(1, 10**9) for i, x in enumerate(shown))
    if _index(certificate["index"], n) != j or not same:
        raise NotAProof("index and weights are not those of the first combination")


def _rows(w: list[Fraction], shares: Sequence[tuple[_Cut, float]], v: Matrix, y: list[Fraction]) -> list[Fraction]:
    """w·(y - v_i) + sum mu (row of the cut)_i; averaged over attainable weights it is at most w·(y - output)."""
    there = _dot(w, y)
    rows = [there - _dot(w, value) for value in v]
    for (j, _, factors), mu in shares:
        share = _exact(mu)
        if share < 0:
            raise NotAProof("a combination enters with a negative share")
        rows[j] += share
        for i, b in factors.items():
            rows[i] -= share * b
    return rows


def _half_space(
    direction: Sequence[float], shares: Sequence[tuple[_Cut, float]], v: Matrix, y: list[Fraction]
) -> Fraction:
    """The bound that this direction proves."""
    w = [_exact(x) for x in direction]
    if not any(w):
        raise NotAProof("the direction is zero")
    return min(_rows(w, shares, v, y)) / sum(abs(x) for x in w)


def _averaged(keys: Rows, v: Matrix) -> Matrix:
    """The mean value of each distinct key: equal keys have equal weights, so every output is a mixture of these."""
    groups: dict[tuple[Number, ...], Matrix] = {}
    for key, value in zip(keys, v, strict=True):
        groups.setdefault(tuple(key), []).append(value)
    return [[sum(column, Fraction(0)) / len(group) for column in zip(*group, strict=True)] for group in groups.values()]


def _first_box(bounds: Sequence[Certificate], v: Matrix, y: list[Fraction], eps: Fraction) -> _Box:
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
    case: Certificate,
    cuts: Sequence[_Cut],
    box: _Box,
    problem: tuple[Rows, Matrix, list[Fraction], Fraction],
    radius: Fraction | None,
) -> None:
    """Check that no attainable weights in the box give an output within eps; a split covers both of its sides."""
    if "split" in case:
        i, at = _index(case["split"][0], len(box)), _exact(case["split"][1])
        low, high = box[i]
        _check_case(case["above"], cuts, [*box[:i], (max(low, at), high), *box[i + 1 :]], problem, radius)
        _check_case(case["below"], cuts, [*box[:i], (low, min(high, at)), *box[i + 1 :]], problem, radius)
        return
    if any(low > high for low, high in box):
        return
    keys, v, y, eps = problem
    w = [_exact(x) for x in case["direction"]]
    rows = _rows(w, [(cuts[_index(c, len(cuts))], mu) for c, mu in case["multipliers"]], v, y)
    u = _shares(case["vector"], len(keys))
    if sum(u.values()) != 0:
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


def shares_vector(certificate: Certificate, keep: Rows, forget: Rows) -> bool:
    """Whether the coefficients give the same nonzero vector in both spans."""
    left, right = (
        _mixed({_index(i, len(rows)): _exact(x) for i, x in enumerate(certificate[name])}, rows)
        for name, rows in (("keep", keep), ("forget", forget))
    )
    return left == right and any(left)


def misses_segment(
    certificate: Certificate,
    keys: Floats,
    values: Floats,
    query: Sequence[float],
    j: int,
    target: Sequence[float],
    factor: float,
    norm: float | None = None,
) -> float:
    """A lower bound on the distance from the target, along the direction, of every output that a change of key j (to this
    norm, if given) can produce; rounding is counted against it.
    """
    try:
        w = [float(_exact(x)) for x in certificate["direction"]]
    except _MALFORMED as error:
        raise _malformed(error) from None
    size = math.fsum(map(abs, w))
    if not (0 < size < math.inf and len(w) == len(target)):
        raise NotAProof("the direction is zero or of the wrong length")
    without, shares, unsure = _segment(keys, values, query, j, factor, norm)
    bounds = [
        math.fsum(x * (y - o - t * (v - o)) for x, o, v, y in zip(w, without, values[j], target, strict=True))
        for t in shares
    ]
    spread = max(abs(x) for row in [*values, target] for x in row)
    return min(bounds) / size - 1e-13 * (len(keys) + unsure) * spread


def _segment(
    keys: Floats, values: Floats, query: Sequence[float], j: int, factor: float, norm: float | None
) -> tuple[list[float], tuple[float, float], float]:
    """Attention without key j, the least and the greatest weight that key j can have, and the size of the terms of the
    scores: the terms may cancel, but their rounding errors do not.
    """
    others = [i for i in range(len(keys)) if i != j]
    if not others:
        return list(values[j]), (1.0, 1.0), 0.0
    products = {i: [factor * x * y for x, y in zip(keys[i], query, strict=True)] for i in others}
    size = max(math.fsum(map(abs, terms)) for terms in products.values())
    scores = {i: math.fsum(terms) for i, terms in products.items()}
    top = max(scores.values())
    raised = {i: math.exp(x - top) for i, x in scores.items()}
    rest = math.fsum(raised.values())
    without = [math.fsum(raised[i] / rest * values[i][c] for i in others) for c in range(len(values[0]))]
    if norm is None and any(query):
        return without, (0.0, 1.0), size
    length = factor * math.hypot(*query) * float(norm or 0.0)
    gaps = [math.log(rest) + top - score for score in (-length, length)]
    low, high = (0.0 if gap > 700 else 1 / (1 + math.exp(max(gap, -700.0))) for gap in gaps)
    return without, (low, high), size + length


def splits_equal_rows(certificate: Certificate, x: Rows, y: Rows, tolerance: Number) -> bool:
    """Whether the outputs wanted for two equal inputs are more than twice the tolerance apart."""
    i, j = (int(r) for r in certificate["rows"])
    apart = max(abs(_exact(a) - _exact(b)) for a, b in zip(y[i], y[j], strict=True))
    equal = [_exact(a) for a in x[i]] == [_exact(b) for b in x[j]]
    return equal and apart > 2 * _exact(tolerance)


def outside_range(certificate: Certificate, mixed: Rows, y: Rows) -> Fraction:
    """For u with u·(W X) = 0, every value matrix misses some wanted output by at least |u·Y| / |u|_1."""
    u = [_exact(x) for x in certificate["vector"]]
    if not any(u):
        raise NotAProof("the vector is zero")
    if any(_dot(u, [_exact(x) for x in column]) for column in zip(*mixed, strict=True)):
        raise NotAProof("the vector does not cancel the attended inputs")
    return max(abs(_dot(u, [_exact(x) for x in column])) for column in zip(*y, strict=True)) / sum(map(abs, u))
