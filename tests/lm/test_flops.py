"""FLOPs of whole models against formulas derived from their shapes."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnlab
from attnlab import cli, registry
from attnlab.config import resolve
from attnlab.errors import UserError
from attnlab.kernels.counting import FORMULAS, TILE
from attnlab.lm.flops import Flops, flops_per_token
from attnlab.lm.model import LanguageModel
from attnlab.lm.train import SummedLoss

MECHANISMS = [name for name in registry.names("mechanism") if registry.find("mechanism", name).causal]
# Operations on two or more tensors of numbers that are no products.
NO_PRODUCTS = {"copy_", "index_add", "index_add_", "index_put", "native_layer_norm", "native_layer_norm_backward"}
NO_PRODUCTS |= {"_softmax_backward_data", "_log_softmax_backward_data", "nll_loss_backward"}
NO_PRODUCTS |= {"softplus_backward", "log_sigmoid_backward"}


def make(preset: str = "nano-words", **model: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(resolve(preset, given={"model": model}).model)


def small(mechanism: str, block_size: int = 256, **model: Any) -> LanguageModel:
    settings = {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": block_size, "vocab_size": 50} | model
    return make("nano-words", mechanism=mechanism, **settings)


def both(model: LanguageModel, tokens: int) -> tuple[Flops, Flops]:
    return flops_per_token(model, tokens), flops_per_token(model, tokens, training=True)


def test_dot_of_the_word_model() -> None:
    layers, width, words, tokens = 3, 48, 26604, 1024
    forward, training = both(make(), tokens)
    projections = 4 * 2 * width * width
    keys = (TILE + tokens) / 2  # the first half computes one tile of keys, the second half both
    assert forward.attention == layers * (projections + 2 * 2 * width * keys)
    assert forward.mlp == layers * 2 * 2 * width * 4 * width
    assert forward.head == 2 * width * words
    assert forward.other == 0
    assert forward.total == forward.attention + forward.mlp + forward.head
    # On the way back the scores are made once more, and four products follow.
    assert training.attention == layers * (3 * projections + (2 + 5) * 2 * width * keys)
    assert (training.mlp, training.head, training.other) == (3 * forward.mlp, 3 * forward.head, 0)


def test_dot_of_the_character_model() -> None:
    layers, width, tokens = 4, 256, 100
    forward, training = both(make("mingpt"), tokens)
    assert forward.attention == layers * (4 * 2 * width * width + 2 * 2 * width * tokens)
    assert forward.mlp == layers * 2 * 2 * width * 4 * width
    assert forward.head == 2 * width * 256
    # Its attention weights are dropped, for which they are formed: two products there, four back, nothing twice.
    assert training.to_dict() == {part: 3 * count for part, count in forward.to_dict().items()}


def test_a_bottleneck_counts_where_tokens_and_latents_meet() -> None:
    width, tokens, latents = 256, 100, 50  # each latent has a share of two tokens
    forward, training = both(make("mingpt-perceiver"), tokens)
    square = 2 * width * width
    read = square * (2 * latents + 2 * tokens) + 4 * width * latents * tokens  # as in the first, so in the last layer
    inside = square * 4 * latents + 4 * width * latents * latents
    assert forward.attention == (2 * read + 2 * inside) / tokens
    assert forward.mlp == 8 * square * (3 * latents + tokens) / tokens
    assert training.attention == 3 * forward.attention
    assert training.mlp == 3 * forward.mlp


def test_options_of_the_block() -> None:
    width, vocabulary, tokens = 32, 50, 64
    projections, pairs = 4 * 2 * width * width, 2 * 2 * width * tokens
    gated = flops_per_token(small("dot", activation="swiglu"), tokens)
    assert gated.mlp == 3 * 2 * width * 88  # 8/3 of the width, a multiple of 8
    assert gated.attention == projections + pairs
    bare = flops_per_token(small("dot", mlp_ratio=0, tied_head=True, positions="none", norm="none"), tokens)
    assert bare.to_dict() == {
        "total": projections + pairs + 2 * width * vocabulary,
        "attention": projections + pairs,
        "mlp": 0,
        "head": 2 * width * vocabulary,
        "other": 0,
    }
    rotary = small("dot", positions="rotary", norm_place="post", rotary_layout="interleaved")
    for length in (256, 300):  # also longer than the block
        turned = flops_per_token(rotary, length)
        assert (turned.attention, turned.mlp) == (projections + 4 * width * length, 2 * 2 * width * 4 * width)
        assert (turned.head, turned.other) == (2 * width * vocabulary, 0)


def test_additive() -> None:
    layers, heads, width, tokens = 3, 3, 48, 90
    forward, training = both(make(mechanism="additive"), tokens)
    narrow = width // heads
    products = 4 * 2 * width * width + 2 * heads * 2 * narrow * narrow  # W1 for queries and for keys
    seen = (tokens + 1) / 2
    assert forward.attention == layers * (products + seen * heads * (4 + 2) * narrow)
    assert training.attention == layers * (3 * products + seen * heads * (14 + 6) * narrow)


def test_sliding_is_linear() -> None:
    layers, width = 3, 48
    gathered = 3 * 64  # a window of 128 in blocks of 64: a token's own and two before it
    for tokens in (512, 1024):
        forward, training = both(make(mechanism="sliding"), tokens)
        assert forward.attention == layers * (4 * 2 * width * width + 4 * width * gathered)
        assert training.attention == layers * (3 * 4 * 2 * width * width + 14 * width * gathered)


def test_performer() -> None:
    layers, heads, width, tokens, chunk = 3, 3, 48, 512, 128
    narrow = width // heads
    features, values = math.ceil(narrow * math.log(narrow)), narrow + 1  # the values and a one
    forward, _ = both(make(mechanism="performer"), tokens)
    head = (
        2 * 2 * narrow * features  # of queries and keys
        + 2 * features * values  # keys and values summed up
        + 2 * features * chunk
        + 2 * chunk * values  # within the chunk
        + 2 * features * values  # with the sums before it
    )
    assert forward.attention == layers * (4 * 2 * width * width + heads * head)


@pytest.mark.parametrize("vocabulary", [50, 5000])
def test_training_takes_three_times_a_linear_map(vocabulary: int) -> None:
    """Counted on both paths of the loss: with all scores at once, and some tokens at a time."""
    forward, training = both(small("dot", vocab_size=vocabulary), 40)
    assert forward.head == 2 * 32 * vocabulary
    assert training.head == 3 * forward.head
    assert training.mlp == 3 * forward.mlp == 3 * 16 * 32 * 32


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_mechanism_escapes_the_count(name: str) -> None:
    """What it counts beyond its projections is at least what its kind cannot do without, and more on the way back."""
    tokens, width = 200, 32
    forward, training = both(small(name), tokens)
    for counts in (forward, training):
        assert all(math.isfinite(count) and count >= 0 for count in counts.to_dict().values())
        assert counts.other == 0
    model = small(name)
    matrices = [
        p for n, p in model.blocks[0].attn.named_parameters() if p.ndim == 2 and n.startswith(("heads.", "out."))
    ]
    projections = 2 * sum(p.numel() for p in matrices)
    quadratic = registry.find("mechanism", name).cost.startswith("n²")
    pairs = (tokens + 1) / 2 if quadratic else 8  # the rows, features, latents or neighbours of a token
    beyond = forward.attention - projections
    assert beyond >= 4 * width * pairs
    assert training.attention - 3 * projections >= 2.5 * 4 * width * pairs
    assert training.attention >= 2.5 * forward.attention
    assert training.mlp == 3 * forward.mlp
    assert training.head == 3 * forward.head


class Unknown(TorchDispatchMode):
    """Collects operations on several tensors of numbers that have no formula and do not work number by number."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        tensors = [one for one in given if isinstance(one, torch.Tensor) and one.is_floating_point() and one.ndim]
        known = func.overloadpacket in FORMULAS or func.is_view or torch.Tag.pointwise in func.tags
        if len(tensors) > 1 and not known:
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_operation_that_could_be_a_product_has_a_formula(name: str) -> None:
    """If this fails, a fast path has a new operation: give it a formula in counting.py, or name it above if it is none."""
    with Unknown() as found:
        for settings in ({}, {"dropout": 0.1, "attention_dropout": 0.1}, {"vocab_size": 5000}):
            model = small(name, **settings).train()
            for tokens in (20, 200):
                ids, targets = torch.randint(50, (2, 1, tokens))
                SummedLoss(model)(ids, targets).backward()
    assert found.names <= NO_PRODUCTS


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_count_grows_as_the_card_says(name: str) -> None:
    """From 1,100 tokens, since up to 1,024 sparse mechanisms may look at all pairs."""
    model = small(name, block_size=4400, n_head=1, n_embd=16)
    ratio = flops_per_token(model, 4400).attention / flops_per_token(model, 1100).attention
    if registry.find("mechanism", name).cost.startswith("n²"):
        assert 2 < ratio < 4
    else:
        assert 1 / 1.3 < ratio < 1.3


