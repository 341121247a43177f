"""Shares of right answers: an interval for one, and tests for two, on the same questions or on different ones.

Differences are A minus B, as shares (0.022 is 2.2 points). Intervals are score intervals: the normal approximation of the
textbooks fails for few questions, for shares near 0 and 1, and where two models hardly ever disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnlab.stats.checks import check_count, check_level, numbers, paired_answers, require
from attnlab.stats.crossed import Equivalence

_CHOICES = 2000  # draws of chosen_best
_CHOICES_AT_ONCE = 100  # of them held in memory together
_FEW = 5.0  # expected count in a cell, below which chi-square is unreliable


def proportion_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson), which also holds near 0 and 1 and for few trials."""
    from scipy.stats import binomtest

    interval = binomtest(successes, trials).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class TwoProportions:
    """Two shares of right answers on different questions, or on questions that can no longer be matched."""

    right_a: int
    asked_a: int
    right_b: int
    asked_b: int
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    test: str
    questions_needed: int | None  # each, for 80 % power if the observed difference is the true one; None: there is none


def two_proportions(right_a: int, asked_a: int, right_b: int, asked_b: int) -> TwoProportions:
    """Two shares compared without pairing: chi-square without correction (Fisher's exact test where answers are few).

    The interval is Newcombe's (1998, method 10), made of the two Wilson intervals.
    """
    from scipy.stats import chi2_contingency, fisher_exact

    for right, asked in ((right_a, asked_a), (right_b, asked_b)):
        require(
            check_count(right, "right answers", 0) <= check_count(asked, "questions"),
            f"{right} right answers to {asked} questions cannot be",
        )
    a, b = right_a / asked_a, right_b / asked_b
    (low_a, high_a), (low_b, high_b) = proportion_interval(right_a, asked_a), proportion_interval(right_b, asked_b)
    table = np.array([[right_a, asked_a - right_a], [right_b, asked_b - right_b]])
    right, asked = right_a + right_b, asked_a + asked_b
    exact = min(asked_a, asked_b) * min(right, asked - right) / asked < _FEW
    p = float(fisher_exact(table).pvalue if exact else chi2_contingency(table, correction=False).pvalue)
    return TwoProportions(
        right_a=right_a,
        asked_a=asked_a,
        right_b=right_b,
        asked_b=asked_b,
        a=a,
        b=b,
        difference=a - b,
        low=max(-1.0, a - b - math.hypot(a - low_a, high_b - b)),
        high=min(1.0, a - b + math.hypot(high_a - a, b - low_b)),
        p=min(1.0, p),
        test="Fisher's exact test" if exact else "chi-square",
        questions_needed=_questions_to_find(a, b),
    )


@dataclass(frozen=True)
class McNemar:
    """Two models on the same questions: those on which both are right, one is, or neither; `p` is exact."""

    questions: int
    both: int
    only_a: int
    only_b: int
    neither: int
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    questions_needed: int | None  # for 80 % power if the observed rates are the true ones; None: no difference observed
    alpha: float = 0.05  # the interval has level 1 - alpha
    equivalence: Equivalence | None = None


def mcnemar(right_a: ArrayLike, right_b: ArrayLike, alpha: float = 0.05, margin: float | None = None) -> McNemar:
    """Exact match compared question by question: only those that one model alone got right can tell the two apart.

    The exact test asks how often a fair coin falls as unevenly as these; the interval is Tango's (1998) score interval,
    which is valid for few disagreements, even for none. The test of equivalence uses the same score.
    """
    from scipy.stats import binomtest, norm

    first, second = paired_answers(right_a, right_b)
    questions = len(first)
    only_a, only_b = int((first > second).sum()), int((second > first).sum())
    both, disagreed = int((first * second).sum()), only_a + only_b
    p = float(binomtest(only_a, disagreed).pvalue) if disagreed else 1.0
    a, b = (both + only_a) / questions, (both + only_b) / questions
    low, high = paired_share_interval(only_a, only_b, questions, alpha)
    needed = _questions_to_find(a, b, disagreed / questions, alpha)
    counts = (questions, both, only_a, only_b, questions - both - disagreed)
    difference = (only_a - only_b) / questions
    same = None
    if margin is not None:
        ends = (_tango_score(only_a, only_b, questions, -margin), -_tango_score(only_a, only_b, questions, margin))
        p_same = float(norm.sf(min(ends)))
        same = Equivalence(margin, *paired_share_interval(only_a, only_b, questions, 2 * alpha), p_same, alpha)
    return McNemar(*counts, a, b, difference, low, high, p, needed, alpha, same)


