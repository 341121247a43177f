"""Whether confidences are of use: do they separate known from unknown, and are they probabilities?

Separation is the area under the ROC curve: the chance that something known has a higher confidence than something unknown,
ties counting one half. Calibration asks whether 80 % of the answers given with 80 % confidence are right, and Platt scaling
makes it so.

Bins hold equally many answers each (equal mass), since the confidences of a trained model crowd near 1. The calibration
error of finite bins is never 0 by chance alone, so it comes with what a perfectly calibrated model would show on the same
confidences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.stats.checks import Numbers, check_count, numbers, require
from attnlab.stats.selective import probabilities
from attnlab.stats.shares import proportion_interval

_FAINTEST = 1e-6  # scores closer to 0 or 1 count as this close
_FLATTEST = 0.01  # the least slope of a map


@dataclass(frozen=True)
class Auroc:
    """The area under the ROC curve with its 95 % interval; 0.5 is chance, 1 perfect; no interval where a side has one value."""

    known: int
    unknown: int
    value: float
    low: float | None
    high: float | None
    method: str


def auroc(known: ArrayLike, unknown: ArrayLike) -> Auroc:
    """Confidences of known against those of unknown cases.

    The interval is DeLong's (1988), on the scale of log odds so that it stays between 0 and 1. Where its variance is 0
    (the two sides do not overlap, or all values are equal), it is Newcombe's (2006, method 5).
    """
    from scipy.special import expit
    from scipy.stats import norm, rankdata

    above, below = numbers(known, "the confidences of known cases"), numbers(unknown, "those of unknown cases")
    m, n = len(above), len(below)
    together = rankdata([*above, *below])
    # For each value the share of the other side that lies below it: DeLong's structural components.
    beaten = (together[:m] - rankdata(above)) / n
    unbeaten = 1 - (together[m:] - rankdata(below)) / m
    value = float(beaten.mean())
    if min(m, n) == 1:
        return Auroc(m, n, value, None, None, "one value on a side, so no interval")
    spread = math.sqrt(float(beaten.var(ddof=1)) / m + float(unbeaten.var(ddof=1)) / n)
    z = float(norm.ppf(0.975))
    if not 0 < value < 1 or spread == 0:
        return Auroc(m, n, value, *_newcombe(value, m, n, z), "Newcombe")
    odds, step = math.log(value / (1 - value)), z * spread / (value * (1 - value))
    return Auroc(m, n, value, float(expit(odds - step)), float(expit(odds + step)), "DeLong")


def _newcombe(value: float, m: int, n: int, z: float) -> tuple[float, float]:
    """The areas z standard errors away from the observed one, by Hanley and McNeil's error for sides of equal size."""
    from scipy.optimize import brentq

    size = (m + n) / 2 - 1

    def distance(area: float) -> float:
        variance = area * (1 - area) * (1 + size * ((1 - area) / (2 - area) + area / (1 + area))) / (m * n)
        return (value - area) ** 2 - z * z * variance

    low = 0.0 if value == 0 else float(brentq(distance, 0.0, value - 1e-12))
    high = 1.0 if value == 1 else float(brentq(distance, value + 1e-12, 1.0))
    return low, high


@dataclass(frozen=True)
class Bin:
    """Answers of similar confidence: mean confidence, and share of right answers with its 95 % interval (Wilson)."""

    answers: int
    lowest: float
    highest: float
    confidence: float
    right: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """How confidences compare with right answers.

    `ece` is the mean distance between confidence and accuracy over the bins, `ece_if_calibrated` roughly its expectation for
    a perfectly calibrated model with these confidences.
    """

    answers: int
    accuracy: float
    confidence: float
    ece: float
    ece_if_calibrated: float
    table: tuple[Bin, ...]


