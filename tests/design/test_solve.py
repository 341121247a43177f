from decimal import Decimal

import numpy as np
import pytest

from attnlab.design import average, blend, reach, select, verify
from attnlab.design.attention import softmax
from attnlab.design.verifier import NotAProof
from attnlab.errors import UserError

K = np.array([[0.47, 0.65, 0.60], [0.64, 0.50, -0.59], [-0.03, -0.48, -0.88], [0.43, -0.83, 0.35]])
V = np.array([[-0.07, -0.88, 0.47], [0.37, -0.93, -0.07], [-0.25, -0.75, 0.61], [0.94, 0.20, 0.28]])
LINE = np.array([[-1.0], [0.0], [1.0]])


def truly(result, keys, values, target, scale=1.0):
    """The measured error, by attention written out again."""
    return np.abs(softmax(scale * np.asarray(keys) @ result.query) @ np.asarray(values) - target).max()


def test_selecting_every_value_of_the_worked_exercise():
    for j in range(4):
        result = select(K, V, j, tolerance=0.01)
        assert result.status == "solved"
        assert truly(result, K, V, V[j]) <= result.bound <= 0.01
    together = select(K, V, tolerance=0.05)
    assert together.status == "solved"
    assert together.query.shape == (4, 3)
    assert [row.status for row in together.rows] == ["solved"] * 4


def test_the_query_is_the_least_one_for_its_margin():
    result = select(np.eye(3), np.eye(3), 0, tolerance=0.01)
    margin = np.log(2 * 0.99 / 0.01)
    # for orthonormal keys the least query with margin m to two others is m(2, -1, -1)/3
    assert result.query == pytest.approx(margin * np.array([2, -1, -1]) / 3, rel=1e-4)


def test_a_key_inside_the_hull_is_bounded_by_its_combination():
    result = select(LINE, np.eye(3), 1, tolerance=0.01)
    assert result.status == "impossible"
    assert result.certificate["type"] == "convex_combination"
    assert result.certificate["weights"] == [0.5, 0, 0.5]
    assert result.lower_bound == pytest.approx(2 / 3)
    assert verify(result.certificate, LINE.tolist(), np.eye(3).tolist(), [0, 1, 0], 0.01) > 0.66


def test_the_output_decides_and_not_the_weight():
    result = select(LINE, LINE, 1)
    assert result.status == "solved"
    assert result.query.tolist() == [0]


def test_scaling_a_key_sum_is_not_needed():
    result = blend(K, V, [0, 1])
    assert result.status == "solved"
    assert truly(result, K, V, (V[0] + V[1]) / 2) <= result.bound <= 0.01
    assert result.weights[0] == pytest.approx(result.weights[1])


def test_unequal_weights_within_a_tolerance_without_a_face():
    result = blend([[0], [1], [2]], np.eye(3), [1, 2], [0.01, 0.99])
    assert result.status == "solved"
    assert result.error["float64"] <= 0.01


def test_the_two_ends_of_a_line_cannot_be_blended():
    result = blend(LINE, np.eye(3), [0, 2])
    assert result.status == "impossible"
    assert result.certificate["type"] == "farkas"
    assert result.lower_bound > 0.2
    assert result.error["float64"] >= result.lower_bound


def test_the_average_of_all_is_zero_for_every_key():
    rng = np.random.default_rng(0)
    result = average(rng.normal(size=(7, 3)) * 1e6, V[[0, 1, 2, 3, 0, 1, 2]])
    assert result.query.tolist() == [0, 0, 0]
    assert result.error["float64"] < 1e-15


def test_scale_is_honoured():
    result = select(K, V, 0, scale="sqrt")
    assert truly(result, K, V, V[0], 1 / np.sqrt(3)) <= 0.01
    assert truly(result, K, V, V[0]) != pytest.approx(truly(result, K, V, V[0], 1 / np.sqrt(3)))


def test_reaching_inside_and_outside_the_hull():
    inside = np.array([0.3, 0.2, 0.1, 0.4]) @ V
    result = reach(K, V, inside)
    assert result.status == "solved"
    assert truly(result, K, V, inside) <= 0.01
    outside = reach(K, V, [1, 0, 0])
    assert outside.status == "impossible"
    w = np.array(outside.certificate["direction"])
    assert w @ [1, 0, 0] - (V @ w).max() == pytest.approx(outside.lower_bound * np.abs(w).sum())


def test_a_given_query_is_judged_and_not_replaced():
    assert reach(K, V, V[0], query=10 * K[0]).status == "solved"
    weak = reach(K, V, V[0], query=K[0])
    assert weak.status == "undecided"
    assert weak.query.tolist() == K[0].tolist()


def test_equal_keys_share_their_weight():
    result = select([[1, 0], [1, 0], [0, 1]], np.eye(3), 0, tolerance=0.1)
    assert result.status == "impossible"
    assert result.lower_bound == pytest.approx(0.5, abs=1e-6)


def test_a_rounded_mean_is_refused_inside_a_ball_and_says_so():
    keys = np.random.default_rng(3).normal(size=(4, 6))
    keys[0] = keys[1:].mean(axis=0)
    result = select(keys, np.eye(4), 0)
    assert result.status == "impossible within a radius"
    assert result.certificate["radius"] > 1e9
    assert "|scale·q| up to" in result.statement


