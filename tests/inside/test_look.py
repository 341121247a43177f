from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab.config import ModelConfig
from attnlab.errors import UserError
from attnlab.inside.look import View, encode, head_numbers, look
from attnlab.inside.taps import capture, influence
from attnlab.lm.model import LanguageModel, model_files
from attnlab.lm.tokenizers import MASK, Tokenizer
from attnlab.store import listing
from attnlab.store.folders import to_json, write_folder
from verbs import call

ROOT = Path(__file__).parents[2]
TEXT = "Hank Aaron was born in Mobile"
UNREADABLE = '''
import torch
from torch import nn
from attnlab import ops
from attnlab.mechanisms.heads import Attention

class Mean(nn.Module):
    """A running mean with gates: there is no pattern to read."""
    def __init__(self, n_embd, n_head, block_size, *, rotary=False):
        super().__init__()
        self.gate, self.out = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)
    def forward(self, x, padding=None, cache=None):
        weight = self.gate(x).exp()
        return self.out((weight * x).cumsum(1) / weight.cumsum(1))

class Less(Attention):
    """Weights below zero."""
    def pattern(self, q, k, mask):
        return 1.5 * ops.attention_pattern(q, k, mask) - 0.5 * ops.attention_pattern(-q, k, mask)

class Halves(Attention):
    """A pattern over two slots, not over tokens, each the mean of some first tokens."""
    def reference(self, q, k, v, padding):
        weights = torch.full((*q.shape[:3], 2), 0.5)
        slots = torch.stack([v[:, :, 0], v[:, :, :2].mean(2)], dim=2)
        return self.hook_pattern(weights) @ slots
'''


