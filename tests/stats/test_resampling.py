from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab import stats
from attnlab.errors import UserError
from attnlab.stats.bootstrap import resampled_sums


def losses(sentences: int, gap: float = 0.05, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.gamma(9.0, 0.6, sentences)
    return a, a + rng.normal(gap, 0.4, sentences), rng.integers(3, 40, sentences)


def test_the_two_perplexities_as_defined() -> None:
    a, b, tokens = losses(300)
    token = stats.paired_bootstrap(a, b, tokens, resamples=100)
    assert token.a == pytest.approx(math.exp((tokens * a).sum() / tokens.sum()))
    assert token.ratio == pytest.approx(token.a / token.b)
    assert token.difference == pytest.approx(token.a - token.b)
    sentence = stats.paired_bootstrap(a, b, tokens, "sentence_perplexity", resamples=100)
    assert sentence.a == pytest.approx(np.exp(a).mean())
    assert sentence.b == pytest.approx(np.exp(b).mean())
    plain = stats.paired_bootstrap(a, b, resamples=100)
    assert plain.a == pytest.approx(math.exp(a.mean()))


@pytest.mark.parametrize("kind", ["token_perplexity", "sentence_perplexity"])
def test_the_interval_is_scipys_bca(kind: stats.bootstrap.Perplexity) -> None:
    a, b, tokens = losses(120)

    def log_ratio(a: np.ndarray, b: np.ndarray, w: np.ndarray, axis: int) -> np.ndarray:
        if kind == "token_perplexity":
            return (w * (a - b)).sum(axis) / w.sum(axis)
        return np.log(np.exp(a).mean(axis)) - np.log(np.exp(b).mean(axis))

    wanted = scipy_stats.bootstrap(
        (a, b, tokens), log_ratio, paired=True, vectorized=True, n_resamples=9999, rng=np.random.default_rng(0)
    ).confidence_interval
    found = stats.paired_bootstrap(a, b, tokens, kind)
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    width = wanted.high - wanted.low
    assert math.log(found.ratio_low) == pytest.approx(wanted.low, abs=0.06 * width)
    assert math.log(found.ratio_high) == pytest.approx(wanted.high, abs=0.06 * width)


def test_draws_are_even_and_come_again() -> None:
    table = np.eye(7)
    draws = resampled_sums(table, 20_000, seed=3)
    assert np.all(draws.sum(axis=1) == 7)
    assert draws.mean(axis=0) == pytest.approx(np.ones(7), abs=0.04)
    assert draws.var(axis=0) == pytest.approx(np.full(7, 6 / 7), abs=0.04)
    assert np.array_equal(draws, resampled_sums(table, 20_000, seed=3))
    assert not np.array_equal(draws, resampled_sums(table, 20_000, seed=4))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, tokens = losses(101)
    whole = stats.paired_bootstrap(a, b, tokens, resamples=333)
    monkeypatch.setattr("attnlab.stats.bootstrap.CHUNK", 250)
    assert stats.paired_bootstrap(a, b, tokens, resamples=333).ratio_low == pytest.approx(whole.ratio_low, abs=1e-12)


def test_swapping_the_sides_inverts_the_ratio() -> None:
    a, b, tokens = losses(200)
    there, back = stats.paired_bootstrap(a, b, tokens), stats.paired_bootstrap(b, a, tokens)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert there.ratio_high is not None
    assert back.ratio_low == pytest.approx(1 / there.ratio_high, rel=1e-6)
    assert back.p == pytest.approx(there.p)


def test_p_and_interval_agree() -> None:
    for seed in range(30):
        a, b, tokens = losses(80, gap=0.09, seed=seed)
        found = stats.paired_bootstrap(a, b, tokens, resamples=2000)
        assert found.p is not None
        assert found.ratio_low is not None
        assert found.ratio_high is not None
        if not 0.045 < found.p < 0.055:
            assert (found.p < 0.05) == (not found.ratio_low <= 1 <= found.ratio_high)


def test_equal_losses_one_sentence_and_losses_beyond_exp() -> None:
    a, b, tokens = losses(50)
    for kind in ("token_perplexity", "sentence_perplexity"):
        same = stats.paired_bootstrap(a, a, tokens, kind)  # type: ignore[arg-type]
        assert (same.ratio, same.p) == (1, 1)
        assert (same.ratio_low, same.ratio_high) == pytest.approx((1, 1))
    alone = stats.paired_bootstrap([2.0], [3.0], [7])
    assert (alone.ratio, alone.ratio_low, alone.p) == (pytest.approx(math.exp(-1)), None, None)
    huge = stats.paired_bootstrap(a + 280, b + 280, tokens, "sentence_perplexity")
    assert huge.ratio == pytest.approx(stats.paired_bootstrap(a, b, tokens, "sentence_perplexity").ratio)
    with pytest.raises(UserError, match="a mean loss of 7"):
        stats.paired_bootstrap(a + 700, b + 700, tokens)


def test_mistakes_are_named() -> None:
    a, b, tokens = losses(10)
    with pytest.raises(
        UserError, match="the losses of B must be finite, but 1 of 10 values are not, the first at position 4"
    ):
        stats.paired_bootstrap(a, np.where(np.arange(10) == 3, np.nan, b), tokens)
    with pytest.raises(UserError, match="statistic must be token_perplexity or sentence_perplexity"):
        stats.paired_bootstrap(a, b, tokens, "perplexity")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="one weight per sentence: 10, not 9"):
        stats.paired_bootstrap(a, b, tokens[:9])
    with pytest.raises(UserError, match="above 0"):
        stats.paired_bootstrap(a, b, tokens * 0)
    with pytest.raises(UserError, match="resamples must be at least 100"):
        stats.paired_bootstrap(a, b, tokens, resamples=10)
    with pytest.raises(UserError, match="must be numbers, in rows of one length"):
        stats.paired_bootstrap([[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0]])


