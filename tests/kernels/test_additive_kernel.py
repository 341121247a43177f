"""Both forms of additive attention beside all pairs written out in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnlab import ops
from attnlab.kernels import additive, build
from attnlab.kernels.additive import AdditiveAttention, Problem, additive_attention

both = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])


def call(
    compiled: bool, inputs: list[Tensor], padding: Tensor | None, causal: bool, dropout: float = 0.0, seed: int = 0
) -> Tensor:
    """One form, or a skipped test where it cannot be had."""
    if compiled and build.load("additive") is None:
        pytest.skip("no compiled kernel: there is no C++ compiler, or ATTNLAB_KERNELS=0")
    return AdditiveAttention.apply(compiled, *inputs, padding, causal, dropout, seed)


def pattern(inputs: list[Tensor], padding: Tensor | None, causal: bool) -> Tensor:
    """The softmax of w · tanh(a + b), all pairs written out."""
    a, b, w, _ = inputs
    scores = (w * torch.tanh(a[:, :, :, None] + b[:, :, None])).sum(-1)
    return ops.masked_softmax(scores, ops.visible(a.shape[2], b.shape[2], padding, causal))


def draw(
    asked: int, seen: int, width: int = 6, values: int = 5, size: float = 1.0, batch: int = 2, heads: int = 2
) -> list[Tensor]:
    """Random a, b, w and v."""
    a, b = size * torch.randn(batch, heads, asked, width), size * torch.randn(batch, heads, seen, width)
    return [a, b, torch.randn(width), torch.randn(batch, heads, seen, values)]


def gradients(out: Tensor, inputs: list[Tensor], goal: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((out * goal.to(out.dtype)).sum(), inputs)


def assert_right(compiled: bool, inputs: list[Tensor], padding: Tensor | None, causal: bool) -> None:
    """Values and all four gradients are those of the pairs written out in double precision."""
    # Scores are rounded as w is large, and weights as scores are.
    tolerance = 8 * torch.finfo(inputs[0].dtype).eps * (1 + inputs[2].abs().sum())
    ours = [one.clone().requires_grad_() for one in inputs]
    exact = [one.double().requires_grad_() for one in inputs]
    out, expected = call(compiled, ours, padding, causal), pattern(exact, padding, causal) @ exact[3]
    assert out.dtype == inputs[0].dtype
    assert (out - expected).abs().max() <= tolerance
    goal = torch.randn_like(expected)
    for name, one, other in zip("abwv", gradients(out, ours, goal), gradients(expected, exact, goal), strict=True):
        assert one.isfinite().all(), name
        terms = out[..., 0].numel() if name == "w" else 1  # every query adds to the gradient of w, and to its rounding
        assert (one - other).abs().max() <= 8 * tolerance * (terms**0.5 + other.abs().max()), name


@both
@given(
    asked=st.integers(1, 150),
    before=st.sampled_from([0, 0, 1, 17, 64]),
    width=st.integers(1, 33),
    values=st.integers(1, 70),
    causal=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 2**31),
)
@example(asked=1, before=0, width=1, values=1, causal=True, padded=False, seed=0)
@example(asked=1, before=64, width=8, values=8, causal=True, padded=True, seed=0)
@example(asked=16, before=0, width=32, values=32, causal=True, padded=False, seed=0)
@example(asked=64, before=0, width=4, values=64, causal=False, padded=True, seed=0)
@example(asked=129, before=0, width=32, values=33, causal=True, padded=True, seed=0)
@settings(max_examples=40)
def test_values_and_gradients_are_those_of_all_pairs(
    compiled: bool, asked: int, before: int, width: int, values: int, causal: bool, padded: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    padding = torch.rand(2, before + asked) < 0.3 if padded else None
    assert_right(compiled, draw(asked, before + asked, width, values), padding, causal)


@both
@pytest.mark.parametrize("asked", [3, 40])
def test_who_may_see_nothing_gets_zero_and_gives_no_gradient(compiled: bool, asked: int) -> None:
    torch.manual_seed(0)
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[0] = True
    padding[1, :39] = True  # of the second text, only the last token sees something when causal
    inputs = draw(asked, 40)
    assert_right(compiled, inputs, padding, True)
    ours = [one.requires_grad_() for one in inputs]
    out = call(compiled, ours, padding, True)
    assert not out[0].any()
    assert not out[1, :, :-1].any()
    assert torch.equal(out[1, :, -1], ours[3][1, :, -1])
    da, db, _, dv = gradients(out, ours, torch.randn_like(out))
    assert not any(one[0].any() for one in (da, db, dv))
    assert not dv[1, :, :-1].any()


@both
def test_what_is_hidden_does_not_matter(compiled: bool) -> None:
    torch.manual_seed(0)
    padding = torch.rand(2, 50) < 0.4
    a, b, w, v = draw(50, 50)
    hidden = padding[:, None, :, None]
    other = [a, torch.where(hidden, 7.0, b), w, torch.where(hidden, -9.0, v)]
    assert torch.equal(call(compiled, [a, b, w, v], padding, True), call(compiled, other, padding, True))


@both
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [25.0, 39.9, 40.1, 60.0, 300.0, 1e4])
def test_sizes_beyond_the_exponential_are_exact(compiled: bool, size: float, causal: bool) -> None:
    torch.manual_seed(0)
    a, b, w, v = draw(37, 37)
    # Of queries and keys that cancel, what is left is small and decides; of the rest, tanh is ±1.
    a = size * (2 * torch.rand_like(a) - 1)
    b = b - a[:, :, torch.randperm(37)]
    b = size * b / b.abs().max()
    b[:, :, ::2] = -a[:, :, ::2] + torch.randn_like(a[:, :, ::2])
    for extreme in (a, b):
        extreme[0, 0, 5, :2] = torch.tensor([size, -size])
    assert_right(compiled, [a, b, w, v], None, causal)


@both
def test_the_edge_is_crossed_without_a_step(compiled: bool) -> None:
    torch.manual_seed(0)
    a, b, w, v = draw(20, 20, batch=1, heads=1)
    a[0, 0, 3, 2] = 39.999
    under = call(compiled, [a, b, w, v], None, True)
    a[0, 0, 3, 2] = 40.001
    assert torch.allclose(call(compiled, [a, b, w, v], None, True), under, atol=1e-6)


@both
def test_sharp_scores_do_not_overflow(compiled: bool) -> None:
    torch.manual_seed(0)
    a, b, w, v = draw(33, 33)
    assert_right(compiled, [a, b, 100 * w, v], None, True)


@both
def test_nan_stays_where_it_can_be_seen(compiled: bool) -> None:
    torch.manual_seed(0)
    a, b, w, v = draw(20, 20)
    b[0, 0, 12, 1] = float("nan")
    out = call(compiled, [a, b, w, v], None, True)
    assert out[0, 0, 12:].isnan().all()
    assert out[0, 0, :12].isfinite().all()
    assert out[0, 1].isfinite().all()
    assert out[1].isfinite().all()


@both
@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_no_texts_or_no_tokens_are_no_trouble(compiled: bool, shape: tuple[int, int]) -> None:
    batch, tokens = shape
    inputs = [one.requires_grad_() for one in draw(tokens, tokens, batch=batch)]
    out = call(compiled, inputs, None, True)
    assert out.shape == inputs[3].shape
    for one, gradient in zip(inputs, gradients(out, inputs, out.detach()), strict=True):
        assert gradient.shape == one.shape
        assert not gradient.any()


@both
def test_any_layout_in_memory_is_read_right(compiled: bool) -> None:
    torch.manual_seed(0)
    inputs = draw(18, 18)
    turned = [one.transpose(1, 2).contiguous().transpose(1, 2) if one.ndim > 1 else one for one in inputs]
    turned[2] = torch.stack([inputs[2], inputs[2]], dim=1)[:, 0]
    padding = (torch.rand(18, 2) < 0.3).T
    assert not any(one.is_contiguous() for one in (*turned, padding))
    assert torch.equal(call(compiled, turned, padding, True), call(compiled, inputs, padding.contiguous(), True))
    ours = [one.detach().requires_grad_() for one in turned]
    call(compiled, ours, padding, True).sum().backward()  # the gradient that arrives is one number, expanded
    exact = [one.double().requires_grad_() for one in inputs]
    (pattern(exact, padding, True) @ exact[3]).sum().backward()
    for one, other in zip(ours, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad.double(), other.grad, atol=1e-5)


def test_the_plain_form_passes_the_check_of_gradients_in_double_precision() -> None:
    torch.manual_seed(0)
    padding = torch.rand(2, 7) < 0.3
    inputs = [one.double().requires_grad_() for one in draw(5, 7, width=3, values=2)]
    assert torch.autograd.gradcheck(lambda *some: AdditiveAttention.apply(False, *some, padding, True, 0.0, 0), inputs)
    assert torch.autograd.gradcheck(lambda *some: AdditiveAttention.apply(False, *some, padding, False, 0.4, 3), inputs)
    far = [10 * inputs[0].detach() + 50, 10 * inputs[1].detach() - 50, *(one.detach() for one in inputs[2:])]
    assert_right(False, far, padding, True)


@both
@pytest.mark.parametrize("causal", [True, False])
def test_dropout_is_the_same_mask_in_both_directions(compiled: bool, causal: bool) -> None:
    torch.manual_seed(0)
    tokens, share = 70, 0.25
    inputs = draw(tokens, tokens)
    whole = pattern([one.double() for one in inputs], None, causal)
    # With the identity for values, the averages are the pattern after dropout.
    identity = torch.eye(tokens).expand(2, 2, -1, -1)
    shown = call(compiled, [*inputs[:3], identity], None, causal, share, seed=5)
    kept = (shown != 0).double() / (1 - share)
    assert torch.allclose(shown.double(), whole * kept, atol=1e-6)
    ours, exact = [one.requires_grad_() for one in inputs], [one.detach().double().requires_grad_() for one in inputs]
    out = call(compiled, ours, None, causal, share, seed=5)
    expected = (pattern(exact, None, causal) * kept) @ exact[3]
    assert torch.allclose(out.double(), expected, atol=1e-5)
    goal = torch.randn_like(expected)
    for one, other in zip(gradients(out, ours, goal), gradients(expected, exact, goal), strict=True):
        assert torch.allclose(one.double(), other, atol=1e-5 * (1 + other.abs().max().item()))


@both
def test_dropout_keeps_the_mean_and_knows_no_neighbours(compiled: bool) -> None:
    tokens, share = 128, 0.25
    inputs = [torch.zeros(2, 4, tokens, 4), torch.zeros(2, 4, tokens, 4), torch.ones(4)]
    inputs.append(torch.eye(tokens).expand(2, 4, -1, -1).contiguous())
    kept = (call(compiled, inputs, None, False, share, seed=11) * tokens * (1 - share)).round()
    assert kept.unique().tolist() == [0, 1]  # what is left is scaled up by what is lost
    assert abs(kept.mean().item() - (1 - share)) < 5 * (share * (1 - share) / kept.numel()) ** 0.5
    centred, variance = kept - kept.mean(), kept.var().item()
    for dim in range(4):
        ahead = centred.narrow(dim, 1, kept.shape[dim] - 1) * centred.narrow(dim, 0, kept.shape[dim] - 1)
        assert abs(ahead.mean().item()) < 5 * variance / ahead.numel() ** 0.5, f"neighbours of dimension {dim}"
    other = (call(compiled, inputs, None, False, share, seed=12) * tokens * (1 - share)).round() - kept.mean()
    assert abs((other * centred).mean().item()) < 5 * variance / kept.numel() ** 0.5


def test_dropout_follows_torchs_seed() -> None:
    inputs = draw(30, 30)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return additive_attention(*inputs, None, True, 0.5)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.allclose(drawn(1), drawn(2), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    halves = [one.to(dtype).requires_grad_() for one in draw(45, 45)]
    whole = [one.detach().float().requires_grad_() for one in halves]
    out, expected = additive_attention(*halves, None, True), additive_attention(*whole, None, True)
    assert out.dtype == dtype
    assert torch.equal(out, expected.to(dtype))
    goal = torch.randn_like(out)
    for one, other in zip(gradients(out, halves, goal), gradients(expected, whole, goal.float()), strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, other.to(dtype))


def test_the_compiled_form_is_for_float32_alone() -> None:
    call(True, draw(2, 2), None, True)
    inputs = [one.requires_grad_() for one in draw(9, 9)]
    assert additive_attention(*inputs, None, True).grad_fn.compiled  # type: ignore[union-attr]
    inputs = [one.detach().double().requires_grad_() for one in inputs]
    out = additive_attention(*inputs, None, True)
    assert not out.grad_fn.compiled  # type: ignore[union-attr]
    assert torch.allclose(out, pattern(inputs, None, True) @ inputs[3], atol=1e-12)


def test_several_threads_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    asked: list[int] = []

    def counted(work: Any, count: int, threads: int) -> list[Any]:
        asked.append(threads)
        return in_parts(work, count, threads)

    in_parts = additive.in_parts
    monkeypatch.setattr(additive, "in_parts", counted)
    results = []
    for threads, alone in ((1, 0), (3, 0), (3, 2**20)):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        monkeypatch.setattr(additive, "ALONE", alone)
        torch.manual_seed(0)
        inputs = [one.requires_grad_() for one in draw(20, 20)]
        out = call(True, inputs, torch.rand(2, 20) < 0.2, True, 0.1, seed=3)
        results.append([out, *gradients(out, inputs, torch.ones_like(out))])
    assert asked == [1, 1, 3, 3, 1, 1]
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    call(True, draw(2, 2), None, True)
    monkeypatch.setattr(additive, "in_parts", lambda *_: [0, 1])
    with pytest.raises(MemoryError, match="smaller batch"):
        call(True, draw(4, 4), None, True)


def test_a_kernel_with_other_numbers_does_not_match_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    if build.load("additive") is None:
        pytest.skip("no compiled kernel")
    assert additive.matches_plain()
    solve = additive.solve

    def slightly_wrong(function: str, problem: Problem, **results: Tensor) -> None:
        solve(function, problem, **results)
        if "dv" in results:
            results["dv"].mul_(1.01)

    monkeypatch.setattr(additive, "solve", slightly_wrong)
    assert not additive.matches_plain()
