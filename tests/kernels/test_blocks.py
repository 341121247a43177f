from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab import ops
from attnlab.kernels.blocks import Layout, block_attention


@given(
    blocks=st.integers(1, 7), block=st.integers(1, 5), short=st.integers(0, 4), causal=st.booleans(), seed=st.integers()
)
def test_gathered_blocks_equal_the_masked_pattern(blocks: int, block: int, short: int, causal: bool, seed: int) -> None:
    torch.manual_seed(seed % 2**31)
    tokens = max(1, blocks * block - min(short, block - 1))
    allowed = (torch.rand(blocks, blocks) < 0.4) | torch.eye(blocks, dtype=torch.bool)
    layout = Layout.of(allowed, tokens, block, causal)
    layout = Layout(layout.block, layout.tokens, layout.table, layout.bias, None)  # as for a long text
    place = torch.arange(tokens) // block
    mask = allowed[place[:, None], place]
    mask = (mask.tril() if causal else mask)[None, None]
    padding = torch.rand(2, tokens) < 0.2
    for hidden in (None, padding):
        inputs = [torch.randn(2, 3, tokens, 4, requires_grad=True) for _ in range(3)]
        q, k, v = inputs
        may = mask if hidden is None else mask & ~hidden[:, None, None, :]
        plain = ops.attention_pattern(q, k, may) @ v
        fast = block_attention(q, k, v, layout, hidden)
        assert torch.allclose(fast, plain, atol=1e-5)
        goal = torch.randn_like(plain)
        for ours, theirs in zip(
            torch.autograd.grad((fast * goal).sum(), inputs),
            torch.autograd.grad((plain * goal).sum(), inputs),
            strict=True,
        ):
            assert torch.allclose(ours, theirs, atol=1e-4)


def test_dropout_thins_the_averages_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    layout = Layout.of(torch.ones(40, 40, dtype=torch.bool).tril().triu(-1), 160, 4, True)
    assert layout.dense is None
    q, k = torch.zeros(2, 1, 1, 160, 4)
    v = torch.ones(1, 1, 160, 4)
    dropped = torch.stack([block_attention(q, k, v, layout, dropout=0.5)[0, 0, 9:, 0] for _ in range(50)])
    assert abs(dropped.mean().item() - 1) < 0.05
    assert dropped.std() > 0.1


def test_a_layout_is_for_its_own_length() -> None:
    layout = Layout.of(torch.eye(2, dtype=torch.bool), 8, 4, True)
    with pytest.raises(AssertionError):
        block_attention(*torch.randn(3, 1, 1, 7, 4), layout)


def test_dropout_keeps_every_texts_own_padding() -> None:
    torch.manual_seed(0)
    layout = Layout.of(torch.ones(40, 40, dtype=torch.bool).tril().triu(-1), 160, 4, True)
    q, k, v = torch.randn(3, 2, 3, 160, 4)
    padding = torch.zeros(2, 160, dtype=torch.bool)
    padding[1] = True
    z = block_attention(q, k, v, layout, padding, dropout=0.1)
    assert (z[1] == 0).all()
    assert (z[0].abs().sum(-1) > 0).float().mean() > 0.9
