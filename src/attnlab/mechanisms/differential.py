"""Differential attention: the difference of two softmaxes, in which common noise cancels."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism

SHORT = 256  # tokens


def halves(x: Tensor, layout: ops.RotaryLayout = "half") -> tuple[Tensor, Tensor]:
    """Split into two vectors of half the width; coordinates that rotary positions rotate together stay together."""
    pairs = x.unflatten(-1, (2 if layout == "half" else 1, 2, -1))
    return pairs[..., 0, :].flatten(-2), pairs[..., 1, :].flatten(-2)


@mechanism("differential", paper="arXiv:2410.05258", cost="n²·d", causal=True)
class Differential(Attention):
    """Every head has two patterns, each from half its width, and subtracts λ times the second from the first.

    Weights may be negative. λ is learned, exp(a·b) - exp(c·d) + start, and the average of a head is normalised to unit
    size and scaled by 1 - start.

    Costs: as `dot` with two patterns of half the width: at the same width about twice its time.
    Cannot: be read as a distribution over tokens. The paper starts λ higher in deeper layers; here the start is an option,
    the same in all layers that use it.

    Parameters
    ----------
    start
        initial value of λ, in [0, 1)
    """

    def __init__(
        self, n_embd: int, n_head: int, block_size: int, *, start: float = 0.5, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        width = n_embd // n_head
        if width % 4:
            raise ConfigError(f"differential needs a head width that is a multiple of 4, not {width}: change n_head")
        if self.heads.rotary and self.heads.rotation.width(width) < width:
            raise ConfigError("differential cuts heads into halves: set --model.rotary_fraction 1")
        if not 0 <= start < 1:
            raise ConfigError(f"differential.start must lie in [0, 1), not {start}")
        self.start = start
        self.exponents = nn.Parameter(0.1 * torch.randn(4, width // 2))

    def share(self) -> Tensor:
        """λ, the share of the second pattern that is subtracted."""
        a, b, c, d = self.exponents
        return (a @ b).exp() - (c @ d).exp() + self.start

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The first pattern minus a share of the second."""
        (q1, q2), (k1, k2) = (halves(x, self.heads.rotation.layout) for x in (q, k))
        return ops.attention_pattern(q1, k1, mask) - self.share() * ops.attention_pattern(q2, k2, mask)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The averages by the pattern, normalised."""
        return self.sized(super().reference(q, k, v, padding))

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel, once for each pattern; short texts without a mask are faster written out."""
        if not self.causal and q.shape[2] <= SHORT:
            return self.reference(q, k, v, padding)
        dropout = self.dropout if self.training else 0.0
        layout = self.heads.rotation.layout
        first, second = (
            ops.fused_attention(*pair, v, padding, self.causal, dropout)
            for pair in zip(halves(q, layout), halves(k, layout), strict=True)
        )
        return self.sized(first - self.share() * second)

    def sized(self, z: Tensor) -> Tensor:
        """A head's average normalised to unit size, times 1 - start."""
        return (1 - self.start) * nn.functional.rms_norm(z, (z.shape[-1],), eps=1e-5)
