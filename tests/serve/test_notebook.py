"""In a notebook: reports of runs, and the widget's two sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import attnlab
from attnlab.errors import UserError
from attnlab.report.document import Document, Section, Text
from attnlab.serve.bundle import bundle

KEYS, VALUES = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]


def test_a_kernel_shows_reports_and_has_the_widget(runs_root: Path) -> None:
    cells = [
        f"import attnlab\nattnlab.show({str(runs_root / 'recall-1')!r})",
        f"attnlab.show(attnlab.Run.open({str(runs_root / 'recall-1' / 'finetune')!r}))",
        f"w = attnlab.design_widget({KEYS}, {VALUES})\nw",
        "w.query = [0.0, 5.0]\nprint(w.query, w.verdict)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120).execute()
    outputs: list[Any] = [cell["outputs"][0] for cell in notebook["cells"]]
    assert "<iframe srcdoc=" in outputs[0]["data"]["text/html"]
    assert "What does a small model remember?" in outputs[0]["data"]["text/html"]
    assert "<iframe srcdoc=" in outputs[1]["data"]["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in outputs[2]["data"]
    assert outputs[3]["text"] == "[0.0, 5.0] {}\n"


def test_outside_of_a_notebook_a_report_is_printed(runs_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attnlab.show(runs_root / "recall-1")
    printed = capsys.readouterr().out
    assert "What does a small model remember?" in printed
    assert "(chart in the HTML report: " in printed
    attnlab.show(Document("test", "A title", ["Said first."], [Section("Part", [Text(["Some words."])])]))
    assert "Some words." in capsys.readouterr().out


@pytest.mark.parametrize("what", [3, "no/such/folder"])
def test_what_has_no_report_is_refused(what: Any) -> None:
    with pytest.raises(UserError, match=r"give a run|give the path"):
        attnlab.show(what)


def test_the_widget_asks_the_solver_and_refuses_in_one_line() -> None:
    widget, sent = attnlab.design_widget(KEYS, VALUES), []
    widget.send = sent.append
    asked = {"task": "select", "keys": KEYS, "values": VALUES, "index": 1, "tolerance": 0.01, "scale": "none"}
    widget._answer(widget, {"number": 1, "path": "design/solve", "body": asked}, [])
    assert sent[0]["value"]["status"] == widget.verdict["status"] == "solved"
    widget._answer(widget, {"number": 2, "path": "design/solve", "body": {**asked, "index": 9}}, [])
    assert sent[1]["number"] == 2
    assert "\n" not in sent[1]["error"]
    widget._answer(widget, {"number": 3, "path": "runs", "body": {}}, [])
    assert "only ask the solver" in sent[2]["error"]


@pytest.mark.parametrize(
    ("keys", "values", "query", "words"),
    [
        ([[1, 0]], [[1], [2]], None, "one value for each key"),
        ([[1, 0], [1]], [[1], [2]], None, "same length"),
        ([["x"]], [[1]], None, "rows of numbers"),
        ([[1, 0]], [[1]], [1], "2 numbers and the query 1"),
        ([[1, 0]], [[1]], "x", "numbers, such as"),
        ([[1, float("inf")]], [[1]], None, "finite"),
        ([], [], None, "1 to 40 rows"),
    ],
)
def test_impossible_points_are_refused(keys: Any, values: Any, query: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        attnlab.design_widget(keys, values, query)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("query", "x", "the query must be numbers"),
        ("query", [1], "the keys have 2 numbers and the query 1"),
        ("query", [1, 2, 3], "the keys have 2 numbers and the query 3"),
        ("key_points", [[1, 0]] * 2, "2 keys and 3 values"),
        ("key_points", [[1], [2], [3]], "the keys have 1 numbers and the query 2"),
        ("value_points", 5, "values must be rows of numbers"),
    ],
)
def test_what_is_set_is_checked_like_what_is_given(name: str, value: Any, words: str) -> None:
    widget = attnlab.design_widget(KEYS, VALUES)
    before = {one: getattr(widget, one) for one in ("key_points", "value_points", "query")}
    with pytest.raises(UserError, match=words) as refused:
        setattr(widget, name, value)
    assert "\n" not in str(refused.value)
    assert before == {one: getattr(widget, one) for one in before}


def test_points_can_be_added_and_removed_together() -> None:
    widget = attnlab.design_widget(KEYS, VALUES)
    with widget.hold_trait_notifications():
        widget.key_points, widget.value_points, widget.query = [[1, 0, 0]] * 2, [(1,), (2,)], (3, 0, 0)
    assert (widget.key_points, widget.value_points, widget.query) == ([[1, 0, 0]] * 2, [[1], [2]], [3, 0, 0])
    widget.set_state({"key_points": KEYS, "value_points": VALUES, "query": [0, 1]})  # as the page sends it
    assert widget.query == [0, 1]


def test_the_bundle_is_one_module_that_imports_nothing() -> None:
    whole = bundle("widget.js")
    lines = whole.splitlines()
    assert not [line for line in lines if line.startswith("import ")]
    assert [line for line in lines if line.startswith("export ")] == ["export default m_widget_js.default;"]
