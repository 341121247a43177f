from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from attnlab.kernels import build
from attnlab.kernels import scan as scans
from attnlab.kernels.counting import Counter
from attnlab.kernels.scan import by_chunks, by_compiled, by_steps, scan, stored, weights

Method = Callable[..., tuple[Tensor, Tensor]]
DECAYS = ["none", "head", "channel"]
LOSSES = [0.0, -0.5, -50.0, -1000.0, float("-inf")]
needs_compiler = pytest.mark.skipif(build.load("scan") is None, reason="there is no C++ compiler, or ATTNLAB_KERNELS=0")
both = pytest.mark.parametrize("method", [by_chunks, pytest.param(by_compiled, marks=needs_compiler)])


def drawn(
    tokens: int, decay: str, erase: bool, width: int = 5, dtype: torch.dtype = torch.float64, loss: float | None = None
) -> list[Tensor | None]:
    """q, k, v, decay, erase, write of two texts with two heads; a quarter of the decays have the given logarithm."""
    torch.manual_seed(tokens)
    q, k = F.normalize(torch.randn(2, 2, 2, tokens, width, dtype=dtype), dim=-1)
    v = torch.randn(2, 2, tokens, 3, dtype=dtype)
    losses = None
    if decay != "none":
        losses = -F.softplus(torch.randn(2, 2, tokens, 1 if decay == "head" else width, dtype=dtype) - 2)
        if loss is not None:
            losses[torch.rand_like(losses) < 0.25] = loss
    strengths = 2 * torch.rand(2, 2, tokens, 1, dtype=dtype)
    return [q, k, v, losses, strengths if erase else None, strengths / 2]


