"""Weights in GPT-2's layout and back: exact both ways, or refused.

GPT-2 keeps the three projections of attention side by side and its matrices transposed. What attnlab's model cannot say
otherwise is put into weights: a head tied to the embedding becomes a copy of it, another scale of the scores goes into the
queries, absent biases become zeros. Tensors in and out; knows nothing of folders.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config

from attnlab.config import ModelConfig
from attnlab.errors import UserError
from attnlab.model import LanguageModel

EPSILON = 1e-5  # of torch's LayerNorm, which attnlab uses as it is
TO_THEM = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu2": "relu2"}
TO_US = {**{theirs: ours for ours, theirs in TO_THEM.items()}, "gelu_pytorch_tanh": "gelu_tanh"}
PARTS = {"norm1": "ln_1", "norm2": "ln_2", "attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.out": "mlp.c_proj"}


def is_gpt2(config: ModelConfig) -> bool:
    """Whether a model is a GPT-2 in everything but its names."""
    mechanisms = {name.strip() for name in config.mechanism.split(",")}
    plain = not config.qk_norm and not config.bottleneck and config.activation in TO_THEM
    return mechanisms == {"dot"} and config.positions == "learned" and config.norm == "layer" and plain


def to_gpt2(model: LanguageModel, **symbols: Any) -> tuple[GPT2Config, dict[str, Tensor]]:
    """A model as GPT-2's config, with the numbers of its special symbols, and weights."""
    config = model.config
    assert is_gpt2(config)
    theirs = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.block_size,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_inner=config.mlp_ratio * config.n_embd,
        activation_function=TO_THEM[config.activation],
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout_of_attention,
        layer_norm_epsilon=EPSILON,
        tie_word_embeddings=False,
        architectures=["GPT2LMHeadModel"],
        dtype="float32",
        **symbols,
    )
    ours = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    made = {
        "transformer.wte.weight": ours["tokens.weight"],
        "transformer.wpe.weight": ours["positions.weight"],
        "transformer.ln_f.weight": ours["norm.weight"],
        "transformer.ln_f.bias": ours["norm.bias"],
        "lm_head.weight": ours["head.weight"],
    }
    for layer in range(config.n_layer):
        block, theirs_block = f"blocks.{layer}", f"transformer.h.{layer}"
        names = [f"{block}.attn.heads.{one}" for one in ("query", "key", "value")]
        made[f"{theirs_block}.attn.c_attn.weight"] = torch.cat([ours[f"{name}.weight"] for name in names]).T
        made[f"{theirs_block}.attn.c_attn.bias"] = torch.cat([_bias_of(ours, name) for name in names])
        for part, other in PARTS.items():
            weight = ours[f"{block}.{part}.weight"]
            made[f"{theirs_block}.{other}.weight"] = weight.T if weight.ndim == 2 else weight
            made[f"{theirs_block}.{other}.bias"] = _bias_of(ours, f"{block}.{part}")
    return theirs, {name: tensor.contiguous().clone() for name, tensor in made.items()}


def _bias_of(tensors: dict[str, Tensor], name: str) -> Tensor:
    """The bias of a linear map; zeros where it has none."""
    found = tensors.get(f"{name}.bias")
    return tensors[f"{name}.weight"].new_zeros(len(tensors[f"{name}.weight"])) if found is None else found


def settings_of(config: Any) -> ModelConfig:
    """The settings of attnlab's model that equals a GPT-2, or an error that says what it cannot hold."""
    inner = config.n_inner or 4 * config.n_embd
    if config.activation_function not in TO_US:
        raise UserError(
            f"this GPT-2 has the activation '{config.activation_function}', and attnlab has {', '.join(TO_US)}"
        )
    if config.layer_norm_epsilon != EPSILON:
        raise UserError(
            f"this GPT-2 has layer_norm_epsilon {config.layer_norm_epsilon:g}, and attnlab only {EPSILON:g}"
        )
    if inner % config.n_embd:
        raise UserError(f"this GPT-2 has n_inner {inner}, and attnlab only multiples of n_embd ({config.n_embd})")
    if config.add_cross_attention:
        raise UserError("this GPT-2 reads a second text (add_cross_attention), and an attnlab model reads one")
    if config.resid_pdrop != config.embd_pdrop:
        raise UserError(
            f"this GPT-2 drops {config.resid_pdrop} of the stream and {config.embd_pdrop} of the embedding, and attnlab knows"
            " one number for both: set them equal in its config.json, which changes training only"
        )
    return ModelConfig(
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        block_size=config.n_positions,
        vocab_size=config.vocab_size,
        mechanism="dot",
        positions="learned",
        norm="layer",
        qk_norm=False,
        activation=TO_US[config.activation_function],  # type: ignore[arg-type]
        mlp_ratio=inner // config.n_embd,
        bias=True,
        zero_init=False,
        dropout=float(config.resid_pdrop),
        attention_dropout=-1.0 if config.attn_pdrop == config.resid_pdrop else float(config.attn_pdrop),
    )


def from_gpt2(config: Any, tensors: dict[str, Tensor]) -> LanguageModel:
    """attnlab's model with the weights of a GPT-2."""
    model = LanguageModel(settings_of(config))
    made = {
        "tokens.weight": tensors["transformer.wte.weight"],
        "positions.weight": tensors["transformer.wpe.weight"],
        "norm.weight": tensors["transformer.ln_f.weight"],
        "norm.bias": tensors["transformer.ln_f.bias"],
        "head.weight": tensors["lm_head.weight"],
    }
    for layer in range(config.n_layer):
        block, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        weights = tensors[f"{theirs}.attn.c_attn.weight"].T.chunk(3)
        biases = tensors[f"{theirs}.attn.c_attn.bias"].chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            by = _scale_of(config, layer) if name == "query" else 1.0
            made[f"{block}.attn.heads.{name}.weight"] = weight * by
            made[f"{block}.attn.heads.{name}.bias"] = bias * by
        for part, other in PARTS.items():
            weight = tensors[f"{theirs}.{other}.weight"]
            made[f"{block}.{part}.weight"] = weight.T if weight.ndim == 2 else weight
            made[f"{block}.{part}.bias"] = tensors[f"{theirs}.{other}.bias"]
    model.load_state_dict({name: tensor.detach().float() for name, tensor in made.items()})
    return model.eval()


def _scale_of(config: Any, layer: int) -> float:
    """How much larger its queries are than attnlab's, whose scores are always divided by the root of the width."""
    scale = 1.0 if config.scale_attn_weights else float((config.n_embd // config.n_head) ** 0.5)
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale
