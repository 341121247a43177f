from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attnlab
from attnlab import registry
from attnlab.config import ModelConfig
from attnlab.errors import UserError
from attnlab.inside.taps import capture, influence, patch, taps_of
from attnlab.lm.model import LanguageModel

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])
BATCH, TOKENS, HEADS, WIDTH = 2, 7, 2, 16


def make(positions: str = "learned", mechanism: str = "dot") -> LanguageModel:
    torch.manual_seed(0)
    config = ModelConfig(
        n_layer=2,
        n_head=HEADS,
        n_embd=WIDTH,
        block_size=12,
        vocab_size=20,
        mechanism=mechanism,
        positions=positions,  # type: ignore[arg-type]
        zero_init=False,
    )
    model = LanguageModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)  # large enough for heads to have opinions
    return model


@pytest.fixture
def model() -> LanguageModel:
    return make()


# What there is


def test_every_tap_has_the_shape_that_its_name_promises(model: LanguageModel) -> None:
    with torch.no_grad(), attnlab.capture(model) as seen:
        model(IDS)
    stream, by_head = (BATCH, TOKENS, WIDTH), (BATCH, TOKENS, HEADS, WIDTH // HEADS)
    block = dict.fromkeys(("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out"), stream)
    block |= {
        "hook_resid_post": stream,
        "mlp.hook_post": (BATCH, TOKENS, 4 * WIDTH),
        "attn.hook_pattern": (BATCH, HEADS, TOKENS, TOKENS),
    }
    block |= dict.fromkeys((f"attn.hook_{name}" for name in "qkvz"), by_head)
    expected = dict.fromkeys(("hook_embed", "hook_pos_embed", "hook_final"), stream)
    expected |= {f"blocks.{layer}.{name}": shape for layer in range(2) for name, shape in block.items()}
    assert {name: tuple(value.shape) for name, value in seen.items()} == expected


def test_the_guide_names_every_tap_and_no_other(model: LanguageModel) -> None:
    text = (Path(__file__).parents[2] / "docs/looking.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-zN_.]*hook_\w+)`", text, flags=re.MULTILINE))
    recurrent = {"blocks.N.attn.hook_state"}
    assert named == {re.sub(r"\d+", "N", name) for name in taps_of(model)} | recurrent
    assert {re.sub(r"\d+", "N", name) for name in taps_of(make("learned", "gated_delta"))} >= recurrent
    rotary = {re.sub(r"\d+", "N", name) for name in taps_of(make("rotary"))}
    assert named - rotary == {"hook_pos_embed"} | recurrent


def test_the_parts_add_up_to_the_stream(model: LanguageModel) -> None:
    with torch.no_grad(), capture(model) as seen:
        logits = model(IDS)
    assert torch.equal(seen["blocks.0.hook_resid_pre"], seen["hook_embed"] + seen["hook_pos_embed"])
    for layer in ("blocks.0", "blocks.1"):
        middle = seen[f"{layer}.hook_resid_pre"] + seen[f"{layer}.hook_attn_out"]
        assert torch.equal(seen[f"{layer}.hook_resid_mid"], middle)
        assert torch.equal(seen[f"{layer}.hook_resid_post"], middle + seen[f"{layer}.hook_mlp_out"])
    assert torch.equal(seen["blocks.1.hook_resid_pre"], seen["blocks.0.hook_resid_post"])
    assert torch.equal(seen["hook_final"], model.norm(seen["blocks.1.hook_resid_post"]))
    assert torch.equal(model.head(seen["hook_final"]), logits)


