"""Queries, keys and values of a token, prepared the way the backbone asks; and what is kept of them in generation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab import ops
from attnlab.taps import Tap


class Heads(nn.Module):
    """Three projections, cut into heads, with rotary positions and normalised queries and keys where asked."""

    table: Tensor

    def __init__(self, n_embd: int, n_head: int, block_size: int, *, rotary: bool, qk_norm: bool, bias: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.rotary = rotary
        self.qk_norm = qk_norm
        self.query = nn.Linear(n_embd, n_embd, bias=bias)
        self.key = nn.Linear(n_embd, n_embd, bias=bias)
        self.value = nn.Linear(n_embd, n_embd, bias=bias)
        table = ops.rotary_table(block_size, n_embd // n_head) if rotary else torch.empty(0)
        self.register_buffer("table", table, persistent=False)
        self.hook_q, self.hook_k, self.hook_v = Tap(), Tap(), Tap()

    def forward(
        self, x: Float[Tensor, "B T D"], start: int = 0
    ) -> tuple[Float[Tensor, "B H T C"], Float[Tensor, "B H T C"], Float[Tensor, "B H T C"]]:
        """Queries, keys and values of tokens that stand at positions `start` and after."""
        q, k, v = (ops.split_heads(layer(x), self.n_head) for layer in (self.query, self.key, self.value))
        if self.qk_norm:
            q, k = ops.rms_norm(q), ops.rms_norm(k)
        if self.rotary:
            table = self.table[start : start + x.shape[1]]
            q, k = ops.rotate(q, table), ops.rotate(k, table)
        return self.hook_q(q), self.hook_k(k), self.hook_v(v)


class KeyValueCache:
    """All keys and values seen so far."""

    def __init__(self) -> None:
        self.length = 0
        self._stored: tuple[Tensor, Tensor] | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Everything seen, the new ones last."""
        if self._stored is not None:
            k, v = torch.cat([self._stored[0], k], dim=2), torch.cat([self._stored[1], v], dim=2)
        self._stored = k, v
        self.length = k.shape[2]
        return k, v
