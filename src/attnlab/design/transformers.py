"""Derivations about a whole transformer: the order of its tokens, positions by rotation, FLOPs and memory.

As in theorems.py, statements say for how few tokens something is written out. Tests show the same on real models.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import sympy as sp

from attnlab.design.derivations import Derivations, Formula, Step, add_to, product, step

DERIVATIONS: Derivations = {}
_derivation = partial(add_to, DERIVATIONS)
_add, _mul = partial(sp.Add, evaluate=False), partial(sp.Mul, evaluate=False)
_times = partial(sp.MatMul, evaluate=False)


def _turn(angle: Any) -> Any:
    return sp.Matrix([[sp.cos(angle), -sp.sin(angle)], [sp.sin(angle), sp.cos(angle)]])


def _kept_orders(causal: bool) -> str:
    """In how many orders of 4 random tokens attention gives the outputs in that order; all, or one if causal."""
    rng = np.random.default_rng(0)
    tokens, matrix = rng.normal(size=(4, 3)), rng.normal(size=(3, 3))

    def attend(x: Any) -> Any:
        weights = np.exp(x @ matrix @ x.T) * (np.tri(4) if causal else 1)
        return weights / weights.sum(axis=1, keepdims=True) @ x

    orders = [list(order) for order in permutations(range(4))]
    count = sum(np.allclose(attend(tokens[order]), attend(tokens)[order], atol=1e-9) for order in orders)
    if count != (1 if causal else 24):
        raise ValueError(f"{count} of 24 orders give the outputs in that order")
    return f"the outputs follow in {count} of the 24 orders of 4 random tokens"


@_derivation(
    "Does attention see the order of its tokens?",
    "Without positions and mask it does not: Z(PX) = P Z(X) for every permutation P. With a causal mask it does.",
)
def _permutation() -> Iterator[Step]:
    x, s = sp.Matrix(sp.symbols("x_1:4", real=True)), sp.Matrix(3, 3, sp.symbols("s_11:14 s_21:24 s_31:34", real=True))
    p, swap = sp.Matrix([[0, 1, 0], [0, 0, 1], [1, 0, 0]]), sp.Matrix([[0, 1], [1, 0]])
    v, w = sp.symbols("v_1:3", real=True)
    a, t = sp.symbols("a t", positive=True)
    moved, ones = p * s * p.T, sp.ones(3, 1)
    yield step(
        "A score depends on its two tokens only: those of PX are P S P' (3 tokens of width 1, P a cycle).",
        "A matrix W_Q W_K' between them stays where it is",
        product(p * x, (p * x).T, gives=_times(p, x * x.T, p.T)),
    )
    yield step(
        "The exponential acts on each score by itself, and the sum over a row has the same terms in another order.",
        "Written for the exponentials E of S, then for S in place of E",
        Formula(moved.applyfunc(sp.exp), "=", _times(p, s.applyfunc(sp.exp), p.T)),
        product(moved, ones, gives=_times(p, s * ones)),
    )
    yield step(
        "So the weights are P A P', and the outputs (P A P')(P V) = P A V: those of X in that order.",
        "Written for A = S and V = X; P'P is the identity",
        product(moved, p * x, gives=_times(p, s * x)),
        check=partial(_kept_orders, causal=False),
    )
    yield step(
        "A causal mask M is not P M P': with two tokens swapped, the mask would let the first see the second.",
        "",
        product(swap, sp.Matrix([[1, 0], [1, 1]]), swap, gives=sp.Matrix([[1, 1], [0, 1]])),
    )
    yield step(
        "Counterexample: X gives v_1 and (1-a)v_1 + a v_2. Swapped, the first output is v_2, off by this.",
        "1 - a > 0, so it is 0 only where both values are equal",
        Formula(w - ((1 - a) * v + a * w), "=", (1 - a) * (w - v)),
        check=partial(_kept_orders, causal=True),
    )
    yield step(
        "Causal attention can even count: with equal scores, and the value 1 for the first token only, token t gets 1/t.",
        "All these outputs differ",
        Formula(1 / t - 1 / (t + 1), ">", 0),
    )


@_derivation(
    "Rotary positions",
    "Turn each pair of the query at position m by m·theta, and of the key at n by n·theta: the score depends on m and n "
    "through m - n only. Interleaved and half-split pairs give the same scores.",
)
def _rotary() -> Iterator[Step]:
    a, b, c, d, alpha, beta, m, n, theta, x = sp.symbols("a b c d alpha beta m n theta x", real=True)
    c1, c2, s1, s2 = sp.symbols("c_1:3 s_1:3", real=True)
    q, p = sp.Matrix(sp.symbols("q_1:5", real=True)), sp.eye(4).permute([0, 2, 1, 3])
    cosines, sines = sp.diag(c1, c2), sp.diag(s1, s2)
    pairs = sp.diag(sp.Matrix([[c1, -s1], [s1, c1]]), sp.Matrix([[c2, -s2], [s2, c2]]))
    z, i, pair = a + sp.I * b, sp.I, (a * c + b * d) * sp.cos(x) + (b * c - a * d) * sp.sin(x)
    yield step(
        "Read pairs as complex numbers: the dot product of a + ib and c + id is a real part, with the conjugate c - id.",
        "",
        Formula(sp.re(z * (c - i * d), evaluate=False), "=", a * c + b * d),
    )
    yield step(
        "To turn a pair by alpha is to multiply it by e^(i·alpha), or by a block of two rows: real and imaginary part.",
        "Euler's formula",
        *(
            Formula(part(z * (sp.cos(alpha) + i * sp.sin(alpha)), evaluate=False), "=", entry)
            for part, entry in zip((sp.re, sp.im), _turn(alpha) * sp.Matrix([a, b]), strict=True)
        ),
    )
    yield step(
        "The turns of query and key leave the difference, as complex numbers and as blocks, R(alpha)' R(beta).",
        "The key's turn is conjugated; for alpha = beta it is the identity, so lengths stay",
        Formula(sp.exp(i * m * theta) * sp.exp(-i * n * theta), "=", sp.exp(i * (m - n) * theta)),
        product(_turn(alpha).T, _turn(beta), gives=_turn(beta - alpha)),
    )
    yield step(
        "So a pair adds this to the score, with x = (n - m)·theta: the sine tells before from after.",
        "The score is the sum over the pairs, each with its own theta",
        product(sp.Matrix([[a, b]]), _turn(x), sp.Matrix([c, d]), gives=[pair]),
    )
    yield step(
        "Interleaved pairs are neighbours, half-split ones i and i + d/2. One permutation turns R into the other (d = 4).",
        "c and s are the cosines and sines of two angles",
        product(p, pairs, p.T, gives=sp.BlockMatrix([[cosines, -sines], [sines, cosines]]).as_explicit()),
    )
    yield step(
        "So with the rows of W_Q and W_K permuted in each head, the scores are the same: (Pq)·(Pk) = q·k.",
        "P'P is the identity",
        product((p * q).T, p, gives=q.T),
    )


def _no_two_integers() -> str:
    """Show that 2·pi·j is no integer, and which positions come closest to coinciding."""
    gaps = 2 * np.abs(np.sin(np.arange(1, 1000) / 2))
    if (2 * sp.pi * sp.Symbol("j", integer=True, nonzero=True)).is_integer is not False:
        raise ValueError("2·pi·j may be an integer")
    return f"pi is irrational; up to 1,000 apart, positions {gaps.argmin() + 1} apart are closest, at {gaps.min():.1e}"


@_derivation(
    "Sinusoidal positions",
    "A shift by s turns each pair (sin(m·omega), cos(m·omega)) by s·omega, whatever m is. One pair with omega = 1 "
    "already gives every integer a code of its own.",
)
def _sinusoidal() -> Iterator[Step]:
    m, n, s = sp.symbols("m n s", real=True)
    j, period = sp.symbols("j N", integer=True, positive=True)
    w = sp.Symbol("omega", positive=True)
    here, there, shifted = (sp.Matrix([sp.sin(x * w), sp.cos(x * w)]) for x in (m, n, m + s))
    square = 4 * sp.sin((m - n) * w / 2) ** 2
    yield step(
        "The code of m + s is that of m, turned by a matrix in which there is no m.",
        "Addition theorems",
        product(_turn(-s * w), here, gives=shifted),
    )
    yield step(
        "It is a rotation: its transpose, the shift by -s, undoes it.",
        "",
        product(_turn(-s * w).T, _turn(-s * w), gives=sp.eye(2)),
    )
    yield step(
        "So the dot product of two codes, and their squared distance, depend on m - n only (one pair; pairs add up).",
        "",
        Formula(here.dot(there), "=", sp.cos((m - n) * w)),
        Formula(sp.Add(*((x - y) ** 2 for x, y in zip(here, there, strict=True))), "=", square),
    )
    yield step(
        "Two codes coincide exactly where the sine is 0: where (m - n)·omega is 2·pi·j for an integer j.",
        "",
        Formula(square, "=", 0, ((n, m - 2 * sp.pi * j / w),)),
    )
    yield step(
        "With omega = 1 the gap m - n would be 2·pi·j, and 2·pi·j is an integer for j = 0 only.",
        "So no two integers coincide, even with one pair",
        check=_no_two_integers,
    )
    yield step(
        "But where every frequency is a multiple of 2·pi/N, positions N apart do coincide.",
        "So do not choose all of them as rational multiples of pi",
        *(
            Formula(wave((m + period) * 2 * sp.pi * j / period), "=", wave(m * 2 * sp.pi * j / period))
            for wave in (sp.sin, sp.cos)
        ),
    )


@_derivation(
    "FLOPs and memory of a transformer",
    "L layers of width d, an MLP of width 4d, T tokens, V symbols: 12 L d² + 2 V d parameters; forward, each token takes "
    "24 L d² + 4 L T d + 2 V d FLOPs; training takes three times that, and 16 bytes per parameter (12 under Muon).",
)
def _flops() -> Iterator[Step]:
    d, h, r, layers, i, j, k, p = sp.symbols("d h r L i j k P", positive=True)
    t = sp.Symbol("T", integer=True, positive=True)
    four = ((r, sp.Integer(4)),)
    yield step(
        "A layer has d² weights each for queries, keys, values and output, and r·d² up and down in the MLP, r = 4.",
        "Embedding and head add V·d each; biases, norms and learned positions (T·d) are left out",
        Formula(4 * d**2 + 2 * r * d**2, "=", 12 * d**2, four),
    )
    yield step(
        "A product of i x j by j x k takes i·k sums of j products, 2ijk FLOPs: 2 per weight and token.",
        "The layer's weights; the head takes 2 V d",
        Formula(_mul(2, 4 * d**2 + 2 * r * d**2), "=", 24 * d**2, four),
    )
    yield step(
        "Scores (T x d/h by d/h x T) and averages (T x T by T x d/h) of h heads take 4 T d per token, for every h.",
        "Heads divide the width",
        Formula(_add(_mul(h, 2 * t * (d / h) * t), _mul(h, 2 * t * t * (d / h))) / t, "=", 4 * t * d),
    )
    yield step(
        "So T/(T + 6d) of a layer is spent on pairs, half at T = 6d. A causal mask needs only T(T+1)/2 of the T² pairs.",
        "A kernel may compute masked pairs too; `attnlab params` counts what is computed",
        Formula(4 * t * d / (24 * d**2 + 4 * t * d), "=", t / (t + 6 * d)),
        Formula(sp.Sum(i, (i, 1, t)), "=", t * (t + 1) / 2),
    )
    yield step(
        "Backward, Y = X W needs dX = dY W' and dW = X' dY, so training takes 6 FLOPs per weight and token.",
        "Each is as large as the product itself; fused attention computes its scores once more",
        Formula(_add(2 * i * j * k, 2 * i * k * j, 2 * j * i * k), "=", _mul(3, 2 * i * j * k)),
    )
    yield step(
        "In float32, training holds 16 bytes per parameter, 12 under Muon; generation 8 L d bytes per token of the text.",
        "P weights, their gradients, AdamW's two averages or Muon's one; a key and a value per layer, h heads; no activations",
        Formula(_add(4 * p, 4 * p, 2 * (4 * p)), "=", 16 * p),
        Formula(_add(4 * p, 4 * p, 4 * p), "=", 12 * p),
        Formula(_mul(2, layers, h, d / h, 4), "=", 8 * layers * d),
    )
