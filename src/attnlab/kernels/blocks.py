"""Block-sparse attention: the blocks of keys that a block of queries sees are gathered, then torch's fused kernel is used.

Time grows with the number of visible blocks, not with the square of the length. A few heads are processed at a time, and
blocks are gathered again in the backward pass, so that gathered data stays in the processor's cache and is never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from attnlab import ops

_GATHERED = 1 << 20  # numbers gathered at a time: four megabytes


@dataclass(frozen=True)
class Layout:
    """The shape of a sparse pattern: the blocks of keys that each block of queries sees, and which of their tokens."""

    block: int
    tokens: int
    table: Int[Tensor, "N G"]
    bias: Float[Tensor, "1 N L K"]  # 0 for visible gathered tokens, else minus infinity
    dense: Bool[Tensor, "1 1 T T"] | None  # for short texts, where gathering costs more than it saves

    def fits(self, q: Float[Tensor, "B H T C"]) -> bool:
        """Whether it was made for texts of this length on this device."""
        return self.tokens == q.shape[2] and self.table.device == q.device

    @classmethod
    def of(cls, allowed: Bool[Tensor, "N N"], tokens: int, block: int, causal: bool, window: int = 0) -> Layout:
        """Make the layout from the visible pairs of blocks; `window` also limits the distance of two tokens."""

        def near(asked: Tensor, seen: Tensor) -> Tensor:
            mask = (seen <= asked) if causal else (seen < tokens)
            return mask & ((asked - seen).abs() < window) if window else mask

        used, table = allowed.int().topk(int(allowed.sum(-1).max()), dim=-1)
        place = torch.arange(max(len(allowed) * block, tokens), device=allowed.device)
        asked = place[: len(allowed) * block].view(-1, block, 1)
        seen = (table[:, :, None] * block + place[:block]).flatten(1)[:, None]
        mask = (used > 0).repeat_interleave(block, dim=-1)[:, None] & near(asked, seen) & (seen < tokens)
        dense = None
        if 2 * table.shape[1] * block >= tokens:
            place = place[:tokens]
            meet = allowed[place[:, None] // block, place // block]
            dense = (meet & near(place[:, None], place))[None, None]
        bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, float("-inf"))[None]
        return cls(block, tokens, table, bias.expand(-1, -1, block, -1), dense)


def cut(x: Float[Tensor, "B H T C"], block: int) -> Float[Tensor, "R N L C"]:
    """Split every head's text into blocks, the last one padded with zeros."""
    return ops.fill(x, rows=-x.shape[2] % block).flatten(0, 1).unflatten(1, (-1, block)).contiguous()


def _join(x: Float[Tensor, "R N L C"], like: Float[Tensor, "B H T C"]) -> Float[Tensor, "B H T C"]:
    """Join blocks to a text as long as `like`."""
    return x.flatten(1, 2).unflatten(0, like.shape[:2])[:, :, : like.shape[2]]


def block_attention(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B H T C"],
    v: Float[Tensor, "B H T C"],
    layout: Layout,
    padding: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T C"]:
    """Return scaled dot-product attention over the blocks that the layout allows."""
    assert layout.fits(q)
    if layout.dense is not None:
        mask = layout.dense if padding is None else layout.dense & ~padding[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    bias = layout.bias.to(q.dtype)
    if padding is not None:
        hidden = F.pad(padding, (0, -padding.shape[1] % layout.block)).unflatten(1, (-1, layout.block))
        bias = bias.masked_fill(hidden[:, layout.table].flatten(2)[:, :, None], float("-inf"))
    queries, keys, values = (cut(x, layout.block) for x in (q, k, v))
    if dropout or not q.is_cpu:  # the kernel that gathers twice is the CPU's, and has no dropout
        bias = bias.repeat_interleave(q.shape[1], dim=0) if len(bias) > 1 else bias
        keys, values = (_gather(x, layout.table) for x in (keys, values))
        return _join(F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, dropout_p=dropout), q)
    z: Tensor = _GatheredAttention.apply(queries, keys, values, bias, layout.table)  # type: ignore[no-untyped-call]
    return _join(z, q)


def _gather(x: Float[Tensor, "R N L C"], table: Int[Tensor, "M G"]) -> Float[Tensor, "R M K C"]:
    """Gather the blocks of every row of the table."""
    return x.index_select(1, table.flatten()).unflatten(1, table.shape).flatten(2, 3)


class _GatheredAttention(torch.autograd.Function):
    """Attention of every block over its gathered blocks by torch's fused kernel and its backward, a few heads at a time."""

    @staticmethod
    def pieces(q: Tensor, bias: Tensor, table: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows to process together, and their bias: as many as keep the gathered keys small."""
        rows, _, length, width = q.shape
        heads = rows // len(bias)
        step = max(1, min(heads, _GATHERED // (table.numel() * length * width)))
        for row in range(0, rows, heads):
            for first in range(row, row + heads, step):
                yield slice(first, min(first + step, row + heads)), bias[row // heads, None]

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, table: Tensor) -> Tensor:
        """Return the averages; save what the backward pass needs."""
        assert bias.dtype == q.dtype  # the kernel does not check, and would read other numbers
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        z, sums = torch.empty_like(q), []
        for rows, seen in _GatheredAttention.pieces(q, bias, table):
            z[rows], log_sum = kernel(q[rows], _gather(k[rows], table), _gather(v[rows], table), attn_mask=seen)
            sums.append(log_sum)
        ctx.save_for_backward(q, k, v, bias, table, z, *sums)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; those of a block are summed over all rows that gathered it."""
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        q, k, v, bias, table, z, *sums = ctx.saved_tensors
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for (rows, seen), log_sum in zip(_GatheredAttention.pieces(q, bias, table), sums, strict=True):
            keys, values = _gather(k[rows], table), _gather(v[rows], table)
            d_q[rows], of_keys, of_values = kernel(
                gradients[0][rows], q[rows], keys, values, z[rows], log_sum, 0.0, False, attn_mask=seen
            )
            for whole, part in ((d_k, of_keys), (d_v, of_values)):
                blocks = part.unflatten(2, (table.shape[1], -1)).flatten(1, 2)
                whole[rows].index_add_(1, table.flatten(), blocks)
        return d_q, d_k, d_v, None, None


def summary_attention(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B H T C"],
    v: Float[Tensor, "B H T C"],
    summaries: tuple[Float[Tensor, "R N S C"], Float[Tensor, "R N S C"]],
    block: int,
    padding: Bool[Tensor, "B T"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T C"]:
    """Return causal attention of every block over itself, and over keys and values that summarise everything before it."""
    queries, keys, values = (cut(x, block) for x in (q, k, v))
    count = summaries[0].shape[2]
    mask = torch.ones(1, queries.shape[1], block, count + block, dtype=torch.bool, device=q.device)
    mask[:, 0, :, :count] = False  # nothing comes before the first block
    mask[:, :, :, count:] = mask[0, 0, :, count:].tril()
    if padding is not None:
        hidden = F.pad(padding, (0, -padding.shape[1] % block)).unflatten(1, (-1, block))
        hidden = F.pad(hidden, (count, 0)).repeat_interleave(q.shape[1], dim=0)
        mask = mask & ~hidden[:, :, None]
    z = F.scaled_dot_product_attention(
        queries,
        torch.cat([summaries[0], keys], dim=2),
        torch.cat([summaries[1], values], dim=2),
        attn_mask=mask,
        dropout_p=dropout,
    )
    return _join(z, q)
