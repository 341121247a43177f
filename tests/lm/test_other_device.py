"""Everything that computes does so where its inputs or the model are, with the numbers of the CPU."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from other_device import ELSEWHERE, Elsewhere, moved, other_device
from torch import Tensor, nn

from attnlab import registry
from attnlab.config import ModelConfig, TrainConfig, preset_names, resolve
from attnlab.inside.look import look
from attnlab.inside.taps import influence
from attnlab.lm import optim, perplexity
from attnlab.lm.batches import IGNORED
from attnlab.lm.decoding import beam_search, generate, sample
from attnlab.lm.evaluate import top_answers
from attnlab.lm.flops import flops_per_token
from attnlab.lm.model import LanguageModel, model_files, to_bytes
from attnlab.lm.tokenizers import Tokenizer
from attnlab.lm.train import SummedLoss
from attnlab.trust.answers import AnswerTrie, familiarity, outcomes

WIDTH, HEADS, BLOCK = 32, 4, 320
MECHANISMS = [(name, causal) for name in registry.names("mechanism") for causal in (True, False)]
TEXTS = ["the cat sat on the mat", "the dog ran", "a cat ran to the dog"]


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    with other_device():
        yield


def back(value: Tensor) -> Tensor:
    assert isinstance(value, Elsewhere)
    return value.held.detach()


def test_a_tensor_made_on_the_wrong_device_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="two devices"):
        Elsewhere(torch.ones(3)) + torch.arange(3)
    assert (Elsewhere(torch.ones(3)) + torch.arange(3, device=ELSEWHERE)).device == ELSEWHERE


@pytest.mark.parametrize(("name", "causal"), MECHANISMS)
def test_a_mechanism_computes_where_its_input_is(name: str, causal: bool) -> None:
    entry = registry.find("mechanism", name)
    asked = {"rotary": True, "qk_norm": True, "bias": True, "causal": causal}
    here = entry.build(WIDTH, HEADS, BLOCK, **{key: value for key, value in asked.items() if entry.accepts(key)})
    there = moved(copy.deepcopy(here))
    for tokens, padded in ((9, True), (150, False), (300, True)):
        x, padding = torch.randn(2, tokens, WIDTH), None
        if padded:
            padding = torch.arange(tokens) >= torch.tensor([[tokens], [tokens - tokens // 3]])
        y = here(x, padding)
        z = there(Elsewhere(x), None if padding is None else Elsewhere(padding))
        assert torch.allclose(back(z), y, atol=1e-5)
        y.square().mean().backward()
        z.square().mean().backward()
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(back(other.grad), one.grad, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, causal in MECHANISMS if causal])
def test_a_mechanism_continues_where_its_cache_is(name: str) -> None:
    module = registry.find("mechanism", name).build(WIDTH, HEADS, 64).eval()
    x = torch.randn(2, 10, WIDTH)
    caches = [module.new_cache(), module.new_cache()]
    with torch.no_grad():
        here = torch.cat([module(part, cache=caches[0]) for part in x.split([4, 1, 5], dim=1)], dim=1)
        moved(module)
        there = [module(Elsewhere(part), cache=caches[1]) for part in x.split([4, 1, 5], dim=1)]
        caches[1].select(Elsewhere(torch.tensor([1, 1])))
    assert torch.allclose(back(torch.cat(there, dim=1)), here, atol=1e-5)


def small(preset: str, **changes: Any) -> ModelConfig:
    """The shape of a preset, a few numbers wide."""
    config = resolve(preset).model
    bottleneck = 4 if config.bottleneck else 0
    layers = max(min(3, config.n_layer), len(config.mechanisms), len(config.layer_positions))
    sizes = {"n_embd": 32, "n_head": 2, "block_size": 32, "n_layer": layers, "bottleneck": bottleneck}
    return replace(config, **{"vocab_size": 300, "dropout": 0.0, **sizes, **changes})


def step(model: LanguageModel, settings: TrainConfig, ids: Tensor, targets: Tensor) -> Tensor:
    """Update the weights once; return the loss."""
    optimizers = optim.make_optimizers(model, settings)
    loss: Tensor = SummedLoss(model)(ids, targets) / 10
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.set_rates(optimizers, 0.5)
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("words", [300, 5000])
@pytest.mark.parametrize("preset", preset_names())
def test_a_training_step_of_every_preset(preset: str, words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The fused AdamW exists for cuda, mps and xpu, and not for the name under which the tests have their device.
    monkeypatch.setattr(
        sys.modules["torch.optim.optimizer"], "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"]
    )
    here = LanguageModel(small(preset, vocab_size=words)).train()
    there = moved(copy.deepcopy(here))
    assert isinstance(there, LanguageModel)
    assert there.device == ELSEWHERE
    ids = torch.randint(words, (2, 20))
    targets = torch.where(torch.arange(20) < 15, torch.randint(words, (2, 20)), IGNORED)
    settings = resolve(preset).train
    loss = step(here, settings, ids, targets)
    assert torch.allclose(back(step(there, settings, Elsewhere(ids), Elsewhere(targets))), loss, rtol=1e-5)
    for (name, one), other in zip(here.named_parameters(), there.parameters(), strict=True):
        assert torch.allclose(back(other), one, atol=1e-3 if settings.optimizer == "muon" else 1e-4), name


def test_texts_are_written_measured_and_looked_at_where_the_model_is() -> None:
    tokenizer = Tokenizer.train("char", TEXTS, 300)
    here = LanguageModel(small("small", vocab_size=tokenizer.size, zero_init=False)).eval()
    there = moved(copy.deepcopy(here))
    assert isinstance(there, LanguageModel)
    ids = torch.tensor([tokenizer.encode("the ")] * 2)
    trie = AnswerTrie(tokenizer, ["cat", "dog", "c"])

    def seen(model: LanguageModel) -> Iterator[Any]:
        for use_cache in (True, False):
            yield generate(model, ids, 6, tokenizer.stops, use_cache=use_cache)
        yield sample(model, tokenizer, "the", count=2, limit=6, top_p=0.9)
        yield [beam.text for beam in beam_search(model, tokenizer, "the", 2, limit=6)]
        yield [answer for answer, _ in top_answers(model, tokenizer, "the", count=2, width=4)]
        sentences = [tokenizer.encode(text) for text in TEXTS]
        yield perplexity.whole_losses(model, sentences, tokenizer.pad, 24)
        yield perplexity.prefix_losses(model, sentences)
        yield [one.loss for one in look(model, tokenizer, "the cat").read[1:]]
        yield outcomes(model, ids, trie, tokenizer.stops).tolist()
        yield outcomes(model, ids, trie, tokenizer.stops, 0.1, use_cache=False).tolist()
        yield familiarity(model, tokenizer, ["cat", "dog"]).tolist()
        yield influence(model, ids[0].to(model.device), samples=4).tolist()
        yield flops_per_token(model, 8, training=True).total

    for one, other in zip(seen(here), seen(there), strict=True):
        if isinstance(one, list) and isinstance(one[0], float):
            assert other == pytest.approx(one, rel=1e-4)
        elif isinstance(one, list) and isinstance(one[0], list) and isinstance(one[0][0], float):
            assert torch.allclose(torch.tensor(other), torch.tensor(one), atol=1e-4)
        else:
            assert other == one


def test_a_model_elsewhere_is_saved_as_one_here() -> None:
    tokenizer = Tokenizer.train("char", TEXTS, 300)
    model = LanguageModel(small("small", vocab_size=tokenizer.size))
    files = model_files(model, tokenizer)
    there = moved(model)
    assert isinstance(there, LanguageModel)
    assert model_files(there, tokenizer) == files
    assert to_bytes({"a": Elsewhere(torch.ones(2))}) == to_bytes({"a": torch.ones(2)})
