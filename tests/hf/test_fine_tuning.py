"""Fine-tuning of a real, tiny RoBERTa: it learns, the best epoch is kept, and predictions belong to their texts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnlab.corpora.labelled import Tables, read_tables
from attnlab.errors import ConfigError, UserError
from attnlab.hf import RATES, FineTuning, Outcome, ScoredTable, fine_tune, make_classifier
from attnlab.hf.fine_tuning import inner_matrices, make_optimizer
from attnlab.hf.loading import load_encoder, longest_text
from attnlab.lm.optim import OptimizerPair
from attnlab.lm.progress import Show

SETTINGS = FineTuning(epochs=4, lr=5e-3, batch_size=16)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def outcome(roberta: Path, tables: Tables, kept: Path) -> Outcome:
    return fine_tune(str(roberta), tables, SETTINGS, kept)


def test_it_learns_to_tell_them_apart(outcome: Outcome) -> None:
    assert outcome.accuracy == 1.0
    assert len(outcome.epochs) == 4
    first, last = outcome.epochs[0], outcome.epochs[-1]
    assert first.train_loss > last.train_loss
    assert first.dev_loss > last.dev_loss
    assert first.train_accuracy < last.train_accuracy <= 1
    assert outcome.steps == 4 * 10
    assert outcome.test is not None
    assert len(outcome.test.gold) == 30
    assert outcome.test.accuracy == 1.0


def test_the_earliest_of_the_best_epochs_is_kept(outcome: Outcome) -> None:
    assert outcome.curve == [one.dev_accuracy for one in outcome.epochs]
    assert outcome.best_epoch == outcome.curve.index(max(outcome.curve)) + 1
    assert 1 < outcome.best_epoch < 4, "neither the first nor the last, or the next test proves nothing"
    assert outcome.dev.loss == pytest.approx(outcome.epochs[outcome.best_epoch - 1].dev_loss, rel=1e-3)
    assert outcome.accuracy == max(outcome.curve)


def test_the_saved_model_is_the_best_epoch_and_predictions_are_in_order(
    outcome: Outcome, kept: Path, tables: Tables
) -> None:
    """Each text asked by itself, through the saved folder, gets the probabilities that the run recorded for its place."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(kept), AutoTokenizer.from_pretrained(kept)
    model.eval()
    assert tables.test is not None
    assert outcome.test is not None
    for table, scored in ((tables.dev, outcome.dev), (tables.test, outcome.test)):
        assert list(scored.gold) == tables.ids(table)
        for text, chances in zip(table.texts, scored.probabilities, strict=True):
            with torch.no_grad():
                logits = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=24)).logits
            assert logits.softmax(-1)[0].tolist() == pytest.approx(chances, abs=1e-4)
    assert not list(kept.glob(".best-*"))
    assert {path.suffix for path in kept.iterdir()} <= {".json", ".safetensors", ".txt"}


def test_a_pipeline_says_the_users_labels(kept: Path, outcome: Outcome) -> None:
    from transformers import pipeline

    said = pipeline("text-classification", str(kept), device="cpu")(["we saw a superb film", "here is a stale plot"])
    assert [one["label"] for one in said] == ["pos", "neg"]


