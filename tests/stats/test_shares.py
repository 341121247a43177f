from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab import stats
from attnlab.errors import UserError
from attnlab.stats.shares import paired_share_interval


def test_wilson_interval_of_known_cases() -> None:
    assert stats.proportion_interval(115, 500) == pytest.approx((0.1953, 0.2689), abs=1e-4)
    low, high = stats.proportion_interval(0, 10)
    assert low == 0
    assert high == pytest.approx(0.2775, abs=1e-4)


@pytest.mark.parametrize(
    ("counts", "interval"),
    [
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((6, 7, 2, 7), (0.0582, 0.8062)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
        ((0, 10, 0, 20), (-0.1611, 0.2775)),
        ((10, 10, 0, 20), (0.6791, 1.0000)),
        ((10, 10, 0, 10), (0.6075, 1.0000)),
    ],
)
def test_newcombes_own_examples(counts: tuple[int, int, int, int], interval: tuple[float, float]) -> None:
    """Table II of Newcombe (1998), method 10."""
    found = stats.two_proportions(*counts)
    assert (found.low, found.high) == pytest.approx(interval, abs=6e-5)


def test_the_two_unpaired_verdicts_of_the_specification() -> None:
    assert stats.two_proportions(83, 500, 94, 500).p == pytest.approx(0.362, abs=5e-4)
    assert stats.two_proportions(83, 500, 94, 500).questions_needed == 4724
    assert stats.two_proportions(105, 500, 83, 500).p == pytest.approx(0.075, abs=5e-4)


def test_few_answers_are_tested_exactly() -> None:
    tea = stats.two_proportions(3, 4, 1, 4)  # Fisher's lady tasting tea
    assert tea.test == "Fisher's exact test"
    assert tea.p == pytest.approx(34 / 70)
    assert stats.two_proportions(0, 50, 0, 50).p == 1
    assert stats.two_proportions(50, 50, 50, 50).questions_needed is None
    assert stats.two_proportions(30, 50, 20, 50).test == "chi-square"


def table(both: int, only_a: int, only_b: int, neither: int) -> tuple[list[bool], list[bool]]:
    a = [True] * (both + only_a) + [False] * (only_b + neither)
    b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither
    return a, b


def test_mcnemar_as_published() -> None:
    """The airway data of Bentur et al. in Fagerland, Lydersen and Laake (2013, 2014): exact test, Tango's interval."""
    found = stats.mcnemar(*table(1, 1, 7, 12))
    assert (found.both, found.only_a, found.only_b, found.neither, found.questions) == (1, 1, 7, 12, 21)
    assert found.p == pytest.approx(0.070, abs=5e-4)
    assert (found.low, found.high) == pytest.approx((-0.517, -0.026), abs=6e-4)


def test_models_that_never_disagree() -> None:
    found = stats.mcnemar(*table(80, 0, 0, 420))
    assert (found.p, found.difference, found.questions_needed) == (1, 0, None)
    z = 1.959964**2  # Tango's interval in closed form
    assert (found.low, found.high) == pytest.approx((-z / (500 + z), z / (500 + z)), abs=1e-6)
    alone = stats.mcnemar([True], [True])
    assert (alone.p, alone.low, alone.high) == (1, pytest.approx(-z / (1 + z)), pytest.approx(z / (1 + z)))


def test_models_that_always_disagree() -> None:
    found = stats.mcnemar([True] * 30, [False] * 30)
    assert found.p == pytest.approx(2 * 0.5**30)
    assert found.high == 1
    assert 0.7 < found.low < 1
    assert stats.mcnemar(*table(0, 15, 15, 0)).p == 1


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_tangos_interval_holds_what_was_seen_turns_with_the_sides_and_narrows(b: int, c: int, agreed: int) -> None:
    n = b + c + agreed
    if n == 0:
        return
    low, high = paired_share_interval(b, c, n)
    assert -1 <= low <= (b - c) / n <= high <= 1
    assert paired_share_interval(c, b, n) == pytest.approx((-high, -low), abs=1e-7)
    narrower = paired_share_interval(4 * b, 4 * c, 4 * n)
    assert narrower[1] - narrower[0] < high - low


@pytest.mark.parametrize(("only_a", "only_b", "n"), [(0.02, 0.02, 50), (0.05, 0.01, 100), (0.2, 0.1, 60)])
def test_tangos_interval_holds_as_often_as_it_says(only_a: float, only_b: float, n: int) -> None:
    """Coverage summed exactly over all tables that can come out, not drawn."""
    from scipy.stats import multinomial

    counts = [(b, c) for b in range(min(n, 30) + 1) for c in range(min(n, 30) - b + 1)]
    chances = multinomial.pmf([[b, c, n - b - c] for b, c in counts], n, [only_a, only_b, 1 - only_a - only_b])
    covered = total = 0.0
    for (b, c), chance in zip(counts, chances, strict=True):
        if chance > 1e-7:
            low, high = paired_share_interval(b, c, n)
            covered += chance * (low <= only_a - only_b <= high)
            total += chance
    assert total > 0.999
    assert 0.93 <= covered / total <= 0.99


def test_newcombes_interval_holds_as_often_as_it_says() -> None:
    from scipy.stats import binom

    n, p, q = 20, 0.15, 0.3
    covered = 0.0
    for x in range(n + 1):
        for y in range(n + 1):
            chance = binom.pmf(x, n, p) * binom.pmf(y, n, q)
            if chance > 1e-5:
                found = stats.two_proportions(x, n, y, n)
                covered += chance * (found.low <= p - q <= found.high)
    assert 0.94 <= covered <= 0.975


def test_the_exact_test_is_wrong_at_most_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(200):
        a, b = rng.random((2, 100)) < 0.3
        wrong += stats.mcnemar(a, b).p < 0.05
    assert 1 <= wrong <= 14


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(UserError, match="11 right answers to 10 questions"):
        stats.two_proportions(11, 10, 3, 10)
    with pytest.raises(UserError, match="questions must be at least 1"):
        stats.two_proportions(0, 0, 3, 10)
    with pytest.raises(UserError, match="must be a whole number"):
        stats.two_proportions(0.5, 10, 3, 10)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="right or wrong"):
        stats.mcnemar([1, 0, 2], [1, 0, 1])
    with pytest.raises(UserError, match="finite"):
        stats.mcnemar([1, 0, float("nan")], [1, 0, 1])


