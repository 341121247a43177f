from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab import stats
from attnlab.errors import UserError


def test_the_sentence_that_was_asked_for() -> None:
    said = stats.in_words(stats.two_proportions(83, 500, 94, 500))
    assert said.startswith(
        "no difference shown: 16.6 vs 18.8 % of 500, p = 0.36 unpaired;"
        " about 4,700 questions each would be needed for 80 % power if the true difference is the one observed"
    )
    assert said.endswith(". Differences above 7.0 points are excluded (95 % interval -7.0 to 2.6)")


def test_a_difference_that_is_shown() -> None:
    result = stats.two_proportions(150, 500, 94, 500)
    said = stats.in_words(result, "additive", "dot")
    assert said.startswith("additive better by 11.2 points (5.9 to 16.4), p < 0.001 unpaired; 30.0 vs 18.8 % of 500")
    assert stats.in_words(stats.two_proportions(94, 500, 150, 500), "dot", "additive").startswith(
        "additive better by 11.2 points (5.9 to 16.4), p < 0.001"
    )
    holm = stats.in_words(result, "additive", "dot", adjusted=0.02, comparisons=3)
    assert "additive better by 11.2 points (5.9 to 16.4), p = 0.02 after Holm over 3 comparisons, unpaired" in holm


def test_what_holm_takes_back_is_said() -> None:
    said = stats.in_words(stats.two_proportions(150, 500, 94, 500), adjusted=0.06, comparisons=20)
    assert said.startswith("no difference shown: ")
    assert "p = 0.06 after Holm over 20 comparisons" in said
    assert "its interval excludes zero, but its test does not" in said


def test_an_interval_over_nearly_all_differences_excludes_nothing() -> None:
    a, b = np.zeros((2, 2, 20), dtype=bool)
    a[0, :14], a[1, :2], b[:, :8] = True, True, True
    said = stats.in_words(stats.seeds_by_questions(a, b, alpha=0.004))
    assert said.endswith(". The 99.6 % interval -100.0 to 100.0 excludes almost nothing")
    one_sided = replace(stats.mcnemar(a[0], b[0]), low=-1.0, high=0.024, p=0.2)
    assert stats.in_words(one_sided).endswith(" (95 % interval -100.0 to 2.4)")


def test_the_same_questions() -> None:
    a, b = np.zeros((2, 500), dtype=bool)
    a[:83], b[:70], b[200:224] = True, True, True
    said = stats.in_words(stats.mcnemar(a, b), "dot", "gqa")
    assert said.startswith(
        "no difference shown: 16.6 vs 18.8 % of the same 500, p = 0.099 paired (exact McNemar, 13 right with dot only,"
        " 24 with gqa only); about 1,200 questions would be needed for 80 % power if the true difference is the one observed."
    )
    never = stats.in_words(stats.mcnemar(a, a))
    assert "needed" not in never
    assert "Differences above 0.8 points are excluded" in never


def test_equivalence_is_a_test_of_its_own() -> None:
    rng = np.random.default_rng(3)
    same = rng.random(2000) < 0.5
    other = np.where(rng.random(2000) < 0.02, ~same, same)
    said = stats.in_words(stats.mcnemar(same, other, margin=0.02), "dot", "gqa")
    assert said.startswith("no difference shown: ")
    assert re.search(
        r"\. Equivalent within 2.0 points: two one-sided tests, p < 0.001, 90 % interval -?\d\.\d to", said
    )
    assert "excluded" not in said
    strict = stats.in_words(stats.mcnemar(same, other, margin=0.002), "dot", "gqa")
    assert "Equivalence within 0.2 points is not shown: two one-sided tests, p = " in strict
    several = stats.mcnemar(same, other, alpha=0.05 / 3, margin=0.02)
    said = stats.in_words(several, adjusted=1.0, comparisons=3)
    assert "which must be below 0.017 for this many comparisons and looks, 96.7 % interval" in said


def test_what_is_excluded_is_adjusted_like_the_p_beside_it() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.random((2, 3, 300)) < 0.5
    alone, adjusted = stats.seeds_by_questions(a, b), stats.seeds_by_questions(a, b, alpha=0.01)
    assert alone.both.low is not None
    assert adjusted.both.low is not None
    assert adjusted.both.low < alone.both.low
    said = stats.in_words(adjusted, adjusted=0.9, comparisons=5)
    assert f"(99 % interval {math.floor(1000 * adjusted.both.low) / 10:.1f} to " in said


