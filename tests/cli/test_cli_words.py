"""The verbs on a run of words: corpus show, evaluate --corpus, generate, look; and their mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnlab.lm.decoding import beam_search
from attnlab.lm.model import load_model
from attnlab.lm.perplexity import PROBES, SentenceLosses
from attnlab.report.words import plural
from verbs import call


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    small = ["--model.n_layer=1", "--model.n_head=2", "--model.n_embd=16", "--train.tokens_per_batch=2000"]
    assert call("pretrain", "--preset", "nano-words", "--corpus", "prose:400", "--out", folder, *small) == 0
    return folder


def test_corpus_show_counts_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "show", "--corpus", "prose:400", "--task", "words", "--n", "2") == 0
    out = capsys.readouterr().out
    assert "400 sentences" in out
    assert "distinct words" in out
    assert "█" in out
    assert out.count("<START>") == 4  # as input, and in x
    assert call("corpus", "show", "--corpus", "prose:400", "--json") == 0  # the default task, in characters
    assert json.loads(capsys.readouterr().out)["words"] is None
    assert call("corpus", "show", "--corpus", "prose:400", "--preset", "nano-words", "--json") == 0  # the preset's
    assert json.loads(capsys.readouterr().out)["words"]["sentences"] == 400


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_sentence_lengths_as_a_picture(name: str, magic: bytes, tmp_path: Path) -> None:
    show = ("corpus", "show", "--corpus", "prose:50", "--n", "1", "--picture", tmp_path / name)
    assert call(*show) == 2  # spans have no sentences
    assert call(*show, "--task", "words") == 0
    assert (tmp_path / name).read_bytes().startswith(magic)
    assert call(*show, "--task", "words") == 2  # it exists already


def test_evaluate_measures_text(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("evaluate", trained, "--corpus", "prose:500:dev", "--out", "measured", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    losses = SentenceLosses.from_csv((tmp_path / "measured/losses.csv").read_text())
    assert shown["sentences"] == len(losses.losses)
    assert shown["token_perplexity"] == pytest.approx(losses.token_perplexity)
    assert shown["sentence_perplexity"] == pytest.approx(losses.sentence_perplexity)
    assert 0 < shown["seen"] < shown["sentences"]
    assert [row["sentence"] for row in shown["probes"]] == list(PROBES)
    assert json.loads((tmp_path / "measured/result.json").read_text())["loss"] == pytest.approx(losses.loss)
    assert call("evaluate", trained, "--corpus", "prose:500:dev") == 0
    out = capsys.readouterr().out
    assert "sentence perplexity" in out
    assert "token perplexity" in out
    assert "were in its training text" in out


def test_evaluate_probes_alone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("evaluate", trained, "--probe", "It is a list.", "--probe", "It is.", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["tokens"] for row in shown["probes"]] == [6, 4]
    assert not (Path(shown["out"]) / "losses.csv").exists()
    assert call("evaluate", trained, "--probe", "It is a list.", "--spaces", "--json") == 0
    assert json.loads(capsys.readouterr().out)["probes"][0]["tokens"] == 5
    assert call("evaluate", trained, "--spaces") == 2
    assert "--spaces splits the text of --corpus" in capsys.readouterr().err


def test_generate(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", trained, "The", "--n", "3", "--seed", "1", "--max-new-tokens", "20", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["samples"]) == 3
    assert all(text.startswith("The ") and len(text.split()) <= 21 for text in shown["samples"])
    assert shown["repetition"] is None or 0 <= shown["repetition"] <= 1
    assert 0 < shown["diversity"] <= 1
    assert call("generate", trained, "--n", "2", "--temperature", "0") == 0
    *texts, blank, figures = capsys.readouterr().out.strip().split("\n")
    assert len(texts) == 2
    assert not blank
    assert figures.startswith("repetition (seq-rep-4) ")
    assert float(figures.split()[-2]) <= 50  # both texts are the same
    assert call("generate", trained, "--temperature", "0", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["samples"]) == 1


def test_generate_by_beam_search(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = (
        "generate",
        trained,
        "The",
        "--n",
        "2",
        "--beams",
        "3",
        "--length-penalty",
        "0.5",
        "--max-new-tokens",
        "9",
    )
    assert call(*search, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    model, tokenizer = load_model(trained)
    beams = beam_search(model, tokenizer, "The", 2, beams=3, length_penalty=0.5, limit=9)
    assert shown["samples"] == [beam.text for beam in beams]
    assert shown["score"] == pytest.approx([beam.score for beam in beams])
    assert call(*search) == 0
    first = capsys.readouterr().out.split("\n")[0]
    assert (
        first
        == f"{beams[0].text}  (log probability {beams[0].log_probability:.2f}, {plural(beams[0].tokens, 'token')})"
    )


def test_one_token_that_is_likeliest_of_all(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for options in (("--top-p", "0.000001"), ("--top-k", "1"), ("--temperature", "0")):
        assert call("generate", trained, "The", "--n", "1", *options, "--json") == 0
        texts += json.loads(capsys.readouterr().out)["samples"]
    assert len(set(texts)) == 1


def test_look_reads_words(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("look", trained, "It is a list.", "--out", tmp_path / "look", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == ["<START>", "It", "is", "a", "list", "."]


def test_mistakes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    for message, *arguments in (
        ("has no ⁇, so questions cannot be asked", "evaluate", trained),
        ("has no ⁇, so questions cannot be asked", "ask", trained, "Where?"),
        ("give one, then the other", "evaluate", trained, "--exam", "people:test", "--corpus", "prose:dev"),
        ("did you mean prose:dev", "evaluate", trained, "--corpus", "prose:dve"),
        ("temperature must be 0 or at least 1e-06", "generate", trained, "--temperature", "-1"),
        ("above 0 and at most 1, not 1.5", "generate", trained, "--top-p", "1.5"),
        ("leave out --temperature, --top-k and --top-p", "generate", trained, "--beams", "2", "--temperature", "0.8"),
        ("leave out --temperature, --top-k and --top-p", "generate", trained, "--beams", "2", "--top-p", "0.9"),
        ("give --beams, such as 4", "generate", trained, "--length-penalty", "1"),
        ("beams must be at least 1", "generate", trained, "--beams", "-1"),
        ("--n must be at least 1, not 0", "generate", trained, "--n", "0"),
        ("needs a corpus to learn the vocabulary", "params", "nano-words", "--model.vocab_size", "0"),
        ("must lie in [0, 1), or be -1", "params", "nano-words", "--model.attention_dropout=-0.5"),
        ("min_count must be at least 1", "params", "nano-words", "--tokenizer.min_count", "0"),
        ("rows_per_batch must be at least 0", "params", "nano-words", "--train.rows_per_batch", "-1"),
    ):
        assert call(*arguments) == 2
        error = capsys.readouterr().err.strip()
        assert message in error
        assert "\n" not in error
    assert list(tmp_path.iterdir()) == []