def test_the_interval_over_sentences_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(200):
        tokens = rng.integers(3, 40, 60)
        shift = rng.normal(0.1, 0.5, 60)  # without regard to length, so that the true log ratio is -0.1
        found = stats.paired_bootstrap(np.zeros(60), shift, tokens, resamples=400, seed=trial)
        assert found.ratio_low is not None
        assert found.ratio_high is not None
        hits += found.ratio_low <= math.exp(-0.1) <= found.ratio_high
    assert 0.90 <= hits / 200 <= 0.98


def test_ten_thousand_resamples_of_twelve_thousand_sentences_are_quick() -> None:
    a, b, tokens = losses(12_000)
    began = time.process_time()
    stats.paired_bootstrap(a, b, tokens)
    assert time.process_time() - began < 3  # well below one on a quiet machine


def answers(rng: np.random.Generator, seeds: int, questions: int, seed_spread: float) -> np.ndarray:
    """Right and wrong with hard and easy questions, lucky and unlucky seeds."""
    hard = rng.normal(0, 1.5, questions)
    lucky = rng.normal(0, seed_spread, (seeds, 1))
    return hard + lucky + rng.logistic(size=(seeds, questions)) > 0


def test_pooling_seeds_finds_what_is_not_there_and_crossing_does_not() -> None:
    """Two equal mechanisms whose seeds differ: of tests at 5 %, McNemar over pooled seeds is wrong far too often."""
    rng = np.random.default_rng(6)
    pooled = crossed = 0
    for _ in range(100):
        both = answers(rng, 6, 150, seed_spread=0.6)
        a, b = both[:3], both[3:]
        pooled += stats.mcnemar(a.ravel(), b.ravel()).p < 0.05
        found = stats.seeds_by_questions(a, b)
        assert found.both.p is not None
        crossed += found.both.p < 0.05
    assert pooled > 20
    assert crossed < 12


def test_clustering_by_question_where_seeds_answer_alike() -> None:
    """Three copies of one seed are one oracle: the interval is that of one, not shorter by the root of three."""
    rng = np.random.default_rng(7)
    a, b = rng.random((2, 1, 200)) < 0.4
    one = stats.seeds_by_questions(a, b).both
    three = stats.seeds_by_questions(np.repeat(a, 3, axis=0), np.repeat(b, 3, axis=0)).both
    assert three.low == pytest.approx(one.low)
    assert three.p == pytest.approx(one.p)
    assert stats.mcnemar(np.tile(a[0], 3), np.tile(b[0], 3)).p < stats.mcnemar(a[0], b[0]).p