def test_seeds_by_questions() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((3, 400)) < 0.5, rng.random((3, 400)) < 0.3
    said = stats.in_words(stats.seeds_by_questions(a, b))
    assert said.startswith("A better by ")
    assert "for new seeds and new questions; " in said
    assert "% of 400 questions x 3 seeds" in said
    alone = stats.in_words(stats.seeds_by_questions(a[:1], b[:1]))
    assert "with this one seed" in alone
    assert "no test: 100.0 vs 0.0 %" in stats.in_words(stats.seeds_by_questions([[True]], [[False]]))


def test_the_lower_perplexity_is_the_better_one() -> None:
    rng = np.random.default_rng(1)
    a, tokens = rng.gamma(9, 0.6, (1, 2000)), np.full(2000, 9)
    worse = stats.compare_perplexities(a + 0.1 + rng.normal(0, 0.1, (1, 2000)), a, tokens)
    said = stats.in_words(worse, "dot", "additive")
    assert said.startswith("additive better, its token perplexity lower by 9.")
    assert "p < 0.001" in said or "p = 0.00" in said
    same = stats.in_words(stats.compare_perplexities(a, a, tokens))
    assert same.startswith("no difference shown: token perplexity ")
    two = stats.compare_perplexities(np.vstack([a, a + 0.01]), np.vstack([a, a + 0.02]), tokens)
    seeds = stats.in_words(two)
    assert "on 2,000 sentences x 2 seeds, " in seeds
    assert "for new seeds and new sentences" in seeds


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0, 1))
def test_words_never_promise_more_than_the_test(x: int, y: int, adjusted: float) -> None:
    result = stats.two_proportions(x, 60, y, 60)
    for said, p in (
        (stats.in_words(result), result.p),
        (stats.in_words(result, adjusted=adjusted, comparisons=2), adjusted),
    ):
        assert ("better" in said) == (p < 0.05)
        assert ("no difference shown" in said) == (p >= 0.05)
        assert re.search(r"p [=<] 0?\.?\d", said)
        assert not re.search("significant|no difference[^ s]|nan|inf", said)
        if told := re.search(r"above (\S+) points are excluded \(95 % interval (\S+) to (\S+)\)", said):
            reach, low, high = map(float, told.groups())
            assert reach == max(abs(low), abs(high))
            assert low <= 100 * result.low + 1e-6
            assert high >= 100 * result.high - 1e-6


def test_p_is_not_rounded_over_its_threshold() -> None:
    assert stats.p_in_words(0.362) == "p = 0.36"
    assert stats.p_in_words(0.0750) == "p = 0.075"
    assert stats.p_in_words(0.02) == "p = 0.02"
    assert stats.p_in_words(0.0004) == "p < 0.001"
    assert stats.p_in_words(0.04996) == "p = 0.04996"
    assert stats.p_in_words(0.05001) == "p = 0.05"
    assert stats.p_in_words(0.999) == "p = 1"


def test_requests_that_make_no_sense() -> None:
    result = stats.two_proportions(3, 10, 4, 10)
    with pytest.raises(UserError, match="adjusted p belongs to several comparisons"):
        stats.in_words(result, adjusted=0.1)
    with pytest.raises(UserError, match="adjusted p belongs to several comparisons"):
        stats.in_words(result, comparisons=3)
    with pytest.raises(TypeError, match="no words for a float"):
        stats.in_words(0.5)  # type: ignore[arg-type]


def test_a_difference_at_the_edge_says_so() -> None:
    result = stats.two_proportions(150, 500, 94, 500)
    edge = stats.in_words(replace(result, low=-0.01, p=0.04))
    assert edge.endswith(
        "30.0 vs 18.8 % of 500; at the edge: the interval includes zero, since it is wider than Holm requires"
    )
    assert "at the edge" in stats.in_words(replace(result, low=0.0, p=0.04))
    assert "at the edge" not in stats.in_words(replace(result, low=0.01, p=0.04))
    assert stats.in_words(replace(result, p=0.05)).startswith("no difference shown: ")
    assert "p = 0.06 after Holm over 3 comparisons and correction for 2 looks, unpaired" in stats.in_words(
        result, adjusted=0.06, comparisons=3, looks=2
    )


