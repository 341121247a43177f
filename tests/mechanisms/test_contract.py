"""The contract of a mechanism, run over everything in the registry: no test names one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.taps import capture

WIDTH, HEADS, BLOCK = 32, 4, 24
CAUSAL = [name for name in registry.names("mechanism") if registry.find("mechanism", name).causal]
DEFECTIVE = [name for name in CAUSAL if registry.find("mechanism", name).defect]
SOUND = [name for name in CAUSAL if name not in DEFECTIVE]


def make(name: str, **asked: Any) -> nn.Module:
    torch.manual_seed(0)
    entry = registry.find("mechanism", name)
    accepted = {key: value for key, value in asked.items() if entry.accepts(key)}
    module: nn.Module = entry.build(WIDTH, HEADS, BLOCK, **accepted)
    return module.eval()


VARIANTS = [{}, {"rotary": True, "qk_norm": True}, {"bias": True}]


@pytest.fixture(params=VARIANTS, ids=["plain", "rotary", "bias"])
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_has_a_card(name: str) -> None:
    entry = registry.find("mechanism", name)
    assert entry.card
    assert entry.cost


@pytest.mark.parametrize("name", registry.names("mechanism"))
@pytest.mark.parametrize("tokens", [1, 2, 7, BLOCK])
def test_keeps_the_shape_at_any_length(name: str, tokens: int, variant: dict[str, Any]) -> None:
    x = torch.randn(3, tokens, WIDTH)
    out = make(name, **variant)(x)
    assert out.shape == x.shape
    assert out.isfinite().all()


@pytest.mark.parametrize("name", SOUND)
def test_the_future_does_not_move_the_past(name: str, variant: dict[str, Any]) -> None:
    module, x = make(name, **variant), torch.randn(2, 12, WIDTH)
    changed = x.clone()
    changed[:, 7:] += torch.randn(2, 5, WIDTH)
    before, after = module(x), module(changed)
    assert (before[:, :7] - after[:, :7]).abs().max() <= 1e-6
    assert (before[:, 7:] - after[:, 7:]).abs().max() > 1e-4


@pytest.mark.parametrize("name", SOUND)
def test_no_gradient_flows_from_the_past_to_the_future(name: str) -> None:
    x = torch.randn(1, 9, WIDTH, requires_grad=True)
    make(name)(x)[0, 4].sum().backward()
    assert x.grad is not None
    assert x.grad[0, 5:].abs().max() <= 1e-6  # rounding, where a stabiliser cancels
    assert (x.grad[0, :5].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("name", SOUND)
def test_a_prefix_gives_the_same_prefix(name: str, variant: dict[str, Any]) -> None:
    module, x = make(name, **variant), torch.randn(2, 11, WIDTH)
    assert torch.allclose(module(x)[:, :6], module(x[:, :6]), atol=1e-6)


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_rows_of_a_batch_do_not_meet(name: str, variant: dict[str, Any]) -> None:
    module, x = make(name, **variant), torch.randn(3, 8, WIDTH)
    assert torch.allclose(module(x)[1], module(x[1:2])[0], atol=1e-6)


@pytest.mark.parametrize("name", [name for name in registry.names("mechanism") if name not in DEFECTIVE])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_not_looked_at_and_nothing_is_nan(name: str, causal: bool) -> None:
    module = make(name, causal=causal)
    x = torch.randn(2, 8, WIDTH)
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[0, 5:] = True
    padding[1, :3] = True  # the first rows may see nothing when causal
    changed = torch.where(padding[..., None], torch.randn(2, 8, WIDTH), x)
    x.requires_grad_()
    before, after = module(x, padding), module(changed, padding)
    before.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert before.isfinite().all()
    assert ((before - after).abs() * ~padding[..., None]).max() <= 1e-6


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_every_parameter_learns(name: str) -> None:
    module = make(name, bias=True).train()
    module(torch.randn(2, 8, WIDTH)).square().sum().backward()
    still = {n for n, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert not still - {"heads.key.bias"}  # the softmax forgets what is added to all scores alike


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_same_seed_same_numbers_in_train_and_eval(name: str) -> None:
    x = torch.randn(2, 8, WIDTH)
    first, second = make(name), make(name).train()
    assert torch.equal(first(x), make(name)(x))
    assert torch.allclose(first(x), second(x), atol=1e-6)


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_goes_through_its_state(name: str) -> None:
    x, module = torch.randn(2, 8, WIDTH), make(name)
    torch.manual_seed(1)
    other = registry.find("mechanism", name).build(WIDTH, HEADS, BLOCK).eval()
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x), other(x))


def both_paths(module: nn.Module, x: Tensor, padding: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Output and input gradient, first by the fast path, then watched, by the reference."""
    results = []
    for watched in (False, True):
        inputs = x.clone().requires_grad_()
        if watched:
            with capture(module, "hook_pattern"):
                out = module(inputs, padding)
        else:
            out = module(inputs, padding)
        out.square().sum().backward()
        assert inputs.grad is not None
        results.append((out.detach(), inputs.grad))
    return results


@pytest.mark.parametrize("name", registry.names("mechanism"))
@pytest.mark.parametrize("padded", [False, True])
def test_the_fast_path_equals_the_reference(name: str, padded: bool, variant: dict[str, Any]) -> None:
    padding = None
    if padded:
        padding = torch.zeros(2, 9, dtype=torch.bool)
        padding[0, 6:] = True
    (fast, fast_grad), (plain, plain_grad) = both_paths(make(name, **variant), torch.randn(2, 9, WIDTH), padding)
    assert torch.allclose(fast, plain, atol=1e-5)
    assert torch.allclose(fast_grad, plain_grad, atol=1e-4)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("pieces", [[1] * 10, [4, 1, 1, 4], [3, 7]])
def test_with_a_cache_is_as_without(name: str, pieces: list[int], variant: dict[str, Any]) -> None:
    module, x = make(name, **variant), torch.randn(2, 10, WIDTH)
    cache = module.new_cache()  # type: ignore[operator]
    parts = [module(part, cache=cache) for part in x.split(pieces, dim=1)]
    assert cache.length == 10
    assert torch.allclose(torch.cat(parts, dim=1), module(x), atol=1e-5)
