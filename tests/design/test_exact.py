from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.design.exact import rational, settle, solve

small = st.fractions(-5, 5, max_denominator=7)


def test_a_float_is_the_decimal_it_was_typed_as():
    assert rational(0.1) == Fraction(1, 10)
    assert rational(1e-300) == Fraction(1, 10**300)


@settings(max_examples=50)
@given(st.lists(st.lists(small, min_size=3, max_size=3), min_size=1, max_size=5), st.data())
def test_solutions_are_exact(columns, data):
    x = data.draw(st.lists(small, min_size=len(columns), max_size=len(columns)))
    right = [sum((a * c[r] for a, c in zip(x, columns, strict=True)), Fraction(0)) for r in range(3)]
    vector = solve(columns, right, np.array([float(a) for a in x]))
    assert vector is not None
    assert [sum((a * c[r] for a, c in zip(vector, columns, strict=True)), Fraction(0)) for r in range(3)] == right


def test_an_inconsistent_system_has_no_solution():
    column = [[Fraction(1), Fraction(1)]]
    assert solve(column, [Fraction(1), Fraction(2)], np.ones(1)) is None


def test_what_only_nearly_fits_is_measured():
    tiny = Fraction(1, 10**17)
    columns = [[Fraction(1), tiny, Fraction(1)], [Fraction(-1), tiny, Fraction(1)]]
    x, off = settle(columns, [Fraction(0), Fraction(0), Fraction(1)], np.array([0.5, 0.5]))
    assert sum(x) == 1
    assert 0 < off < 1e-15
