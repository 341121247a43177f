"""What `attnlab design derive` proves about transformers, on real models: design/ itself builds none."""

from __future__ import annotations

import pytest
import torch

from attnlab.config import ModelConfig, TrainConfig
from attnlab.lm.flops import flops_per_token
from attnlab.lm.model import LanguageModel, count_parameters
from attnlab.lm.optim import make_optimizers
from attnlab.mechanisms.dot import Dot
from attnlab.mechanisms.heads import Heads

SIZES = {"n_head": 4, "n_embd": 32, "block_size": 24, "vocab_size": 50, "zero_init": False}
ORDER = [4, 2, 0, 1, 3, 5]


def gpt(n_layer: int, **settings: object) -> LanguageModel:
    """A model whose positions are zero, as they are before training: there are none."""
    torch.manual_seed(0)
    return LanguageModel(ModelConfig(n_layer=n_layer, positions="learned", **{**SIZES, **settings})).eval().double()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_commutes_with_permutations_unless_it_is_causal(causal: bool) -> None:
    torch.manual_seed(0)
    layer = Dot(32, 4, 24, causal=causal).double()
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    distance = (layer(x[:, ORDER]) - layer(x)[:, ORDER]).abs().max().item()
    assert distance < 1e-12 if not causal else distance > 0.01


def test_a_causal_model_sees_the_order_without_positions() -> None:
    """The last token sees the same set of tokens: one layer cannot tell the order of the others, two can."""
    ids = torch.arange(6)[None]
    last = [(model.hidden(ids)[:, -1] - model.hidden(ids[:, ORDER])[:, -1]).abs().max() for model in (gpt(1), gpt(2))]
    assert last[0] < 1e-12
    assert last[1] > 1e-6


def test_causal_attention_can_count() -> None:
    """With equal scores, the value 1 of the first token gives token t the output 1/t."""
    layer = Dot(8, 1, 24).double()
    for projection, scale in ((layer.heads.query, 0.0), (layer.heads.value, 1.0), (layer.out, 1.0)):
        torch.nn.init.eye_(projection.weight)
        projection.weight.data *= scale
    x = torch.zeros(1, 24, 8, dtype=torch.float64)
    x[0, 0, 0] = 1
    assert torch.allclose(layer(x)[0, :, 0], 1 / torch.arange(1, 25, dtype=torch.float64))


def test_rotary_scores_depend_on_the_distance_and_not_on_the_layout() -> None:
    torch.manual_seed(0)
    heads = Heads(32, 4, 24, rotary=True).double()
    x = torch.randn(1, 10, 32, dtype=torch.float64)
    scores = {start: (q @ k.mT) for start in (0, 14) for q, k, _ in [heads(x, start)]}
    assert torch.allclose(scores[0], scores[14], atol=1e-6)  # the table of angles is float32
    # Interleaved pairs as complex numbers, from weights whose rows are permuted in each head.
    rows = torch.arange(8).view(2, 4).T.flatten()
    angles = torch.outer(torch.arange(10), 10_000 ** -(torch.arange(4, dtype=torch.float64) / 4))
    turned = []
    for projection in (heads.query, heads.key):
        assert projection is not None
        weight = projection.weight.view(4, 8, 32)[:, rows].flatten(0, 1)
        pairs = (x @ weight.T).view(1, 10, 4, 4, 2).transpose(1, 2)
        turned.append(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles))
    assert torch.allclose((turned[0] @ turned[1].mH).real, scores[0], atol=1e-5)


@pytest.mark.parametrize(("n_layer", "d", "tokens"), [(1, 32, 24), (3, 64, 17)])
def test_flops_and_parameters_are_those_of_the_derivation(n_layer: int, d: int, tokens: int) -> None:
    model = gpt(n_layer, n_embd=d, mlp_ratio=4).float()
    parts, vocabulary = count_parameters(model), 50
    assert parts["attention"] + parts["MLP"] == 12 * n_layer * d**2
    assert parts["token embedding"] + parts["head"] == 2 * vocabulary * d
    forward = 24 * n_layer * d**2 + 4 * n_layer * tokens * d + 2 * vocabulary * d
    assert flops_per_token(model, tokens).total == forward
    again = 2 * n_layer * tokens * d  # torch's fused kernel computes the scores again on the way back
    assert flops_per_token(model, tokens, training=True).total == 3 * forward + again


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_memory_is_that_of_the_derivation(name: str) -> None:
    """Of the optimizers that `attnlab pretrain` makes, after a step; AdamW also counts steps, one number per tensor."""
    model = gpt(2, mlp_ratio=4).float()
    optimizers = make_optimizers(model, TrainConfig(optimizer=name))
    model(torch.arange(10)[None]).sum().backward()
    held = dict.fromkeys(optimizers, 0)
    for kind, optimizer in optimizers.items():
        optimizer.step()
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            state = [value for value in optimizer.state[weight].values() if value.ndim]
            held[kind] += sum(part.nbytes for part in (weight, weight.grad, *state))
    count = sum(weight.numel() for weight in model.parameters())
    matrices = 12 * 2 * 32**2 if name == "muon" else 0
    assert held.pop("muon", 0) == 12 * matrices
    assert held == {"adamw": 16 * (count - matrices)}


def test_the_cache_is_that_of_the_derivation() -> None:
    model = gpt(2).float()
    caches = model.new_caches()
    assert caches is not None
    model.hidden(torch.arange(10)[None], caches=caches)
    assert sum(part.nbytes for cache in caches for part in cache._stored) == 8 * 2 * 32 * 10
