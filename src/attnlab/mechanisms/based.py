"""Based: exact weights in a small window, and a polynomial in place of the exponential for all earlier tokens."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.kernels.scan import scan
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.mechanisms.recurrent import RecurrentCache
from attnlab.registry import mechanism


def expand(x: Float[Tensor, "*B F"]) -> Float[Tensor, "*B M"]:
    """Features whose products are 1 + s + s²/2, where s is the product of the vectors over the root of their width."""
    width = x.shape[-1]
    x = x * width**-0.25
    row, column = torch.triu_indices(width, width).to(x.device)
    pairs = x[..., row] * x[..., column] * (1 - (1 - 0.5**0.5) * (row == column).to(x.dtype))
    return torch.cat([torch.ones_like(x[..., :1]), x, pairs], dim=-1)


@mechanism("based", paper="arXiv:2402.18668", cost="n·(f² + w)·d", causal=True)
class Based(Attention):
    """Softmax over a window, where beyond it exp(s) is replaced by 1 + s + s²/2, which is positive, of a few features.

    Features are projections of the input of their own, normalised and without positions; both parts share one normaliser.
    When bidirectional, the window reaches to both sides.

    Costs: time and memory grow with the length; generation keeps a window and (1 + f + f(f + 1)/2)·(d + 1) sums per head. The
    bidirectional form computes scores in slices, and once more in the backward pass.
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

    def new_cache(self) -> RecurrentCache:
        """An empty cache of a window and sums."""
        return RecurrentCache()

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

    @ops.in_float32
    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scores, which beyond the window are logarithms of the polynomial."""
        return self.weights(self.placed(q, k.shape[2] - q.shape[2]), k, mask)

    def placed(self, q: Tensor, start: int) -> Tensor:
        """Queries, each followed by its position."""
        place = torch.arange(start, start + q.shape[2], device=q.device).to(q.dtype)
        return torch.cat([q, place[:, None].expand(*q.shape[:2], -1, -1)], dim=-1)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The pattern of some of the queries, by their positions."""
        place = torch.arange(k.shape[2], device=k.device)
        near = (q[..., -1:] - place).abs() < self.window
        (q, asked), (k, keys) = self.separate(q[..., :-1]), self.separate(k)
        s = asked @ keys.mT * self.features**-0.5
        return ops.masked_softmax(torch.where(near, ops.dot_scores(q, k), (1 + s + s.square() / 2).log()), mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The averages for some of the queries, by their positions."""
        return self.averages(self.weights(q, k, mask), v)

    @ops.in_float32  # positions, too
    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By sums beyond the window, and blocks as long as the window with those before them."""
        if not self.causal:
            return ops.attend_in_slices(self.attend, self.placed(q, 0), k, v, padding, False)
        return self.read(q, k, v, padding, RecurrentCache())

    def decode_step(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: RecurrentCache) -> Tensor:
        """The averages for new tokens; earlier ones are in the sums, or kept while they are in the window."""
        z = self.read(q, k, v, None if padding is None else padding[:, -q.shape[2] :], cache)
        cache.length += q.shape[2]
        return z

    @_disable_dynamo  # the compiler would unroll the loop over chunks
    @ops.in_float32
    def read(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: RecurrentCache) -> Tensor:
        """The averages for tokens that follow those of the cache, which is brought up to date."""
        tokens, window = q.shape[2], self.window
        new = ops.blank(torch.cat([k, v, torch.ones_like(v[..., :1])], dim=-1), padding)
        recent = new.new_zeros(*new.shape[:2], window, new.shape[-1]) if cache.recent is None else cache.recent
        kept = torch.cat([recent, new], dim=2)  # beginning with the token that is the first to leave the window
        k, values = kept.split([k.shape[-1], v.shape[-1] + 1], dim=-1)  # a sum of ones is that of the weights
        (q, asked), (k, keys) = self.separate(q), self.separate(k)
        far, state = scan(expand(asked), expand(keys[:, :, :tokens]), values[:, :, :tokens], state=cache.state)
        cache.recent, cache.state = kept[:, :, tokens:].detach().clone(), state.detach()  # a view would keep the text

        block = min(window, tokens)
        rows = -tokens % block
        q, far = (ops.fill(x, rows=rows).unflatten(2, (-1, block)) for x in (q, far))
        k, values = (ops.fill(x, rows=rows).unfold(2, window + block, block).mT for x in (k, values))
        near = torch.ones(block, window + block, dtype=torch.bool, device=q.device).triu(1).tril(window)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~(near & (values[..., None, :, -1] > 0)), float("-inf"))
        scale = torch.zeros_like(far[..., -1:]).masked_fill(
            far[..., -1:] <= 0, torch.finfo(far.dtype).min
        )  # its logarithm
        most = torch.maximum(scores.detach().amax(-1, keepdim=True), scale)
        sums = (scores - most).exp() @ values + (scale - most).exp() * far
        z = sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(scores.dtype).tiny)
        return z.flatten(2, 3)[:, :, :tokens]
