"""Recurrent mechanisms beside the formulas of their papers, and what their base promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnlab import ops, registry
from attnlab.config import ModelConfig
from attnlab.errors import ConfigError, UserError
from attnlab.inside.taps import capture, patch
from attnlab.lm.model import LanguageModel
from attnlab.mechanisms.recurrent import Gates, Recurrent

WIDTH, HEADS, TOKENS = 32, 4, 40
HEAD = WIDTH // HEADS
NAMES = [
    name
    for name in registry.names("mechanism")
    if isinstance(build := registry.find("mechanism", name).build, type) and issubclass(build, Recurrent)
]


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return registry.find("mechanism", name).build(WIDTH, HEADS, TOKENS, **options).eval()


def text() -> Tensor:
    return torch.randn(2, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_head(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def normalised(z: Tensor) -> Tensor:
    """Each head of [B, H, T, C] at a root mean square of one, heads side by side."""
    return (z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()).transpose(1, 2).flatten(2)


def test_all_recurrent_mechanisms_are_registered_as_ordered() -> None:
    assert {"delta", "gated_delta", "gla", "kda", "mamba2", "retnet"} <= set(NAMES)
    for name in NAMES:
        assert registry.find("mechanism", name).ordered


@pytest.mark.parametrize("negative", [False, True])
def test_deltanet_takes_gradient_steps(negative: bool) -> None:
    """S <- S (I - β k kᵀ) + β v kᵀ, o = S q / sqrt(d) (arXiv:2406.06484, equation 2)."""
    module, x = make("delta", conv=0, negative=negative).double(), text()
    q, k, v = (by_head(F.silu(part(x))) for part in (module.query, module.key, module.value))
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    strength = (2 if negative else 1) * module.strength(x).sigmoid().transpose(1, 2)
    state, outputs = torch.zeros(2, HEADS, HEAD, HEAD, dtype=torch.float64), []
    for t in range(TOKENS):
        key, beta = k[:, :, t, :, None], strength[:, :, t, None, None]
        state = state @ (torch.eye(HEAD) - beta * key @ key.mT) + beta * v[:, :, t, :, None] @ key.mT
        outputs.append((state @ q[:, :, t, :, None])[..., 0] / HEAD**0.5)
    expected = normalised(torch.stack(outputs, dim=2)) @ module.out.weight.T
    assert (module(x) - expected).abs().max() <= 1e-12


def test_gated_linear_attention_decays_by_channel() -> None:
    """S <- diag(α) S + k vᵀ, o = Sᵀ q / sqrt(d), α = sigmoid(low rank)^(1/16) (arXiv:2312.06635, section 4)."""
    module, x = make("gla").double(), text()
    q, k, v = (by_head(part(x)) for part in (module.query, module.key, module.value))
    assert q.shape[-1] == k.shape[-1] == HEAD // 2
    down, up = module.decay
    assert down.out_features == 16
    kept = by_head((down(x) @ up.weight.T + up.bias).sigmoid() ** (1 / 16))
    state, outputs = torch.zeros(2, HEADS, HEAD // 2, HEAD, dtype=torch.float64), []
    for t in range(TOKENS):
        state = kept[:, :, t, :, None] * state + k[:, :, t, :, None] @ v[:, :, t, None]
        outputs.append((q[:, :, t, None] @ state)[:, :, 0] / (HEAD // 2) ** 0.5)
    expected = (normalised(torch.stack(outputs, dim=2)) * F.silu(module.output_gate(x))) @ module.out.weight.T
    assert (module(x) - expected).abs().max() <= 1e-12


def test_retention_is_its_parallel_form() -> None:
    """(Q Kᵀ ⊙ D) V with rotated Q and K and D = γ^(n - m), γ = 1 - 2^(-5 - head) (arXiv:2307.08621, section 2.1)."""
    module, x = make("retnet").double(), text()
    q, k, v = (by_head(part(x)) for part in (module.query, module.key, module.value))
    table = ops.rotary_table(TOKENS, HEAD).double()
    place = torch.arange(TOKENS, dtype=torch.float64)
    factor = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
    decay = (factor[:, None, None] ** (place[:, None] - place)).tril()
    z = (ops.rotate(q, table) @ ops.rotate(k, table).mT * decay / HEAD**0.5) @ v
    expected = (normalised(z) * F.silu(module.output_gate(x))) @ module.out.weight.T
    assert (module(x) - expected).abs().max() <= 1e-7  # the decays are stored in float32


def test_the_pattern_of_mamba2_has_its_skip_on_the_diagonal() -> None:
    module, x = make("mamba2"), torch.randn(2, TOKENS, WIDTH)
    patterns = []
    for share in (0.0, 3.0):
        torch.nn.init.constant_(module.skip, share)
        with capture(module, "hook_pattern") as seen:
            module(x)
        patterns.append(seen["hook_pattern"])
    assert torch.allclose(patterns[1] - patterns[0], 3 * torch.eye(TOKENS), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_stays_as_large_as_after_the_first_tokens(name: str) -> None:
    module = make(name, conv=4)
    cache, sizes = module.new_cache(), set()
    for tokens in (5, 1, 20):
        module(torch.randn(2, tokens, WIDTH), cache=cache)
        sizes.add(tuple(part.untyped_storage().nbytes() for part in (cache.state, cache.recent)))
    assert len(sizes) == 1
    assert cache.recent.shape[1] == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("conv", [0, 4])
@pytest.mark.parametrize("pieces", [[1] * 12, [5, 7], [3, 1, 8]])
def test_hidden_tokens_are_hidden_in_a_cache_too(name: str, conv: int, pieces: list[int]) -> None:
    module, x = make(name, conv=conv), torch.randn(2, 12, WIDTH)
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[0, :3] = padding[1, 5:7] = True
    changed = torch.where(padding[..., None], torch.randn(2, 12, WIDTH), x)
    cache, parts, end = module.new_cache(), [], 0
    for part in changed.split(pieces, dim=1):
        end += part.shape[1]
        parts.append(module(part, padding[:, :end], cache))
    apart = (torch.cat(parts, dim=1) - module(x, padding)).masked_fill(padding[..., None], 0.0)
    assert apart.abs().max() <= 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_the_state_stays_in_float32_under_autocast(name: str) -> None:
    module = make(name)
    cache = module.new_cache()
    with torch.autocast("cpu", torch.bfloat16):
        module(torch.randn(1, 5, WIDTH), cache=cache)
        module(torch.randn(1, 1, WIDTH), cache=cache)
    assert cache.state.dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_memories_are_spread_after_the_initialisation_of_a_model(name: str) -> None:
    """`reset_parameters` sets matrices and biases of every Linear; the decays begin near those of the releases."""
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_head": 8, "n_layer": 1, "vocab_size": 40, "block_size": 24}
    (layer,) = LanguageModel(ModelConfig(mechanism=name, **sizes)).mechanisms  # type: ignore[arg-type]
    decay = layer.gates(torch.randn(1, 50, 64)).decay  # type: ignore[operator]
    if decay is None:
        assert name == "delta"
        return
    kept = decay.exp().mean(1).flatten()
    assert kept.min() > 0.1
    assert kept.max() > 0.95
    assert kept.max() < 1


def test_the_state_is_shown_but_cannot_be_patched() -> None:
    module, x = make("gated_delta"), torch.randn(1, 6, WIDTH)
    with pytest.raises(UserError, match="hook_state can only be read"), patch(module, {"hook_state": torch.zeros_like}):
        module(x)


def test_decays_with_a_floor_stay_above_it() -> None:
    module = make("kda", floor=-5.0)
    decay = module.gates(1e3 * torch.randn(1, 50, WIDTH)).decay
    assert -5 <= decay.min() < -4.9
    with pytest.raises(ConfigError, match="must be negative"):
        make("kda", floor=5.0)


def test_gates_of_a_wrong_shape_are_refused_and_any_float_type_is_taken() -> None:
    module, x = make("delta"), torch.randn(2, 9, WIDTH)
    right = torch.full((2, 9, HEADS, 1), -0.1)
    for gate in ("decay", "write", "erase"):
        for wrong in (right[..., 0], right.expand(-1, -1, -1, 3), right[:1], right[:, :5]):
            module.gates = lambda _, gate=gate, wrong=wrong: Gates(**{gate: wrong})
            with pytest.raises(UserError, match=rf"as {gate}: return \[2, 9, {HEADS}, 1\]"):
                module(x)
    outputs = []
    for dtype in (torch.float32, torch.float64):
        module.gates = lambda _, dtype=dtype: Gates(decay=right.to(dtype))
        outputs.append(module(x))
    assert torch.equal(*outputs)


def test_keys_of_length_one_are_so_in_float32_also_in_models_of_16_bits() -> None:
    module = make("delta", conv=0).bfloat16()
    with capture(module, "hook_k") as seen:
        module(torch.randn(2, TOKENS, WIDTH, dtype=torch.bfloat16))
    assert (seen["hook_k"].square().sum(-1) <= 1 + 1e-6).all()


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 heads cannot share 3 heads of keys"):
        make("mamba2", groups=3)
    with pytest.raises(ConfigError, match="at least 1"):
        make("kda", conv=-1)
    for options in ({"expand": 0.0}, {"groups": 0}):
        with pytest.raises(ConfigError, match="at least one group and values of at least one channel"):
            make("mamba2", **options)


def test_groups_of_heads_share_queries_and_keys() -> None:
    module = make("gated_delta", key_heads=2, key_width=5, value_width=3)
    with capture(module) as seen:
        module(torch.randn(2, 6, WIDTH))
    assert seen["hook_v"].shape == (2, 6, HEADS, 3)
    for part in (seen["hook_q"], seen["hook_k"]):
        assert part.shape == (2, 6, HEADS, 5)
        assert torch.equal(part[:, :, 0], part[:, :, 1])
        assert not torch.equal(part[:, :, 1], part[:, :, 2])
