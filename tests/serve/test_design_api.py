"""The routes of the view "design": the solver, the noise experiment, and sheets."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served

import attnlab
from attnlab.cli import main

_EXAMPLES = Path(__file__).parents[2] / "examples" / "sheets"
_COURSE = Path(attnlab.__file__).parent / "course" / "template" / "sheet.toml"
_LINE = {"keys": [[-1, 0], [0, 0], [1, 0], [0, 1]], "values": [[1, 0], [0, 1], [-1, 0], [0, -1]]}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def posted(client: httpx.Client, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = client.post(f"/api/design/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_value_is_selected_with_a_guaranteed_bound(client: httpx.Client) -> None:
    found = posted(client, "solve", {"task": "select", "index": 3, "tolerance": 0.02, **_LINE})["result"]
    assert found["status"] == "solved"
    assert found["bound"] <= 0.02
    assert max(abs(x - y) for x, y in zip(found["output"], _LINE["values"][3], strict=True)) <= 0.02
    assert "Key 3 leads every other key" in found["statement"]


def test_a_key_inside_the_hull_gets_a_proof_of_impossibility(client: httpx.Client) -> None:
    found = posted(client, "solve", {"task": "select", "index": 1, **_LINE})["result"]
    assert found["status"] == "impossible"
    assert found["certificate"]["weights"] == [0.5, 0, 0.5, 0]
    assert found["lower_bound"] > 0.6
    assert "0.5·k_0 + 0.5·k_2" in found["statement"]


def test_values_are_averaged_with_given_weights(client: httpx.Client) -> None:
    wanted = {"task": "average", "indices": [0, 3], "weights": [0.3, 0.7], **_LINE}
    found = posted(client, "solve", wanted)["result"]
    assert found["status"] == "solved"
    assert found["target"] == pytest.approx([0.3, -0.7])


def test_a_point_outside_of_the_hull_of_the_values_is_not_reached(client: httpx.Client) -> None:
    found = posted(client, "solve", {"task": "reach", "target": [2, 0], **_LINE})["result"]
    assert found["status"] == "impossible"
    assert found["certificate"]["type"] == "separating"


@pytest.mark.parametrize(
    "more",
    [
        {"task": "select", "index": 3},
        {"task": "average", "indices": [0, 3], "weights": [0.3, 0.7], "tolerance": 0.05, "scale": "sqrt"},
        {"task": "average"},
        {"task": "reach", "target": [-0.2, -0.3]},
    ],
)
def test_the_command_shown_computes_the_same(
    client: httpx.Client, capsys: pytest.CaptureFixture[str], more: dict[str, Any]
) -> None:
    found = posted(client, "solve", {**_LINE, **more})
    capsys.readouterr()
    main([*shlex.split(found["command"])[1:], "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert {name: printed[name] for name in ("status", "statement", "query")} == {
        name: found["result"][name] for name in ("status", "statement", "query")
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"task": "select", "index": 9, **_LINE}, "choose from 0 to 3"),
        ({"task": "reach", **_LINE}, "no target"),
        ({"task": "reach", "target": [1, 2, 3], **_LINE}, "give 2"),
        ({"task": "average", "indices": [0, 0], **_LINE}, "twice"),
        ({"task": "average", "indices": [0, 1], "weights": [1, 1], **_LINE}, "divide by their sum"),
        ({"task": "select", "keys": [[1], [1, 2]], "values": [[1], [2]]}, "make them equal"),
        ({"task": "select", "keys": [[1], [2]], "values": [[1]]}, "one value for every key"),
        ({"task": "select", "keys": [], "values": [[1]]}, "keys"),
        ({"task": "select", "keys": [["x"]], "values": [[1]]}, "keys[0][0]"),
        ({"task": "select", "keys": [[1]] * 65, "values": [[1]] * 65}, "length <= 64"),
        ({"task": "dance", **_LINE}, "task: invalid enum value 'dance'"),
        ({"task": "select", "sedonds": 1, **_LINE}, "sedonds"),
    ],
)
def test_bad_input_of_the_solver_gets_one_line(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    error = posted(client, "solve", body, 422)["error"]
    assert words in error
    assert "\n" not in error


def test_numbers_that_are_not_finite_are_refused(client: httpx.Client) -> None:
    for text in ("NaN", "Infinity", "1e999", "9" * 400):
        body = '{"task": "select", "keys": [[' + text + ']], "values": [[1]]}'
        answer = client.post("/api/design/solve", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422


def test_the_noise_experiment_has_samples_that_follow_the_closed_form(client: httpx.Client) -> None:
    found = posted(client, "noise", {})
    one, _, split = found["result"]["designs"]
    assert found["samples"][0] == pytest.approx(found["samples"][1], abs=1e-4)
    assert split["closed_form"]["failures"] < 0.2 < 0.8 < one["closed_form"]["failures"]
    for design, samples in zip(found["result"]["designs"], found["samples"], strict=True):
        assert sum(design["law"]) == pytest.approx(1)
        failed = sum(not found["low"] <= x <= found["high"] for x in samples) / len(samples)
        assert failed == pytest.approx(design["closed_form"]["failures"], abs=0.08)  # 4 standard errors


def test_settings_of_the_noise_have_limits(client: httpx.Client) -> None:
    for settings, said in (
        ({"strength": -1}, "the strength C of the queries: expected `float` >= 0.01"),
        ({"n": 4000}, "the number of keys: expected `int` <= 32"),
        ({"n": 2.5}, "the number of keys: expected `int`, got `float`"),
        ({"varying": "x"}, "the variance of key 0 along itself: expected `float`, got `str`"),
        ({"sead": 1}, "the request: object contains unknown field `sead`"),
    ):
        assert posted(client, "noise", settings, 422)["error"] == said


# Sheets


def _sheet(client: httpx.Client, name: str) -> str:
    return next(one["text"] for one in client.get("/api/design/sheets").json() if one["name"] == name)


def test_the_package_carries_the_worked_exercise(client: httpx.Client) -> None:
    assert _sheet(client, "worked") == (_EXAMPLES / "a12.toml").read_text()


def test_the_worked_exercise_is_marked_as_by_the_command(client: httpx.Client) -> None:
    text = _sheet(client, "worked")
    read = posted(client, "sheet", {"text": text})
    assert [task["name"] for task in read["tasks"]] == ["select", "identity", "average all", "average two"]
    assert read["tasks"][0]["keys"][0] == [0.47, 0.65, 0.6]
    answers = {
        "select": "10*K[0]",
        "identity": "[[1, 0, 0]]",
        "average all": "0, 0, 0",
        "average two": "(K[0] + K[1])/2",
    }
    marks = posted(client, "mark", {"text": text, "answers": answers})
    assert [one["passed"] for one in marks["tasks"]] == [True, False, True, False]
    assert (marks["earned"], marks["points"]) == (2, 4)
    assert "off by 0.1855 in coordinate 1" in marks["tasks"][3]["message"]


def test_tasks_for_files_and_code_are_shown_but_not_read(client: httpx.Client) -> None:
    text = _COURSE.read_text("utf-8")  # it names files that do not exist here
    read = posted(client, "sheet", {"text": text})
    assert {task["name"] for task in read["tasks"] if task["why_not"]} == {"recall", "attention"}
    marks = posted(client, "mark", {"text": text, "answers": {"parameters": "3323392", "recall": "/etc/passwd"}})
    assert [one["name"] for one in marks["tasks"] if one["passed"]] == ["parameters"]
    assert "3323392" not in json.dumps(read)
    assert read["has_solutions"]


def test_a_module_is_asked_for_but_not_run(client: httpx.Client) -> None:
    text = '[[task]]\nask = "module"\nmodule = "mlp"\nreference = "solution.py:MLP"\n'
    read = posted(client, "sheet", {"text": text})
    assert "mark it with attnlab check" in read["tasks"][0]["why_not"]
    assert "solution.py" not in read["for_students"]


def test_students_answer_the_sheet_without_solutions(client: httpx.Client) -> None:
    text = _sheet(client, "course")
    assert posted(client, "sheet", {"text": _COURSE.read_text("utf-8")})["for_students"] == text
    assert "3323392" not in text
    read = posted(client, "sheet", {"text": text})
    assert (read["for_students"], read["has_solutions"]) == (text, False)
    assert {task["name"] for task in read["tasks"] if task["unmarked"]} == {"parameters", "uniform loss"}
    assert not any(task["why_not"] for task in read["tasks"] if task["unmarked"])
    marks = posted(client, "mark", {"text": text, "answers": {"parameters": "3323392", "copy": "10*K[0]"}})
    assert {one["name"]: one["passed"] for one in marks["tasks"]} == {"copy": True, "average": False}
    number = '[[task]]\nask = "number"\npoints = 2\n'
    assert posted(client, "sheet", {"text": number})["tasks"][0]["text"] == "A number."
    assert (
        "no task of this sheet can be marked" in posted(client, "mark", {"text": number, "answers": {}}, 422)["error"]
    )


@pytest.mark.parametrize("path", sorted(_EXAMPLES.glob("a*[0-9].toml")), ids=lambda path: path.stem)
def test_every_example_sheet_can_be_read(client: httpx.Client, path: Path) -> None:
    assert posted(client, "sheet", {"text": path.read_text()})["tasks"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('keys = "K.csv"\n[[task]]\nask = "select"\nindex = 0', "the page reads no files"),
        ('[[task]]\nask = "reach"\nkeys = "/etc/passwd.txt"\nvalues = [[1]]\ntarget = [1]', "the page reads no files"),
        ('[[task]]\nask = "dance"', "unknown ask 'dance'"),
        ("task = 3", "no tasks"),
        ("[[task]", "is not TOML"),
        ('[[task]]\nask = "select"\nindex = 0', "'keys' is missing"),
    ],
)
def test_a_sheet_with_a_mistake_gets_one_line(client: httpx.Client, text: str, words: str) -> None:
    for path, more in (("sheet", {}), ("mark", {"answers": {}})):
        error = posted(client, path, {"text": text, **more}, 422)["error"]
        assert words in error
        assert "\n" not in error


@pytest.mark.parametrize(
    "typed", ["1\nother = 2", '"""', "K[9]", "__import__('os')", "[" * 500, "{Q = 1}", "inf", "nan"]
)
def test_whatever_is_typed_fails_its_task_only(client: httpx.Client, typed: str) -> None:
    marks = posted(
        client, "mark", {"text": _sheet(client, "worked"), "answers": {"select": typed, "average all": "0*K[0]"}}
    )
    assert [one["passed"] for one in marks["tasks"]] == [False, False, True, False]


