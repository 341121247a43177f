"""Additive attention beside its definition, a small network that looks at query and key side by side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab import registry
from attnlab.errors import ConfigError, UserError
from attnlab.inside.taps import capture
from attnlab.lm import devices
from attnlab.mechanisms.additive import Additive

WIDTH, HEADS, TOKENS = 24, 3, 21


def make(**asked: Any) -> Additive:
    torch.manual_seed(0)
    module = registry.find("mechanism", "additive").build(WIDTH, HEADS, 64, **asked).eval()
    assert isinstance(module, Additive)
    if module.W1.bias is not None:
        torch.nn.init.normal_(module.W1.bias)
    return module


def written_out(module: Additive, x: Tensor) -> Tensor:
    """Token by token: score = w2 · tanh(W1 [query; key] + bias), a softmax over who may be seen, the average of values."""
    q, k, v = module.heads(x)
    z = torch.zeros_like(v)
    for t in range(x.shape[1]):
        seen = range(t + 1 if module.causal else x.shape[1])
        scores = torch.stack(
            [module.w2(torch.tanh(module.W1(torch.cat([q[:, :, t], k[:, :, s]], dim=-1))))[..., 0] for s in seen], -1
        )
        z[:, :, t] = (scores.softmax(-1)[..., None] * v[:, :, : len(seen)]).sum(-2)
    return module.out(z.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": True}, {"hidden": 5, "bias": True}, {"hidden": 40, "rotary": True}])
def test_it_is_its_definition(causal: bool, options: dict[str, Any]) -> None:
    module, x = make(causal=causal, **options), torch.randn(2, TOKENS, WIDTH)
    expected = written_out(module, x)
    assert torch.allclose(module(x), expected, atol=1e-5)
    with capture(module, "hook_pattern"):
        assert torch.allclose(module(x), expected, atol=1e-5)


def test_both_paths_teach_every_parameter_the_same() -> None:
    module, x = make(bias=True), torch.randn(2, TOKENS, WIDTH)
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[0, 15:] = True
    padding[1, :4] = True  # who may see nothing at first
    goal, taught = torch.randn(2, TOKENS, WIDTH), []
    for path in (module.fast, module.reference):
        q, k, v = module.heads(x)
        loss = (module.finish(path(q, k, v, padding), x) * goal).sum()
        taught.append(torch.autograd.grad(loss, list(module.parameters())))
    for (name, _), fast, plain in zip(module.named_parameters(), *taught, strict=True):
        assert fast.isfinite().all(), name
        assert torch.allclose(fast, plain, atol=2e-5), name


def test_the_small_network_is_as_wide_as_a_head_or_as_asked() -> None:
    assert make().W1.weight.shape == (8, 16)
    assert make(hidden=5).W1.weight.shape == (5, 16)
    assert make(hidden=5).w2.weight.shape == (1, 5)
    with pytest.raises(ConfigError, match="hidden must not be negative"):
        make(hidden=-1)


def test_dropout_thins_in_training_only_and_keeps_the_mean() -> None:
    module, x = make(dropout=0.4), torch.randn(1, TOKENS, WIDTH)
    whole = module(x)
    assert torch.equal(module(x), whole)
    module.train()
    with torch.no_grad():
        draws = torch.stack([module(x) for _ in range(400)])
    assert not torch.equal(draws[0], draws[1])
    error = (draws.mean(0) - whole).abs() / (draws.std(0) / 400**0.5)
    assert error.max() < 5  # standard errors, of 504 averages


def test_it_learns_to_point() -> None:
    torch.manual_seed(0)
    module = make(causal=False).train()
    x = torch.randn(32, 12, WIDTH)
    x[:, :, 0] = 0
    x[torch.arange(32), torch.randint(12, (32,)), 0] = 3  # the marked token is the answer for all
    goal = x[x[:, :, 0] > 0][:, None].expand_as(x)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = (module(x) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_work_too(dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16:
        try:
            devices.check_precision(torch.device("cpu"), "bf16")  # on some processors it is an illegal instruction
        except UserError:
            pytest.skip("this processor has no bf16")
    module, x = make(), torch.randn(2, TOKENS, WIDTH)
    expected = module(x)
    out = module.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    assert torch.allclose(out.float(), expected, atol=0.05 if dtype == torch.bfloat16 else 1e-5)
