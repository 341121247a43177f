"""Cards: every one complete, and true where it can be counted; the page made of them, and the verb that shows them."""

from __future__ import annotations

import json
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from attnlab import cli, registry
from attnlab.config import resolve
from attnlab.errors import ConfigError
from attnlab.lm.model import make_attention
from attnlab.measure import approximation, audit, cards
from attnlab.measure.approximation import random_source
from attnlab.measure.audit import audit_module
from attnlab.measure.cards import entries, figures, link, usage
from attnlab.registry import Card
from attnlab.report.document import Document
from attnlab.report.html import as_html
from attnlab.report.text import as_csv, as_latex, as_markdown
from attnlab.store.records import decode, encode
from verbs import call

ROOT = Path(__file__).parents[2]
OWN = [entry for entry in entries() if entry.build.__module__.startswith("attnlab.")]
FIND = {entry.name: entry for entry in OWN}


def test_a_docstring_is_parsed() -> None:
    read = Card.read(
        "Does it.\n\nSlowly,\nand twice.\n\nAgain.\n\nCosts: much,\nand more.\nCannot: rest. Costs: no heading.\n"
        "\nParameters\n----------\nfirst : int\n    what it\n    means\nsecond\n    the other"
    )
    assert read.summary == "Does it."
    assert read.body == "Slowly, and twice.\nAgain."
    assert (read.costs, read.cannot) == ("much, and more.", "rest. Costs: no heading.")
    assert read.meanings == {"first": "what it means", "second": "the other"}


def test_a_class_without_a_docstring_has_an_empty_card() -> None:
    assert Card.read("") == Card("", "", "", "", {})


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_every_card_is_complete(entry: registry.Entry) -> None:
    text = entry.parts
    assert text.summary
    assert text.costs
    assert text.cannot
    assert entry.cost
    assert "\n" not in text.summary
    assert all(option.meaning and option.type for option in entry.described())
    assert set(entry.knobs) <= set(entry.options)
    assert not entry.paper or link(entry.paper).startswith("https://")


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_the_command_on_a_card_is_understood_and_builds_a_model(entry: registry.Entry) -> None:
    function, bound, _ = cli.app.parse_args(shlex.split(usage(entry))[1:], exit_on_error=False, print_error=False)
    assert function is cli.train.pretrain
    given: dict[str, Any] = cli.train.collect(
        bound.arguments.get("given", cli.train.NONE), bound.arguments["mechanism"], None
    )
    config = resolve("small", given=given)
    assert config.model.mechanism == entry.name
    assert not entry.options or list(config.model.options) == [entry.name]
    make_attention(config.model, 0)


def test_parameters_cache_and_memory_are_counted() -> None:
    counted = {name: figures(FIND[name]) for name in ("dot", "shared_qkv", "gqa", "zero_mask", "performer", "sliding")}
    assert counted["dot"].parameters == 4 * 256 * 256
    assert counted["shared_qkv"].parameters == 2 * 256 * 256
    assert counted["dot"].cache == {"64": 2 * 64 * 256, "128": 2 * 128 * 256}
    assert counted["gqa"].cache["128"] == 2 * 128 * 64
    for name in ("performer", "sliding"):
        assert counted[name].cache["64"] == counted[name].cache["128"]
    assert counted["dot"].memory == counted["performer"].memory == "n"
    assert counted["zero_mask"].memory == "n²"


def test_papers_have_links() -> None:
    assert link("arXiv:2009.14794") == "https://arxiv.org/abs/2009.14794"
    assert link("https://example.org/paper") == "https://example.org/paper"


def test_the_page_is_fresh() -> None:
    written = (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(ROOT / "tools/mechanism_cards.py"))["page"]()
    assert written == page, "docs/mechanisms.md is stale: run `make docs`"


def test_the_readme_counts_the_mechanisms() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"any of {len(OWN)} attention mechanisms" in text
    assert f"The {len(OWN)} mechanisms" in text


def test_the_list_fits_80_columns_and_marks_defects(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("mechanisms") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert all(name in out for name in FIND)
    assert out.count("Defect, on purpose") == sum(bool(entry.defect) for entry in OWN)


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("mechanisms", "--json") == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(FIND) <= set(listed)
    assert set(listed["dot"]) >= {"name", "card", "paper", "cost", "causal", "defect", "weights", "knobs"}


def test_a_card_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("mechanisms", "show", "performer") == 0
    out = capsys.readouterr().out
    assert "https://arxiv.org/abs/2009.14794" in out
    assert "attnlab pretrain --mechanism performer --model.options.performer.features 64" in out
    assert "one of orthogonal, iid" in out
    assert call("mechanisms", "show", "zero_mask") == 0
    assert "Defect, on purpose" in capsys.readouterr().out


def test_errors_on_the_screen_and_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = ("--error", "--draws", "2", "--std", "0.5")
    assert call("mechanisms", "show", "linformer", *measured, "--out", tmp_path / "found") == 0
    out = capsys.readouterr().out
    assert "mean of the values" in out
    assert "untrained" in out
    assert "Singular values" in out
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"error.json", "manifest.json", "mechanism.html"}
    page = (tmp_path / "found/mechanism.html").read_text(encoding="utf-8")
    for title in ("What it does", "Patterns", "error over rank", "Singular values of the exact pattern"):
        assert title in page
    assert call("mechanisms", "show", "linformer", "--out", tmp_path / "found") == 2
    assert "exists already" in capsys.readouterr().err