def test_impossible_is_an_answer_that_needs_a_proof(client: httpx.Client) -> None:
    text = (_EXAMPLES / "a1.toml").read_text()
    marks = posted(client, "mark", {"text": text, "answers": {"copy": "impossible", "middle": "impossible"}})
    assert [one["passed"] for one in marks["tasks"]] == [False, True]


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("10*K[0]", "10*K[0]"),
        ("[V[0], 1]", "[V[0], 1]"),
        ("0, 5e-1, 1", [0, Decimal("0.5"), 1]),
        ("[1, 2]", [1, 2]),
        (" -5.5e-3 ", Decimal("-0.0055")),
        ("impossible", "impossible"),
        ("{A = [[1, 0]], b = 3}", {"A": [[1, 0]], "b": 3}),
        ("007", "007"),
        ('a"b', 'a"b'),
        ("[1", "[1"),
        ("1\nother = 2", "1\nother = 2"),
        ("größe 😀", "größe 😀"),
    ],
)
def test_saved_answers_are_the_file_that_the_command_marks(client: httpx.Client, typed: str, value: object) -> None:
    name = 'task "1" 😀'
    text = posted(client, "answers", {"answers": {name: typed, "empty": " "}})
    assert tomllib.loads(text, parse_float=Decimal) == {name: value}


def test_a_derivation_is_what_the_command_prints(client: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    found = posted(client, "proof", {"name": "permutation"})
    assert {"softmax", "permutation", "flops"} <= set(found["names"])
    main(["design", "derive", "permutation", "--json"])
    assert found["proof"] == json.loads(capsys.readouterr().out)
    assert "did you mean copying" in posted(client, "proof", {"name": "coping"}, status=422)["error"]