def make(mechanism: str = "dot", n_layer: int = 2, positions: str = "learned") -> LanguageModel:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=n_layer, n_head=4, n_embd=32, block_size=32, vocab_size=300, zero_init=False)
    model = LanguageModel(replace(config, mechanism=mechanism, positions=positions)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)  # heads with opinions
    return model


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return Tokenizer.train("bpe", [TEXT, "Where was Babe Ruth born?"], 300)


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return Tokenizer.train("char", [TEXT, "Where was Babe Ruth born?"], 300)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(UNREADABLE)
    return tmp_path / "mine.py"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: Tokenizer) -> Path:
    """A folder with a run in it."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "runs/recall-1", "run", {"config.json": to_json({})})
    write_folder(tmp_path / "runs/recall-1/model", "model", model_files(make(), pieces))
    return tmp_path


# What is seen


def test_a_view_is_what_the_model_does(pieces: Tokenizer) -> None:
    model = make().train()
    view = look(model, pieces, TEXT, top=3)
    assert model.training
    ids = pieces.encode(TEXT)
    with torch.no_grad(), capture(model.eval(), "hook_pattern") as seen:
        scores = model(torch.tensor([ids]))[0]
    assert view.tokens == tuple(pieces.piece(token) for token in ids)
    assert "".join(view.tokens) == " " + TEXT
    assert list(view.patterns) == ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]
    assert all(torch.equal(view.patterns[name], seen[name][0]) for name in seen)
    chances = scores.softmax(-1)
    assert [guess.probability for guess in view.next] == pytest.approx(
        chances[-1, : pieces.size].topk(3).values.tolist(), rel=1e-4
    )
    assert view.read[0].loss is None
    for place, reading in enumerate(view.read[1:], start=1):
        chance = chances[place - 1, ids[place]].item()
        assert reading.probability == pytest.approx(chance, rel=1e-4)
        assert reading.loss == pytest.approx(-math.log(chance), rel=1e-4)
        assert reading.expected == pieces.piece(int(chances[place - 1, : pieces.size].argmax()))
    assert view.loss == pytest.approx(sum(one.loss or 0 for one in view.read) / (len(ids) - 1))


def test_symbols_without_a_name_are_not_guessed() -> None:
    """The model has 300 rows, the tokenizer fewer symbols."""
    few = Tokenizer.train("char", ["ab"], 300)
    model = make()
    with torch.no_grad():
        model.head.weight[few.size :] *= 1000
    view = look(model, few, "abab")
    assert {guess.token for guess in view.next} <= {"a", "b", "\n", "□", "⁇"}
    assert {reading.expected for reading in view.read[1:]} <= {"a", "b", "\n", "□", "⁇"}


def test_a_layer_without_a_pattern_shows_its_influence(pieces: Tokenizer, mine: Path) -> None:
    model = make(f"dot, {mine}:Mean", n_layer=3)
    view = look(model, pieces, TEXT)
    assert [layer.kind for layer in view.layers] == ["pattern", "influence", "pattern"]
    assert list(view.patterns) == ["blocks.0.attn.hook_pattern", "blocks.2.attn.hook_pattern"]
    with torch.no_grad(), capture(model, ["blocks.1.hook_resid_pre"]) as seen:
        model(torch.tensor([pieces.encode(TEXT)]))
    given = model.blocks[1].norm1(seen["blocks.1.hook_resid_pre"])[0]
    exact, shown = influence(model.blocks[1].attn, given), view.layers[1].maps[0]
    assert (shown.triu(1) == 0).all()
    assert ((shown - exact).abs() <= 0.5 * exact).all()
    assert torch.allclose(view.layers[1].shares().sum(-1), torch.ones(1, len(view.tokens)))
    assert [(one.layer, one.head) for one in view.heads()][4:6] == [(2, 0), (3, 1)]


def test_weights_over_something_else_than_tokens_are_no_pattern(pieces: Tokenizer, mine: Path) -> None:
    model = make(f"{mine}:Halves", n_layer=1)
    assert len(look(model, pieces, "b").tokens) == 2  # as many as there are slots
    assert not look(model, pieces, "b").patterns
    view = look(model, pieces, TEXT)
    assert view.layers[0].kind == "influence"
    assert (view.layers[0].maps[0, 3:, 2:] == 0).all()
    assert (view.layers[0].maps[0, 3:, :2] > 0).all()


def test_heads_in_numbers() -> None:
    tokens = 9
    even = torch.ones(tokens, tokens).tril()
    even = even / even.sum(-1, keepdim=True)
    numbers = head_numbers(even)
    assert numbers["spread"] == pytest.approx(sum(range(2, 10)) / 8)
    assert numbers["entropy"] == pytest.approx(sum(math.log(n) for n in range(2, 10)) / 8)
    assert numbers["distance"] == pytest.approx(sum(n / 2 for n in range(1, 9)) / 8)
    assert numbers["first"] == pytest.approx(sum(1 / n for n in range(2, 10)) / 8)
    before = torch.diag(torch.ones(tokens - 1), -1)
    before[0, 0] = 1
    assert head_numbers(before) == pytest.approx({"entropy": 0, "spread": 1, "distance": 1, "first": 1 / 8})
    assert head_numbers(0.3 * before) == pytest.approx(head_numbers(before))
    assert head_numbers(-before) == pytest.approx(head_numbers(before))
    assert head_numbers(torch.ones(1, 1)) == pytest.approx({"entropy": 0, "spread": 1, "distance": 0, "first": 1})
    assert all(math.isfinite(value) for value in head_numbers(torch.zeros(3, 3)).values())


# Text and its mistakes


def test_symbols_stand_for_themselves(pieces: Tokenizer, characters: Tokenizer) -> None:
    question = "Where was Hank Aaron born?"
    asked = [*pieces.encode(question), pieces.mask]
    assert encode(pieces, question, True, 32) == asked
    assert encode(pieces, f"{question} ⁇", False, 32) == asked
    assert encode(pieces, f"{question} ⁇ Mobile □", False, 32) == [*asked, *pieces.encode("Mobile"), pieces.pad]
    assert encode(characters, "born ⁇in", False, 32) == [
        *characters.encode("born "),
        characters.mask,
        *characters.encode("in"),
    ]
    assert pieces.mask not in encode(pieces, question, False, 32)


@pytest.mark.parametrize(
    ("text", "question", "message"),
    [
        ("", False, "the text is empty: write some"),
        (" \n", True, "the text is empty: write some"),
        ("a" * 33, False, "has 33 tokens, but the model's block holds 32: shorten it"),
        ("a" * 32, True, "has 33 tokens"),
        ("Zoë é", False, f"no symbol for 'Z' 'é' 'ë': leave it out, or write {MASK} for it"),
        ("a\udcff", False, "not UTF-8"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(characters: Tokenizer, text: str, question: bool, message: str) -> None:
    with pytest.raises(UserError) as error:
        look(make(), characters, text, question=question)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_without_an_end_is_seen_beyond_its_block(characters: Tokenizer) -> None:
    model, text = make(positions="rotary"), "born" * 20
    view = look(model, characters, text)
    with torch.no_grad(), capture(model, "hook_pattern") as seen:
        model(torch.tensor([characters.encode(text)]))
    assert {name: pattern.shape for name, pattern in view.patterns.items()} == dict.fromkeys(seen, (4, 80, 80))
    assert all(torch.equal(view.patterns[name], seen[name][0]) for name in seen)
    assert view.files("runs/x", "attnlab look")
    with pytest.raises(UserError, match="has 513 tokens, and patterns are shown for up to 512: shorten it"):
        look(model, characters, "a" * 513)


# To be shown


def shown(view: View) -> tuple[str, dict[str, Any], bytes]:
    """The page, the weights in it, and the picture."""
    made = view.files("runs/<run>", "attnlab look")
    assert sorted(made) == ["look.html", "patterns.png", "result.json"]
    page = made["look.html"].decode()
    (data,) = re.findall(r'id="attention-data">(.*?)</script>', page, flags=re.DOTALL)
    json.loads(made["result.json"])
    return page, json.loads(data), made["patterns.png"]


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)).split())


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return int(width), int(height)


def test_the_page_has_every_head_and_needs_nothing_else(pieces: Tokenizer) -> None:
    view = look(make(), pieces, r"Hank <b>Aaron</b> & $\frac$ 球")
    page, data, png = shown(view)
    for layer, pattern in enumerate(view.patterns.values(), start=1):
        for head, weights in enumerate(pattern, start=1):
            stored = data["heads"][f"{layer}-{head}"]
            filled = torch.tensor([[*row, *[0] * (len(view.tokens) - len(row))] for row in stored])
            assert torch.allclose(filled / 1000, weights, atol=6e-4)
            assert page.count(f'id="pick-{layer}-{head}"') == page.count(f'href="#cells-{layer}-{head}"') == 1
    assert "#pick-2-4:checked ~ .panels" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.search(r"https?://|@import|src=", page)
    assert "<b>Aaron" not in page
    assert "runs/&lt;run&gt;" in page
    assert f"mean loss is {view.loss:.2f} nats" in words(page)
    for guess in view.next:
        assert f"{100 * guess.probability:.1f} %" in words(page)
    assert "No pattern" not in words(page)
    assert "below zero" not in words(page)
    width, height = size(png)
    assert width > 4 * 200
    assert height > 2 * 200


def test_the_page_says_what_is_shown_instead_of_a_pattern(pieces: Tokenizer, mine: Path) -> None:
    page, data, png = shown(look(make(f"dot, {mine}:Mean"), pieces, TEXT))
    assert "No pattern in layer 2." in words(page)
    assert "Layer 2, all heads together. At the last token it depends most on" in words(page)
    assert 'data-verb="is moved by"' in page
    assert sorted(data["heads"]) == ["1-1", "1-2", "1-3", "1-4", "2-1"]
    assert all(sum(row) == pytest.approx(1000, abs=len(row)) for row in data["heads"]["2-1"])
    size(png)
    page, _, _ = shown(look(make(f"{mine}:Mean", n_layer=3), pieces, TEXT))
    assert "No pattern in layers 1, 2, 3." in words(page)
    assert "Each small picture is a head" not in words(page)


def test_the_page_shows_what_states_hold(pieces: Tokenizer) -> None:
    view = look(make("gated_delta,dot", n_layer=3), pieces, TEXT)
    assert [layer.tap for layer in view.states] == ["blocks.0.attn.hook_state", "blocks.2.attn.hook_state"]
    page, data, _ = shown(view)
    assert sorted(data["heads"]) == [f"{row}-{head}" for row in range(1, 6) for head in range(1, 5)]
    for row, layer in enumerate(view.states, start=4):
        for head, held in enumerate(layer.maps, start=1):
            assert held.triu(1).any()
            assert torch.allclose(torch.tensor(data["heads"][f"{row}-{head}"]) / 1000, held, atol=6e-4)
    kept = int((view.states[0].maps[0].diagonal() >= 0.5).sum())
    assert f"After the text it returns at least half of the value of {kept} of {len(view.tokens)} tokens." in words(
        page
    )
    assert "A recurrent layer keeps no tokens" in words(page)
    assert [*view.record().states] == [layer.tap for layer in view.states]
    assert "A recurrent layer" not in words(shown(look(make(), pieces, TEXT))[0])


def test_weights_below_zero_are_shown_as_such(pieces: Tokenizer, mine: Path) -> None:
    page, data, png = shown(look(make(f"{mine}:Less"), pieces, TEXT))
    assert "Weights below zero have another colour." in words(page)
    assert '<g class="below"><path' in page
    assert any(weight < 0 for row in data["heads"]["1-1"] for weight in row)
    size(png)


@pytest.mark.parametrize("text", ["a", "ab", "a" * 32])
def test_short_and_long_texts_have_a_page(characters: Tokenizer, text: str) -> None:
    page, _, png = shown(look(make(), characters, text))
    assert ("nothing before it" in words(page)) == (text == "a")
    assert max(size(png)) < 4000


# The command


def test_look_writes_a_page_and_a_picture(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("look", "runs/recall-1", TEXT) == 0
    assert sorted(path.name for path in (here / "runs/look-1").iterdir()) == [
        "look.html",
        "manifest.json",
        "patterns.png",
        "result.json",
    ]
    out = capsys.readouterr().out
    assert "page: runs/look-1/look.html" in out
    entry = listing.read(here / "runs/look-1")  # its tokens are a list, where those of a run are a number
    assert (entry.kind, entry.what, entry.tokens) == ("output", "look", None)
    assert out.count(" %  ") == 5
    assert call("look", "runs/recall-1", "Where was Babe Ruth born?", "--question", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == "runs/look-2/look.html"
    assert Path(printed["picture"]).is_file()
    assert printed["tokens"][-1] == "⁇"
    assert len(printed["heads"]) == 8
    assert printed["heads"][5].keys() == {"layer", "head", "tap", "kind", "entropy", "spread", "distance", "first"}
    assert printed["heads"][5]["tap"] == "blocks.1.attn.hook_pattern"
    stored = json.loads((here / "runs/look-2/result.json").read_text())
    assert all(printed[key] == value for key, value in stored.items())


def test_a_look_says_where_it_shows_influence(
    here: Path, mine: Path, pieces: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(here / "runs/recall-1/model", "model", model_files(make(f"dot, {mine}:Mean"), pieces), replace=True)
    assert call("look", "runs/recall-1", TEXT, "--out", "seen") == 0
    assert "no pattern in layer 2" in capsys.readouterr().out


def test_mistakes_leave_no_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for message, arguments in {
        "the text is empty": ("runs/recall-1", " "),
        "holds 32: shorten it": ("runs/recall-1", "word " * 40),
        "no such run folder": ("runs/absent", TEXT),
        "runs/recall-1 exists already": ("runs/recall-1", TEXT, "--out", "runs/recall-1"),
    }.items():
        assert call("look", *arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert [path.name for path in (here / "runs").iterdir()] == ["recall-1"]


def test_look_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("look", "--help") == 0
    assert "patterns.png" in capsys.readouterr().out


def test_the_guides_python_runs(here: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/looking.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 8
    world: dict[str, Any] = {"x": torch.randn(5, 32)}
    for block in blocks:
        exec(compile(block, "docs/looking.md", "exec"), world)
    with torch.no_grad():
        assert not torch.allclose(world["without"], world["model"](world["ids"]))
    assert isinstance(world["view"].patterns["blocks.1.attn.hook_pattern"], Tensor)
