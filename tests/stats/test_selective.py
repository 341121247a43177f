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
from attnlab.stats.selective import STARTS, errors_allowed, last_certified, ordered, thresholds_to_try


def test_a_curve_worked_out_by_hand() -> None:
    curve = stats.risk_coverage([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    assert curve.threshold == (0.9, 0.8, 0.7, 0.6)
    assert curve.coverage == (0.25, 0.5, 0.75, 1.0)
    assert curve.risk == pytest.approx((0, 1 / 2, 1 / 3, 1 / 2))
    assert curve.risk_of_all == 0.5
    tied = stats.risk_coverage([0.9, 0.5, 0.5, 0.5], [1, 0, 1, 0])
    assert (tied.coverage, tied.risk) == ((0.25, 1.0), (0.0, 0.5))  # equal confidences are accepted together


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


def world(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that are evenly spread, and right with a chance of their fourth root."""
    confidence = rng.random(size)
    return confidence, rng.random(size) < confidence**0.25


def true_risk(threshold: float) -> float:
    """The risk behind a threshold in that world: the mean of 1 - c^¼ from the threshold to 1."""
    return 1 - 0.8 * (1 - threshold**1.25) / (1 - threshold)


@pytest.mark.parametrize(("max_risk", "often"), [(0.2, 0.9), (0.12, 0.5)])
def test_the_guarantee_holds_as_often_as_it_says(max_risk: float, often: float) -> None:
    """200 worlds: a certified threshold may have more than the allowed risk in 5 % of them."""
    rng, worlds = np.random.default_rng(7), 200
    too_much = met = 0
    for _ in range(worlds):
        rule = stats.selective_rule(*world(rng, 400), max_risk)
        if rule.met:
            assert rule.threshold is not None
            met += 1
            too_much += true_risk(rule.threshold) > max_risk
    assert too_much <= 20  # of 200 with a chance of 5 %: one set of worlds in a thousand has more
    assert met >= often * worlds


@pytest.mark.parametrize("answers", [140, 200])
def test_the_guarantee_assumes_nothing_about_the_order_of_risks(answers: int) -> None:
    """200 worlds in which confidence means nothing and 16 % are wrong, while some threshold usually looks like 15 %."""
    rng, looked_fine, certified = np.random.default_rng(3), 0, 0
    for _ in range(200):
        confidence, right = rng.random(answers), rng.random(answers) < 0.84
        _, accepted, wrong = ordered(confidence, right.astype(float))
        looked_fine += bool((wrong <= errors_allowed(accepted, 0.15)).any())
        certified += stats.selective_rule(confidence, right, 0.15).met
    assert looked_fine > 20  # twice the 5 % that one look may fail
    assert certified <= 20  # of 200 with a chance of 5 %: one set of worlds in a thousand has more


def test_a_certified_threshold_passes_its_share_on_and_a_failed_one_loses_it() -> None:
    shares = np.array([0.5, 0.0, 0.5, 0.0])
    assert last_certified(np.array([0.02, 0.02, 0.04, 0.04]), shares, 0.05) == 3
    assert last_certified(np.array([0.03, 0.01, 0.02, 0.02]), shares, 0.05) == 3
    assert last_certified(np.array([0.03, 0.01, 0.04, 0.01]), shares, 0.05) is None
    assert last_certified(np.array([0.02, 0.03, 0.04, 0.0]), shares, 0.05) == 0


@given(st.integers(1, 1000), st.floats(0, 1))
def test_thresholds_are_preset_and_spend_all_of_alpha_once(answers: int, lowest: float) -> None:
    thresholds, shares = thresholds_to_try(answers, lowest)
    assert (np.diff(thresholds) < 0).all()
    assert thresholds[-1] == lowest
    assert shares.sum() == pytest.approx(1)
    everything, starts = thresholds_to_try(answers)
    found = [math.log(one / (1 - one)) for one in everything[starts > 0]]
    assert found == pytest.approx(STARTS if answers >= 150 else [1])
    assert set(thresholds[:-1]) <= set(everything)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=30, max_size=80), st.floats(0.05, 0.6))
def test_a_rule_counts_what_reaches_its_threshold(rows: list[tuple[float, bool]], max_risk: float) -> None:
    confidence, right = (np.array(column) for column in zip(*rows, strict=True))
    rule = stats.selective_rule(confidence, right, max_risk)
    assert rule.risk_of_all == pytest.approx(1 - right.mean())
    if rule.threshold is not None:
        taken = confidence >= rule.threshold
        assert (rule.accepted, rule.errors) == (taken.sum(), (taken & ~right).sum())
        assert rule.coverage == pytest.approx(taken.mean())
        assert stats.risk_bound(rule.errors, rule.accepted) <= max_risk + 1e-9


def test_all_answers_certify() -> None:
    """29 answers without an error certify 10 %; of many questions, where each start has a share of alpha, it takes 42."""
    assert stats.selective_rule([0.9] * 29, [True] * 29, 0.1).met
    assert not stats.selective_rule([0.9] * 28, [True] * 28, 0.1).met
    assert stats.accepted_needed(0.1, alpha=0.05 / len(STARTS)) == 42
    for sure in (0.75, 0.9, 0.99):
        for right, met in ((42, True), (41, False)):
            rest = 200 - right
            assert stats.selective_rule([sure] * right + [0.1] * rest, [True] * right + [False] * rest, 0.1).met == met


def test_a_rule_that_is_met_says_what_holds() -> None:
    rng = np.random.default_rng(0)
    known = np.concatenate([rng.uniform(0.9, 1, 300), rng.uniform(0, 0.5, 100)])
    right = np.concatenate([np.ones(300), np.zeros(100)])
    rule = stats.selective_rule(known, right, 0.1)
    assert rule.met
    assert rule.threshold is not None
    assert 0.3 <= rule.threshold <= 0.92
    assert 0.7 <= rule.coverage <= 0.85
    assert stats.risk_bound(rule.errors, rule.accepted) <= rule.bound == 0.1
    for words in (
        "At most 10 % of the answers given are wrong, with 95 % confidence over the draw of the calibration questions",
        f"{rule.errors} of {rule.accepted} accepted answers were wrong",
        "of these 400 questions",
        "Answering all would be wrong in 25 %",
        "over all calibrations, not only those that certify a threshold",
        "questions drawn like these, taken together",
        "not for names that were never seen",
    ):
        assert words in rule.words
    assert stats.selective_rule(known, right, 0.1) == rule
    assert json.loads(json.dumps(dataclasses.asdict(rule)))["met"] is True


def test_a_threshold_is_given_on_the_scale_that_is_reported() -> None:
    rng = np.random.default_rng(4)
    score = rng.random(500)
    right = rng.random(500) < score**0.1
    rule, shown = (stats.selective_rule(score, right, 0.1, shown=scale) for scale in (float, lambda one: one**3))
    assert rule.threshold is not None
    assert 0 < rule.threshold < 1
    assert shown.threshold == rule.threshold**3
    assert f"its confidence is at least {100 * shown.threshold:.1f} %" in shown.words
    assert (shown.accepted, shown.errors) == (rule.accepted, rule.errors)


def test_too_few_answers_certify_nothing() -> None:
    rule = stats.selective_rule([0.9] * 20, [True] * 20, 0.1)
    assert (rule.met, rule.threshold, rule.coverage, rule.needed) == (False, None, 0, 29)
    assert "no question is answered" in rule.words
    assert "it takes 29 accepted answers, and there are 20 questions" in rule.words
    assert not stats.selective_rule([0.1, 0.2], [True, False], 0.1).met


def test_answers_that_are_wrong_too_often() -> None:
    hopeless = stats.selective_rule([0.8] * 200, [True, False] * 100, 0.1)
    assert not hopeless.met
    assert (hopeless.threshold, hopeless.needed) == (None, None)
    assert "50 % would be wrong if all were" in hopeless.words
    assert "At this rate of errors no number of answers would do" in hopeless.words
    wrong = stats.selective_rule(np.linspace(0, 1, 4000), [False] * 4000, 0.1)
    assert (wrong.met, wrong.threshold, wrong.bound) == (False, None, 1)
    assert "no question is answered" in wrong.words


def test_near_misses_say_how_many_answers_would_do() -> None:
    right = np.ones(160)
    right[::16] = 0  # about 6 % wrong, which 160 answers cannot tell from 10 %
    rule = stats.selective_rule([0.9] * 160, right, 0.1)
    assert not rule.met
    assert rule.needed is not None
    assert rule.accepted == 160 < rule.needed
    assert rule.bound == pytest.approx(stats.risk_bound(10, 160, 0.05 / len(STARTS)))
    most = math.ceil(10 / 160 * rule.needed - 1e-9)
    assert stats.risk_bound(most, rule.needed, 0.05 / len(STARTS)) <= 0.1
    assert f"it takes about {rule.needed:,} accepted answers, or {rule.needed:,} questions" in rule.words


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
        lambda: stats.calibration(confidence, right),
        lambda: stats.fit_platt(confidence, right),
    ):
        with pytest.raises(UserError, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_levels_and_thresholds_are_checked() -> None:
    for max_risk in (0, 1, -0.1, float("nan")):
        with pytest.raises(UserError, match="allowed risk must lie between 0 and 1"):
            stats.selective_rule([0.5] * 4, [1] * 4, max_risk)
    with pytest.raises(UserError, match="alpha must lie"):
        stats.selective_rule([0.5], [True], 0.1, alpha=0)
    with pytest.raises(UserError, match="from 0 to 1"):
        stats.selective_rule([1.5], [True], 0.1)
    with pytest.raises(UserError, match="3 errors among 2"):
        stats.risk_bound(3, 2)


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


def test_negative_counts_are_refused() -> None:
    with pytest.raises(UserError, match="errors must be at least 0"):
        stats.risk_bound(-1, 5)


RISKY = "A risk of at most 10 % could not be certified with 95 % confidence, so no question is answered"


@pytest.mark.parametrize(
    ("confidence", "right", "words"),
    [
        (
            [0.9] * 20,
            [True] * 20,
            f"{RISKY} (0 % would be wrong if all were): without an error it takes 29 accepted answers,"
            " and there are 20 questions.",
        ),
        (
            [0.01] * 200,
            [True] * 200,
            f"{RISKY} (0 % would be wrong if all were): no answer is confident enough"
            " (without an error it takes 42 accepted answers).",
        ),
        (
            [0.8] * 200,
            [True, False] * 100,
            f"{RISKY} (50 % would be wrong if all were): 100 of 200 accepted answers were wrong, which certifies 58.1 %"
            " only. At this rate of errors no number of answers would do.",
        ),
        (
            [0.9] * 300 + [0.01] * 100,
            [place % 16 != 0 for place in range(400)],
            f"{RISKY} (6.25 % would be wrong if all were): 19 of 300 accepted answers were wrong, which certifies 10.2 %"
            " only. At this rate of errors it takes about 369 accepted answers, or 492 questions.",
        ),
    ],
)
def test_a_rule_that_is_not_met_says_why(confidence: list[float], right: list[bool], words: str) -> None:
    rule = stats.selective_rule(confidence, right, 0.1)
    assert (rule.met, rule.words) == (False, words)


def test_a_rule_that_accepts_everything_says_so() -> None:
    rule = stats.selective_rule([0.9] * 60, [True] * 59 + [False], 0.1)
    assert (rule.threshold, rule.coverage, rule.needed) == (0.0, 1.0, None)
    assert " at least 0.0 %: all of these 60 questions, of which 1 were answered wrongly. The 95 %" in rule.words
    sure = stats.selective_rule([1.0] * 60, [True] * 60, 0.1, shown=lambda _: 0.99999)
    assert "It answers if its confidence is at least 99.9 %: " in sure.words  # never 100.0


def test_plans_end_at_a_million_accepted_answers() -> None:
    """Without an error n answers certify 1 - 0.05^(1/n)."""
    certified = {count: 1 - 0.05 ** (1 / (count - 0.5)) for count in (2, 1_000_000, 1_000_001)}
    found = [stats.accepted_needed(risk) for risk in certified.values()]
    assert found == [2, 1_000_000, None]
    assert stats.accepted_needed(0.96) == 1


def test_the_least_confidence_is_just_above_those_that_are_too_many() -> None:
    strangers = np.arange(93) / 100  # 93 accepted and one above certify 5 %, 92 do not
    assert stats.least_confidence(strangers) == pytest.approx(0.91 + 1e-6, abs=1e-9)
    assert stats.least_confidence(strangers[1:]) == pytest.approx(0.92 + 1e-6, abs=1e-9)
    assert stats.least_confidence(strangers, 0.999) == pytest.approx(0.01 + 1e-6, abs=1e-9)


def test_the_thresholds_are_a_tenth_apart_in_log_odds() -> None:
    for answers, first in ((149, 1), (150, 8)):
        thresholds = thresholds_to_try(answers)[0]
        odds = [math.log(one / (1 - one)) for one in thresholds[:-1]]
        assert odds == pytest.approx([tenth / 10 for tenth in range(10 * first, -61, -1)])
