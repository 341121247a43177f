"""Risk against coverage, and rules with a guarantee that is put to the test."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab import stats
from attnlab.errors import UserError
from attnlab.stats.selective import Certificate, errors_allowed, lower_steps, lowered, ordered


def test_a_curve_worked_out_by_hand() -> None:
    curve = stats.risk_coverage([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    assert curve.threshold == (0.9, 0.8, 0.7, 0.6)
    assert curve.coverage == (0.25, 0.5, 0.75, 1.0)
    assert curve.risk == pytest.approx((0, 1 / 2, 1 / 3, 1 / 2))
    assert curve.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert curve.best == pytest.approx((0 + 0 + 1 / 3 + 2 / 4) / 4)
    assert curve.excess == pytest.approx(curve.area - curve.best)
    assert (curve.at_risk(0.35), curve.at_risk(0.5), curve.at_risk(0.0)) == (0.75, 1.0, 0.25)
    assert stats.risk_coverage([0.5], [False]).at_risk(0.9) == 0


def test_equal_confidences_are_accepted_together_and_count_in_random_order() -> None:
    tied = stats.risk_coverage([0.9, 0.5, 0.5, 0.5], [1, 0, 1, 0])
    assert tied.coverage == (0.25, 1.0)
    orders = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    areas = [stats.risk_coverage([0.9, 0.5, 0.4, 0.3], [1, *order]).area for order in orders]
    assert tied.area == pytest.approx(np.mean(areas))
    nothing_said = stats.risk_coverage([0.5] * 10, [1] * 7 + [0] * 3)
    assert nothing_said.area == pytest.approx(nothing_said.risk_of_all) == pytest.approx(0.3)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40), st.randoms())
def test_areas_lie_between_the_best_and_the_worst_and_know_no_order(
    rows: list[tuple[int, bool]], random: object
) -> None:
    curve = stats.risk_coverage(*zip(*rows, strict=True))
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert stats.risk_coverage(*zip(*rows, strict=True)).area == pytest.approx(curve.area)
    right = [one for _, one in rows]
    best, worst = (stats.risk_coverage(np.where(right, a, b), right) for a, b in ((1, 0), (0, 1)))
    assert best.area - 1e-12 <= curve.area <= 1
    assert curve.risk_of_all == pytest.approx(curve.risk[-1])
    ideal = stats.risk_coverage(np.arange(len(right)), sorted(right))
    assert ideal.excess == pytest.approx(0)
    assert curve.best == pytest.approx(ideal.area)
    assert worst.excess >= -1e-12


def test_all_right_and_all_wrong() -> None:
    right, wrong = (stats.risk_coverage([0.3, 0.2, 0.2], [value] * 3) for value in (True, False))
    assert (right.area, right.best, right.excess) == (0, 0, 0)
    assert (wrong.area, wrong.best, wrong.excess) == (1, 1, 0)


def test_bounds_as_they_are_known() -> None:
    """The rule of three and the tables of Clopper and Pearson."""
    assert stats.risk_bound(0, 59) <= 0.05 < stats.risk_bound(0, 58)
    assert stats.risk_bound(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert stats.risk_bound(10, 100, 0.025) == pytest.approx(0.1762, abs=1e-4)
    assert (stats.risk_bound(7, 7), stats.risk_bound(0, 0)) == (1, 1)
    assert (stats.accepted_needed(0.05), stats.accepted_needed(0.1)) == (59, 29)
    assert stats.accepted_needed(0.1, 0.1) is None
    assert stats.accepted_needed(0.1, 0.0999999) is None  # millions
    needed = stats.accepted_needed(0.1, 0.05)
    assert needed is not None
    assert stats.risk_bound(math.ceil(0.05 * needed), needed) <= 0.1


@given(st.integers(1, 400), st.floats(0.01, 0.6), st.floats(0.01, 0.3))
def test_as_many_errors_are_allowed_as_the_bound_says(accepted: int, max_risk: float, alpha: float) -> None:
    allowed = int(errors_allowed(np.array(accepted), max_risk, alpha))
    slack = 1e-9
    if allowed >= 0:
        assert stats.risk_bound(allowed, accepted, alpha) <= max_risk + slack
    assert stats.risk_bound(allowed + 1, accepted, alpha) > max_risk - slack


def test_a_certificate_counts_what_reaches_the_threshold() -> None:
    found = stats.certify(0.5, [0.9, 0.5, 0.4, 0.1], [True, False, False, True])
    assert (found.accepted, found.errors, found.coverage, found.risk) == (2, 1, 0.5, 0.5)
    assert found.bound == pytest.approx(stats.risk_bound(1, 2))
    nothing = stats.certify(None, [0.9], [True])
    assert (nothing.accepted, nothing.risk, nothing.bound) == (0, None, 1.0)
    assert stats.certify(2.0, [0.9], [True]).bound == 1


def world(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that are evenly spread, and right with a chance of their fourth root."""
    confidence = rng.random(size)
    return confidence, rng.random(size) < confidence**0.25


