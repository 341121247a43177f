"""Layers of transformers as mechanisms of attnlab, with their weights.

    from attnlab.hf.layers import convert_layer
    mechanism = convert_layer(model.model.layers[0].self_attn)

Every class in `_CONVERSIONS` has a function that names the mechanism with its options and gives it the weights of the layer.
A layer for which that is not possible without changing what it computes is refused. Never imports transformers: what is read
are attributes of the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import ops
from attnlab.errors import UserError, refuse
from attnlab.mechanisms.dot import Dot
from attnlab.mechanisms.dsa import SparseLatent
from attnlab.mechanisms.mla import Latent

_Converted = tuple[nn.Module, dict[str, Tensor]]

_TABLE = 2048  # positions whose rotary angles are stored; those of further ones are computed


def convert_layer(layer: nn.Module) -> nn.Module:
    """Return the mechanism that computes the same as this layer of transformers, with a copy of its weights."""
    name = type(layer).__name__
    if name not in _CONVERSIONS:
        raise UserError(f"{name} has no counterpart in attnlab: convert one of {', '.join(sorted(_CONVERSIONS))}")
    mechanism, weights = _CONVERSIONS[name](layer)
    copies = {key: weight.detach().clone(memory_format=torch.contiguous_format) for key, weight in weights.items()}
    mechanism.load_state_dict(copies, assign=True)  # with the data types and devices of the layer
    return mechanism.train(layer.training)


def _rotation(layer: Any, layout: ops.RotaryLayout) -> ops.Rotary:
    """The rotary positions of a layer."""
    rope = layer.config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    refuse(
        type(layer).__name__,
        {f"has scaled rotary positions ({kind}), and attnlab only default ones": kind != "default"},
    )
    return ops.Rotary(layout, rope.get("rope_theta", 10_000.0), rope.get("partial_rotary_factor", 1.0))


def _renamed(layer: nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    """The weights and biases of a layer's parts, under our names."""
    theirs = layer.state_dict()
    return {
        f"{own}.{kind}": theirs[f"{name}.{kind}"]
        for name, own in names.items()
        for kind in ("weight", "bias")
        if f"{name}.{kind}" in theirs
    }


# Dot-product attention with options

_PROJECTIONS = {"q_proj": "heads.query", "k_proj": "heads.key", "v_proj": "heads.value", "o_proj": "out"}


def _dot(layer: Any, **options: Any) -> Dot:
    """Dot-product attention with groups of heads, heads of any width and rotary positions."""
    config = layer.config
    window = getattr(layer, "sliding_window", None)
    refuse(
        type(layer).__name__, {"sees only a window here, and dot sees all: choose a layer of full attention": window}
    )
    return Dot(
        config.hidden_size,
        config.num_attention_heads,
        min(config.max_position_embeddings, _TABLE),
        config.num_key_value_heads,
        layer.head_dim,
        rotary=True,
        rotation=_rotation(layer, "half"),
        bias=config.attention_bias,
        dropout=layer.attention_dropout,
        **options,
    )


def _gpt_oss_attention(layer: Any) -> _Converted:
    """Sinks."""
    return _dot(layer, sinks=True), {**_renamed(layer, _PROJECTIONS), "sinks": layer.sinks}


def _qwen3_next_attention(layer: Any) -> _Converted:
    """Gated outputs, and norms of queries and keys with learned weights."""
    module, weights = _dot(layer, gated=True, qk_norm=True), _renamed(layer, _PROJECTIONS)
    for name in [name for name in weights if name.startswith("heads.query.")]:  # head by head, a query and its gate
        query, gate = weights[name].unflatten(0, (module.heads.n_head, 2, -1)).unbind(1)
        weights[name], weights[name.replace("heads.query", "gate")] = query.flatten(0, 1), gate.flatten(0, 1)
    for norm, theirs in (("query_norm", layer.q_norm), ("key_norm", layer.k_norm)):
        setattr(module.heads, norm, nn.RMSNorm(layer.head_dim, theirs.eps))
        weights[f"heads.{norm}.weight"] = 1 + theirs.weight
    return module, weights


# Latent attention

_LATENTS = {
    "q_proj": "heads.query",
    "q_a_proj": "heads.query_down",
    "q_a_layernorm": "heads.query_norm",
    "q_b_proj": "heads.query",
    "kv_a_proj_with_mqa": "heads.down",
    "kv_a_layernorm": "heads.norm",
    "o_proj": "out",
    "indexer.wq_b": "indexer.query",
    "indexer.wk": "indexer.key",
    "indexer.k_norm": "indexer.norm",
    "indexer.weights_proj": "indexer.weight",
}


def _latent(layer: Any, build: Callable[..., Latent] = Latent, **options: Any) -> _Converted:
    """Latent attention, without positions unless the options say so."""
    config, width, values = layer.config, layer.qk_nope_head_dim, layer.v_head_dim
    reasons = {
        f"has values of width {values} and keys of width {width} without positions, and here they are equal": (
            values != width
        )
    }
    refuse(type(layer).__name__, reasons)
    module = build(
        config.hidden_size,
        layer.num_heads,
        min(config.max_position_embeddings, _TABLE),
        width,
        rank=layer.kv_lora_rank,
        rope=layer.qk_rope_head_dim,
        query_rank=layer.q_lora_rank or 0,
        bias=config.attention_bias,
        dropout=layer.attention_dropout,
        **options,
    )
    both = layer.kv_b_proj.weight.unflatten(0, (layer.num_heads, -1)).split([width, values], dim=1)
    keys, of_values = (part.flatten(0, 1) for part in both)
    return module, {**_renamed(layer, _LATENTS), "keys.weight": keys, "values.weight": of_values}


def _deepseek_v3_attention(layer: Any) -> _Converted:
    """Latent attention with rotary positions."""
    layout: ops.RotaryLayout = "interleaved" if layer.config.rope_interleave else "half"
    return _latent(layer, rotary=True, rotation=_rotation(layer, layout))


def _deepseek_v32_attention(layer: Any) -> _Converted:
    """Latent attention with rotary positions over the tokens that the indexer chooses."""
    indexer = layer.indexer
    return _latent(
        layer,
        SparseLatent,
        rotary=True,
        rotation=_rotation(layer, "interleaved"),
        topk=indexer.index_topk,
        index_heads=indexer.n_heads,
        index_width=indexer.head_dim,
    )


_CONVERSIONS: dict[str, Callable[[Any], _Converted]] = {
    "DeepseekV32Attention": _deepseek_v32_attention,
    "DeepseekV3Attention": _deepseek_v3_attention,
    "GptOssAttention": _gpt_oss_attention,
    "KimiLinearAttention": _latent,
    "Qwen3NextAttention": _qwen3_next_attention,
}