def _tango_score(only_a: int, only_b: int, questions: int, difference: float) -> float:
    """The distance from a supposed true difference to the observed one, in standard errors (Tango 1998)."""
    # The maximum-likelihood share of 'only B' under the supposed difference.
    linear = -only_a - only_b + (2 * questions - only_a + only_b) * difference
    root = math.sqrt(max(0.0, linear**2 + 8 * questions * only_b * difference * (1 - difference)))
    share = (root - linear) / (4 * questions)
    variance = max(0.0, questions * (2 * share + difference * (1 - difference)))
    distance = only_a - only_b - questions * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def paired_share_interval(only_a: int, only_b: int, questions: int, alpha: float = 0.05) -> tuple[float, float]:
    """The interval of the difference of two shares on the same questions (Tango 1998, Statistics in Medicine 17)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    z, seen = float(norm.ppf(1 - alpha / 2)), (only_a - only_b) / questions

    def score(difference: float) -> float:
        return _tango_score(only_a, only_b, questions, difference)

    edge, low, high = 1e-12, -1.0, 1.0
    if seen > -1 + edge and score(-1 + edge) > z:
        low = float(brentq(lambda value: _clipped(score(value) - z), -1 + edge, seen - edge, xtol=1e-12))
    if seen < 1 - edge and score(1 - edge) < -z:
        high = float(brentq(lambda value: _clipped(score(value) + z), seen + edge, 1 - edge, xtol=1e-12))
    return low, high


def _clipped(value: float) -> float:
    """Finite for the root finder: the score is infinite where the variance is 0."""
    return max(-1e6, min(1e6, value))


# How many questions it takes


def _spreads(p1: float, p2: float, discordant: float | None) -> tuple[float, float]:
    """The standard deviation per question of the difference: if the true one is 0, and if it is p1 - p2.

    Without `discordant` the two models are asked different questions, equally many; with it the same ones, on a share
    `discordant` of which they disagree.
    """
    for p in (p1, p2):
        require(0 <= p <= 1, f"a share must lie in [0, 1], not {p}")
    if discordant is None:
        mean = (p1 + p2) / 2
        return math.sqrt(2 * mean * (1 - mean)), math.sqrt(p1 * (1 - p1) + p2 * (1 - p2))
    least, most = abs(p1 - p2), min(p1 + p2, 2 - p1 - p2)
    require(
        least - 1e-12 <= discordant <= most + 1e-12,
        f"models that are right on {100 * p1:.4g} and {100 * p2:.4g} % disagree on {100 * least:.4g} to"
        f" {100 * most:.4g} % of the questions, not on {100 * discordant:.4g} %",
    )
    return math.sqrt(discordant), math.sqrt(max(0.0, discordant - (p1 - p2) ** 2))


def sample_size(p1: float, p2: float, power: float = 0.8, alpha: float = 0.05, discordant: float | None = None) -> int:
    """Questions for each model, or the same ones for both where `discordant` is given, to find p1 against p2.

    Unpaired: the usual formula of two proportions (Fleiss). Paired: Connor's (1987) for McNemar's test.
    """
    from scipy.stats import norm

    check_level(power, "power")
    check_level(alpha, "alpha")
    require(p1 != p2, "equal shares cannot be told apart by any number of questions")
    none, spread = _spreads(p1, p2, discordant)
    reach = float(norm.ppf(1 - alpha / 2)) * none + float(norm.ppf(power)) * spread
    return max(1, math.ceil(max(0.0, reach) ** 2 / (p1 - p2) ** 2 - 1e-9))


def _questions_to_find(p1: float, p2: float, discordant: float | None = None, alpha: float = 0.05) -> int | None:
    """The sample size for 80 % power, or None where there is no difference to find."""
    return None if p1 == p2 else sample_size(p1, p2, alpha=alpha, discordant=discordant)


# The best of several


@dataclass(frozen=True)
class Chosen:
    """The best of several candidates: its share on the questions that chose it, and the share expected on others."""

    candidates: int
    questions: int
    best: int  # its row; the first of several equal ones
    apparent: float
    corrected: float


def chosen_best(right: ArrayLike, seed: int = 0) -> Chosen:
    """The best of several candidates (rows) on the same questions (columns, 1 where right), and its corrected share.

    The best is chosen on questions drawn with replacement and scored on those not drawn, many times over (Tsamardinos,
    Greasidou and Borboudakis 2018, Machine Learning 107).
    """
    table = numbers(right, "right and wrong", (2,))
    candidates, questions = table.shape
    require(questions > 1, "at least two questions are needed, to choose on some and score on the others")
    shares = table.mean(axis=1)
    generator, means = np.random.default_rng(seed), []
    for _ in range(_CHOICES // _CHOICES_AT_ONCE):
        drawn = generator.multinomial(questions, np.full(questions, 1 / questions), size=_CHOICES_AT_ONCE)
        rest = (drawn == 0).astype(np.float64)
        best = (drawn @ table.T).argmax(axis=1)
        counted = rest.sum(axis=1)
        known = counted > 0
        means.append(((rest * table[best]).sum(axis=1)[known]) / counted[known])
    best_place = int(shares.argmax())
    return Chosen(candidates, questions, best_place, float(shares[best_place]), float(np.concatenate(means).mean()))
