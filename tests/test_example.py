"""The run that comes with attnlab: small and complete, answers held-out questions as calibrated, and is never written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnlab import Run, load_questions
from attnlab.corpora import Question
from attnlab.errors import UserError
from attnlab.serve.ask import EXAMPLE_QUESTION, MOST_SHOWN, RunQuery, Steps, open_run, steps
from attnlab.serve.routes import Options
from attnlab.store.folders import verify
from attnlab.store.listing import find, may_delete
from attnlab.store.runs import EXAMPLE
from attnlab.trust import Answer, Oracle, ask, calibrate


def files() -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in EXAMPLE.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def tested() -> list[Question]:
    """The questions that neither trained nor calibrated it: tools/make_example.py."""
    facts = Run(EXAMPLE).record.facts
    assert facts is not None
    return list(load_questions(facts.source.replace("train", "test")))[1::2]


def answers(tested: list[Question]) -> list[Answer]:
    oracle = Oracle("example")
    return [oracle.answer(item.question, 0.1) for item in tested]


def test_it_answers_a_held_out_question_anywhere_and_writes_nothing(
    tested: list[Question], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = files()
    verify(EXAMPLE)
    assert sum(size for size, _ in before.values()) <= 1_000_000
    expected = {item.question: item.answer for item in tested}[EXAMPLE_QUESTION]
    answer = ask("example", EXAMPLE_QUESTION)
    assert (answer.answer, answer.verdict, answer.abstains) == (expected, "recalled and supported", False)
    assert expected in answer.quote
    options = Options(tmp_path / "none")
    about = open_run(options, RunQuery("example"))
    assert about.calibrated
    assert about.questions[0] == EXAMPLE_QUESTION
    shown = steps(options, Steps("example", EXAMPLE_QUESTION))
    assert "".join(shown.tokens[shown.given :]).strip() == expected
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="is not changed"):
        calibrate("example", tested)
    with pytest.raises(UserError, match="is not deleted"):
        may_delete(find("example"))
    assert files() == before
    with pytest.raises(UserError, match=f"up to {MOST_SHOWN} tokens"):
        steps(options, Steps("example", "a " * 300, mode="continue"))


def test_it_keeps_its_promise_on_questions_that_it_was_not_calibrated_with(tested: list[Question]) -> None:
    given = [(answer, item) for answer, item in zip(answers(tested), tested, strict=True) if not answer.abstains]
    wrong = [item.question for answer, item in given if answer.answer != item.answer]
    assert len(given) >= 15
    assert len(wrong) <= 0.1 * len(given)
    stranger = ask("example", "Where was Ada Lovelace born?")
    assert (stranger.verdict, stranger.abstains) == ("never seen", True)


def test_a_folder_of_that_name_is_not_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example").mkdir()
    with pytest.raises(UserError, match=r"manifest\.json"):
        Run.open("example")
