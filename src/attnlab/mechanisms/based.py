"""Based: exact weights in a small window, and a polynomial in place of the exponential for all earlier tokens."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Attention, KeyValueCache, Shared
from attnlab.registry import mechanism


class BasedCache:
    """Keys and values of the last tokens, and the sums over all before them, whose size does not grow with the text."""

    def __init__(self, keep: int) -> None:
        self.recent = KeyValueCache(keep)
        self.sums: Tensor | None = None

    @property
    def length(self) -> int:
        """The number of tokens seen."""
        return self.recent.length

    def select(self, rows: Int[Tensor, " R"]) -> BasedCache:
        """A cache of these texts, which may be repeated: to continue one text in several ways."""
        chosen = BasedCache(0)
        chosen.recent = self.recent.select(rows)
        chosen.sums = None if self.sums is None else self.sums[rows]
        return chosen


def expand(x: Float[Tensor, "*B F"]) -> Float[Tensor, "*B M"]:
    """Features whose products are 1 + s + s²/2, where s is the product of the vectors over the root of their width."""
    width = x.shape[-1]
    x = x * width**-0.25
    row, column = torch.triu_indices(width, width, device=x.device)
    pairs = x[..., row] * x[..., column] * torch.where(row == column, x.new_tensor(0.5).sqrt(), 1.0)
    return torch.cat([torch.ones_like(x[..., :1]), x, pairs], dim=-1)


def polynomial(q: Float[Tensor, "*B T F"], k: Float[Tensor, "*B S F"]) -> Float[Tensor, "*B T S"]:
    """The products of the expanded features, without expanding them."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    return 1 + s + s.square() / 2


def _with_ones(v: Float[Tensor, "*B C"]) -> Float[Tensor, "*B E"]:
    """The values and a one, whose sum is that of the weights."""
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def far_sums(
    q: Float[Tensor, "B H T F"], k: Float[Tensor, "B H T F"], v: Float[Tensor, "B H T E"], apart: int, chunk: int = 64
) -> Float[Tensor, "B H T E"]:
    """The values of all tokens at least `apart` before each token, weighted by the polynomial; in linear time."""
    tokens = q.shape[2]
    if tokens <= apart:
        return torch.zeros_like(v)

    def chunks(x: Tensor) -> Tensor:
        return ops.fill(x, rows=-x.shape[2] % chunk).unflatten(2, (-1, chunk))

    asked, keys, values = chunks(q[:, :, apart:]), chunks(k[:, :, :-apart]), chunks(v[:, :, :-apart])
    sums = (expand(keys).mT @ values).cumsum(2)
    before = torch.cat([torch.zeros_like(sums[:, :, :1]), sums[:, :, :-1]], dim=2)
    far = polynomial(asked, keys).tril() @ values + expand(asked) @ before
    return torch.cat([torch.zeros_like(v[:, :, :apart]), far.flatten(2, 3)[:, :, : tokens - apart]], dim=2)


def combine(
    scores: Float[Tensor, "*B T S"], v: Float[Tensor, "*B S C"], far: Float[Tensor, "*B T E"]
) -> Float[Tensor, "*B T C"]:
    """The averages over near tokens, weighted by the exponential of their scores, and far ones, whose sums are given."""
    most = scores.detach().amax(-1, keepdim=True)
    most = torch.where(far[..., -1:] > 0, most.clamp_min(0), most.clamp_min(torch.finfo(scores.dtype).min))
    sums = (scores - most).exp() @ _with_ones(v) + (-most).exp().where(far[..., -1:] > 0, 0.0) * far
    return sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(scores.dtype).tiny)


