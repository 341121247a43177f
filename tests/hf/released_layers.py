"""Layers of transformers with random weights, and how far those that `convert_layer` makes of them are from them.

    PYTHONPATH=src:tests/hf python tests/hf/released_layers.py > docs/parity.json

writes the figures that docs/mechanisms.md shows; test_layer_parity.py measures them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.hf.layers import convert_layer

WIDTH = 48
ROPE = {"rope_type": "default", "rope_theta": 500.0}
SIZES: dict[str, Any] = {"hidden_size": WIDTH, "num_attention_heads": 4, "num_hidden_layers": 4}
GROUPED = SIZES | {"num_key_value_heads": 2}
DELTA = GROUPED | {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
OLMO = DELTA | {"linear_num_key_heads": 4}
KIMI = SIZES | {"num_key_value_heads": 4} | {"linear_num_heads": 4, "linear_head_dim": 16}
MAMBA = {"num_hidden_layers": 2, "hidden_size": WIDTH, "num_heads": 8, "head_dim": 12, "state_size": 10, "n_groups": 2}
LATENT = SIZES | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
INDEX = {"index_topk": 9, "index_head_dim": 8, "index_n_heads": 16}


@dataclass(frozen=True)
class Released:
    """A layer class of transformers, in models/`package`, and the settings of a tiny one."""

    model: str
    package: str
    layer: str
    config: str
    settings: dict[str, Any]
    attention: bool = False  # takes a mask of pairs
    rotary: str = ""  # the class that computes its angles
    tokens: int = 150  # more than two chunks of the recurrent ones


LAYERS = {
    "qwen3_next": Released("Qwen3-Next", "qwen3_next", "Qwen3NextGatedDeltaNet", "Qwen3NextConfig", DELTA),
    "qwen3_next, equal heads": Released(
        "Qwen3-Next, as many heads of keys as of values",
        "qwen3_next",
        "Qwen3NextGatedDeltaNet",
        "Qwen3NextConfig",
        OLMO | {"rms_norm_eps": 1e-5},
    ),
    "qwen3_5": Released("Qwen3.5", "qwen3_5", "Qwen3_5GatedDeltaNet", "Qwen3_5TextConfig", DELTA),
    "qwen3_5_moe": Released("Qwen3.5 MoE", "qwen3_5_moe", "Qwen3_5MoeGatedDeltaNet", "Qwen3_5MoeTextConfig", DELTA),
    "olmo_hybrid": Released("Olmo Hybrid", "olmo_hybrid", "OlmoHybridGatedDeltaNet", "OlmoHybridConfig", OLMO),
    "olmo_hybrid, positive": Released(
        "Olmo Hybrid, strengths up to 1, convolution of 3",
        "olmo_hybrid",
        "OlmoHybridGatedDeltaNet",
        "OlmoHybridConfig",
        OLMO | {"linear_allow_neg_eigval": False, "linear_conv_kernel_dim": 3},
    ),
    "kimi_delta": Released("Kimi Linear", "kimi_linear", "KimiLinearDeltaAttention", "KimiLinearConfig", KIMI),
    "glm5_next": Released("GLM-5.3", "glm5_next", "Glm5NextTextLinearAttention", "Glm5NextTextConfig", KIMI),
    "mamba2": Released("Mamba-2", "mamba2", "Mamba2Mixer", "Mamba2Config", MAMBA),
    "mamba2, biases": Released(
        "Mamba-2, biases, none in the convolution",
        "mamba2",
        "Mamba2Mixer",
        "Mamba2Config",
        MAMBA | {"use_bias": True, "use_conv_bias": False},
    ),
    "minimax": Released(
        "MiniMax", "minimax", "MiniMaxLightningAttention", "MiniMaxConfig", GROUPED | {"head_dim": 16, "block_size": 64}
    ),
    "gpt_oss": Released(
        "gpt-oss",
        "gpt_oss",
        "GptOssAttention",
        "GptOssConfig",
        GROUPED | {"head_dim": 16, "layer_types": ["full_attention"] * 4, "rope_parameters": ROPE},
        attention=True,
        rotary="GptOssRotaryEmbedding",
    ),
    "qwen3_next, attention": Released(
        "Qwen3-Next",
        "qwen3_next",
        "Qwen3NextAttention",
        "Qwen3NextConfig",
        GROUPED | {"head_dim": 16, "rope_parameters": ROPE | {"partial_rotary_factor": 0.25}},
        attention=True,
        rotary="Qwen3NextRotaryEmbedding",
    ),
    "kimi_linear": Released(
        "Kimi Linear",
        "kimi_linear",
        "KimiLinearAttention",
        "KimiLinearConfig",
        LATENT | {"q_lora_rank": None},
        attention=True,
    ),
    "deepseek_v3": Released(
        "DeepSeek-V3",
        "deepseek_v3",
        "DeepseekV3Attention",
        "DeepseekV3Config",
        LATENT | {"rope_parameters": ROPE, "attention_bias": True},
        attention=True,
        rotary="DeepseekV3RotaryEmbedding",
    ),
    "deepseek_v3, half-split": Released(
        "DeepSeek-V3, rotary halves, queries from the input",
        "deepseek_v3",
        "DeepseekV3Attention",
        "DeepseekV3Config",
        LATENT | {"rope_parameters": ROPE, "rope_interleave": False, "q_lora_rank": None},
        attention=True,
        rotary="DeepseekV3RotaryEmbedding",
    ),
    "deepseek_v32": Released(
        "DeepSeek-V3.2, with its indexer",
        "deepseek_v32",
        "DeepseekV32Attention",
        "DeepseekV32Config",
        LATENT | INDEX | {"rope_parameters": ROPE},
        attention=True,
        rotary="DeepseekV32RotaryEmbedding",
        tokens=40,
    ),
}
RECURRENT = [name for name, released in LAYERS.items() if not released.attention]


def original(name: str, **changed: Any) -> nn.Module:
    """A layer of transformers with weights that matter: memories from one token to hundreds."""
    torch.manual_seed(0)
    released = LAYERS[name]
    package = f"transformers.models.{released.package}"
    config = getattr(import_module(f"{package}.configuration_{released.package}"), released.config)
    settings = config(**released.settings | changed)
    settings._attn_implementation = "eager"
    module: nn.Module = getattr(import_module(f"{package}.modeling_{released.package}"), released.layer)(settings, 1)
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


def arguments(name: str, layer: Any, x: Tensor) -> dict[str, Any]:
    """What a layer of attention takes besides its input, for a causal text; a recurrent one takes nothing."""
    released, tokens = LAYERS[name], x.shape[1]
    if not released.attention:
        return {"position_embeddings": None, "attention_mask": None} if name == "minimax" else {}
    more = {"attention_mask": torch.full((len(x), 1, tokens, tokens), -torch.inf).triu(1)}
    if released.rotary:
        modeling = import_module(f"transformers.models.{released.package}.modeling_{released.package}")
        more["position_embeddings"] = getattr(modeling, released.rotary)(layer.config)(x, torch.arange(tokens)[None])
    return more


def output(name: str, layer: nn.Module, x: Tensor, **given: Any) -> Tensor:
    """The output of a layer of transformers."""
    answer = layer(x, **arguments(name, layer, x) | given)
    return answer[0] if isinstance(answer, tuple) else answer


def distances(theirs: Callable[[Tensor], Tensor], ours: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """The largest differences of outputs and of gradients by the input, as shares of the largest values."""
    results = []
    for function in (theirs, ours):
        inputs = x.clone().requires_grad_()
        out = function(inputs)
        out.sin().sum().backward()
        assert inputs.grad is not None
        results.append((out.detach(), inputs.grad))
    for expected in results[0]:
        assert expected.abs().max() > 0.1
    outputs, gradients = (
        ((own - expected).abs().max() / expected.abs().max()).item() for expected, own in zip(*results, strict=True)
    )
    return outputs, gradients


def measured(name: str) -> dict[str, Any]:
    """The row of a layer: what was compared with what, and how far they are apart."""
    layer, released = original(name), LAYERS[name]
    mechanism, x = convert_layer(layer), torch.randn(2, released.tokens, WIDTH)
    own = next(
        entry for entry in registry.names("mechanism") if registry.find("mechanism", entry).build is type(mechanism)
    )
    outputs, gradients = distances(lambda x: output(name, layer, x), mechanism, x)
    return {
        "model": released.model,
        "layer": released.layer,
        "mechanism": own,
        "tokens": released.tokens,
        "outputs": float(f"{outputs:.1e}"),
        "gradients": float(f"{gradients:.1e}"),
    }


if __name__ == "__main__":
    print(json.dumps({name: measured(name) for name in LAYERS}, indent=1))
