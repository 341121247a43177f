"""Gated linear attention: a state whose channels decay as the input says."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnlab import ops
from attnlab.mechanisms.recurrent import Gates, Recurrent, projection
from attnlab.registry import mechanism

RANK = 16  # of the projection to the decays, as released
SLOWNESS = 16  # the decay is this root of a sigmoid, so that it begins near one, as released


@mechanism("gla", paper="arXiv:2312.06635", cost="n·d²", causal=True, ordered=True)
class GatedLinear(Recurrent):
    """Each token lets every channel of the state decay as its input says, and adds its value under its key.

    Keys are half as wide as values, as released.

    Costs: time and memory grow with the length; generation keeps half a matrix per head, however long the text.
    Cannot: replace a stored value: values of similar keys add up until they decay.

    Parameters
    ----------
    conv
        tokens of the short convolution, with SiLU, before queries, keys and values; 0: none
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, *, conv: int = 0, bias: bool = False) -> None:
        width = max(1, n_embd // n_head // 2)
        super().__init__(n_embd, n_head, conv=conv, silu=conv > 0, key_width=width, bias=bias)
        self.decay = projection(n_embd, n_head * width, RANK, bias=True)

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """One decay per channel."""
        return Gates(F.logsigmoid(ops.single(self.decay(x))).unflatten(-1, (self.n_head, -1)) / SLOWNESS)
