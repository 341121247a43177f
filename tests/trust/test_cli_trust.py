"""`attnlab calibrate` and `attnlab ask` as a user gives them, and what `run` says against mistakes with the study trust."""

from __future__ import annotations

import io
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
    before = capsys.readouterr()
    assert before.err.startswith("note: Not calibrated")
    assert before.err.rstrip().endswith(f"attnlab calibrate '{run}'")
    assert before.out.count("\n") == 1
    assert call("calibrate", run) == 0
    told = capsys.readouterr().out
    assert told.startswith("9 questions that it was not trained on, ")
    assert "answering everything would be wrong in " in told
    assert "on other questions than the fit" in told
    assert "\nA risk of at most 10 % could not be certified" in told
    assert f"ask it: attnlab ask '{run}'\n" in told
    assert call("ask", run, QUESTION.question, "--max-risk", "0.2", "--top", "2", "--explain") == 0
    shown = capsys.readouterr().out
    first = shown.splitlines()[0]
    assert first.startswith("no answer (guess: a risk of 20 % cannot be certified): “")
    assert f"{QUESTION.answer}" in first  # of its source
    assert "could not be certified" in shown
    listed = shown.split("likeliest:\n")[1].splitlines()
    assert len(listed) == 3
    assert listed[-1].endswith("(anything else, or nothing)")


def test_without_a_question_lines_are_read_until_the_end(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [QUESTION.question, "  ", "Where was Zaphod Beeblebrox born?", QUESTION.question]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(asked)))
    assert call("ask", run) == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == 3
    assert answers[0] == answers[2] != answers[1]
    assert "never seen" in answers[1]


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
    assert shown.startswith("no answer (never seen); similar names: ")
    assert "%" not in shown
    assert call("ask", run, "Where was Zaphod Beeblebrox born?", "--explain") == 0
    shown = capsys.readouterr().out
    assert "the most similar names that it knows" in shown
    assert "likeliest" not in shown
    assert call("ask", run, "Where was Zaphod Beeblebrox born?", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["probability"], answer["answers"]) == (None, [])


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


def test_look_reads_a_question_as_one(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, (more, last) in enumerate({(): "⁇", ("--no-question",): "?", ("--question",): "⁇"}.items()):
        assert call("look", run, QUESTION.question, *more, "--out", tmp_path / f"look-{place}", "--json") == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["tokens"][-1].endswith(last)
        assert ("note: read as a question" in shown.err) == (more == ())
    assert call("look", run, "Jesus Aguilar ⁇", "--out", tmp_path / "look") == 0
    shown = capsys.readouterr().out
    assert "%  “" in shown
    assert "“⁇” ends a question or an answer" in shown