def test_a_mechanism_with_a_kernel_that_says_nothing_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the test above is above what is left when the pairs are not counted."""
    monkeypatch.setattr("attnlab.kernels.additive.Problem.flops", lambda *_: 0)
    with pytest.raises(AssertionError):
        test_no_mechanism_escapes_the_count("additive")


@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_was(training: bool) -> None:
    model = small("performer", options={"performer": {"redraw": 1}}, dropout=0.1)
    model.blocks[0].attn.train()
    model.blocks[0].mlp.eval()
    modes = [part.training for part in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    first = flops_per_token(model, 30, training=training)
    with torch.inference_mode():
        assert flops_per_token(model, 30, training=training) == first
    assert torch.equal(state, torch.get_rng_state())
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())


def test_lengths_that_do_not_fit_are_refused() -> None:
    for tokens in (0, 257):
        with pytest.raises(UserError, match=f"{tokens} tokens does not fit: give 1 to 256"):
            flops_per_token(small("dot"), tokens)
    assert flops_per_token(small("dot"), 1).total > 0


def test_counts_are_plain_and_frozen() -> None:
    counts = attnlab.flops_per_token(small("dot"), 16)
    assert list(counts.to_dict()) == ["total", "attention", "mlp", "head", "other"]
    with pytest.raises(FrozenInstanceError):
        counts.mlp = 0.0  # type: ignore[misc]


def test_params_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["params", "mingpt", "--length", "100", "--json"])
    shown = json.loads(capsys.readouterr().out)["flops_per_token"]
    assert shown["length"] == 100
    model = make("mingpt")
    assert shown["forward"] == flops_per_token(model, 100).to_dict()
    assert shown["training"] == flops_per_token(model, 100, training=True).to_dict()
    cli.main(["params", "mingpt"])
    text = capsys.readouterr().out
    assert f"{flops_per_token(model, 128).total:,.0f}" in text
    assert "128 tokens" in text
    with pytest.raises(SystemExit) as end:
        cli.main(["params", "mingpt", "--length", "1000"])
    assert end.value.code == 2
    assert "give 1 to 128" in capsys.readouterr().err


def test_params_builds_no_giants(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["params", "small", "--model.n_embd", "4096", "--model.n_layer", "32", "--json"])
    assert json.loads(capsys.readouterr().out)["flops_per_token"] is None
