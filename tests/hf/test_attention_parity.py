"""Attention layers of transformers and what `convert_layer` makes of them: the same outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV32Config, GptOssConfig, KimiLinearConfig, Qwen3NextConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as deepseek_v32
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from attnlab.errors import UserError
from attnlab.hf.layers import convert_layer
from attnlab.inside.taps import capture

WIDTH, TOKENS = 32, 40
ROPE = {"rope_type": "default", "rope_theta": 500.0}
SIZES: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": 4, "num_hidden_layers": 1}
LATENT = SIZES | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
INDEX = {"index_topk": 9, "index_head_dim": 8, "index_n_heads": 16}
LAYERS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "gpt_oss": (
        gpt_oss.GptOssAttention,
        gpt_oss.GptOssRotaryEmbedding,
        GptOssConfig,
        SIZES | {"num_key_value_heads": 2, "head_dim": 16, "layer_types": ["full_attention"], "rope_parameters": ROPE},
    ),
    "qwen3_next": (
        qwen3_next.Qwen3NextAttention,
        qwen3_next.Qwen3NextRotaryEmbedding,
        Qwen3NextConfig,
        SIZES | {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": ROPE | {"partial_rotary_factor": 0.25}},
    ),
    "deepseek_v3": (
        deepseek_v3.DeepseekV3Attention,
        deepseek_v3.DeepseekV3RotaryEmbedding,
        DeepseekV3Config,
        LATENT | {"rope_parameters": ROPE, "attention_bias": True},
    ),
    "deepseek_v3, half-split, queries from the input": (
        deepseek_v3.DeepseekV3Attention,
        deepseek_v3.DeepseekV3RotaryEmbedding,
        DeepseekV3Config,
        LATENT | {"rope_parameters": ROPE, "rope_interleave": False, "q_lora_rank": None},
    ),
    "deepseek_v32": (
        deepseek_v32.DeepseekV32Attention,
        deepseek_v32.DeepseekV32RotaryEmbedding,
        DeepseekV32Config,
        LATENT | INDEX | {"rope_parameters": ROPE},
    ),
    "kimi_linear": (kimi_linear.KimiLinearAttention, None, KimiLinearConfig, LATENT | {"q_lora_rank": None}),
}


def make(name: str, **changed: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A layer with random weights, and the arguments that it takes besides its input, for a causal text."""
    torch.manual_seed(0)
    build, embedding, of_settings, settings = LAYERS[name]
    config = of_settings(**settings | changed)
    config._attn_implementation = "eager"
    layer = build(config, layer_idx=0).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    arguments: dict[str, Any] = {"attention_mask": torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None]}
    if embedding is not None:
        places = torch.arange(TOKENS)[None]
        arguments["position_embeddings"] = embedding(config)(torch.zeros(1, TOKENS, WIDTH), places)
    if name == "deepseek_v32":
        arguments["attention_mask"] = arguments["attention_mask"].expand(2, -1, -1, -1)
    return layer, arguments


def output_and_gradient(call: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    out = call(x)
    out.square().sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


@pytest.mark.parametrize("name", LAYERS)
def test_a_converted_layer_computes_the_same(name: str) -> None:
    layer, arguments = make(name)
    own = convert_layer(layer)
    x = torch.randn(2, TOKENS, WIDTH)
    expected, expected_gradient = output_and_gradient(lambda x: layer(x, **arguments)[0], x)
    out, gradient = output_and_gradient(own, x)
    error = (out - expected).abs().max().item()
    of_gradient = ((gradient - expected_gradient).abs().max() / expected_gradient.abs().max()).item()
    print(
        f"{name}: outputs up to {expected.abs().max():.1f} differ by {error:.1e}, gradients by {of_gradient:.1e} of theirs"
    )
    assert error <= 1e-5 * max(1.0, expected.abs().max().item())
    assert of_gradient <= 1e-5
    with capture(own, "hook_pattern"):  # by the readable reference
        assert (own(x) - expected).abs().max() <= 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", LAYERS)
def test_a_converted_layer_generates_what_the_layer_does(name: str) -> None:
    layer, arguments = make(name)
    own, x = convert_layer(layer), torch.randn(2, TOKENS, WIDTH)
    cache = own.new_cache()  # type: ignore[operator]
    out = torch.cat([own(part, cache=cache) for part in x.split([20, 1, 1, 18], dim=1)], dim=1)
    assert (out - layer(x, **arguments)[0]).abs().max() <= 1e-4


def test_the_chosen_tokens_are_those_of_the_indexer_of_deepseek() -> None:
    layer, arguments = make("deepseek_v32")
    own, x = convert_layer(layer), torch.randn(2, TOKENS, WIDTH)
    latent = layer.q_a_layernorm(layer.q_a_proj(x))  # type: ignore[operator]
    places = layer.indexer(x, latent, arguments["position_embeddings"], arguments["attention_mask"][:, 0], None)  # type: ignore[operator]
    chosen = torch.zeros(2, TOKENS, TOKENS, dtype=torch.bool).scatter(-1, places.long(), True).tril()
    with capture(own, "hook_pattern") as seen:
        own(x)
    assert torch.equal((seen["hook_pattern"] > 0).any(1), chosen)
    assert chosen.sum(-1).max() == 9


def test_what_has_no_equal_is_refused() -> None:
    with pytest.raises(UserError, match="Linear has no counterpart in attnlab: convert one of Deepseek"):
        convert_layer(nn.Linear(2, 2))
    layer, _ = make("gpt_oss", layer_types=["sliding_attention"])
    with pytest.raises(UserError, match="only a window here"):
        convert_layer(layer)
    layer, _ = make("deepseek_v3", v_head_dim=6)
    with pytest.raises(UserError, match="values of width 6 and keys of width 8"):
        convert_layer(layer)
    layer, _ = make("gpt_oss", rope_parameters={**ROPE, "rope_type": "linear", "factor": 2.0})
    with pytest.raises(UserError, match="scaled rotary positions"):
        convert_layer(layer)
