import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.design import project
from attnlab.design.verifier import shares_vector
from attnlab.errors import UserError


@given(st.integers(0, 10_000))
def test_the_matrix_keeps_and_forgets(seed):
    rng = np.random.default_rng(seed)
    a, b = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    keep, forget = rng.normal(size=(a, 8)), rng.normal(size=(b, 8))
    result = project(keep, forget)
    assert result.status == "solved"
    mixed = rng.normal(size=a) @ keep
    assert result.more["matrix"] @ (mixed + rng.normal(size=b) @ forget) == pytest.approx(mixed, abs=1e-8)
    assert result.error["float64"] <= result.bound


def test_orthonormal_bases_give_the_plain_product():
    keep, forget = np.eye(4)[:2], np.eye(4)[2:3]
    result = project(keep, forget)
    assert (result.more["matrix"] == keep.T @ keep).all()
    assert result.more["norm"] == pytest.approx(1)


def test_the_norm_is_one_over_the_sine_of_the_angle():
    for degrees in (90, 30, 5):
        angle = np.radians(degrees)
        result = project([[1, 0, 0]], [[np.cos(angle), np.sin(angle), 0]])
        assert result.more["norm"] == pytest.approx(1 / np.sin(angle))
        assert result.more["smallest_angle"] == pytest.approx(degrees)


def test_subspaces_that_meet_are_refused_with_a_common_vector():
    keep, forget = [[1, 2, 0], [0, 1, 0.1]], [[1, 3, 0.1]]
    result = project(keep, forget)
    assert result.status == "impossible"
    assert shares_vector(result.certificate, keep, forget)
    assert not shares_vector({"keep": ["0", "0"], "forget": ["0"]}, keep, forget)
    assert not shares_vector({**result.certificate, "forget": ["2"]}, keep, forget)


def test_too_many_vectors_always_meet():
    rng = np.random.default_rng(0)
    assert project(rng.integers(-5, 6, size=(2, 3)), rng.integers(-5, 6, size=(2, 3))).status == "impossible"


@pytest.mark.parametrize(
    ("keep", "forget", "words"),
    [([[1, 0]], [[1, 0, 0]], "same width"), ([[1, 0, 0], [2, 0, 0]], [[0, 1, 0]], "leave it out")],
)
def test_mistakes(keep, forget, words):
    with pytest.raises(UserError, match=words):
        project(keep, forget)
