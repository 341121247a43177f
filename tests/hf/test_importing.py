"""A GPT-2 becomes a run that says the same, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from exchanged import ODD, TEXTS, ids_of, stored, tiny_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from attnlab import load_model
from attnlab.errors import CheckpointError, DataError, UserError
from attnlab.exchange import export, import_model, read_folder
from attnlab.hf.exchange import _NEVER
from attnlab.lm.tokenizers import Kind
from verbs import call

END = "<|endoftext|>"


def byte_pairs(alphabet: bool = True, **settings: Any) -> PreTrainedTokenizerFast:
    """A tokenizer made the way GPT-2's was."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) if alphabet else []
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=[END], initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END, eos_token=END, unk_token=END, **settings)


def gpt2(folder: Path, **settings: Any) -> GPT2LMHeadModel:
    """A GPT-2 with large weights, saved with its tokenizer."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 290}
    symbols = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes | symbols | settings)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    byte_pairs().save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": False},
        {"activation_function": "gelu", "n_inner": 48},
        {"activation_function": "gelu_pytorch_tanh"},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
        {"attn_pdrop": 0.0},
    ],
    ids=str,
)
def test_scores_are_equal(tmp_path: Path, settings: dict[str, Any]) -> None:
    theirs = gpt2(tmp_path / "gpt2", **settings)
    import_model(tmp_path / "gpt2", tmp_path / "run")
    ours, _ = load_model(tmp_path / "run")
    ids = ids_of()
    assert (ours(ids) - theirs(ids).logits).abs().max() <= 1e-5
    export(tmp_path / "run", tmp_path / "again")
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "again")
    assert (again(ids).logits - theirs(ids).logits).abs().max() <= 1e-5


def test_half_precision_weights_are_read(tmp_path: Path) -> None:
    theirs = gpt2(tmp_path / "gpt2").half()
    theirs.save_pretrained(tmp_path / "gpt2")
    ours, _ = read_folder(tmp_path / "gpt2")
    ids = ids_of()
    assert (ours(ids) - theirs.float()(ids).logits).abs().max() <= 1e-5


def test_texts_keep_their_ids(tmp_path: Path) -> None:
    gpt2(tmp_path / "gpt2")
    theirs = byte_pairs()
    _, ours = read_folder(tmp_path / "gpt2")
    assert ours.size == len(theirs)
    assert (ours.pad, ours.stop, ours.mask) == (0, 0, theirs.convert_tokens_to_ids("ÿ"))
    for text in ODD:
        if not set("⁇□") & set(text):
            ids = theirs.encode(text)
            assert ours.encode(text) == ids
            assert ours.decode(ids) == text
    assert ours.encode("a⁇□") == theirs.encode("a??")  # attnlab's symbols stand for nothing in a text
    assert ours.decode([ours.mask, *ours.encode("b"), ours.pad]) == "⁇b□"


def test_the_spare_letters_belong_to_bytes_that_no_text_contains() -> None:
    spare = set(map(chr, _NEVER))
    assert spare <= set(pre_tokenizers.ByteLevel.alphabet())
    every = "".join(chr(point) for point in range(0, 0x110000, 31) if not 0xD800 <= point < 0xE000)
    written = "".join(piece for piece, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(every))
    assert decoders.ByteLevel().decode([written]) == every
    assert not spare & set(written)


def test_a_vocabulary_without_a_spare_byte_needs_a_spare_row(tmp_path: Path) -> None:
    tokenizer = byte_pairs(alphabet=False)
    gpt2(tmp_path / "full", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(tmp_path / "full")
    with pytest.raises(UserError, match="no token to spare for ⁇"):
        read_folder(tmp_path / "full")
    gpt2(tmp_path / "wide", vocab_size=len(tokenizer) + 3)
    tokenizer.save_pretrained(tmp_path / "wide")
    _, ours = read_folder(tmp_path / "wide")
    assert ours.mask == len(tokenizer)
    assert ours.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon 1e-06"),
        ({"activation_function": "mish"}, "activation 'mish'"),
        ({"n_inner": 40}, "n_inner 40"),
        ({"add_cross_attention": True}, "second text"),
        ({"embd_pdrop": 0.0}, "one number for both"),
    ],
)
def test_what_cannot_be_held_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    gpt2(tmp_path / "gpt2", **settings)
    with pytest.raises(UserError, match=message):
        import_model(tmp_path / "gpt2", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no config\.json"):
        read_folder(tmp_path)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path / "llama")
    with pytest.raises(UserError, match="type 'llama'"):
        read_folder(tmp_path / "llama")
    gpt2(tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be loaded by transformers"):
        read_folder(tmp_path / "damaged")
    gpt2(tmp_path / "mute")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "mute" / name).unlink()
    with pytest.raises(DataError, match=r"has no tokenizer\.json, nor vocab\.json"):
        read_folder(tmp_path / "mute")
    gpt2(tmp_path / "odd")
    odd = byte_pairs()
    odd.backend_tokenizer.normalizer = normalizers.Lowercase()
    odd.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    odd.save_pretrained(tmp_path / "odd")
    _, ours = read_folder(tmp_path / "odd")
    assert ours.encode("Hank ÆRØ") == odd.encode("Hank ÆRØ")
    import_model(tmp_path / "odd", tmp_path / "run")
    with pytest.raises(UserError, match="already a run of attnlab"):
        read_folder(tmp_path / "run")


@pytest.mark.parametrize("layout", ["gpt2", "attnlab"])
def test_missing_weights_are_never_made_up(tmp_path: Path, capfd: pytest.CaptureFixture[str], layout: str) -> None:
    folder = tmp_path / "theirs"
    mechanism = "dot" if layout == "gpt2" else "linear"
    assert export(stored(tmp_path / "ours", tiny_model("mingpt", mechanism=mechanism)), folder)["layout"] == layout
    weights = load_file(folder / "model.safetensors")
    gone = next(name for name in weights if ".mlp." in name and "weight" in name)
    save_file(
        {name: one for name, one in weights.items() if name != gone}, folder / "model.safetensors", {"format": "pt"}
    )
    capfd.readouterr()
    assert call("import", folder, tmp_path / "run") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert f"lacks 1 of its weights, first {gone}" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["char", "bpe"])
@pytest.mark.parametrize("steps", [None, 1])
def test_an_exported_tokenizer_that_was_changed_is_refused(tmp_path: Path, kind: Kind, steps: int | None) -> None:
    export(stored(tmp_path / "ours", tiny_model(), kind), tmp_path / "theirs")
    file = tmp_path / "theirs" / "tokenizer.json"
    changed = json.loads(file.read_text())
    if steps is None:
        changed["normalizer"] = None
    else:
        del changed["normalizer"]["normalizers"][:steps]
    file.write_text(json.dumps(changed))
    with pytest.raises(UserError, match=r"its tokenizer\.json was changed"):
        read_folder(tmp_path / "theirs")


def test_a_damaged_tokenizer_config_is_refused(tmp_path: Path) -> None:
    export(stored(tmp_path / "run", tiny_model()), tmp_path / "abroad")
    path = tmp_path / "abroad" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": "x"}))
    (tmp_path / "abroad" / "manifest.json").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="tokenizer_config.json is damaged"):
        read_folder(tmp_path / "abroad")


def test_the_verbs_work_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2(tmp_path / "gpt2")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    run = tmp_path / "run"
    assert call("import", tmp_path / "gpt2", run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"] == str(run)
    assert call("import", tmp_path / "gpt2", run) == 2
    assert "exists already" in capsys.readouterr().err
    assert call("look", run, "Hank Aaron", "--out", tmp_path / "look") == 0
    assert call("evaluate", run, "--corpus", text, "--out", tmp_path / "measured", "--json") == 0
    exam = tmp_path / "exam.tsv"
    exam.write_text("Who?\tHank\nWhere?\tMobile\n")
    assert call("evaluate", run, "--exam", exam, "--out", tmp_path / "examined") == 0
    assert call("generate", run, "Hank", "--n", "1", "--max-new-tokens", "5") == 0
    assert call("runs", "show", run) == 0
    assert call("runs", tmp_path) == 0
    capsys.readouterr()
    assert call("export", run, tmp_path / "again", "--json") == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["layout"], written["needs_attnlab"]) == ("gpt2", False)


def test_what_is_not_imported_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2(tmp_path / "gpt2")
    for verb in (("export", tmp_path / "gpt2", tmp_path / "new"), ("evaluate", tmp_path / "gpt2")):
        capsys.readouterr()
        assert call(*verb) == 2
        assert f"to a run, use `attnlab import {tmp_path / 'gpt2'} runs/NAME`" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"gpt2 has no manifest\.json"):
        load_model(tmp_path / "gpt2")


def test_a_models_folder_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("export", stored(tmp_path / "model", tiny_model()), tmp_path / "theirs") == 0
    assert "trust_remote_code=True)" in capsys.readouterr().out
    assert call("import", tmp_path / "theirs", tmp_path / "run") == 0
    assert load_model(tmp_path / "run")[0].config == load_model(tmp_path / "model")[0].config
