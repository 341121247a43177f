"""The verbs: a study by its name, plans without training, mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnlab import corpora
from attnlab.store.folders import read_json
from attnlab.studies import ready
from attnlab.studies.compare import Compare
from attnlab.studies.study import find
from verbs import call

TINY = ["--model.n_layer", "1", "--model.n_head", "2", "--model.n_embd", "16", "--model.block_size", "32"]
SHORT = ["--train.epochs", "1", "--task.options.longest", "30"]


@pytest.mark.usefixtures("in_process")
def test_a_study_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "masking"
    data = ["--corpus", "prose:100:train", "--dev", "prose:300:dev"]
    assert call("run", "masking", "--seeds", "1", "--out", out, *data, *TINY, *SHORT) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "zero_mask" in said
    assert "one of the two leaks" in said
    result = read_json(out / "result.json")
    assert result["kind"] == "masking"
    assert result["settings"]["dot"]["task"]["options"] == {"padded": True, "replacement": True, "longest": "30"}
    assert result["settings"]["dot"]["train"]["rows_per_batch"] == 32
    assert call("runs", tmp_path, "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["kind"], listed["what"], listed["state"]) == ("study", "masking", "complete")
    assert listed["mechanism"] == "dot, zero_mask"
    assert call("report", out, "--out", str(tmp_path / "again"), "--format", "md") == 0
    assert (tmp_path / "again" / "report.md").read_text() == (out / "report.md").read_text()


def test_a_plan_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("compare", "dot", "linear", "sliding", "--quick", "--plan", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["varied"] == "model.mechanism"
    assert len(found["order"]) == 9
    assert any("only a pilot shows" in line for line in found["notes"])
    assert call("compare", "dot", "linear", "--plan", "--task", "words") == 0
    assert "differ in model.mechanism only" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare"], "at least two"),
        (["compare", "dot", "nosuch"], "nosuch"),
        (["compare", "dot", "additive", "--seeds", "many"], "--seeds takes a number"),
        (["compare", "small", "mingpt"], "settings"),
        (
            ["compare", "dot", "alibi", "--task", "text", "--lengths", "0"],
            "--lengths takes different numbers of at least 1",
        ),
        (["compare", "dot", "alibi", "--lengths", "2"], "--lengths is for running text, not for task recall"),
        (["run", "masking", "--seed", "1"], "--seed is for recall, reports, trust, not for masking"),
        (["run", "masking", "--model.mechanism", "dot"], "chooses its mechanisms"),
        (["run", "recall", "--seeds", "3"], "--seeds is for ablations, additive-vs-dot"),
        (["run", "nosuch"], "unknown study 'nosuch': choose from"),
    ],
)
def test_mistakes_end_in_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("cls", [ready.AdditiveVsDot, ready.SharedProjections, ready.Masking, ready.Efficient])
def test_a_ready_comparison_is_a_command_and_a_study(cls: type[Compare], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", cls.name, "--help") == 0
    assert str(cls.__doc__) in " ".join(capsys.readouterr().out.split())
    assert find(cls.name) is cls


def test_efficient_takes_every_sound_mechanism() -> None:
    names = ready.sound_mechanisms()
    assert names[0] == "dot"
    assert {"additive", "performer", "bigbird", "linformer", "perceiver", "synthesizer"} <= set(names)
    assert not {"zero_mask", "zero_mask_control"} & set(names)
    plan = ready.Efficient().completed()
    assert (plan.task, plan.seeds, len(plan.variants)) == ("recall", (0, 1, 2), len(names))


def test_published_figures_stand_beside_those_of_the_same_corpus_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The corpus itself is not ours to keep, so a small one takes its place."""
    news, other = tmp_path / "news.txt", tmp_path / "other.txt"
    news.write_text("One sentence .\nAnother sentence .\n", encoding="utf-8")
    other.write_text("One sentence .\nA third sentence .\n", encoding="utf-8")
    monkeypatch.setattr(ready, "NEWS", corpora.load_corpus(str(news)).sha256)
    plan = ready.Masking(corpus=str(news), dev=str(other)).completed()
    assert plan.published() == {name: ready.PUBLISHED[name] for name in ("dot", "zero_mask")}
    additive = ready.AdditiveVsDot(corpus=str(news), dev=str(other)).completed()
    assert list(additive.published()) == ["dot", "additive"]
    assert additive.variants[1].settings(0).train.rows_per_batch == 32  # trained as reported
    assert ready.Masking(corpus=str(other), dev=str(news)).completed().published() == {}
    changed = ready.Masking(corpus=str(news), dev=str(other), given={"train": {"lr": 1.0}})
    assert changed.completed().published() == {}
    assert ready.Masking().completed().published() == {}


def test_quick_means_less_of_the_built_in_data() -> None:
    assert ready.Efficient().completed().corpus == "people:1000"
    assert ready.Efficient(quick=True).completed().corpus == "people:300"
    assert ready.Masking(quick=True).completed().variants[0].settings(0).train.epochs == 2
    assert ready.Masking().completed().variants[0].settings(0).train.epochs == 10
