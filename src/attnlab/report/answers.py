"""Answers beside the line they should have come from, and in which way a wrong one is wrong. Pure; knows no HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAME_LINE = "another phrase of the same line"
OVERLAP = "overlaps the right answer"
ELSEWHERE = "not in this line"
EMPTY = "no answer was given"
NO_SOURCE = "no line of the corpus was found for it"


@dataclass(frozen=True)
class Piece:
    """A stretch of a line; `role` is "answer", "prediction" or empty."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class Shown:
    """One answer as the report shows it."""

    question: str
    answer: str
    prediction: str
    pieces: tuple[Piece, ...]
    verdict: str  # empty for a right answer


def places(phrase: str, text: str) -> list[tuple[int, int]]:
    """Where a phrase stands in a text as whole words."""
    if not phrase:
        return []
    return [match.span() for match in re.finditer(rf"(?<!\w){re.escape(phrase)}(?!\w)", text)]


def apart(one: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether a stretch shares no character with any of the others."""
    return all(one[1] <= begin or end <= one[0] for begin, end in others)


def cut(source: str, answer: str, prediction: str) -> Iterator[Piece]:
    """The line in pieces, with the answer and the prediction marked; where they overlap, the answer is."""
    right = places(answer, source)
    marks = [(span, "answer") for span in right]
    marks += [(span, "prediction") for span in places(prediction, source) if apart(span, right)]
    done = 0
    for (begin, end), role in sorted(marks):
        if begin > done:
            yield Piece(source[done:begin])
        yield Piece(source[begin:end], role)
        done = end
    if done < len(source):
        yield Piece(source[done:])


def verdict(source: str | None, answer: str, prediction: str) -> str:
    """In which way a wrong prediction is wrong, as far as the line tells."""
    if not prediction:
        return EMPTY
    if source is None:
        return NO_SOURCE
    found, right = places(prediction, source), places(answer, source)
    if any(apart(span, right) for span in found):
        return SAME_LINE
    return OVERLAP if found else ELSEWHERE


def shown(item: Mapping[str, Any], right: bool) -> Shown:
    """One answer of the result, ready to be shown."""
    answer, prediction, source = (item.get(key) for key in ("answer", "prediction", "source"))
    answer, prediction = answer or "", prediction or ""
    pieces = tuple(cut(source, answer, "" if right else prediction)) if source else ()
    return Shown(item["question"], answer, prediction, pieces, "" if right else verdict(source, answer, prediction))


def tally(items: Sequence[Shown]) -> str:
    """How often each way of being wrong occurs among the answers shown."""
    if not items:
        return ""
    ways = Counter(item.verdict for item in items)
    named = ", ".join(f"{number} {way}" for way, number in ways.most_common())
    return f"Of the wrong answers shown: {named}."
