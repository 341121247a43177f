"""The wrong masking that beginners write, kept as a specimen, and its control."""

from __future__ import annotations

from torch import Tensor

from attnlab.mechanisms.heads import Attention
from attnlab.ops import attention_pattern
from attnlab.registry import mechanism


def zeroed(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax over all tokens, hidden ones included, and only then zero where nobody may look."""
    pattern = attention_pattern(q, k, None)
    return pattern if mask is None else pattern.masked_fill(~mask, 0.0)


@mechanism(
    "zero_mask",
    cost="n²·d",
    causal=True,
    defect="the denominator of the softmax holds the scores of hidden tokens: the future leaks",
)
class ZeroMask(Attention):
    """Dot-product attention whose mask multiplies by zero after the softmax, instead of hiding before it.

    The weights of a row no longer sum to one, and by how much they fall short tells a token what comes after it. Training
    loss looks better than it should, and generation, where there is no future, is garbage.

    Costs: as naive dot-product attention, the whole pattern in memory.
    Cannot: be trusted; it is here to be caught, by `attnlab audit zero_mask`.
    """

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax first, mask second: the mistake."""
        return zeroed(q, k, mask)


@mechanism("zero_mask_control", cost="n²·d", causal=True, weights="exact")
class ZeroMaskControl(Attention):
    """The control of `zero_mask`: zeroed after the softmax and then brought back to a sum of one, equal to `dot`.

    What separates the two is the denominator alone, so that the gain of `zero_mask` over this one is its leak.

    Costs: as naive dot-product attention, the whole pattern in memory.
    Cannot: weigh tokens that the softmax over all has rounded to zero; there `dot` is right and this is zero.
    """

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax, mask, and the rest brought back to one."""
        pattern = zeroed(q, k, mask)
        return pattern / pattern.sum(dim=-1, keepdim=True).clamp_min(1e-30)