@pytest.mark.parametrize(("by_seed", "by_item"), [(0.0, 1.0), (0.1, 1.0), (0.5, 1.0), (0.1, 0.0), (0.0, 0.0)])
def test_the_crossed_interval_holds_at_least_as_often_as_it_says(by_seed: float, by_item: float) -> None:
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(400):
        table = by_seed * rng.normal(size=(3, 1)) + by_item * rng.normal(size=(1, 100)) + rng.normal(size=(3, 100))
        found = stats.crossed(table)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0 <= found.high
    assert hits / 400 >= 0.93


def test_crossed_with_one_of_a_kind_is_the_plain_t_test() -> None:
    values = np.random.default_rng(9).normal(0.3, 1, 30)
    wanted = scipy_stats.ttest_1samp(values, 0)
    for table in (values[None, :], values[:, None]):
        found = stats.crossed(table)
        assert found.p == pytest.approx(wanted.pvalue)
        assert found.freedom == pytest.approx(29)
    assert stats.crossed(values[None, :]).error_seeds is None
    assert stats.crossed([[2.0]]).p is None
    assert stats.crossed(np.zeros((3, 5))).p == 1
    assert stats.crossed(np.full((3, 5), 0.1)).low is None


def seeds_and_items(rng: np.random.Generator, seeds: int, by_seed: float) -> np.ndarray:
    """Differences of two equal mechanisms: 450 items, and means of the seeds that vary."""
    return rng.normal(0, by_seed, (seeds, 1)) + rng.normal(0, 0.3, (1, 450)) + rng.normal(0, 0.5, (seeds, 450))


@pytest.mark.parametrize("seeds", [2, 3])
def test_the_tail_is_that_of_the_seeds(seeds: int) -> None:
    """The paired t test over seeds must agree: without it p < 0.001 occurs in 3 to 6 of 100 comparisons of equals."""
    rng = np.random.default_rng(11)
    tiny = tiny_alone = 0
    for _ in range(500):
        table = seeds_and_items(rng, seeds, 0.09)
        found = stats.crossed(table)
        over_seeds = scipy_stats.ttest_1samp(table.mean(axis=1), 0).pvalue
        assert found.p is not None
        assert found.error is not None
        assert found.freedom is not None
        alone = 2 * scipy_stats.t.sf(abs(found.mean) / found.error, found.freedom)
        assert found.p == pytest.approx(max(alone, over_seeds))
        tiny += found.p < 0.001
        tiny_alone += alone < 0.001
    assert tiny <= 3
    assert tiny_alone >= 5


def test_a_mean_square_that_two_factors_share_breaks_nothing() -> None:
    table = np.zeros((3, 50))
    table[1, 15], table[1, 43] = 1, -1
    assert stats.crossed(table).p == 1


def test_equivalence_is_two_one_sided_tests() -> None:
    rng = np.random.default_rng(12)
    found = stats.crossed(seeds_and_items(rng, 5, 0.01))
    assert found.error is not None
    for margin in (0.02, 0.05, 0.2):
        same = found.within(margin, 0.05)
        assert same is not None
        assert same.shown == (-margin < same.low and same.high < margin)
        assert same.shown == (same.p < 0.05)
    low, high = found.interval(0.1)
    assert (low + high) / 2 == pytest.approx(found.mean)


def test_equivalence_is_rarely_shown_at_the_margin() -> None:
    """Where the true difference is the margin itself, equivalence may be shown in 5 of 100 cases, even if few differ."""
    rng = np.random.default_rng(13)
    shown = 0
    for _ in range(200):
        a = rng.random((1, 80)) < 0.5
        b = a & (rng.random((1, 80)) >= 0.1)  # B loses a tenth of what A knows: 5 points
        same = stats.seeds_by_questions(a.repeat(3, 0), b.repeat(3, 0), margin=0.05).equivalence
        shown += same is not None and same.shown
    assert shown <= 17


