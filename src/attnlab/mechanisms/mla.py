"""Multi-head latent attention: keys and values of all heads are read from one small vector per token."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Attention, Rotation, Shared
from attnlab.registry import mechanism

EPSILON = 1e-6  # of the norms of latents, as in released models


def _normalise(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Normalise in float32, also with weights of 16 bits."""
    return F.rms_norm(ops.single(x), (x.shape[-1],), ops.single(norm.weight), EPSILON)


class LatentHeads(nn.Module):
    """Queries by head; one latent vector and one rotary key per token, which all heads share."""

    def __init__(
        self, n_embd: int, n_head: int, rotate: Rotation, widths: tuple[int, int], ranks: tuple[int, int], bias: bool
    ) -> None:
        super().__init__()
        (plain, rope), (rank, query_rank) = widths, ranks
        self.n_head, self.kv_heads, self.widths, self.rotate = n_head, 1, widths, rotate
        self.query_down = nn.Linear(n_embd, query_rank, bias=bias) if query_rank else None
        self.query_norm = nn.RMSNorm(query_rank, EPSILON) if query_rank else None
        self.query = nn.Linear(query_rank or n_embd, n_head * (plain + rope), bias=False)
        self.down = nn.Linear(n_embd, rank + rope, bias=bias)
        self.norm = nn.RMSNorm(rank, EPSILON)

    def query_input(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T R"]:
        """What queries are projected from: the input, or a latent of its own."""
        if self.query_down is None or self.query_norm is None:
            return x
        return _normalise(self.query_down(x), self.query_norm).to(x.dtype)

    def forward(
        self, x: Float[Tensor, "B T D"], start: int = 0, source: Float[Tensor, "B S D"] | None = None
    ) -> tuple[Float[Tensor, "B H T C"], Float[Tensor, "B 1 S K"], Float[Tensor, "B 1 S R"]]:
        """Queries; latents with rotary keys; latents, which are the values."""
        plain, rotated = ops.split_heads(self.query(self.query_input(x)), self.n_head).split(self.widths, dim=-1)
        down = self.down(x if source is None else source)[:, None]
        latent, key = down.split([down.shape[-1] - self.widths[1], self.widths[1]], dim=-1)
        latent = _normalise(latent, self.norm)
        q = torch.cat([plain, self.rotate(rotated, start)], dim=-1)
        k = torch.cat([latent, self.rotate(key, start)], dim=-1)
        return q.to(down.dtype), k.to(down.dtype), latent.to(down.dtype)


@mechanism("mla", paper="arXiv:2405.04434", cost="n²·d", causal=True)
class Latent(Attention):
    """Dot-product attention whose keys and values are linear maps of one normalised latent vector per token.

    Positions are in a second part of queries and keys, whose keys all heads share. With positions none it is as in Kimi
    Linear. The norm of the latents takes the place of norms of queries and keys.

    Costs: time as `dot` with somewhat wider keys; the cache holds rank + rope numbers per token for all heads together.
    Cannot: fetch more from a token than its latent holds; a step of generation does more arithmetic than that of `dot`.

    Parameters
    ----------
    rank
        width of the latent; 0: half of the model's width
    rope
        width of the rotary part, even; 0: half of a head
    query_rank
        width of a latent for queries; 0: queries directly from the input
    """

    reads_input, linear_output = True, False
    heads: LatentHeads  # type: ignore[assignment]

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        width: int | None = None,
        *,
        rank: int = 0,
        rope: int = 0,
        query_rank: int = 0,
        **shared: Unpack[Shared],
    ) -> None:
        width = width or n_embd // n_head
        rope, rank = rope or max(2, width // 4 * 2), rank or max(1, n_embd // 2)
        if min(rank, rope, query_rank) < 0 or rope % 2:
            raise ConfigError(f"mla needs positive ranks and an even rope, not {rank}, {query_rank} and {rope}")
        super().__init__(n_embd, n_head, block_size, width=width, **shared)
        rotate = Rotation(block_size, rope, shared.get("rotary", False), shared.get("rotation", ops.ROTARY))
        bias = shared.get("bias", False)
        self.heads = LatentHeads(n_embd, n_head, rotate, (width, rope), (rank, query_rank), bias)
        self.keys = nn.Linear(rank, n_head * width, bias=False)
        self.values = nn.Linear(rank, n_head * width, bias=False)

    def decode_step(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: Any) -> Tensor:
        """The averages for new tokens; the cache keeps latents once, as a part of the keys."""
        (k,) = cache.append(k)
        return self.dispatch(q, k, k[..., : v.shape[-1]], None if padding is None else padding[:, -k.shape[2] :])

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products; the map from latents to keys is applied to the queries instead."""
        plain, rotated = q.split(self.heads.widths, dim=-1)
        absorbed = plain @ self.keys.weight.unflatten(0, (q.shape[1], -1)).to(q.dtype)
        scores = torch.cat([absorbed, rotated], dim=-1) @ k.transpose(-2, -1)
        return ops.masked_softmax(scores * q.shape[-1] ** -0.5, mask)

    def averages(self, pattern: Tensor, v: Tensor) -> Tensor:
        """The averages of the latents, mapped to values."""
        return super().averages(pattern, v) @ self.values.weight.unflatten(0, (pattern.shape[1], -1)).mT.to(v.dtype)

    def expand(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every head."""
        heads, rope = self.heads.n_head, self.heads.widths[1]
        latent, key = k.split([k.shape[-1] - rope, rope], dim=-1)
        keys = ops.split_heads(self.keys(latent[:, 0]), heads)
        keys = torch.cat([keys, key.expand(-1, heads, -1, -1)], dim=-1)
        return keys, ops.split_heads(self.values(v[:, 0]), heads)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel, with keys and values of every head."""
        return ops.fused_attention(q, *self.expand(k, v), padding, self.causal, self.dropout if self.training else 0.0)
