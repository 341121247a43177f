"""Layers of transformers as mechanisms of attnlab, with their weights.

    from attnlab.hf.layers import convert_layer
    mechanism = convert_layer(model.model.layers[0].linear_attn)

Every class in `_CONVERSIONS` has a function that names the mechanism with its options and gives it the weights of the layer.
A layer for which that is not possible without changing what it computes is refused. Never imports transformers: what is read
are attributes of the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import ops, registry
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


def _renamed(layer: nn.Module, names: str) -> dict[str, Tensor]:
    """The weights and biases of a layer's parts, under our names; `names` are pairs of theirs and ours."""
    theirs, pairs = layer.state_dict(), (pair.split(":") for pair in names.split())
    places = ((f"{name}.{kind}", f"{own}.{kind}") for name, own in pairs for kind in ("weight", "bias"))
    return {own: theirs[name] for name, own in places if name in theirs}


# Recurrent


def _require_silu(layer: nn.Module, activation: str) -> None:
    """Refuse a layer with another activation."""
    reason = f"uses {activation}, which attnlab's mechanism does not have: only layers with silu can be converted"
    refuse(type(layer).__name__, {reason: activation not in ("silu", "swish", "SiLU", "SiLUActivation")})


def _build(name: str, n_embd: int, n_head: int, epsilon: float, bias: bool = False, **options: Any) -> nn.Module:
    """A recurrent mechanism with the epsilon of the layer's norm."""
    mechanism: Any = registry.find("mechanism", name).make((n_embd, n_head, 1), options, bias=bias)
    mechanism.epsilon = epsilon
    return mechanism


def _gated_delta(
    layer: Any, projections: dict[str, Tensor], norm: Any, out: nn.Linear, negative: bool = False
) -> _Converted:
    """Gated DeltaNet, whose releases differ in how they fuse projections."""
    _require_silu(layer, layer.activation)
    mechanism = _build(
        "gated_delta",
        layer.hidden_size,
        layer.num_v_heads,
        norm.variance_epsilon,
        conv=layer.conv_kernel_size,
        negative=negative,
        key_heads=layer.num_k_heads,
        key_width=layer.head_k_dim,
        value_width=layer.head_v_dim,
    )
    return mechanism, {f"{name}.weight": weight for name, weight in projections.items()} | {
        "conv.weight": layer.conv1d.weight[:, 0],
        "decay.bias": layer.dt_bias,
        "decay.rate": layer.A_log,
        "norm": norm.weight,
        "out.weight": out.weight,
    }