def _equal_mass(confidences: Numbers, bins: int) -> list[NDArray[np.int64]]:
    """The places of the answers by bin, equally many each as far as equal confidences, which stay together, allow."""
    from scipy.stats import rankdata

    count = min(bins, len(confidences))
    number = ((rankdata(confidences) - 0.5) * count / len(confidences)).astype(np.int64)
    return [np.flatnonzero(number == bin_number) for bin_number in np.unique(number)]


def calibration(confidence: ArrayLike, right: ArrayLike, bins: int = 10) -> Calibration:
    """The reliability table in equal-mass bins, and the errors that follow from it; fewer bins where answers are few."""
    confidences, outcomes = probabilities(confidence, right)
    parts = _equal_mass(confidences, check_count(bins, "bins"))
    sizes = np.array([len(part) for part in parts])
    promised, true = (np.array([values[part].mean() for part in parts]) for values in (confidences, outcomes))
    noise = np.array([(confidences[part] * (1 - confidences[part])).sum() for part in parts]) ** 0.5 / sizes
    weights = sizes / sizes.sum()
    table = []
    for part, promise, share in zip(parts, promised.tolist(), true.tolist(), strict=True):
        low, high = proportion_interval(int(outcomes[part].sum()), len(part))
        edges = float(confidences[part].min()), float(confidences[part].max())
        table.append(Bin(len(part), *edges, promise, share, low, high))
    return Calibration(
        answers=len(outcomes),
        accuracy=float(outcomes.mean()),
        confidence=float(confidences.mean()),
        ece=float((weights * np.abs(promised - true)).sum()),
        ece_if_calibrated=float((weights * noise).sum()) * math.sqrt(2 / math.pi),
        table=tuple(table),
    )


@dataclass(frozen=True)
class Platt:
    """An increasing map from a score between 0 and 1 to the probability that an answer is right."""

    slope: float  # of the log odds
    intercept: float

    def __call__(self, score: ArrayLike) -> Numbers:
        """The probabilities that belong to scores."""
        from scipy.special import expit

        return np.asarray(expit(self.slope * _log_odds(score) + self.intercept))


def _log_odds(score: ArrayLike) -> Numbers:
    from scipy.special import logit

    return np.asarray(logit(np.clip(np.asarray(score, dtype=np.float64), _FAINTEST, 1 - _FAINTEST)))


def fit_platt(score: ArrayLike, right: ArrayLike) -> Platt:
    """Platt scaling: logistic regression of right answers on the log odds of their scores.

    Right and wrong count as slightly less than certain, as in Platt (1999), so that the map stays finite where all are right.
    The slope is kept above 0, so that the map keeps the order of scores. The loss is convex.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    scores, outcomes = probabilities(score, right)
    odds, hits = _log_odds(scores), outcomes.sum()
    wanted = np.where(outcomes == 1, (hits + 1) / (hits + 2), 1 / (len(outcomes) - hits + 2))

    def loss(line: Numbers) -> tuple[float, Numbers]:
        mapped = line[0] * odds + line[1]
        off = (expit(mapped) - wanted) / len(odds)
        return float((np.logaddexp(0, mapped) - wanted * mapped).mean()), np.array([off @ odds, off.sum()])

    bounds = [(_FLATTEST, None), (None, None)]
    fit = minimize(loss, (1.0, 0.0), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-8})
    return Platt(*fit.x.tolist())


def cross_fitted(score: ArrayLike, right: ArrayLike, folds: int = 5, seed: int = 0) -> Numbers:
    """The probability of every answer from a map that was fitted to the answers of the other folds."""
    scores, outcomes = probabilities(score, right)
    fold = np.random.default_rng(seed).permutation(len(scores)) % min(folds, len(scores))
    require(len(scores) > 1, "a map cannot be fitted without other answers: give at least 2")
    fitted = np.empty_like(scores)
    for part in np.unique(fold):
        held = fold == part
        fitted[held] = fit_platt(scores[~held], outcomes[~held])(scores[held])
    return fitted
