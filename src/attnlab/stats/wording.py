"""A comparison in one or two sentences, made from its numbers.

The words claim no more than the test: a difference is shown or not shown, never absent. Where none is shown, the sentence
states what the interval excludes. Every verdict comes with its p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch

from attnlab.stats.checks import check_level, require
from attnlab.stats.means import Paired, SeedsByQuestions
from attnlab.stats.perplexity import Perplexities
from attnlab.stats.planning import about, count_of
from attnlab.stats.shares import McNemar, TwoProportions

_Comparison = TwoProportions | McNemar | SeedsByQuestions | Perplexities | Paired
_Interval = tuple[float, float] | None


@dataclass(frozen=True)
class _Names:
    """What the two sides and the figure of a comparison are called."""

    a: str = "A"
    b: str = "B"
    measure: str = "value"
    lower_is_better: bool = False


@dataclass(frozen=True)
class _Finding:
    """The common form of all comparisons: A minus B with its interval, in the unit of the sentence."""

    figures: str
    gain: str  # which side is better, and by how much
    interval: _Interval
    unit: str
    decimals: int
    p: float | None
    how: str  # the test behind p
    needed: str = ""  # what it would take to find the difference
    note: str = ""  # why there is no p


def in_words(
    result: _Comparison,
    a: str = "A",
    b: str = "B",
    *,
    adjusted: float | None = None,
    comparisons: int = 1,
    margin: float | None = None,
    alpha: float = 0.05,
    measure: str = "value",
    lower_is_better: bool = False,
) -> str:
    """The sentences that a comparison allows.

    `adjusted` is its p after Holm over this number of `comparisons`. `margin` is a difference too small to matter, in the
    unit of the sentence (points, % of perplexity, or that of the values). `measure` and `lower_is_better` describe paired
    values; for right answers and perplexities they are known.
    """
    check_level(alpha, "alpha")
    require((adjusted is None) == (comparisons == 1), "an adjusted p belongs to several comparisons: give both")
    require(margin is None or margin > 0, f"a margin must be above 0, not {margin}")
    found = _finding(result, _Names(a, b, measure, lower_is_better))
    if found.p is None:
        reason = found.note or "one value on each side"
        return f"no test possible: {found.figures} ({reason}); run more to generalise"
    p = found.p if adjusted is None else adjusted
    said = p_in_words(p, alpha)
    said += f" {found.how}" if adjusted is None else f" after Holm over {comparisons} comparisons, {found.how}"
    if p < alpha:
        edge = (
            "; at the edge, since the interval touches zero" if found.interval and not _leaves_out_zero(found) else ""
        )
        return f"{found.gain}, {said}; {found.figures}{edge}"
    parts = [f"no difference shown: {found.figures}, {said}"]
    if _leaves_out_zero(found):
        parts.append("its interval excludes zero, but its test does not")
    if found.needed:
        parts.append(found.needed)
    return "; ".join(parts) + _excluded(found, margin)


def _leaves_out_zero(found: _Finding) -> bool:
    return found.interval is not None and not found.interval[0] <= 0 <= found.interval[1]


def _excluded(found: _Finding, margin: float | None) -> str:
    """The sentence on the differences that the interval excludes."""
    if found.interval is None:
        return ""
    reach = max(map(abs, found.interval))
    ends = " to ".join(f"{end:.{found.decimals}f}" for end in found.interval)
    unit = f" {found.unit}" if found.unit else ""
    if margin is None:
        scale = 10**found.decimals
        rounded = math.ceil(reach * scale - 1e-9) / scale  # up: excluded differences lie outside the interval
        return f". Differences above {rounded:.{found.decimals}f}{unit} are excluded (95 % interval {ends})"
    verdict = "are excluded" if reach < margin else "are not excluded, so this is no proof that both are equal"
    return f". Differences of {margin:g}{unit} and more {verdict} (95 % interval {ends})"


def p_in_words(p: float, alpha: float = 0.05) -> str:
    """P with two digits, or more where rounding would move it across alpha."""
    if p < 0.001:
        return "p < 0.001"
    for digits in range(2, 8):
        said = f"{p:.{digits}g}"
        if (float(said) < alpha) == (p < alpha):
            return f"p = {said}"
    return f"p = {p}"


def _interval_of(low: float | None, high: float | None) -> _Interval:
    return None if low is None or high is None else (low, high)


def _by_how_much(difference: float, interval: _Interval, decimals: int, unit: str = "") -> str:
    """The size of a difference with its interval, as the gain of the larger side."""
    if difference < 0:
        difference, interval = -difference, (-interval[1], -interval[0]) if interval else None
    span = f" ({interval[0]:.{decimals}f} to {interval[1]:.{decimals}f})" if interval else ""
    return f"{difference:.{decimals}f}{unit}{span}"


@singledispatch
def _finding(result: object, names: _Names) -> _Finding:
    raise TypeError(f"no words for a {type(result).__name__}")


@_finding.register
def _(result: TwoProportions, names: _Names) -> _Finding:
    figures = f"{100 * result.a:.1f} vs {100 * result.b:.1f} % of {result.asked_a:,}"
    if result.asked_a != result.asked_b:
        figures = f"{100 * result.a:.1f} % of {result.asked_a:,} vs {100 * result.b:.1f} % of {result.asked_b:,}"
    need = result.questions_needed
    needed = f"{about(need)} questions each would be needed for 80 % power" if need else ""
    interval = _interval_of(result.low, result.high)
    return _in_points(names, figures, result.difference, interval, result.p, "unpaired", needed)


@_finding.register
def _(result: McNemar, names: _Names) -> _Finding:
    figures = f"{100 * result.a:.1f} vs {100 * result.b:.1f} % of the same {result.questions:,}"
    how = f"paired (exact McNemar, {result.only_a:,} right with {names.a} only, {result.only_b:,} with {names.b} only)"
    need = result.questions_needed
    needed = f"{about(need)} questions would be needed for 80 % power" if need else ""
    return _in_points(names, figures, result.difference, _interval_of(result.low, result.high), result.p, how, needed)


@_finding.register
def _(result: SeedsByQuestions, names: _Names) -> _Finding:
    counts = f"{count_of(result.questions, 'question')} x {count_of(result.seeds, 'seed')}"
    figures = f"{100 * result.a:.1f} vs {100 * result.b:.1f} % of {counts}"
    how = "for new questions, with this one seed" if result.seeds == 1 else "for new seeds and new questions"
    both = result.both
    return _in_points(names, figures, result.difference, _interval_of(both.low, both.high), both.p, how)


def _in_points(
    names: _Names, figures: str, difference: float, interval: _Interval, p: float | None, how: str, needed: str = ""
) -> _Finding:
    """A difference of shares of right answers, in points."""
    points = (100 * interval[0], 100 * interval[1]) if interval else None
    size = _by_how_much(100 * difference, points, 1, " points")
    gain = f"{names.a if difference > 0 else names.b} better by {size}"
    return _Finding(figures, gain, points, "points", 1, p, how, needed)


@_finding.register
def _(result: Perplexities, names: _Names) -> _Finding:
    kind = result.statistic.replace("_", " ")
    seeds = f" x {result.seeds} seeds" if result.seeds > 1 else ""
    figures = f"{kind} {result.a:.4g} vs {result.b:.4g} on {count_of(result.sentences, 'sentence')}{seeds}"
    interval, p, how = (
        _interval_of(result.ratio_low, result.ratio_high),
        result.p,
        "for new sentences, with this one seed (bootstrap)",
    )
    if result.both is not None:
        logs = _interval_of(result.both.low, result.both.high)
        interval, p = (math.exp(logs[0]), math.exp(logs[1])) if logs else None, result.both.p
        how = "for new seeds and new sentences"
    percent = (100 * (interval[0] - 1), 100 * (interval[1] - 1)) if interval else None
    winner, ratio, less = names.a, result.ratio, interval
    if ratio > 1:  # the gain of the better side, relative to the other
        winner, ratio, less = names.b, 1 / ratio, (1 / interval[1], 1 / interval[0]) if interval else None
    lower = _by_how_much(100 * (1 - ratio), (100 * (1 - less[1]), 100 * (1 - less[0])) if less else None, 1, " %")
    return _Finding(figures, f"{winner} better, its {kind} lower by {lower}", percent, "%", 1, p, how)


@_finding.register
def _(result: Paired, names: _Names) -> _Finding:
    decimals = _decimals_for(result)
    figures = (
        f"{names.measure} {result.a:.{decimals}f} vs {result.b:.{decimals}f} over {count_of(result.seeds, 'seed')}"
    )
    how = "by the paired t test"
    if result.p_sign_flip is not None and result.p_sign_flip_least is not None:
        least = ", the minimum for so few seeds" if result.p_sign_flip <= result.p_sign_flip_least else ""
        how += f" ({p_in_words(result.p_sign_flip)} by sign flips{least})"
    interval = _interval_of(result.low, result.high)
    a_better = (result.difference < 0) == names.lower_is_better
    gain = f"{names.a if a_better else names.b} better by {_by_how_much(result.difference, interval, decimals)}"
    return _Finding(figures, gain, interval, "", decimals, result.p, how, note=result.note)


def _decimals_for(result: Paired) -> int:
    """As many decimals as the standard deviation between seeds makes meaningful."""
    size = result.sd or abs(result.difference) or abs(result.a) or 1.0
    return max(0, min(9, 1 - math.floor(math.log10(size))))
