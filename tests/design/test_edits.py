import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnlab.design import edit_key
from attnlab.design.attention import softmax
from attnlab.errors import UserError


def output(keys, values, query, j, key):
    keys = keys.copy()
    keys[j] = key
    return softmax(keys @ query) @ values


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.sampled_from([None, 1.0]), st.booleans())
@example(150, 1.0, False)  # one dimension: rounding across was once blown up to the norm
def test_every_verdict_is_true(seed, norm, own):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    keys, values, query = rng.normal(size=(n, d)), rng.normal(size=(n, 2)), 3 * rng.normal(size=d)
    j = int(rng.integers(n))
    others = np.arange(n) != j
    without = softmax(keys[others] @ query) @ values[others] if n > 1 else values[0]
    share = rng.uniform(0.05, 0.95)
    target = values[j] if own else (1 - share) * without + share * values[j] + 0.05 * rng.normal(size=2)
    result = edit_key(keys, values, query, j, target, norm=norm, tolerance=0.05)
    if result.status == "solved":
        key = result.more["key"]
        assert np.abs(output(keys, values, query, j, key) - target).max() <= result.bound <= 0.05
        if norm is not None:
            assert np.linalg.norm(key) == pytest.approx(norm)
        return
    assert result.status == "impossible" or (d == 1 and norm is not None)
    for _ in range(300):
        key = rng.normal(size=d) * rng.choice([0.3, 3, 30])
        key = key if norm is None else key * norm / np.linalg.norm(key)
        assert np.abs(output(keys, values, query, j, key) - target).max() >= max(result.lower_bound, 0.05) - 1e-9


def test_the_nearest_key_is_the_present_one_when_it_fits():
    keys = np.array([[5.0, 0], [0, 1]])
    assert edit_key(keys, np.eye(2), [2, 0], 0).more["moved_by"] == 0


def test_norm_one_limits_a_weak_query():
    keys, values = np.zeros((3, 2)), np.eye(3)
    weak, strong = edit_key(keys, values, [1, 0], 0, norm=1), edit_key(keys, values, [10, 0], 0, norm=1)
    assert weak.status == "impossible"
    assert weak.lower_bound == pytest.approx(1 - np.e / (np.e + 2), abs=1e-6)
    assert strong.status == "solved"


def test_a_zero_query_reads_no_key():
    result = edit_key(np.eye(2), np.eye(2), [0, 0], 0)
    assert result.status == "impossible"
    assert result.lower_bound == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"query": [1, 2, 3]}, "give 2"), ({"norm": 0.0}, "positive"), ({"index": 5}, "0 to 1")],
)
def test_mistakes(arguments, words):
    given_ = {"query": [1, 2], "index": 0} | arguments
    with pytest.raises(UserError, match=words):
        edit_key(np.eye(2), np.eye(2), **given_)


def test_the_norm_holds_where_the_weight_saturates():
    result = edit_key([[100, 0], [0, 0]], np.eye(2), [100, 0], 0, norm=1)
    assert result.status == "solved"
    assert np.linalg.norm(result.more["key"]) == pytest.approx(1)
    assert edit_key([[1, 0], [-900, 0]], np.eye(2), [1, 0], 0, norm=1).status == "solved"


def test_scores_that_cancel_prove_nothing_false():
    keys, values = [[1.1, 3.3], [0, 0], [0, 0]], [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]
    result = edit_key(keys, values, [3e15, -1e15], 2, [0.5, 0.0], tolerance=1e-3)
    assert result.status != "impossible"


def test_a_bound_beyond_the_tolerance_is_not_solved():
    rng, statuses = np.random.default_rng(0), []
    for size in (1.0, 1e3, 1e6, 1e8):
        keys, values, query = size * rng.normal(size=(4, 3)), rng.normal(size=(4, 2)), size * rng.normal(size=3)
        for j in range(4):
            result = edit_key(keys, values, query, j, tolerance=1e-9)
            assert result.status != "solved" or result.bound <= 1e-9
            statuses.append(result.status)
    assert {"solved", "undecided"} <= set(statuses)


def test_a_direction_of_zero_is_no_proof():
    result = edit_key([[1, 0], [0, 1]], [[1], [1]], [1, 1], 0, [1 + 5e-9], norm=1, tolerance=1e-10)
    assert result.status in ("undecided", "impossible")
