"""Selective answering: risk against coverage, and a threshold with a guarantee.

A question is answered where the confidence in its answer reaches a threshold. Coverage is the share of questions that are
answered, risk the share of wrong answers among those.

The thresholds to try are fixed beforehand, so all answers certify and none is spent on choosing. They are tested from the
strictest down, each with the exact binomial test of Clopper and Pearson. The error probability alpha is divided among some
starting points. A threshold that is certified passes its share on to the next; where one fails, its share is lost (the
fallback procedure: Wiens 2003, doi:10.1002/pst.64; for risks: arXiv:2110.01052). The chance that any certified threshold
has more than the allowed risk is at most alpha: the first such threshold is tested with no more than the shares since the
last such threshold before it, and all these shares sum to alpha. Nothing is assumed about how the risk depends on the
threshold.

The starting points, one for few answers and several for many, were chosen by simulation, on overconfident and
underconfident, weak and strong models (benchmarks/certified.py).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.stats.checks import Numbers, check_count, check_level, numbers, require

STARTS = (8, 4, 2, 1)  # log odds of the thresholds that have a share of alpha
_MARGIN = 1e-6  # above a confidence that is not to be reached, so that rounding cannot undo it
_START, _FEW = (1,), 150  # with fewer answers than this, one starting point
_LAST = -6  # log odds of the last threshold but one; the last accepts everything
_MOST_NEEDED = 1_000_000  # accepted answers, beyond which no plan is made


def judged(confidence: ArrayLike, right: ArrayLike) -> tuple[Numbers, Numbers]:
    """Pairs of a confidence and an outcome, right or wrong as 1 and 0."""
    confidences, outcomes = numbers(confidence, "the confidences"), numbers(right, "the answers")
    require(
        len(confidences) == len(outcomes),
        f"every answer has one confidence, but there are {len(outcomes):,} answers and {len(confidences):,} confidences",
    )
    require(bool(((outcomes == 0) | (outcomes == 1)).all()), "the answers must be right or wrong (True or False)")
    return confidences, outcomes


def probabilities(confidence: ArrayLike, right: ArrayLike) -> tuple[Numbers, Numbers]:
    """Confidences that are probabilities, with right and wrong as 1 and 0."""
    confidences, outcomes = judged(confidence, right)
    require(
        bool(((confidences >= 0) & (confidences <= 1)).all()),
        f"confidences must be probabilities here, from 0 to 1, but run from {confidences.min():.4g} to"
        f" {confidences.max():.4g}",
    )
    return confidences, outcomes


def ordered(confidence: Numbers, right: Numbers) -> tuple[Numbers, NDArray[np.int64], Numbers]:
    """Every threshold from the strictest, with the number of answers it accepts and the number of wrong ones among them."""
    thresholds, group = np.unique(-confidence, return_inverse=True)
    accepted = np.bincount(group).cumsum()
    return -thresholds, accepted, np.bincount(group, weights=1 - right).cumsum()


@dataclass(frozen=True)
class RiskCoverage:
    """Risk at every coverage that a threshold can reach, from the strictest threshold on."""

    risk_of_all: float
    threshold: tuple[float, ...]
    coverage: tuple[float, ...]
    risk: tuple[float, ...]


def risk_coverage(confidence: ArrayLike, right: ArrayLike) -> RiskCoverage:
    """Risk against coverage; answers of equal confidence are accepted together."""
    thresholds, accepted, wrong = ordered(*judged(confidence, right))
    risk = wrong / accepted
    coverage = accepted / accepted[-1]
    return RiskCoverage(float(risk[-1]), tuple(thresholds.tolist()), tuple(coverage.tolist()), tuple(risk.tolist()))


def risk_bound(errors: int, accepted: int, alpha: float = 0.05) -> float:
    """The upper bound of a risk from errors among accepted answers (Clopper-Pearson), too low with chance alpha at most."""
    from scipy.special import betaincinv

    check_level(alpha, "alpha")
    require(
        check_count(errors, "errors", 0) <= check_count(accepted, "accepted answers", 0),
        f"{errors} errors among {accepted} accepted answers cannot be",
    )
    return 1.0 if errors == accepted else float(betaincinv(errors + 1, accepted - errors, 1 - alpha))


def _chance_of_at_most(errors: NDArray[np.int64], accepted: NDArray[np.int64], risk: Numbers | float) -> Numbers:
    """The binomial chance of at most this many errors; 0 for a negative number."""
    from scipy.special import bdtr

    return np.where(errors < 0, 0.0, bdtr(np.maximum(errors, 0).astype(np.float64), accepted, risk))


def errors_allowed(accepted: NDArray[np.int64], max_risk: float, alpha: float = 0.05) -> NDArray[np.int64]:
    """The most errors among this many accepted answers for a bound of at most `max_risk`; -1 if even 0 are too many."""
    from scipy.stats import binom

    # The bound is at most the allowed risk exactly if so few errors have probability alpha or less at that risk.
    least = np.asarray(binom.ppf(alpha, accepted, max_risk), dtype=np.int64)  # errors with probability alpha or more
    return least - (_chance_of_at_most(least, accepted, max_risk) > alpha)


def accepted_needed(max_risk: float, risk: float = 0.0, alpha: float = 0.05) -> int | None:
    """How many accepted answers, wrong at this rate, certify `max_risk`: 59 without error certify 5 %. None: no number does."""
    check_level(alpha, "alpha")
    check_level(max_risk, "the allowed risk")
    require(0 <= risk <= 1, f"a risk must lie in [0, 1], not {risk}")

    def enough(count: int) -> bool:
        errors = np.array(math.ceil(risk * count - 1e-9))
        return bool(_chance_of_at_most(errors, np.array(count), max_risk) <= alpha)

    if risk >= max_risk or not enough(_MOST_NEEDED):
        return None
    return bisect_left(range(_MOST_NEEDED), True, lo=1, key=enough)


@dataclass(frozen=True)
class SelectiveRule:
    """A rule for when to answer, and its guarantee.

    `threshold` is None where the allowed risk could not be certified: then no question is answered, the counts are those of
    the starting point that came closest, and `needed` is the number of accepted answers that would certify it at their
    error rate (None: no number would).
    """

    threshold: float | None
    max_risk: float
    alpha: float
    met: bool
    questions: int
    accepted: int
    errors: int
    coverage: float  # 0 where it is not met
    bound: float  # of the risk: max_risk where it is met
    risk_of_all: float  # the share of wrong answers if every question is answered
    needed: int | None
    words: str


def least_confidence(strangers: ArrayLike, most: float = 0.05, alpha: float = 0.05) -> float:
    """The confidence above which, at level 1 - alpha, at most a share `most` of strangers lies; infinity for too few.

    It is just above the highest of their confidences down to which that share is certified (Clopper and Pearson).
    """
    check_level(most, "the share of strangers")
    confidences = np.sort(numbers(strangers, "the confidences of strangers"))[::-1]
    allowed = int(errors_allowed(np.array([len(confidences)]), most, alpha)[0])
    return math.inf if allowed < 0 else float(confidences[min(allowed, len(confidences) - 1)]) + _MARGIN


def thresholds_to_try(answers: int, lowest: float = 0.0) -> tuple[Numbers, Numbers]:
    """The thresholds for this many answers from the strictest to `lowest`, and the share of alpha that each adds.

    They are a tenth apart in log odds. Shares of starting points below `lowest` go to `lowest`.
    """
    from scipy.special import expit

    starts = STARTS if answers >= _FEW else _START
    tenths = np.arange(10 * starts[0], 10 * _LAST - 1, -1)
    thresholds, shares = expit(tenths / 10), np.isin(tenths, 10 * np.array(starts)) / len(starts)
    kept = thresholds > lowest
    return np.append(thresholds[kept], lowest), np.append(shares[kept], shares[~kept].sum())


def last_certified(chances: Numbers, shares: Numbers, alpha: float) -> int | None:
    """The place of the lowest certified threshold, from the p values of all thresholds; None: none is certified."""
    level, last = 0.0, None
    for place, (chance, share) in enumerate(zip(chances.tolist(), shares.tolist(), strict=True)):
        level += alpha * share
        if chance < level:
            last = place
        else:
            level = 0.0
    return last


def selective_rule(
    confidence: ArrayLike,
    right: ArrayLike,
    max_risk: float,
    alpha: float = 0.05,
    lowest: float = 0.0,
    shown: Callable[[float], float] = float,
) -> SelectiveRule:
    """The lowest of the preset thresholds whose risk is certified to be at most `max_risk`, from all answers.

    No threshold goes below `lowest`, which must not depend on these answers. `shown` is the increasing map from the
    confidences here to those that are reported; the threshold is given on the scale of the latter.
    """
    check_level(max_risk, "the allowed risk")
    check_level(alpha, "alpha")
    confidences, outcomes = probabilities(confidence, right)
    thresholds, shares = thresholds_to_try(len(outcomes), lowest)
    order = np.argsort(confidences)
    accepted = len(order) - np.searchsorted(confidences[order], thresholds)
    mistakes = np.append(0, (1 - outcomes[order])[::-1].cumsum()).astype(np.int64)
    errors = mistakes[accepted]
    chances = _chance_of_at_most(errors, accepted, max_risk)
    last = last_certified(chances, shares, alpha)
    starts = np.flatnonzero(shares)
    place = int(starts[chances[starts].argmin()]) if last is None else last
    answered, wrong = int(accepted[place]), int(errors[place])
    # Every threshold was tested for the allowed risk, and the answers chose where to stop: no better bound may be claimed.
    level = alpha * float(shares[place])
    rule = SelectiveRule(
        threshold=None if last is None else shown(float(thresholds[last])),
        max_risk=max_risk,
        alpha=alpha,
        met=last is not None,
        questions=len(outcomes),
        accepted=answered,
        errors=wrong,
        coverage=0.0 if last is None else answered / len(outcomes),
        bound=risk_bound(wrong, answered, level) if last is None else max_risk,
        risk_of_all=float(mistakes[-1]) / len(outcomes),
        needed=accepted_needed(max_risk, wrong / max(1, answered), level) if last is None else None,
        words="",
    )
    return replace(rule, words=_rule_in_words(rule, level))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _rule_in_words(rule: SelectiveRule, level: float) -> str:
    """What a rule guarantees and what it doesn't, or why there is none and what it would take."""
    seen = f"{rule.errors:,} of {rule.accepted:,} accepted answers were wrong"
    if rule.met:
        answered = (
            f"all of these {rule.questions:,} questions, of which {rule.errors:,} were answered wrongly"
            if rule.accepted == rule.questions
            else f"{_percent(rule.coverage)} of these {rule.questions:,} questions, where {seen}. Answering all would be"
            f" wrong in {_percent(rule.risk_of_all)}"
        )
        return (
            f"At most {_percent(rule.max_risk)} of the answers given are wrong, with {_percent(1 - rule.alpha)} confidence"
            f" over the draw of the calibration questions. It answers if its confidence is at least"
            f" {min(100 * (rule.threshold or 0.0), 99.9):.1f} %: {answered}. The {_percent(1 - rule.alpha)} are over all"
            " calibrations, not only those that certify a threshold. It holds for questions drawn like these, taken together:"
            " not for each answer by itself, and not for names that were never seen."
        )
    refused = (
        f"A risk of at most {_percent(rule.max_risk)} could not be certified with {_percent(1 - rule.alpha)} confidence, so"
        f" no question is answered ({_percent(rule.risk_of_all)} would be wrong if all were):"
    )
    least = accepted_needed(rule.max_risk, 0.0, level)
    without = f"without an error it takes {'too many' if least is None else f'{least:,}'} accepted answers"
    if least is None or rule.questions < least:
        return f"{refused} {without}, and there are {rule.questions:,} questions."
    if rule.accepted == 0:
        return f"{refused} no answer is confident enough ({without})."
    bounded = f"{refused} {seen}, which certifies {_percent(rule.bound)} only"
    if rule.needed is None:
        return f"{bounded}. At this rate of errors no number of answers would do."
    asked = math.ceil(rule.needed * rule.questions / rule.accepted)
    return f"{bounded}. At this rate of errors it takes about {rule.needed:,} accepted answers, or {asked:,} questions."
