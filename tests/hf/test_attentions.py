"""Attention in the shapes of other programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exchanged import stored, tiny_model, tiny_tokenizer

from attnlab.inside.look import attentions_of
from attnlab.inside.taps import capture
from attnlab.lm.model import load_model
from attnlab.store.folders import add_files
from attnlab.store.runs import DataSource, Run, RunRecord
from verbs import call

MEAN = """
import torch
class Mean(torch.nn.Module):
    def __init__(self, n_embd, n_head, block_size, *, rotary=False):
        super().__init__()
        self.out = torch.nn.Linear(n_embd, n_embd)
    def forward(self, x, padding=None, cache=None):
        return self.out(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])
"""


@pytest.mark.parametrize("mechanism", ["dot", "linformer", "mean.py:Mean"])
def test_shapes_are_those_of_bertviz_and_circuitsvis(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mean.py").write_text(MEAN)
    made, tokenizer = tiny_model(mechanism=mechanism), tiny_tokenizer("bpe")
    tokens, layers = attentions_of(made, tokenizer, "Hank Aaron was")
    count = len(tokenizer.encode("Hank Aaron was"))
    assert len(tokens) == count
    assert "".join(tokens).strip() == "Hank Aaron was"
    assert [layer.shape for layer in layers] == [(1, 2, count, count)] * 2
    for layer in layers:
        assert not layer.triu(1).any()
        if mechanism != "linformer":  # whose rows are mixtures, and need not sum to one
            torch.testing.assert_close(layer.sum(dim=-1), torch.ones(1, 2, count))


def test_the_patterns_are_the_models_own() -> None:
    made, tokenizer = tiny_model(), tiny_tokenizer("bpe")
    _, layers = attentions_of(made, tokenizer, "Hank Aaron", question=True)
    with capture(made, "hook_pattern") as seen:
        made(torch.tensor([[*tokenizer.encode("Hank Aaron"), tokenizer.mask]]))
    for number, layer in enumerate(layers):
        assert torch.equal(layer, seen[f"blocks.{number}.attn.hook_pattern"])


def test_look_prints_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model = Run.create(tmp_path / "run", RunRecord()), tiny_model()
    stored(run.path / "model", model)
    assert call("look", run.path, "Hank Aaron", "--json", "--out", tmp_path / "look") == 0
    printed = json.loads(capsys.readouterr().out)
    tokens, layers = attentions_of(*load_model(run.model), "Hank Aaron")
    assert printed["tokens"] == tokens
    torch.testing.assert_close(torch.tensor(printed["attention"]), torch.cat(layers), atol=1e-4, rtol=0)


def test_nobody_imports_transformers_by_chance(tmp_path: Path) -> None:
    code = "import sys, attnlab.cli, attnlab.inside.look; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_transformers_the_fix_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "attnlab.hf.exchange", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert call("export", "somewhere", "else") == 2
    assert "pip install 'attnlab[hf]'" in capsys.readouterr().err


def test_the_card_tells_what_the_run_knows(tmp_path: Path) -> None:
    from attnlab.exchange import export

    Run.create(tmp_path / "pretrain", RunRecord("pretrain", {}, corpus=DataSource("prose", "e5")))
    corpus, facts = DataSource("people:40", "abc123"), DataSource("/home/x/f.tsv", "d4")
    run = Run.create(
        tmp_path / "run", RunRecord("finetune", {"seed": 3}, corpus=corpus, facts=facts, base="../pretrain")
    )
    stored(run.path / "model", tiny_model("mingpt"), "char")
    add_files(run.path, {"result.json": json.dumps({"final_loss": 0.12345, "parameters": 1, "seconds": 1.0}).encode()})
    export(run.path, tmp_path / "theirs")
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert "`people:40`, sha256 `abc123`" in card
    assert "`f.tsv`" in card
    assert "/home/x" not in card
    assert card.index("`prose`, sha256 `e5`") < card.index("- finetune")
    for licence in ("CC BY-SA 3.0", "Python Software Foundation", "your own data"):
        assert licence in card
    assert "final training loss: 0.1235" in card
    assert "| seed | 3 |" in card
