"""A common masking mistake, kept for demonstration, and its control."""

from __future__ import annotations

from torch import Tensor

from attnlab.mechanisms.heads import Attention
from attnlab.ops import attention_pattern, masked_softmax
from attnlab.registry import mechanism


@mechanism(
    "zero_mask",
    cost="n²·d",
    causal=True,
    defect="the denominator of the softmax holds the scores of hidden tokens: the future leaks",
)
class ZeroMask(Attention):
    """Dot-product attention whose mask multiplies by zero after the softmax, instead of hiding scores before it.

    The weights of a row no longer sum to one, and the missing share tells a token what comes after it. The training loss
    looks better than it should, and generation, where there is no future, is garbage.

    Costs: as naive dot-product attention, the whole pattern in memory.
    Cannot: be trusted: it is here to be caught by `attnlab audit zero_mask`.
    """

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax over all tokens first, then zero for hidden tokens: the mistake."""
        pattern = attention_pattern(q, k, None)
        return pattern if mask is None else pattern.masked_fill(~mask, 0.0)


@mechanism("zero_mask_control", cost="n²·d", causal=True, weights="exact")
class ZeroMaskControl(Attention):
    """The control of `zero_mask`: zeroed after the softmax, then normalised to a sum of one again, equal to `dot`.

    The two differ only in the denominator, so the gain of `zero_mask` over this one is its leak.

    Costs: as naive dot-product attention, the whole pattern in memory.
    Cannot: do anything that `dot` cannot do faster; it is here for the comparison.
    """

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax, mask, and normalisation: in logarithms, so that nothing is rounded to zero on the way."""
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return masked_softmax(scores.log_softmax(dim=-1), mask)
