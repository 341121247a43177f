"""The sliding window: its size by default, its edges on both sides, and what generation keeps of a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab import registry
from attnlab.errors import ConfigError


def make(block_size: int = 64, **options: Any) -> Any:
    torch.manual_seed(0)
    return registry.find("mechanism", "sliding").build(32, 4, block_size, **options).eval()


def by_definition(q: Tensor, k: Tensor, v: Tensor, window: int, causal: bool) -> Tensor:
    """Every token with the tokens less than a window away, one by one."""
    rows = []
    for t in range(q.shape[2]):
        seen = slice(max(0, t - window + 1), t + 1 if causal else t + window)
        scores = (k[:, :, seen] @ q[:, :, t, :, None])[..., 0] / q.shape[-1] ** 0.5
        rows.append((scores.softmax(-1)[..., None] * v[:, :, seen]).sum(2))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize(("block_size", "window"), [(32, 16), (128, 16), (200, 25), (1024, 128), (4096, 128)])
def test_the_window_is_an_eighth_of_the_block_between_16_and_128(block_size: int, window: int) -> None:
    assert make(block_size).window == window
    assert make(block_size, window=7).window == 7


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be at least 1, not -1"):
        make(window=-1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("window", "tokens"), [(1, 9), (5, 5), (5, 6), (8, 40), (17, 64), (33, 64)])
def test_blocks_see_the_window_and_nothing_else(window: int, tokens: int, causal: bool) -> None:
    module = make(window=window, causal=causal)
    q, k, v = (torch.randn(2, 4, tokens, 8) for _ in range(3))
    expected = by_definition(q, k, v, window, causal)
    assert torch.allclose(module.fast(q, k, v, None), expected, atol=1e-5)
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None] if causal else None
    assert torch.allclose(module.pattern(q, k, mask) @ v, expected, atol=1e-5)


def test_generation_keeps_what_the_next_token_still_sees() -> None:
    cache = make(window=6).new_cache()
    k = torch.arange(20.0).view(1, 1, 20, 1)
    for at in range(20):
        seen, _ = cache.append(k[:, :, at : at + 1], k[:, :, at : at + 1])
        assert seen.flatten().tolist() == [float(place) for place in range(max(0, at - 5), at + 1)]


def test_a_layout_is_made_once_per_length(monkeypatch: pytest.MonkeyPatch) -> None:
    module, made = make(window=4), []
    lay_out = module.lay_out
    monkeypatch.setattr(module, "lay_out", lambda *given: made.append(given) or lay_out(*given))
    for tokens in (4, 20, 20, 24, 3):
        q = torch.randn(1, 4, tokens, 8)
        module.fast(q, q, q, None)
    assert [tokens for tokens, _ in made] == [20, 24]


def test_sliding_drops_weights_in_training_only() -> None:
    module = make(window=4, dropout=0.5)
    q, k, v = (torch.randn(1, 4, 30, 8) for _ in range(3))
    expected = by_definition(q, k, v, 4, causal=True)
    assert torch.allclose(module.fast(q, k, v, None), expected, atol=1e-5)
    assert not torch.allclose(module.train().fast(q, k, v, None), expected, atol=1e-1)
