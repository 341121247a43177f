from fractions import Fraction
from math import e

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.design.attention import Problem, log_sum_exp, softmax
from attnlab.design.exact import binary


def problem_of(keys, values, scale="none"):
    return Problem(binary(keys), binary(values), binary(values[:1]), Fraction(1, 10), scale)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_weights_are_a_distribution(scores):
    weights = softmax(np.array(scores))
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)


def test_large_scores_do_not_overflow():
    assert softmax(np.array([1e308, 0.0])).tolist() == [1.0, 0.0]
    assert log_sum_exp(np.array([1e308, 0.0])) == 1e308


def test_scale_sqrt_divides_by_the_root_of_the_width():
    keys, values, query = np.eye(4), np.eye(4), np.array([2.0, 0, 0, 0])
    weights = problem_of(keys, values, "sqrt").weights(query)
    assert weights[0] == pytest.approx(e / (e + 3))


@given(st.integers(0, 10_000))
def test_the_guarantee_covers_exact_arithmetic(seed):
    rng = np.random.default_rng(seed)
    n, d, m = rng.integers(1, 6, size=3)
    keys = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-2, 5)
    values = rng.normal(size=(n, m))
    query = rng.normal(size=d)
    problem = problem_of(keys, values)
    scores = [sum((Fraction(k) * Fraction(q) for k, q in zip(key, query, strict=True)), Fraction(0)) for key in keys]
    raised = [np.exp(np.longdouble(float(s - max(scores)))) for s in scores]
    exact = max(
        abs(sum(r * v for r, v in zip(raised, values[:, c], strict=True)) / sum(raised) - values[0, c])
        for c in range(m)
    )
    assert float(exact) <= problem.guaranteed(query)


@given(st.integers(0, 10_000))
def test_points_score_as_keys_do(seed):
    rng = np.random.default_rng(seed)
    n, d = rng.integers(2, 8, size=2)
    problem = problem_of(rng.normal(size=(n, d)) * 1e3, np.eye(n), "sqrt")
    z = rng.normal(size=problem.points.shape[1])
    scores = problem.factor * problem.keys @ problem.query(z) - problem.points @ z
    assert np.ptp(scores) < 1e-8