def true_risk(threshold: float) -> float:
    """The risk behind a threshold in that world: the mean of 1 - c^¼ from the threshold to 1."""
    return 1 - 0.8 * (1 - threshold**1.25) / (1 - threshold)


def test_the_guarantee_holds_as_often_as_it_says() -> None:
    """200 worlds: the bound may be too low in 5 % of them, and a rule that is met may allow too much in no more."""
    rng, worlds = np.random.default_rng(7), 200
    too_low = too_much = met = covered = 0.0
    for number in range(worlds):
        rule = stats.selective_rule(*world(rng, 400), 0.2, seed=number)
        threshold = rule.certified_on.threshold
        assert threshold is not None
        too_low += true_risk(threshold) > rule.bound
        if rule.met:
            assert rule.threshold == threshold
            met += 1
            covered += rule.coverage
            too_much += true_risk(threshold) > 0.2
    most = 20  # of 200 with a chance of 5 %, reached by one set of worlds in a thousand
    assert too_low <= most
    assert too_much <= most
    assert met >= 0.7 * worlds  # a threshold at just the allowed risk would be certified in one world of ten
    assert covered / met >= 0.5


def test_lowering_a_threshold_step_by_step_spends_no_more_than_one_look() -> None:
    """200 worlds in which the allowed risk lies within reach: too much is allowed in 5 % of them at most."""
    rng, too_much, met, lower = np.random.default_rng(5), 0, 0, 0
    for number in range(200):
        confidence, right = world(rng, 400)
        rule = stats.selective_rule(confidence, right, 0.12, seed=number)
        if rule.met:
            assert rule.threshold is not None
            met += 1
            too_much += true_risk(rule.threshold) > 0.12
            first, second = stats.halves(400, number)
            start = stats.choose_threshold(confidence[first], right[first], 0.12, judges=len(second))
            assert start is not None
            assert rule.threshold <= start
            assert rule.bound == 0.12 or rule.threshold == start
            lower += rule.threshold < start
    assert too_much <= 20  # of 200 with a chance of 5 %, reached once in a thousand
    assert met >= 80
    assert lower >= met / 2


def test_steps_go_down_to_all_answers_and_stop_at_the_first_that_fails() -> None:
    confidence = [0.9, 0.8, 0.7, 0.6, 0.6, 0.1]
    assert lower_steps(0.8, confidence) == [0.7, 0.6, 0.1]
    assert lower_steps(0.1, confidence) == []
    many = np.linspace(0, 1, 1001)
    assert len(lower_steps(1.0, many)) == 50
    fails = {0.9: 0.01, 0.8: 0.02, 0.7: 0.5, 0.6: 0.0}

    def tries(threshold: float | None) -> Certificate:
        assert threshold is not None
        return Certificate(threshold, 9, 9, 0, 1.0, 0.0, fails[threshold], 0.05)

    assert lowered(0.9, [0.8, 0.7, 0.6], tries, 0.1).threshold == 0.8
    assert lowered(0.7, [0.6], tries, 0.1).threshold == 0.7


def test_the_half_that_chose_promises_too_much() -> None:
    """Why there are two halves: where confidence means nothing and 16 % are wrong, some threshold always looks like 15 %."""
    rng, looked_fine, certified = np.random.default_rng(3), 0, 0
    for number in range(200):
        confidence, right = rng.random(200), rng.random(200) < 0.84
        _, accepted, wrong = ordered(confidence, right.astype(float))
        looked_fine += bool((wrong <= errors_allowed(accepted, 0.15)).any())
        certified += stats.selective_rule(confidence, right, 0.15, seed=number).met
    assert looked_fine > 20  # twice the 5 % that one look may fail
    assert certified <= 20  # of 200 with a chance of 5 %, reached once in a thousand


def test_a_rule_that_is_met_says_what_holds() -> None:
    rng = np.random.default_rng(0)
    known = np.concatenate([rng.uniform(0.9, 1, 300), rng.uniform(0, 0.5, 100)])
    right = np.concatenate([np.ones(300), np.zeros(100)])
    rule = stats.selective_rule(known, right, 0.1, seed=1)
    assert rule.met
    assert rule.threshold is not None
    assert 0.4 <= rule.threshold <= 0.92
    assert rule.coverage == rule.certified_on.coverage == pytest.approx(0.75, abs=0.1)
    assert stats.risk_bound(rule.certified_on.errors, rule.certified_on.accepted) <= rule.bound == 0.1
    assert f"{rule.certified_on.errors} of {rule.certified_on.accepted} accepted answers were wrong" in rule.words
    assert "at most 10 % are wrong, with 95 % confidence" in rule.words
    assert "drawn like these 400" in rule.words
    assert "not for names that were never seen" in rule.words
    assert stats.selective_rule(known, right, 0.1, seed=1) == rule
    assert stats.selective_rule(known, right, 0.1, seed=2) != rule
    assert json.loads(json.dumps(dataclasses.asdict(rule)))["met"] is True


