import numpy as np
import pytest

from attnlab.design import layer
from attnlab.design.attention import softmax
from attnlab.design.verifier import splits_equal_rows
from attnlab.errors import UserError

BETA = 3.0
U = BETA * np.eye(4)
TOKENS = np.array([U[3] + U[1], U[0], U[2] + U[1]])
WANTED = np.array([U[1] - U[2], U[1], [np.nan] * 4])


def run(x, result, scale=1.0):
    w_q, w_k, w_v = (result.more[name] for name in ("W_Q", "W_K", "W_V"))
    return softmax(scale * (x @ w_q.T) @ (x @ w_k.T).T) @ x @ w_v.T


@pytest.mark.parametrize(("width", "scale"), [(None, "none"), (1, "none"), (1, "sqrt"), (3, "sqrt")])
def test_a_layer_made_to_order(width, scale):
    result = layer(TOKENS, WANTED, width=width, scale=scale)
    assert result.status == "solved"
    factor = 1.0 if scale == "none" else 1 / np.sqrt(result.more["width"])
    assert np.abs(run(TOKENS, result, factor)[:2] - WANTED[:2]).max() <= result.bound <= 0.01
    assert result.more["width"] == (width or 2)
    assert result.more["sufficient_width"] == 1


def test_a_tie_goes_to_the_choice_that_attends():
    assert layer(TOKENS, WANTED).more["wanted_weights"].tolist() == [[0, 0, 1], [1, 0, 0]]


def test_the_identity_on_eight_tokens():
    wide = layer(np.eye(8), np.eye(8))
    assert (wide.more["width"], wide.more["sufficient_width"]) == (7, 2)
    narrow = layer(np.eye(8), np.eye(8), width=2)
    assert narrow.status == "solved"
    assert np.abs(run(np.eye(8), narrow) - np.eye(8)).max() <= 0.01


def test_weights_that_are_given_are_kept():
    weights = np.array([[0.5, 0.5, 0], [0.2, 0.3, 0.5], [0, 0, 1]])
    result = layer(np.eye(3), np.eye(3), weights=weights)
    assert result.status == "solved"
    assert np.abs(result.weights - weights).max() < 0.01
    assert np.abs(run(np.eye(3), result) - np.eye(3)).max() <= 0.01


def test_equal_tokens_cannot_differ():
    x, y = [[1, 0], [1, 0]], [[1, 0], [0, 1]]
    result = layer(x, y)
    assert result.status == "impossible"
    assert result.certificate["type"] == "equal_rows"
    assert splits_equal_rows(result.certificate, x, y, 0.01)
    assert not splits_equal_rows(result.certificate, [[1, 0], [1, 0.5]], y, 0.01)
    assert not splits_equal_rows(result.certificate, x, y, 0.5)


def test_outputs_outside_the_range_of_the_weights():
    weights = [[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0]]
    result = layer([[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 1], [5, 5]], weights=weights)
    assert result.status == "impossible"
    assert result.certificate["type"] == "range"
    assert result.lower_bound == pytest.approx(2.25)


@pytest.mark.parametrize(
    ("x", "y", "more", "words"),
    [
        (np.eye(2), np.eye(3), {}, "one row per token"),
        (np.eye(2), np.full((2, 2), np.nan), {}, "every output is free"),
        (np.eye(2), np.eye(2), {"weights": [[1, 0, 0]]}, "2 columns"),
        (np.eye(2), np.eye(2), {"weights": [[1, 1], [0, 1]]}, "sum to 1"),
        (np.eye(2), np.eye(2), {"width": 0}, "at least 1"),
    ],
)
def test_mistakes(x, y, more, words):
    with pytest.raises(UserError, match=words):
        layer(x, y, **more)


def test_sizes_at_the_end_of_the_floats_get_a_verdict():
    result = layer([[1e-99, 0], [0, 1e-99]], [[1e99, 0], [0, 1e99]], weights=np.eye(2))
    assert result.status == "undecided"
