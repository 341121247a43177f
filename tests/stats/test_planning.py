from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from attnlab import stats
from attnlab.errors import UserError


def test_sample_sizes_as_known() -> None:
    assert stats.sample_size(0.166, 0.188) == 4724
    assert stats.sample_size(0.50, 0.75, power=0.9) == 77  # R: power.prop.test gives 76.7
    assert stats.power(0.50, 0.75, 50) == pytest.approx(0.740, abs=1e-3)  # R: the same
    assert [stats.seeds_needed(1.0, effect) for effect in (0.2, 0.5, 0.8)] == [199, 34, 15]  # G*Power, paired t


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
    assert stats.power(p1, p2, questions, discordant=discordant) == pytest.approx(0.8, abs=0.01)


@given(st.floats(0.02, 0.98), st.floats(0.02, 0.98), st.floats(0.5, 0.95))
def test_size_and_power_fit_together(p1: float, p2: float, power: float) -> None:
    if abs(p1 - p2) < 1e-3:
        return
    for discordant in (None, stats.discordance(p1, p2)):
        needed = stats.sample_size(p1, p2, power, discordant=discordant)
        assert stats.power(p1, p2, needed, discordant=discordant) >= power - 1e-6
        if needed > 5:
            assert stats.power(p1, p2, needed - 2, discordant=discordant) < power + 1e-3
        assert stats.sample_size(p2, p1, power, discordant=discordant) == needed


@given(st.floats(0.1, 0.4), st.floats(0.02, 0.3))
def test_more_of_anything_helps(share: float, gain: float) -> None:
    other = share + gain
    assert stats.sample_size(share, other) >= stats.sample_size(share, other + 0.05)
    assert stats.sample_size(share, other, 0.9) >= stats.sample_size(share, other, 0.8)
    assert stats.sample_size(share, other, alpha=0.01) >= stats.sample_size(share, other)
    assert stats.sample_size(share, other, discordant=gain) <= stats.sample_size(share, other)
    assert stats.power(share, other, 100) < stats.power(share, other, 200)
    assert stats.power(share, share, 100) == pytest.approx(0.05)


def test_what_can_be_found_is_what_has_the_power() -> None:
    gain = stats.detectable(0.17, 500)
    other = 0.17 + gain
    assert stats.power(0.17, other, 500, discordant=stats.discordance(0.17, other)) == pytest.approx(0.8, abs=1e-6)
    assert stats.detectable(0.17, 5000) < gain
    unpaired = stats.detectable(0.17, 500, paired=False)
    assert stats.power(0.17, 0.17 + unpaired, 500) == pytest.approx(0.8, abs=1e-6)
    effect = stats.detectable_by_seeds(3)
    assert stats.power_of_seeds(1.0, effect, 3) == pytest.approx(0.8, abs=1e-6)
    assert stats.detectable_by_seeds(10) < effect
    assert stats.seeds_needed(1.0, effect) == 3


def test_the_power_of_seeds_by_simulation() -> None:
    rng = np.random.default_rng(0)
    found = sum((stats.paired(row, np.zeros(4)).p or 1) < 0.05 for row in rng.normal(1.5, 1.0, (600, 4)))
    assert found / 600 == pytest.approx(stats.power_of_seeds(1.0, 1.5, 4), abs=0.05)


def test_huge_effects_do_not_confuse_it() -> None:
    assert stats.power_of_seeds(1e-6, 1.0, 3) == pytest.approx(1.0)
    assert stats.seeds_needed(1e-6, 1.0) == 2
    assert stats.power(0.0, 1.0, 1, discordant=1.0) == 0
    assert stats.power(0.0, 1.0, 4, discordant=1.0) == 1


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="equal shares cannot be told apart"):
        stats.sample_size(0.5, 0.5)
    with pytest.raises(UserError, match=r"disagree on 10 to 50 % of the questions, not on 5 %"):
        stats.sample_size(0.2, 0.3, discordant=0.05)
    with pytest.raises(UserError, match="power must lie between 0 and 1"):
        stats.sample_size(0.2, 0.3, power=80)
    with pytest.raises(UserError, match=r"a share must lie in \[0, 1\], not 20"):
        stats.sample_size(20, 0.3)
    with pytest.raises(UserError, match="difference of 0"):
        stats.seeds_needed(1.0, 0.0)
    with pytest.raises(UserError, match="standard deviation must be above 0"):
        stats.seeds_needed(0.0, 1.0)
    with pytest.raises(UserError, match="difference must be finite"):
        stats.seeds_needed(1.0, math.nan)
    with pytest.raises(UserError, match="too few to find any gain"):
        stats.detectable(0.9, 4)
    with pytest.raises(UserError, match="too small compared to its standard deviation"):
        stats.seeds_needed(1.0, 1e-9)


def test_advice_in_words() -> None:
    lines = stats.advice(questions=500, share=0.17, seeds=3, difference=0.022, sd=0.02, seed_difference=0.03)
    text = "\n".join(lines)
    gain = 100 * stats.detectable(0.17, 500)
    assert f"a gain of {gain:.1f} points over 17 %" in text
    assert "to find 2.2 points over 17 %: about 4,800 questions" in text
    assert f"3 seeds: a mean difference of {stats.detectable_by_seeds(3):.1f} times the spread" in text
    assert "cannot fall below p = 0.25; from 6 seeds on" in text
    assert f"{stats.seeds_needed(0.02, 0.03)} seeds each" in text
    assert stats.advice() == []


def test_advice_for_several_comparisons_is_stricter() -> None:
    three = stats.advice(questions=500, share=0.17, seeds=6, comparisons=3)
    assert "p below 0.017" in three[0]
    assert f"{100 * stats.detectable(0.17, 500, alpha=0.05 / 3):.1f} points" in three[1]
    assert any("cannot fall below p = 0.031" in line for line in three)
    assert len(stats.advice(seeds=6)) == 1
    assert "train at least 3" in stats.advice(seeds=1)[0]
    assert "too few" in stats.advice(questions=3)[0]
    assert "disagree on 10 %" in stats.advice(difference=0.02, share=0.17, discordant=0.1)[0]
    with pytest.raises(UserError, match="a gain over"):
        stats.advice(difference=0.6, share=0.5)
