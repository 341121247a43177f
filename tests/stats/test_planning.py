"""Plans keep what they promise: sizes as known, and the power of the test that is used."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, chi2, nct, norm, t

from attnlab import stats
from attnlab.errors import UserError
from attnlab.stats import planning
from attnlab.stats.crossed import mean_squares
from attnlab.stats.planning import half_widths

SEEDS_VARY = stats.Components(seeds=0.05**2, items=0.1**2, rest=0.5**2, most_seeds=0.1**2)
ITEMS_VARY = stats.Components(seeds=0.005**2, items=0.4**2, rest=0.3**2, most_seeds=0.01**2)
NO_SEEDS = stats.Components(seeds=0.0, items=0.0, rest=0.5**2, most_seeds=0.0)


def tables(
    parts: stats.Components, count: int, seeds: int, items: int, difference: float, seed: int = 0
) -> NDArray[np.float64]:
    """Tables of differences with normal effects of these variances."""
    rng = np.random.default_rng(seed)
    by_seed = math.sqrt(parts.seeds) * rng.normal(size=(count, seeds, 1))
    by_item = math.sqrt(parts.items) * rng.normal(size=(count, 1, items))
    found: NDArray[np.float64] = (
        difference + by_seed + by_item + math.sqrt(parts.rest) * rng.normal(size=(count, seeds, items))
    )
    return found


def share_found(found: NDArray[np.float64], alpha: float = 0.05) -> float:
    return float(np.mean([(stats.crossed(table, alpha).p or 0.0) < alpha for table in found]))


# The sizes of McNemar's test


def test_sample_sizes_as_known() -> None:
    assert stats.sample_size(0.166, 0.188) == 4724
    assert stats.sample_size(0.50, 0.75, power=0.9) == 77  # R: power.prop.test gives 76.7


def exact_mcnemar_power(p1: float, p2: float, discordant: float, questions: int) -> float:
    """The chance that the exact test finds p1 against p2, summed over all that can happen."""
    disagreed = np.arange(1, questions + 1)
    share = (discordant + p1 - p2) / 2 / discordant
    critical = binom.ppf(0.025, disagreed, 0.5) - 1
    critical += 2 * binom.cdf(critical + 1, disagreed, 0.5) <= 0.05
    rejected = binom.cdf(critical, disagreed, share) + binom.sf(disagreed - critical - 1, disagreed, share)
    return float((binom.pmf(disagreed, questions, discordant) * rejected).sum())


@pytest.mark.parametrize(("p1", "p2", "discordant"), [(0.166, 0.188, 0.1), (0.5, 0.6, 0.3), (0.8, 0.7, 0.14)])
def test_connors_size_gives_the_exact_test_about_that_power(p1: float, p2: float, discordant: float) -> None:
    questions = stats.sample_size(p1, p2, discordant=discordant)
    assert 0.74 <= exact_mcnemar_power(p1, p2, discordant, questions) <= 0.82


@given(st.floats(0.1, 0.4), st.floats(0.02, 0.3))
def test_more_of_anything_helps(share: float, gain: float) -> None:
    other = share + gain
    assert stats.sample_size(share, other) == stats.sample_size(other, share)
    assert stats.sample_size(share, other) >= stats.sample_size(share, other + 0.05)
    assert stats.sample_size(share, other, 0.9) >= stats.sample_size(share, other, 0.8)
    assert stats.sample_size(share, other, alpha=0.01) >= stats.sample_size(share, other)
    assert stats.sample_size(share, other, discordant=gain) <= stats.sample_size(share, other)


# Seeds and items


def test_components_are_those_of_the_tables() -> None:
    found = [stats.variance_components(tables(SEEDS_VARY, 4, 8, 60, 0.1, seed)) for seed in range(200)]
    for name in ("seeds", "items", "rest"):
        mean = np.mean([getattr(one, name) for one in found])
        assert mean == pytest.approx(getattr(SEEDS_VARY, name), rel=0.1)


def test_negative_estimates_become_zero() -> None:
    table = np.array([[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5]])
    found = stats.variance_components([table - table.mean(axis=1, keepdims=True)])
    assert found.seeds == found.items == found.most_seeds == 0
    assert found.rest > 0


def test_the_limit_of_the_seeds_variance_holds_in_four_of_five_pilots() -> None:
    for seeds in (2, 4):
        pilots = [stats.variance_components([table]) for table in tables(SEEDS_VARY, 800, seeds, 50, 0.0)]
        assert np.mean([one.most_seeds >= SEEDS_VARY.seeds for one in pilots]) == pytest.approx(0.8, abs=0.05)
        assert all(one.cautious.seeds == one.most_seeds >= one.seeds for one in pilots)


@pytest.mark.parametrize("parts", [SEEDS_VARY, ITEMS_VARY, NO_SEEDS])
@pytest.mark.parametrize(("seeds", "items"), [(2, 30), (3, 40), (10, 5)])
def test_half_widths_are_those_of_crossed(parts: stats.Components, seeds: int, items: int) -> None:
    found = tables(parts, 40, seeds, items, 0.0)
    for alpha in (0.05, 0.01):
        intervals = [stats.crossed(table, alpha).interval(alpha) for table in found]
        expected = [(high - low) / 2 for low, high in intervals]
        np.testing.assert_allclose(half_widths(mean_squares(found), seeds, items, alpha), expected, rtol=1e-9)


@pytest.mark.parametrize(("parts", "difference"), [(SEEDS_VARY, 0.12), (ITEMS_VARY, 0.12), (NO_SEEDS, 0.09)])
def test_power_is_that_of_whole_tables(parts: stats.Components, difference: float) -> None:
    found = share_found(tables(parts, 300, 3, 100, difference))
    assert stats.power(parts, 3, 100, difference) == pytest.approx(found, abs=0.05)
    assert stats.power(parts, 3, 100, -difference) == pytest.approx(stats.power(parts, 3, 100, difference))


@pytest.mark.parametrize(("seeds", "items", "difference"), [(2, 3, 2.0), (3, 2, 1.0)])
def test_power_is_that_of_small_tables(seeds: int, items: int, difference: float) -> None:
    """The fewer levels, the more the degrees of freedom matter."""
    found = tables(NO_SEEDS, 20_000, seeds, items, difference)
    widths = half_widths(mean_squares(found), seeds, items, 0.05)
    shown = np.mean(np.abs(found.mean(axis=(1, 2))) > widths)
    assert 0.1 < shown < 0.9
    assert stats.power(NO_SEEDS, seeds, items, difference) == pytest.approx(shown, abs=0.012)


@pytest.mark.parametrize(
    ("parts", "seeds", "items", "alpha"),
    [(SEEDS_VARY, 3, 100, 0.05), (SEEDS_VARY, 5, 100, 0.05 / 3), (ITEMS_VARY, 2, 80, 0.05), (NO_SEEDS, 4, 60, 0.05)],
)
def test_the_promised_power_is_delivered(parts: stats.Components, seeds: int, items: int, alpha: float) -> None:
    smallest = stats.smallest_difference(parts, seeds, items, alpha)
    assert 0.75 <= share_found(tables(parts, 400, seeds, items, smallest), alpha) <= 0.85


def test_true_differences_of_zero_are_found_in_at_most_one_of_twenty() -> None:
    for parts in (SEEDS_VARY, ITEMS_VARY, NO_SEEDS):
        for seeds in (2, 3, 10):
            assert stats.power(parts, seeds, 450, 0.0) <= 0.052


def test_more_seeds_and_items_find_less() -> None:
    for parts in (SEEDS_VARY, ITEMS_VARY):
        by_seeds = [stats.smallest_difference(parts, seeds, 450) for seeds in (2, 3, 5, 10)]
        by_items = [stats.smallest_difference(parts, 3, items) for items in (50, 200, 800)]
        for row in (by_seeds, by_items):
            assert row == sorted(row, reverse=True)
        assert stats.smallest_difference(parts.cautious, 3, 450) > stats.smallest_difference(parts, 3, 450)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="equal shares cannot be told apart"):
        stats.sample_size(0.5, 0.5)
    with pytest.raises(UserError, match=r"disagree on 10 to 50 % of the questions, not on 5 %"):
        stats.sample_size(0.2, 0.3, discordant=0.05)
    with pytest.raises(UserError, match="power must lie between 0 and 1"):
        stats.sample_size(0.2, 0.3, power=80)
    with pytest.raises(UserError, match=r"a share must lie in \[0, 1\], not 20"):
        stats.sample_size(20, 0.3)
    with pytest.raises(UserError, match="one seed says nothing about other seeds: plan at least 2"):
        stats.power(SEEDS_VARY, 1, 450, 0.05)
    with pytest.raises(UserError, match="without any variance"):
        stats.smallest_difference(replace(NO_SEEDS, rest=0.0), 3, 450)
    with pytest.raises(UserError, match="at least 2 seeds and 2 items, not 1 and 3"):
        stats.variance_components([[[0.0, 1.0, 0.0]]])
    with pytest.raises(UserError, match="the same seeds and items"):
        stats.variance_components([np.zeros((2, 3)), np.zeros((3, 3))])


def test_equals_are_shown_to_be_equivalent_as_often_as_planned() -> None:
    for parts, margin in ((SEEDS_VARY, 0.2), (ITEMS_VARY, 0.12)):
        found = [stats.crossed(table).within(margin, 0.05) for table in tables(parts, 400, 4, 60, 0.0)]
        shown = float(np.mean([one is not None and one.shown for one in found]))
        assert 0.15 < shown < 0.95
        assert stats.equivalence_power(parts, 4, 60, margin) == pytest.approx(shown, abs=0.05)
    assert stats.equivalence_power(SEEDS_VARY, 4, 60, 0.001) == 0


def test_the_power_of_many_pairs_is_that_of_what_they_share() -> None:
    """Six mechanisms against a reference, one of them better."""
    rng, level, difference = np.random.default_rng(8), 0.05 / 6, 0.14
    pairs, found = [(str(at), "0") for at in range(1, 7)], []
    for _ in range(250):
        own = 0.05 / 2**0.5 * rng.normal(size=(7, 3, 1)) + 0.4 * rng.normal(size=(7, 3, 60))
        values = {str(at): table + difference * (at == 1) for at, table in enumerate(own)}
        shared = stats.shared_seeds(values, pairs)[0]
        found.append((stats.crossed(values["1"] - values["0"], level, shared=shared).p or 0.0) < level)
    parts = stats.Components(seeds=0.05**2, items=0.0, rest=2 * 0.4**2, most_seeds=0.1**2)
    planned = stats.power(parts, 3, 60, difference, level, mechanisms=7)
    assert planned == pytest.approx(np.mean(found), abs=0.08)
    assert planned > stats.power(parts, 3, 60, difference, level) + 0.05


def test_power_where_only_seeds_vary_is_that_of_the_t_test() -> None:
    parts = stats.Components(seeds=0.04, items=0.0, rest=0.0, most_seeds=0.04)
    for seeds, difference, alpha in ((2, 1.5, 0.05), (4, 0.3, 0.05), (9, 0.2, 0.01)):
        shift, edge = difference / 0.2 * seeds**0.5, t.ppf(1 - alpha / 2, seeds - 1)
        exact = nct.sf(edge, seeds - 1, shift) + nct.cdf(-edge, seeds - 1, shift)
        assert stats.power(parts, seeds, 50, difference, alpha) == pytest.approx(exact, abs=0.003)


def test_equivalence_where_only_seeds_vary_is_that_of_two_t_tests() -> None:
    """Summed over the variances that may come out."""
    parts = stats.Components(seeds=0.04, items=0.0, rest=0.0, most_seeds=0.04)
    error = 0.2 / 5**0.5
    half = t.ppf(0.95, 4) * error * np.sqrt(chi2.ppf((np.arange(20_000) + 0.5) / 20_000, 4) / 4)
    for margin in (0.15, 0.3):
        exact = (2 * norm.cdf(np.maximum(0, margin - half) / error) - 1).mean()
        assert stats.equivalence_power(parts, 5, 50, margin) == pytest.approx(exact, abs=0.002)


@pytest.mark.parametrize("mechanisms", [2, 3, 5, 30])
def test_power_is_that_of_mean_squares_that_are_drawn(mechanisms: int) -> None:
    """Seeds, items and the rest all vary; the seeds of a pair are those of two mechanisms, one of them the reference."""
    seeds, items, difference, count = 4, 8, 0.45, 40_000
    rng = np.random.default_rng(9)
    variance = {"seeds": 8 * 0.05 + 0.3, "items": 4 * 0.02 + 0.3, "rest": 0.3}
    parts = stats.Components(seeds=0.05, items=0.02, rest=0.3, most_seeds=0.05)
    own, reference, others = (rng.chisquare(3, (count, at)) / 3 for at in (1, 1, max(1, mechanisms - 2)))
    weight = min(5.0, 3 * (mechanisms - 2) / 2)
    drawn = (3 * own[:, 0] + weight * others.mean(axis=1)) / (3 + weight)
    of_seeds = (drawn + reference[:, 0]) / 2 if weight else own[:, 0]
    freedom = (drawn + reference[:, 0]) ** 2 / (drawn**2 / (3 + weight) + reference[:, 0] ** 2 / 3) if weight else 3.0
    squares = (
        variance["seeds"] * of_seeds,
        variance["items"] * rng.chisquare(7, count) / 7,
        variance["rest"] * rng.chisquare(21, count) / 21,
    )
    half = half_widths(squares, seeds, items, 0.05, freedom)
    error = math.sqrt((variance["seeds"] + variance["items"] - variance["rest"]) / 32)
    means = difference + error * rng.normal(size=count)
    assert stats.power(parts, seeds, items, difference, mechanisms=mechanisms) == pytest.approx(
        (np.abs(means) > half).mean(), abs=0.012
    )


def test_the_smallest_difference_scales_with_the_spread_and_has_the_power_of_a_plan() -> None:
    for scale in (1.0, 1e-4, 1e4):
        parts = stats.Components(*(scale**2 * part for part in (0.05**2, 0.1**2, 0.5**2, 0.1**2)))
        smallest = stats.smallest_difference(parts, 3, 100, 0.01, 6)
        assert stats.power(parts, 3, 100, smallest, 0.01, 6) == pytest.approx(0.8, abs=1e-4)
    wide = stats.Components(seeds=1.0, items=0.0, rest=0.0, most_seeds=1.0)
    smallest = stats.smallest_difference(wide, 2, 2)  # the search begins at 1
    assert nct.sf(t.ppf(0.975, 1), 1, smallest * 2**0.5) == pytest.approx(0.8, abs=0.003)


def test_components_by_hand() -> None:
    """Mean squares 13.5, 12.5 and 4.5, four times as much in the doubled table; 3 items and 2 seeds."""
    table = np.array([[1.0, 2.0, 3.0], [1.0, 5.0, 9.0]])
    found = stats.variance_components([table, 2 * table])
    assert (found.seeds, found.items, found.rest) == pytest.approx(((33.75 - 11.25) / 3, (31.25 - 11.25) / 2, 11.25))
    assert found.most_seeds == pytest.approx((33.75 / chi2.ppf(0.2, 1) - 11.25) / 3)
    assert found.cautious == replace(found, seeds=found.most_seeds)


def test_welchs_degrees_of_freedom_lie_between_those_of_one_side_and_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a reference with 3 seeds, 2, and of another mechanism, with those of six that share, 2 + 5."""
    seen: list[tuple[NDArray[np.float64], ...]] = []

    def widths(squares: tuple[NDArray[np.float64], ...], *given: object) -> NDArray[np.float64]:
        seen.append((squares[0], np.asarray(given[-1])))
        return np.ones_like(squares[0])

    monkeypatch.setattr(planning, "half_widths", widths)
    stats.power(SEEDS_VARY, 3, 100, 0.1, mechanisms=7)
    stats.power(SEEDS_VARY, 3, 100, 0.1)
    (square, freedom), (alone, own) = seen
    assert 2 <= freedom.min() < 2.3
    assert 8.5 < freedom.max() <= 9
    assert square.mean() == pytest.approx(100 * 0.05**2 + 0.5**2, rel=0.01)
    assert alone.mean() == pytest.approx(square.mean(), rel=0.01)
    assert (own == 2).all()
