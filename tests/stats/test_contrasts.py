"""Several pairs tested together, the parts of a ratio of perplexities, and which test small tables get."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2_contingency, fisher_exact

from attnlab import stats
from attnlab.errors import UserError
from attnlab.stats.wording import contrasts

RNG = np.random.default_rng(0)
STRONG, WEAK, OTHER = ((RNG.random((3, 200)) < share).astype(float) for share in (0.7, 0.5, 0.52))


def test_pairs_of_single_runs_are_tested_by_mcnemar_with_holms_correction() -> None:
    pairs = [("a", "b", STRONG[:1], WEAK[:1], None), ("a", "c", STRONG[:1], OTHER[:1], 0.05)]
    plain = [stats.mcnemar(first[0], second[0], 0.025) for *_, first, second, _ in pairs]
    found = contrasts(pairs)
    assert [(one.a, one.b) for one in found] == [("a", "b"), ("a", "c")]
    assert [(one.low, one.high, one.p) for one in found] == [(one.low, one.high, one.p) for one in plain]
    assert [one.adjusted for one in found] == stats.holm([one.p for one in plain])
    assert found[0].sentence == f"a against b: {found[0].words}."


def test_pairs_of_several_seeds_are_tested_for_new_seeds_and_questions() -> None:
    (found,) = contrasts([("a", "b", STRONG, WEAK, None)], alpha=0.1)
    plain = stats.seeds_by_questions(STRONG, WEAK, alpha=0.1).both
    assert (found.low, found.high, found.p, found.adjusted) == (plain.low, plain.high, plain.p, plain.p)
    first, _ = contrasts([("a", "b", STRONG, WEAK, None), ("a", "c", STRONG, OTHER, None)], alpha=0.1)
    wider = stats.seeds_by_questions(STRONG, WEAK, alpha=0.05).both
    assert (first.low, first.high) == (wider.low, wider.high)
    assert first.adjusted > first.p


def test_what_sentences_add_to_a_ratio_has_the_ratio_as_its_mean() -> None:
    a, b, weights = RNG.random((2, 30)) + 2, RNG.random((2, 30)) + 1, RNG.integers(1, 9, 30).astype(float)
    table = stats.log_perplexities(a, weights) - stats.log_perplexities(b, weights)
    assert table.shape == (2, 30)
    expected = [((x - y) * weights).sum() / weights.sum() for x, y in zip(a, b, strict=True)]
    assert table.mean(axis=1) == pytest.approx(expected)


@pytest.mark.parametrize(("right_a", "right_b", "exact"), [(3, 6, True), (3, 7, False), (4, 6, False), (17, 13, False)])
def test_tables_that_expect_fewer_than_five_in_a_cell_are_tested_exactly(
    right_a: int, right_b: int, exact: bool
) -> None:
    """20 questions each: the smallest expected count is half of the smaller margin."""
    found = stats.two_proportions(right_a, 20, right_b, 20)
    table = [[right_a, 20 - right_a], [right_b, 20 - right_b]]
    fisher, chi2 = fisher_exact(table).pvalue, chi2_contingency(table, correction=False).pvalue
    assert found.p == pytest.approx(fisher if exact else chi2)
    assert fisher != pytest.approx(chi2)


def perplexities(ratio: float, low: float, high: float, p: float, seeds: int = 2) -> str:
    """The words for a ratio of perplexities with this interval."""
    losses, tokens = RNG.random((2, seeds, 40)) + 1, np.full(40, 5)
    result = stats.compare_perplexities(*losses, tokens)
    both = replace(result.both, low=np.log(low), high=np.log(high), p=p)
    return stats.in_words(replace(result, ratio=ratio, both=both), "dot", "gqa")


@pytest.mark.parametrize(("seeds", "how"), [(2, "for new seeds and new sentences"), (1, "with this one seed")])
def test_a_ratio_of_perplexities_is_the_gain_of_the_better_side(seeds: int, how: str) -> None:
    worse = perplexities(1.25, 1.1, 1.4, 0.01, seeds)  # 1 - 1 / 1.25, from 1 - 1 / 1.1 to 1 - 1 / 1.4
    assert worse.startswith("gqa better, its token perplexity lower by 20.0 % (9.1 to 28.6), p = 0.01 ")
    assert how in worse
    better = perplexities(0.8, 0.7, 0.9, 0.01, seeds)
    assert better.startswith("dot better, its token perplexity lower by 20.0 % (10.0 to 30.0), p = 0.01 ")
    same = perplexities(1.02, 0.9, 1.2, 0.3, seeds)
    assert same.startswith("no difference shown: token perplexity ")
    assert same.endswith(". Differences above 20.0 % are excluded (95 % interval -10.0 to 20.0)")


def test_answers_without_any_spread_have_no_interval_to_tell() -> None:
    said = stats.in_words(stats.seeds_by_questions(STRONG, STRONG))
    assert said.startswith("no difference shown: ")
    assert said.endswith(" for new seeds and new questions")


def test_the_degrees_of_freedom_are_satterthwaites() -> None:
    table = np.array([[1.0, 2, 4, 9], [2, 3, 6, 9], [4, 6, 7, 13]])
    grand, by_seed, by_item = table.mean(), table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_item + grand
    squares = (4 * ((by_seed - grand) ** 2).sum() / 2, 3 * ((by_item - grand) ** 2).sum() / 3, (rest**2).sum() / 6)
    total = squares[0] + squares[1] - squares[2]
    found = stats.crossed(table)
    assert found.error == pytest.approx((total / 12) ** 0.5)
    assert found.freedom == pytest.approx(
        total**2 / sum(s**2 / free for s, free in zip(squares, (2, 3, 6), strict=True))
    )


def test_gains_of_less_than_a_point_keep_their_sign() -> None:
    said = stats.in_words(stats.two_proportions(50_500, 100_000, 50_000, 100_000))
    assert said.startswith("A better by 0.5 points (0.1 to 0.9), p = 0.025 ")


@pytest.mark.parametrize(("margin", "words"), [(0.02, "within 2.0 points"), (0.0125, "within 1.25 points")])
def test_a_margin_is_told_with_the_decimals_that_it_has(margin: float, words: str) -> None:
    assert words in stats.in_words(stats.mcnemar(WEAK[0], WEAK[1], margin=margin))


def test_equivalence_over_seeds_adds_two_questions_that_differ() -> None:
    found = stats.seeds_by_questions(WEAK, OTHER, margin=0.2).equivalence
    more = np.column_stack([np.ones(3), -np.ones(3), WEAK - OTHER])
    assert found == stats.crossed(more).within(0.2, 0.05)
    assert found is not None
    assert found.margin == 0.2


def test_perplexities_of_one_seed_are_equivalent_where_the_interval_is_within_the_margin() -> None:
    losses, tokens = RNG.random((1, 60)) + 1, np.full(60, 5)
    near, far = losses + 0.01 * RNG.normal(size=(1, 60)), losses - 0.3 + 0.01 * RNG.normal(size=(1, 60))
    for other, margin, shown in ((near, 0.05, True), (near, 0.0001, False), (far, 0.05, False), (far, 0.5, True)):
        found = stats.compare_perplexities(losses, other, tokens, margin=margin).equivalence
        assert found is not None
        assert found.margin == pytest.approx(np.log1p(margin))
        within = -found.margin < found.low <= found.high < found.margin
        assert (found.shown, within, found.p < 0.05) == (shown, shown, shown)
        assert 0 <= found.p <= 1


def test_two_looks_need_a_corrected_p() -> None:
    result = stats.two_proportions(150, 500, 94, 500)
    assert "p = 0.02 after correction for 2 looks, unpaired" in stats.in_words(result, adjusted=0.02, looks=2)
    with pytest.raises(UserError, match="an adjusted p belongs to several comparisons or looks"):
        stats.in_words(result, looks=2)
