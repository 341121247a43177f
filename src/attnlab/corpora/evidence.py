"""What a corpus says for an answer: the person's own line, whether the answer stands in it, and the stretch to be quoted.

Why: an answer that a model gives is worth more beside the line it should have come from, and a name that no line is about
deserves to be said so, with the names it may have been taken for. It must not know about models: the verdict on an answer
also needs the model's confidence, and is made elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnlab.corpora.index import Index, Line, Near
from attnlab.corpora.library import normal, spans, title_of

AROUND = 60  # characters of the line on either side of a quoted answer
# A run of words with capitals, joined by what joins the parts of a name.
_NAME = re.compile(r"[^\W\d_a-z][\w'’.-]*(?:,? (?:[^\W\d_a-z][\w'’.-]*|(?:da|de|del|der|di|la|of|the|van|von)(?= )))*")

_PLACED = re.compile(r"(?:\b(?:at|from|in|near)|\d,?)\s$")  # what stands before a place that is called like the person


@dataclass(frozen=True)
class Evidence:
    """What there is in a corpus on a question and its answer."""

    question: str
    answer: str
    lines: tuple[Line, ...]
    """The lines about whoever the question names, with the best evidence first; empty where there is none."""
    place: tuple[int, int] | None
    """Where the answer stands in the first of them."""
    nearest: tuple[Near, ...]
    """Where no line is found: the headings most like the name in the question."""

    @property
    def seen(self) -> bool:
        """Whether the corpus has a line about whoever the question names."""
        return bool(self.lines)

    @property
    def supported(self) -> bool:
        """Whether such a line says the answer, as whole words."""
        return self.place is not None

    @property
    def quote(self) -> str:
        """The stretch of the line to be shown: around the answer, or its beginning."""
        if not self.lines:
            return ""
        begin, end = self.place or (0, AROUND)
        return stretch(self.lines[0].text, begin, end)


def stretch(text: str, begin: int, end: int) -> str:
    """A part of a text with some words around it, and dots where more was left out."""
    left, right = max(begin - AROUND, 0), min(end + AROUND, len(text))
    if left:
        left = max(text.find(" ", left, begin) + 1, left)  # not within a word, unless there is no blank
    if right < len(text):
        right = max(text.rfind(" ", end, right), end) if " " in text[end:right] else right
    return f"{'… ' if left else ''}{text[left:right].strip()}{' …' if right < len(text) else ''}"


def is_own_name(line: str, begin: int, end: int) -> bool:
    """Whether a stretch of a line is the person's own name or a part of it, and so says nothing.

    Warren Spahn's line says nothing for a town called Warren, unless it names the town: after `in`, `from` and the like, or
    after the number that ends a date.
    """
    heading = title_of(line)
    if begin < len(heading):
        return True
    return set(line[begin:end].split()) <= set(heading.split()) and not _PLACED.search(line[:begin])


def place_in(line: str, answer: str) -> tuple[int, int] | None:
    """Where a line says an answer, as whole words; the person's own name says nothing."""
    wanted = normal(answer).strip()
    places = spans(line, {wanted}, len(wanted))
    return next((place for place in places if not is_own_name(line, *place)), None)


def name_in(question: str) -> str:
    """What is likely the name in a question about somebody unknown: the longest run of words with capitals."""
    runs = [match.group() for match in _NAME.finditer(question)]
    # The first word of a question has a capital without being a name.
    beginning = question.lstrip().split(" ")[0]
    runs = [run for run in runs if run != beginning] or runs
    return max(runs, key=len, default=question)


def evidence(index: Index, question: str, answer: str, n: int = 5) -> Evidence:
    """What a corpus says on a question and its answer, or the n names most like the one asked about."""
    lines = tuple(Line(one.number, normal(one.text)) for one in index.about(question))
    if not lines:
        return Evidence(question, answer, (), None, index.nearest(name_in(question), n))
    places = [(line, place_in(line.text, answer)) for line in lines]
    # A line that says the answer goes before one that does not.
    places.sort(key=lambda one: one[1] is None)
    return Evidence(question, answer, tuple(line for line, _ in places), places[0][1], ())
