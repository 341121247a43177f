"""A RoBERTa small enough to learn in a second, and tables that it can tell apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from attnlab.corpora.labelled import Tables, read_tables
from verbs import call

GOOD, BAD = ("lovely", "superb"), ("boring", "stale")
THINGS = ("film", "story", "cast", "scene", "ending", "music", "plot", "joke")
FILLERS = ("it has", "we saw", "here is", "they made", "one gets", "nobody expected")


def sentences(many: int, seed: int) -> list[tuple[str, str]]:
    """Texts whose label follows from one word, of several lengths, all different."""
    draw = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < many:
        label = ("pos", "neg")[len(found) % 2]
        word = draw.choice(GOOD if label == "pos" else BAD)
        middle = " and ".join(draw.choices(THINGS, k=draw.randint(1, 6)))
        found.setdefault(f"{draw.choice(FILLERS)} a {word} {middle} {seed}", label)
    return [(label, text) for text, label in found.items()]


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the hub; whoever imported it before has read the variable already."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv, dev.tsv and test.tsv."""
    folder = tmp_path_factory.mktemp("tables")
    for name, many, seed in (("train", 160, 1), ("dev", 40, 2), ("test", 30, 3)):
        write(folder / f"{name}.tsv", sentences(many, seed))
    return folder


@pytest.fixture(scope="session")
def tables(files: Path) -> Tables:
    return read_tables(files / "train.tsv", files / "dev.tsv", files / "test.tsv")


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory, tables: Tables) -> Path:
    """A folder with a RoBERTa that was never trained: own byte-pair pieces, 2 layers, places for 24 tokens."""
    return make_roberta(tmp_path_factory.mktemp("models") / "tiny-roberta", tables.train.texts)


def make_roberta(folder: Path, texts: list[str], places: int = 24) -> Path:
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaTokenizerFast

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(texts, vocab_size=400, min_frequency=1, special_tokens=special, show_progress=False)
    folder.mkdir()
    pieces.save_model(str(folder))
    tokenizer = RobertaTokenizerFast.from_pretrained(str(folder))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=places + 2,
        pad_token_id=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.15,  # what pretraining would have done: the usual 0.02 is for widths of hundreds
    )
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def refused(
    files: Path, roberta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[tuple[str, ...], str], None]:
    """A request that ends in one line, before anything is made."""

    def ask(options: tuple[str, ...], message: str) -> None:
        model = () if "--model" in options else ("--model", roberta)
        out = tmp_path / "out"
        code = call("classify", files / "train.tsv", files / "dev.tsv", *model, *options, "--out", out)
        said = capsys.readouterr().err
        assert code == 2
        assert message in said
        assert said.count("\n") == 1
        assert not out.exists()

    return ask
