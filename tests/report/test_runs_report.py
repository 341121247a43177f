"""The verb report: studies again, comparisons again, runs side by side, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from comparisons import make_comparison, plan_of
from reading import Reader, read

from attnlab.report import FORMATS, write_document
from attnlab.report.runs import NO_CLAIM, _distinct_names, differing
from attnlab.store import listing
from attnlab.store.folders import to_json, write_bytes, write_manifest
from attnlab.store.records import encode
from attnlab.studies.compare.document import document
from attnlab.studies.study import StoredStudy, load
from verbs import call, change, reseal

TINY = ["--model.n_layer=1", "--model.n_head=2", "--model.n_embd=32", "--model.block_size=64", "--model.vocab_size=300"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    short = ("--train.epochs=1", "--train.tokens_per_batch=512")
    assert call("pretrain", "--corpus", "people:60", "--out", folder, *TINY, *short) == 0
    return folder


@pytest.fixture
def here(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs under ./runs: a whole one, one that leaks on purpose, one that was stopped an hour ago."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for name in ("whole", "leaky", "stopped"):
        shutil.copytree(trained, runs / name)
    change(runs / "leaky", model__mechanism="zero_mask", seed=7)
    (runs / "stopped/result.json").unlink()
    lines = (runs / "stopped/metrics.jsonl").read_text().splitlines()
    (runs / "stopped/metrics.jsonl").write_text("\n".join(lines[:2]) + '\n{"step": 3, "lo')
    for path in (runs / "stopped").rglob("*"):
        os.utime(path, (time.time() - 3600,) * 2)
    result = json.loads((runs / "leaky/result.json").read_text())
    write_bytes(runs / "leaky/result.json", to_json({**result, "peak_memory": 512_000_000}))
    reseal(runs)
    return runs


def page(folder: Path) -> tuple[Reader, str]:
    html = (folder / "report.html").read_text()
    return read(html), html


def test_runs_side_by_side(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", "whole", here / "leaky", "stopped") == 0
    assert capsys.readouterr().out.strip() == f"report: {Path('runs/report-1/report.html')}"
    found, html = page(here / "report-1")
    done = json.loads((here / "whole/result.json").read_text())
    assert f"whole {done['final_loss']:.3f} " in found.text
    assert "3 runs side by side" in found.text
    assert NO_CLAIM in found.text
    assert "the future leaks" in found.text
    assert 'data-value="zero_mask"' in html
    rows = re.findall(r"<tr[^>]*>.*?</tr>", html)
    for name, tone, word in (("leaky", "leaks", "declared defect"), ("stopped", "stopped", r"stopped at \d+ %")):
        named = [row for row in rows if f'data-value="{name}"' in row and "</td>" in row]
        assert len(named) == 2  # the results, and where they differ
        assert all(re.search(rf'<tr class="{tone}">.*<span class="mark {tone}">{word}</span>', row) for row in named)
    assert "leaky (declared defect)" in html
    assert "512.0 MB" in found.text
    files = ["manifest.json", "report-differences.csv", "report-results.csv"]
    files += ["report.html", "report.json", "report.md", "report.tex"]
    assert sorted(path.name for path in (here / "report-1").iterdir()) == files


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/mine"], ["mine"]),
        (["runs/mine/finetune", "runs/mine/pretrain"], ["finetune", "pretrain"]),
        (["runs/a", "runs/mine/finetune", "runs/other/finetune"], ["a", "mine/finetune", "other/finetune"]),
        (["runs/a", "elsewhere/a"], ["runs/a", "elsewhere/a"]),
    ],
)
def test_runs_are_named_by_what_tells_them_apart(paths: list[str], names: list[str]) -> None:
    entries = [listing.Entry(Path(one), "run", "pretrain", "complete", 0.0) for one in paths]
    assert _distinct_names(entries) == names


def test_the_data_are_the_same_in_every_form(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", "whole", "leaky", "stopped", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert not (here / "report-1").exists()
    assert shown["differs"] == ["seed", "model.mechanism"]
    assert [run["entry"]["state"] for run in shown["runs"]] == ["complete", "complete", "stopped"]
    stopped = shown["runs"][2]
    assert stopped["steps"] == len(stopped["curve"]["losses"]) == 2
    assert stopped["entry"]["loss"] == listing.read(here / "stopped").loss
    assert call("report", "whole", "leaky", "stopped", "--out", "new") == 0
    stored = json.loads(Path("new/report.json").read_text())
    (table, *_) = (one for one in stored["sections"][0]["blocks"] if one["block"] == "table")
    losses = [row["cells"][0]["value"] for row in table["rows"]]
    assert losses == [run["entry"]["loss"] for run in shown["runs"]]
    text = Path("new/report.md").read_text()
    assert re.search(rf"\| stopped \*\*\(stopped at \d+ %\)\*\* \| {stopped['entry']['loss']:.3f} \|", text)
    assert "| leaky **(declared defect)** | 7 | zero_mask |" in text
    assert NO_CLAIM in text


def test_one_run_alone_makes_no_claim_about_others(here: Path) -> None:
    assert call("report", "whole", "--format", "html") == 0
    found, _ = page(here / "report-1")
    assert "One run: how much another seed would change" in found.text
    assert "Where they differ" not in found.text
    assert {path.name for path in (here / "report-1").iterdir()} == {"manifest.json", "report.html"}


def test_a_comparison_is_written_again_in_any_format(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, result = here / "compare-1", make_comparison(steps=20)
    study.mkdir()
    (study / "result.json").write_bytes(encode(result))
    plan = plan_of(result)
    write_bytes(study / "study.json", encode(StoredStudy("compare", msgspec.Raw(encode(plan)), {})))
    write_manifest(study, "study")
    assert call("report", "compare-1", "--format", "html") == 0
    assert capsys.readouterr().out.strip() == f"report: {Path('runs/compare-1/report.html')}"
    assert "which is better at words?" in page(study)[0].text
    write_document(document(load(study), result), here.parent / "directly", FORMATS)
    whole = {path.name: path.read_bytes() for path in (here.parent / "directly").iterdir()}
    assert len(whole) == 15  # ten tables, four other forms, and what the folder is
    found = {}
    for form in ("md", "json", "csv", "latex"):
        assert call("report", "compare-1", "--format", form, "--out", form) == 0
        found |= {path.name: path.read_bytes() for path in Path(form).iterdir()}
    assert call("report", "compare-1", "--out", "all") == 0
    found |= {path.name: path.read_bytes() for path in Path("all").iterdir()}
    assert found == whole
    (study / "result.json").write_text(json.dumps({"variants": []}))
    write_manifest(study, "study")
    assert call("report", "compare-1") == 1
    assert "result.json is damaged, or of another version" in capsys.readouterr().err


def test_a_study_that_was_stopped_shows_its_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = here / "study-1"
    shutil.copytree(here / "whole", study / "pretrain")
    write_bytes(study / "study.json", to_json({"study": "recall", "plan": {"preset": "small"}}))
    write_manifest(study, "study")
    assert call("report", "study-1", "whole") == 0
    found, _ = page(here / "report-1")
    assert "The study study-1 is not finished: attnlab resume runs/study-1" in found.text
    assert "2 runs side by side" in found.text
    write_bytes(study / "result.json", to_json({"study": "recall", "seconds": 1}))
    write_manifest(study, "study")
    assert call("report", "study-1") == 1
    assert "is damaged, or of another version" in capsys.readouterr().err


def test_runs_of_one_name_are_told_apart(here: Path) -> None:
    for place in ("a", "b"):
        shutil.copytree(here / "whole", here.parent / place / "run")
    assert call("report", "a/run", "b/run", "--out", "new") == 0
    found, _ = page(Path("new"))
    assert "a/run" in found.text
    assert "b/run" in found.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a study or some runs"),
        (("nothing",), "unknown run 'nothing'"),
        (("empty",), "neither a run nor a study"),
        (("damaged",), "neither a run nor a study"),
        (("whole", "--out", "runs/whole"), "exists already"),
        (("whole", "--format", "pdf"), "html"),
        (("unborn",), "no runs yet"),
    ],
)
def test_mistakes_end_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    (here / "empty").mkdir()
    (here / "damaged").mkdir()
    (here / "damaged/config.json").write_text("{")
    (here / "unborn").mkdir()
    write_bytes(here / "unborn/study.json", to_json({"study": "recall", "plan": {}}))
    write_manifest(here / "unborn", "study")
    before = sorted(path.name for path in here.iterdir())
    assert call("report", *arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in here.iterdir()) == before


def test_a_report_is_listed_as_what_it_is_and_can_be_deleted(here: Path) -> None:
    assert call("report", "whole", "--format", "md") == 0
    entry = listing.find("report-1")
    assert (entry.kind, entry.what) == ("output", "report")
    (here / "report-1/mine.txt").write_text("mine")
    assert listing.find("report-1").kind == "foreign"
    (here / "report-1/mine.txt").unlink()
    assert call("runs", "delete", "report-1", "--yes") == 0
    assert not (here / "report-1").exists()


def test_settings_that_are_empty_in_different_ways_do_not_differ() -> None:
    assert differing([{"a": None, "b": 1, "c": 0}, {"a": {}, "b": 2, "c": False}, {"b": 1}]) == ["b", "c"]


def test_validation_is_drawn_beside_training_with_its_lowest_loss(here: Path) -> None:
    lines = [json.loads(line) for line in (here / "whole/metrics.jsonl").read_text().splitlines()]
    for place, loss in ((0, 5.0), (1, 3.125), (2, 4.0)):
        lines[place]["dev_loss"] = loss
    (here / "whole/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reseal(here)
    assert call("report", "whole", "--out", "alone") == 0
    found, html = page(Path("alone"))
    assert "Training and validation loss" in found.text
    assert f"lowest: 3.125 at step {lines[1]['step']}" in html
    assert f"| 3.125 | {lines[1]['step']} |" in Path("alone/report.md").read_text()
    assert call("report", "whole", "leaky", "--out", "both") == 0
    assert "whole, lowest: 3.125" in page(Path("both"))[1]
    assert call("report", "leaky", "--out", "none") == 0
    assert "alidation" not in page(Path("none"))[0].text