def test_too_few_answers_certify_nothing() -> None:
    rule = stats.selective_rule([0.9] * 40, [True] * 40, 0.1)
    assert (rule.met, rule.threshold, rule.coverage, rule.needed) == (False, None, 0, 29)
    assert "no question is answered" in rule.words
    assert "it takes 29 accepted answers, and the half that certifies has 20" in rule.words
    assert stats.selective_rule([0.9] * 58, [True] * 58, 0.1).met
    assert not stats.selective_rule([0.1, 0.2], [True, False], 0.1).met


def test_answers_that_are_wrong_too_often() -> None:
    hopeless = stats.selective_rule([0.5] * 200, [True, False] * 100, 0.1)
    assert not hopeless.met
    assert (hopeless.threshold, hopeless.needed) == (None, None)
    assert "At this rate of errors no number of answers would do" in hopeless.words
    wrong = stats.selective_rule(np.linspace(0, 1, 4000), [False] * 4000, 0.1)
    assert (wrong.met, wrong.threshold, wrong.bound) == (False, None, 1)
    assert "no question is answered" in wrong.words


def test_near_misses_say_how_many_answers_would_do() -> None:
    right = np.ones(120)
    right[::16] = 0  # about 6 % wrong, which 60 answers cannot tell from 10 %
    rules = [stats.selective_rule([0.9] * 120, right, 0.1, seed=seed) for seed in range(6)]
    missed = [rule for rule in rules if rule.needed is not None and not rule.met]
    assert missed
    for rule in missed:
        risk, needed = rule.certified_on.risk, rule.needed
        assert risk is not None
        assert needed is not None
        assert rule.certified_on.accepted < needed
        assert stats.risk_bound(math.ceil(risk * needed - 1e-9), needed) <= 0.1
        assert f"it takes about {needed:,} accepted answers, or {2 * needed:,} in both halves" in rule.words


@pytest.mark.parametrize(
    ("confidence", "right", "message"),
    [
        ([0.5, float("nan")], [1, 0], "confidences must be finite, but 1 of 2"),
        ([0.5, float("inf")], [1, 0], "confidences must be finite"),
        ([0.5], [1, 0], "2 answers and 1 confidences"),
        ([0.5, 0.6], [1, 2], "right or wrong"),
        ([], [], "at least one value"),
        (["high"], [1], "must be numbers"),
    ],
)
def test_what_has_no_answer_is_refused_in_one_line(confidence: list[float], right: list[int], message: str) -> None:
    for ask in (
        lambda: stats.risk_coverage(confidence, right),
        lambda: stats.selective_rule(confidence, right, 0.1),
        lambda: stats.certify(0.5, confidence, right),
        lambda: stats.choose_threshold(confidence, right, 0.1),
        lambda: stats.calibration(confidence, right),
    ):
        with pytest.raises(UserError, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_levels_and_thresholds_are_checked() -> None:
    for max_risk in (0, 1, -0.1, float("nan")):
        with pytest.raises(UserError, match="allowed risk must lie between 0 and 1"):
            stats.selective_rule([0.5] * 4, [1] * 4, max_risk)
    with pytest.raises(UserError, match="at least 2"):
        stats.selective_rule([0.5], [True], 0.1)
    with pytest.raises(UserError, match="alpha must lie"):
        stats.certify(0.5, [0.5], [True], alpha=0)
    with pytest.raises(UserError, match="threshold must be a number"):
        stats.certify(float("nan"), [0.5], [True])
    with pytest.raises(UserError, match="3 errors among 2"):
        stats.risk_bound(3, 2)
    with pytest.raises(UserError, match="the seed must be at least 0"):
        stats.selective_rule([0.5] * 4, [1] * 4, 0.1, seed=-1)


def test_few_strangers_lie_above_the_least_confidence() -> None:
    strangers = np.random.default_rng(0).random(400)
    least = stats.least_confidence(strangers, 0.05)
    above = int((strangers >= least).sum())
    assert stats.risk_bound(above, 400) <= 0.05 < stats.risk_bound(above + 1, 400)
    assert stats.least_confidence([0.1] * 20, 0.05) == math.inf
    assert stats.least_confidence([0.1] * 59, 0.05) > 0.1


def test_no_threshold_goes_below_the_lowest() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.random(400)
    right = rng.random(400) < 0.99
    free = stats.selective_rule(confidence, right, 0.1)
    held = stats.selective_rule(confidence, right, 0.1, lowest=0.6)
    assert free.threshold is not None
    assert free.threshold < 0.6
    assert held.threshold == 0.6
    assert held.coverage < free.coverage
    assert not stats.selective_rule(confidence, right, 0.1, lowest=math.inf).met
