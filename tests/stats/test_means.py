from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from attnlab import stats
from attnlab.errors import UserError

PARTS = stats.Components(seeds=1.0, items=1.0, rest=1.0, most_seeds=1.0)
values = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


def test_the_interval_of_students_sleep_data() -> None:
    """The ten differences of Student (1908), on which R shows its paired t test."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = stats.paired(first, second)
    assert found.difference == pytest.approx(-1.58)
    assert (found.low, found.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-7)
    assert found.p == pytest.approx(0.002833, abs=1e-6)


def test_one_seed_has_a_mean_and_says_so() -> None:
    alone = stats.mean_interval([5.85])
    assert (alone.n, alone.mean, alone.low, alone.high) == (1, 5.85, None, None)
    assert "one seed" in alone.note
    pair = stats.paired([5.85], [5.72])
    assert pair.difference == pytest.approx(0.13)
    assert (pair.p, pair.low) == (None, None)
    assert "one seed" in pair.note


def test_values_without_spread_promise_nothing() -> None:
    assert stats.mean_interval([2.0, 2.0, 2.0]).low is None
    same = stats.paired([1.0, 2.0], [1.0, 2.0])
    assert (same.p, same.note) == (1.0, "equal with every seed")
    shifted = stats.paired([2, 3, 4], [1, 2, 3])
    assert (shifted.p, shifted.low) == (None, None)
    assert "no spread" in shifted.note


@given(values)
def test_the_interval_is_that_of_scipy(given: list[float]) -> None:
    found = stats.mean_interval(given)
    if found.low is not None:
        wanted = scipy_stats.ttest_1samp(given, 0.0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=8))
def test_swapping_the_sides_swaps_the_signs_only(given: list[tuple[float, float]]) -> None:
    a, b = [first for first, _ in given], [second for _, second in given]
    there, back = stats.paired(a, b), stats.paired(b, a)
    assert there.difference == pytest.approx(-back.difference)
    assert there.p == pytest.approx(back.p) if there.p is not None else back.p is None


def test_the_interval_over_three_seeds_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for row in rng.normal(7.0, 2.0, (1000, 3)):
        found = stats.mean_interval(row)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 7.0 <= found.high
    assert 930 <= hits <= 970


def test_holm_as_in_the_textbook() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([0.02]) == [0.02]
    assert stats.holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_never_lowers_keeps_the_order_and_stays_below_bonferroni(given: list[float]) -> None:
    found = stats.holm(given)
    for raw, adjusted in zip(given, found, strict=True):
        assert raw <= adjusted <= min(1.0, len(given) * raw)
    order = np.argsort(given, kind="stable")
    assert np.all(np.diff(np.asarray(found)[order]) >= 0)


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(UserError, match="1 of 3 values are not, the first at position 2"):
        stats.mean_interval([1.0, float("nan"), 2.0])
    with pytest.raises(UserError, match="the values of B must be finite"):
        stats.paired([1.0, 2.0], [1.0, float("inf")])
    with pytest.raises(UserError, match="one by one, but there are 2 and 3"):
        stats.paired([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="at least one value"):
        stats.mean_interval([])
    with pytest.raises(UserError, match="must be numbers"):
        stats.mean_interval(["a", "b"])
    with pytest.raises(UserError, match=r"lie in \[0, 1\]"):
        stats.holm([0.5, float("nan")])


def test_every_record_turns_to_json() -> None:
    right = np.arange(40).reshape(2, 20) % 3 == 0
    losses = np.linspace(1, 2, 40).reshape(2, 20)
    for record in (
        stats.mean_interval([1, 2]),
        stats.paired([1, 2], [2, 4]),
        stats.two_proportions(3, 10, 4, 10),
        stats.mcnemar(right[0], right[1]),
        stats.seeds_by_questions(right, ~right),
        stats.compare_perplexities(losses, losses[::-1], [3] * 20),
    ):
        assert json.loads(json.dumps(asdict(record))) == asdict(record)


@pytest.mark.parametrize(
    "table",
    [
        [[3.0, 1.0, 4.0, 1.0], [5.0, 9.0, 2.0, 6.0], [5.0, 3.0, 5.0, 8.0]],  # seeds and items vary
        [[1.0, 5.0, 9.0], [9.0, 1.0, 5.0]],  # the rest varies more than both: the larger part counts
    ],
)
def test_the_standard_error_is_that_of_the_analysis_of_variance(table: list[list[float]]) -> None:
    seeds, items = len(table), len(table[0])
    rows = [sum(row) / items for row in table]
    columns = [sum(row[at] for row in table) / seeds for at in range(items)]
    mean = sum(rows) / seeds
    of_seeds = items * sum((row - mean) ** 2 for row in rows) / (seeds - 1)
    of_items = seeds * sum((column - mean) ** 2 for column in columns) / (items - 1)
    rests = [table[i][j] - rows[i] - columns[j] + mean for i in range(seeds) for j in range(items)]
    rest = sum(value**2 for value in rests) / ((seeds - 1) * (items - 1))
    total = of_seeds + of_items - rest
    if total > max(of_seeds, of_items):
        parts = of_seeds**2 / (seeds - 1) + of_items**2 / (items - 1) + rest**2 / ((seeds - 1) * (items - 1))
        freedom = total**2 / parts
    else:
        total, freedom = max((of_seeds, seeds - 1), (of_items, items - 1))
    result = stats.crossed(table)
    assert result.error == pytest.approx((total / (seeds * items)) ** 0.5)
    assert result.freedom == pytest.approx(freedom)


def test_levels_other_than_95_percent_and_geometric_means() -> None:
    wanted = scipy_stats.ttest_1samp([1.0, 2.0, 4.0], 0.0).confidence_interval(0.99)
    found = stats.mean_interval([1.0, 2.0, 4.0], alpha=0.01)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert (found.n, found.note) == (3, "")
    equal = stats.mean_interval([2.0, 2.0])
    assert (equal.n, equal.mean, equal.sd, equal.note) == (2, 2.0, 0.0, "no spread between seeds, so no interval")
    assert stats.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_the_t_test_is_that_of_scipy() -> None:
    a, b = [1.0, 2.0, 4.0, 8.0], [2.0, 2.5, 3.0, 9.5]
    found, wanted = stats.paired(a, b), scipy_stats.ttest_rel(a, b)
    assert found.p == pytest.approx(wanted.pvalue)
    assert (found.seeds, found.a, found.b) == (4, 3.75, 4.25)
    alone = stats.paired([2.0], [2.0])
    assert (alone.p, alone.note) == (None, "one seed, so no interval")


def test_equal_p_values_are_adjusted_alike_and_ends_are_probabilities() -> None:
    assert stats.holm([0.03, 0.03]) == pytest.approx([0.06, 0.06])
    assert stats.holm([0.0, 1.0]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: stats.mean_interval([[1.0, 2.0]]), "the values must have 1 axes, not 2"),
        (lambda: stats.crossed([1.0, 2.0]), "the differences must have 2 axes, not 1"),
        (lambda: stats.mcnemar([[1.0, 0.0]], [[1.0, 0.0]]), "the answers of A must have 1 axes, not 2"),
        (lambda: stats.mcnemar([1, 0], [1, 2]), "the answers of B must be right or wrong"),
        (lambda: stats.mcnemar([0.5, 0], [1, 0]), "the answers of A must be right or wrong"),
        (lambda: stats.paired([[1.0, 2.0]], [[1.0, 2.0]]), "the values of A must have 1 axes"),
        (lambda: stats.crossed([[1.0, np.inf, np.nan]]), "but 2 of 3 values are not, the first at position 2"),
        (lambda: stats.sample_size(1.5, 0.5), r"a share must lie in \[0, 1\], not 1.5"),
        (lambda: stats.sample_size(0.5, -0.5), r"a share must lie in \[0, 1\], not -0.5"),
        (lambda: stats.sample_size(0.2, 0.3, alpha=1.0), "alpha must lie between 0 and 1, not 1.0"),
        (lambda: stats.sample_size(0.2, 0.3, power=0.0), "power must lie between 0 and 1, not 0.0"),
        (lambda: stats.risk_bound(1, 5, 0.0), "alpha must lie between 0 and 1"),
        (lambda: stats.risk_bound(1, -1), "accepted answers must be at least 0, not -1"),
        (lambda: stats.risk_bound(True, 1), "errors must be a whole number, not True"),
        (lambda: stats.accepted_needed(0.1, alpha=1.5), "alpha must lie between 0 and 1"),
        (lambda: stats.accepted_needed(1.0), "the allowed risk must lie between 0 and 1"),
        (lambda: stats.accepted_needed(0.1, 1.5), r"a risk must lie in \[0, 1\], not 1.5"),
        (lambda: stats.accepted_needed(0.1, -0.5), r"a risk must lie in \[0, 1\], not -0.5"),
        (lambda: stats.least_confidence([0.5], 0.0), "the share of strangers must lie between 0 and 1"),
        (lambda: stats.calibration([0.5], [1], bins=0), "bins must be at least 1, not 0"),
        (lambda: stats.calibration([1.5], [1]), "from 0 to 1, but run from 1.5 to 1.5"),
        (lambda: stats.two_proportions(-1, 5, 1, 5), "right answers must be at least 0, not -1"),
        (lambda: stats.two_proportions(1, 5, 6, 5), "6 right answers to 5 questions"),
        (lambda: stats.holm([1.5]), r"a p value must lie in \[0, 1\], not 1.5"),
        (lambda: stats.holm([-0.5]), r"a p value must lie in \[0, 1\], not -0.5"),
        (lambda: stats.power(PARTS, 3, 1, 0.1), "items must be at least 2, not 1"),
        (lambda: stats.power(PARTS, 0, 5, 0.1), "seeds must be at least 1, not 0"),
        (lambda: stats.power(PARTS, 3, 5, 0.1, alpha=0.0), "alpha must lie between 0 and 1"),
        (lambda: stats.variance_components([[[0.0], [1.0]]]), "at least 2 seeds and 2 items, not 2 and 1"),
        (lambda: stats.chosen_best([1.0, 0.0]), "right and wrong must have 2 axes"),
        (lambda: stats.log_perplexities([1.0], [1]), "the losses must have 2 axes"),
        (lambda: stats.log_perplexities([[1.0]], [[1]]), "the tokens must have 1 axes"),
        (lambda: stats.in_words(stats.two_proportions(1, 5, 2, 5), alpha=1.0), "alpha must lie between 0 and 1"),
        (lambda: stats.crossed([[1.0]]).above(0), "without spread there is no test"),
    ],
)
def test_what_cannot_be_computed_is_refused(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ask()
