"""Seeds crossed with items: perplexities, clusters, variances shared by several pairs, ratios, and choices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab import stats
from attnlab.errors import UserError
from attnlab.stats.crossed import by_cluster, mean_squares, shared_freedom, variance_of_mean


def losses(sentences: int, gap: float = 0.05, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.gamma(9.0, 0.6, (1, sentences))
    return a, a + rng.normal(gap, 0.4, (1, sentences)), rng.integers(3, 40, sentences)


def test_the_two_perplexities_as_defined() -> None:
    a, b, tokens = losses(300)
    found = stats.compare_perplexities(a, b, tokens)
    assert found.a == pytest.approx(math.exp((tokens * a).sum() / tokens.sum()))
    assert found.ratio == pytest.approx(found.a / found.b)
    assert (found.seeds, found.sentences) == (1, 300)
    table = stats.log_perplexities(a, None)
    assert math.exp(table.mean()) == pytest.approx(np.exp(a).mean())
    assert table.var() == pytest.approx((np.exp(a) / np.exp(a).mean()).var())


def test_one_seed_is_the_t_test_over_sentences() -> None:
    a, b, _ = losses(80)
    found = stats.compare_perplexities(a, b, [5] * 80)
    wanted = scipy_stats.ttest_rel(a[0], b[0])
    ends = wanted.confidence_interval()
    assert found.both.p == pytest.approx(wanted.pvalue)
    assert (found.both.low, found.both.high) == pytest.approx((ends.low, ends.high))


def test_swapping_the_sides_inverts_the_ratio() -> None:
    a, b, tokens = losses(200)
    there, back = stats.compare_perplexities(a, b, tokens), stats.compare_perplexities(b, a, tokens)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert there.both.high is not None
    assert back.both.low == pytest.approx(-there.both.high)
    assert back.both.p == pytest.approx(there.both.p)


def test_equal_losses_and_one_sentence() -> None:
    a, _, tokens = losses(50)
    same = stats.compare_perplexities(a, a, tokens)
    assert (same.ratio, same.both.p, same.both.low) == (1, 1, None)
    alone = stats.compare_perplexities([[2.0]], [[3.0]], [7])
    assert (alone.ratio, alone.both.low, alone.both.p) == (pytest.approx(math.exp(-1)), None, None)


def test_mistakes_are_named() -> None:
    a, b, tokens = losses(10)
    with pytest.raises(
        UserError, match="the losses of B must be finite, but 1 of 10 values are not, the first at position 4"
    ):
        stats.compare_perplexities(a, np.where(np.arange(10) == 3, np.nan, b), tokens)
    with pytest.raises(UserError, match="one number of tokens per sentence: 10"):
        stats.compare_perplexities(a, b, tokens[:9])
    with pytest.raises(UserError, match="above 0"):
        stats.compare_perplexities(a, b, tokens * 0)
    with pytest.raises(UserError, match="must be numbers, in rows of one length"):
        stats.compare_perplexities([[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0]], [1, 2])


def test_the_interval_over_sentences_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(400):
        tokens = rng.integers(3, 40, 60)
        shift = rng.normal(0.1, 0.5, (1, 60))  # without regard to length, so that the true log ratio is -0.1
        both = stats.compare_perplexities(0 * shift, shift, tokens).both
        assert both.low is not None
        assert both.high is not None
        hits += both.low <= -0.1 <= both.high
    assert 0.91 <= hits / 400 <= 0.98


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
    assert (found.error, found.freedom) == (pytest.approx(once.error), pytest.approx(once.freedom))
    assert pooled.error is not None
    assert once.error is not None
    assert pooled.error < once.error
    # Clusters of different sizes: the mean stays that of the items.
    uneven = stats.crossed(table, clusters=[0] * 20 + list(range(1, 41)))
    assert uneven.mean == pytest.approx(once.mean)
    one_row = stats.crossed(copies[:1], clusters=clusters)
    assert one_row.p == pytest.approx(stats.crossed(table[:1]).p)
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


def test_a_ratio_at_the_ends_of_its_interval_is_just_rejected() -> None:
    rng = np.random.default_rng(16)
    whole = rng.normal(1.0, 0.3, (4, 1)) + rng.normal(0, 0.2, (4, 30))
    part = 0.5 * whole + rng.normal(0.0, 0.1, (4, 30))
    found = stats.ratio_of_means(part + 2, whole)
    assert found.value == pytest.approx((part.mean() + 2) / whole.mean())
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.value > 1.5 * (found.value - found.low)  # the ends differ in their distance
    for end in (found.low, found.high):
        assert stats.crossed(part + 2 - end * whole).p == pytest.approx(0.05, abs=1e-4)


def test_clusters_of_different_sizes_count_as_fewer_and_too_few_are_not_tested() -> None:
    rng = np.random.default_rng(17)
    sizes = [90, 2, 2, 2, 2, 2]
    clusters = np.repeat(np.arange(6), sizes).tolist()
    found = stats.crossed(rng.normal(size=(1, 100)) + 5, clusters=clusters)
    assert found.freedom == pytest.approx(max(1.0, 100**2 / sum(size**2 for size in sizes) - 1))
    even = stats.crossed(rng.normal(size=(1, 60)), clusters=np.repeat(np.arange(6), 10).tolist())
    assert even.freedom == pytest.approx(5)
    few = stats.crossed(rng.normal(size=(2, 50)), clusters=np.repeat(np.arange(5), 10).tolist())
    assert (few.items, few.p, few.low, few.within(1.0, 0.05), few.chance(0.0)) == (5, None, None, None, None)
    assert few.note.startswith("5 documents or people, whose items are alike, are too few for a test: use at least 6")


def test_few_documents_of_very_different_sizes_rarely_seem_to_differ() -> None:
    rng = np.random.default_rng(18)
    false = 0
    for _ in range(500):
        sizes = np.maximum(1, rng.lognormal(3, 1.3, 8)).astype(int)
        clusters = np.repeat(np.arange(8), sizes)
        values = (0.6 * rng.normal(size=8))[clusters] + rng.normal(size=len(clusters))
        p = stats.crossed(values[None], clusters=clusters.tolist()).p
        false += p is not None and p < 0.05
    assert false / 500 < 0.085  # 17 % if every document counts as one


def many(rng: np.random.Generator, mechanisms: int, spread: float = 0.07, noisy: float = 1.0) -> dict[str, np.ndarray]:
    """Tables of equal mechanisms with three seeds; the seeds of the first vary `noisy` times as much."""
    items = rng.normal(0, 0.3, (1, 200))
    scales = [noisy, *[1.0] * (mechanisms - 1)]
    return {
        f"m{at}": items + spread * scale * rng.normal(size=(3, 1)) + rng.normal(0, 0.3, (3, 200))
        for at, scale in enumerate(scales)
    }


def test_a_variance_is_drawn_towards_the_mean_of_the_others_and_that_of_the_reference_is_not() -> None:
    tables = many(np.random.default_rng(1), 14)
    pairs = [(f"m{at}", "m0") for at in range(1, 14)]
    shared = stats.shared_seeds(tables, pairs)[0]
    assert shared is not None
    squares = [200 * table.mean(axis=1).var(ddof=1) for table in tables.values()]
    drawn = (2 * squares[1] + 5 * np.mean(squares[2:])) / 7
    assert shared.square == pytest.approx(drawn + squares[0])
    assert shared.freedom == pytest.approx(shared.square**2 / (drawn**2 / 7 + squares[0] ** 2 / 2))
    alone, found = (stats.crossed(tables["m1"] - tables["m0"], shared=one) for one in (None, shared))
    assert (alone.freedom_seeds, found.freedom_seeds) == (2.0, shared.freedom)
    assert found.error_seeds == pytest.approx(math.sqrt(shared.square / 600))
    assert [shared_freedom(*case) for case in ((2, 13), (3, 1), (3, 2), (3, 4), (5, 3))] == [0, 0, 1, 3, 4]


def test_seeds_that_vary_more_than_the_others_share_nothing() -> None:
    calm = many(np.random.default_rng(2), 8)
    pairs = [(f"m{at}", "m0") for at in range(1, 8)]
    assert None not in stats.shared_seeds(calm, pairs)
    wild = {**calm, "m3": calm["m3"] + np.array([[-2.0], [0.0], [2.0]])}
    assert [one is None for one in stats.shared_seeds(wild, pairs)] == [at == 3 for at in range(1, 8)]
    # A reference alone varies: the others draw nothing from it, and it nothing from them.
    noisy = {**calm, "m0": calm["m0"] + np.array([[-2.0], [0.0], [2.0]])}
    quiet, loud = (stats.shared_seeds(tables, pairs)[0] for tables in (calm, noisy))
    assert quiet is not None
    assert loud is not None
    assert loud.square > 100 * quiet.square
    assert loud.freedom == pytest.approx(2, abs=0.05)
    assert stats.shared_seeds({"m0": calm["m0"], "m1": calm["m1"]}, [("m1", "m0")]) == [None]
    chain = [(f"m{at + 1}", f"m{at}") for at in range(7)]  # no reference: only the ends would share
    assert stats.shared_seeds(calm, chain) == [None] * 7
    two = {name: table[:2] for name, table in calm.items()}
    assert stats.shared_seeds(two, pairs) == [None] * 7


def test_sharing_finds_what_pairs_alone_do_not_and_nothing_that_is_not_there() -> None:
    rng, pairs, level = np.random.default_rng(3), [(f"m{at}", "m0") for at in range(1, 14)], 0.05 / 13
    found, false = {True: 0, False: 0}, 0
    for _ in range(60):
        tables = many(rng, 14)
        tables["m1"] = tables["m1"] + 0.25
        for together in (True, False):
            shared = stats.shared_seeds(tables, pairs) if together else [None] * 13
            p = [
                stats.crossed(tables[a] - tables[b], shared=one).p or 1.0
                for (a, b), one in zip(pairs, shared, strict=True)
            ]
            found[together] += p[0] < level
            false += together and min(p[1:]) < level
    assert found[True] > 22 > 11 > found[False]
    assert false <= 6


def test_probabilities_are_those_of_a_t_distribution_around_the_mean() -> None:
    table = np.random.default_rng(5).normal(0.6, 1.0, (1, 40))
    found = stats.crossed(table)
    law = scipy_stats.t(39, table.mean(), table.std(ddof=1) / 40**0.5)
    assert found.chance(0.0) == pytest.approx(law.sf(0.0))
    assert found.chance(-0.1, 0.1) == pytest.approx(law.cdf(0.1) - law.cdf(-0.1))
    # The wider of the two errors counts.
    seeds = replace(found, error_seeds=10 * (found.error or 0.0), freedom_seeds=2.0)
    chance = seeds.chance(0.0)
    assert chance is not None
    assert 0.5 < chance < law.sf(0.0)


def test_several_seeds_of_losses() -> None:
    rng = np.random.default_rng(10)
    base, tokens = rng.gamma(9.0, 0.6, 400), rng.integers(3, 40, 400)
    a = base + rng.normal(0, 0.02, (3, 1)) + rng.normal(0, 0.3, (3, 400))
    b = base + rng.normal(0.05, 0.02, (3, 1)) + rng.normal(0, 0.3, (3, 400))
    found = stats.compare_perplexities(a, b, tokens)
    assert (found.both.mean, found.both.seeds) == (pytest.approx(math.log(found.ratio)), 3)
    table = stats.log_perplexities(a, tokens) - stats.log_perplexities(b, tokens)
    assert found.both == stats.crossed(table)


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


def test_mean_squares_by_hand() -> None:
    """Rows have means 2 and 5, columns 1, 3.5 and 6; the rest is 1.5 or -1.5 in the corners, else 0."""
    table = np.array([[1.0, 2.0, 3.0], [1.0, 5.0, 9.0]])
    assert [float(square) for square in mean_squares(table)] == [13.5, 12.5, 4.5]
    assert [float(square) for square in mean_squares(table[:1])] == [0.0, 1.0, 0.0]
    assert [float(square) for square in mean_squares(table[:, 2:])] == [18.0, 0.0, 0.0]
    stacked = mean_squares(np.stack([table, 2 * table]))
    assert [square.tolist() for square in stacked] == [[13.5, 54.0], [12.5, 50.0], [4.5, 18.0]]


@pytest.mark.parametrize(
    ("squares", "variance", "freedom"),
    [
        ((6.0, 4.0, 2.0), 8 / 6, 64 / (36 / 3 + 16 / 5 + 4 / 15)),
        ((6.0, 2.0, 4.0), 6 / 6, 3.0),  # by chance the sum is smaller than one part: the larger counts
        ((2.0, 6.0, 4.0), 6 / 6, 5.0),
        ((3.0, 3.0, 4.0), 3 / 6, 3.0),
    ],
)
def test_the_variance_of_a_mean_by_hand(squares: tuple[float, float, float], variance: float, freedom: float) -> None:
    parts = (np.array(squares[0]), np.array(squares[1]), np.array(squares[2]))
    found = variance_of_mean(parts, (3.0, 5.0, 15.0), 6)
    assert [float(value) for value in found] == pytest.approx([variance, freedom])


def test_the_two_questions_more_are_clusters_of_their_own() -> None:
    rng = np.random.default_rng(19)
    a, b = (rng.random((2, 3, 40)) < 0.5).astype(float)
    clusters = np.arange(40) // 4
    padded = np.column_stack([np.ones(3), -np.ones(3), a - b])
    expected = stats.crossed(padded, clusters=[100, 101, *clusters]).within(0.3, 0.05)
    assert expected is not None
    for shift in (0, 1, 2, 100):
        found = stats.seeds_by_questions(a, b, margin=0.3, clusters=(clusters + shift).tolist()).equivalence
        assert found is not None
        assert (found.low, found.high, found.p) == pytest.approx((expected.low, expected.high, expected.p))
    shared = stats.SharedSeeds(2.0, 4.0)
    with_others = stats.seeds_by_questions(a, b, margin=0.3, shared=shared)
    assert with_others.equivalence == stats.crossed(padded, shared=shared).within(0.3, 0.05)
    assert with_others.both == stats.crossed(a - b, shared=shared)


def test_intervals_of_shares_end_at_one() -> None:
    a = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    found = stats.seeds_by_questions(a, 1 - a).both
    assert (found.low, found.high) == (-1.0, 1.0)
    assert stats.crossed(2 * a - 1).interval(0.05)[1] > 1


def test_clusters_by_hand() -> None:
    """Sums of clusters around the mean of their row, over the mean size: the mean of the row stays."""
    table = np.array([[1.0, 3.0, 2.0, 6.0], [0.0, 0.0, 4.0, 4.0]])
    found = by_cluster(table, [7, 7, 7, 2])  # sizes 1 and 3, mean 2; in the order of their numbers
    assert found.tolist() == [[3 + (6 - 3) / 2, 3 + (6 - 9) / 2], [2 + (4 - 2) / 2, 2 + (4 - 6) / 2]]


def test_an_equivalence_is_shown_below_its_level_only() -> None:
    shown = [stats.Equivalence(0.1, -0.05, 0.05, p, 0.05).shown for p in (0.049, 0.05, 0.051)]
    assert shown == [True, False, False]


def test_what_is_certain_of_a_mean() -> None:
    """One seed: the t distribution over 29 items on either side."""
    values = np.random.default_rng(20).normal(0.3, 1, (1, 30))
    found, law = stats.crossed(values), scipy_stats.t(29, values.mean(), values.std(ddof=1) / 30**0.5)
    assert found.above(0.1) == pytest.approx(law.cdf(0.1))
    same = found.within(0.5, 0.05)
    assert same is not None
    assert same.p == pytest.approx(max(law.cdf(-0.5), law.sf(0.5)))
    assert (same.low, same.high) == pytest.approx(law.interval(0.9))


def test_perplexities_are_checked_and_weighed_by_tokens() -> None:
    """One sentence of 1 token with loss 0 and one of 3 with loss 1: the logarithm is 3/4."""
    found = stats.log_perplexities([[0.0, 1.0]], [1, 3])
    assert found.tolist() == [[0.75 + 0.5 * (0 - 0.75), 0.75 + 1.5 * (1 - 0.75)]]
    assert stats.log_perplexities([[0.0, 0.0]], None).tolist() == [[0.0, 0.0]]
    plain = stats.log_perplexities([[0.0, math.log(3)]], None)  # perplexities 1 and 3, mean 2
    assert plain == pytest.approx(np.array([[math.log(2) - 0.5, math.log(2) + 0.5]]))
    with pytest.raises(UserError, match="above 0"):
        stats.log_perplexities([[0.0, 1.0]], [0, 3])


def test_six_clusters_are_enough_for_a_test_of_several_seeds() -> None:
    table = np.random.default_rng(21).normal(size=(2, 24))
    tested = [stats.crossed(table, clusters=[at % count for at in range(24)]).p for count in (5, 6)]
    assert tested[0] is None
    assert tested[1] is not None


def test_a_ratio_over_a_mean_near_zero_has_no_end_and_over_zero_is_refused() -> None:
    part, whole = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[1.0, -1.0, 2.0, -2.0]])
    with pytest.raises(UserError, match="the second mean is 0"):
        stats.ratio_of_means(part, whole)
    found = stats.ratio_of_means(part, whole + 0.1)
    assert (found.value, found.alpha) == (pytest.approx(25.0), 0.05)
    assert found.high is None


def test_a_table_of_nearly_equal_values_does_not_vary() -> None:
    """Sums of 0.1 are not exact: their variance is rounding."""
    found = stats.crossed(np.full((3, 7), 0.1) + 0.2)
    assert (found.p, found.low, found.note) == (None, None, "nothing varies: run more to generalise")
    small = 1e-12 * np.array([[1.0, 2.0, 4.0], [2.0, 3.0, 9.0]])
    assert stats.crossed(1 + small).p is not None


def test_the_noisiest_that_still_share() -> None:
    """With 3 seeds and 4 that share, F has 2 and 6 degrees of freedom: 3.463 is its upper tenth."""
    seeds = np.array([[-1.0], [0.0], [1.0]])  # mean square 1 per item

    def shared(ratio: float) -> list[stats.SharedSeeds | None]:
        tables = {name: np.repeat(seeds, 2, 1) for name in ("r", "b", "c", "d")}
        pairs = [(name, "r") for name in "abcd"]
        return stats.shared_seeds({"a": np.repeat(seeds * ratio**0.5, 2, 1), **tables}, pairs)

    assert shared(3.47)[0] is None
    found = shared(3.45)[0]
    assert found is not None
    weight = 3.0  # half of the 6 degrees of freedom of the other three
    own = 2 * (2 * 3.45 + weight) / 5  # of two items
    assert found.square == pytest.approx(own + 2)
    assert found.freedom == pytest.approx((own + 2) ** 2 / (own**2 / 5 + 2**2 / 2))


def test_a_narrow_interval_of_a_ratio_is_exact() -> None:
    rng = np.random.default_rng(22)
    whole = rng.normal(1.0, 0.1, (1, 30))
    part = 0.5 * whole + 1e-5 * rng.normal(size=(1, 30))
    found = stats.ratio_of_means(part, whole, alpha=0.1)
    assert found.low is not None
    assert found.high is not None
    for end in (found.low, found.high):
        assert stats.crossed(part - end * whole).p == pytest.approx(0.1, abs=1e-3)
