"""A comparison in one or two sentences, made from its numbers.

The words claim no more than the test: a difference is shown or not shown, never absent. Where none is shown, the sentence
states what the interval excludes; "equivalent" takes a test of its own. Every verdict comes with its p, and an interval
beside a p that is adjusted for several comparisons is adjusted too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

from attnlab.stats.checks import check_level, require
from attnlab.stats.crossed import Equivalence, Perplexities, SeedsByQuestions, seeds_by_questions
from attnlab.stats.means import holm
from attnlab.stats.shares import McNemar, TwoProportions, mcnemar

_Comparison = TwoProportions | McNemar | SeedsByQuestions | Perplexities
_Interval = tuple[float, float] | None
_IF_TRUE = "for 80 % power if the true difference is the one observed"


@dataclass(frozen=True)
class _Names:
    """What the two sides of a comparison and what they answered are called."""

    a: str
    b: str
    item: str


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
    alpha: float = 0.05  # of the interval
    same: Equivalence | None = None  # in the unit of the sentence
    note: str = ""  # why there is no p


def in_words(
    result: _Comparison,
    a: str = "A",
    b: str = "B",
    *,
    adjusted: float | None = None,
    comparisons: int = 1,
    looks: int = 1,
    alpha: float = 0.05,
    item: str = "question",
) -> str:
    """The sentences that a comparison allows.

    `adjusted` is its p after Holm over this number of `comparisons`, times the number of `looks` at the results; `item` is the
    noun for what was answered.
    """
    check_level(alpha, "alpha")
    several = comparisons > 1 or looks > 1
    require((adjusted is None) != several, "an adjusted p belongs to several comparisons or looks: give both")
    finding = _finding(result, _Names(a, b, item))
    if finding.p is None:
        return f"no test: {finding.figures}; {finding.note}"
    p = finding.p if adjusted is None else adjusted
    test = p_in_words(p, alpha)
    over = [f"Holm over {comparisons} comparisons"] if comparisons > 1 else []
    over += [f"correction for {looks} looks"] if looks > 1 else []
    test += f" after {' and '.join(over)}, {finding.how}" if over else f" {finding.how}"
    if p < alpha:
        edge = (
            "; at the edge: the interval includes zero, since it is wider than Holm requires"
            if finding.interval and not _leaves_out_zero(finding)
            else ""
        )
        return f"{finding.gain}, {test}; {finding.figures}{edge}{_equivalent(finding)}"
    parts = [f"no difference shown: {finding.figures}, {test}"]
    if _leaves_out_zero(finding):
        parts.append("its interval excludes zero, but its test does not")
    if finding.needed:
        parts.append(finding.needed)
    return "; ".join(parts) + (_equivalent(finding) or _excluded(finding))


Answers = Sequence[Sequence[bool]]  # whether each is right, one row per seed
Sides = tuple[str, str, Answers, Answers, float | None]  # two names, their answers, and a margin of equivalence


@dataclass(frozen=True)
class Contrast:
    """Two sides on the same items, among several pairs; the interval and `adjusted` are corrected for their number."""

    a: str
    b: str
    low: float | None
    high: float | None
    p: float | None  # None: no test is possible
    adjusted: float
    words: str

    @property
    def sentence(self) -> str:
        """The test as a sentence."""
        return f"{self.a} against {self.b}: {self.words}."


def contrasts(pairs: Sequence[Sides], alpha: float = 0.05, item: str = "question") -> list[Contrast]:
    """Test several pairs, with Holm's correction over all of them.

    Tests are for new seeds and new items; with one seed, by McNemar's test.
    """
    level = alpha / len(pairs)
    tests = [
        mcnemar(first[0], second[0], level, margin)
        if len(first) == 1
        else seeds_by_questions(first, second, alpha=level, margin=margin)
        for _, _, first, second, margin in pairs
    ]
    bounds = [test if isinstance(test, McNemar) else test.both for test in tests]
    tested = []
    adjusted = holm([1.0 if bound.p is None else bound.p for bound in bounds])
    for (a, b, *_), test, bound, p in zip(pairs, tests, bounds, adjusted, strict=True):
        corrected = p if len(pairs) > 1 else None
        words = in_words(test, a, b, adjusted=corrected, comparisons=len(pairs), item=item)
        tested.append(Contrast(a, b, bound.low, bound.high, bound.p, p, words))
    return tested


def _leaves_out_zero(finding: _Finding) -> bool:
    return finding.interval is not None and not finding.interval[0] <= 0 <= finding.interval[1]


def _excluded(finding: _Finding) -> str:
    """The sentence on the differences that the interval excludes."""
    if finding.interval is None:
        return ""
    scale = 10**finding.decimals  # outwards: what is called excluded lies outside of the interval
    low, high = finding.interval
    ends = math.floor(low * scale + 1e-9) / scale, math.ceil(high * scale - 1e-9) / scale
    interval, most = f"{_level(1 - finding.alpha)} interval {_ends(ends, finding.decimals)}", max(map(abs, ends))
    if finding.unit == "points" and most >= 100:
        return f". The {interval} excludes almost nothing" if ends[1] - ends[0] > 190 else f" ({interval})"
    return f". Differences above {_sized(most, finding)} are excluded ({interval})"


def _equivalent(finding: _Finding) -> str:
    """The sentence on the test of equivalence, if there was one."""
    if finding.same is None:
        return ""
    same = finding.same
    claim = f"Equivalent within {_sized(same.margin, finding)}" if same.shown else None
    claim = claim or f"Equivalence within {_sized(same.margin, finding)} is not shown"
    below = "" if same.alpha == 0.05 else f", which must be below {same.alpha:.2g} for this many comparisons and looks"
    interval = f"{_level(1 - 2 * same.alpha)} interval {_ends((same.low, same.high), finding.decimals)}"
    return f". {claim}: two one-sided tests, {p_in_words(same.p, same.alpha)}{below}, {interval}"


def _sized(size: float, finding: _Finding) -> str:
    """A size with its unit, with more decimals only where rounding would change it."""
    decimals = next((n for n in range(finding.decimals, 6) if math.isclose(round(size, n), size, abs_tol=1e-9)), 6)
    return f"{size:.{decimals}f} {finding.unit}".rstrip()


def _ends(interval: tuple[float, float], decimals: int) -> str:
    return " to ".join(f"{end:.{decimals}f}" for end in interval)


def _level(level: float) -> str:
    return f"{100 * level:.3g} %"


def p_in_words(p: float, alpha: float = 0.05) -> str:
    """P with two digits, or more where rounding would move it across alpha."""
    if p < 0.001:
        return "p < 0.001"
    for digits in range(2, 8):
        text = f"{p:.{digits}g}"
        if (float(text) < alpha) == (p < alpha):
            return f"p = {text}"
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
    needed = f"{_about(need)} {names.item}s each would be needed {_IF_TRUE}" if need else ""
    interval = _interval_of(result.low, result.high)
    return _in_points(names, figures, result.difference, interval, result.p, "unpaired", needed)


@_finding.register
def _(result: McNemar, names: _Names) -> _Finding:
    figures = f"{100 * result.a:.1f} vs {100 * result.b:.1f} % of the same {result.questions:,}"
    how = f"paired (exact McNemar, {result.only_a:,} right with {names.a} only, {result.only_b:,} with {names.b} only)"
    need = result.questions_needed
    needed = f"{_about(need)} {names.item}s would be needed {_IF_TRUE}" if need else ""
    interval = _interval_of(result.low, result.high)
    finding = _in_points(names, figures, result.difference, interval, result.p, how, needed)
    return replace(finding, alpha=result.alpha, same=_scaled(result.equivalence, lambda share: 100 * share))


@_finding.register
def _(result: SeedsByQuestions, names: _Names) -> _Finding:
    counts = f"{_count_of(result.questions, names.item)} x {_count_of(result.seeds, 'seed')}"
    figures = f"{100 * result.a:.1f} vs {100 * result.b:.1f} % of {counts}"
    how = f"for new {names.item}s, with this one seed" if result.seeds == 1 else f"for new seeds and new {names.item}s"
    both = result.both
    finding = _in_points(names, figures, result.difference, _interval_of(both.low, both.high), both.p, how)
    same = _scaled(result.equivalence, lambda share: 100 * share)
    return replace(finding, alpha=both.alpha, same=same, note=both.note)


def _scaled(same: Equivalence | None, scale: Callable[[float], float]) -> Equivalence | None:
    """A test of equivalence in the unit of the sentence."""
    if same is None:
        return None
    return replace(same, margin=scale(same.margin), low=scale(same.low), high=scale(same.high))


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
    seeds = f" x {result.seeds} seeds" if result.seeds > 1 else ""
    figures = f"token perplexity {result.a:.4g} vs {result.b:.4g} on {_count_of(result.sentences, 'sentence')}{seeds}"
    how = "for new seeds and new sentences" if result.seeds > 1 else "for new sentences, with this one seed"
    logs = _interval_of(result.both.low, result.both.high)
    interval = (math.exp(logs[0]), math.exp(logs[1])) if logs else None
    percent = (100 * (interval[0] - 1), 100 * (interval[1] - 1)) if interval else None
    winner, ratio, less = names.a, result.ratio, interval
    if ratio > 1:  # the gain of the better side, relative to the other
        winner, ratio, less = names.b, 1 / ratio, (1 / interval[1], 1 / interval[0]) if interval else None
    lower = _by_how_much(100 * (1 - ratio), (100 * (1 - less[1]), 100 * (1 - less[0])) if less else None, 1, " %")
    same, both = _scaled(result.equivalence, lambda log: 100 * math.expm1(log)), result.both
    gain = f"{winner} better, its token perplexity lower by {lower}"
    return _Finding(figures, gain, percent, "%", 1, both.p, how, alpha=both.alpha, same=same, note=both.note)


def _about(count: int) -> str:
    """A count, rounded to two digits if it is large."""
    digits = max(0, len(str(count)) - 2)
    return f"about {round(count, -digits):,}" if count >= 100 else f"{count:,}"


def _count_of(number: int, noun: str) -> str:
    """A count with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
