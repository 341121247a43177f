"""How much must be asked, and how often trained, to find a difference: sample size, power, and advice in words.

Power is the chance that a true difference of the size given is found, that is, that p falls below alpha.
"""

from __future__ import annotations

import math

from attnlab.errors import UserError
from attnlab.stats.checks import check_count, check_level, require

_MOST = 10**9  # questions or seeds beyond which nobody plans


def discordance(p1: float, p2: float) -> float:
    """The share of questions on which two models disagree, if the mistakes of one say nothing about the other's."""
    return p1 * (1 - p2) + p2 * (1 - p1)


def _spreads(p1: float, p2: float, discordant: float | None) -> tuple[float, float]:
    """The standard deviation of the difference per question, if there were none, and if it is p1 - p2.

    Without `discordant` the questions are different ones, as many for each; with it they are the same, and the two
    models disagree on this share of them.
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
    none, some = _spreads(p1, p2, discordant)
    reach = float(norm.ppf(1 - alpha / 2)) * none + float(norm.ppf(power)) * some
    return max(1, math.ceil(max(0.0, reach) ** 2 / (p1 - p2) ** 2 - 1e-9))


def questions_to_find(p1: float, p2: float, discordant: float | None = None) -> int | None:
    """The sample size for 80 % power, or None where there is no difference to be found."""
    return None if p1 == p2 else sample_size(p1, p2, discordant=discordant)


def power(p1: float, p2: float, questions: int, alpha: float = 0.05, discordant: float | None = None) -> float:
    """The chance to find p1 against p2 with this many questions for each, or the same for both (see sample_size)."""
    from scipy.stats import norm

    check_level(alpha, "alpha")
    none, some = _spreads(p1, p2, discordant)
    threshold = float(norm.ppf(1 - alpha / 2)) * none
    shift = abs(p1 - p2) * math.sqrt(check_count(questions, "questions"))
    if some == 0:
        return float(shift >= threshold)
    return float(norm.cdf((shift - threshold) / some) + norm.cdf((-shift - threshold) / some))


def detectable(share: float, questions: int, alpha: float = 0.05, paired: bool = True, target: float = 0.8) -> float:
    """The smallest gain over `share` that this many questions find with 80 % power; unrelated mistakes where paired."""
    from scipy.optimize import brentq

    check_level(target, "power")
    require(0 <= share < 1, f"a share that can grow must lie in [0, 1), not {share}")

    def lacking(gain: float) -> float:
        other = share + gain
        disagree = discordance(share, other) if paired else None
        return power(share, other, questions, alpha, disagree) - target

    if lacking(1 - share) < 0:
        raise UserError(f"{questions:,} questions are too few to find any gain over {100 * share:.4g} %: ask more")
    return float(brentq(lacking, 1e-12, 1 - share, xtol=1e-9))


def power_of_seeds(sd: float, difference: float, seeds: int, alpha: float = 0.05) -> float:
    """The chance that the paired t test finds a mean difference, where differences between seeds spread by `sd`."""
    from scipy.stats import nct, t

    check_level(alpha, "alpha")
    require(0 < sd < math.inf, f"the standard deviation must be above 0 and finite, not {sd}")
    require(math.isfinite(difference), f"the difference must be finite, not {difference}")
    freedom = check_count(seeds, "seeds", 2) - 1
    threshold, shift = float(t.ppf(1 - alpha / 2, freedom)), abs(difference) / sd * math.sqrt(seeds)
    found = float(nct.sf(threshold, freedom, shift) + nct.cdf(-threshold, freedom, shift))
    return found if math.isfinite(found) else 1.0  # scipy gives up where nothing is left to miss


def seeds_needed(sd: float, difference: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """Seeds of each mechanism for the paired t test to find a mean difference."""
    check_level(power, "power")
    require(difference != 0, "a difference of 0 cannot be found by any number of seeds")
    low, high = 1, 2
    while power_of_seeds(sd, difference, high, alpha) < power:
        low, high = high, 2 * high
        require(high <= _MOST, "this difference is too small beside its spread for any number of seeds")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of_seeds(sd, difference, middle, alpha) >= power else (middle, high)
    return high


def detectable_by_seeds(seeds: int, alpha: float = 0.05, target: float = 0.8) -> float:
    """The smallest mean difference that seeds find with 80 % power, in standard deviations of the differences."""
    from scipy.optimize import brentq

    check_level(target, "power")
    high = 1.0
    while power_of_seeds(1.0, high, seeds, alpha) < target:
        high *= 2
    return float(brentq(lambda effect: power_of_seeds(1.0, effect, seeds, alpha) - target, 0.0, high, xtol=1e-9))
