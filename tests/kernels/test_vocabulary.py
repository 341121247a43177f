from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab import ops
from attnlab.kernels import vocabulary


@given(tokens=st.integers(1, 50), words=st.integers(1, 40), size=st.sampled_from([0.1, 3.0, 60.0]), seed=st.integers())
def test_losses_and_gradients_equal_those_of_all_scores_at_once(
    tokens: int, words: int, size: float, seed: int
) -> None:
    torch.manual_seed(seed % 2**31)
    hidden, weight = size * torch.randn(tokens, 8), torch.randn(words, 8)
    targets = torch.randint(0, words, (tokens,))
    exact = [one.double().requires_grad_() for one in (hidden, weight)]
    losses = ops.token_losses(exact[0] @ exact[1].t(), targets)
    (0.25 * losses.sum()).backward()
    ours = [one.clone().requires_grad_() for one in (hidden, weight)]
    total = vocabulary.summed_losses(*ours, targets)
    (0.25 * total).backward()
    close = {"rtol": 1e-4, "atol": 1e-5 * max(1.0, size)}
    assert torch.allclose(total.double(), losses.sum(), **close)
    assert torch.allclose(vocabulary.token_losses(hidden, weight, targets).double(), losses, **close)
    for one, other in zip(ours, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad.double(), other.grad, **close)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    """Sixteen tokens at a time, so that fifty are not done at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "CHUNK", 16)
        yield
