"""Mamba-2: a state whose decay and writing share one step size that the input chooses."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.errors import ConfigError
from attnlab.mechanisms.recurrent import Decay, Gates, Recurrent
from attnlab.registry import mechanism


@mechanism("mamba2", paper="arXiv:2405.21060", cost="n·d·s", causal=True, ordered=True)
class Mamba2(Recurrent):
    """Each token chooses a step size per head: the larger it is, the more the state decays and the more of the token is added.

    The paper's x, B and C are the values, keys and queries here; heads share B and C. Each output also gets a learned share
    of its own value, which is on the diagonal of the pattern.

    Costs: time and memory grow with the length; generation keeps one matrix per head, however long the text. As released,
    values are twice as wide as the input, so that a layer has about six matrices and needs no MLP.
    Cannot: replace a stored value: values of similar keys add up until they decay.

    Parameters
    ----------
    state
        channels of a query or key, the paper's state size; 0: n_embd / n_head
    groups
        heads of queries and keys, each for as many heads of values
    expand
        width of all values together, in multiples of n_embd
    conv
        tokens of the short convolution before queries, keys and values; 0: none
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        state: int = 0,
        groups: int = 1,
        expand: float = 2.0,
        conv: int = 4,
        bias: bool = False,
    ) -> None:
        if groups < 1 or expand * n_embd < n_head:
            raise ConfigError(
                f"mamba2 needs at least one group and values of at least one channel, not {groups} and {expand}"
            )
        super().__init__(
            n_embd,
            n_head,
            conv=conv,
            conv_bias=True,
            scaled=False,
            norm="gated",
            key_heads=groups,
            key_width=state,
            value_width=round(expand * n_embd / n_head),
            bias=bias,
        )
        self.decay = Decay(n_embd, n_head)
        self.skip = nn.Parameter(torch.ones(n_head))

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """One step size per head, which sets decay and strength of storing."""
        steps = self.decay.steps(x)
        return Gates(self.decay.over(steps), write=steps, skip=self.skip)
