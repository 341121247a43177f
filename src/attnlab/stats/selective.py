"""Selective answering: risk against coverage, and a threshold with a guarantee.

A question is answered where the confidence in its answer reaches a threshold. Coverage is the share of questions that are
answered, risk the share of wrong answers among those. The threshold is chosen on one half of the answers, and its risk is
bounded on the other half (Clopper and Pearson, exact), so the bound holds however the choice was made. From there the
threshold is lowered step by step as long as each step is certified too, in an order fixed by the first half, so that all steps
together have the error probability of one (fixed-sequence testing, arXiv:2110.01052). Answers of equal confidence are
accepted together or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.stats.checks import check_count, check_level, numbers, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from attnlab.stats.checks import Numbers

_STEPS = 50  # in which a certified threshold is lowered, of equally many answers each
_NEARLY = 0.98  # a chance of certification this close to the best is as good
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


def ordered(confidence: Numbers, right: Numbers) -> tuple[Numbers, NDArray[np.int64], Numbers]:
    """Every threshold from the strictest, with the number of answers it accepts and the number of wrong ones among them."""
    import numpy as np

    thresholds, group = np.unique(-confidence, return_inverse=True)
    accepted = np.bincount(group).cumsum()
    return -thresholds, accepted, np.bincount(group, weights=1 - right).cumsum()


@dataclass(frozen=True)
class RiskCoverage:
    """Risk at every coverage that a threshold can reach, from the strictest threshold on, and the area under the curve.

    The area (AURC) is the mean risk over the 1, 2, ... n most confident answers, those of equal confidence in random order.
    `best` is the area if every right answer came before every wrong one, `excess` the rest. An uninformative confidence has
    the area `risk_of_all`.
    """

    questions: int
    errors: int
    risk_of_all: float
    threshold: tuple[float, ...]
    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    area: float
    best: float
    excess: float

    def at_risk(self, most: float) -> float:
        """The largest observed coverage whose risk is at most this one; no guarantee."""
        return max((c for c, r in zip(self.coverage, self.risk, strict=True) if r <= most), default=0.0)


def risk_coverage(confidence: ArrayLike, right: ArrayLike) -> RiskCoverage:
    """Risk against coverage (arXiv:1805.08206 for the areas)."""
    import numpy as np

    thresholds, accepted, wrong = ordered(*judged(confidence, right))
    questions, errors = int(accepted[-1]), int(wrong[-1])
    ranks = np.arange(1, questions + 1)
    area = float((np.interp(ranks, [0, *accepted], [0, *wrong]) / ranks).mean())
    best = float((np.maximum(0, ranks - (questions - errors)) / ranks).mean())
    return RiskCoverage(
        questions=questions,
        errors=errors,
        risk_of_all=errors / questions,
        threshold=tuple(thresholds.tolist()),
        coverage=tuple((accepted / questions).tolist()),
        risk=tuple((wrong / accepted).tolist()),
        area=area,
        best=best,
        excess=max(0.0, area - best),
    )


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
    import numpy as np
    from scipy.special import bdtr

    return np.where(errors < 0, 0.0, bdtr(np.maximum(errors, 0).astype(np.float64), accepted, risk))


def errors_allowed(accepted: NDArray[np.int64], max_risk: float, alpha: float = 0.05) -> NDArray[np.int64]:
    """The most errors among this many accepted answers for a bound of at most `max_risk`; -1 if even 0 are too many."""
    import numpy as np
    from scipy.special import bdtrik

    # The bound is at most the allowed risk exactly if so few errors have probability alpha or less at that risk.
    around = np.nan_to_num(np.floor(bdtrik(alpha, accepted, max_risk)), nan=0.0).astype(np.int64)
    allowed = np.full_like(around, -1)
    for errors in (around - 1, around, around + 1):
        allowed = np.where(_chance_of_at_most(errors, accepted, max_risk) <= alpha, errors, allowed)
    return np.maximum(allowed, -1)


def accepted_needed(max_risk: float, risk: float = 0.0, alpha: float = 0.05) -> int | None:
    """How many accepted answers, wrong at this rate, certify `max_risk`: 59 without error certify 5 %. None: no number does."""
    import numpy as np

    check_level(alpha, "alpha")
    check_level(max_risk, "the allowed risk")
    require(0 <= risk <= 1, f"a risk must lie in [0, 1], not {risk}")

    def enough(count: int) -> bool:
        errors = np.array(math.ceil(risk * count - 1e-9))
        return bool(_chance_of_at_most(errors, np.array(count), max_risk) <= alpha)

    few, many = 0, _MOST_NEEDED
    if risk >= max_risk or not enough(many):
        return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def choose_threshold(
    confidence: ArrayLike, right: ArrayLike, max_risk: float, alpha: float = 0.05, judges: int | None = None
) -> float | None:
    """The threshold to try first: the one that `judges` further answers (by default as many as here) most likely certify.

    A threshold whose risk here is exactly the allowed one fails on other answers more often than not, and one that accepts
    few answers has too few to certify anything. Of the thresholds with nearly the best chance this is the lowest. None: no
    threshold has a chance.
    """
    import numpy as np

    check_level(max_risk, "the allowed risk")
    check_level(alpha, "alpha")
    thresholds, accepted, wrong = ordered(*judged(confidence, right))
    further = check_count(int(accepted[-1]) if judges is None else judges, "judges")
    share = accepted / accepted[-1]
    # Fewer than expected may be accepted there: subtract one standard deviation.
    others = np.maximum(1, np.rint(share * further - np.sqrt(further * share * (1 - share)))).astype(np.int64)
    risk = (wrong + 1) / (accepted + 2)  # Laplace's rule: no error among few answers is not a risk of 0
    chance = _chance_of_at_most(errors_allowed(others, max_risk, alpha), others, risk)
    likely = np.flatnonzero(chance >= _NEARLY * chance.max())
    return float(thresholds[likely[-1]]) if chance.max() > 0 else None


@dataclass(frozen=True)
class Certificate:
    """A threshold on answers that it was not chosen on; `bound` bounds the risk with confidence 1 - alpha."""

    threshold: float | None  # None: nothing is answered
    questions: int
    accepted: int
    errors: int
    coverage: float
    risk: float | None  # None: nothing was accepted
    bound: float
    alpha: float


def certify(threshold: float | None, confidence: ArrayLike, right: ArrayLike, alpha: float = 0.05) -> Certificate:
    """The risk of a threshold with its exact upper bound, from answers that had no part in choosing it."""
    confidences, outcomes = judged(confidence, right)
    require(threshold is None or not math.isnan(threshold), "a threshold must be a number, or None to answer nothing")
    taken = confidences >= (math.inf if threshold is None else threshold)
    accepted, errors = int(taken.sum()), int((1 - outcomes[taken]).sum())
    return Certificate(
        threshold=threshold,
        questions=len(outcomes),
        accepted=accepted,
        errors=errors,
        coverage=accepted / len(outcomes),
        risk=errors / accepted if accepted else None,
        bound=risk_bound(errors, accepted, alpha),
        alpha=alpha,
    )


def lower_steps(start: float, confidence: ArrayLike) -> list[float]:
    """The thresholds to try after `start`, each of which accepts more of these answers, down to all of them."""
    import numpy as np

    found = np.sort(numbers(confidence, "the confidences"))[::-1]
    ranks = np.linspace(0, len(found) - 1, _STEPS + 1).round().astype(int)
    return [float(one) for one in np.unique(found[ranks])[::-1] if one < start]


def lowered(
    start: float | None, steps: list[float], tries: Callable[[float | None], Certificate], max_risk: float
) -> Certificate:
    """The certificate of the last threshold before the first that fails; that of `start` if `start` fails."""
    last = tries(start)
    for threshold in steps if last.bound <= max_risk else []:
        following = tries(threshold)
        if following.bound > max_risk:
            break
        last = following
    return last


@dataclass(frozen=True)
class SelectiveRule:
    """A rule for when to answer, and its guarantee.

    `threshold` is None where the allowed risk could not be certified: then no question is answered, and `needed` is the
    number of accepted answers that would certify it at the observed error rate (None: no number would).
    """

    threshold: float | None
    max_risk: float
    alpha: float
    seed: int
    met: bool
    coverage: float  # of the certifying half, by this rule: 0 where it is not met
    bound: float  # of the risk: max_risk where it is met, else the bound certified at the first threshold
    chosen_on: Certificate  # the half that chose the threshold: its bound is optimistic
    certified_on: Certificate
    needed: int | None
    words: str


def halves(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of this many answers in two random halves: one to choose on, and one to certify on."""
    import numpy as np

    order = np.random.default_rng(check_count(seed, "the seed", 0)).permutation(check_count(count, "the answers"))
    return order[: count // 2], order[count // 2 :]


def least_confidence(strangers: ArrayLike, most: float = 0.05, alpha: float = 0.05) -> float:
    """The confidence above which, at level 1 - alpha, at most a share `most` of strangers lies; infinity for too few.

    It is the lowest of their confidences for which that share is certified (Clopper and Pearson).
    """
    import numpy as np

    check_level(most, "the share of strangers")
    found = np.sort(numbers(strangers, "the confidences of strangers"))[::-1]
    allowed = int(errors_allowed(np.array([len(found)]), most, alpha)[0])
    return math.inf if allowed < 0 else float(np.nextafter(found[min(allowed, len(found) - 1)], np.inf))


def selective_rule(
    confidence: ArrayLike,
    right: ArrayLike,
    max_risk: float,
    seed: int = 0,
    alpha: float = 0.05,
    lowest: float = -math.inf,
) -> SelectiveRule:
    """Choose a threshold on one random half of the answers, certify its risk on the other, and lower it while that holds.

    No threshold goes below `lowest`, which must not depend on these answers.
    """
    confidences, outcomes = judged(confidence, right)
    require(
        len(outcomes) >= 2, "a rule is chosen on one half of the answers and certified on the other: give at least 2"
    )
    first, second = halves(len(outcomes), seed)
    threshold = choose_threshold(confidences[first], outcomes[first], max_risk, alpha, len(second))
    threshold = None if threshold is None else max(threshold, lowest)
    steps = [] if threshold is None else [one for one in lower_steps(threshold, confidences[first]) if one >= lowest]
    certified = lowered(
        threshold, steps, lambda one: certify(one, confidences[second], outcomes[second], alpha), max_risk
    )
    chosen = certify(certified.threshold, confidences[first], outcomes[first], alpha)
    met = certified.bound <= max_risk
    # Every step was tried for the allowed risk, and the second half chose where to stop: no better bound may be claimed.
    bound = max_risk if met else certified.bound
    needed = accepted_needed(max_risk, certified.risk or 0.0, alpha)
    return SelectiveRule(
        threshold=certified.threshold if met else None,
        max_risk=max_risk,
        alpha=alpha,
        seed=seed,
        met=met,
        coverage=certified.coverage if met else 0.0,
        bound=bound,
        chosen_on=chosen,
        certified_on=certified,
        needed=needed,
        words=_rule_in_words(certified, len(outcomes), max_risk, needed),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _rule_in_words(found: Certificate, answers: int, max_risk: float, needed: int | None) -> str:
    """What a certificate guarantees and what it doesn't, or why there is none and what it would take."""
    seen = f"{found.errors:,} of {found.accepted:,} accepted answers were wrong"
    sure = f"{_percent(1 - found.alpha)} confidence"
    if found.bound <= max_risk:
        return (
            f"Of answers with a confidence of {found.threshold:.4g} or more at most {_percent(max_risk)} are wrong, with"
            f" {sure}: {seen} in the half that certifies, and {_percent(found.coverage)} of its questions were answered. This"
            f" holds for questions drawn like these {answers:,}, taken together: not for each answer by itself, and not for"
            " names that were never seen."
        )
    refused = (
        f"A risk of at most {_percent(max_risk)} could not be certified with {sure}, so that no question is answered:"
    )
    least = accepted_needed(max_risk, 0.0, found.alpha)
    without = f"without an error it takes {'too many' if least is None else f'{least:,}'} accepted answers"
    if least is None or found.questions < least:
        return f"{refused} {without}, and the half that certifies has {found.questions:,}."
    if found.accepted == 0:
        return f"{refused} no threshold promised so few errors among enough answers ({without})."
    bounded = f"{refused} {seen}, which certifies {_percent(found.bound)} only"
    if needed is None:
        return f"{bounded}. At this rate of errors no number of answers would do."
    asked = 2 * math.ceil(needed / found.coverage)
    return f"{bounded}. At this rate of errors it takes about {needed:,} accepted answers, or {asked:,} in both halves."
