from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.design.expressions import evaluate
from attnlab.errors import UserError

NAMES = {"K": np.arange(6.0).reshape(3, 2), "u": np.array([1.0, 2.0]), "C": np.array(10.0)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10*(K[0]+K[1])/2", [10, 20]),
        ("-u", [-1, -2]),
        ("C*u**2", [10, 40]),
        ("K @ u", [2, 8, 14]),
        ("u ^ u", [[1, 2], [2, 4]]),
        ("K_t[0]", [0, 2, 4]),
        ("K[-1, 0]", 4),
        ("[1, 2.5e1]", [1, 25]),
        ("+1e5", 1e5),
    ],
)
def test_arithmetic(text, value):
    assert evaluate(text, NAMES).tolist() == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__import__('os')", "calls a function"),
        ("K.T", "attribute"),
        ("K.__class__", "attribute"),
        ("(lambda: 1)()", "calls a function"),
        ("K[0", "not an expression"),
        ("", "not an expression"),
        ("'a'*9", "not allowed"),
        ("True", "not allowed"),
        ("1 if 1 else 2", "not allowed"),
        ("[x for x in K]", "not allowed"),
        ("K[0:1]", "whole number"),
        ("K['a']", "whole number"),
        ("K[9]", "check shapes"),
        ("K + [1, 2, 3]", "check shapes"),
        ("k[0]", "choose from C, K, u"),
        ("1/0", "not finite"),
        ("9**9**9**9", "not finite"),
        ("(" * 3000, "at most"),
        ("(" * 900 + "1" + ")" * 900, "not an expression"),
        ("K := 1", "not an expression"),
    ],
)
def test_anything_else_is_one_line(text, words):
    with pytest.raises(UserError, match=words) as caught:
        evaluate(text, NAMES)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="Ku[]()+-*/@^._0123456789e' ,", max_size=30))
def test_no_text_escapes(text):
    with suppress(UserError):
        assert all(isinstance(x, Fraction) for x in evaluate(text, NAMES).flat)


@pytest.mark.parametrize("text", ["^".join(["K"] * 9), "[" + ",".join(["B"] * 3) + "]", "B ^ K", "B_t @ B", "c + c_t"])
def test_nothing_grows_beyond_a_million_numbers(text):
    shapes = {"K": (10, 2), "B": (1, 400_000), "c": (1001, 1)}
    with pytest.raises(UserError, match="stay below"):
        evaluate(text, {name: np.full(shape, Fraction(1), dtype=object) for name, shape in shapes.items()})


@pytest.mark.parametrize("text", ["1" + "0" * 400, "K[\n0\n]\n.T", "K[0]\n+\n[1,\n2,\n3]", "K[1" + "0" * 400 + "]"])
def test_errors_are_one_line(text):
    with pytest.raises(UserError) as caught:
        evaluate(text, NAMES)
    assert "\n" not in str(caught.value)