def test_behind_the_last_attention_only_wanted_tokens_pass(model: LanguageModel) -> None:
    wanted = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    wanted[0, 2] = wanted[1, 4] = wanted[1, 6] = True
    with capture(model) as few:
        model.hidden(IDS, wanted=wanted)
    with capture(model) as all_tokens:
        model.hidden(IDS)
    behind = {"blocks.1.mlp.hook_post", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_post", "hook_final"}
    for name, value in few.items():
        whole = all_tokens[name]
        assert torch.allclose(value, whole[wanted] if name in behind else whole, atol=1e-4)


# Capturing


def test_taps_are_chosen_by_ending_by_list_or_by_function(model: LanguageModel) -> None:
    names = ["blocks.1.attn.hook_z", "hook_embed"]
    for choice, expected in (
        ("resid_post", {"blocks.0.hook_resid_post", "blocks.1.hook_resid_post"}),
        (names, set(names)),
        (tuple(names), set(names)),
        (
            lambda name: name.startswith("blocks.0.attn"),
            {f"blocks.0.attn.hook_{x}" for x in ("q", "k", "v", "z", "pattern")},
        ),
    ):
        with capture(model, choice) as seen:
            model(IDS)
        assert set(seen) == expected


def test_what_is_captured_has_no_gradient_and_the_model_keeps_its_own(model: LanguageModel) -> None:
    with capture(model) as seen:
        model(IDS).sum().backward()
    assert not any(value.requires_grad for value in seen.values())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_nothing_stays_behind(model: LanguageModel) -> None:
    before = model(IDS)
    with capture(model), patch(model, {"hook_embed": torch.zeros_like}):
        assert not torch.equal(model(IDS), before)
        assert model.hook_embed.watched
    with pytest.raises(ZeroDivisionError), capture(model), patch(model, {"hook_embed": torch.zeros_like}):
        _ = 1 / 0
    assert not any(tap.watched for tap in taps_of(model).values())
    assert torch.equal(model(IDS), before)


def test_a_capture_that_caught_nothing_raises(model: LanguageModel) -> None:
    with (
        pytest.raises(RuntimeError, match="nothing passed blocks.0.attn.hook_q and 24 more: run the plain"),
        capture(model),
    ):
        pass
    with pytest.raises(RuntimeError, match="did you mean hook_pattern"), capture(model, "hook_patern"):
        model(IDS)
    with pytest.raises(RuntimeError, match="nothing passed"), capture(model, lambda name: "hook" in name):
        pass
    with (
        pytest.raises(UserError, match="unknown tap 'blocks.7.hook_resid_pre'"),
        capture(model, ["blocks.7.hook_resid_pre"]),
    ):
        pass
    with pytest.raises(RuntimeError, match="nothing passed hook_final: "), capture(model, ["hook_embed", "hook_final"]):
        model.hook_embed(torch.zeros(1))


def test_a_mistake_inside_is_not_hidden_by_that(model: LanguageModel) -> None:
    with pytest.raises(IndexError, match="mine"), capture(model):
        raise IndexError("mine")
    with pytest.raises(IndexError, match="mine"), patch(model, {"hook_embed": torch.zeros_like}):
        raise IndexError("mine")


# Patching


def test_a_patched_pattern_is_what_the_output_is_made_of(model: LanguageModel) -> None:
    """Made even, every token takes the plain mean of all values, the future's too."""
    attention = model.blocks[0].attn
    x = torch.randn(BATCH, TOKENS, WIDTH)
    with patch(attention, {"hook_pattern": lambda pattern: torch.full_like(pattern, 1 / TOKENS)}):
        found = attention(x)
    mean = attention.heads.value(x).mean(dim=1, keepdim=True)
    assert torch.allclose(found, attention.out(mean).expand_as(found), atol=1e-6)
    assert not torch.allclose(found, attention(x), atol=1e-3)


def test_without_a_head_the_others_are_left(model: LanguageModel) -> None:
    attention = model.blocks[0].attn
    x = torch.randn(BATCH, TOKENS, WIDTH)

    def without_the_first(z: Tensor) -> Tensor:
        z[:, :, 0] = 0
        return z

    with torch.no_grad(), patch(attention, {"hook_z": without_the_first}), capture(attention, "hook_z") as seen:
        found = attention(x)
    half = WIDTH // HEADS
    kept = F.linear(seen["hook_z"][:, :, 1], attention.out.weight[:, half:], attention.out.bias)
    assert torch.allclose(found, kept, atol=1e-6)
    assert (seen["hook_z"][:, :, 0] == 0).all()


def test_putting_a_run_into_another_gives_the_first(model: LanguageModel) -> None:
    """Activation patching: the stream of one text after the first block, put into the pass of another."""
    one, other = IDS[:1], IDS[1:]
    with capture(model, "blocks.0.hook_resid_post") as seen:
        expected = model(one)
    with patch(model, {"blocks.0.hook_resid_post": lambda _: seen["blocks.0.hook_resid_post"]}):
        assert torch.equal(model(other), expected)
    assert not torch.allclose(model(other), expected, atol=1e-2)


def test_a_capture_sees_the_patched_value_whoever_came_first(model: LanguageModel) -> None:
    zero = {"blocks.0.hook_mlp_out": torch.zeros_like}
    with capture(model, "hook_mlp_out") as outside, patch(model, zero), capture(model, "hook_mlp_out") as inside:
        model(IDS)
    for seen in (outside, inside):
        assert (seen["blocks.0.hook_mlp_out"] == 0).all()
        assert (seen["blocks.1.hook_mlp_out"] != 0).any()


def test_patches_of_one_tap_follow_each_other(model: LanguageModel) -> None:
    first, then = ({"hook_embed": change} for change in (lambda x: x + 1, lambda x: x * 0.5))
    with patch(model, first), patch(model, then), capture(model, "hook_embed") as seen:
        model(IDS)
    assert torch.allclose(seen["hook_embed"], (model.tokens(IDS) + 1) * 0.5)


def test_writing_into_one_tensor_leaves_its_namesakes_alone() -> None:
    """Where keys are the queries, changing the keys must not change the queries."""
    attention = registry.find("mechanism", "dot").build(WIDTH, HEADS, 12, share="qk").eval()
    x = torch.randn(1, 5, WIDTH)
    with capture(attention) as before:
        attention(x)
    with capture(attention) as after, patch(attention, {"hook_k": Tensor.zero_}), torch.no_grad():
        attention(x)
    assert torch.equal(before["hook_q"], after["hook_q"])
    assert (after["hook_k"] == 0).all()


def test_gradients_flow_through_a_patch(model: LanguageModel) -> None:
    scale = torch.ones((), requires_grad=True)
    with patch(model, {"blocks.0.attn.hook_pattern": lambda pattern: pattern * scale}):
        model(IDS).square().sum().backward()
    assert scale.grad is not None
    assert scale.grad.abs() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, 1:], r"returned \[2, 6, 16\] of float32, where \[2, 7, 16\] of float32 passes"),
        (lambda x: x.double(), r"returned .* of float64, where .* of float32 passes"),
        (lambda x: None, "returned NoneType: return the changed tensor"),
    ],
)
def test_a_wrong_return_is_named(model: LanguageModel, change: object, message: str) -> None:
    with (
        pytest.raises(UserError, match=f"patch of hook_embed {message}"),
        patch(model, {"hook_embed": change}),  # type: ignore[dict-item]
    ):
        model(IDS)


