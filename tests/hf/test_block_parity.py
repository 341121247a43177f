"""Positions, norms and MLPs beside those of transformers and torch, with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPTJConfig, GPTNeoXConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as rotate_as_neox
from transformers.models.gptj.modeling_gptj import GPTJAttention, create_sinusoidal_positions

from attnlab import ops
from attnlab.config import ModelConfig
from attnlab.lm.model import LanguageModel

WIDTH, HEADS, TOKENS = 32, 4, 24
SIZES: dict[str, Any] = {"n_embd": WIDTH, "n_head": HEADS, "block_size": TOKENS, "vocab_size": 40, "n_layer": 2}
IDS = (torch.arange(2 * TOKENS) * 7 % 40).view(2, TOKENS)


def make(**settings: Any) -> LanguageModel:
    """A model in double precision with weights that matter."""
    model = LanguageModel(ModelConfig(**{**SIZES, "qk_norm": False, "norm": "none", **settings})).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model


class Angles(nn.Module):
    """Cosines and sines as the rotary embeddings of transformers give them, but not rounded to float32 on the way."""

    def __init__(self, base: float, width: int) -> None:
        super().__init__()
        self.frequency = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)

    def forward(self, _: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = (position_ids[..., None] * self.frequency).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_interleaved_rotary_attention_is_that_of_gptj(fraction: float) -> None:
    settings = {"n_embd": WIDTH, "n_head": HEADS, "n_positions": TOKENS, "rotary_dim": int(8 * fraction)}
    theirs = GPTJAttention(GPTJConfig(**settings), layer_idx=0).eval()  # its angles are float32
    ours = make(rotary_layout="interleaved", rotary_fraction=fraction, n_layer=1).float().mechanisms[0]
    names = {"q_proj": "heads.query", "k_proj": "heads.key", "v_proj": "heads.value", "out_proj": "out"}
    weights = ours.state_dict()
    theirs.load_state_dict({f"{name}.weight": weights[f"{own}.weight"] for name, own in names.items()}, strict=False)
    x, places = torch.randn(2, TOKENS, WIDTH), torch.arange(TOKENS)[None].expand(2, -1)
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None]
    expected = theirs(x, attention_mask=mask, position_ids=places)[0]
    assert (ours(x) - expected).abs().max() <= 1e-6


def test_the_interleaved_rotation_is_that_of_gptj() -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    x = torch.randn(2, HEADS, TOKENS, 8)
    sine, cosine = create_sinusoidal_positions(TOKENS, 8)[None].expand(2, -1, -1).chunk(2, dim=-1)
    expected = apply_rotary_pos_emb(x.transpose(1, 2), sine, cosine).transpose(1, 2)
    assert (ops.rotate(x, ops.rotary_table(TOKENS, 8), "interleaved") - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_the_half_split_rotation_is_that_of_neox(fraction: float, base: float) -> None:
    rope = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": fraction}
    config = GPTNeoXConfig(hidden_size=WIDTH, num_attention_heads=HEADS, rope_parameters=rope)
    x, places = torch.randn(2, HEADS, TOKENS, 8), torch.arange(TOKENS)[None]
    width = ops.Rotary(base=base, fraction=fraction).width(8)
    ours = ops.rotate(x, ops.rotary_table(TOKENS, width, base))
    for embedding, slack in ((GPTNeoXRotaryEmbedding(config), 1e-5), (Angles(base, width), 1e-6)):
        cosine, sine = embedding(x, places)
        assert (ours - rotate_as_neox(x, x, cosine, sine)[0]).abs().max() <= slack


def llama(model: LanguageModel, inner: int, **settings: Any) -> LlamaForCausalLM:
    """A Llama with the weights of a model; its norms have weights, which are one."""
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        intermediate_size=inner,
        vocab_size=40,
        rms_norm_eps=ops.EPSILON,
        **settings,
    )
    theirs = LlamaForCausalLM(config).double().eval()
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    weights = {"model.embed_tokens.weight": model.tokens.weight, "lm_head.weight": model.head.weight}
    for name, weight in model.state_dict().items():
        if name.startswith("blocks."):
            _, layer, part, *rest = name.split(".")
            own = names[rest[1]] if part == "attn" and rest[0] == "heads" else {"out": "o_proj"}.get(rest[0], rest[0])
            own = {"o_proj": "down_proj"}.get(own, f"{own}_proj") if part == "mlp" else own
            place = "self_attn" if part == "attn" else "mlp"
            weights[f"model.layers.{layer}.{place}.{own}.weight"] = weight
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("norm" in name for name in missing)
    return theirs


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_a_model_with_rms_swiglu_and_rotary_is_a_llama(base: float, tied: bool) -> None:
    ours = make(norm="rms", activation="swiglu", rotary_base=base, tied_head=tied)
    rope = {"rope_type": "default", "rope_theta": base}
    theirs = llama(ours, inner=88, rope_parameters=rope, tie_word_embeddings=tied)
    assert (ours(IDS) - theirs(IDS).logits).abs().max() <= 1e-5
    theirs.model.rotary_emb = Angles(base, WIDTH // HEADS)
    assert (ours(IDS) - theirs(IDS).logits).abs().max() <= 1e-6


@pytest.mark.parametrize(("mechanism", "groups"), [("dot", HEADS), ("gqa", 2)])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_converted_weights_give_the_same_scores_in_the_other_layout(
    mechanism: str, groups: int, fraction: float
) -> None:
    settings = {"rotary_fraction": fraction, "bias": True, "mechanism": mechanism, "qk_norm": True}
    settings["options"] = {"gqa": {"groups": groups}} if mechanism == "gqa" else {}
    model, other = make(**settings), make(**settings, rotary_layout="interleaved")
    heads = {"query": HEADS, "key": groups}

    def converted(weights: dict[str, Tensor], layout: ops.RotaryLayout) -> dict[str, Tensor]:
        def of(name: str, weight: Tensor) -> Tensor:
            part = name.split(".")[-2]
            return ops.convert_rotary(weight, heads[part], layout, fraction) if part in heads else weight

        return {name: of(name, weight) for name, weight in weights.items()}

    weights = dict(model.state_dict())
    other.load_state_dict(converted(weights, "interleaved"))
    assert (other(IDS) - model(IDS)).abs().max() <= 1e-9
    assert not torch.equal(
        other.state_dict()["blocks.0.attn.heads.key.weight"], weights["blocks.0.attn.heads.key.weight"]
    )
    back = converted(converted(weights, "interleaved"), "half")
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("width", [32, 7])
def test_sinusoids_follow_the_formula(width: int) -> None:
    table = ops.sinusoidal_table(50, width, start=1000)
    for place in (0, 1, 49):
        for pair in range(width // 2):
            angle = torch.tensor((1000 + place) / 10_000 ** (2 * pair / width), dtype=torch.float64)
            expected = torch.stack([angle.sin(), angle.cos()])
            assert (table[place, 2 * pair : 2 * pair + 2] - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_norms_after_the_sums_are_those_of_torch(activation: str) -> None:
    ours = make(norm="layer", norm_place="post", bias=True, positions="none", activation=activation)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, 0.0, getattr(F, activation), batch_first=True, norm_first=False
    )
    names = {"attn.out": "self_attn.out_proj", "mlp.up": "linear1", "mlp.out": "linear2"}
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    weights, own = {}, ours.state_dict()
    for number in range(2):
        for kind in ("weight", "bias"):
            block = f"blocks.{number}"
            for part in ("attn.out", "mlp.up", "mlp.out", "norm1", "norm2"):
                weights[f"layers.{number}.{names.get(part, part)}.{kind}"] = own[f"{block}.{part}.{kind}"]
            projections = [own[f"{block}.attn.heads.{part}.{kind}"] for part in ("query", "key", "value")]
            weights[f"layers.{number}.self_attn.in_proj_{kind}"] = torch.cat(projections)
    theirs.load_state_dict(weights)
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    assert (ours.hidden(IDS) - theirs(ours.tokens(IDS), mask=future)).abs().max() <= 1e-6
