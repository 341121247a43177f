"""`attnlab calibrate` and `attnlab ask` as a user gives them, and what `run` says against mistakes with the study trust."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from attnlab.corpora import load_questions
from attnlab.store.runs import Run
from verbs import call

QUESTION = load_questions("people:120:test")[0]


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Path:
    shutil.copytree(trained.path, tmp_path / "my run")
    return tmp_path / "my run"


def test_calibrate_then_ask(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ask", run, QUESTION.question) == 0
    before = capsys.readouterr().out
    assert "Not calibrated" in before
    assert f"attnlab calibrate '{run}'" in before
    assert call("calibrate", run) == 0
    told = capsys.readouterr().out
    assert told.startswith("9 questions that it was not trained on, ")
    assert "answering everything would be wrong in " in told
    assert "on other questions than the fit" in told
    assert "\nA risk of at most 10 % could not be certified" in told
    assert call("ask", run, QUESTION.question, "--max-risk", "0.2", "--top", "2") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no answer")
    assert "could not be certified" in shown
    listed = shown.split("likeliest:\n")[1].splitlines()
    assert len(listed) == 3
    assert listed[-1].endswith("(anything else, or nothing)")
    assert "  read: " in shown


def test_for_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("calibrate", run, "--questions", "people:120:calibration", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["questions"], told["source"], len(told["rules"])) == (9, "people:120:calibration", 3)
    assert call("ask", run, QUESTION.question, "--max_risk", "0.2", "--top", "3", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["max_risk"] == 0.2
    assert len(answer["answers"]) == 3
    assert answer["answers"][0] == {"answer": answer["answer"], "probability": answer["probability"]}
    assert answer["abstains"]
    assert QUESTION.answer in answer["documents"][0]


def test_names_that_nobody_has(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ask", run, "Where was Zaphod Beeblebrox born?") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no answer: never seen (it would have said ")
    assert "the most similar names that it knows" in shown


def test_mistakes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (
        (("calibrate", run, "--questions", "people:120:train"), "were trained on"),
        (("calibrate", tmp_path / "absent"), "no such run folder"),
        (("ask", run, "Where?", "--max-risk", "1"), "--max-risk must lie between 0 and 1"),
        (("ask", run, "Where?", "--top", "0"), "--top must be at least 1"),
        (("run", "recall", "--max-risk", "0.1"), "--max-risk is for trust, not for recall"),
        (("run", "trust", "--corpus", "people:120"), "--corpus and --facts go together"),
        (("run", "trust", "--exam", "people:test"), "--corpus and --facts go together"),
        (("run", "trust", "--seeds", "3"), "--seeds is for "),
        (("run", "trust", "--quick", "--max-risk", "2", "--out", tmp_path / "study"), "--max-risk must lie"),
    )
    for arguments, message in wrong:
        assert call(*arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "study").exists()
