import json
from fractions import Fraction
from math import log

import numpy as np
import pytest
from scipy.optimize import linprog

from attnlab.design import when
from attnlab.design.check import Task
from attnlab.design.exact import dot, minimise
from attnlab.errors import UserError

TRIANGLE = [[0, 0], [1, 0], [0, 1]]
LEAD = log(99)


def fractions(rows):
    return [[Fraction(str(x)) for x in row] for row in rows]


def test_the_exact_linear_program_agrees_with_a_float_one_and_proves_itself():
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(200):
        d, m = rng.integers(1, 4), rng.integers(1, 7)
        rows, least, cost = (rng.integers(-2, 3, size=shape) for shape in ((m, d), m, d))
        exact, b, (c,) = fractions(rows), fractions([least])[0], fractions([cost])
        program = minimise(c, exact, b)
        if program.x is not None:
            assert all(dot(row, program.x) >= y for row, y in zip(exact, b, strict=True))
            best = linprog(cost, A_ub=-rows, b_ub=-least, bounds=[(None, None)] * d).fun
            assert float(dot(c, program.x)) == pytest.approx(best, abs=1e-8)
            kinds.add("point")
        elif program.ray is not None:
            assert dot(c, program.ray) < 0
            assert all(dot(row, program.ray) >= 0 for row in exact)
            kinds.add("ray")
        else:
            y = program.multipliers
            assert min(y) >= 0
            assert not any(dot(y, list(column)) for column in zip(*exact, strict=True))
            assert dot(y, b) > 0
            kinds.add("none")
    assert kinds == {"point", "ray", "none"}


def test_the_linear_conditions_enclose_the_exact_set():
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(5, 3))
    keys[0] *= 4
    condition = json.loads(when(keys, 0, weight=Fraction(9, 10), scale="sqrt").to_json())
    rows, inside = np.array(condition["rows"]), 0
    for query in rng.normal(size=(300, 3)) * 5:
        leads = rows @ query
        reached = 1 / (1 + np.exp(-leads).sum()) >= 0.9
        assert (
            reached == json.loads(when(keys, 0, weight=Fraction(9, 10), query=query, scale="sqrt").to_json())["holds"]
        )
        assert reached or leads.min() < condition["sufficient"]
        assert not reached or leads.min() >= condition["necessary"]
        inside += reached
    assert 10 < inside < 290


def test_a_key_in_the_hull_is_refused_with_its_combination():
    condition = when([["-1"], ["0.5"], ["1"]], 1)
    assert condition.status == "impossible"
    assert condition.selection.combination == {0: Fraction(1, 4), 2: Fraction(3, 4)}
    assert when([[1, 2]], 0).statement().startswith("There is one key")


def marked(kind, answer, keys=TRIANGLE, index=0, **settings):
    own = {"name": "x", "ask": "condition", "index": index, "kind": kind, "keys": keys} | settings
    return Task("x", {}, own, {}, None).mark(answer, {})


def both(lead):
    """d_1 >= lead and d_2 >= lead for key 0 of the triangle."""
    return {"A": [[-1, 0], [0, -1]], "b": Fraction(lead)}


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        ("sufficient", both(LEAD + log(2) + 0.01), ""),
        ("sufficient", both(LEAD + log(2) - 0.01), "too small a lead"),  # caught at a corner
        ("sufficient", {"A": [[-1, 0]], "b": 100}, "the lead over key 2 may become negative"),
        ("sufficient", {"A": [[-1, 0], [1, 0]], "b": 1}, "no query satisfies"),
        ("sufficient", {"A": [[-1, 0], [-1, 0], [0, -1], [-1, -1]], "b": [5, 6, 5, 99]}, ""),
        ("necessary", both(LEAD - 0.01), ""),
        ("necessary", both(LEAD + 0.01), "does not imply it: condition 0"),
        (
            "necessary",
            {"A": [[-1, -1]], "b": 2 * LEAD},
            "it is necessary, but this task also asks that the key leads: key 1 may lead",
        ),
        ("necessary", {"A": [[-1, 0], [0, -1], [-1, -1]], "b": [0, 0, Fraction(2 * (LEAD + log(2)) - 0.001)]}, ""),
        (
            "necessary",
            {"A": [[-1, 0], [0, -1], [-1, -1]], "b": [0, 0, Fraction(2 * (LEAD + log(2)) + 0.001)]},
            "condition 2",
        ),
        ("necessary", {"A": [[1, 0]], "b": 0}, "condition 0 does not follow"),
        ("sufficient", {"A": [[1, 2, 3]], "b": 0}, "width of a key"),
        ("sufficient", [1, 2], "as a table with A"),
    ],
)
def test_conditions_are_judged_exactly_with_a_counterexample(kind, answer, words):
    plain = answer if isinstance(answer, list) else {k: _plain(v) for k, v in answer.items()}
    outcome = marked(kind, plain)
    assert outcome.passed == (not words), outcome.message
    assert words in outcome.message
    if "at q = " in outcome.message and "is necessary, but" not in outcome.message:
        weight = float(outcome.message.split("the weight is ")[1])
        assert (weight < 0.99) == (kind == "sufficient")


def _plain(x):
    """Numbers as a TOML file gives them: decimals or whole numbers."""
    from decimal import Decimal

    if isinstance(x, list):
        return [_plain(y) for y in x]
    return x if isinstance(x, int) else Decimal(repr(float(x)))


def test_random_conditions_against_samples():
    rng = np.random.default_rng(2)
    verdicts = set()
    for _ in range(60):
        keys = rng.integers(-3, 4, size=(4, 2)).tolist()
        rows, least = rng.integers(-3, 4, size=(3, 2)), rng.integers(0, 6, size=3)
        weight = _plain(0.8)
        selection = when(keys, 0, weight=Fraction(4, 5)).selection
        if selection.combination is not None:
            continue
        outcome = marked("sufficient", {"A": rows.tolist(), "b": least.tolist()}, keys, weight=weight)
        queries = rng.normal(size=(4000, 2)) * rng.choice([1, 5, 25], size=(4000, 1))
        allowed = queries[(queries @ rows.T >= least).all(axis=1)]
        leads = allowed @ np.array([[float(x) for x in row] for row in selection.differences]).T
        if outcome.passed:
            assert (np.exp(-leads).sum(axis=1) <= 0.25 + 1e-9).all()
        verdicts.add(outcome.message.split(":")[0])
    assert len(verdicts) == 2


def test_impossible_is_right_only_in_the_hull():
    line = [[-1], [0], [1]]
    assert marked("sufficient", "impossible", line, 1).passed
    assert not marked("sufficient", "impossible", line, 2).passed
    assert "impossible" in marked("sufficient", {"A": [[1]], "b": 3}, line, 1).message


@pytest.mark.parametrize("settings", [{"kind": "enough"}, {"weight": 1}, {"index": 9}])
def test_mistakes_of_the_sheet(settings):
    with pytest.raises(UserError):
        marked(**({"kind": "sufficient", "answer": {}} | settings))