def _qwen3_next(layer: Any) -> _Converted:
    """All projections of a head of keys stand together."""
    values = layer.head_v_dim * layer.num_v_heads // layer.num_k_heads
    names = ("query", "key", "value", "output_gate"), ("strength", "decay.projection")
    sizes = (layer.head_k_dim, layer.head_k_dim, values, values), (layer.num_v_heads // layer.num_k_heads,) * 2
    projections: dict[str, Tensor] = {}
    for fused, parts, widths in zip((layer.in_proj_qkvz, layer.in_proj_ba), names, sizes, strict=True):
        rows = fused.weight.unflatten(0, (layer.num_k_heads, -1)).split(widths, dim=1)
        projections |= {name: part.flatten(0, 1) for name, part in zip(parts, rows, strict=True)}
    return _gated_delta(layer, projections, layer.norm, layer.out_proj)


def _qwen3_5(layer: Any) -> _Converted:
    """Queries, keys and values are fused."""
    q, k, v = layer.in_proj_qkv.weight.split([layer.key_dim, layer.key_dim, layer.value_dim])
    gate, strength, decay = (part.weight for part in (layer.in_proj_z, layer.in_proj_b, layer.in_proj_a))
    projections = {"query": q, "key": k, "value": v, "output_gate": gate}
    projections |= {"strength": strength, "decay.projection": decay}
    return _gated_delta(layer, projections, layer.norm, layer.out_proj)


def _olmo_hybrid(layer: Any) -> _Converted:
    """Every projection stands alone."""
    letters = {"query": "q", "key": "k", "value": "v", "output_gate": "g", "strength": "b", "decay.projection": "a"}
    projections = {name: getattr(layer, f"{letter}_proj").weight for name, letter in letters.items()}
    return _gated_delta(layer, projections, layer.o_norm, layer.o_proj, layer.allow_neg_eigval)


_KIMI_DELTA = (
    "q_proj:query k_proj:key v_proj:value b_proj:strength g_a_proj:output_gate.0 g_b_proj:output_gate.1 o_proj:out"
    " forget_gate.f_a_proj:decay.projection.0 forget_gate.f_b_proj:decay.projection.1"
)


def _kimi_delta(layer: Any) -> _Converted:
    """Kimi Delta Attention, in GLM-5.3 with bounded decays."""
    _require_silu(layer, layer.activation)
    forget = layer.forget_gate
    mechanism = _build(
        "kda",
        layer.hidden_size,
        layer.num_heads,
        layer.o_norm.variance_epsilon,
        conv=layer.conv_kernel_size,
        head_width=layer.head_dim,
        floor=getattr(forget, "safe_gate_lower_bound", None) or 0.0,
    )
    return mechanism, _renamed(layer, _KIMI_DELTA) | {
        "conv.weight": layer.conv1d.weight[:, 0],
        "decay.bias": forget.dt_bias,
        "decay.rate": forget.A_log.flatten(),
        "norm": layer.o_norm.weight,
    }


def _mamba2(layer: Any) -> _Converted:
    """Mamba-2, whose C, B and x are queries, keys and values."""
    _require_silu(layer, layer.activation)
    limits = tuple(layer.time_step_limit)
    refuse("Mamba2Mixer", {f"limits its steps to {limits}: it cannot be converted": limits != (0.0, float("inf"))})
    mechanism = _build(
        "mamba2",
        layer.hidden_size,
        layer.num_heads,
        layer.norm.variance_epsilon,
        bias=layer.use_bias,
        state=layer.ssm_state_size,
        groups=layer.n_groups,
        expand=layer.intermediate_size / layer.hidden_size,
        conv=layer.conv_kernel_size,
    )
    values, keys = layer.intermediate_size, layer.n_groups * layer.ssm_state_size
    conv_bias = torch.zeros_like(layer.conv1d.weight[:, 0, 0]) if layer.conv1d.bias is None else layer.conv1d.bias
    weights = {
        "conv.weight": _reversed(layer.conv1d.weight[:, 0], [values, keys, keys]),
        "conv.bias": _reversed(conv_bias, [values, keys, keys]),
        "decay.bias": layer.dt_bias,
        "decay.rate": layer.A_log,
        "skip": layer.D,
        "norm": layer.norm.weight.unflatten(0, (layer.num_heads, -1)),
        "out.weight": layer.out_proj.weight,
    }
    names = "output_gate", "value", "key", "query", "decay.projection"
    sizes = [values, values, keys, keys, layer.num_heads]
    rows = zip(names, layer.in_proj.weight.split(sizes), strict=True)
    weights |= {f"{name}.weight": part for name, part in rows}
    if layer.use_bias:
        *biases, step_bias = layer.in_proj.bias.split(sizes)
        weights |= {f"{name}.bias": part for name, part in zip(names, biases, strict=False)}
        weights |= {"decay.bias": layer.dt_bias + step_bias, "out.bias": layer.out_proj.bias}
    return mechanism, weights


def _reversed(channels: Tensor, sizes: list[int]) -> Tensor:
    """Blocks of channels in the opposite order."""
    return torch.cat(channels.split(sizes)[::-1])


def _minimax(layer: Any) -> _Converted:
    """Lightning attention, whose decay depends on the layer."""
    _require_silu(layer, type(layer.act_fn).__name__)
    mechanism = _build(
        "retnet",
        layer.out_proj.out_features,
        layer.num_attention_heads,
        layer.norm.variance_epsilon,
        form="lightning",
        head_width=layer.head_dim,
    )
    by_head = layer.qkv_proj.weight.unflatten(0, (layer.num_attention_heads, 3, -1))
    query, key, value = (part.flatten(0, 1) for part in by_head.unbind(1))
    return mechanism, {
        "query.weight": query,
        "key.weight": key,
        "value.weight": value,
        "decay": -layer.slope_rate[:, 0],
        "output_gate.weight": layer.output_gate.weight,
        "norm": layer.norm.weight.unflatten(0, (layer.num_attention_heads, -1)),
        "out.weight": layer.out_proj.weight,
    }


def _rotation(layer: Any, layout: ops.RotaryLayout) -> ops.Rotary:
    """The rotary positions of a layer."""
    rope = layer.config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    refuse(
        type(layer).__name__,
        {f"has scaled rotary positions ({kind}), and attnlab only default ones": kind != "default"},
    )
    return ops.Rotary(layout, rope.get("rope_theta", 10_000.0), rope.get("partial_rotary_factor", 1.0))


# Dot-product attention with options

_PROJECTIONS = "q_proj:heads.query k_proj:heads.key v_proj:heads.value o_proj:out"


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
        weights[name], weights[name.replace("heads.query", "output_gate")] = query.flatten(0, 1), gate.flatten(0, 1)
    for norm, theirs in (("query_norm", layer.q_norm), ("key_norm", layer.k_norm)):
        setattr(module.heads, norm, nn.RMSNorm(layer.head_dim, theirs.eps))
        weights[f"heads.{norm}.weight"] = 1 + theirs.weight
    return module, weights


# Latent attention

_LATENTS = (
    "q_proj:heads.query q_a_proj:heads.query_down q_a_layernorm:heads.query_norm q_b_proj:heads.query"
    " kv_a_proj_with_mqa:heads.down kv_a_layernorm:heads.norm o_proj:out"
    " indexer.wq_b:indexer.query indexer.wk:indexer.key indexer.k_norm:indexer.norm indexer.weights_proj:indexer.weight"
)


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
    "Glm5NextTextLinearAttention": _kimi_delta,
    "GptOssAttention": _gpt_oss_attention,
    "KimiLinearAttention": _latent,
    "KimiLinearDeltaAttention": _kimi_delta,
    "Mamba2Mixer": _mamba2,
    "MiniMaxLightningAttention": _minimax,
    "OlmoHybridGatedDeltaNet": _olmo_hybrid,
    "Qwen3NextAttention": _qwen3_next_attention,
    "Qwen3NextGatedDeltaNet": _qwen3_next,
    "Qwen3_5GatedDeltaNet": _qwen3_5,
    "Qwen3_5MoeGatedDeltaNet": _qwen3_5,
}