def test_a_key_just_outside_the_hull_is_selected():
    keys = np.array([[0.0, 1e-6], [-1.0, 0.0], [1.0, 0.0]])
    result = select(keys, np.eye(3), 0)
    assert result.status == "solved"
    assert np.linalg.norm(result.query) > 1e6


def test_one_key_needs_no_query():
    assert select([[3.0, 4.0]], [[1.0]], 0).query.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: select(K, V, 4), "choose from 0 to 3"),
        (lambda: select(K, V, -1), "choose from 0 to 3"),
        (lambda: select(K, V[:3], 0), "one value for every key"),
        (lambda: select(K, V, 0, tolerance=0), "positive"),
        (lambda: select(K, V, 0, scale="half"), "none or sqrt"),
        (lambda: blend(K, V, [0, 1], [0.5, 0.6]), "divide by their sum"),
        (lambda: blend(K, V, [0, 1], [1.0, 0.0]), "leave its index out"),
        (lambda: blend(K, V, [0, 0]), "twice"),
        (lambda: blend(K, V, [0, 1], [1.0]), "one weight for every index"),
        (lambda: reach(K, V, [1, 0]), "give 3"),
    ],
)
def test_mistakes_name_their_fix(call, words):
    with pytest.raises(UserError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_sentence_about_a_ball_of_queries_says_so():
    keys = np.random.default_rng(3).normal(size=(4, 6))
    keys[0] = keys[1:].mean(axis=0)
    statement = select(keys, np.eye(4), 0).statement
    assert statement.count("every query with |scale·q| up to") == 2
    assert "Key 0 is nearly" in statement


def test_text_means_decimals_and_arrays_mean_binary_values():
    keys = [[0.1, 0.1], [0.15, 0.2], [0.2, 0.3]]
    written = [[Decimal(str(x)) for x in row] for row in keys]
    collinear, apart = select(written, np.eye(3), 1), select(np.array(keys), np.eye(3), 1)
    assert (collinear.status, apart.status) == ("impossible", "solved")
    assert collinear.certificate["radius"] is None
    for result, words in ((collinear, "keys as the decimals written"), (apart, "keys as binary float64 values")):
        assert words in result.statement
        assert words in result.to_dict()["reading"]
    assert collinear.certificate["reading"] == collinear.reading
    plain = select(written, written, 0)
    assert (plain.status, plain.reading) == ("solved", "keys as the decimals written")
    assert "decimals" not in plain.statement  # it matters only where something is impossible
    assert verify(collinear.certificate, written, np.eye(3).tolist(), [0, 1, 0], 0.01) > 0.6
    assert verify(collinear.certificate, keys, np.eye(3).tolist(), [0, 1, 0], 0.01) > 0.6  # in the reading it names
    with pytest.raises(NotAProof):
        verify(collinear.certificate, keys, np.eye(3).tolist(), [0, 1, 0], 0.01, reading="binary")
    assert np.abs(softmax(np.array(keys) @ apart.query) - [0, 1, 0]).max() <= apart.bound


@pytest.mark.parametrize("n", [2, 64, 65, 300])
def test_with_equal_keys_the_mean_is_the_only_output(n):
    keys, values = np.full((n, 2), 0.1), np.arange(n)[:, None] / n
    mean = (n - 1) / (2 * n)
    assert reach(keys, values, [mean + 0.009]).status == "solved"
    missed = reach(keys, values, [mean + 0.25])
    assert (missed.status, missed.certificate["type"]) == ("impossible", "separating")
    assert missed.lower_bound == pytest.approx(0.25, abs=1e-12)
    assert "averaged over equal keys" in missed.statement
    assert "whatever the keys are" not in missed.statement
    assert verify(missed.certificate, keys.tolist(), values.tolist(), [mean + 0.25], 0.01) == pytest.approx(0.25)


def test_groups_of_equal_keys_mix_the_means_of_their_values():
    keys = np.array([[1.0, 0.0], [0.0, 1.0]]).repeat(50, axis=0)
    values = np.arange(100.0)[:, None]  # means 24.5 and 74.5
    assert select(keys, values, 40).status == "solved"
    ends = select(keys, values, 99)
    assert ends.status == "impossible"
    assert ends.lower_bound == pytest.approx(24.5)


def test_keys_that_differ_as_written_are_not_equal():
    keys = [["1", "0"], ["1." + 30 * "0" + "1", "0"]]
    result = reach(keys, [["0"], ["1"]], ["1"])
    assert result.status == "impossible within a radius"  # a query of 1e31 and more does it


def test_the_status_names_a_radius_for_single_rows_and_for_all():
    keys = np.random.default_rng(3).normal(size=(4, 6))
    keys[0] = keys[1:].mean(axis=0)
    every = select(keys, np.eye(4))
    assert [row.status for row in every.rows] == ["impossible within a radius", "solved", "solved", "solved"]
    assert every.status == "impossible within a radius"
    assert "color:#b3261e'>impossible within a radius<" in every._repr_html_()
    assert every.statement.endswith("This reads the keys as binary float64 values.")
