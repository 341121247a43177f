"""Advice before a comparison: what it can find, and what it would take to find more. Words made from planning's numbers."""

from __future__ import annotations

from attnlab.errors import UserError
from attnlab.stats.checks import check_count, check_level, require
from attnlab.stats.planning import detectable, detectable_by_seeds, discordance, sample_size, seeds_needed
from attnlab.stats.wording import about, count_of


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
    """What a planned comparison can find with 80 % power, one line a fact.

    `share` is the accuracy expected, `difference` the gain in accuracy one would like to find, `discordant` the share of
    questions on which the two are thought to disagree. `sd` is the spread of the differences between seeds, known from
    earlier runs, and `seed_difference` the mean difference one would like to find, in the same unit.
    """
    check_level(alpha, "alpha")
    strict = alpha / check_count(comparisons, "comparisons")
    lines = []
    if comparisons > 1:
        lines.append(
            f"{comparisons} comparisons: Holm asks p below {strict:.2g} of the first, so all below is planned with that"
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
    """What so many questions find."""
    try:
        gain = detectable(share, questions, alpha)
    except UserError as error:
        return [str(error)]
    return [
        f"{count_of(questions, 'question')}, the same for both: a gain of {100 * gain:.1f} points over {100 * share:.0f} % is"
        " found in 4 of 5 comparisons if the mistakes of one say nothing about the other's, and a smaller one if they agree"
    ]


def _about_difference(share: float, difference: float, discordant: float | None, alpha: float) -> str:
    """What it takes to find a difference."""
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
    """What so many seeds find."""
    if seeds == 1:
        return ["1 seed: nothing can be said about other seeds; train at least 3 of each"]
    effect = detectable_by_seeds(seeds, alpha)
    size = f"{effect:.1f} times the spread between seeds" + (f", {effect * sd:.3g}" if sd is not None else "")
    lines = [f"{seeds} seeds: a mean difference of {size} is found in 4 of 5 comparisons (paired t test)"]
    if 2.0 ** (1 - seeds) >= alpha:
        least = next(n for n in range(2, 64) if 2.0 ** (1 - n) < alpha)
        lines.append(
            f"{seeds} seeds: the sign-flip test, which takes nothing for granted, cannot fall below p ="
            f" {2.0 ** (1 - seeds):.2g}; from {least} seeds on it can show a difference"
        )
    return lines
