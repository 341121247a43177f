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


def miss(result, keep, forget):
    matrix = result.more["matrix"]
    return max(np.abs(keep @ matrix.T - keep).max(), np.abs(forget @ matrix.T).max())


def test_solved_only_within_the_tolerance():
    rng = np.random.default_rng(1)
    a = rng.normal(size=3)
    cases = [([[0.3333333333333333, 0.6666666666666666, 1]], [[1, 2, 3]]), ([a], [3 * a, [0, 0, 1]])]
    cases += [([[1, 0, 0]], [[1, gap, 0]]) for gap in 10.0 ** -np.arange(3, 17)]
    solved = 0
    for keep, forget in cases:
        result = project(keep, forget)
        solved += result.status == "solved"
        assert result.status != "solved" or miss(result, np.array(keep), np.array(forget)) <= result.bound <= 1e-6
    assert 0 < solved < len(cases)


def test_the_angle_is_not_read_off_a_wrong_matrix():
    assert project([[0.3333333333333333, 0.6666666666666666, 1]], [[1, 2, 3]]).status == "undecided"
    assert project([[0.3333333333333333, 0.6666666666666666, 1]], [[1, 2, 3]]).more["smallest_angle"] < 1e-9
    assert project([[1, 0]], [[1, 1e-5]]).more["smallest_angle"] == pytest.approx(np.degrees(1e-5))


@pytest.mark.parametrize("seed", range(10))
def test_too_many_vectors_of_all_sizes_meet(seed):
    rng = np.random.default_rng(seed)
    keep, forget = (rng.normal(size=(n, 5)) * 10.0 ** rng.uniform(-6, 6, size=(n, 1)) for n in (4, 3))
    result = project(keep, forget)
    assert result.status == "impossible"
    assert shares_vector(result.certificate, keep.tolist(), forget.tolist())
    assert 0 < result.lower_bound <= 0.5


def test_a_tolerance_can_be_chosen():
    keep, forget = [[1, 0, 0]], [[1, 1e-6, 0]]
    assert project(keep, forget, tolerance=1e-2).status == "solved"
    assert project(keep, forget, tolerance=1e-13).status == "undecided"
