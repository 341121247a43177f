"""Scaled dot-product attention, the baseline for all others, with the changes that released models make to it."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism("dot", paper="arXiv:1706.03762", cost="n²·d", causal=True, weights="exact")
class Dot(Attention):
    """Every token takes the average of the values it may see, weighted by the softmax of query·key / √width.

    Its options are those of released models: sinks of gpt-oss, gates of Qwen3-Next, bounded scores of Gemma 2.

    Costs: time grows with the square of the length; the fused kernel keeps memory linear. With softcap there is no fused
    kernel: scores are computed in slices, and once more in the backward pass.
    Cannot: go far beyond a few thousand tokens on a CPU; generation keeps all keys and values in memory.

    Parameters
    ----------
    sinks
        a learned score per head that takes its share of the softmax and adds nothing (arXiv:2309.17453)
    gated
        multiply every channel of the average by a sigmoid of the token (arXiv:2505.06708)
    softcap
        bound scores by cap·tanh(score / cap); 0: no bound
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        kv_heads: int | None = None,
        width: int | None = None,
        *,
        sinks: bool = False,
        gated: bool = False,
        softcap: float = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        if softcap < 0:
            raise ConfigError(f"dot.softcap must be positive, or 0 for no bound, not {softcap}")
        super().__init__(n_embd, n_head, block_size, kv_heads, width=width, **shared)
        self.softcap = softcap
        self.sinks = nn.Parameter(torch.zeros(n_head)) if sinks else None
        self.output_gate = nn.Linear(n_embd, self.out.in_features, bias=shared.get("bias", False)) if gated else None
        self.reads_input, self.linear_output = gated, not gated

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products, bounded and with sinks if asked for."""
        scores = ops.dot_scores(q, k)
        if self.softcap:
            scores = self.softcap * (scores / self.softcap).tanh()
        if self.sinks is None:
            return ops.masked_softmax(scores, mask)
        sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
        return ops.masked_softmax(scores, None if mask is None else F.pad(mask, (0, 1), value=True))[..., :-1]

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel, which never forms the pattern, or in slices if scores are bounded.

        A sink is one more key, whose value is zero and which only a further channel of the queries meets. It comes first, with
        a query that nobody reads, so that the text remains causal.
        """
        if self.softcap:
            return ops.attend_in_slices(self.weigh, q, k, v, padding, self.causal)
        dropout = self.dropout if self.training else 0.0
        if self.sinks is None:
            return ops.fused_attention(q, k, v, padding, self.causal, dropout)
        scale = q.shape[-1] ** -0.5
        sinks = (self.sinks / scale).to(q.dtype)[:, None, None].expand(*q.shape[:3], 1)
        q, k, v = (F.pad(part, (0, 0, 1, 0)) for part in (torch.cat([q, sinks], dim=-1), F.pad(k, (0, 1)), v))
        k[:, :, 0, -1] = 1
        padding = None if padding is None else F.pad(padding, (1, 0))
        return ops.fused_attention(q, k, v, padding, self.causal, dropout, scale)[:, :, 1:]

    def finish(self, z: Tensor, x: Tensor) -> Tensor:
        """Multiply the averages by their gates if there are any, concatenate and project."""
        if self.output_gate is not None:
            z = z * ops.split_heads(self.output_gate(x), z.shape[1]).sigmoid()
        return super().finish(z, x)
