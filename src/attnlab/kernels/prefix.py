"""Causal attention in linear time: sums over everything before a chunk of a text, kept in range by a running maximum.

Features are given as logarithms, so that none overflows: each is divided by its largest value so far, and earlier sums are
scaled down when a larger one comes. Knows features and values, not what they mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab import ops

CHUNK = 128
AT_ONCE = 1 << 22  # features per piece: larger allocations are mapped anew by the system every time
# Within a chunk all rows share one maximum, which may come from a token that a row must not see. A row whose weight on that
# scale is below this would be lost to rounding, so smaller chunks are used. With one token per chunk no row weighs less than 1.
_DROWNED = 1e-20


class State(NamedTuple):
    """The state after a text: for every feature its maximum so far, and the sum of the values weighted by it."""

    peak: Float[Tensor, "B H M"]
    total: Float[Tensor, "B H M E"]


def hide(keys: Float[Tensor, "B H T M"], padding: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B H T M"]:
    """Logarithms of features, with weight zero for padding."""
    return keys if padding is None else keys.masked_fill(padding[:, None, :, None], float("-inf"))


def _with_ones(v: Float[Tensor, "B H T C"]) -> Float[Tensor, "B H T E"]:
    """The values and a one, whose average is the sum of weights."""
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def _divided(sums: Float[Tensor, "B H T E"]) -> Float[Tensor, "B H T C"]:
    """The averages: sums divided by the sum of weights, zero if nothing is visible."""
    weight = sums[..., -1:]
    return sums[..., :-1] / torch.where(weight.abs() < 1e-30, 1e-30, weight)


def _running_states(
    keys: Float[Tensor, "B H N L M"],
    values: Float[Tensor, "B H N L E"],
    before: State | None = None,
    signs: Float[Tensor, "B H N L M"] | None = None,
) -> tuple[Float[Tensor, "B H N M"], Float[Tensor, "B H N M E"], Float[Tensor, "B H N L M"], State]:
    """For every chunk the maximum up to its end, the sums before it on that scale, its features; and the last state."""
    with torch.no_grad():  # the maximum cancels, so no gradient flows through it
        own = keys.amax(dim=3).clamp_min(-1e30)  # all hidden: any finite maximum does
        first = own[:, :, :1] if before is None else before.peak[:, :, None]
        peaks = torch.cat([first, own], dim=2).cummax(dim=2).values
        shrink = (peaks[:, :, :-1] - peaks[:, :, 1:]).exp()
        peaks = peaks[:, :, 1:]
    features = (keys - peaks[:, :, :, None]).exp()
    if signs is not None:
        features = features * signs
    sums = features.transpose(-2, -1) @ values
    total = torch.zeros_like(sums[:, :, 0]) if before is None else before.total
    states = []
    for smaller, more in zip(shrink[..., None].unbind(2), sums.unbind(2), strict=True):
        total = total * smaller
        states.append(total)
        total = total + more
    return peaks, torch.stack(states, dim=2), features, State(peaks[:, :, -1], total)


def prefix_attention(
    q: Float[Tensor, "B H T M"],
    k: Float[Tensor, "B H T M"],
    v: Float[Tensor, "B H T C"],
    before: State | None = None,
    signs: tuple[Float[Tensor, "B H T M"], Float[Tensor, "B H T M"]] | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B H T C"], State]:
    """Return the averages of the values up to each token, weighted by exp(q)·exp(k) summed over features, and the new state.

    `signs` are factors in [-1, 1] for features of queries and keys that are not positive.
    """
    tokens = q.shape[2]
    chunk = min(chunk, tokens)

    def chunks(x: Tensor, filler: float = 0.0) -> Tensor:
        return ops.fill(x, rows=-tokens % chunk, value=filler).unflatten(2, (-1, chunk))

    queries, values = chunks(q), chunks(_with_ones(v))
    peaks, states, features, after = _running_states(
        chunks(k, float("-inf")), values, before, None if signs is None else chunks(signs[1])
    )
    queries = queries + peaks[:, :, :, None]
    queries = (queries - queries.detach().amax(dim=-1, keepdim=True)).exp()
    if signs is not None:
        queries = queries * chunks(signs[0])
    sums = (queries @ features.transpose(-2, -1)).tril() @ values
    if before is not None or tokens > chunk:
        sums = sums + queries @ states
    sums = sums.flatten(2, 3)[:, :, :tokens]
    if chunk > 1 and _drowned(k, sums[..., -1:], before):
        return prefix_attention(q, k, v, before, signs, max(1, chunk // 8))
    return _divided(sums), after


def _drowned(k: Float[Tensor, "B H T M"], weight: Float[Tensor, "B H T 1"], before: State | None) -> bool:
    """Whether a row that sees something has almost no weight on the scale of its chunk."""
    low = weight.abs() < _DROWNED
    if not low.any():
        return False
    sees = k.detach().isfinite().any(dim=-1, keepdim=True).cummax(dim=2).values
    if before is not None:
        sees = sees | (before.total[..., -1:] != 0).any(dim=2, keepdim=True)
    return bool((sees & low).any())


def pooled_attention(
    q: Float[Tensor, "B H T M"],
    k: Float[Tensor, "B H S M"],
    v: Float[Tensor, "B H S C"],
    signs: tuple[Float[Tensor, "B H T M"], Float[Tensor, "B H S M"]] | None = None,
) -> Float[Tensor, "B H T C"]:
    """Return the averages of all values, weighted by exp(q)·exp(k) summed over features."""
    with torch.no_grad():
        peak = k.amax(dim=2, keepdim=True).clamp_min(-1e30)
    features = (k - peak).exp()
    queries = q + peak
    queries = (queries - queries.detach().amax(dim=-1, keepdim=True)).exp()
    if signs is not None:
        queries, features = queries * signs[0], features * signs[1]
    return _divided(queries @ (features.transpose(-2, -1) @ _with_ones(v)))
