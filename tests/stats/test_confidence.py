"""Confidences as probabilities, and as what tells known from unknown."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import mannwhitneyu, norm

from attnlab import stats
from attnlab.errors import UserError

few = st.lists(st.integers(-4, 4), min_size=2, max_size=25)


@given(few, few)
def test_the_area_is_that_of_mann_and_whitney(known: list[int], unknown: list[int]) -> None:
    found = stats.auroc(known, unknown)
    assert found.value == pytest.approx(mannwhitneyu(known, unknown).statistic / len(known) / len(unknown))
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high
    turned = stats.auroc(unknown, known)
    assert (turned.low, turned.high) == pytest.approx((1 - found.high, 1 - found.low), abs=1e-9)


def test_delongs_error_by_its_definition() -> None:
    rng = np.random.default_rng(5)
    known, unknown = rng.integers(2, 12, 30), rng.integers(0, 9, 20)
    wins = (known[:, None] > unknown) + (known[:, None] == unknown) / 2
    value = wins.mean()
    variance = wins.mean(axis=1).var(ddof=1) / 30 + wins.mean(axis=0).var(ddof=1) / 20
    half = norm.ppf(0.975) * math.sqrt(variance) / (value * (1 - value))
    ends = [1 / (1 + math.exp(-(math.log(value / (1 - value)) + side * half))) for side in (-1, 1)]
    found = stats.auroc(known, unknown)
    assert found.method == "DeLong"
    assert [found.low, found.high] == pytest.approx(ends)


@pytest.mark.parametrize(("shift", "known", "unknown"), [(0.0, 30, 40), (2.3, 60, 40), (3.5, 100, 100)])
def test_the_interval_holds_the_area_as_often_as_it_says(shift: float, known: int, unknown: int) -> None:
    rng, held = np.random.default_rng(1), 0
    truth = norm.cdf(shift / math.sqrt(2))
    for _ in range(400):
        found = stats.auroc(rng.normal(shift, 1, known), rng.normal(0, 1, unknown))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert 0.91 <= held / 400 <= 0.995  # a little short of 95 % near 1, where few answers overlap


def test_sides_that_lie_apart_still_have_an_interval() -> None:
    apart = stats.auroc(np.arange(100, 200), np.arange(80))
    assert (apart.value, apart.high, apart.method) == (1, 1, "Newcombe")
    assert apart.low is not None
    assert 0.95 < apart.low < 1
    fewer = stats.auroc([3, 4, 5], [0, 1, 2])
    assert fewer.low is not None
    assert fewer.low < apart.low
    reversed_sides = stats.auroc([0, 1, 2], [3, 4, 5])
    assert (reversed_sides.value, reversed_sides.low) == (0, 0)
    equal = stats.auroc([1, 1, 1, 1], [1, 1, 1])
    assert equal.value == 0.5
    assert equal.low is not None
    assert equal.low < 0.3
    alone = stats.auroc([1], [0, 0.5])
    assert (alone.value, alone.low, alone.high) == (1, None, None)


def test_areas_without_a_side_are_refused() -> None:
    with pytest.raises(UserError, match="unknown cases must hold at least one value"):
        stats.auroc([0.4], [])
    with pytest.raises(UserError, match="known cases must be finite"):
        stats.auroc([float("nan"), 1], [0.5])


def test_a_reliability_table_worked_out_by_hand() -> None:
    confidence = [0.1, 0.3, 0.6, 0.8]
    found = stats.calibration(confidence, [False, True, True, True], bins=2)
    assert [(one.answers, one.lowest, one.highest, one.right) for one in found.table] == [
        (2, 0.1, 0.3, 0.5),
        (2, 0.6, 0.8, 1.0),
    ]
    assert found.ece == pytest.approx((0.3 + 0.3) / 2)
    assert (found.confidence, found.accuracy) == pytest.approx((0.45, 0.75))
    assert json.loads(json.dumps(dataclasses.asdict(found)))["table"][0]["answers"] == 2


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40),
    st.randoms(),
)
def test_equal_confidences_share_a_bin_in_any_order(rows: list[tuple[float, bool]], random: object) -> None:
    found = stats.calibration(*zip(*rows, strict=True))
    edges = [(one.lowest, one.highest) for one in found.table]
    assert all(left[1] < right[0] for left, right in itertools.pairwise(edges))
    assert sum(one.answers for one in found.table) == len(rows)
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert stats.calibration(*zip(*rows, strict=True)).ece == pytest.approx(found.ece)


def test_bins_hold_equally_many() -> None:
    found = stats.calibration(np.linspace(0.9, 1, 103) ** 4, [True] * 103)
    assert {one.answers for one in found.table} == {10, 11}
    assert len(stats.calibration([0.5, 0.7], [True, False]).table) == 2


def test_what_chance_alone_does_to_calibration_errors() -> None:
    """Perfect confidences: the error is what it was said to be by chance."""
    rng = np.random.default_rng(11)
    plain, expected = [], []
    for _ in range(150):
        confidence = rng.beta(4, 1, 300)
        found = stats.calibration(confidence, rng.random(300) < confidence)
        plain.append(found.ece)
        expected.append(found.ece_if_calibrated)
    assert np.mean(plain) == pytest.approx(np.mean(expected), rel=0.1)
    assert np.mean(plain) > 0.02


def test_overconfidence_is_found_at_its_size() -> None:
    rng = np.random.default_rng(2)
    confidence = rng.uniform(0.3, 1, 20_000)
    found = stats.calibration(confidence, rng.random(20_000) < confidence - 0.2)
    assert found.confidence - found.accuracy == pytest.approx(0.2, abs=0.01)
    assert found.ece == pytest.approx(0.2, abs=0.01)


def test_no_errors_and_all_errors() -> None:
    sure = stats.calibration([1.0] * 20, [True] * 20)
    assert (sure.ece, sure.ece_if_calibrated) == (0, 0)
    assert stats.calibration([1.0] * 20, [False] * 20).ece == 1


def test_confidences_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(UserError, match=r"from 0 to 1, but run from -3 to 0\.5"):
        stats.calibration([-3, 0.5], [True, False])


def test_a_known_map_is_found() -> None:
    """Answers that are right with another chance than they score."""
    rng = np.random.default_rng(4)
    odds = rng.normal(1, 2, 20_000)
    score, chance = expit(odds), expit(0.6 * odds - 0.5)
    right = rng.random(20_000) < chance
    found = stats.fit_platt(score, right)
    assert found.slope == pytest.approx(0.6, rel=0.05)
    assert found.intercept == pytest.approx(-0.5, abs=0.05)
    assert found(score) == pytest.approx(chance, abs=0.02)
    assert stats.calibration(found(score), right).ece < 0.01 < stats.calibration(score, right).ece


@pytest.mark.parametrize("right", [[True] * 6, [False] * 6, [True] * 3 + [False] * 3, [False] * 3 + [True] * 3])
def test_a_map_is_finite_and_keeps_the_order_whatever_is_right(right: list[bool]) -> None:
    score = [0.999, 0.9, 0.6, 0.5, 0.1, 0.0001]
    found = stats.fit_platt(score, right)
    mapped = found([1.0, *score, 0.0])
    assert (np.diff(mapped) < 0).all()
    assert ((mapped > 0) & (mapped < 1)).all()


def test_cross_fitting_judges_no_answer_by_a_map_that_saw_it() -> None:
    rng = np.random.default_rng(2)
    score, right = rng.random(50), rng.random(50) < 0.5
    found = stats.cross_fitted(score, right)
    assert (stats.cross_fitted(score, right) == found).all()
    assert len({*found}) == 50
    for place in range(5):
        other = right.copy()
        other[place] = not other[place]
        again = stats.cross_fitted(score, other)
        assert again[place] == found[place]
        assert (again != found).sum() >= 35
    few = stats.cross_fitted([0.2, 0.8], [False, True])
    assert ((few > 0) & (few < 1)).all()
    with pytest.raises(UserError, match="at least 2"):
        stats.cross_fitted([0.5], [True])


def test_a_map_of_equal_scores_is_the_share_of_right_answers_counted_as_platt_does() -> None:
    """Three right answers count as 4/5 each, the wrong one as 1/3."""
    assert stats.fit_platt([0.5] * 4, [True, True, False, True])([0.5]) == pytest.approx([(3 * 4 / 5 + 1 / 3) / 4])


def test_newcombes_interval_by_its_definition() -> None:
    """Its ends are 1.96 standard errors of Hanley and McNeil away, for sides of equal size, from the area."""
    for known, unknown in (([3, 4, 5, 6], [0, 1]), ([1, 1, 1, 1], [1, 1, 1])):
        found = stats.auroc(known, unknown)
        m, n = len(known), len(unknown)
        assert found.method == "Newcombe"
        for end in {found.low, found.high} - {found.value}:
            assert end is not None
            less, more = end / (2 - end), 2 * end**2 / (1 + end)
            size = (m + n) / 2 - 1
            variance = (end * (1 - end) + size * (less - end**2) + size * (more - end**2)) / (m * n)
            assert abs(found.value - end) == pytest.approx(norm.ppf(0.975) * math.sqrt(variance), abs=1e-6)


def test_the_error_of_a_calibrated_model_is_the_mean_distance_of_a_normal_variable() -> None:
    """Two bins of two answers: each share of right answers has the standard deviation of the root of the sum of p q, over 2."""
    found = stats.calibration([0.1, 0.3, 0.6, 0.8], [False, True, True, True], bins=2)
    spread = [math.sqrt(0.09 + 0.21) / 2, math.sqrt(0.24 + 0.16) / 2]
    assert found.ece_if_calibrated == pytest.approx(math.sqrt(2 / math.pi) * sum(spread) / 2)
    assert [one.confidence for one in found.table] == pytest.approx([0.2, 0.7])
    assert [(one.low, one.high) for one in found.table] == [stats.proportion_interval(k, 2) for k in (1, 2)]
    single = stats.calibration([0.5] * 3 + [0.9], [True, False, True, True], bins=1)
    assert [one.answers for one in single.table] == [4]
    assert single.ece == pytest.approx(0.75 - 0.6)


def test_a_map_is_the_least_of_platts_loss() -> None:
    """The gradient at the map is zero, with targets of 5/6 for the 4 right answers and 1/5 for the 3 wrong ones."""
    score, right = np.array([0.2, 0.3, 0.5, 0.6, 0.7, 0.9, 0.95]), np.array([0, 1, 0, 1, 0, 1, 1])
    found = stats.fit_platt(score, right)
    off = found(score) - np.where(right, 5 / 6, 1 / 5)
    assert found.slope > 0.01
    assert off.sum() == pytest.approx(0, abs=1e-6)
    assert off @ np.log(score / (1 - score)) == pytest.approx(0, abs=1e-6)
    turned = stats.fit_platt(score, 1 - right)
    assert turned.slope == pytest.approx(0.01)  # keeps the order of scores
    extreme = stats.Platt(1.0, 0.0)([0.0, 1.0])
    assert extreme == pytest.approx([1e-6, 1 - 1e-6], rel=1e-9)


def test_folds_are_of_equal_size_and_as_many_as_asked_for() -> None:
    """With equal scores an answer gets the share of Platt's targets among the answers of the other folds."""
    right = np.array([True] * 5 + [False] * 5)
    for folds in (2, 5, 10, 20):
        held = 10 // min(folds, 10)
        for value in stats.cross_fitted([0.5] * 10, right, folds):
            hits = [k for k in range(11 - held) if abs(share_of_platt(k, 10 - held) - value) < 1e-6]
            assert len(hits) == 1
            assert 5 - held <= hits[0] <= 5


def share_of_platt(hits: int, answers: int) -> float:
    return (hits * (hits + 1) / (hits + 2) + (answers - hits) / (answers - hits + 2)) / answers
