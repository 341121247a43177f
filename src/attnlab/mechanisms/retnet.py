"""Retention, and its relative Lightning attention: a state that decays at a fixed rate."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import ops
from attnlab.mechanisms.recurrent import Gates, Recurrent
from attnlab.registry import mechanism


@mechanism("retnet", paper="arXiv:2307.08621", cost="n·d²", causal=True, ordered=True)
class Retention(Recurrent):
    """Each token lets the state of a head decay by a fixed factor, different in every head, and adds its value under its key.

    Costs: time and memory grow with the length; generation keeps one matrix per head, however long the text.
    Cannot: choose what to forget: the decay does not depend on the text.

    Parameters
    ----------
    form
        heads count from 1; retnet: factors 1 - 2^(-4 - head), rotary positions, each head normalised; lightning, as in
        MiniMax-01 (arXiv:2501.08313): factors exp(-2^(-8 head / heads)), SiLU, all heads normalised together, sigmoid gate
    conv
        tokens of the short convolution before queries, keys and values; 0: none
    head_width
        channels of a head; 0: n_embd / n_head
    """

    decay: Tensor

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        form: Literal["retnet", "lightning"] = "retnet",
        conv: int = 0,
        head_width: int = 0,
        bias: bool = False,
    ) -> None:
        lightning, heads = form == "lightning", torch.arange(n_head)
        super().__init__(
            n_embd,
            n_head,
            conv=conv,
            silu=lightning or conv > 0,
            scaled=not lightning,
            gate="sigmoid" if lightning else "silu",
            norm="all" if lightning else "head",
            key_width=head_width,
            value_width=head_width,
            bias=bias,
        )
        self.rotary = not lightning
        decay = -(2.0 ** (-8.0 * (heads + 1) / n_head)) if lightning else torch.log1p(-(2.0 ** (-5.0 - heads)))
        self.register_buffer("decay", decay[:, None])  # saved: in MiniMax it also depends on the layer

    def encode(self, part: Float[Tensor, "B T H K"], start: int) -> Float[Tensor, "B T H K"]:
        """Queries or keys, rotated by their positions."""
        if not self.rotary:
            return part
        table = ops.rotary_table(part.shape[1], part.shape[-1] // 2 * 2, start=start).to(part.device)
        return ops.rotate(part.transpose(1, 2), table).transpose(1, 2)

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """The same decay for every token."""
        return Gates(self.decay.expand(*x.shape[:2], -1, -1))
