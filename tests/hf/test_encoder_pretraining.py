"""A small RoBERTa of one's own: the loss is transformers' own, it learns, and its folder loads everywhere."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnlab.corpora import load_corpus
from attnlab.corpora.labelled import text_column
from attnlab.errors import ConfigError, DataError, Interrupted, OutputExists, UserError
from attnlab.hf import EncoderConfig, fill, pretrain
from attnlab.hf.encoders import SYMBOLS, encode_texts, is_held_out, learn_pieces, open_source, pack_blocks, select_texts
from attnlab.hf.masked import new_model
from attnlab.lm.stages import Show
from verbs import call, reseal

TINY = EncoderConfig(
    n_layer=2, n_head=2, n_embd=32, block_size=32, vocab_size=400, epochs=3, blocks_per_batch=8, held_out=0.1
)
OPTIONS = ("--n_layer", 1, "--n_head", 2, "--n_embd", 32, "--block_size", 32, "--vocab_size", 400, "--epochs", 0.2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """An encoder of the first built-in sentences, its result, and what was told on the way."""
    folder, told = tmp_path_factory.mktemp("encoder") / "small", []
    result = pretrain(["prose:600"], folder, TINY, Show(told.append))
    return folder, result, told


def test_it_learns_more_than_frequencies(trained: tuple[Path, dict[str, Any], list[str]]) -> None:
    _, result, told = trained
    history = result["history"]
    assert history[-1]["loss"] < history[0]["loss"] - 0.02
    assert history[-1]["loss"] < result["unigram"]["loss"] < np.log(400)
    assert history[-1]["accuracy"] > result["unigram"]["accuracy"]
    assert told[0] == "prose:600: one text per line"
    assert sum("of masked tokens" in line for line in told) == len(history) == 3


def test_the_folder_loads_in_transformers(trained: tuple[Path, dict[str, Any], list[str]]) -> None:
    from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

    folder, result, _ = trained
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert [tokenizer.convert_tokens_to_ids(symbol) for symbol in SYMBOLS] == [0, 1, 2, 3, 4]
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert model.config.model_type == "roberta"
    assert model.config._attn_implementation == "sdpa"
    assert model.config.hidden_dropout_prob == TINY.dropout
    assert sum(weight.numel() for weight in model.parameters()) == result["parameters"]
    longest = tokenizer(" ".join(["word"] * 100), truncation=True, return_tensors="pt")
    assert longest["input_ids"].shape == (1, TINY.block_size)
    assert model.eval()(**longest).logits.isfinite().all()
    labelled = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert labelled(**longest).logits.shape == (1, 3)


def test_text_comes_back(trained: tuple[Path, dict[str, Any], list[str]]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(trained[0])
    for text in ("Return the size of the file .", "naïve ☃ and 1,234", "it 's `` fine ''"):
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == 0
        assert ids[-1] == 2
        assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip() == text


def test_the_papers_say_what_happened(trained: tuple[Path, dict[str, Any], list[str]]) -> None:
    folder, result, _ = trained
    assert json.loads((folder / "result.json").read_text()) == result
    card = (folder / "README.md").read_text()
    assert load_corpus("prose:600").sha256 in card
    assert f"{result['parameters']:,} parameters" in card
    assert f"(loss {result['history'][-1]['loss']:.3f})" in card
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_it_is_listed_and_shown(
    trained: tuple[Path, dict[str, Any], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, result, _ = trained
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "runs/encoder-1")
    assert call("runs", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    last = result["history"][-1]
    assert (entry["kind"], entry["state"], entry["note"]) == ("encoder", "complete", "on prose:600")
    assert (entry["loss"], entry["accuracy"], entry["tokens"]) == (last["loss"], None, result["tokens"])
    assert entry["settings"]["vocab_size"] == 400
    assert call("runs", "--filter", "vocab_size=400") == 0
    assert f"masked loss {last['loss']:.3f}" in capsys.readouterr().out
    assert call("runs", "show", "encoder-1") == 0
    shown = capsys.readouterr().out
    assert f"{last['loss']:.3f} (by frequency alone {result['unigram']['loss']:.3f})" in shown
    assert f"{100 * last['accuracy']:.1f} % (by frequency alone" in shown
    said = "is an encoder of transformers already: load it with AutoModel.from_pretrained('runs/encoder-1')"
    for verb in (("export", "{}", "new"), ("evaluate", "{}"), ("ask", "{}", "Who?"), ("generate", "{}", "Who")):
        assert call(*(word.format("runs/encoder-1") for word in verb)) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "attnlab classify --model runs/encoder-1" in error
        assert len(error.splitlines()) == 1
    assert call("report", "encoder-1") == 2
    assert "see runs/encoder-1/README.md" in capsys.readouterr().err
    (tmp_path / "runs/encoder-1/result.json").write_text('{"history": [], "unigram": 3, "validation_targets": null}')
    reseal(tmp_path / "runs/encoder-1")
    assert call("runs", "show", "encoder-1") == 0
    assert call("runs", "delete", "encoder-1", "--yes") == 0
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_loss_is_that_of_transformers() -> None:
    """Both ways to the scores of the words, with gradients; the compiled kernel takes over from 4,096 words on."""
    from attnlab.hf.masked import masked_loss, masked_loss_reference

    for vocabulary in (500, 5000):
        model = new_model(TINY, vocabulary)
        torch.nn.init.normal_(model.lm_head.decoder.bias)
        ids = torch.randint(5, vocabulary, (4, 32))
        labels = torch.where(torch.rand(4, 32) < 0.3, ids, -100)
        ids = torch.where(labels >= 0, 4, ids)
        found = []
        for loss_of in (masked_loss_reference, masked_loss):
            model.zero_grad()
            loss = loss_of(model, ids, labels)
            loss.backward()
            gradients = {
                name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
            }
            found.append((loss.detach(), gradients))
        (loss, gradients), (own, own_gradients) = found
        torch.testing.assert_close(own, loss, atol=1e-5, rtol=1e-5)
        assert gradients.keys() == own_gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(own_gradients[name], gradient, atol=2e-6, rtol=1e-3, msg=name)


def test_a_fresh_model_guesses_by_frequency() -> None:
    from attnlab.hf.masked import log_frequencies, measure, score_unigram, start_from_frequencies

    rng = np.random.default_rng(0)
    tokens = np.minimum(rng.geometric(0.05, size=(64, 32)) + 4, 399).astype(np.int32)
    shares = log_frequencies(tokens, 400)
    assert np.exp(shares).sum() == pytest.approx(1.0)
    labels = torch.from_numpy(tokens[:16]).long()
    guess = score_unigram(shares, labels)
    assert guess["accuracy"] == pytest.approx(float((tokens[:16] == shares.argmax()).mean()))
    assert guess["loss"] == pytest.approx(float(-shares[tokens[:16]].mean()))
    model, asked = new_model(TINY, 400), {"input_ids": torch.full_like(labels, 4), "labels": labels}
    before = measure(model, asked, 5)
    start_from_frequencies(model, shares)
    after = measure(model, asked, 5)
    assert before["loss"] == pytest.approx(np.log(400), abs=0.1)
    assert after["loss"] == pytest.approx(guess["loss"], abs=0.1)
    assert after["loss"] < before["loss"] - 1


def test_every_matrix_learns_at_the_rate_that_is_set() -> None:
    from attnlab.hf.masked import make_optimizer
    from attnlab.lm.optim import OptimizerPair

    model = new_model(TINY, 400)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = make_optimizer(model, TINY)
    assert isinstance(optimizer, OptimizerPair)
    optimizer.load_state_dict(optimizer.state_dict())  # as accelerate does, which replaces the groups
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    assert not any(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_blocks_lose_nothing_but_the_end() -> None:
    tokenizer = learn_pieces(load_corpus("prose:200").lines, 400, 32)
    texts = list(encode_texts(["A <mask> in a text.", "And </s> another."], tokenizer))
    assert all(ids[0] == 0 and ids[-1] == 2 and (ids[1:-1] > 4).all() for ids in texts)
    blocks = pack_blocks(texts, 8, np.random.default_rng(0))
    flat = np.concatenate(texts)
    assert blocks.shape == (len(flat) // 8, 8)
    either = [np.concatenate(order)[: blocks.size] for order in (texts, texts[::-1])]
    assert any(np.array_equal(blocks.ravel(), one) for one in either)
    assert pack_blocks([], 8, np.random.default_rng(0)).shape == (0, 8)


def test_labelled_tables_are_recognised_and_only_their_text_is_read(tmp_path: Path) -> None:
    table = tmp_path / "train.tsv"
    table.write_text("".join(f"{number % 2}\ttext number {number} of them\n" for number in range(40)))
    source = open_source(str(table))
    assert source.description().endswith("a labelled table, its column 2 is the text")
    held, rest = (list(select_texts([source], 0.3, side)) for side in (True, False))
    assert sorted(held + rest) == sorted(f"text number {number} of them" for number in range(40))
    assert 0 < len(held) < len(rest)
    assert all(is_held_out(text, 0.3) for text in held)
    assert text_column(["good\tpos", "so bad\tneg", "better\tpos", "worst\tneg"]) == 0
    assert text_column(["no tab", "one\ttab"]) is None
    assert text_column(["Where was Ann born?\tYork", "Where was Bob born?\tRome"]) is None


def test_a_line_without_a_label_far_down_is_text(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("".join(f"{number % 2}\ta text of number {number}\n" for number in range(1200)) + "no tab here\n")
    source = open_source(str(path))
    texts = list(source.texts())
    assert source.column == 1
    assert (texts[0], texts[-1]) == ("a text of number 0", "no tab here")


def test_epochs_and_tokens_of_a_corpus_smaller_than_a_batch(tmp_path: Path) -> None:
    result = pretrain(["prose:120"], tmp_path / "out", replace(TINY, epochs=3, held_out=0.2, blocks_per_batch=1000))
    assert result["steps"] == 3
    assert result["tokens"] < 3 * 1000 * TINY.block_size
    assert result["tokens"] % (3 * TINY.block_size) == 0


def test_a_batch_with_nothing_hidden_teaches_nothing() -> None:
    from attnlab.hf.masked import masked_loss

    for vocabulary in (500, 5000):
        model = new_model(TINY, vocabulary)
        loss = masked_loss(model, torch.randint(5, vocabulary, (2, 8)), torch.full((2, 8), -100))
        loss.backward()
        assert loss == 0
        assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


def test_several_corpora_are_read_and_named(tmp_path: Path) -> None:
    lines = load_corpus("prose:400").lines
    (tmp_path / "a.txt").write_text("\n".join(lines[:300]))
    (tmp_path / "b.tsv").write_text("\n".join(f"{n % 3}\t{line}" for n, line in enumerate(lines[300:])))
    code = call("encoder", "pretrain", tmp_path / "a.txt", tmp_path / "b.tsv", "--out", tmp_path / "e", *OPTIONS)
    assert code == 0
    corpus = json.loads((tmp_path / "e/result.json").read_text())["corpus"]
    assert [Path(one["name"]).name for one in corpus] == ["a.txt", "b.tsv"]
    assert [one["column"] for one in corpus] == [None, 1]
    assert 380 < sum(one["texts"] for one in corpus) < 400


def test_a_seed_settles_everything(tmp_path: Path) -> None:
    config = replace(TINY, epochs=0.2, n_layer=1)
    first, again, other = (
        pretrain(["prose:300"], tmp_path / f"e{number}", replace(config, seed=seed))
        for number, seed in enumerate((1, 1, 2))
    )
    assert first["history"][-1]["loss"] == again["history"][-1]["loss"] != other["history"][-1]["loss"]
    weights = [(tmp_path / f"e{number}/model.safetensors").read_bytes() for number in range(3)]
    assert weights[0] == weights[1] != weights[2]


def test_the_clock_ends_a_run(tmp_path: Path) -> None:
    result = pretrain(["prose:300"], tmp_path / "e", replace(TINY, epochs=10_000, minutes=0.02, n_layer=1))
    assert 1 <= result["steps"] < 10_000
    assert 1.2 <= result["seconds"] < 30
    assert len(result["history"]) >= 1


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="nothing was written"):
        pretrain(["prose:300"], tmp_path / "e", TINY, Show(step=stop))
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_said_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e").mkdir()
    with pytest.raises(OutputExists):
        pretrain(["prose:300"], tmp_path / "e", TINY)
    (tmp_path / "tiny.txt").write_text("One line.\n")
    with pytest.raises(DataError, match="the corpus is too small to train on"):
        pretrain([str(tmp_path / "tiny.txt")], tmp_path / "f", TINY)
    with pytest.raises(DataError, match="the corpus is too small to train on"):
        pretrain([str(tmp_path / "tiny.txt")], tmp_path / "x" / "y" / "f", TINY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e", "tiny.txt"]
    with pytest.raises(ConfigError, match="n_embd 30 must be a multiple of n_head 4"):
        EncoderConfig(n_embd=30)
    assert call("encoder", "pretrain", "--hidden", "1.5") == 2
    assert call("encoder", "pretrain", tmp_path / "no.txt", "--out", tmp_path / "g") == 2
    assert "does not exist" in capsys.readouterr().err


def test_fillings_are_shares_of_one(
    trained: tuple[Path, dict[str, Any], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(trained[0])
    found = fill(folder, "Return the <mask> of <mask> .", top=400)
    assert [one.place for one in found] == [0] * 400 + [1] * 400
    assert sum(one.probability for one in found[:400]) == pytest.approx(1.0, abs=1e-4)
    assert found[0].probability >= found[1].probability
    assert found[0].text == f"Return the {found[0].piece} of <mask> ."
    assert call("encoder", "fill", folder, "Return the <mask> .", "--top", "2", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [set(one) for one in shown] == [{"place", "piece", "probability", "text"}] * 2
    assert call("encoder", "fill", folder, "Return the <mask> .", "--top", "3") == 0
    assert re.fullmatch(r"( +\d+\.\d%  .*Return the .* \.\n){3}", capsys.readouterr().out)


def test_fill_says_what_is_wrong(
    trained: tuple[Path, dict[str, Any], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("encoder", "fill", trained[0], "nothing here") == 2
    assert "nothing is masked: put <mask>" in capsys.readouterr().err
    assert call("encoder", "fill", trained[0], "<mask>", "--top", "0") == 2
    assert call("encoder", "fill", "./nowhere", "<mask>") == 2


def test_a_head_that_was_never_trained_fills_in_nothing(
    trained: tuple[Path, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    AutoModelForSequenceClassification.from_pretrained(trained[0]).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(trained[0]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no head for masked words"):
        fill(str(tmp_path), "The <mask> .")


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="nobody/nothing is not a folder, and HF_HUB_OFFLINE keeps the hub closed"):
        fill("nobody/nothing", "The <mask> .")
