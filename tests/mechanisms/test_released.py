"""What the mechanisms of released models do beyond the contract: sinks, gates, latents, indexers, forgetting, windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab import ops, registry
from attnlab.config import ModelConfig
from attnlab.errors import ConfigError
from attnlab.hf import attention as borrowed
from attnlab.hf.exchange import _is_gpt2
from attnlab.inside.heads import copying_scores
from attnlab.inside.taps import capture
from attnlab.lm.model import LanguageModel
from attnlab.mechanisms.based import expand
from attnlab.mechanisms.heads import KeyValueCache
from attnlab.mechanisms.indexer import choose

WIDTH, HEADS = 32, 4


def make(name: str, block: int = 64, **options: Any) -> Any:
    torch.manual_seed(0)
    return registry.find("mechanism", name).build(WIDTH, HEADS, block, **options).eval()


def pattern(module: nn.Module, x: Tensor) -> Tensor:
    with capture(module, "hook_pattern") as seen:
        module(x)
    return seen["hook_pattern"]


# Options of dot


def test_a_sink_takes_the_share_that_its_score_has() -> None:
    module, x = make("dot", sinks=True), torch.randn(2, 9, WIDTH)
    module.sinks.data = torch.tensor([-1e4, 0.0, 2.0, 1e4])
    with capture(module, ["hook_q", "hook_k"]) as seen:
        module(x)
    q, k = (seen[f"hook_{name}"].transpose(1, 2) for name in "qk")
    scores = ops.dot_scores(q, k).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf)
    expected = (scores.logsumexp(-1) - module.sinks[:, None]).sigmoid()
    assert torch.allclose(pattern(module, x).sum(-1), expected, atol=1e-6)


def test_bounded_scores_bound_the_ratio_of_weights() -> None:
    weights = pattern(make("dot", softcap=2.0), 1e3 * torch.randn(1, 9, WIDTH))[0, :, -1]
    assert weights.amax(-1).div(weights.amin(-1)).max() <= torch.tensor(4.0).exp() * 1.001
    with pytest.raises(ConfigError, match="softcap must be positive"):
        make("dot", softcap=-1.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dot", {"softcap": 3.0}),
        ("dot", {"softcap": 3.0, "sinks": True, "gated": True}),
        ("fox", {}),
        ("based", {"window": 5}),
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_scores_in_slices_are_those_of_the_reference(
    name: str, options: dict[str, Any], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "_SCORES", 2 * HEADS * 50 * 16)
    module = make(name, causal=causal, **options).double()
    x = torch.randn(2, 50, WIDTH, dtype=torch.float64)
    padding = torch.arange(50) >= torch.tensor([[50], [33]])
    results = []
    for reference in (False, True):
        inputs = x.clone().requires_grad_()
        if reference:
            with capture(module, "hook_pattern"):
                out = module(inputs, padding)
        else:
            out = module(inputs, padding)
        out.square().sum().backward()
        results.append((out, inputs.grad))
    for fast, plain in zip(*results, strict=True):
        assert torch.allclose(fast, plain, atol=1e-11, rtol=0)


def test_gates_multiply_the_averages() -> None:
    plain, gated, x = make("dot"), make("dot", gated=True), torch.randn(2, 9, WIDTH)
    gated.load_state_dict(plain.state_dict(), strict=False)
    with capture(plain, "hook_z") as before, capture(gated, "hook_z") as after:
        plain(x), gated(x)
    assert torch.allclose(
        after["hook_z"].flatten(2), before["hook_z"].flatten(2) * gated.output_gate(x).sigmoid(), atol=1e-6
    )


# Latents


@pytest.mark.parametrize(("name", "numbers"), [("mla", 12 + 4), ("dsa_mla", 12 + 4 + 8)])
def test_the_cache_holds_a_latent_and_a_rotary_key_per_token(name: str, numbers: int) -> None:
    module = make(name, rank=12, rope=4, rotary=True)
    cache = module.new_cache()
    for part in torch.randn(1, 20, WIDTH).split([13, 1, 6], dim=1):
        module(part, cache=cache)
    assert isinstance(cache, KeyValueCache)
    assert sum(part.numel() for part in cache._stored) == 20 * numbers


@pytest.mark.parametrize("options", [{"query_rank": 6}, {"rank": 5, "rope": 2}])
def test_the_absorbed_form_of_latent_attention_equals_the_expanded_one(options: dict[str, int]) -> None:
    module, x = make("mla", rotary=True, **options).double(), torch.randn(2, 30, WIDTH, dtype=torch.float64)
    with capture(module, "hook_pattern"):
        absorbed = module(x)
    assert (absorbed - module(x)).abs().max() <= 1e-12
    with pytest.raises(ConfigError, match="even rope"):
        make("mla", rope=3)


@pytest.mark.parametrize("name", ["mla", "dsa", "dsa_mla"])
def test_a_layer_of_16_bits_computes_the_same_within_their_rounding(name: str) -> None:
    module = make(name, rotary=True, **({} if name == "dsa" else {"query_rank": 6}))
    x = torch.randn(2, 15, WIDTH)  # fewer than topk: no token is left out by rounding
    exact = module(x)
    module.bfloat16()
    cache = module.new_cache()
    parts = [module(part, cache=cache) for part in x.bfloat16().split([9, 1, 5], dim=1)]
    for out in (module(x.bfloat16()), torch.cat(parts, dim=1)):
        assert out.dtype == torch.bfloat16
        assert (out - exact).abs().max() <= 0.05 * exact.abs().max()


# The indexer


def test_the_highest_visible_scores_are_chosen_and_of_equal_ones_the_first() -> None:
    scores = torch.tensor([[[[9.0, 9, 9, 9], [1, 1, 9, 9], [0, 1, 1, 9], [3, 0, 2, 1]]]])
    chosen = choose(scores, ops.visible(4, 4, None, True), 2)
    assert chosen[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 0]]


@pytest.mark.parametrize("name", ["dsa", "dsa_mla"])
def test_the_indexer_learns_where_attention_looks(name: str) -> None:
    """Trained by a loss that does not depend on it, it comes to choose the tokens of the largest weights."""
    module = make(name, topk=8, index_heads=8).train()
    with torch.no_grad():
        module.heads.query.weight *= 6  # sharp weights
    every = make(name, topk=64, index_heads=8)
    optimizer = torch.optim.Adam(module.indexer.parameters(), 0.01)

    def captured_weight(seed: int) -> float:
        x = torch.randn(4, 48, WIDTH, generator=torch.Generator().manual_seed(seed))
        every.load_state_dict(module.state_dict())
        return pattern(every, x).mean(1)[pattern(module, x).mean(1) > 0].sum().item() / (4 * 48)

    before = captured_weight(1000)
    for step in range(150):
        x = torch.randn(4, 48, WIDTH, generator=torch.Generator().manual_seed(step))
        module(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert captured_weight(1000) >= before + 0.05


@pytest.mark.parametrize("name", ["dsa", "dsa_mla"])
def test_the_indexer_gets_the_gradient_of_the_divergence_from_the_mean_weights(name: str) -> None:
    module, x = make(name, topk=5, rotary=True).double(), torch.randn(2, 20, WIDTH, dtype=torch.float64)
    weights = pattern(module, x).mean(1)
    asked = module.asked(x).detach()
    scores = module.indexer.scores(*module.indexer(x, asked, 0))[:, 0].masked_fill(weights == 0, -1e300)
    loss = nn.functional.kl_div(scores.log_softmax(-1), weights, reduction="sum") / (2 * 20)
    expected = torch.autograd.grad(loss, list(module.indexer.parameters()))
    module(x).sum().backward()
    for parameter, gradient in zip(module.indexer.parameters(), expected, strict=True):
        assert (parameter.grad - gradient).abs().max() <= 1e-12


def test_both_paths_give_the_indexer_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_SCORES", 2 * HEADS * 50 * 16)
    for name in ("dsa", "dsa_mla"):
        gradients = []
        for reference in (False, True):
            module = make(name, topk=8, rotary=True).double()
            x = torch.randn(2, 50, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            padding = torch.arange(50) >= torch.tensor([[50], [33]])
            if reference:
                with capture(module, "hook_pattern"):
                    out = module(x, padding)
            else:
                out = module(x, padding)
            out.sum().backward()
            gradients.append([parameter.grad for parameter in module.parameters()])
        for fast, plain in zip(*gradients, strict=True):
            assert torch.allclose(fast, plain, atol=1e-12 * max(1, plain.abs().max()), rtol=0)


# Forgetting


def test_the_weight_of_a_token_falls_by_the_gates_after_it() -> None:
    module, x = make("fox"), torch.randn(1, 12, WIDTH)
    gates = (module.gate(x) + module.gate_bias).sigmoid()[0].T  # head, token
    weights = pattern(module, x)[0, :, -1]
    module.gate_bias.data[:] = 1e4
    module.gate.weight.data[:] = 0
    expected = pattern(module, x)[0, :, -1] * torch.stack([gates[:, t + 1 :].prod(-1) for t in range(12)], dim=-1)
    assert torch.allclose(weights, expected / expected.sum(-1, keepdim=True), atol=1e-6)


# Based


def test_the_expanded_features_give_the_polynomial() -> None:
    q, k = torch.randn(2, 3, 9, 5, dtype=torch.float64)
    s = q @ k.mT / 5**0.5
    assert torch.allclose(expand(q) @ expand(k).mT, 1 + s + s**2 / 2)


@pytest.mark.parametrize("pieces", [[1] * 40, [25, 1, 14], [3, 30, 7]])
def test_generation_beyond_the_window_is_exact_and_its_cache_stops_growing(pieces: list[int]) -> None:
    module, x = (
        make("based", window=5, features=4, rotary=True).double(),
        torch.randn(2, 40, WIDTH, dtype=torch.float64),
    )
    padding = torch.arange(40) < torch.tensor([[0], [9]])
    cache, parts, seen = module.new_cache(), [], 0
    for part in x.split(pieces, dim=1):
        seen += part.shape[1]
        parts.append(module(part, padding[:, :seen], cache=cache))
        assert cache.state.shape == (2, HEADS, 1 + 4 + 10, 9)
    assert (torch.cat(parts, dim=1) - module(x, padding)).abs().max() <= 1e-12
    assert cache.recent.shape[2] == 5
    assert cache.recent.untyped_storage().nbytes() == 8 * cache.recent.numel()


# In models, our own and others


@pytest.mark.parametrize(
    ("mechanism", "options", "scored"),
    [("dot", {}, True), ("dot", {"sinks": True}, True), ("dot", {"gated": True}, False), ("mla", {}, False)],
)
def test_copying_is_scored_only_where_heads_write_linearly(
    mechanism: str, options: dict[str, Any], scored: bool
) -> None:
    own = {mechanism: options} if options else {}
    config = ModelConfig(n_embd=16, n_head=2, n_layer=1, block_size=8, vocab_size=9, mechanism=mechanism, options=own)
    assert (copying_scores(LanguageModel(config), 0, 9) is not None) == scored


def test_a_model_with_sinks_is_not_exported_as_a_gpt2() -> None:
    config = ModelConfig(mechanism="dot", positions="learned", norm="layer", qk_norm=False, activation="gelu")
    assert _is_gpt2(config)
    assert not _is_gpt2(replace(config, options={"dot": {"sinks": True}}))


def test_gated_attention_is_refused_inside_models_of_transformers() -> None:
    name = borrowed.register("dot", "gated_dot", block_size=16, gated=True)
    choice = borrowed._Choice(registry.find("mechanism", "dot"), name, 16, {"gated": True})
    with pytest.raises(Exception, match="also reads the input of its layer"):
        borrowed._build_layer(choice, nn.Identity(), torch.zeros(1, 4, 2, 8), True)
