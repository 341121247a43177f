"""Whether confidences are of use: do they separate known from unknown, and are they probabilities?

Separation is the area under the ROC curve: the chance that something known has a higher confidence than something unknown,
ties counting one half. Calibration asks whether 80 % of the answers given with 80 % confidence are right, and temperature
scaling makes it so.

Bins hold equally many answers each (equal mass), since the confidences of a trained model crowd near 1. The calibration
error of finite bins is never 0 by chance alone, so it comes with what a perfectly calibrated model would show on the same
confidences, and with a form whose square has no such bias (Kumar, Liang, Ma 2019, arXiv:1909.10155).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.stats.checks import check_count, numbers, require
from attnlab.stats.selective import judged
from attnlab.stats.shares import proportion_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from attnlab.stats.checks import Numbers

_COLDEST, _HOTTEST = 0.02, 50.0  # the range of temperatures searched


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
    a perfectly calibrated model with these confidences. `rms_debiased` is the root mean square distance without the bias of
    finite bins, over bins of two answers or more (0 where its square came out negative). `overconfidence` is mean
    confidence minus accuracy. `brier` is the mean squared error of the confidences, 0.25 for always saying one half.
    """

    answers: int
    accuracy: float
    confidence: float
    overconfidence: float
    ece: float
    ece_if_calibrated: float
    rms_debiased: float | None  # None: every bin holds one answer
    brier: float
    table: tuple[Bin, ...]


def _probabilities(confidence: ArrayLike, right: ArrayLike) -> tuple[Numbers, Numbers]:
    """Confidences that are probabilities, with right and wrong as 1 and 0."""
    confidences, outcomes = judged(confidence, right)
    require(
        bool(((confidences >= 0) & (confidences <= 1)).all()),
        f"confidences must be probabilities here, from 0 to 1, but run from {confidences.min():.4g} to"
        f" {confidences.max():.4g}",
    )
    return confidences, outcomes


def brier_score(confidence: ArrayLike, right: ArrayLike) -> float:
    """The mean squared distance between confidence (0 to 1) and outcome (0 or 1)."""
    confidences, outcomes = _probabilities(confidence, right)
    return float(((confidences - outcomes) ** 2).mean())


def _equal_mass(confidences: Numbers, bins: int) -> list[NDArray[np.int64]]:
    """The places of the answers by bin, equally many each as far as equal confidences, which stay together, allow."""
    import numpy as np
    from scipy.stats import rankdata

    count = min(bins, len(confidences))
    number = ((rankdata(confidences) - 0.5) * count / len(confidences)).astype(np.int64)
    return [np.flatnonzero(number == one) for one in np.unique(number)]


def calibration(confidence: ArrayLike, right: ArrayLike, bins: int = 10) -> Calibration:
    """The reliability table in equal-mass bins, and the errors that follow from it; fewer bins where answers are few."""
    import numpy as np

    confidences, outcomes = _probabilities(confidence, right)
    parts = _equal_mass(confidences, check_count(bins, "bins"))
    sizes = np.array([len(part) for part in parts])
    promised, true = (np.array([values[part].mean() for part in parts]) for values in (confidences, outcomes))
    noise = np.array([(confidences[part] * (1 - confidences[part])).sum() for part in parts]) ** 0.5 / sizes
    weights, several = sizes / sizes.sum(), sizes > 1
    squares = (promised - true)[several] ** 2 - (true * (1 - true))[several] / (sizes[several] - 1)
    squared = float(np.average(squares, weights=sizes[several])) if several.any() else None
    table = []
    for part, said, came in zip(parts, promised.tolist(), true.tolist(), strict=True):
        low, high = proportion_interval(int(outcomes[part].sum()), len(part))
        edges = float(confidences[part].min()), float(confidences[part].max())
        table.append(Bin(len(part), *edges, said, came, low, high))
    return Calibration(
        answers=len(outcomes),
        accuracy=float(outcomes.mean()),
        confidence=float(confidences.mean()),
        overconfidence=float(confidences.mean() - outcomes.mean()),
        ece=float((weights * np.abs(promised - true)).sum()),
        ece_if_calibrated=float((weights * noise).sum()) * math.sqrt(2 / math.pi),
        rms_debiased=None if squared is None else math.sqrt(max(0.0, squared)),
        brier=float(((confidences - outcomes) ** 2).mean()),
        table=tuple(table),
    )


@dataclass(frozen=True)
class Temperature:
    """The temperature that makes the right outcomes likeliest, with the loss in nats before (at 1) and after."""

    value: float
    questions: int
    before: float
    after: float
    note: str = ""


def tempered(log_probabilities: ArrayLike, temperature: float) -> Numbers:
    """Rows of log probabilities, sharpened (below 1) or flattened (above 1), and normalised again."""
    import numpy as np
    from scipy.special import log_softmax

    require(
        math.isfinite(temperature) and temperature > 0, f"a temperature must be above 0 and finite, not {temperature}"
    )
    return np.asarray(log_softmax(np.asarray(log_probabilities, dtype=np.float64) / temperature, axis=-1))


def fit_temperature(log_probabilities: ArrayLike, right: ArrayLike) -> Temperature:
    """The one temperature for all rows [questions, outcomes] that makes the right outcomes (their columns) likeliest.

    The loss is convex in the inverse of the temperature, so the minimum found is global.
    """
    import numpy as np
    from scipy.optimize import minimize_scalar

    table = np.asarray(log_probabilities, dtype=np.float64)
    require(table.ndim == 2 and table.size > 0, "a temperature is fitted to a table of questions by outcomes")
    require(not np.isnan(table).any() and bool((table < np.inf).all()), "log probabilities must be numbers, or -inf")
    rows, columns = np.arange(len(table)), _columns_of(right, table.shape)
    require(
        bool(np.isfinite(table[rows, columns]).all()),
        "a right outcome has probability 0, which no temperature changes: leave it out, or count it as outside",
    )

    def loss(log_temperature: float) -> float:
        return -float(tempered(table, math.exp(log_temperature))[rows, columns].mean())

    ends = math.log(_COLDEST), math.log(_HOTTEST)
    found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6})
    value, after = math.exp(float(found.x)), float(found.fun)
    note = ""
    if min(float(found.x) - ends[0], ends[1] - float(found.x)) < 0.02:
        note = f"at the edge of the range searched, {_COLDEST:g} to {_HOTTEST:g}: the outcomes are all right, or random"
    return Temperature(value, len(table), loss(0.0), after, note)


def _columns_of(right: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The column of every row's right outcome, checked."""
    found = numbers(right, "the right outcomes")
    require(len(found) == shape[0], f"{shape[0]:,} questions need as many right outcomes, not {len(found):,}")
    whole = found.astype("int64")
    require(
        bool(((whole == found) & (found >= 0) & (found < shape[1])).all()),
        f"right outcomes are columns from 0 to {shape[1] - 1}",
    )
    return whole