def test_errors_as_json_without_a_knob(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("mechanisms", "show", "linear", "--error", "--draws", "2", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "linear"
    assert shown["parameters"] == 4 * 256 * 256
    assert shown["usage"].startswith("attnlab pretrain --mechanism linear")
    assert shown["error"]["knobs"] == []
    assert shown["error"]["samples"] == ["std 0.5", "std 1", "std 2"]
    assert {row["form"] for row in shown["error"]["rows"]} == {"", "mean of the values"}
    assert call("mechanisms", "show", "linear", "--error", "--draws", "2", "--causal") == 0
    assert "causal" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for message, *arguments in (
        ("did you mean performer", "perfomer"),
        ("not an approximation of dot-product attention: no error to show", "synthesizer", "--error"),
        ("given the same queries and keys: no error", "dot", "--error"),
        ("--std takes numbers above 0", "linear", "--error", "--std", "-1"),
        ("--draws must be at least 1", "linear", "--error", "--draws", "0"),
        ("add --error", "linear", "--run", "absent"),
        ("no such run folder", "linear", "--error", "--run", "absent"),
    ):
        assert call("mechanisms", "show", *arguments) == 2
        error = capsys.readouterr().err.strip()
        assert message in error
        assert "\n" not in error


def test_a_users_mechanism_has_a_card_and_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = (ROOT / "src/attnlab/mechanisms/sliding.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        source.replace('@mechanism("sliding"', '@mechanism("my_window"'), encoding="utf-8"
    )
    reference = f"{tmp_path / 'mine.py'}:Sliding"
    assert call("mechanisms", "show", reference, "--error", "--draws", "1") == 0
    assert "Error of the output of my_window" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "plain.py").write_text(
        "from torch import nn\nclass Plain(nn.Module):\n    def __init__(self, n_embd, n_head, block_size):\n"
        "        super().__init__()\n        self.out = nn.Linear(n_embd, n_embd)\n"
        "    def forward(self, x, padding=None, cache=None):\n        return self.out(x)\n"
    )
    assert call("mechanisms", "show", f"{tmp_path / 'plain.py'}:Plain") == 0
    assert "65,792 per layer" in capsys.readouterr().out
    assert call("mechanisms", "show", f"{tmp_path / 'plain.py'}:Plain", "--out", tmp_path / "out") == 0
    assert "Patterns" not in (tmp_path / "out/mechanism.html").read_text(encoding="utf-8")


def test_a_class_that_cannot_be_run_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from attnlab.mechanisms.heads import Attention\n"
        "class Broken(Attention):\n"
        "    def pattern(self, q, k, mask):\n"
        "        return q @ k\n"
    )
    with pytest.raises(ConfigError, match="cannot be run .* says where"):
        figures(registry.find("mechanism", f"{tmp_path}/bad.py:Broken"))


def test_every_measurement_is_a_document_in_every_form() -> None:
    reports = [audit_module(lambda x: x.cumsum(1), n_embd=4, length=8), audit_module(lambda x: x, n_embd=4, length=4)]
    for document in (
        cards.document(FIND["zero_mask"]),
        cards.list_document(OWN),
        approximation.document(approximation.examine(FIND["performer"], random_source((0.5,), tokens=16), draws=1)),
        audit.document(reports),
    ):
        assert document.tables() or document.kind == "mechanism"
        assert document.title in as_html(document)
        assert document.title in as_markdown(document).replace("\\", "")
        assert decode(Document, encode(document), Path("report.json")).title == document.title
        assert "\\caption{}" not in as_latex(document)
        for table in document.tables():
            assert len(as_csv(table).splitlines()) > len(table.rows)


def test_a_class_whose_annotations_cannot_be_read_is_built(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from __future__ import annotations\nfrom torch import nn\nclass Odd(nn.Linear):\n"
        "    def __init__(self, n_embd: Absent, n_head, block_size):\n        super().__init__(n_embd, n_embd)\n"
    )
    assert registry.find("mechanism", f"{tmp_path}/odd.py:Odd").make((8, 2, 4)).in_features == 8