@mechanism("based", paper="arXiv:2402.18668", cost="n·(f² + w)·d", causal=True)
class Based(Attention):
    """Softmax over a window, where beyond it exp(s) is replaced by 1 + s + s²/2, which is positive, of a few features.

    Features are projections of the input of their own, normalised and without positions; both parts share one normaliser.
    When bidirectional, the window reaches to both sides.

    Costs: time and memory grow with the length; generation keeps a window and (1 + f + f(f + 1)/2)·(d + 1) sums per head.
    Cannot: put much weight on one token beyond the window: normalised features bound s by √f. There is no dropout on weights.

    Parameters
    ----------
    features
        width of queries and keys beyond the window
    window
        tokens with exact weights, itself included; 0: an eighth of the block size, 16 to 64
    """

    reads_input = True

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        features: int = 16,
        window: int = 0,
        **shared: Unpack[Shared],
    ) -> None:
        if features < 1 or window < 0:
            raise ConfigError(f"based needs at least one feature and a positive window, not {features} and {window}")
        shared["dropout"] = 0.0
        super().__init__(n_embd, n_head, block_size, **shared)
        self.features, self.window = features, window or min(64, max(16, block_size // 8))
        self.query = nn.Linear(n_embd, n_head * features, bias=False)
        self.key = nn.Linear(n_embd, n_head * features, bias=False)

    def new_cache(self) -> BasedCache:
        """An empty cache of a window and sums."""
        return BasedCache(self.window - 1)

    def project(self, x: Tensor, start: int) -> list[Tensor]:
        """Queries and keys, each followed by its features, and values."""
        q, k, v = super().project(x, start)
        q, k = (
            torch.cat([part, ops.rms_norm(ops.split_heads(own(x), part.shape[1]))], dim=-1)
            for part, own in ((q, self.query), (k, self.key))
        )
        return [q, k, v]

    def separate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries or keys of the window, and features."""
        return x[..., : -self.features], x[..., -self.features :]

    def scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the window, weights beyond it, and which pairs are in it."""
        (q, asked), (k, keys) = self.separate(q), self.separate(k)
        place = torch.arange(k.shape[2], device=k.device)
        near = (place[-q.shape[2] :, None] - place).abs() < self.window
        return ops.dot_scores(q, k), polynomial(asked, keys), near

    @ops.in_float32
    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scores, which beyond the window are logarithms of the polynomial."""
        scores, far, near = self.scores(q, k)
        return ops.masked_softmax(torch.where(near, scores, far.log()), mask)

    @ops.in_float32
    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By sums beyond the window, and blocks as long as the window with those beside them."""
        (q, asked), (k, keys) = self.separate(q), self.separate(k)
        values = ops.blank(_with_ones(v), padding)
        far = far_sums(asked, keys, values, self.window)
        if not self.causal:
            far = far + far_sums(asked.flip(2), keys.flip(2), values.flip(2), self.window).flip(2)
        tokens, block = q.shape[2], self.window
        sides = range(2 if self.causal else 3)  # the block before, the own and the one after

        def blocks(x: Tensor) -> Tensor:
            return ops.fill(x, rows=-tokens % block).unflatten(2, (-1, block))

        def beside(x: Tensor) -> Tensor:
            ends = torch.zeros_like(x[:, :, :1])
            x = torch.cat([ends, x, ends], dim=2)
            return torch.cat([x[:, :, side : x.shape[2] - 2 + side] for side in sides], dim=3)

        exists = torch.ones(1, 1, tokens, 1, dtype=q.dtype, device=q.device)
        seen = beside(blocks(ops.blank(exists.expand(len(q), -1, -1, -1), padding)))[..., 0] > 0
        place = torch.arange(len(sides) * block, device=q.device)
        distance = place[block : 2 * block, None] - place
        near = (distance.abs() < block) & ((distance >= 0) if self.causal else True) & seen[..., None, :]
        scores = blocks(q) @ beside(blocks(k)).mT * q.shape[-1] ** -0.5
        z = combine(scores.masked_fill(~near, float("-inf")), beside(blocks(v)), blocks(far))
        return z.flatten(2, 3)[:, :, :tokens]

    def decode_step(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: BasedCache) -> Tensor:
        """The averages for new tokens; what leaves the window is added to the sums."""
        k, v = cache.recent.append(k, v)
        hidden = None if padding is None else padding[:, -k.shape[2] :]
        z = self.dispatch(q, k, v, hidden) if cache.sums is None else self.beyond(q, k, v, hidden, cache.sums)
        cache.sums = self.absorb(k, v, hidden, cache.sums)
        return z

    @ops.in_float32
    def beyond(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, sums: Tensor) -> Tensor:
        """The averages over kept tokens and sums."""
        scores, far, near = self.scores(q, k)
        mask = ops.visible(q.shape[2], k.shape[2], hidden, True, q.device)
        scores = torch.where(near, scores, far.log())
        scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        return combine(scores, v, expand(self.separate(q)[1]) @ sums)

    @ops.in_float32
    def absorb(self, k: Tensor, v: Tensor, hidden: Tensor | None, sums: Tensor | None) -> Tensor:
        """The sums with the tokens that leave the window."""
        leaving = max(0, k.shape[2] - self.window + 1)
        values = ops.blank(_with_ones(v), hidden)[:, :, :leaving]
        more = expand(self.separate(k)[1][:, :, :leaving]).mT @ values
        return more if sums is None else sums + more
