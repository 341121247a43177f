"""The contract of a mechanism, run over everything in the registry on every device that is here: no test names one."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.errors import UserError
from attnlab.inside.taps import capture
from attnlab.lm import devices

WIDTH, HEADS, BLOCK = 32, 4, 24


@pytest.fixture(autouse=True, params=[one for one in ("cpu", "cuda", "xpu", "mps") if devices.available(one)])
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything is made on this device."""
    torch.set_default_device(None if request.param == "cpu" else request.param)
    yield
    torch.set_default_device(None)


def forms(entry: registry.Entry) -> list[dict[str, Any]]:
    """The defaults, and every value of the options that are a choice among names, or yes and no."""
    hints = typing.get_type_hints(entry.build.__init__)
    chosen: list[dict[str, Any]] = [{}]
    for name, parameter in entry.options.items():
        values = (True, False) if hints[name] is bool else typing.get_args(hints[name])
        chosen += [{name: value} for value in values if value != parameter.default]
    return chosen


def named(entries: list[registry.Entry]) -> list[Any]:
    """Every form of some mechanisms, as parameters of a test."""
    return [
        pytest.param(
            (entry.name, form),
            id="-".join([entry.name, *(name if value is True else str(value) for name, value in form.items())]),
        )
        for entry in entries
        for form in forms(entry)
    ]


ENTRIES = [registry.find("mechanism", name) for name in registry.names("mechanism")]
ALL = named(ENTRIES)
HEALTHY = named([entry for entry in ENTRIES if not entry.defect])
SOUND = named([entry for entry in ENTRIES if entry.causal and not entry.defect])
Form = tuple[str, dict[str, Any]]


def make(form: Form, block: int = BLOCK, **asked: Any) -> nn.Module:
    torch.manual_seed(0)
    entry = registry.find("mechanism", form[0])
    accepted = {key: value for key, value in asked.items() if entry.accepts(key)}
    module: nn.Module = entry.build(WIDTH, HEADS, block, **accepted, **form[1])
    return module.eval()


def slack(module: nn.Module, *inputs: Tensor | None) -> float:
    """How much rounding grows: an average whose weights have signs is as ill-conditioned as they cancel, squared."""
    with capture(module, "hook_pattern") as seen, torch.no_grad():
        module(*inputs)
    return max(1.0, seen["hook_pattern"].abs().sum(-1).max().item() ** 2)


VARIANTS = [{}, {"rotary": True, "qk_norm": True}, {"bias": True}]


@pytest.fixture(params=VARIANTS, ids=["plain", "rotary", "bias"])
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_has_a_card(entry: registry.Entry) -> None:
    assert entry.cost
    for heading in ("\nCosts: ", "\nCannot: "):
        assert heading in entry.card
    for name in entry.options:
        assert f"\n{name}\n    " in entry.card, f"{name} is not explained"


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("tokens", [1, 2, 7, BLOCK])
def test_keeps_the_shape_at_any_length(form: Form, tokens: int, variant: dict[str, Any]) -> None:
    x = torch.randn(3, tokens, WIDTH)
    out = make(form, **variant)(x)
    assert out.shape == x.shape
    assert out.isfinite().all()


@pytest.mark.parametrize("form", SOUND)
def test_the_future_does_not_move_the_past(form: Form, variant: dict[str, Any]) -> None:
    module, x = make(form, **variant), torch.randn(2, 12, WIDTH)
    changed = x.clone()
    changed[:, 7:] += torch.randn(2, 5, WIDTH)
    before, after = module(x), module(changed)
    assert (before[:, :7] - after[:, :7]).abs().max() <= 1e-6 * slack(module, x)
    assert (before[:, 7:] - after[:, 7:]).abs().max() > 1e-4