def test_a_patch_of_nothing_raises(model: LanguageModel) -> None:
    misspelt = {"blocks.0.attn.hook_patern": torch.zeros_like}
    with pytest.raises(UserError, match=r"did you mean blocks.0.attn.hook_pattern"), patch(model, misspelt):
        pass
    changes = {"hook_embed": torch.clone, "blocks.1.hook_mlp_out": torch.clone}
    with pytest.raises(RuntimeError, match=r"nothing passed blocks.1.hook_mlp_out: "), patch(model, changes):
        model.blocks[0](model.hook_embed(torch.zeros(1, 3, WIDTH)), None, None)


# Influence


def jacobian_norms(function: object, x: Tensor) -> Tensor:
    """The definition, by torch: the norm of every block of the derivative of [T, E] by [T, D]."""
    whole = torch.autograd.functional.jacobian(function, x)  # type: ignore[arg-type]
    return torch.as_tensor(whole).square().sum(dim=(1, 3)).sqrt()


@pytest.mark.parametrize("mechanism", ["dot", "zero_mask"])
def test_influence_is_the_norm_of_the_derivative(mechanism: str) -> None:
    model = make(mechanism=mechanism)

    def final(embedded: Tensor) -> Tensor:
        with patch(model, {"hook_embed": lambda _: embedded[None]}):
            return model.hidden(IDS[:1])[0]

    expected = jacobian_norms(final, model.tokens(IDS[0]).detach())
    assert torch.allclose(influence(model, IDS[0]), expected, rtol=1e-4, atol=1e-6)


