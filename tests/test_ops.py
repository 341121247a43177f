from __future__ import annotations

import pytest
import torch

from attnlab import ops


def test_heads_split_and_join_back() -> None:
    x = torch.randn(2, 5, 12)
    assert torch.equal(ops.split_heads(x, 3).transpose(1, 2).flatten(2), x)


def test_rotation_keeps_length_and_depends_on_distance_only() -> None:
    table = ops.rotary_table(20, 8)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i: int, j: int) -> float:
        return (ops.rotate(q, table[i : i + 1]) * ops.rotate(k, table[j : j + 1])).sum().item()

    assert ops.rotate(q, table[7:8]).norm().item() == pytest.approx(q.norm().item(), rel=1e-5)
    assert score(3, 1) == pytest.approx(score(17, 15), abs=1e-5)
    assert abs(score(3, 1) - score(3, 2)) > 1e-4


def test_visibility() -> None:
    assert ops.visible(3, 3, None, causal=False) is None
    mask = ops.visible(2, 4, None, causal=True)
    assert mask is not None
    assert mask[0, 0].tolist() == [[True, True, True, False], [True] * 4]
    padding = torch.tensor([[False, False, True]])
    hidden = ops.visible(3, 3, padding, causal=True)
    assert hidden is not None
    assert hidden[0, 0].tolist() == [[True, False, False], [True, True, False], [True, True, False]]


def test_pattern_is_a_distribution_and_a_blind_row_is_zero() -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    mask = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])[None, None]
    pattern = ops.attention_pattern(q, k, mask)
    assert torch.allclose(pattern.sum(-1), torch.tensor([1.0, 0.0, 1.0]))
    assert (pattern >= 0).all()


def test_shapes_are_checked_under_test() -> None:
    with pytest.raises(Exception, match="x"):
        ops.split_heads(torch.randn(5, 12), 3)