def results(method: Method, inputs: list[Tensor | None], state: Tensor | None = None) -> list[Tensor]:
    """Outputs, last state, and the gradients of a sum that depends on all of them."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in [*inputs, state]]
    output, last = method(*leaves, scale=0.7)
    goal = (output * torch.sin(torch.arange(output.numel()).view_as(output))).sum() + last.cos().sum()
    return [output, last, *torch.autograd.grad(goal, [x for x in leaves if x is not None])]


def check(method: Method, inputs: list[Tensor | None], state: Tensor | None = None, tolerance: float = 1e-10) -> None:
    """Compare values and gradients with the reference in float64, relative to the largest of each."""
    exact = results(
        by_steps, [None if x is None else x.double() for x in inputs], None if state is None else state.double()
    )
    for ours, theirs in zip(results(method, inputs, state), exact, strict=True):
        assert ours.isfinite().all()
        assert (ours - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item())


@both
@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 5), (2, 1), (31, 8), (32, 3), (33, 20), (64, 2), (130, 7)])
def test_fast_forms_equal_steps(tokens: int, width: int, decay: str, erase: bool, method: Method) -> None:
    inputs = drawn(tokens, decay, erase, width)
    check(method, inputs, torch.randn(2, 2, width, 3, dtype=torch.float64))
    check(scan, inputs)


@both
def test_channels_may_be_erased_by_themselves(method: Method) -> None:
    inputs = drawn(40, "channel", True)
    inputs[4] = 2 * torch.rand(2, 2, 40, 5, dtype=torch.float64)
    check(method, inputs)
    check(method, [*inputs[:5], None])


@both
@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("loss", LOSSES)
def test_fast_forms_equal_steps_at_extreme_decays(loss: float, decay: str, erase: bool, method: Method) -> None:
    inputs = drawn(70, decay, erase, loss=loss)
    check(method, inputs)
    check(method, [None if x is None else x.float() for x in inputs], tolerance=1e-4)


@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("loss", [-1.2, -1.4, -2.6, -5.1, -11.0, -39.0, -41.0])
def test_blocks_of_all_sizes_are_exact_in_float32(loss: float, decay: str) -> None:
    inputs = drawn(64, decay, True, dtype=torch.float32)
    assert inputs[3] is not None
    inputs[3].fill_(loss)
    inputs[3][..., ::3, :] = -1e-3
    check(by_chunks, inputs, tolerance=1e-4)


@both
@settings(max_examples=25)
@given(
    tokens=st.integers(1, 80),
    decay=st.sampled_from(DECAYS),
    erase=st.booleans(),
    loss=st.sampled_from(LOSSES),
    cut=st.integers(1, 79),
)
def test_a_text_in_two_parts_is_the_text(
    tokens: int, decay: str, erase: bool, loss: float, cut: int, method: Method
) -> None:
    inputs = drawn(tokens, decay, erase, loss=loss)
    whole, last = method(*inputs)  # type: ignore[arg-type]
    if cut < tokens:
        parts = [[None] * 2 if x is None else x.split([cut, tokens - cut], dim=2) for x in inputs]
        first, state = method(*(x[0] for x in parts))  # type: ignore[arg-type]
        second, state = method(*(x[1] for x in parts), state)  # type: ignore[arg-type]
        assert torch.allclose(torch.cat([first, second], dim=2), whole, atol=1e-10)
        assert torch.allclose(state, last, atol=1e-10)


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_pieces_are_invisible(monkeypatch: pytest.MonkeyPatch, decay: str, erase: bool) -> None:
    monkeypatch.setattr("attnlab.kernels.chunks._AT_ONCE", 1)
    check(by_chunks, drawn(100, decay, erase, loss=-50.0), torch.randn(2, 2, 5, 3, dtype=torch.float64))


@both
@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_gradients_are_those_of_differences(decay: str, erase: bool, method: Method) -> None:
    inputs = [None if x is None else x[:1, :1, :, :2].requires_grad_() for x in drawn(5, decay, erase, width=2)]
    state = torch.randn(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(method, (*inputs, state))


@both
@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_a_long_text_stays_finite(decay: str, erase: bool, method: Method) -> None:
    inputs = drawn(100_000, decay, erase, width=4, dtype=torch.float32, loss=-1000.0)
    for x in results(method, [None if x is None else x[:1, :1] for x in inputs]):
        assert x.isfinite().all()


@both
def test_half_precision_is_computed_in_single(method: Method) -> None:
    inputs = [None if x is None else x.bfloat16() for x in drawn(40, "head", True)]
    output, _ = method(*inputs)  # type: ignore[arg-type]
    exact, _ = by_steps(*(None if x is None else x.float() for x in inputs))  # type: ignore[arg-type]
    assert output.dtype == torch.bfloat16
    assert torch.allclose(output.float(), exact, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("loss", [-0.5, float("-inf")])
def test_weights_give_the_outputs(loss: float, decay: str, erase: bool) -> None:
    q, k, v, *gates = drawn(40, decay, erase, loss=loss)
    pattern = weights(q, k, *gates)  # type: ignore[arg-type]
    assert torch.allclose(pattern @ v, by_steps(q, k, v, *gates)[0], atol=1e-10)  # type: ignore[arg-type, operator]
    assert not pattern.triu(1).any()


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("loss", [-0.5, float("-inf")])
def test_stored_weights_give_what_the_state_returns(loss: float, decay: str, erase: bool) -> None:
    q, k, v, *gates = drawn(40, decay, erase, loss=loss)
    assert q is not None
    assert k is not None
    _, state = by_steps(q, 2 * k, v, *gates)  # type: ignore[arg-type]
    assert torch.allclose(stored(2 * k, *gates) @ v, k / 2 @ state, atol=1e-10)  # type: ignore[arg-type, operator]


@needs_compiler
def test_any_layout_in_memory_is_read_right() -> None:
    inputs = drawn(40, "channel", True, width=6)
    layouts = (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),  # heads inside tokens
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),  # channels apart
        lambda x: torch.cat([x, x], dim=3)[..., : x.shape[3]],  # part of a larger tensor
    )
    exact = results(by_compiled, inputs)
    for layout in layouts:
        for ours, theirs in zip(results(by_compiled, [layout(x) for x in inputs if x is not None]), exact, strict=True):
            assert torch.equal(ours, theirs)
    shared = [x[:, :1].expand(-1, 2, -1, -1) for x in inputs if x is not None]
    check(by_compiled, shared)
    overlapping = torch.randn(2, 2, 20, dtype=torch.float64, requires_grad=True)
    gradients = []
    for method in (by_compiled, by_steps):
        rows = overlapping.unfold(2, 4, 1)
        gradients.append(torch.autograd.grad(method(rows, rows, rows)[0].sum(), overlapping)[0])
    assert torch.allclose(*gradients, atol=1e-10)


@needs_compiler
def test_the_compiled_form_never_reads_what_does_not_fit() -> None:
    q = torch.randn(3, 2, 9, 4)
    for wrong in (torch.zeros(3, 2, 9, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 1), torch.zeros(3, 2, 8, 1)):
        with pytest.raises(AssertionError, match="decay"):
            by_compiled.__wrapped__(q, q, q, wrong)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="must match the existing size"):
        by_compiled(q, q, q, state=torch.zeros(2, 2, 4, 4))


@pytest.mark.parametrize("kernels", ["1", "0"])
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4)])
def test_no_texts_or_no_tokens_are_no_trouble(
    shape: tuple[int, ...], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNLAB_KERNELS", kernels)
    x = torch.zeros(shape, requires_grad=True)
    state = torch.ones(shape[0], 2, 4, 4, requires_grad=True)
    output, last = scan(x, x, x, state=state)
    assert output.shape == x.shape
    assert torch.equal(last, state)
    assert torch.equal(torch.autograd.grad(last.sum(), state)[0], torch.ones_like(state))


@needs_compiler
def test_several_threads_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = drawn(50, "head", True)
    alone = results(by_compiled, inputs)
    monkeypatch.setattr(scans, "_ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for ours, theirs in zip(results(by_compiled, inputs), alone, strict=True):
        assert torch.equal(ours, theirs)


@needs_compiler
def test_a_kernel_with_other_numbers_does_not_match_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scans.matches_plain()
    exact = scans._run

    def wrong(name: str, scale: float, **tensors: Tensor | None) -> None:
        exact(name, scale, **tensors)
        if (last := tensors.get("d_k")) is not None:
            last.mul_(1.1)

    monkeypatch.setattr(scans, "_run", wrong)
    assert not scans.matches_plain()


def test_operations_of_both_forms_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for kernels in ("1", "0"):
        monkeypatch.setenv("ATTNLAB_KERNELS", kernels)
        with Counter() as counter:
            results(scan, drawn(40, "head", True, width=8))
        counts.append(counter.total)
    assert counts[0] == counts[1] == 2 * 2 * 40 * 8 * 3 * (6 + 14)
