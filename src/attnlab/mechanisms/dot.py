"""Scaled dot-product attention, the standard against which the others are measured."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.mechanisms.heads import Heads, KeyValueCache
from attnlab.registry import mechanism
from attnlab.taps import Tap


@mechanism("dot", paper="arXiv:1706.03762", cost="n²·d", causal=True)
class Dot(nn.Module):
    """Every token takes the average of the values it may see, weighted by the softmax of query·key / √width."""

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        causal: bool = True,
        rotary: bool = False,
        qk_norm: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.dropout = dropout
        self.heads = Heads(n_embd, n_head, block_size, rotary=rotary, qk_norm=qk_norm, bias=bias)
        self.out = nn.Linear(n_embd, n_embd, bias=bias)
        self.hook_pattern, self.hook_z = Tap(), Tap()

    def new_cache(self) -> KeyValueCache:
        """Room for the keys and values of a text under way."""
        return KeyValueCache()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        padding: Bool[Tensor, "B S"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The mixed tokens."""
        q, k, v = self.heads(x, cache.length if cache else 0)
        if cache is not None:
            k, v = cache.append(k, v)
        look = self.reference if self.hook_pattern.watched else self.fast
        return self.out(ops.join_heads(self.hook_z(look(q, k, v, padding))))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """Attention written out, with its pattern."""
        pattern = ops.attention_pattern(q, k, ops.visible(q.shape[2], k.shape[2], padding, self.causal))
        return F.dropout(self.hook_pattern(pattern), self.dropout, self.training) @ v

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The same by torch's fused kernel, which never forms the pattern."""
        whole = padding is None and q.shape[2] == k.shape[2]
        mask = None if whole else ops.visible(q.shape[2], k.shape[2], padding, self.causal)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and whole,
        )
