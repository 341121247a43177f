"""DeltaNet: a state in which a new value replaces the old one of the same key, and nothing else is forgotten."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from attnlab.mechanisms.recurrent import Gates, Recurrent
from attnlab.registry import mechanism


@mechanism("delta", paper="arXiv:2406.06484", cost="n·d²", causal=True, ordered=True)
class Delta(Recurrent):
    """Each token removes a share of what is stored under its key, and stores its value there; nothing decays.

    Costs: time and memory grow with the length; generation keeps one matrix per head, however long the text.
    Cannot: clear its state at once, since only the content of the current key is removed; keep more keys apart than a head is
    wide.

    Parameters
    ----------
    conv
        tokens of the short convolution before queries, keys and values; 0: none
    negative
        strengths up to 2, with which the state can also change sign (arXiv:2411.12537)
    """

    def __init__(
        self, n_embd: int, n_head: int, block_size: int, *, conv: int = 4, negative: bool = False, bias: bool = False
    ) -> None:
        super().__init__(n_embd, n_head, conv=conv, unit=True, gate="none", bias=bias)
        self.strength = nn.Linear(n_embd, n_head, bias=False)
        self.most = 2.0 if negative else 1.0

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """One strength of removing and storing per head."""
        strength = self.most * self.strength(x).sigmoid()[..., None]
        return Gates(write=strength, erase=strength)