def test_again_is_the_same_and_writes_nothing(
    roberta: Path, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = replace(SETTINGS, epochs=1)
    lines: list[str] = []
    first = fine_tune(str(roberta), tables, short, show=Show(lines.append))
    second = fine_tune(str(roberta), tables, short)
    assert first.dev == second.dev
    assert first.test is None
    assert not list(tmp_path.iterdir())
    assert fine_tune(str(roberta), tables, replace(short, seed=1)).dev != first.dev
    assert lines[0].startswith("epoch 1 of 1: loss ")  # no text is longer than its 24 places


def test_texts_that_are_cut_are_told(roberta: Path, tables: Tables) -> None:
    long = replace(tables.dev.rows[0], text="a very " + "long " * 40 + tables.dev.rows[0].text)
    lines: list[str] = []
    told = replace(tables, dev=replace(tables.dev, rows=(long, *tables.dev.rows[1:])))
    fine_tune(str(roberta), told, replace(SETTINGS, epochs=1), show=Show(lines.append))
    assert lines[0] == "the model has positions for 24 tokens: longer texts are truncated (1 fill all of them)"


def test_tokens_and_padding_are_counted(roberta: Path, tables: Tables) -> None:
    from attnlab.hf.loading import load_tokenizer

    tokenizer = load_tokenizer(str(roberta))
    tokens = sum(min(24, len(ids)) for ids in tokenizer(tables.train.texts)["input_ids"])
    found = {
        way: fine_tune(str(roberta), tables, FineTuning(epochs=1, lr=1e-4, batch_size=16, batching=way))
        for way in ("grouped", "random", "fixed")
    }
    assert {one.tokens for one in found.values()} == {tokens}
    assert found["fixed"].padding == 24 * 160 - tokens
    assert found["grouped"].padding < found["random"].padding < found["fixed"].padding


def test_the_earlier_of_equals(roberta: Path, tables: Tables) -> None:
    """A rate too small to change anything leaves all epochs alike: the first is the best."""
    still = fine_tune(str(roberta), tables, FineTuning(epochs=2, lr=1e-12, batch_size=32))
    assert still.curve[0] == still.curve[1]
    assert still.best_epoch == 1


def test_scores_of_a_table() -> None:
    scored = ScoredTable((0, 1, 1), ((0.9, 0.1), (0.6, 0.4), (0.2, 0.8)), 0.5)
    assert scored.predicted == (0, 0, 1)
    assert scored.right == (True, False, True)
    assert scored.accuracy == pytest.approx(2 / 3)


# Optimizers


@pytest.mark.parametrize(("name", "rate", "share"), [("sgd", 0.01, 0.97), ("adagrad", 0.02, 0.5), ("muon", 0.05, 0.5)])
def test_every_optimizer_learns(name: str, rate: float, share: float, roberta: Path, tables: Tables) -> None:
    outcome = fine_tune(str(roberta), tables, FineTuning(optimizer=name, lr=rate, epochs=4, batch_size=8))
    assert outcome.epochs[-1].train_loss < share * outcome.epochs[0].train_loss


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest(roberta: Path) -> None:
    from attnlab.hf.loading import load_encoder

    model = load_encoder(str(roberta), ("a", "b")).model
    names = {id(weight): name for name, weight in model.named_parameters()}
    inner = {names[id(one)] for one in inner_matrices(model)}
    assert len(inner) == 2 * 6
    assert all(".layer." in name for name in inner)
    optimizer = make_optimizer(model, {"classifier.dense.weight"}, FineTuning(optimizer="muon", weight_decay=0.1))
    assert isinstance(optimizer, OptimizerPair)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == [RATES["muon"], RATES["adamw"], RATES["adamw"]]
    every = [id(one) for group in optimizer.param_groups for one in group["params"]]
    assert len(every) == len(set(every)) == len(names)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.1, 0.0]


def test_both_optimizers_follow_a_schedule() -> None:
    weights = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    both = OptimizerPair(*(torch.optim.SGD([one], lr=1.0) for one in weights))
    both.load_state_dict(both.state_dict())  # what accelerate does
    schedule = torch.optim.lr_scheduler.LambdaLR(both, lambda step: 0.5 if step else 1.0)
    for expected in (0.0, -0.5):
        for weight in weights:
            weight.grad = torch.ones(2, 2)
        both.step()
        schedule.step()
        assert all(weight.detach().eq(expected).all() for weight in weights)


# Settings and models


def test_settings_are_strict() -> None:
    assert FineTuning() == FineTuning.from_options({"lr": None})
    assert FineTuning().rate == 5e-5
    assert FineTuning.from_options({"lr": "1e-3", "epochs": "2"}) == FineTuning(lr=1e-3, epochs=2)
    wrong: list[tuple[dict[str, str], str]] = [
        ({"epochs": "0"}, "epochs must be at least 1"),
        ({"epochs": "1.5"}, "epochs must be a whole number"),
        ({"lr": "-1"}, "lr must be at least 0"),
        ({"optimizer": "adam"}, "optimizer must be one of adamw, sgd, adagrad, muon"),
        ({"batch_sice": "3"}, "did you mean batch_size"),
        ({"warmup": "1"}, "warmup must be below 1"),
    ]
    for given, message in wrong:
        with pytest.raises(ConfigError, match=message):
            FineTuning.from_options(given)


