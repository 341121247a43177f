"""How many questions or seeds it takes to find a difference: sample size, power, and advice in words.

Power is the chance that a true difference of the given size is found, that is, that p falls below alpha.
"""

from __future__ import annotations

import math

from attnlab.errors import UserError
from attnlab.stats.checks import check_count, check_level, require

_MOST = 10**9  # seeds, beyond which no plan is made


def discordance(p1: float, p2: float) -> float:
    """The share of questions on which two models disagree, if their mistakes are independent."""
    return p1 * (1 - p2) + p2 * (1 - p1)


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
    none, some = _spreads(p1, p2, discordant)
    reach = float(norm.ppf(1 - alpha / 2)) * none + float(norm.ppf(power)) * some
    return max(1, math.ceil(max(0.0, reach) ** 2 / (p1 - p2) ** 2 - 1e-9))


def questions_to_find(p1: float, p2: float, discordant: float | None = None) -> int | None:
    """The sample size for 80 % power, or None where there is no difference to find."""
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
    """The smallest gain over `share` that this many questions find with 80 % power; paired mistakes are independent."""
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
    return found if math.isfinite(found) else 1.0  # scipy returns NaN where the power is 1


def seeds_needed(sd: float, difference: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """Seeds of each mechanism for the paired t test to find a mean difference."""
    check_level(power, "power")
    require(difference != 0, "a difference of 0 cannot be found by any number of seeds")
    low, high = 1, 2
    while power_of_seeds(sd, difference, high, alpha) < power:
        low, high = high, 2 * high
        require(
            high <= _MOST, "this difference is too small compared to its standard deviation for any number of seeds"
        )
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


def advice(
    *,
    questions: int | None = None,
    seeds: int | None = None,
    comparisons: int = 1,
    share: float = 0.5,
    difference: float | None = None,
    discordant: float | None = None,
    sd: float | None = None,
    seed_difference: float | None = None,
    alpha: float = 0.05,
) -> list[str]:
    """What a planned comparison can find with 80 % power, one line per fact.

    `share` is the expected accuracy, `difference` the gain in accuracy to find, and `discordant` the expected share of
    questions on which the two disagree. `sd` is the standard deviation of the differences between seeds, known from earlier
    runs, and `seed_difference` the mean difference to find, in the same unit.
    """
    check_level(alpha, "alpha")
    strict = alpha / check_count(comparisons, "comparisons")
    lines = []
    if comparisons > 1:
        lines.append(
            f"{comparisons} comparisons: Holm requires p below {strict:.2g} of the first, so the plan below uses that level"
        )
    if questions is not None:
        lines += _about_questions(check_count(questions, "questions"), share, strict)
    if difference is not None:
        lines.append(_about_difference(share, difference, discordant, strict))
    if seeds is not None:
        lines += _about_seeds(check_count(seeds, "seeds"), strict, sd)
    if sd is not None and seed_difference is not None:
        needed = seeds_needed(sd, seed_difference, alpha=strict)
        lines.append(
            f"to find a mean difference of {seed_difference:g} over a spread of {sd:g}: {count_of(needed, 'seed')} each"
        )
    return lines


def _about_questions(questions: int, share: float, alpha: float) -> list[str]:
    try:
        gain = detectable(share, questions, alpha)
    except UserError as error:
        return [str(error)]
    return [
        f"{count_of(questions, 'question')}, the same for both: a gain of {100 * gain:.1f} points over {100 * share:.0f} % is"
        " found in 4 of 5 comparisons if the mistakes of one say nothing about the other's, and a smaller one if they agree"
    ]


def _about_difference(share: float, difference: float, discordant: float | None, alpha: float) -> str:
    require(
        0 < difference <= 1 - share, f"a gain over {share:g} must lie between 0 and {1 - share:g}, not {difference:g}"
    )
    other = share + difference
    if discordant is None:
        same = sample_size(share, other, alpha=alpha, discordant=discordance(share, other))
        reason = "if mistakes are unrelated"
    else:
        same = sample_size(share, other, alpha=alpha, discordant=discordant)
        reason = f"if the two disagree on {100 * discordant:.3g} %"
    apart = sample_size(share, other, alpha=alpha)
    return (
        f"to find {100 * difference:.3g} points over {100 * share:.0f} %: {about(same)} questions asked of both {reason},"
        f" or {about(apart)} each if they are different ones"
    )


def _about_seeds(seeds: int, alpha: float, sd: float | None) -> list[str]:
    if seeds == 1:
        return ["1 seed: nothing can be said about other seeds; train at least 3 of each"]
    effect = detectable_by_seeds(seeds, alpha)
    size = f"{effect:.1f} times the spread between seeds" + (f", {effect * sd:.3g}" if sd is not None else "")
    lines = [f"{seeds} seeds: a mean difference of {size} is found in 4 of 5 comparisons (paired t test)"]
    if 2.0 ** (1 - seeds) >= alpha:
        least = next(n for n in range(2, 64) if 2.0 ** (1 - n) < alpha)
        lines.append(
            f"{seeds} seeds: the sign-flip test, which assumes no distribution, cannot fall below p ="
            f" {2.0 ** (1 - seeds):.2g}; from {least} seeds on it can show a difference"
        )
    return lines


def about(count: int) -> str:
    """A count, rounded to two digits if it is large."""
    digits = max(0, len(str(count)) - 2)
    return f"about {round(count, -digits):,}" if count >= 100 else f"{count:,}"


def count_of(number: int, noun: str) -> str:
    """A count with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
