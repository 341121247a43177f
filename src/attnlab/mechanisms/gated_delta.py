"""Gated DeltaNet: a state that decays, and in which a new value replaces the old one of the same key."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from attnlab.mechanisms.recurrent import Decay, Gates, Recurrent
from attnlab.registry import mechanism


@mechanism("gated_delta", paper="arXiv:2412.06464", cost="n·d²", causal=True, ordered=True)
class GatedDelta(Recurrent):
    """Each token lets the state of a head decay, removes a share of what is stored under its key, and stores its value there.

    Costs: time and memory grow with the length; generation keeps one matrix per head, however long the text.
    Cannot: keep more keys apart than a head is wide; the oldest are overwritten or forgotten.

    Parameters
    ----------
    conv
        tokens of the short convolution before queries, keys and values; 0: none
    negative
        strengths up to 2, with which the state can also change sign (arXiv:2411.12537)
    key_heads
        heads of queries and keys, each for as many heads of values; 0: one each
    key_width
        channels of a query or key; 0: n_embd / n_head
    value_width
        channels of a value; 0: n_embd / n_head
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        conv: int = 4,
        negative: bool = False,
        key_heads: int = 0,
        key_width: int = 0,
        value_width: int = 0,
        bias: bool = False,
    ) -> None:
        super().__init__(
            n_embd,
            n_head,
            conv=conv,
            unit=True,
            key_heads=key_heads,
            key_width=key_width,
            value_width=value_width,
            bias=bias,
        )
        self.decay = Decay(n_embd, n_head)
        self.strength = nn.Linear(n_embd, n_head, bias=False)
        self.most = 2.0 if negative else 1.0

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """One decay per head, and one strength of removing and storing."""
        strength = self.most * self.strength(x).sigmoid()[..., None]
        return Gates(self.decay(x), write=strength, erase=strength)