def test_clusters_take_the_place_of_items() -> None:
    """Ten copies of every item are one observation each."""
    rng = np.random.default_rng(14)
    table = seeds_and_items(rng, 3, 0.02)[:, :60]
    copies, clusters = table.repeat(10, axis=1), np.arange(60).repeat(10).tolist()
    once, pooled = stats.crossed(table), stats.crossed(copies)
    found = stats.crossed(copies, clusters=clusters)
    assert (found.items, found.mean) == (60, pytest.approx(once.mean))
    assert found.error_items == pytest.approx(once.error_items)
    assert pooled.error_items is not None
    assert once.error_items is not None
    assert pooled.error_items < 0.5 * once.error_items
    # Clusters of different sizes: the mean stays that of the items.
    uneven = stats.crossed(table, clusters=[0] * 20 + list(range(1, 41)))
    assert uneven.mean == pytest.approx(once.mean)
    drawn = stats.paired_bootstrap(copies[0], 0 * copies[0], clusters=clusters)
    assert drawn.ratio_low == pytest.approx(stats.paired_bootstrap(table[0], 0 * table[0]).ratio_low, abs=0.03)
    with pytest.raises(UserError, match="one cluster per item: 60, not 3"):
        stats.crossed(table, clusters=[1, 2, 3])


def test_the_interval_of_a_ratio_holds_the_true_one() -> None:
    rng = np.random.default_rng(15)
    hits = 0
    for _ in range(25):
        whole = seeds_and_items(rng, 3, 0.05) - 0.8
        part = 0.1 * whole + seeds_and_items(rng, 3, 0.02) * 0.2
        found = stats.ratio_of_means(part, whole)
        hits += found.low is not None and found.high is not None and found.low <= 0.1 <= found.high
    assert hits >= 21
    assert stats.ratio_of_means(part, whole - whole.mean() + 1e-3).high is None  # nothing to take a share of


def test_several_seeds_of_losses() -> None:
    rng = np.random.default_rng(10)
    base, tokens = rng.gamma(9.0, 0.6, 400), rng.integers(3, 40, 400)
    a = base + rng.normal(0, 0.02, (3, 1)) + rng.normal(0, 0.3, (3, 400))
    b = base + rng.normal(0.05, 0.02, (3, 1)) + rng.normal(0, 0.3, (3, 400))
    for kind in ("token_perplexity", "sentence_perplexity"):
        found = stats.paired_bootstrap(a, b, tokens, kind)  # type: ignore[arg-type]
        assert found.both is not None
        assert found.both.mean == pytest.approx(math.log(found.ratio))
        assert found.both.seeds == 3
        alone = stats.paired_bootstrap(a[0], b[0], tokens, kind, resamples=100)  # type: ignore[arg-type]
        assert alone.both is None
        # What crossing says of sentences is what resampling them says.
        assert found.both.error_items is not None
        assert found.ratio_high is not None
        assert found.ratio_low is not None
        drawn = math.log(found.ratio_high / found.ratio_low) / (2 * 1.96)
        assert found.both.error_items == pytest.approx(drawn, rel=0.15)


def test_among_coins_the_choice_is_all_there_is() -> None:
    """Twenty sets of twenty coins: the highest share lies well above a half, its corrected one at a half on average."""
    generator = np.random.default_rng(7)
    found = [stats.chosen_best(generator.integers(0, 2, size=(20, 100)), seed) for seed in range(20)]
    assert np.mean([one.apparent for one in found]) > 0.57
    assert np.mean([one.corrected for one in found]) == pytest.approx(0.5, abs=0.02)


def test_one_that_is_clearly_better_is_not_flattered() -> None:
    generator = np.random.default_rng(1)
    right = (generator.random((5, 400)) < np.array([0.5, 0.5, 0.9, 0.5, 0.5])[:, None]).astype(int)
    found = stats.chosen_best(right)
    assert found.best == 2
    assert found.apparent == right[2].mean()
    assert found.corrected == pytest.approx(found.apparent, abs=0.005)


def test_one_candidate_and_the_first_of_equals() -> None:
    alone = stats.chosen_best([[1, 0, 1, 1]])
    assert (alone.best, alone.apparent) == (0, 0.75)
    assert alone.corrected == pytest.approx(0.75, abs=0.02)
    assert stats.chosen_best([[1, 0], [0, 1]]).best == 0
    with pytest.raises(UserError, match="at least two questions"):
        stats.chosen_best([[1], [0]])
