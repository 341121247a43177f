"""What is exported is loaded by transformers and says the same."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exchanged import ODD, ids_of, stored, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

from attnlab import registry
from attnlab.errors import OutputExists, UserError
from attnlab.exchange import AttnlabForCausalLM, export, read_folder
from attnlab.hf.exchange import _is_gpt2
from attnlab.lm.decoding import generate
from attnlab.lm.evaluate import encode_question
from attnlab.lm.tokenizers import Kind
from attnlab.store.runs import Run, RunRecord
from verbs import call

BOTTLENECK = {"n_layer": 3, "bottleneck": 8, "positions": "learned"}
NOT_GPT2: list[dict[str, object]] = [
    {"positions": "none"},
    {"positions": "sinusoidal"},
    {"norm": "none"},
    {"norm_place": "post"},
    {"activation": "swiglu"},
    {"mlp_ratio": 0},
]
CASES = [
    *(("small", {"mechanism": name}) for name in registry.names("mechanism")),
    ("small", {"mechanism": "dot,bigbird", "options": {"bigbird": {"block": 4, "random_blocks": 1}}}),
    ("small", BOTTLENECK),
    ("mingpt", BOTTLENECK),
    ("mingpt", {"mechanism": "performer"}),
    ("mingpt", {}),
    ("mingpt", {"bias": False, "activation": "relu2", "mlp_ratio": 3}),
    ("mingpt", {"activation": "gelu_tanh"}),
    ("mingpt", {"activation": "silu", "tied_head": True}),
    ("small", {"tied_head": True, "activation": "swiglu"}),
    *(("mingpt", option) for option in NOT_GPT2),
]


@pytest.mark.parametrize(("preset", "model"), CASES, ids=str)
def test_scores_and_texts_are_equal(tmp_path: Path, preset: str, model: dict[str, object]) -> None:
    ours = tiny_model(preset, **model)
    written = export(stored(tmp_path / "ours", ours), tmp_path / "theirs")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert isinstance(theirs, GPT2LMHeadModel if written["layout"] == "gpt2" else AttnlabForCausalLM)
    ids = ids_of()
    assert (theirs(ids).logits - ours(ids)).abs().max() <= 1e-5
    if "zero_mask" not in str(model.get("mechanism")):  # whose cache sees another future than its whole text
        expected = generate(ours, ids, 5)
        for cached in (True, False):
            texts = theirs.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=None, use_cache=cached)
            assert texts[:, 20:].tolist() == expected
    theirs.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(again(ids).logits, theirs(ids).logits)
    back, _ = read_folder(tmp_path / "theirs")
    assert (back(ids) - ours(ids)).abs().max() <= 1e-5


def test_a_mingpt_is_a_gpt2_and_needs_nothing_of_ours(tmp_path: Path) -> None:
    written = export(stored(tmp_path / "ours", tiny_model("mingpt"), "char"), tmp_path / "theirs")
    assert written["layout"] == "gpt2"
    assert not written["needs_attnlab"]
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"] == "gpt2"
    assert "import attnlab" not in (tmp_path / "theirs" / "README.md").read_text()
    for loaded in (AutoModelForCausalLM, AutoTokenizer):
        assert type(loaded.from_pretrained(tmp_path / "theirs")).__module__.startswith("transformers.")


@pytest.mark.parametrize("option", NOT_GPT2, ids=str)
def test_what_gpt2_cannot_hold_is_written_with_a_class_of_ours(option: dict[str, object]) -> None:
    assert _is_gpt2(tiny_model("mingpt").config)
    assert not _is_gpt2(tiny_model("mingpt", **option).config)


@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_texts_have_the_same_ids(tmp_path: Path, kind: Kind) -> None:
    ours = tiny_tokenizer(kind)
    export(stored(tmp_path / "ours", tiny_model("mingpt"), kind), tmp_path / "theirs")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    _, back = read_folder(tmp_path / "theirs")
    for text in ODD:
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids, text
        assert theirs([text, "x"])["input_ids"][0] == ours.opening(text), text
        assert back.encode(text) == ids, text
        assert back.decode(ids) == ours.decode(ids), text
        if kind != "word":
            assert theirs.decode(ids) == ours.decode(ids), text
    assert (theirs.pad_token_id, theirs.eos_token_id) == (ours.pad, ours.stop)
    assert theirs.bos_token_id == ours.start
    assert back.backend.to_str() == ours.backend.to_str()


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_question_is_closed_by_its_symbol(tmp_path: Path, kind: Kind) -> None:
    export(stored(tmp_path / "ours", tiny_model("mingpt"), kind), tmp_path / "theirs")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    asked = theirs("Where was he?⁇", split_special_tokens=False)["input_ids"]
    assert asked == encode_question(tiny_tokenizer(kind), "Where was he?", 32)


@pytest.fixture
def causal(tmp_path: Path) -> AttnlabForCausalLM:
    export(stored(tmp_path / "ours", tiny_model("mingpt", mechanism="alibi,bigbird")), tmp_path / "theirs")
    return AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Three texts of different lengths, filled up."""
    ids, mask, lengths = ids_of(3, 12), torch.ones(3, 12, dtype=torch.long), [12, 7, 7]
    for row, length in enumerate(lengths):
        mask[row, length:] = 0
    return (ids.flip(1), mask.flip(1), lengths) if side == "left" else (ids, mask, lengths)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(causal: AttnlabForCausalLM, side: str) -> None:
    ids, mask, lengths = padded(side)
    output = causal(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    for row, length in enumerate(lengths):
        real = slice(12 - length, 12) if side == "left" else slice(0, length)
        alone = causal(ids[row : row + 1, real], output_attentions=True, output_hidden_states=True)
        torch.testing.assert_close(output.logits[row, real], alone.logits[0], atol=1e-5, rtol=0)
        for whole, one in zip(output.attentions, alone.attentions, strict=True):
            torch.testing.assert_close(whole[row, :, real, real], one[0], atol=1e-5, rtol=0)
        for whole, one in zip(output.hidden_states, alone.hidden_states, strict=True):
            torch.testing.assert_close(whole[row, real], one[0], atol=1e-5, rtol=0)


def test_padded_texts_go_on_as_they_would_alone(causal: AttnlabForCausalLM) -> None:
    ids, mask, lengths = padded("left")
    how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    together = causal.generate(ids, attention_mask=mask, **how)
    for row, length in enumerate(lengths):
        alone = causal.generate(ids[row : row + 1, 12 - length :], **how)
        assert together[row, 12:].tolist() == alone[0, length:].tolist()
    ids, mask, _ = padded("right")
    with pytest.raises(UserError, match="generation needs left padding"):
        causal.generate(ids, attention_mask=mask, **how)


def test_a_gpt2_counts_places_from_the_mask_if_it_is_told(tmp_path: Path) -> None:
    export(stored(tmp_path / "ours", tiny_model("mingpt")), tmp_path / "theirs")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert type(model) is GPT2LMHeadModel
    page = (Path(__file__).parents[2] / "docs/exchange.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`(model\(\*\*inputs, position_ids=.*?\))`", page)
    texts = ["Hank Aaron was born in", "Where"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    assert not inputs["attention_mask"][1, 0]
    alone = model(**tokenizer(texts[1], return_tensors="pt")).logits[0, -1]
    world = {"model": model, "inputs": inputs}
    torch.testing.assert_close(eval(told, world).logits[1, -1], alone, atol=1e-5, rtol=0)
    assert (model(**inputs).logits[1, -1] - alone).abs().max() > 1e-2
    how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    together = model.generate(**inputs, **how)
    for row, text in enumerate(texts):
        one = model.generate(**tokenizer(text, return_tensors="pt"), **how)
        assert together[row, -6:].tolist() == one[0, -6:].tolist()
    tokenizer.padding_side = "right"
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    real = int(inputs["attention_mask"][1].sum())
    torch.testing.assert_close(model(**inputs).logits[1, real - 1], alone, atol=1e-5, rtol=0)


def test_scores_of_chosen_places(causal: AttnlabForCausalLM) -> None:
    ids, places = ids_of(), torch.tensor([3, 19])
    whole = causal(ids).logits
    assert torch.equal(causal(ids, logits_to_keep=places).logits, whole[:, [3, 19]])
    assert torch.equal(causal(ids, logits_to_keep=2).logits, whole[:, -2:])


def test_beams_are_followed_in_the_cache(causal: AttnlabForCausalLM) -> None:
    ids, mask, _ = padded("left")
    how = {"max_new_tokens": 6, "do_sample": False, "num_beams": 3, "eos_token_id": None}
    cached, plain = (causal.generate(ids, attention_mask=mask, use_cache=cached, **how) for cached in (True, False))
    assert torch.equal(cached, plain)


def test_it_learns(causal: AttnlabForCausalLM) -> None:
    ids = ids_of()
    loss = causal(ids, labels=ids).loss
    expected = torch.nn.functional.cross_entropy(causal(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    shared = causal(ids, labels=ids, num_items_in_batch=torch.tensor(100)).loss  # as Trainer asks, over several batches
    torch.testing.assert_close(shared, expected * 38 / 100)
    loss.backward()
    assert all(parameter.grad is not None for parameter in causal.parameters())


def test_what_it_cannot_read_is_refused(causal: AttnlabForCausalLM, tmp_path: Path) -> None:
    ids = ids_of()
    with pytest.raises(UserError, match="input_ids"):
        causal(inputs_embeds=torch.zeros(1, 2, 16))
    with pytest.raises(UserError, match="not one of pairs"):
        causal(ids, attention_mask=torch.ones(2, 1, 20, 20))
    with pytest.raises(UserError, match="does not read position_ids"):
        causal(ids, position_ids=torch.arange(20)[None])
    with pytest.raises(UserError, match="one number per token"):
        causal(ids, attention_mask=torch.ones(2, 19))
    with pytest.raises(UserError, match="keeps its vocabulary"):
        causal.resize_token_embeddings(400)
    export(stored(tmp_path / "narrow", tiny_model("mingpt", **BOTTLENECK)), tmp_path / "narrow theirs")
    with pytest.raises(UserError, match="without weights between tokens"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "narrow theirs")(ids, output_attentions=True)


@pytest.mark.parametrize("kind", ["char", "word"])
def test_the_cards_code_runs(tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    export(stored(tmp_path / "ours", tiny_model("mingpt"), kind), tmp_path / "theirs")
    (block,) = re.findall(r"```python\n(.*?)```", (tmp_path / "theirs" / "README.md").read_text(), flags=re.DOTALL)
    exec(block.replace("path/to/this/folder", str(tmp_path / "theirs")), {})
    assert "Aaron" in capsys.readouterr().out


def test_nothing_is_overwritten_and_nothing_half_is_left(tmp_path: Path) -> None:
    ours = stored(tmp_path / "ours", tiny_model("mingpt"))
    export(ours, tmp_path / "theirs")
    before = (tmp_path / "theirs" / "config.json").stat().st_mtime_ns
    with pytest.raises(OutputExists):
        export(ours, tmp_path / "theirs")
    assert (tmp_path / "theirs" / "config.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="no such folder"):
        export(tmp_path / "nowhere", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]


def test_the_pages_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/exchange.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Run.create(Path("runs/recall-1"), RunRecord())
    stored(Path("runs/recall-1/model"), tiny_model())
    commands = [line for line in page.split("\n") if line.startswith("attnlab export ")]
    assert [call(*shlex.split(command)[1:]) for command in commands] == [0]
    world: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, "docs/exchange.md", "exec"), world)
    assert "Hank Aaron" in capsys.readouterr().out


_LOADING = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer

for folder in sys.argv[1:]:
    assert folder != sys.argv[1] or "attnlab" not in sys.modules
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    print(type(model).__name__, tokenizer("Hank Aaron was born")["input_ids"])
    model.save_pretrained(f"{folder}-again")
    tokenizer.save_pretrained(f"{folder}-again")
"""


def test_a_process_without_attnlab_loads_exports_and_saves_them_again(tmp_path: Path) -> None:
    export(stored(tmp_path / "pieces-model", tiny_model()), tmp_path / "pieces")
    export(stored(tmp_path / "words-model", tiny_model("mingpt"), "word"), tmp_path / "words")  # a GPT-2
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    said = ""
    for folders in (("pieces", "words"), ("words-again", "pieces-again")):
        command = [sys.executable, "-c", _LOADING, *(str(tmp_path / folder) for folder in folders)]
        loaded = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert loaded.returncode == 0, loaded.stderr
        said += loaded.stdout
    words = f"GPT2LMHeadModel {tiny_tokenizer('word').opening('Hank Aaron was born')}"
    pieces = f"AttnlabForCausalLM {tiny_tokenizer().encode('Hank Aaron was born')}"
    assert said.splitlines() == [pieces, words, words, pieces]
