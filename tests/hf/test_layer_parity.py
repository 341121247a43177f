"""Layers of transformers, converted, beside the originals: outputs, gradients, padding, decoding, and docs/parity.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from released_layers import LAYERS, ROPE, WIDTH, arguments, distances, measured, original, output
from torch import nn

from attnlab.errors import UserError
from attnlab.hf.layers import _CONVERSIONS, convert_layer
from attnlab.inside.taps import capture

STORED = json.loads((Path(__file__).parents[2] / "docs/parity.json").read_text(encoding="utf-8"))
RECURRENT = [name for name, released in LAYERS.items() if not released.attention]


@pytest.mark.parametrize("name", LAYERS)
def test_a_converted_layer_gives_the_same_outputs_and_gradients(name: str) -> None:
    row = measured(name)
    for figure in ("outputs", "gradients"):
        assert row[figure] <= 1e-4
        assert STORED[name].pop(figure) >= row.pop(figure) / 30, "write docs/parity.json again: see released_layers.py"
    assert row == STORED[name], "write docs/parity.json again: see released_layers.py"


def test_every_conversion_is_compared() -> None:
    assert {released.layer for released in LAYERS.values()} == set(_CONVERSIONS)
    assert list(STORED) == list(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_the_readable_reference_of_a_converted_layer_gives_the_same(name: str) -> None:
    layer, x = original(name), torch.randn(2, 40, WIDTH)
    own, expected = convert_layer(layer), output(name, layer, x)
    with capture(own, "hook_pattern"):
        assert (own(x) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", RECURRENT)
def test_a_converted_layer_hides_the_same_tokens(name: str) -> None:
    """Beside the original without padding: with it, the biases of hidden tokens enter the convolution of Mamba2Mixer."""
    layer, x = original(name), torch.randn(2, 20, WIDTH)
    padding = torch.arange(20) < torch.tensor([[0], [7]])
    ours = convert_layer(layer)
    apart = distances(lambda x: output(name, layer, x[1:, 7:]), lambda x: ours(x, padding)[1:, 7:], x)
    assert max(apart) <= 1e-4
    if name != "mamba2, biases":
        hidden = output(name, layer, x, attention_mask=~padding)
        assert torch.allclose(hidden[1, 7:], ours(x, padding)[1, 7:], atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_decoding_with_a_converted_layer_is_as_the_whole_text_with_the_original(name: str) -> None:
    layer, x = original(name), torch.randn(2, LAYERS[name].tokens, WIDTH)
    ours, expected = convert_layer(layer), output(name, layer, x).detach()
    with torch.no_grad():
        for pieces in ([1] * x.shape[1], [20, 1, 1, x.shape[1] - 22]):
            cache = ours.new_cache()  # type: ignore[operator]
            out = torch.cat([ours(part, cache=cache) for part in x.split(pieces, dim=1)], dim=1)
            assert (out - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_the_chosen_tokens_are_those_of_the_indexer_of_deepseek() -> None:
    layer, x = original("deepseek_v32"), torch.randn(2, 40, WIDTH)
    given = arguments("deepseek_v32", layer, x)
    latent = layer.q_a_layernorm(layer.q_a_proj(x))  # type: ignore[operator]
    places = layer.indexer(x, latent, given["position_embeddings"], given["attention_mask"][:, 0], None)  # type: ignore[operator]
    chosen = torch.zeros(2, 40, 40, dtype=torch.bool).scatter(-1, places.long(), True).tril()
    own = convert_layer(layer)
    with capture(own, "hook_pattern") as seen:
        own(x)
    assert torch.equal((seen["hook_pattern"] > 0).any(1), chosen)
    assert chosen.sum(-1).max() == 9


def test_a_converted_layer_has_weights_of_its_own_in_the_data_type_of_the_layer() -> None:
    layer = original("kimi_delta").bfloat16()
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
    for name in ("mamba2", "minimax", "kimi_delta", "olmo_hybrid"):
        with pytest.raises(UserError, match="only layers with silu"):
            convert_layer(original(name, hidden_act="gelu"))
    with pytest.raises(UserError, match="only a window here"):
        convert_layer(original("gpt_oss", layer_types=["sliding_attention"] * 4))
    with pytest.raises(UserError, match="values of width 6 and keys of width 8"):
        convert_layer(original("deepseek_v3", v_head_dim=6))
    with pytest.raises(UserError, match="scaled rotary positions"):
        convert_layer(original("gpt_oss", rope_parameters={**ROPE, "rope_type": "linear", "factor": 2.0}))