def test_more_questions_are_needed_where_several_pairs_are_tested() -> None:
    sides = table(45, 20, 10, 25)  # both right, only the first, only the second, neither
    alone, among_ten = (stats.mcnemar(*sides, alpha=alpha).questions_needed for alpha in (0.05, 0.005))
    assert alone == stats.sample_size(0.65, 0.55, discordant=0.3)
    assert among_ten == stats.sample_size(0.65, 0.55, alpha=0.005, discordant=0.3)
    assert alone is not None
    assert among_ten is not None
    assert among_ten > 1.5 * alone


def test_equivalence_on_the_same_questions_is_tangos_score_by_its_definition() -> None:
    """Two one-sided tests with the score of Tango, whose share of 'only B' maximises the likelihood of the counts."""
    from scipy.optimize import minimize_scalar
    from scipy.stats import norm

    only_a, only_b, both, neither, margin = 9, 5, 40, 46, 0.15
    n = only_a + only_b + both + neither

    def score(difference: float) -> float:
        def loss(share: float) -> float:
            rest = 1 - 2 * share - difference
            return -(only_a * np.log(share + difference) + only_b * np.log(share) + (both + neither) * np.log(rest))

        bounds = (max(0.0, -difference) + 1e-9, (1 - difference) / 2 - 1e-9)
        share = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        variance = (2 * share + difference - difference**2) / n
        return float(((only_a - only_b) / n - difference) / variance**0.5)

    found = stats.mcnemar(*table(both, only_a, only_b, neither), margin=margin).equivalence
    assert found is not None
    assert found.p == pytest.approx(max(norm.sf(score(-margin)), norm.sf(-score(margin))), rel=1e-4)
    assert score(found.low) == pytest.approx(norm.ppf(0.95), abs=1e-4)
    assert score(found.high) == pytest.approx(norm.ppf(0.05), abs=1e-4)
    assert (found.margin, found.alpha) == (margin, 0.05)
    turned = stats.mcnemar(*table(both, only_b, only_a, neither), margin=margin).equivalence
    assert turned is not None
    assert turned.p == pytest.approx(found.p)


def test_sizes_by_their_formulas() -> None:
    z, power = 1.959963985, 0.841621234
    unpaired = (z * (2 * 0.4 * 0.6) ** 0.5 + power * (0.3 * 0.7 + 0.5 * 0.5) ** 0.5) ** 2 / 0.2**2
    assert stats.sample_size(0.3, 0.5) == int(unpaired) + 1
    paired = (z * 0.4**0.5 + power * (0.4 - 0.2**2) ** 0.5) ** 2 / 0.2**2
    assert stats.sample_size(0.3, 0.5, discordant=0.4) == int(paired) + 1
    assert stats.sample_size(0.0, 1.0, discordant=1.0) == 4  # z squared is 3.84
    assert stats.sample_size(0.0, 1.0, discordant=1 - 1e-13) == 4  # rounding below what is possible
    assert stats.sample_size(0.0, 1.0, alpha=0.6, power=0.1) == 1
    assert stats.sample_size(0.1, 0.2, discordant=0.3) > stats.sample_size(0.1, 0.2, discordant=0.1)  # both ends
    assert stats.sample_size(0.9, 0.8, discordant=0.3) == stats.sample_size(0.1, 0.2, discordant=0.3)
    for p1, p2, discordant in ((0.9, 0.8, 0.31), (0.1, 0.2, 0.31), (0.1, 0.2, 0.09)):
        with pytest.raises(UserError, match="disagree on 10 to 30 %"):
            stats.sample_size(p1, p2, discordant=discordant)


def test_the_interval_at_the_ends() -> None:
    assert paired_share_interval(0, 7, 7)[0] == -1
    assert paired_share_interval(7, 0, 7)[1] == 1
    wide = paired_share_interval(1, 0, 1, 1e-4)
    assert -1 <= wide[0] < 0 < wide[1] == 1
    assert stats.two_proportions(20, 20, 0, 20).high == 1
    assert stats.two_proportions(0, 20, 20, 20).low == -1
