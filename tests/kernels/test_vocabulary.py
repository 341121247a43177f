"""Both forms of the loss over a vocabulary beside all scores at once in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnlab import ops
from attnlab.kernels import build, vocabulary
from attnlab.kernels.vocabulary import Expected, compiled_expected, plain_expected

Form = Callable[..., Expected]
both = pytest.mark.parametrize("form", [compiled_expected, plain_expected], ids=["compiled", "plain"])


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Sixteen tokens at a time, so that fifty are not done at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "CHUNK", 16)
        yield


def call(form: Form, hidden: Tensor, weight: Tensor, gradients: bool = True) -> Expected:
    """One form, or a skipped test where it cannot be had."""
    if form is compiled_expected and build.load("vocabulary") is None:
        pytest.skip("no compiled kernel: there is no C++ compiler, or ATTNLAB_KERNELS=0")
    return form(hidden, weight, gradients)


def written_out(hidden: Tensor, weight: Tensor) -> Expected:
    scores = hidden.double() @ weight.double().t()
    shares = scores.softmax(dim=1)
    return Expected(scores.logsumexp(dim=1), shares @ weight.double(), shares.t() @ hidden.double())


def assert_right(form: Form, hidden: Tensor, weight: Tensor) -> None:
    """Sums and gradients are those of all scores, within the rounding of scores so large."""
    found, exact = call(form, hidden, weight), written_out(hidden, weight)
    rounding = 1e-6 * (1 + (hidden.abs() @ weight.abs().t()).max().item())
    assert torch.allclose(found.logsum.double(), exact.logsum, rtol=0, atol=rounding)
    assert torch.allclose(found.of_hidden.double(), exact.of_hidden, rtol=rounding, atol=rounding * weight.abs().max())
    assert torch.allclose(found.of_weight.double(), exact.of_weight, rtol=rounding, atol=rounding * hidden.abs().sum())
    assert torch.equal(call(form, hidden, weight, gradients=False).logsum, found.logsum)


sizes = st.sampled_from([0.1, 3.0, 60.0])


@pytest.mark.parametrize("large", [1, 10**6], ids=["compiled", "plain"])
@given(tokens=st.integers(1, 50), words=st.integers(1, 40), size=sizes, seed=st.integers())
def test_losses_and_gradients_equal_those_of_all_scores_at_once(
    large: int, tokens: int, words: int, size: float, seed: int
) -> None:
    torch.manual_seed(seed % 2**31)
    hidden, weight = size * torch.randn(tokens, 8), torch.randn(words, 8)
    targets = torch.randint(0, words, (tokens,))
    exact = [one.double().requires_grad_() for one in (hidden, weight)]
    losses = ops.token_losses(exact[0] @ exact[1].t(), targets)
    (0.25 * losses.sum()).backward()
    ours = [one.clone().requires_grad_() for one in (hidden, weight)]
    close = {"rtol": 1e-4, "atol": 1e-5 * max(1.0, size)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "LARGE", large)
        total = vocabulary.summed_losses(*ours, targets)
        (0.25 * total).backward()
        each = vocabulary.token_losses(hidden, weight, targets)
    assert torch.allclose(total.double(), losses.sum(), rtol=1e-4, atol=tokens * close["atol"])  # rounding adds up
    assert torch.allclose(each.double(), losses, **close)
    assert (each >= 0).all()
    for one, other in zip(ours, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad.double(), other.grad, **close)


@both
@given(tokens=st.integers(1, 70), words=st.integers(1, 230), width=st.integers(1, 120), size=sizes, seed=st.integers())
def test_any_sizes_are_right(form: Form, tokens: int, words: int, width: int, size: float, seed: int) -> None:
    torch.manual_seed(seed % 2**31)
    assert_right(form, size * torch.randn(tokens, width), torch.randn(words, width) / width**0.5)


@both
def test_more_words_than_a_chunk_has_room_for(form: Form) -> None:
    torch.manual_seed(0)
    assert_right(form, torch.randn(150, 48), 0.3 * torch.randn(26_604, 48))


@both
@pytest.mark.parametrize("length", [1.0, 50.0, 1e3, 1e5])
def test_long_vectors_with_low_scores_lose_nothing(form: Form, length: float) -> None:
    """The bound on scores is far off where a long word points another way, and all scores are far below zero."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(40, 16), 0.1 * torch.randn(200, 16)
    hidden[:, :2] = torch.tensor([length, 0.0])
    weight[:, :2] = 0.0
    weight[7, 1] = length  # across
    assert_right(form, hidden, weight)
    weight[:, 0] = -(length**0.5)  # all scores are low alike
    assert_right(form, hidden, weight)


