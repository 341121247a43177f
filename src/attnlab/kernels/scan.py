"""One recurrence for gated and delta rules: a state per head that every token decays, corrects, writes to and reads.

    S <- Diag(exp(decay)) S            decay: the logarithm of a factor in [0, 1], per head or per channel; -inf forgets all
    S <- S + k (v - Sᵀ erase)ᵀ         erase: what is read before writing, such as the strength of the token times its key
    output = Sᵀ q

`by_steps` is the readable reference. `by_chunks` computes the same in plain torch with products of matrices, and the compiled
form (scan.cpp) token by token. `weights` is the closed form of the outputs as averages of the values. Values are given
already scaled by the strength of writing, and a token that is hidden has a decay of zero and zero keys. Knows nothing about
mechanisms.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_LEAST = -1000.0  # logarithm of a factor that is zero in float64: finite, so that differences of sums are


def scan(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T E"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T K"] | None = None,
    state: Float[Tensor, "B H K E"] | None = None,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H K E"]]:
    """Return the outputs of all tokens and the state after the last; `state` is that before the first."""
    return by_steps(q, k, v, decay, erase, state)


def by_steps(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T E"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T K"] | None = None,
    state: Float[Tensor, "B H K E"] | None = None,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H K E"]]:
    """The reference, token by token."""
    now = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state
    outputs = []
    for token in range(q.shape[2]):
        if decay is not None:
            now = now * decay[:, :, token, :, None].exp()
        change = v[:, :, token]
        if erase is not None:
            change = change - (now * erase[:, :, token, :, None]).sum(dim=2)
        now = now + k[:, :, token, :, None] * change[:, :, None]
        outputs.append((now * q[:, :, token, :, None]).sum(dim=2))
    return torch.stack(outputs, dim=2), now


def weights(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T K"] | None = None,
) -> Float[Tensor, "B H T T"]:
    """The weight of every token's value in every output of a text, by the closed form.

    A token adds u = v - Σ (erase · decayed key) u to the state, summed over the tokens before it. That is a triangular
    system of equations, so the outputs are (q · decayed keys) times its inverse, times the values.
    """
    passed = _passed(decay)
    return _corrected(_decayed_products(q, k, passed).tril(), k, passed, erase)


def stored(
    k: Float[Tensor, "B H T K"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T K"] | None = None,
) -> Float[Tensor, "B H T T"]:
    """What the state after a text returns for the key of every token (row): the weight of every token's value (column).

    The state is read with the key divided by its squared length. Then a value that alone is stored under its key has a weight
    of one there, and one that was forgotten or overwritten has zero. Other weights in a row are values that are mixed in.
    """
    passed = _passed(decay)
    left = k if passed is None else k * (passed[:, :, -1:] - passed).exp().to(k.dtype)
    probe = k / k.square().sum(dim=-1, keepdim=True).clamp_min(1e-30)
    return _corrected(probe @ left.transpose(-2, -1), k, passed, erase)


def _passed(decay: Float[Tensor, "B H T #K"] | None) -> Float[Tensor, "B H T #K"] | None:
    """The sum of the logarithms of all decays up to each token."""
    return None if decay is None else decay.double().clamp_min(_LEAST).cumsum(dim=2)


def _corrected(
    scores: Float[Tensor, "B H T T"],
    k: Float[Tensor, "B H T K"],
    passed: Float[Tensor, "B H T #K"] | None,
    erase: Float[Tensor, "B H T K"] | None,
) -> Float[Tensor, "B H T T"]:
    """Weights of what tokens add to the state as weights of their values."""
    if erase is None:
        return scores
    system = _decayed_products(erase, k, passed).tril(-1)
    return torch.linalg.solve_triangular(system, scores, upper=False, left=False, unitriangular=True)


def _decayed_products(
    rows: Float[Tensor, "B H T K"], k: Float[Tensor, "B H S K"], passed: Float[Tensor, "B H S #K"] | None
) -> Float[Tensor, "B H T S"]:
    """Products of rows with keys, decayed from the token of the key to that of the row; not defined above the diagonal."""
    if passed is None:
        return rows @ k.transpose(-2, -1)
    if passed.shape[-1] == 1:
        lost = (passed - passed.transpose(-2, -1)).clamp_max(0.0)
        return rows @ k.transpose(-2, -1) * lost.exp().to(k.dtype)
    parts = []
    for some, at in zip(rows.split(16, dim=2), passed.split(16, dim=2), strict=True):  # in slices, to bound memory
        lost = (at[:, :, :, None] - passed[:, :, None]).clamp_max(0.0).exp().to(k.dtype)
        parts.append(torch.einsum("bhtk,bhtsk,bhsk->bhts", some, lost, k))
    return torch.cat(parts, dim=2)
