from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab import ops, registry
from attnlab.config import ModelConfig, RunConfig, resolve
from attnlab.errors import CheckpointError, ConfigError
from attnlab.inside.taps import capture
from attnlab.lm.model import (
    LanguageModel,
    count_parameters,
    load_model,
    meta_model,
    model_files,
    to_bytes,
)
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.folders import write_folder
from verbs import reseal

TEXT = ["Hank Aaron was born in Mobile ."]


def test_the_presets_have_the_sizes_they_promise() -> None:
    mingpt = count_parameters(meta_model(resolve("mingpt").model))
    assert sum(mingpt.values()) == 3_323_392
    assert mingpt["positions"] == 128 * 256
    assert mingpt["head"] == 256 * 256
    perceiver = count_parameters(meta_model(resolve("mingpt-perceiver").model))
    assert sum(perceiver.values()) == 3_339_776
    assert perceiver["latents"] == 64 * 256
    assert sum(count_parameters(meta_model(resolve("small").model)).values()) <= 3_400_000


def test_parts_add_up_to_all_parameters(tiny: RunConfig) -> None:
    model = LanguageModel(tiny.model)
    assert sum(count_parameters(model).values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("preset", ["small", "mingpt", "mingpt-perceiver"])
def test_the_model_is_causal(preset: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(resolve(preset, given={"model": {"n_layer": 3, "zero_init": False}}).model).eval()
    ids = torch.randint(0, 200, (1, 10))
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 200
    difference = (model(ids) - model(changed)).abs().amax(-1)[0]
    assert difference[:6].max() == 0
    assert difference[6:].min() > 1e-6


def with_caches(model: LanguageModel, ids: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    caches = model.new_caches()
    return torch.cat([model(part, caches=caches) for part in ids.split(pieces, dim=1)], dim=1)


LATENTS = {"positions": "sinusoidal", "norm_place": "post", "activation": "swiglu"}


@pytest.mark.parametrize(
    ("preset", "settings"),
    [("small", {}), ("mingpt", {}), ("mingpt-perceiver", {}), ("mingpt-perceiver", LATENTS)],
    ids=str,
)
@pytest.mark.parametrize("pieces", [[5, 1, 1, 5], [1] * 12, [12]])
def test_logits_with_caches_equal_logits_without(preset: str, settings: dict[str, Any], pieces: list[int]) -> None:
    torch.manual_seed(0)
    given = {"model": {"n_layer": 3, "zero_init": False, **settings}}
    model = LanguageModel(resolve(preset, given=given).model).eval()
    ids = torch.randint(0, 200, (2, 12))
    assert torch.allclose(with_caches(model, ids, pieces), model(ids), atol=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {"positions": "none"},
    {"positions": "sinusoidal"},
    {"positions": "rotary,none"},
    {"rotary_layout": "interleaved", "rotary_fraction": 0.5, "rotary_base": 100.0},
    {"mechanism": "differential", "rotary_layout": "interleaved"},
    {"mechanism": "linear", "rotary_layout": "interleaved"},
    {"mechanism": "sliding", "options": {"sliding": {"window": 5}}},
    {"norm": "none", "activation": "silu"},
    {"norm": "layer", "norm_place": "post"},
    {"activation": "swiglu"},
    {"mlp_ratio": 0},
    {"tied_head": True},
]


def varied(**settings: Any) -> LanguageModel:
    """A model of three layers with a block of 16 and weights large enough for every part to matter."""
    sizes = {"n_layer": 3, "n_head": 2, "n_embd": 32, "block_size": 16, "vocab_size": 50, "zero_init": False}
    model = LanguageModel(resolve("small", given={"model": {**sizes, **settings}}).model).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("settings", OPTIONS, ids=str)
def test_every_option_reads_beyond_its_block_whole_or_with_caches(settings: dict[str, Any]) -> None:
    model, ids = varied(**settings), torch.randint(0, 50, (2, 40))
    whole = model(ids)
    assert (with_caches(model, ids, [9, 1, 8, 1, 20, 1]) - whole).abs().max() <= 2e-5
    assert (model(ids[:, :16]) - whole[:, :16]).abs().max() <= 2e-5
    larger = LanguageModel(replace(model.config, block_size=64, mechanism=model.config.mechanism)).eval()
    larger.load_state_dict(model.state_dict())
    assert (larger(ids) - whole).abs().max() <= 2e-5


@pytest.mark.parametrize("settings", OPTIONS, ids=str)
def test_packed_documents_are_read_as_if_alone_beyond_the_block(settings: dict[str, Any]) -> None:
    model, ids = varied(**settings), torch.randint(0, 50, (1, 30))
    packed = model(ids, documents=torch.tensor([[0] * 20 + [1] * 10]))
    assert (packed - torch.cat([model(ids[:, :20]), model(ids[:, 20:])], dim=1)).abs().max() <= 2e-5


@pytest.mark.parametrize(
    "settings", [{"positions": "learned"}, *({"mechanism": name} for name in ("bigbird", "linformer", "synthesizer"))]
)
def test_what_ends_with_the_block_refuses_longer_texts(settings: dict[str, Any]) -> None:
    model = varied(**settings)
    assert model.longest == 16
    with pytest.raises(ValueError, match="17 tokens do not fit into a block of 16"):
        model(torch.zeros(1, 17, dtype=torch.long))


def test_a_class_that_rotates_by_itself_refuses_another_rotation(tmp_path: Path) -> None:
    head = "import torch\nclass Own(torch.nn.Linear):\n    def __init__(self, n_embd, n_head, block_size, *, rotary=False):\n"
    (tmp_path / "own.py").write_text(head + "        super().__init__(n_embd, n_embd)\n")
    name = f"{tmp_path}/own.py:Own"
    assert meta_model(ModelConfig(mechanism=name)).longest == 128
    for settings in ({"rotary_base": 100.0}, {"rotary_layout": "interleaved"}, {"rotary_fraction": 0.5}):
        with pytest.raises(ConfigError, match="rotates in a way of its own"):
            meta_model(ModelConfig(mechanism=name, **settings))  # type: ignore[arg-type]
    meta_model(ModelConfig(mechanism=name, positions="none", rotary_base=100.0))


def test_a_tied_head_is_stored_and_trained_once() -> None:
    model = varied(tied_head=True)
    assert "head.weight" not in model.state_dict()
    assert count_parameters(model)["head"] == 0
    assert sum(count_parameters(model).values()) == sum(p.numel() for p in model.parameters())
    model(torch.tensor([[3, 1, 2]])).sum().backward()
    twin = varied(tied_head=False)
    twin.load_state_dict({**model.state_dict(), "head.weight": model.tokens.weight.detach()})
    twin(torch.tensor([[3, 1, 2]])).sum().backward()
    together = [model.tokens.weight.grad, twin.tokens.weight.grad, twin.head.weight.grad]
    assert all(gradient is not None for gradient in together)
    assert torch.allclose(together[0], together[1] + together[2], atol=1e-4)  # type: ignore[operator, arg-type]


def test_parts_of_the_block_are_counted() -> None:
    def parts(**settings: Any) -> dict[str, int]:
        return count_parameters(meta_model(ModelConfig(n_embd=48, n_head=4, vocab_size=10, norm="layer", **settings)))

    assert parts(activation="swiglu")["MLP"] == 2 * 3 * 48 * 128
    assert (
        count_parameters(meta_model(ModelConfig(activation="swiglu")))["MLP"] == 2 * 3 * 256 * 688
    )  # 682.7 rounded up
    assert parts()["norms"] == 5 * 2 * 48
    assert parts(norm_place="post")["norms"] == 4 * 2 * 48
    assert (parts(mlp_ratio=0)["MLP"], parts(mlp_ratio=0)["norms"]) == (0, 3 * 2 * 48)
    assert parts(tied_head=True)["token embedding"] == 480
    assert parts(positions="sinusoidal")["positions"] == 0


@pytest.mark.parametrize("mechanism", [*registry.names("mechanism"), "dot,linear", "dot,perceiver"])
def test_every_mechanism_learns_in_the_same_backbone(mechanism: str, tiny: RunConfig) -> None:
    torch.manual_seed(0)
    model = LanguageModel(replace(tiny.model, mechanism=mechanism, vocab_size=20))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ids = torch.randint(0, 20, (4, 17))
    losses = []
    for _ in range(25):
        loss = ops.token_losses(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("padded", [False, True])
def test_latents_read_everything_and_nothing_of_the_future(padded: bool) -> None:
    torch.manual_seed(0)
    config = resolve(
        "mingpt-perceiver", given={"model": {"n_embd": 32, "n_head": 2, "block_size": 16, "bottleneck": 4}}
    )
    model = LanguageModel(replace(config.model, n_layer=3)).eval()
    ids = torch.randint(0, 200, (1, 16))
    padding = torch.zeros(1, 16, dtype=torch.bool)
    padding[0, :3] = padded
    plain = model(ids, padding)
    for place in range(16):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] + 1) % 200
        moved = (model(changed, padding) - plain).abs().amax(-1)[0]
        assert moved[:place].sum() == 0
        if not padding[0, place]:
            # A latent is read from the end of its share on, so that a share of four tokens may pass first.
            assert (moved[(place // 4 + 1) * 4 :] > 1e-7).all()
        else:
            assert moved[3:].max() == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bottleneck": 48}, "must divide"),
        ({"positions": "rotary"}, "positions learned"),
        ({"n_layer": 1}, "at least two layers"),
        ({"mechanism": "sliding,dot"}, "the first and last layers must be 'dot'"),
    ],
)
def test_a_bottleneck_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        meta_model(resolve("mingpt-perceiver", given={"model": given}).model)


def test_zero_initialised_projections_start_as_the_identity() -> None:
    config = resolve("small", given={"model": {"n_layer": 2}}).model
    model = LanguageModel(config)
    ids = torch.arange(6)[None]
    assert torch.allclose(model.hidden(ids), model.norm(model.tokens(ids)))


@pytest.mark.parametrize("settings", [{"n_layer": 1}, {}, {"norm_place": "post"}, {"mlp_ratio": 0}], ids=str)
def test_wanted_tokens_are_computed_as_if_all_were(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    given = {"model": {"n_layer": 2, "zero_init": False, **settings}}
    model = LanguageModel(resolve("small", given=given).model)
    ids, wanted = torch.randint(0, 200, (3, 9)), torch.rand(3, 9) < 0.4
    directions = torch.randn(int(wanted.sum()), model.config.n_embd)  # the squares of a normed vector have no gradient
    results = []
    for asked in (wanted, None):
        model.zero_grad()
        hidden = model.hidden(ids, wanted=asked)
        found = hidden if asked is not None else hidden[wanted]
        (found * directions).sum().backward()
        results.append((found.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
    assert max(gradient.abs().max() for gradient in results[1][1]) > 0.1
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_mechanisms_are_tiled_over_layers_and_unknown_ones_refused() -> None:
    model = meta_model(ModelConfig(n_layer=3, mechanism="dot, dot"))
    assert len(model.blocks) == 3
    with pytest.raises(ConfigError, match="did you mean dot"):
        meta_model(ModelConfig(mechanism="dott"))
    with pytest.raises(ConfigError, match="but model.mechanism uses only dot"):
        meta_model(ModelConfig(options={"sliding": {"window": 3}}))


def test_too_long_a_text_is_refused(tiny: RunConfig) -> None:
    with pytest.raises(ValueError, match="do not fit into a block of 64"):
        LanguageModel(replace(tiny.model, positions="learned"))(torch.zeros(1, 65, dtype=torch.long))


def test_taps_have_the_names_people_know(tiny: RunConfig) -> None:
    model = LanguageModel(tiny.model).eval()
    with capture(model) as seen:
        model(torch.arange(5)[None])
    assert {"blocks.0.attn.hook_pattern", "blocks.1.attn.hook_z", "blocks.0.hook_resid_post"} <= set(seen)
    assert seen["blocks.0.attn.hook_pattern"].shape == (1, 2, 5, 5)
    with pytest.raises(RuntimeError, match="nothing passed"), capture(model):
        pass


@pytest.fixture
def saved(tmp_path: Path, tiny: RunConfig) -> Path:
    tokenizer = Tokenizer.train("bpe", TEXT, 300)
    write_folder(tmp_path / "model", "model", model_files(LanguageModel(tiny.model), tokenizer))
    return tmp_path / "model"


def test_save_and_load_give_equal_logits(saved: Path) -> None:
    (one, tokenizer), (two, _) = load_model(saved), load_model(saved)
    ids = torch.tensor([tokenizer.encode(TEXT[0])])
    assert torch.equal(one(ids), two(ids))
    assert not one.training


def damage_version(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": 99}))


def damage_length(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def damage_numbers(folder: Path) -> None:
    model, _ = load_model(folder)
    state: dict[str, Any] = dict(model.state_dict())
    state["head.weight"][0, 0] = float("nan")
    (folder / "model.safetensors").write_bytes(to_bytes(state))


def damage_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model"]["n_layer"] = 1
    (folder / "config.json").write_text(json.dumps(config))


def damage_json(folder: Path) -> None:
    (folder / "config.json").write_text('{"format": 1, ')


def damage_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_version, "format 99, but this version reads 1"),
        (damage_length, "truncated or damaged"),
        (damage_numbers, "hold NaN or infinity at 'head.weight'"),
        (damage_shape, "do not fit the model"),
        (damage_json, "damaged"),
        (damage_missing, "missing"),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_one_line(saved: Path, damage: Any, message: str) -> None:
    damage(saved)
    if damage is not damage_missing:
        reseal(saved)
    with pytest.raises(CheckpointError, match=message) as error:
        load_model(saved)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 1
