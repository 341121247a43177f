from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnlab.config import ModelConfig, RunConfig, build, diff, preset_names, resolve
from attnlab.errors import ConfigError


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("stage", ["pretrain", "finetune", "scratch"])
def test_every_preset_resolves_for_every_stage(preset: str, stage: str) -> None:
    config = resolve(preset, stage)  # type: ignore[arg-type]
    assert config.preset == preset
    assert (config.task.name == "questions") == (stage != "pretrain")


def test_command_line_beats_file_beats_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\nepochs = 3\nlr = 1e-4\n[finetune.train]\nlr = 5e-5\n")
    assert resolve("small", "pretrain", file).train.lr == 1e-4
    assert resolve("small", "finetune", file).train.lr == 5e-5
    config = resolve("small", "pretrain", file, {"train": {"lr": 0.5}})
    assert (config.train.epochs, config.train.lr) == (3.0, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\nn_haed = 4", "did you mean model.n_head"),
        ("[modle]\nn_head = 4", "did you mean model"),
        ("[model]\nn_head = 'four'", "model.n_head must be a whole number, not 'four'"),
        ("[model]\nn_head = 4.5", "model.n_head must be a whole number"),
        ("[model]\nqk_norm = 1", "model.qk_norm must be true or false"),
        ("[model]\nactivation = 'swish'", "one of gelu, gelu_tanh, relu2"),
        ("[model]\nn_head = 3", "multiple of model.n_head"),
        ("[train]\nepochs = 0", "train.epochs must be above 0"),
        ("[finetune.model]\nn_head = 2", "only the tables task and train"),
        ("model = 3", "model must be a table"),
        ("[model", "not valid TOML"),
        ("seed = -1", "seed must lie between 0 and"),
        ("[train]\nepochs = inf", "train.epochs must be a finite number"),
        ("[model]\nblock_size = 3", "model.block_size must be at least 8"),
        ("[finetune]\ntask = 3", "task must be a table"),
        ("[model.options]\ndot = 3", "model.options must be a table"),
        ("preset = 'mingpt'", "choose the preset with --preset"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")) as error:
        resolve("small", "pretrain", file)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_what_a_file_says_of_all_stages_yields_to_what_is_said_of_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\nepochs = 77\nlr = 0.5\n[task]\nname = 'spans'\n[scratch.train]\nepochs = 2\n")
    preset = resolve("small", "finetune")
    assert resolve("small", "pretrain", file).task.name == "spans"
    assert resolve("small", "finetune", file).task.name == "questions"
    assert resolve("small", "finetune", file).train == preset.train
    assert resolve("small", "scratch", file).train.epochs == 2
    assert resolve("small", "scratch", file).train.lr == 0.5


def test_options_of_one_task_do_not_reach_another(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[task.options]\nviews = 2\n")
    assert resolve("small", "pretrain", file).task.options == {"views": 2}
    assert resolve("small", "finetune", file).task.options == {}
    assert resolve("small", "pretrain", file, {"task": {"name": "spans"}}).task.options == {}


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean mingpt"):
        resolve("minigpt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve("small", "pretrain", tmp_path)
    with pytest.raises(ConfigError, match="no such settings file"):
        resolve("small", "pretrain", tmp_path / "absent.toml")


def test_round_trip_and_diff() -> None:
    one = resolve("small", given={"seed": 1})
    again = build(RunConfig, one.to_dict())
    assert again == one

    other = resolve("small", given={"seed": 2, "model": {"n_layer": 1}})
    assert diff(one, other) == {"model.n_layer": (one.model.n_layer, 1), "seed": (1, 2)}
    assert other != one


def test_rotary_needs_an_even_head() -> None:
    with pytest.raises(ConfigError, match="even head width"):
        ModelConfig(n_embd=6, n_head=2)
    ModelConfig(n_embd=6, n_head=2, positions="learned")


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ("rotery", "did you mean rotary"),
        ("learned,rotary", "added to the embedding: name one of them alone"),
        ("rotary,none,none", "names 3 layers of 2"),
        ("", "unknown model.positions"),
    ],
)
def test_positions_that_cannot_be_are_refused(positions: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(positions=positions)


def test_a_preset_like_another_says_only_what_differs() -> None:
    small, recall = resolve("small"), resolve("recall")
    assert diff(small, recall).keys() == {"preset", "train.epochs"}
    assert recall.train.epochs > small.train.epochs
    assert resolve("recall", "finetune").train == resolve("small", "finetune").train


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, "seed = " + "9" * 5000, "seed = " + "9" * 400, "seed = 2147483648"]
)
def test_deep_and_huge_settings_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        resolve(file=file)


@pytest.mark.parametrize(
    "given",
    [
        *({"seed": -1}, {"seed": 2**31}, {"train": {"lr": 10**400}}, {"train": {"threads": 10**6}}),
        *(
            {"model": {name: 2**31 - 2}}
            for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "mlp_ratio")
        ),
    ],
)
def test_numbers_beyond_use_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        resolve(given=given)


def test_spaces_around_positions_do_not_count() -> None:
    assert ModelConfig(positions=" learned").positions == "learned"
    assert ModelConfig(positions="rotary , none").layer_positions == ("rotary", "none")