def test_models_that_do_not_exist(tmp_path: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    wrong = (
        (str(tmp_path / "absent"), "is not a folder: name the folder of an encoder"),
        (str(tmp_path / "empty"), "is not an encoder: it lacks a config.json with a model_type"),
        ("nobody-has-this-model", "is not a folder, and HF_HUB_OFFLINE keeps the hub closed"),
    )
    for name, message in wrong:
        with pytest.raises(UserError, match=message) as caught:
            fine_tune(name, tables, FineTuning())
        assert "\n" not in str(caught.value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "accelerate" else object())
    with pytest.raises(UserError, match=r"needs accelerate: `pip install 'attnlab\[hf\]'"):
        fine_tune("roberta-base", tables, FineTuning())


def test_a_training_that_diverges_is_not_kept(tmp_path: Path, roberta: Path, tables: Tables) -> None:
    with pytest.raises(
        UserError, match=r"diverged, every epoch gave NaN: use a smaller rate than 1e\+30, such as --lr 1e\+29"
    ):
        make_classifier(str(roberta), tables, FineTuning(epochs=1, lr=1e30), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_cut_short_are_said(tmp_path: Path, roberta: Path, tables: Tables) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(roberta, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be loaded") as caught:
        fine_tune(str(broken), tables, FineTuning(epochs=1))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_gives_no_mask_is_asked_for_one(tmp_path: Path, roberta: Path, tables: Tables) -> None:
    from transformers import AutoTokenizer

    silent = tmp_path / "silent"
    shutil.copytree(roberta, silent)
    settings = json.loads((silent / "tokenizer_config.json").read_text())
    (silent / "tokenizer_config.json").write_text(json.dumps({**settings, "model_input_names": ["input_ids"]}))
    assert "attention_mask" not in AutoTokenizer.from_pretrained(silent)("a film")
    asked = FineTuning(epochs=1, lr=1e-3)
    with_mask, without = (fine_tune(str(one), tables, asked) for one in (roberta, silent))
    assert without.dev == with_mask.dev


def test_a_decoder_without_padding_is_refused(tmp_path: Path, tables: Tables) -> None:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(
        tables.train.texts, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False
    )
    pieces.save_model(str(tmp_path))
    tokenizer = GPT2TokenizerFast.from_pretrained(str(tmp_path))
    tokenizer.save_pretrained(tmp_path)
    GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no padding token"):
        fine_tune(str(tmp_path), tables, FineTuning(epochs=1))


def test_bert_works_too(tmp_path: Path, tables: Tables) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    words = sorted({word for text in tables.train.texts for word in text.split()})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    sizes: dict[str, float] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    sizes |= {"initializer_range": 0.15, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    outcome = fine_tune(str(tmp_path), tables, FineTuning(epochs=4, lr=3e-3, batch_size=8))
    assert outcome.facts.max_length == 40
    assert outcome.accuracy > 0.9


def test_a_head_for_other_labels_is_drawn_anew(kept: Path, outcome: Outcome, tables: Tables) -> None:
    same = load_encoder(str(kept), tables.labels)
    assert same.fresh == ()
    other = load_encoder(str(kept), ("bad", "good"))
    assert {name.split(".")[0] for name in other.fresh} == {"classifier"}
    for name, weight in other.model.named_parameters():
        if name.endswith("weight"):
            assert torch.equal(weight, same.model.get_parameter(name)) == (name not in other.fresh), name


def test_places_by_another_name_are_found(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2Model, PreTrainedTokenizerFast

    class Endless(PreTrainedTokenizerFast):
        model_max_length = 10**30

    model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=20, vocab_size=30))
    assert longest_text(model, Endless.__new__(Endless)) == 20


def test_a_folder_is_made_where_there_is_none(tmp_path: Path, tables: Tables) -> None:
    fine_tune("bag-of-words", tables, FineTuning(), tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir())


def test_scores_that_are_no_numbers_are_never_right() -> None:
    scored = ScoredTable((0, 0, 1), ((0.0, 0.0), (0.9, 0.1), (0.2, 0.8)), None)
    assert scored.predicted == (-1, 0, 1)
    assert scored.accuracy == pytest.approx(2 / 3)


def test_an_epoch_that_diverged_never_wins(tmp_path: Path, roberta: Path, files: Path) -> None:
    rows = [line.split("\t") for line in (files / "train.tsv").read_text().splitlines()]
    mostly = [row for row in rows if row[0] == "neg"][:18] + [row for row in rows if row[0] == "pos"][:2]
    (tmp_path / "dev.tsv").write_text("".join(f"{label}\t{text} again\n" for label, text in mostly))
    lopsided = read_tables(files / "train.tsv", tmp_path / "dev.tsv")
    found = fine_tune(str(roberta), lopsided, FineTuning(epochs=2, lr=1e30))
    assert not any(found.right)  # the first label, said of everything, would be right in 90 %
    assert found.curve == [0.0, 0.0]
    assert found.dev.loss is found.epochs[0].dev_loss is None