@pytest.mark.parametrize("form", SOUND)
def test_no_gradient_flows_from_the_past_to_the_future(form: Form) -> None:
    x = torch.randn(1, 9, WIDTH, requires_grad=True)
    make(form)(x)[0, 4].sum().backward()
    assert x.grad is not None
    assert x.grad[0, 5:].abs().max() <= 1e-6  # rounding, where a stabiliser cancels
    assert (x.grad[0, :5].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("form", SOUND)
def test_a_prefix_gives_the_same_prefix(form: Form, variant: dict[str, Any]) -> None:
    module, x = make(form, **variant), torch.randn(2, 11, WIDTH)
    assert torch.allclose(module(x)[:, :6], module(x[:, :6]), atol=1e-6 * slack(module, x))


@pytest.mark.parametrize("form", ALL)
def test_rows_of_a_batch_do_not_meet(form: Form, variant: dict[str, Any]) -> None:
    module, x = make(form, **variant), torch.randn(3, 8, WIDTH)
    assert torch.allclose(module(x)[1], module(x[1:2])[0], atol=1e-6)


@pytest.mark.parametrize("form", HEALTHY)
@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_not_looked_at_and_nothing_is_nan(form: Form, causal: bool) -> None:
    module = make(form, causal=causal)
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


@pytest.mark.parametrize("form", ALL)
def test_every_parameter_learns(form: Form) -> None:
    module = make(form, bias=True).train()
    module(torch.randn(2, BLOCK, WIDTH)).square().sum().backward()
    still = {n for n, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert not still - {"heads.key.bias"}  # the softmax forgets what is added to all scores alike


@pytest.mark.parametrize("form", ALL)
def test_same_seed_same_numbers_in_train_and_eval(form: Form) -> None:
    x = torch.randn(2, 8, WIDTH)
    first, second = make(form), make(form).train()
    assert torch.equal(first(x), make(form)(x))
    assert torch.allclose(first(x), second(x), atol=1e-6)


@pytest.mark.parametrize("form", ALL)
def test_goes_through_its_state(form: Form) -> None:
    x, module = torch.randn(2, 8, WIDTH), make(form)
    torch.manual_seed(1)
    other = registry.find("mechanism", form[0]).build(WIDTH, HEADS, BLOCK, **form[1]).eval()
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


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_the_fast_path_equals_the_reference(form: Form, padded: bool, causal: bool, variant: dict[str, Any]) -> None:
    padding = None
    if padded:
        padding = torch.zeros(2, 9, dtype=torch.bool)
        padding[0, 6:] = True
    module = make(form, causal=causal, **variant)
    x = torch.randn(2, 9, WIDTH)
    (fast, fast_grad), (plain, plain_grad) = both_paths(module, x, padding)
    assert torch.allclose(fast, plain, atol=1e-5 * slack(module, x, padding))
    assert torch.allclose(fast_grad, plain_grad, atol=1e-4 * slack(module, x, padding) ** 2)


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_the_fast_path_equals_the_reference_over_many_blocks(form: Form, padded: bool, causal: bool) -> None:
    """For fewer blocks see test_float64_is_computed_in_float64."""
    tokens = 301
    x, padding = torch.randn(2, tokens, WIDTH), None
    if padded:
        padding = torch.zeros(2, tokens, dtype=torch.bool)
        padding[0, tokens - 20 :] = True
        padding[1, :70] = True
    module = make(form, block=320, causal=causal)
    (fast, fast_grad), (plain, plain_grad) = both_paths(module, x, padding)
    assert torch.allclose(fast, plain, atol=2e-5 * slack(module, x, padding))
    assert torch.allclose(fast_grad, plain_grad, atol=2e-4 * slack(module, x, padding) ** 2)


@pytest.mark.parametrize("form", SOUND)
def test_over_many_blocks_the_future_does_not_move_the_past(form: Form) -> None:
    module, x = make(form, block=320), torch.randn(1, 300, WIDTH)
    for cut in (1, 64, 129, 255):
        changed = x.clone()
        changed[:, cut:] = torch.randn(1, 300 - cut, WIDTH) * 3
        assert (module(x)[:, :cut] - module(changed)[:, :cut]).abs().max() <= 1e-6


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.defect], ids=lambda entry: entry.name)
def test_a_declared_defect_is_really_there(entry: registry.Entry) -> None:
    module, x = make((entry.name, {})), torch.randn(2, 12, WIDTH)
    changed = x.clone()
    changed[:, 7:] += torch.randn(2, 5, WIDTH)
    assert (module(x)[:, :7] - module(changed)[:, :7]).abs().max() > 1e-3


