"""The verdict on an answer, from the model's confidence and the person's own line. Pure functions.

    recalled and supported    confident, and the line says so
    inferred                  confident; the line does not say so, and names no other answer of that kind
    contradicts its source    confident; the line does not say so, and names another
    guess                     not confident enough for the allowed risk
    never seen                no line is about the name
    not checked               confident, but there are no lines to look up

Confident means: at or above the threshold certified for the allowed risk. Where nothing is certified for it, no answer is
confident enough; without a calibration, an answer must be more likely than all others together. It must not know where
confidence and lines come from.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from attnlab.corpora import title_of
from attnlab.corpora.library import Evidence, excerpt, named_in, normal
from attnlab.report.words import listed
from attnlab.stats import SelectiveRule

SUPPORTED = "recalled and supported"
INFERRED = "inferred"
CONTRADICTS = "contradicts its source"
GUESS = "guess"
UNSEEN = "never seen"
UNCHECKED = "not checked"
VERDICTS = (SUPPORTED, INFERRED, CONTRADICTS, GUESS, UNSEEN, UNCHECKED)

_EVEN = 0.5  # confident from here, where no risk can be certified
_NAMED = 3  # places of a line that a sentence names at most
_NEAR = 0.5  # distance from the prior below which the name told the model little


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict, whether to abstain, the quote from the line around the answer that it names, and the reasons."""

    verdict: str
    abstains: bool
    quote: str
    reasons: tuple[str, ...]


def judge(
    answer: str,
    probability: float,
    rule: SelectiveRule | None,
    lookup: Evidence | None,
    known: Collection[str],
    distance: float | None = None,
) -> Judgement:
    """Judge an answer.

    `rule` is None for a run that is not calibrated, `lookup` if there is no index; `known` are the answers of the
    kind asked for, and `distance` is the distance from the prior.
    """
    lines, wanted = _read(lookup, answer, known), normal(answer).strip()
    threshold = _EVEN if rule is None else rule.threshold
    sure = threshold is not None and probability >= threshold
    if lookup is not None and not lookup.seen:
        verdict, why = UNSEEN, "No line that it was trained on is about this name, so it has nothing to recall."
    elif not sure:
        verdict, why = GUESS, _guessed(probability, rule, distance)
    elif lookup is None:
        verdict, why = UNCHECKED, "There is no line to check the answer against."
    elif wanted in lines.named:
        others = [name for name in lines.named if name != wanted]
        also = f", but also {listed([*others][:_NAMED])}" if others else ""
        verdict, why = SUPPORTED, f"The line about {lines.whose} names it{also}."
    elif lines.named:
        verdict, why = CONTRADICTS, f"The line about {lines.whose} names {listed([*lines.named][:_NAMED])} instead."
    else:
        verdict, why = INFERRED, f"The line about {lines.whose} neither says so nor names another known answer."
    abstains = verdict == UNSEEN or (verdict == GUESS and rule is not None)
    return Judgement(verdict=verdict, abstains=abstains, quote=lines.quote, reasons=(why,))


@dataclass(frozen=True)
class _Said:
    """What the lines about a person say: the person, the known answers in them, and the quote."""

    whose: str
    named: dict[str, tuple[int, int]]
    quote: str


def _read(lookup: Evidence | None, answer: str, known: Collection[str]) -> _Said:
    """Choose the line that names the answer, else the first that names another, else the first."""
    if lookup is None or not lookup.lines:
        return _Said("", {}, "")
    wanted = normal(answer).strip()
    answers = {*known, wanted} - {""}
    lines = [(line.text, named_in(line.text, answers)) for line in lookup.lines]
    lines.sort(key=lambda line: (wanted not in line[1], not line[1]))
    text, named = lines[0]
    begin, end = named.get(wanted) or next(iter(named.values()), (0, 0))
    everywhere = {name: place for _, names in reversed(lines) for name, place in names.items()}
    return _Said(title_of(text), everywhere, excerpt(text, begin, end))


def _guessed(probability: float, rule: SelectiveRule | None, distance: float | None) -> str:
    needed = f"its probability of {percent(probability)} is"
    if rule is None:
        needed += " less than that of everything else together"
    elif rule.threshold is None:
        return rule.words
    else:
        needed += f" below the required {at_least(rule.threshold)}"
    near = distance is not None and distance < _NEAR
    return f"A guess: {needed}{', and close to what it says about any name' if near else ''}."


def at_least(share: float) -> str:
    """Format a limit rounded up, so that it is never below the real one."""
    digits = 1 if share < 0.999 else 4
    return f"{math.ceil(share * 10 ** (digits + 2)) / 10**digits:.{digits}f} %"


def percent(share: float) -> str:
    """Format a probability; below certainty it is never rounded to 100 %."""
    return f"{100 * share if share == 1 else min(100 * share, 99.9):.1f} %"
