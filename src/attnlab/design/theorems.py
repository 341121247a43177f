"""The proofs of part A as derivations: softmax, copying, the hull, a varying norm, several heads, self-attention by hand.

Each function yields the steps of one derivation; DERIVATIONS has all by name, those of transformers.py too. Where a sum over
n keys is written out, it is for a few keys, and the statement says so; letters such as r stand for the sum over all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import sympy as sp
from scipy.special import ndtr

from attnlab.design import transformers
from attnlab.design.derivations import Derivation, Derivations, Formula, Step, add_to, product, step
from attnlab.design.noisy_keys import noise
from attnlab.design.results import Result, at_least, percent
from attnlab.design.solve import reach, select
from attnlab.design.verifier import verify
from attnlab.errors import UserError, unknown

DERIVATIONS: Derivations = {}
_derivation = partial(add_to, DERIVATIONS)
_HALF = sp.Rational(1, 2)


def derive(name: str) -> Derivation:
    """One of the derivations, with every step checked."""
    if name not in DERIVATIONS:
        raise UserError(unknown("derivation", name, DERIVATIONS))
    return DERIVATIONS[name]().check()


def _proved(result: Result, keys: list[list[int]], values: list[list[int]], target: list[int]) -> Fraction:
    """The lower bound on the error that the certificate of a result proves, by the independent verifier."""
    if result.certificate is None:
        raise ValueError(f"the solver found no proof: {result.statement}")
    return verify(result.certificate, keys, values, target, "0.01")


def _check_agreement(formula: float, integral: float) -> None:
    """Compare the probability that a formula gives with that of `design noise`."""
    if abs(formula - integral) > 1e-3:
        raise ValueError(f"the formula gives {formula:.4f}, and the integral of `design noise` {integral:.4f}")


@_derivation(
    "Softmax is a categorical distribution",
    "Every weight is positive and below 1, the weights sum to 1, and the output lies in the convex hull of the values.",
)
def _softmax() -> Iterator[Step]:
    *s, t = sp.symbols("s_1:4 t", real=True)
    x, r = sp.symbols("x r", positive=True)
    g = sp.symbols("g_1:4", nonnegative=True)
    total = sum(sp.exp(y) for y in s)
    moved = sum(sp.exp(y + t) for y in s)
    yield step(
        "Let x = e^(s_i) and let r be the sum of the other exponentials. The weight x/(x + r) is positive.",
        "Exponentials are positive, for any number of keys",
        Formula(x / (x + r), ">", 0),
    )
    yield step(
        "It is below 1 as soon as there is a second key.",
        "r is positive",
        Formula(1 - x / (x + r), "=", r / (x + r)),
        Formula(x / (x + r), "<", 1),
    )
    yield step(
        "The weights sum to 1 (written out for 3 keys).",
        "All have the same denominator, the sum of the numerators",
        Formula(sp.Add(*(sp.exp(y) / total for y in s)), "=", 1),
    )
    yield step(
        "Only differences of scores matter (3 keys): a number t added to all scores changes no weight.",
        "e^t cancels",
        Formula(sp.exp(s[0] + t) / moved, "=", sp.exp(s[0]) / total),
    )
    yield step(
        "The logarithms of two weights differ by their scores (3 keys).",
        "The denominator cancels",
        Formula(sp.log(sp.exp(s[0]) / total) - sp.log(sp.exp(s[1]) / total), "=", s[0] - s[1]),
    )
    yield step(
        "For any direction w, let g_i >= 0 be how far w·v_i is below the largest of them. The output is below it by "
        "the weighted mean of the g_i, so it is in every half-space that holds all values: in their hull (3 keys).",
        "A sum of products that are not negative",
        Formula(sp.Add(*(sp.exp(y) / total * gap for y, gap in zip(s, g, strict=True))), ">=", 0),
    )


@_derivation(
    "The copying bound",
    "If the score of key j exceeds every other by at least m, then 1 - a_j <= (n-1)e^-m / (1 + (n-1)e^-m).",
)
def _copying() -> Iterator[Step]:
    *s, m = sp.symbols("s_1:5 m", real=True)
    n = sp.Symbol("n", integer=True, positive=True)
    r, eps, u, big, far, others = sp.symbols("r epsilon u R D N", positive=True)
    t, *over = sp.symbols("t t_2:5", nonnegative=True)
    v = sp.symbols("v_1:4", real=True)
    a = sp.symbols("a_2:4", positive=True)
    g = sp.symbols("g_2:4", nonnegative=True)
    total = sum(sp.exp(y) for y in s)
    rest = sum(sp.exp(-(s[0] - y)) for y in s[1:])
    bound = (n - 1) * sp.exp(-m) / (1 + (n - 1) * sp.exp(-m))
    left = others * sp.exp(-m)
    enough = ((m, sp.log(others * (far - eps) / eps)), (far, eps + u))
    yield step(
        "Divide numerator and denominator of a_j by e^(s_j) (here j = 1 of 4 keys).",
        "Softmax depends on differences only",
        Formula(sp.exp(s[0]) / total, "=", 1 / (1 + rest)),
    )
    yield step(
        "With r for the sum of e^-(s_j - s_i) over the other keys, the others hold r/(1 + r).",
        "",
        Formula(1 - 1 / (1 + r), "=", r / (1 + r)),
    )
    yield step(
        "Every term of r has s_j - s_i = m + t with t >= 0, so it is at most e^-m.",
        "e^t >= 1 for t >= 0",
        Formula(sp.exp(-(m + t)), "<=", sp.exp(-m)),
    )
    yield step(
        "So r <= (n-1)e^-m (written out for n = 4).",
        "n - 1 terms, each at most e^-m",
        Formula(sp.Add(*(sp.exp(-(m + x)) for x in over)), "<=", 3 * sp.exp(-m)),
    )
    yield step(
        "r/(1 + r) grows with r: for R >= r it is at most R/(1 + R). With R = (n-1)e^-m this is the bound.",
        "The difference is t/((1 + r)(1 + r + t))",
        Formula(r / (1 + r), "<=", big / (1 + big), ((big, r + t),)),
    )
    yield step(
        "The bound is attained: when every other score is exactly m lower, it is an equality, for every n.",
        "All n - 1 terms are e^-m",
        Formula(1 - sp.exp(m) / (sp.exp(m) + n - 1), "=", bound),
    )
    yield step(
        "The output misses v_j by the mean of the differences (one coordinate, 3 keys).",
        "The weights sum to 1",
        Formula(
            (1 - sp.Add(*a)) * v[0] + sp.Add(*(x * y for x, y in zip(a, v[1:], strict=True))) - v[0],
            "=",
            sp.Add(*(x * (y - v[0]) for x, y in zip(a, v[1:], strict=True))),
        ),
    )
    yield step(
        "So it misses by at most (1 - a_j)·D, D the distance to the farthest value: put |v_i - v_j| = D - g_i.",
        "No g_i is negative",
        Formula(sp.Add(*(x * (far - y) for x, y in zip(a, g, strict=True))), "<=", far * sp.Add(*a)),
    )
    yield step(
        "For a tolerance epsilon below D, and N = n - 1, the margin ln(N(D - epsilon)/epsilon) is enough.",
        "Put the margin into the bound",
        Formula(far * left / (1 + left), "=", eps, enough),
    )


@_derivation(
    "For which queries does key j get the weight w?",
    "With d_i = s_j - s_i: a_j >= w exactly where the sum of e^-d_i is at most (1-w)/w. Every d_i >= ln(w/(1-w)) is "
    "necessary, and ln(n-1) more is sufficient.",
)
def _selecting() -> Iterator[Step]:
    r, w, x, few, big, p = sp.symbols("r w x N R p", positive=True)
    t, rest = sp.symbols("t u", nonnegative=True)
    d, *s = sp.symbols("d s_2:4", real=True)
    odds = ((w, 1 / (1 + x)),)
    yield step(
        "a_j = 1/(1 + r), r the sum of e^-d_i over the other keys. So a_j - w has the sign of (1-w)/w - r.",
        "The factor w/(1 + r) is positive",
        Formula(1 / (1 + r) - w, "=", w / (1 + r) * ((1 - w) / w - r)),
    )
    yield step(
        "Put w = 1/(1 + x), so that (1-w)/w = x and e^-ln(w/(1-w)) = x.",
        "x runs through all positive numbers",
        Formula((1 - w) / w, "=", x, odds),
        Formula(sp.exp(-d), "=", x, ((d, sp.log(w / (1 - w))), *odds)),
    )
    yield step(
        "Necessary: e^-d_i is one term of r <= x, so it is at most x, and d_i >= ln(w/(1-w)).",
        "u is the sum of the other terms, t the slack of r <= x",
        Formula(sp.exp(-d), "<=", x, ((x, sp.exp(-d) + rest + t),)),
    )
    yield step(
        "Sufficient: with N = n - 1 terms, each d_i = ln(w/(1-w)) + ln N + t gives r <= x.",
        "Each term is at most x/N",
        Formula(few * sp.exp(-(d + sp.log(few) + t)), "<=", x, ((d, sp.log(1 / x)),)),
    )
    yield step(
        "The queries form a convex set: the second derivative of the log-sum-exp of the scores along any line is a "
        "variance, here of the slopes s_2 and s_3 under weights p and 1 - p.",
        "It is not negative",
        Formula(
            p * s[0] ** 2 + t * s[1] ** 2 - (p * s[0] + t * s[1]) ** 2, "=", p * t * (s[0] - s[1]) ** 2, ((t, 1 - p),)
        ),
    )
    yield step(
        "Along q = R·u, a lead of x > 0 gives a term that vanishes, and a lead of -x one that grows: it alone keeps "
        "a_j below 1/(1 + e^(R·x)).",
        "So a_j tends to 1 exactly where every lead is positive (a lead of 0 keeps it at 1/2 or below)",
        Formula(sp.Limit(sp.exp(-big * x), big, sp.oo), "=", 0),
        Formula(sp.Limit(1 / (1 + sp.exp(big * x)), big, sp.oo), "=", 0),
    )


@_derivation(
    "Impossibility in the hull",
    "If key j is a convex combination of other keys, then a_j <= 1/2 for every query, and the output stays at least "
    "half as far from v_j as the hull of the other values is.",
)
def _hull() -> Iterator[Step]:
    *s, level, top, own = sp.symbols("s_1:3 L M a_j", real=True)
    t, u, *g = sp.symbols("t u g_1:4", nonnegative=True)
    p, far, x, y, *q = sp.symbols("p D a_1 a_3 p_1:4", positive=True)
    shares = (p, 1 - p)
    score = sp.Add(*(w * z for w, z in zip(shares, s, strict=True)))
    keys, values = [[-1], [0], [1]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]

    def proved() -> str:
        result = select(keys, values, 1)
        bound = _proved(result, keys, values, values[1])
        if bound < Fraction(66, 100):
            raise ValueError(f"only {float(bound):.4f} is proved")
        kind = (result.certificate or {})["type"]
        misses = f"every query misses by at least {at_least(float(bound))}"
        return f"a certificate of type {kind}, accepted in exact arithmetic: {misses}"

    yield step(
        "Let k_j = p·k_1 + (1-p)·k_2 (more keys work the same way). With L for the log-sum-exp of all scores, ln a_i "
        "= s_i - L, and ln a_j is the same combination of them, whatever the query is.",
        "Scores are linear in the keys, and the coefficients sum to 1",
        Formula(score - level, "=", sp.Add(*(w * (z - level) for w, z in zip(shares, s, strict=True)))),
    )
    yield step(
        "So ln a_j is at most the largest ln a_i, M: put ln a_i = M - g_i (three keys).",
        "A mean is at most the maximum; the p_i sum to 1",
        Formula(sp.Add(*(w * (top - gap) for w, gap in zip(q, g, strict=True))), "<=", top * sp.Add(*q)),
    )
    yield step(
        "So another weight is a_j + t, t >= 0, and the two leave u >= 0 of the whole: 2a_j + t + u = 1.",
        "Solve for a_j",
        Formula(own, "<=", _HALF, ((own, (1 - t - u) / 2),)),
    )
    yield step(
        "The output is v_j moved by the share 1 - a_j = 1/2 + t towards the other values, so it misses by at least "
        "half the distance D from v_j to their hull.",
        "c - v_j = (1 - a_j)·(mean of the others - v_j)",
        Formula((1 - own) * far, ">=", far / 2, ((own, _HALF - t),)),
    )
    yield step(
        "At the middle of two keys, a_j is the root of a_1 a_3, and at most their mean.",
        "With the roots written as a_1, a_3: the difference is half a square",
        Formula(x * y, "<=", (x**2 + y**2) / 2),
    )
    yield step(
        "Among -1, 0, 1, a_j <= (1 - a_j)/2 then leaves at most a third, which q = 0 attains.",
        "Solve a_j = (1 - a_j)/2 - t",
        Formula(own, "<=", sp.Rational(1, 3), ((own, (1 - 2 * t) / 3),)),
    )
    yield step(
        "So with orthonormal values and the keys -1, 0, 1, the middle value cannot be copied within 0.01.",
        "Found by the solver",
        check=proved,
    )


@_derivation(
    "One key of varying norm, and noise in every direction",
    "With key a = e·mu_a, e ~ N(1, 1/2), and q = C(mu_a + mu_b): a_a = 1/(1 + e^(C(1-e))), of mean 1/2, and as C "
    "grows it tends to 0 or 1, each with probability 1/2.",
)
def _varying_norm() -> Iterator[Step]:
    c, e, x, tau, t, r, y, norm = sp.symbols("C e x tau t r y A", positive=True)
    real, s = sp.symbols("e s", real=True)
    weight_a, weight_b, *a = sp.symbols("a b a_1:4", positive=True)
    square, whole = sp.Add(*(w**2 for w in a)), ((a[2], 1 - a[0] - a[1]),)
    own = sp.exp(s) / (sp.exp(s) + r)  # a_j as a function of its own score, and of the score of another key
    far, near = (top / (y + sp.exp(s) + r) for top in (y, sp.exp(s)))
    weight = 1 / (1 + sp.exp(c * (1 - e)))
    mu_a, mu_b = sp.Matrix([1, 0]), sp.Matrix([0, 1])
    query = c * (mu_a + mu_b)
    varying = mu_a * mu_a.T / 2
    density = sp.exp(-((real - 1) ** 2)) / sp.sqrt(sp.pi)
    half = ((a[0], _HALF), (a[1], _HALF), (a[2], 0))

    def law() -> str:
        integral = noise(samples=1000, n=2, alpha=0.0).designs[0].closed_form.near_zero
        share = float(ndtr(2**0.5 * math.log(1 / 9) / 10))
        _check_agreement(share, integral)
        return f"P(a_a <= 0.1) = {percent(share)} at C = 10, as `design noise` finds too"

    yield step(
        "The scores of keys a and b are C·e and C (orthonormal means).",
        "mu_a·mu_b = 0",
        product(query.T, e * mu_a, gives=[c * e]),
        product(query.T, mu_b, gives=[c]),
    )
    yield step(
        "The covariance mu_a mu_a'/2 gives e the variance 1/2.",
        "mu_a has length 1",
        product(mu_a.T, varying, mu_a, gives=[_HALF]),
    )
    yield step(
        "So the weight on v_a is a sigmoid of C(e - 1), for two keys, and up to the weight of the others for more.",
        "Softmax of two scores",
        Formula(sp.exp(c * e) / (sp.exp(c * e) + sp.exp(c)), "=", weight),
    )
    yield step(
        "Its law: the weight is x exactly where e = 1 + ln(x/(1-x))/C, so P(a_a <= x) = Phi(sqrt(2)·ln(x/(1-x))/C).",
        "The sigmoid increases, and (e - 1)·sqrt(2) is standard normal",
        Formula(weight, "=", x, ((e, 1 + sp.log(x / (1 - x)) / c),)),
        check=law,
    )
    yield step(
        "Its mean is 1/2: e and 2 - e have the same density, and their weights sum to 1.",
        "Pair e with 2 - e",
        Formula(density.subs(real, 2 - real), "=", density),
        Formula(weight + weight.subs(e, 2 - e), "=", 1),
    )
    yield step(
        "As C grows the weight tends to 1 for e = 1 + t and to 0 for e = 1 - t: a coin, of standard deviation 1/2.",
        "Each has probability 1/2",
        Formula(sp.Limit(1 / (1 + sp.exp(-c * t)), c, sp.oo), "=", 1),
        Formula(sp.Limit(1 / (1 + sp.exp(c * t)), c, sp.oo), "=", 0),
    )
    yield step(
        "Small noise: the derivatives of a weight a by its own score and by that of a key of weight b. Here r and y "
        "are sums of exponentials of the other scores, for any number of keys.",
        "Derivatives of softmax",
        Formula(sp.Derivative(own, s), "=", weight_a * (1 - weight_a), ((weight_a, own),)),
        Formula(sp.Derivative(far, s), "=", -weight_a * weight_b, ((weight_a, far), (weight_b, near))),
    )
    yield step(
        "So noise of variance tau² on every score moves a_1 by tau·a_1·sqrt(1 - 2a_1 + |a|²), to first order: the "
        "squared gradient (3 keys).",
        "At two weights of 1/2 the standard deviation is tau/sqrt(8)",
        Formula(
            (a[0] * (1 - a[0])) ** 2 + (a[0] * a[1]) ** 2 + (a[0] * a[2]) ** 2, "=", a[0] ** 2 * (1 - 2 * a[0] + square)
        ),
        Formula(tau**2 * a[0] ** 2 * (1 - 2 * a[0] + square), "=", tau**2 / 8, half),
    )
    yield step(
        "The second derivatives, by the same two scores.",
        "Derivatives of softmax",
        Formula(sp.Derivative(own, (s, 2)), "=", weight_a * (1 - weight_a) * (1 - 2 * weight_a), ((weight_a, own),)),
        Formula(
            sp.Derivative(far, (s, 2)),
            "=",
            weight_a * weight_b * (2 * weight_b - 1),
            ((weight_a, far), (weight_b, near)),
        ),
    )
    yield step(
        "So the noise moves the mean of a_1 by tau²·a_1·(|a|² - a_1), to second order: half the Laplacian (3 keys, "
        "divided by a_1; A stands for |a|²).",
        "The weights sum to 1",
        Formula(
            (1 - a[0]) * (1 - 2 * a[0]) + sp.Add(*(w * (2 * w - 1) for w in a[1:])),
            "=",
            2 * (norm - a[0]),
            ((norm, square), *whole),
        ),
    )
    yield step(
        "It moves the mean of the log-sum-exp L, on which the closed form of `design noise` rests, by tau²(1 - "
        "|p|²)/2, where p is the softmax of the scores in L (here a, of 3 keys).",
        "Half the trace of diag p - pp'",
        Formula(sp.Derivative(sp.log(sp.exp(s) + r), (s, 2)), "=", weight_a * (1 - weight_a), ((weight_a, own),)),
        Formula(sp.Add(*(w * (1 - w) for w in a)), "=", 1 - square, whole),
    )


@_derivation(
    "Averaging several heads",
    "Equal heads have the spread of one head. Split heads q_1 = C·mu_a, q_2 = C·mu_b keep the weight on v_a near "
    "1/2, unless e < ln(n-1)/C.",
)
def _heads() -> Iterator[Step]:
    c, e, t, count, share = sp.symbols("C e t N P", positive=True)
    z, w = sp.symbols("z w", real=True)
    many, place = sp.Symbol("H", integer=True, positive=True), sp.Symbol("h", integer=True)
    first = sp.exp(c * e) / (sp.exp(c * e) + count)
    second = 1 / (sp.exp(c) + count)

    def failures() -> str:
        integral = noise(samples=1000, alpha=0.0).designs[2].closed_form.failures
        share = float(ndtr(2**0.5 * (math.log(9) / 10 - 1)))
        _check_agreement(share, integral)
        compared = f"the formula gives {percent(share)}, and the integral of `design noise` {percent(integral)}"
        return f"at C = 10, n = 10 {compared}"

    def limit() -> str:
        below = float(ndtr(-(2**0.5)))
        sd = (below * (1 - below)) ** 0.5 / 2
        if round(below, 3) != 0.079 or round(sd, 3) != 0.135:
            raise ValueError(f"failures {below:.4f}, standard deviation {sd:.4f}")
        return f"failures {percent(below)}, standard deviation {sd:.3f}"

    yield step(
        "Equal heads see the same keys, so they have the same weight w, and so has the mean of H of them.",
        "Heads share the noise; only independent noise would average out",
        Formula(sp.Sum(w, (place, 1, many)) / many, "=", w),
    )
    yield step(
        "Split heads: with N = n - 1 other keys of score 0, head 1 gives v_a a sigmoid of C·e - ln N.",
        "C·mu_a is orthogonal to the other means",
        Formula(first, "=", 1 / (1 + sp.exp(sp.log(count) - c * e))),
    )
    yield step(
        "Head 2 looks for key b, and key a has score 0 whatever e is: its weight is constant, and nearly 0.",
        "So the mean of both heads is near 1/2 where e is positive",
        Formula(sp.Derivative(second, e, evaluate=False), "=", 0),
        Formula(second, "<", sp.exp(-c)),
        Formula(sp.Limit((first + second) / 2, c, sp.oo), "=", _HALF),
    )
    yield step(
        "Head 1 gives v_a less than 1/2 exactly where e < ln(N)/C: there the sigmoid is 1/2.",
        "The sigmoid increases",
        Formula(first, "=", _HALF, ((e, sp.log(count) / c),)),
    )
    yield step(
        "For e ~ N(1, 1/2) that has probability Phi(sqrt(2)(ln(N)/C - 1)).",
        "e = 1 + z/sqrt(2), z standard normal",
        Formula(1 + z / sp.sqrt(2), "=", sp.log(count) / c, ((z, sp.sqrt(2) * (sp.log(count) / c - 1)),)),
        check=failures,
    )
    yield step(
        "As C grows the weight tends to 1/2 for e > 0 and to 0 for e < 0 (head 1 at e = -t).",
        "With P the probability that e > 0, the variance is P(1 - P)/4",
        Formula(sp.Limit(sp.exp(-c * t) / (sp.exp(-c * t) + count), c, sp.oo), "=", 0),
        Formula(share / 4 - (share / 2) ** 2, "=", share * (1 - share) / 4),
        check=limit,
    )


@_derivation(
    "Self-attention by hand",
    "Tokens x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b, orthogonal u of length beta. Without matrices c_2 is near "
    "u_a and never u_b; with three matrices c_2 is near u_b and c_1 near u_b - u_c.",
)
def _self_attention() -> Iterator[Step]:
    beta, length = sp.symbols("beta w", positive=True)
    ua, ub, uc, ud = (beta * sp.eye(4)[:, i] for i in range(4))
    tokens = [ud + ub, ua, uc + ub]
    w_v, w_q = (ub * ub.T - uc * uc.T) / beta**2, ud * ua.T + uc * ud.T
    values = [w_v * x for x in tokens]
    rows = sp.Matrix([list(x) for x in tokens])
    middle, away = (tokens[0] + tokens[2]) / 2, uc + ud
    close = 1 / (1 + 2 * sp.exp(-(beta**4)))

    def attention(query: Any, values: list[Any]) -> Any:
        raised = [sp.exp(x) for x in rows * query]
        return sum((r * v for r, v in zip(raised, values, strict=True)), sp.zeros(4, 1)) / sum(raised)

    def proved() -> str:
        bounds = []
        for name, second in (("u_c", [4, 0, 4, 0]), ("u_d", [4, 0, 0, 4])):
            inputs, target = [[0, 4, 0, 4], second, [0, 4, 4, 0]], [0, 4, 0, 0]
            bound = _proved(reach(inputs, inputs, target), inputs, inputs, target)
            bounds.append(f"{at_least(float(bound))} with {name} added")
        misses = f"every query misses by at least {' and '.join(bounds)}"
        return f"certificates for beta = 4 accepted in exact arithmetic: {misses}"

    yield step(
        "With K = Q = V = I, token 2 has the scores 0, beta², 0.",
        "The u are orthogonal",
        product(rows, ua, gives=[0, beta**2, 0]),
    )
    yield step(
        "So it gives itself the weight 1/(1 + 2e^(-beta²)), which tends to 1: c_2 is near u_a.",
        "The coordinate of c_2 along u_a; copying with n = 3 and the margin beta²",
        Formula(attention(ua, tokens)[0] / beta, "=", 1 / (1 + 2 * sp.exp(-(beta**2)))),
        Formula(sp.Limit(1 / (1 + 2 * sp.exp(-(beta**2))), beta, sp.oo), "=", 1),
    )
    yield step(
        "Add u_d to x_2, and let w = u_c + u_d. Every value is beyond u_b by at least beta² along w; with u_c it is "
        "the same. Below: x_1 - u_b, u_a + u_d - u_b, u_a + u_c - u_b and x_3 - u_b, times w.",
        "So is every mixture of the values",
        product(sp.Matrix([list(x - ub) for x in (tokens[0], ua + ud, ua + uc, tokens[2])]), away, gives=[beta**2] * 4),
    )
    yield step(
        "So every output is at least beta²/|w| = beta/sqrt(2) from u_b, and the mean of x_1 and x_3 is that far.",
        "Euclidean distances",
        Formula(beta**2 / length, "=", beta / sp.sqrt(2), ((length, sp.sqrt(away.dot(away))),)),
        Formula(sp.sqrt(sp.Add(*(x**2 for x in middle - ub if x), evaluate=False)), "=", beta / sp.sqrt(2)),
        check=proved,
    )
    yield step(
        "Now V = (u_b u_b' - u_c u_c')/beta², K = I, Q = u_d u_a' + u_c u_d'. The values are u_b, 0, u_b - u_c.",
        "V keeps u_b, negates u_c, and drops the rest",
        product(rows, w_v.T, gives=[list(x) for x in (ub, 0 * ub, ub - uc)]),
    )
    yield step(
        "Token 2 asks for u_d and token 1 for u_c: the scores are beta⁴, 0, 0 and 0, 0, beta⁴.",
        "Each leads by the margin beta⁴",
        product(rows, w_q, tokens[1], gives=[beta**4, 0, 0]),
        product(rows, w_q, tokens[0], gives=[0, 0, beta**4]),
    )
    yield step(
        "So the weight on the wanted value is 1/(1 + 2e^(-beta⁴)), and both outputs tend to what is wanted, u_b and "
        "u_b - u_c.",
        "Copying with n = 3; the coordinates with the largest errors",
        Formula(1 - close, "=", 2 * sp.exp(-(beta**4)) / (1 + 2 * sp.exp(-(beta**4)))),
        Formula(sp.Limit(sp.simplify(attention(w_q * tokens[1], values)[1] - ub[1]), beta, sp.oo), "=", 0),
        Formula(sp.Limit(sp.simplify(attention(w_q * tokens[0], values)[2] + uc[2]), beta, sp.oo), "=", 0),
    )


DERIVATIONS |= transformers.DERIVATIONS
