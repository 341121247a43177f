import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.design.optimize import least_distance, linear_program


@given(st.integers(0, 10_000))
def test_the_least_point_is_feasible_and_least(seed):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 6))
    rows, inside = rng.normal(size=(int(rng.integers(1, 15)), d)), rng.normal(size=d)
    least = rows @ inside - rng.uniform(0.1, 1, size=len(rows))
    z = least_distance(rows, least)
    assert z is not None
    assert (rows @ z >= least - 1e-8).all()
    # a point of a convex set is its least one when no other point makes an acute angle less than its own square
    others = rng.normal(size=(200, d)) + inside
    feasible = others[(others @ rows.T >= least).all(axis=1)]
    assert (feasible @ z >= z @ z - 1e-6).all()
    assert inside @ z >= z @ z - 1e-6


def test_contradictions_have_no_point():
    assert least_distance(np.array([[1.0], [-1.0]]), np.array([1.0, 1.0])) is None
    assert least_distance(np.zeros((1, 2)), np.ones(1)) is None


def test_nothing_asked_is_zero():
    assert least_distance(np.ones((2, 2)), -np.ones(2)).tolist() == [0, 0]


def test_multipliers_prove_the_value():
    cost, rows, right = np.array([-1.0, -2.0]), np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([4.0, 3.0])
    optimum = linear_program(cost, A_ub=rows, b_ub=right, bounds=(0, None))
    assert optimum is not None
    assert float(cost @ optimum.x) == pytest.approx(-7)
    assert optimum.multipliers @ right == pytest.approx(7)


def test_an_impossible_program_is_none():
    assert linear_program(np.ones(1), A_ub=np.array([[1.0]]), b_ub=np.array([-1.0]), bounds=(0, None)) is None
