"""The sheet that students get has every question and no solution, for all kinds of tasks."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.cli import main
from attnlab.course.handout import is_unsolved, students_sheet
from attnlab.course.sheets import KINDS, sheet_of
from attnlab.design.check import parse

EXAMPLES = Path(__file__).parents[2] / "examples" / "sheets"
SOLUTIONS = {"number": {"value"}, "predictions": {"exam"}, "module": {"reference"}}
SECRETS = st.integers(10**8, 10**12)
DECIMALS = st.decimals(allow_nan=False) | st.just(Decimal("nan"))
FORMS = ("{}", '"{}"', '"2*{}"', "[{}, 1]", '[["1 + {}"], [2]]')
NAMED = ('"hidden"', '["1", "alias"]', '"made_t @ u"')  # by a name that holds the secret


def stripped(text: str) -> str:
    return students_sheet(parse(text, Path("sheet.toml")))


def tasks_of(text: str) -> list[dict[str, Any]]:
    return parse(text, Path("sheet.toml"))["task"]


def test_every_kind_says_what_its_solution_is() -> None:
    """A new kind of task needs a decision here."""
    assert {ask: set(kind.solution) for ask, kind in KINDS.items() if kind.solution} == SOLUTIONS
    assert not any(set(kind.solution) & set(kind.question) for kind in KINDS.values())


@pytest.mark.parametrize("ask", KINDS)
@given(SECRETS, st.sampled_from([*FORMS, *NAMED]))
@settings(max_examples=12, deadline=None)
def test_no_solution_survives(ask: str, secret: int, form: str) -> None:
    secret_value = form.format(secret)
    lines = [
        f"# the solution is {secret}",
        f'title = "T"\nsolution = {secret}\nu = "hidden"\nvalue = {secret}\nexam = "{secret}"',
    ]
    lines += ["[vectors]\nu = [1, 2]\nunused = [3]"]
    if form in NAMED or form == "{}":
        lines += [f'hidden = {secret}\nalias = "hidden"\nmade = ["alias"]']
    for kind in (ask, "number"):  # only numbers are solutions that may use names
        lines += [f'[[task]]\nname = "{kind}"\nask = "{kind}"\ntext = "What?"  # {secret}\nanswer = {secret}']
        lines += [f"{name} = {secret_value}" for name in KINDS[kind].solution]
        lines += [f"{name} = 1" for name in KINDS[kind].question]
    text = stripped("\n".join(lines))
    assert str(secret) not in text
    assert stripped(text) == text
    read = parse(text, Path("sheet.toml"))
    assert read["vectors"]["unused"] == [3]
    for kind, task in zip((ask, "number"), read["task"], strict=True):
        known = {"name": kind, "ask": kind, "text": "What?"}
        known |= {"reference": "hidden.py:Reference"} if kind == "module" else {}
        assert task == known | dict.fromkeys(KINDS[kind].question, 1)
        assert is_unsolved(task) == bool(KINDS[kind].solution)


def test_names_of_questions_and_answers_are_kept() -> None:
    text = stripped("""
        [vectors]
        both = [1, 0]
        only = [0, 1]
        question = "2*both"
        free = [5, 5]
        from_only = "only + both"
        [[task]]
        ask = "number"
        value = "both @ only"
        [[task]]
        ask = "reach"
        target = "question"
        keys = [[1, 0], ["both"]]
        values = "V.csv"
    """)
    assert list(parse(text, Path("sheet.toml"))["vectors"]) == ["both", "question", "free"]


@given(st.text(), st.text(), DECIMALS, st.integers(-(10**30), 10**30), st.booleans(), st.text())
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read_again(title: str, text: str, x: Decimal, i: int, flag: bool, name: str) -> None:
    values = [x, i, flag, [text, [x]], {name: text, "b": {}}]
    task = {"ask": "layer", "text": text, "tokens": values}
    sheet = {"title": title, "task": [task]}
    read = parse(students_sheet(sheet), Path("sheet.toml"))
    if x.is_nan():
        assert read["task"][0]["tokens"][0].is_nan()
    else:
        assert read == sheet


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("a*[0-9].toml")), ids=lambda path: path.stem)
def test_questions_of_the_examples_are_unchanged(path: Path) -> None:
    text = path.read_text("utf-8")
    before, after = tasks_of(text), tasks_of(stripped(text))
    for own, shown in zip(before, after, strict=True):
        assert {name: value for name, value in own.items() if name not in SOLUTIONS.get(own["ask"], set())} == shown
    if not any(map(is_unsolved, after)):
        assert sheet_of(parse(stripped(text), path), path).title == sheet_of(parse(text, path), path).title


def test_the_command_writes_the_sheet_for_students(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.toml"
    sheet.write_text('[[task]]\nname = "größe"\nask = "number"\nvalue = 3323392  # secret\ntolerance = 0\n', "utf-8")
    main(["course", "sheet", str(sheet), str(tmp_path / "students/sheet.toml")])
    text = (tmp_path / "students/sheet.toml").read_text("utf-8")
    assert tasks_of(text) == [{"name": "größe", "ask": "number", "tolerance": 0}]
    assert "3323392" not in text
    assert "secret" not in text
    with pytest.raises(SystemExit):
        main(["course", "sheet", str(sheet), str(tmp_path / "students/sheet.toml")])
    assert "exists already" in capsys.readouterr().err
    sheet.write_text(json.dumps("no sheet"), "utf-8")
    with pytest.raises(SystemExit):
        main(["course", "sheet", str(sheet), str(tmp_path / "none.toml")])
    assert not (tmp_path / "none.toml").exists()


@pytest.mark.parametrize("definition", ['"4*n"', '"12"', "[12]", '["n", 12]'])
def test_names_that_equal_a_solution_are_hidden_however_they_are_written(definition: str) -> None:
    sheet = f'[vectors]\nn = 3\nanswer = {definition}\n[[task]]\nask = "number"\nvalue = '
    value = "[3, 12]" if definition.startswith('["') else "12"
    assert "answer" not in stripped(f"{sheet}{value}")
    assert "answer" in stripped(f"{sheet}13")
