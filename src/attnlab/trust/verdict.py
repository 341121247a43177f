"""The verdict on an answer: from how sure the model is, and from what the person's own line says. Pure.

    recalled and supported    confident, and the line says so
    inferred                  confident; the line does not say so, and names no other answer of that kind
    contradicts its source    confident; the line does not say so, and names another
    guess                     not confident
    never seen                no line is about the name
    not checked               confident, but there are no lines to look at

Confident is whoever reaches the threshold that was certified for the allowed risk; without one, whoever finds an answer
likelier than all others together. It must not know where confidence and lines come from.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from attnlab.corpora import title_of
from attnlab.corpora.evidence import Evidence, is_own_name, stretch
from attnlab.corpora.library import normal, spans
from attnlab.stats import SelectiveRule

SUPPORTED = "recalled and supported"
INFERRED = "inferred"
CONTRADICTS = "contradicts its source"
GUESS = "guess"
UNSEEN = "never seen"
UNCHECKED = "not checked"
VERDICTS = (SUPPORTED, INFERRED, CONTRADICTS, GUESS, UNSEEN, UNCHECKED)

_EVEN = 0.5  # what counts as confident where no threshold was certified
_NEAR = 0.5  # of the probability is where the prior has it: the name told the model little


@dataclass(frozen=True)
class Judgement:
    """A verdict, whether the answer is held back, the stretch of the line to be quoted, and the reasons."""

    verdict: str
    abstains: bool
    quote: str
    reasons: tuple[str, ...]


def named_in(line: str, answers: Collection[str]) -> dict[str, tuple[int, int]]:
    """The answers that a line names as whole words, other than the person's own name, each with its first place.

    Where two overlap the longest counts.
    """
    longest = max(map(len, answers), default=0)
    taken: list[tuple[int, int]] = []
    for begin, end in sorted(spans(line, answers, longest), key=lambda span: span[0] - span[1]):
        apart = all(end <= first or last <= begin for first, last in taken)
        if apart and not is_own_name(line, begin, end):
            taken.append((begin, end))
    found: dict[str, tuple[int, int]] = {}
    for begin, end in sorted(taken):
        found.setdefault(line[begin:end], (begin, end))
    return found


def judge(
    answer: str,
    probability: float,
    rule: SelectiveRule | None,
    found: Evidence | None,
    known: Collection[str],
    distance: float | None = None,
) -> Judgement:
    """The verdict on an answer.

    `rule` is None for a run that was not calibrated, `found` where nothing can be looked up; `known` are the answers of the
    kind that was asked for, and `distance` is how far the model is from what it says of anybody.
    """
    said, wanted = read(found, answer, known), normal(answer).strip()
    threshold = _EVEN if rule is None or rule.threshold is None else rule.threshold
    sure = probability >= threshold
    if found is not None and not found.seen:
        verdict, why = UNSEEN, "No line that it read is about this name: what it says is what it falls back on."
    elif not sure:
        verdict, why = GUESS, _guessed(probability, threshold, rule, distance)
    elif found is None:
        verdict, why = UNCHECKED, "There is no line to hold the answer against."
    elif wanted in said.named:
        others = [name for name in said.named if name != wanted]
        also = f", but also {listed(others)}" if others else ""
        verdict, why = SUPPORTED, f"The line about {said.whose} names it{also}."
    elif said.named:
        verdict, why = CONTRADICTS, f"The line about {said.whose} names {listed(said.named)} instead."
    else:
        verdict, why = INFERRED, f"The line about {said.whose} neither says so nor names another known answer."
    held, because = abstains(verdict, sure, rule)
    return Judgement(verdict, held, said.quote, (why, because) if because else (why,))


@dataclass(frozen=True)
class _Said:
    """What the lines about somebody say: whose they are, known answers in them, and the stretch to be quoted."""

    whose: str
    named: dict[str, tuple[int, int]]
    quote: str


def read(found: Evidence | None, answer: str, known: Collection[str]) -> _Said:
    """The line that says the answer, or else the first that names another, or the first."""
    if found is None or not found.lines:
        return _Said("", {}, "")
    wanted = normal(answer).strip()
    answers = {*known, wanted} - {""}
    lines = [(line.text, named_in(line.text, answers)) for line in found.lines]
    lines.sort(key=lambda one: (wanted not in one[1], not one[1]))
    text, named = lines[0]
    begin, end = named.get(wanted) or next(iter(named.values()), (0, 0))
    everywhere = {name: place for _, one in reversed(lines) for name, place in one.items()}
    return _Said(title_of(text), everywhere, stretch(text, begin, end))


def _guessed(probability: float, threshold: float, rule: SelectiveRule | None, distance: float | None) -> str:
    """Why an answer is a guess."""
    if rule is not None and rule.met:
        needed = f"its probability of {percent(probability)} is below the {percent(threshold)} that are asked for"
    else:
        needed = f"its probability of {percent(probability)} is less than that of everything else together"
    near = distance is not None and distance < _NEAR
    return f"A guess: {needed}{', and it is near to what it says of anybody' if near else ''}."


def abstains(verdict: str, sure: bool, rule: SelectiveRule | None) -> tuple[bool, str]:
    """Whether an answer is held back, and the reason that the verdict does not give."""
    if verdict == UNSEEN:
        return True, ""
    if rule is None:
        return False, ""
    if not rule.met:
        return True, rule.words
    return not sure, ""


def listed(names: Collection[str]) -> str:
    """Names as one would say them, the first three."""
    first = list(names)[:3]
    return first[0] if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]}"


def percent(share: float) -> str:
    """A probability as it is said; what is not certain is never rounded to 100 %."""
    return f"{100 * share if share == 1 else min(100 * share, 99.9):.1f} %"