@pytest.mark.parametrize("form", HEALTHY)
@pytest.mark.parametrize("size", [1e-3, 30.0, 1e4])
def test_any_size_of_input_gives_numbers(form: Form, size: float) -> None:
    for causal in (True, False):
        x = (torch.randn(2, 20, WIDTH) * size).requires_grad_()
        out = make(form, causal=causal)(x)
        out.sum().backward()
        assert out.isfinite().all()
        assert x.grad is not None
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("form", SOUND)
@pytest.mark.parametrize("pieces", [[1] * 10, [4, 1, 1, 4], [3, 7]])
def test_with_a_cache_is_as_without(form: Form, pieces: list[int], variant: dict[str, Any]) -> None:
    module, x = make(form, **variant), torch.randn(2, 10, WIDTH)
    cache = module.new_cache()  # type: ignore[operator]
    parts = [module(part, cache=cache) for part in x.split(pieces, dim=1)]
    assert cache.length == 10
    assert torch.allclose(torch.cat(parts, dim=1), module(x), atol=1e-5 * slack(module, x))


@pytest.mark.parametrize("form", SOUND)
def test_a_text_goes_on_in_several_ways(form: Form) -> None:
    module, x, rows = make(form), torch.randn(2, 10, WIDTH), torch.tensor([1, 0, 1])
    ways = torch.cat([x[rows, :6], torch.randn(3, 4, WIDTH)], dim=1)
    cache = module.new_cache()  # type: ignore[operator]
    module(x[:, :6], cache=cache)
    chosen = cache.select(rows)
    assert chosen.length == cache.length == 6
    assert torch.allclose(module(ways[:, 6:], cache=chosen), module(ways)[:, 6:], atol=1e-5 * slack(module, ways))


@pytest.mark.parametrize("form", HEALTHY)
@pytest.mark.parametrize("causal", [True, False])
def test_float64_is_computed_in_float64(form: Form, causal: bool) -> None:
    if torch.get_default_device().type == "mps":
        pytest.skip("mps has no float64")
    module = make(form, block=160, causal=causal, bias=True).double()
    x = torch.randn(2, 150, WIDTH, dtype=torch.float64)
    padding = torch.arange(150) >= torch.tensor([[150], [99]])
    (fast, fast_grad), (plain, plain_grad) = both_paths(module, x, padding)
    assert fast.dtype == fast_grad.dtype == torch.float64
    assert torch.allclose(fast, plain, atol=1e-12 * slack(module, x, padding), rtol=0)
    assert torch.allclose(fast_grad, plain_grad, atol=1e-11 * slack(module, x, padding) ** 2, rtol=0)


@pytest.fixture(params=["bf16", "fp16"])
def half(request: pytest.FixtureRequest) -> torch.dtype:
    """A precision of autocast; the processor can be slow at fp16, which training refuses there, but shows overflows."""
    try:
        devices.check_precision(torch.get_default_device(), "bf16")
    except UserError as error:
        pytest.skip(str(error))
    return devices._HALF[request.param]


@pytest.mark.parametrize("form", HEALTHY)
@pytest.mark.parametrize("watched", [False, True])
def test_autocast_gives_nearly_the_same(form: Form, watched: bool, half: torch.dtype) -> None:
    module, x = make(form, block=160, rotary=True, qk_norm=True), torch.randn(2, 150, WIDTH)
    padding = torch.arange(150) >= torch.tensor([[150], [99]])
    exact = module(x, padding).detach()
    inputs = x.clone().requires_grad_()
    with torch.autocast(x.device.type, half), capture(module, "hook_pattern") if watched else nullcontext():
        out = module(inputs, padding)
    condition = slack(module, x, padding)
    assert (out - exact).norm() < 0.03 * condition * exact.norm()
    (out.float().square().mean() / condition**2).backward()
    for one in (inputs, *module.parameters()):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        assert one.grad.isfinite().all()
