"""Kimi Delta Attention: Gated DeltaNet in which every channel of the keys decays by itself."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from attnlab.mechanisms.recurrent import Decay, Gates, Recurrent
from attnlab.registry import mechanism


@mechanism("kda", paper="arXiv:2510.26692", cost="n·d²", causal=True, ordered=True)
class KimiDelta(Recurrent):
    """As `gated_delta`, but every channel of a key decays at its own rate, so that a head forgets some things and keeps others.

    Costs: time and memory grow with the length; generation keeps one matrix per head, however long the text.
    Cannot: keep more keys apart than a head is wide; the oldest are overwritten or forgotten.

    Parameters
    ----------
    conv
        tokens of the short convolution before queries, keys and values; 0: none
    head_width
        channels of a head, also the rank of the gates of decay and output; 0: n_embd / n_head
    floor
        lowest logarithm of a decay, -5 in GLM-5.3; 0: none, as in Kimi Linear
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        conv: int = 4,
        head_width: int = 0,
        floor: float = 0.0,
        bias: bool = False,
    ) -> None:
        width = head_width or n_embd // n_head
        super().__init__(
            n_embd,
            n_head,
            conv=conv,
            unit=True,
            gate="sigmoid",
            gate_rank=width,
            key_width=width,
            value_width=width,
            bias=bias,
        )
        self.decay = Decay(n_embd, n_head, channels=width, rank=width, floor=floor)
        self.strength = nn.Linear(n_embd, n_head, bias=False)

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """One decay per channel, and one strength of removing and storing."""
        strength = self.strength(x).sigmoid()[..., None]
        return Gates(self.decay(x), write=strength, erase=strength)