@both
def test_nan_and_infinity_are_seen(form: Form) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(40, 16), torch.randn(200, 16)
    for bad in (float("nan"), float("inf"), 1e30):
        spoiled = hidden.clone()
        spoiled[3, 2] = bad
        found = call(form, spoiled, weight)
        others = torch.arange(40) != 3
        assert torch.allclose(found.logsum[others], call(form, hidden, weight).logsum[others], atol=1e-5)
        if bad == 1e30:
            assert torch.allclose(found.logsum[3].double(), written_out(spoiled, weight).logsum[3], rtol=1e-5)
        else:
            assert not found.logsum[3].isfinite()
            assert not found.of_weight.isfinite().all()
    spoiled = weight.clone()
    spoiled[100, 5] = float("nan")
    assert call(form, hidden, spoiled).logsum.isnan().all()


@both
def test_any_layout_in_memory_is_read_right(form: Form) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(16, 30).t(), torch.randn(16, 90).t()
    assert not hidden.is_contiguous()
    assert_right(form, hidden, weight)


@both
def test_no_tokens_are_no_trouble(form: Form) -> None:
    found = call(form, torch.empty(0, 16), torch.randn(50, 16))
    assert found.logsum.shape == (0,)
    assert found.of_hidden.shape == (0, 16)
    assert not found.of_weight.any()


def test_the_compiled_form_is_for_many_words_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noting(name: str, form: Form) -> Form:
        def noted(*arguments: Any) -> Expected:
            asked.append(name)
            return form(*arguments)

        return noted

    call(compiled_expected, torch.randn(2, 8), torch.randn(3, 8))
    monkeypatch.setattr(vocabulary, "compiled_expected", noting("compiled", compiled_expected))
    monkeypatch.setattr(vocabulary, "plain_expected", noting("plain", plain_expected))
    for words, dtype in ((5000, torch.float32), (500, torch.float32), (5000, torch.float64)):
        hidden, weight = torch.randn(3, 8, dtype=dtype), torch.randn(words, 8, dtype=dtype)
        vocabulary.expected(hidden, weight)
    assert asked == ["compiled", "plain", "plain"]
    monkeypatch.setenv("ATTNLAB_KERNELS", "0")
    vocabulary.expected(torch.randn(3, 8), torch.randn(5000, 8))
    assert asked[-1] == "plain"


def test_several_threads_give_the_same_within_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(100, 16), torch.randn(300, 16)
    alone = call(compiled_expected, hidden, weight)
    parts: list[int] = []

    def counted(work: Any, count: int, threads: int) -> list[Any]:
        parts.append(threads)
        return in_parts(work, count, threads)

    in_parts = vocabulary.in_parts
    monkeypatch.setattr(vocabulary, "in_parts", counted)
    monkeypatch.setattr(vocabulary, "ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shared = call(compiled_expected, hidden, weight)
    assert parts == [3]
    for one, other in zip(alone, shared, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    call(compiled_expected, torch.randn(2, 8), torch.randn(3, 8))
    monkeypatch.setattr(vocabulary, "in_parts", lambda *_: [(1, torch.zeros(3, 16))])
    with pytest.raises(MemoryError, match="smaller batch"):
        compiled_expected(torch.randn(2, 8), torch.randn(3, 8))


def test_a_kernel_with_other_numbers_does_not_match_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    if build.load("vocabulary") is None:
        pytest.skip("no compiled kernel")
    assert vocabulary.matches_plain()

    def slightly_wrong(hidden: Tensor, weight: Tensor, gradients: bool = True) -> Expected:
        found = compiled_expected(hidden, weight, gradients)
        return found._replace(of_weight=found.of_weight * 1.01)

    monkeypatch.setattr(vocabulary, "compiled_expected", slightly_wrong)
    assert not vocabulary.matches_plain()
