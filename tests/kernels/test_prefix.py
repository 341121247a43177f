from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnlab import ops
from attnlab.kernels.prefix import pooled_attention, prefix_attention


def plain(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """In double precision, all pairs written out."""
    scores = (q.double()[:, :, :, None] + k.double()[:, :, None]).logsumexp(-1)
    return ops.masked_softmax(scores, ops.visible(q.shape[2], k.shape[2], None, causal)) @ v.double()


@given(
    tokens=st.integers(1, 40),
    chunk=st.integers(1, 16),
    size=st.sampled_from([0.1, 3.0, 40.0, 300.0]),
    seed=st.integers(),
)
def test_prefix_sums_equal_all_pairs_at_any_size(tokens: int, chunk: int, size: float, seed: int) -> None:
    torch.manual_seed(seed % 2**31)
    q, k = size * torch.randn(2, 1, 2, tokens, 6)
    v = torch.randn(1, 2, tokens, 3)
    z, _ = prefix_attention(q, k, v, chunk=chunk)
    # Features of size 300 are rounded to 3e-5, and so are the logarithms of the weights.
    assert torch.allclose(z.double(), plain(q, k, v), atol=2e-5 + 1e-6 * size)
    assert torch.allclose(pooled_attention(q, k, v).double(), plain(q, k, v, causal=False), atol=2e-5 + 1e-6 * size)


@given(cut=st.integers(1, 29), seed=st.integers())
def test_a_text_in_two_parts_is_the_text(cut: int, seed: int) -> None:
    torch.manual_seed(seed % 2**31)
    q, k = 5 * torch.randn(2, 1, 2, 30, 6)
    v = torch.randn(1, 2, 30, 3)
    first, state = prefix_attention(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], chunk=4)
    second, _ = prefix_attention(q[:, :, cut:], k[:, :, cut:], v[:, :, cut:], state, chunk=4)
    whole, _ = prefix_attention(q, k, v, chunk=8)
    assert torch.allclose(torch.cat([first, second], dim=2), whole, atol=1e-5)


def test_a_giant_in_the_future_drowns_nobody() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 16, 4)
    v = torch.randn(1, 1, 16, 3)
    before, _ = prefix_attention(q, k, v, chunk=16)
    k[:, :, 12] += 500.0  # in the same chunk, and far beyond what float32 can hold beside the others
    after, _ = prefix_attention(q, k, v, chunk=16)
    assert torch.allclose(before[:, :, :12], after[:, :, :12], atol=1e-6)
    assert torch.allclose(after[:, :, 12:], v[:, :, 12:13].expand(-1, -1, 4, -1), atol=1e-6)


def test_gradients_are_those_of_all_pairs() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 13, 5, dtype=torch.float64)
    v = torch.randn(1, 2, 13, 3, dtype=torch.float64)
    inputs = [one.requires_grad_() for one in (q, k, v)]
    goal = torch.randn_like(v)
    ours = torch.autograd.grad((prefix_attention(q, k, v, chunk=4)[0] * goal).sum(), inputs)
    theirs = torch.autograd.grad((plain(q, k, v) * goal).sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-10)
