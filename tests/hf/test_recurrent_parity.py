"""Recurrent layers of transformers, converted, beside the originals: outputs, gradients, padding and decoding."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.errors import UserError
from attnlab.hf.layers import convert_layer

WIDTH, TOKENS = 48, 150  # more than two chunks of the originals
HYBRID = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": WIDTH}
HEADS = {"linear_key_head_dim": 8, "linear_value_head_dim": 12}
SHARED = HYBRID | HEADS | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
OLMO = HYBRID | {"linear_num_key_heads": 4, "linear_num_value_heads": 4}
MAMBA = {"num_hidden_layers": 2, "hidden_size": WIDTH, "num_heads": 8, "head_dim": 12, "state_size": 10, "n_groups": 2}

# model, configuration, layer, settings
LAYERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "qwen3_next": ("qwen3_next", "Qwen3NextConfig", "Qwen3NextGatedDeltaNet", SHARED),
    "qwen3_next_equal_heads": (
        "qwen3_next",
        "Qwen3NextConfig",
        "Qwen3NextGatedDeltaNet",
        SHARED | {"linear_num_key_heads": 4, "rms_norm_eps": 1e-5},
    ),
    "qwen3_5": ("qwen3_5", "Qwen3_5TextConfig", "Qwen3_5GatedDeltaNet", SHARED),
    "qwen3_5_moe": ("qwen3_5_moe", "Qwen3_5MoeTextConfig", "Qwen3_5MoeGatedDeltaNet", SHARED),
    "olmo_hybrid": ("olmo_hybrid", "OlmoHybridConfig", "OlmoHybridGatedDeltaNet", OLMO),
    "olmo_hybrid_positive": (
        "olmo_hybrid",
        "OlmoHybridConfig",
        "OlmoHybridGatedDeltaNet",
        OLMO | {"linear_allow_neg_eigval": False, "linear_conv_kernel_dim": 3},
    ),
    "kimi_linear": (
        "kimi_linear",
        "KimiLinearConfig",
        "KimiLinearDeltaAttention",
        HYBRID | {"linear_num_heads": 4, "linear_head_dim": 16},
    ),
    "mamba2": ("mamba2", "Mamba2Config", "Mamba2Mixer", MAMBA),
    "mamba2_biases": ("mamba2", "Mamba2Config", "Mamba2Mixer", MAMBA | {"use_bias": True, "use_conv_bias": False}),
    "minimax": ("minimax", "MiniMaxConfig", "MiniMaxLightningAttention", HYBRID | {"head_dim": 16, "block_size": 64}),
}


def original(name: str, **settings: Any) -> nn.Module:
    """A layer of transformers with weights that matter: memories from one token to hundreds."""
    torch.manual_seed(0)
    model, config, layer, defaults = LAYERS[name]
    package = f"transformers.models.{model}"
    configuration = getattr(import_module(f"{package}.configuration_{model}"), config)(**defaults | settings)
    module: nn.Module = getattr(import_module(f"{package}.modeling_{model}"), layer)(configuration, 1)
    for key, parameter in module.named_parameters():
        last = key.rpartition(".")[2]
        if last == "A_log":
            nn.init.uniform_(parameter, 0.0, 2.0)
        elif last == "dt_bias":
            nn.init.uniform_(parameter, -6.0, -1.0)
        elif "norm" in key or last == "D":
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            nn.init.normal_(parameter, std=0.25)
    return module.eval()


def output(layer: nn.Module, x: Tensor, visible: Tensor | None = None) -> Tensor:
    """The output of a layer of transformers."""
    if type(layer).__name__ == "MiniMaxLightningAttention":
        return layer(x, position_embeddings=None, attention_mask=visible)[0]
    return layer(x, attention_mask=visible)


def compared(theirs: Callable[[Tensor], Tensor], ours: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """The largest differences of outputs and of gradients of the input, relative to the largest values."""
    results = []
    for function in (theirs, ours):
        inputs = x.clone().requires_grad_()
        out = function(inputs)
        out.sin().sum().backward()
        assert inputs.grad is not None
        results.append((out.detach(), inputs.grad))
    (out, grad), (own_out, own_grad) = results
    assert out.abs().max() > 0.1
    assert grad.abs().max() > 0.1
    return (
        ((out - own_out).abs().max() / out.abs().max()).item(),
        ((grad - own_grad).abs().max() / grad.abs().max()).item(),
    )


@pytest.mark.parametrize("name", LAYERS)
def test_a_converted_layer_gives_the_same_outputs_and_gradients(name: str) -> None:
    layer = original(name)
    apart = compared(lambda x: output(layer, x), convert_layer(layer), torch.randn(2, TOKENS, WIDTH))
    assert max(apart) <= 1e-4


@pytest.mark.parametrize("name", LAYERS)
def test_a_converted_layer_hides_the_same_tokens(name: str) -> None:
    """Beside the original without padding: with it, the biases of hidden tokens enter the convolution of Mamba2Mixer."""
    layer, x = original(name), torch.randn(2, 20, WIDTH)
    padding = torch.arange(20) < torch.tensor([[0], [7]])
    ours = convert_layer(layer)
    apart = compared(lambda x: output(layer, x[1:, 7:]), lambda x: ours(x, padding)[1:, 7:], x)
    assert max(apart) <= 1e-4
    if name != "mamba2_biases":
        assert torch.allclose(output(layer, x, ~padding)[1, 7:], ours(x, padding)[1, 7:], atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_decoding_with_a_converted_layer_is_as_the_whole_text_with_the_original(name: str) -> None:
    layer, x = original(name), torch.randn(2, TOKENS, WIDTH)
    ours, expected = convert_layer(layer), output(layer, x).detach()
    with torch.no_grad():
        for pieces in ([1] * TOKENS, [100, 1, 1, 48]):
            cache = ours.new_cache()  # type: ignore[operator]
            out = torch.cat([ours(part, cache=cache) for part in x.split(pieces, dim=1)], dim=1)
            assert (out - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_a_converted_layer_has_weights_of_its_own_in_the_data_type_of_the_layer() -> None:
    layer = original("kimi_linear").bfloat16()
    ours = convert_layer(layer)
    x = torch.randn(1, 9, WIDTH, dtype=torch.bfloat16)
    before = ours(x)
    assert before.dtype == torch.bfloat16
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(ours(x), before)
    assert all(parameter.requires_grad for parameter in ours.parameters())


def test_layers_that_cannot_be_converted_are_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="Linear has no counterpart in attnlab: convert one of .*Mamba2Mixer"):
        convert_layer(nn.Linear(2, 2))
    with pytest.raises(UserError, match="Mamba2Mixer limits its steps to"):
        convert_layer(original("mamba2", time_step_limit=(0.0, 0.5)))
    for name in ("mamba2", "minimax", "kimi_linear", "olmo_hybrid"):
        with pytest.raises(UserError, match="only layers with silu"):
            convert_layer(original(name, hidden_act="gelu"))
