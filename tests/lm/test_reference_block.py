"""The whole model against the same computation written out by hand: nothing of src but the weights is used here."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab.config import ModelConfig, resolve
from attnlab.inside.taps import capture
from attnlab.lm.model import Block, LanguageModel

SIZE: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 12, "vocab_size": 23, "dropout": 0.0}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("small", {}),
    ("mingpt", {}),
    ("small", {"positions": "learned"}),
    ("small", {"qk_norm": False}),
    ("small", {"norm": "layer", "bias": True}),
    ("mingpt", {"positions": "rotary"}),
    ("mingpt", {"activation": "relu2", "n_head": 4}),
    ("mingpt", {"positions": "none"}),
    ("mingpt", {"positions": "sinusoidal"}),
    ("small", {"positions": "none,rotary", "n_layer": 3}),
    ("small", {"rotary_layout": "interleaved", "rotary_base": 100.0}),
    ("small", {"rotary_fraction": 0.5}),
    ("small", {"rotary_fraction": 0.5, "rotary_layout": "interleaved", "qk_norm": False}),
    ("small", {"norm": "none", "activation": "silu", "n_layer": 1}),
    ("mingpt", {"norm_place": "post"}),
    ("small", {"norm_place": "post"}),
    ("mingpt", {"activation": "silu"}),
    ("mingpt", {"activation": "swiglu"}),
    ("mingpt", {"mlp_ratio": 0}),
    ("mingpt", {"mlp_ratio": 0, "norm_place": "post"}),
    ("small", {"tied_head": True}),
]


def config_of(preset: str, **changes: Any) -> ModelConfig:
    return resolve(preset, given={"model": {**SIZE, **changes}}).model


def make(config: ModelConfig) -> LanguageModel:
    """A model whose every parameter is random and large enough for each part to show in the logits."""
    model = LanguageModel(config)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=1.0 if "tokens" in name or "positions" in name else 0.3, generator=draw)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    return model


def linear(vector: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    result = (weights[f"{name}.weight"] * vector).sum(dim=1)
    return result + weights[f"{name}.bias"] if f"{name}.bias" in weights else result


def normalised(vector: Tensor, weights: dict[str, Tensor], name: str, kind: str) -> Tensor:
    if kind == "none":
        return vector
    if kind == "rms":
        return vector / math.sqrt((vector**2).mean().item())
    centred = vector - vector.mean()
    unit = centred / math.sqrt((centred**2).mean().item() + 1e-5)
    return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def turned(vector: Tensor, position: int, config: ModelConfig) -> Tensor:
    """Rotary positions: coordinates i and i + half, or 2i and 2i + 1, are one complex number, turned by its angle."""
    width = round(config.rotary_fraction * len(vector))
    result = vector.clone()
    for i in range(width // 2):
        real, imaginary = (i, i + width // 2) if config.rotary_layout == "half" else (2 * i, 2 * i + 1)
        number = complex(vector[real], vector[imaginary])
        number *= cmath.exp(1j * position * config.rotary_base ** (-2 * i / width))
        result[real], result[imaginary] = number.real, number.imag
    return result


def waves(position: int, width: int) -> Tensor:
    """Sinusoidal positions."""
    angles = [position / 10_000 ** (2 * (i // 2) / width) for i in range(width)]
    return torch.tensor([math.cos(x) if i % 2 else math.sin(x) for i, x in enumerate(angles)], dtype=torch.float64)


def activated(vector: Tensor, kind: str) -> Tensor:
    if kind == "relu2":
        return torch.tensor([max(0.0, x) ** 2 for x in vector.tolist()], dtype=torch.float64)
    if kind in ("silu", "swiglu"):
        return torch.tensor([x / (1 + math.exp(-x)) for x in vector.tolist()], dtype=torch.float64)
    return torch.tensor([x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in vector.tolist()], dtype=torch.float64)


def mlp(vector: Tensor, weights: dict[str, Tensor], name: str, kind: str) -> Tensor:
    inner = linear(vector, weights, f"{name}.up")
    gate = linear(vector, weights, f"{name}.gate") if kind == "swiglu" else None
    inner = activated(inner, kind) if gate is None else inner * activated(gate, kind)
    return linear(inner, weights, f"{name}.out")


def attention(
    stream: list[Tensor], weights: dict[str, Tensor], name: str, config: ModelConfig, rotary: bool
) -> list[Tensor]:
    width = config.n_embd // config.n_head
    mixed: list[list[Tensor]] = [[] for _ in stream]
    for head in range(config.n_head):
        cut = slice(head * width, (head + 1) * width)
        queries, keys, values = (
            [linear(x, weights, f"{name}.heads.{part}")[cut] for x in stream] for part in ("query", "key", "value")
        )
        if config.qk_norm:
            queries, keys = ([normalised(x, {}, "", "rms") for x in vectors] for vectors in (queries, keys))
        if rotary:
            queries, keys = ([turned(x, at, config) for at, x in enumerate(vectors)] for vectors in (queries, keys))
        for at, query in enumerate(queries):
            scores = [math.exp((query @ keys[seen]).item() / math.sqrt(width)) for seen in range(at + 1)]
            shares = [score / sum(scores) for score in scores]
            parts = [share * value for share, value in zip(shares, values[: at + 1], strict=True)]
            mixed[at].append(torch.stack(parts).sum(dim=0))
    return [linear(torch.cat(heads), weights, f"{name}.out") for heads in mixed]


def by_hand(model: LanguageModel, config: ModelConfig, ids: list[int]) -> Tensor:
    """The logits of one text; `config` says which parts there are, so that a part can be left out."""
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    stream = [weights["tokens.weight"][token] for token in ids]
    if config.positions == "learned" and "positions.weight" in weights:
        stream = [x + weights["positions.weight"][at] for at, x in enumerate(stream)]
    if config.positions == "sinusoidal":
        stream = [math.sqrt(config.n_embd) * x + waves(at, config.n_embd) for at, x in enumerate(stream)]
    before, after = (config.norm, "none") if config.norm_place == "pre" else ("none", config.norm)
    for layer in range(config.n_layer):
        block, places = f"blocks.{layer}", config.positions.split(",")
        calm = [normalised(x, weights, f"{block}.norm1", before) for x in stream]
        found = attention(calm, weights, f"{block}.attn", config, places[layer % len(places)] == "rotary")
        stream = [x + more for x, more in zip(stream, found, strict=True)]
        stream = [normalised(x, weights, f"{block}.norm1", after) for x in stream]
        for at, x in enumerate(stream if config.mlp_ratio else []):
            calm = [normalised(x, weights, f"{block}.norm2", before)]
            added = x + mlp(calm[0], weights, f"{block}.mlp", config.activation)
            stream[at] = normalised(added, weights, f"{block}.norm2", after)
    head = "tokens" if config.tied_head else "head"
    return torch.stack([linear(normalised(x, weights, "norm", before), weights, head) for x in stream])


IDS = [[3, 17, 3, 0, 9, 22, 5], [8, 8, 1, 14, 2, 2, 19]]


@pytest.mark.parametrize(("preset", "changes"), VARIANTS)
def test_the_logits_are_those_computed_by_hand(preset: str, changes: dict[str, Any]) -> None:
    config = config_of(preset, **changes)
    model = make(config).eval()
    expected = torch.stack([by_hand(model, config, ids) for ids in IDS])
    assert torch.allclose(model(torch.tensor(IDS)).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "without"),
    [
        ("small", {"positions": "learned"}),
        ("small", {"qk_norm": False}),
        ("small", {"activation": "gelu"}),
        ("mingpt", {"positions": "rotary"}),
        ("mingpt", {"qk_norm": True}),
        ("mingpt", {"activation": "relu2"}),
        ("small", {"positions": "none,rotary"}),
        ("small", {"rotary_layout": "interleaved"}),
        ("small", {"rotary_base": 100.0}),
        ("small", {"rotary_fraction": 0.5}),
        ("small", {"norm": "none"}),
        ("small", {"norm_place": "post"}),
        ("mingpt", {"activation": "silu"}),
        ("mingpt", {"positions": "sinusoidal"}),
        ("mingpt", {"mlp_ratio": 0}),
    ],
)
def test_every_part_shows_in_the_logits(preset: str, without: dict[str, Any]) -> None:
    """The comparison above could not miss a part that is gone: without it the logits are far from the model's."""
    config = config_of(preset)
    model = make(config).eval()
    wrong = by_hand(model, replace(config, **without), IDS[0])
    assert (model(torch.tensor(IDS[:1]))[0] - wrong).abs().max() > 0.05


