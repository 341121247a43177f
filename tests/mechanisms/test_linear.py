"""Linear attention, token by token, with tokens that are hidden."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import elu

from attnlab import registry


def make(**options: Any) -> Any:
    torch.manual_seed(0)
    return registry.find("mechanism", "linear").build(32, 4, 64, **options).eval()


@pytest.mark.parametrize("chunks", [(7,), (1,) * 7, (3, 4), (4, 1, 2)])
def test_linear_attention_in_chunks_hides_what_is_padding(chunks: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 1]], dtype=torch.bool)
    weights = (elu(q) + 1) @ (elu(k) + 1).transpose(-2, -1) * real[:, None, None] * torch.ones(7, 7).tril()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    module, padding, seen = make(), ~real, real[:, None, :, None].expand(2, 4, 7, 8)
    assert torch.allclose(module.fast(q, k, v, padding)[seen], expected[seen], atol=1e-5)
    cache, parts, at = module.new_cache(), [], 0
    for size in chunks:
        new = slice(at, at + size)
        parts.append(module.decode_step(q[:, :, new], k[:, :, new], v[:, :, new], padding[:, : at + size], cache))
        at += size
        assert cache.length == at
    assert torch.allclose(torch.cat(parts, dim=2)[seen], expected[seen], atol=1e-5)


def test_linear_attention_has_no_dropout_on_weights_that_are_never_computed() -> None:
    assert make(dropout=0.5).dropout == 0