def test_sides_with_different_questions() -> None:
    told = stats.in_words(stats.two_proportions(15, 50, 94, 1500), item="name")
    assert told.startswith("A better by 23.7 points (")
    assert told.endswith("; 30.0 % of 50 vs 6.3 % of 1,500")
    few = stats.in_words(stats.two_proportions(8, 20, 15, 25), item="name")
    assert "; 97 names each would be needed for 80 % power if the true difference is the one observed" in few


def test_one_of_a_kind_is_in_the_singular() -> None:
    told = stats.in_words(stats.seeds_by_questions([[True], [True]], [[False], [True]]), item="name")
    assert " % of 1 name x 2 seeds, p = 0.5 for new seeds and new names" in told
    alone = stats.in_words(stats.seeds_by_questions([[True, True, False]], [[False, True, False]]))
    assert " % of 3 questions x 1 seed, p = 0.42 for new questions, with this one seed" in alone
    nothing = stats.in_words(stats.seeds_by_questions([[True]], [[False]]))
    assert nothing == "no test: 100.0 vs 0.0 % of 1 question x 1 seed; nothing varies: run more to generalise"


@pytest.mark.parametrize(
    ("low", "high", "ending"),
    [
        (-0.0341, 0.0259, ". Differences above 3.5 points are excluded (95 % interval -3.5 to 2.6)"),  # outwards
        (-0.02, 0.05, ". Differences above 5.0 points are excluded (95 % interval -2.0 to 5.0)"),
        (-1.0, 0.2, " (95 % interval -100.0 to 20.0)"),
        (-0.9, 1.0, " (95 % interval -90.0 to 100.0)"),
        (-0.91, 1.0, ". The 95 % interval -91.0 to 100.0 excludes almost nothing"),
        (-0.999, 0.998, ". Differences above 99.9 points are excluded (95 % interval -99.9 to 99.8)"),
    ],
)
def test_what_an_interval_excludes(low: float, high: float, ending: str) -> None:
    result = replace(stats.two_proportions(83, 500, 94, 500), low=low, high=high)
    assert stats.in_words(result).endswith(f"is the one observed{ending}")


def test_large_perplexities_are_excluded_above_a_hundred_percent() -> None:
    result = stats.compare_perplexities([[1.0, 2.0, 4.0]], [[2.0, 1.0, 4.5]], [1, 1, 1])
    wide = replace(result, both=replace(result.both, low=math.log(0.5), high=math.log(3)))
    assert stats.in_words(wide).endswith(". Differences above 200.0 % are excluded (95 % interval -50.0 to 200.0)")
    assert " vs 12.18 on 3 sentences, p = " in stats.in_words(wide)


def test_equivalence_of_perplexities_is_in_percent() -> None:
    result = stats.compare_perplexities([[1.0, 2.0, 4.0]], [[2.0, 1.0, 4.5]], [1, 1, 1])
    same = stats.Equivalence(math.log(1.02), math.log(0.99), math.log(1.01), 0.01, 0.05)
    told = stats.in_words(replace(result, equivalence=same))
    assert told.endswith(". Equivalent within 2.0 %: two one-sided tests, p = 0.01, 90 % interval -1.0 to 1.0")


def test_p_below_a_thousandth_is_not_told_exactly() -> None:
    assert [stats.p_in_words(p) for p in (0.00099, 0.001, 0.0123)] == ["p < 0.001", "p = 0.001", "p = 0.012"]
    assert stats.p_in_words(0.0096, alpha=0.0095) == "p = 0.0096"
    assert stats.p_in_words(0.05 - 1e-7) == "p = 0.0499999"
    assert stats.p_in_words(0.05 - 1e-9) == "p = 0.049999999"


def test_counts_are_rounded_from_a_hundred_on() -> None:
    """What it takes is told with two digits."""
    result = stats.two_proportions(83, 500, 94, 500)
    for count, words in ((99, "; 99 "), (100, "; about 100 "), (4749, "; about 4,700 "), (123_456, "; about 120,000 ")):
        assert words + "questions each" in stats.in_words(replace(result, questions_needed=count))


def test_equivalence_over_seeds_is_in_points() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random((2, 3, 100)) < 0.5
    result = stats.seeds_by_questions(a, b)
    same = stats.Equivalence(0.05, -0.021, 0.034, 0.01, 0.05)
    told = stats.in_words(replace(result, equivalence=same))
    assert told.endswith(". Equivalent within 5.0 points: two one-sided tests, p = 0.01, 90 % interval -2.1 to 3.4")