# Dropout ---------------------------------------------------------------------------------------------------------


def quiet_model() -> LanguageModel:
    """Half of everything is dropped, and nothing is added to the stream but what a test puts there."""
    model = LanguageModel(config_of("mingpt", dropout=0.5, n_layer=1, n_embd=64, block_size=32))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def stream_after(model: LanguageModel, tokens: int = 32) -> Tensor:
    with capture(model, "hook_resid_post") as seen:
        model(torch.zeros(64, tokens, dtype=torch.long))
    return seen["blocks.0.hook_resid_post"]


def ones_from_embedding(model: LanguageModel) -> None:
    model.tokens.weight.fill_(1.0)


def ones_from_positions(model: LanguageModel) -> None:
    assert isinstance(model.positions, torch.nn.Embedding)
    model.positions.weight.fill_(1.0)


def ones_from_attention(model: LanguageModel) -> None:
    dict(model.named_parameters())["blocks.0.attn.out.bias"].fill_(1.0)


def ones_from_mlp(model: LanguageModel) -> None:
    dict(model.named_parameters())["blocks.0.mlp.out.bias"].fill_(1.0)


@pytest.mark.parametrize("put", [ones_from_embedding, ones_from_positions, ones_from_attention, ones_from_mlp])
def test_what_enters_the_stream_is_dropped_in_training_and_only_there(put: Any) -> None:
    model = quiet_model()
    with torch.no_grad():
        put(model)
    torch.manual_seed(0)
    first, second = stream_after(model.train()), stream_after(model)
    for stream in (first, second):
        assert set(stream.unique().tolist()) == {0.0, 2.0}  # what is kept makes up for what is not
        assert stream.mean().item() == pytest.approx(1.0, abs=0.02)
    assert (first != second).float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert (stream_after(model.eval()) == 1.0).all()


@pytest.mark.parametrize("watched", [False, True])
def test_attention_drops_whole_glances(watched: bool) -> None:
    """A token that sees only itself gets the value or nothing, head by head; watched or not."""
    model = quiet_model()
    block = model.blocks[0]
    assert isinstance(block, Block)
    weights = dict(block.attn.named_parameters())
    with torch.no_grad():
        weights["heads.value.bias"].fill_(1.0)
        weights["out.weight"].copy_(torch.eye(64))
    torch.manual_seed(0)

    def heads() -> Tensor:
        alone = torch.zeros(512, 1, 64)
        if not watched:
            return block.attn(alone).view(512, 2, 32)
        with capture(model, "attn.hook_pattern"):
            return block.attn(alone).view(512, 2, 32)

    model.train()
    found = heads()
    assert set(found.unique().tolist()) == {0.0, 2.0}
    assert (found == found[:, :, :1]).all()
    assert found.mean().item() == pytest.approx(1.0, abs=0.1)
    model.eval()
    assert (heads() == 1.0).all()
