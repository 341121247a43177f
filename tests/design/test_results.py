import json
from io import StringIO

import numpy as np
from rich.console import Console

from attnlab.design import select
from attnlab.design.results import Result, number, vector


def shown(result):
    console = Console(file=StringIO(), width=100)
    console.print(result)
    return console.file.getvalue()


def test_numbers_for_reading():
    assert number(-0.0) == "0"
    assert number(0.123456) == "0.1235"
    assert number(float("nan")) == "not finite"
    assert vector(np.arange(20.0)) == "[0, 1, 2, 3, ..., 18, 19]"


def test_json_has_no_nan():
    result = Result(task="t", status="undecided", statement="s", margins=np.array([np.nan, np.inf, 1.0]))
    assert json.loads(result.to_json())["margins"] == [None, None, 1.0]


def test_many_keys_are_cut_and_it_is_said():
    keys = np.random.default_rng(0).normal(size=(40, 20))
    text = shown(select(keys, np.eye(40), 0))
    assert "... the heaviest 12 of 40" in text
    assert text.splitlines()[0] == "select value 0: solved"


def test_a_notebook_shows_the_verdict_and_escapes_text():
    result = select(np.eye(2), np.eye(2), 0)
    page = result._repr_html_()
    assert "solved" in page
    assert "<td" in page
    assert "&lt;b&gt;" in Result(task="<b>", status="solved", statement="")._repr_html_()


def test_bounds_are_rounded_to_the_side_on_which_they_stay_true():
    from attnlab.design.results import at_least, at_most

    for x in (0.123456, 1e-9 / 3, 12345.6, 0.1, 2.0):
        assert float(at_least(x)) <= x <= float(at_most(x))
    assert (at_least(0.16669), at_most(0.16661)) == ("0.1666", "0.1667")