def test_influence_of_a_mechanism_alone(model: LanguageModel) -> None:
    attention, x = model.blocks[0].attn, torch.randn(5, WIDTH)
    expected = jacobian_norms(lambda given: attention(given[None])[0], x)
    assert torch.allclose(influence(attention, x), expected, rtol=1e-4, atol=1e-6)


def test_influence_between_two_taps(model: LanguageModel) -> None:
    """Through a block's MLP each token depends on itself alone; by logits as by the stream, only rows of a causal past."""
    within = influence(model, IDS[0], source="blocks.0.hook_resid_mid", target="blocks.0.hook_mlp_out")
    assert (within.diag() > 0).all()
    assert (within - within.diag().diag() == 0).all()
    assert (influence(model, IDS[0], source="blocks.1.hook_resid_pre", target="blocks.0.hook_resid_post") == 0).all()
    with pytest.raises(UserError, match="hook_pattern has no vector for each token"):
        influence(model, IDS[0], target="blocks.0.attn.hook_pattern")
    with pytest.raises(UserError, match="choose two taps"):
        influence(model, IDS[0], target="hook_embed")
    with pytest.raises(UserError, match="did you mean hook_final"):
        influence(model, IDS[0], target="hook_finale")


def test_a_causal_model_has_no_influence_of_the_future_and_a_leak_shows() -> None:
    future = torch.ones(TOKENS, TOKENS).triu(1).bool()
    for samples in (None, 3):
        sound = influence(make(), IDS[0], samples=samples)
        assert (sound[future] == 0).all()
        assert (sound[~future] > 0).all()
        assert (influence(make(mechanism="zero_mask"), IDS[0], samples=samples)[future] > 0).all()


def test_texts_of_a_batch_are_as_alone(model: LanguageModel) -> None:
    both = influence(model, IDS)
    assert both.shape == (BATCH, TOKENS, TOKENS)
    assert torch.allclose(both[1], influence(model, IDS[1]), rtol=1e-5)


def test_dropout_rests_while_influence_is_measured(model: LanguageModel) -> None:
    expected = influence(model, IDS[0])
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
    assert torch.equal(influence(model.train(), IDS[0]), expected)


def test_influence_leaves_modes_gradients_and_generator_as_they_were(model: LanguageModel) -> None:
    model.train()
    model.blocks[0].eval()
    state = torch.get_rng_state()
    with torch.inference_mode():
        first = influence(model, IDS[0], samples=2)
    assert torch.equal(first, influence(model, IDS[0], samples=2))
    assert not torch.equal(first, influence(model, IDS[0], samples=2, seed=1))
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert not model.blocks[0].training
    assert not first.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(UserError, match="at least 1, not 0"):
        influence(model, IDS[0], samples=0)


class OneDirection(nn.Module):
    """The worst case of an estimate: a derivative of rank one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=-1, keepdim=True) * torch.linspace(-1, 2, x.shape[-1])


def test_the_error_of_an_estimate_is_as_promised() -> None:
    samples, module, x = 8, OneDirection(), torch.zeros(1, 40)
    exact = influence(module, x).item()
    found = torch.tensor([influence(module, x, samples=samples, seed=seed).item() for seed in range(400)]) / exact
    assert (found.square().mean() - 1).abs() < 0.08  # 3 standard errors
    assert 0.7 / math.sqrt(2 * samples) < found.std() < 1 / math.sqrt(2 * samples)
    assert influence(module, x, samples=40).item() == pytest.approx(exact)


@pytest.mark.parametrize("choice", [[], (), lambda _name: False])
def test_a_capture_of_nothing_is_refused(choice: Any) -> None:
    module = registry.find("mechanism", "dot").build(16, 2, 8)
    with pytest.raises(RuntimeError, match="no tap was chosen"), attnlab.capture(module, choice):
        pass
