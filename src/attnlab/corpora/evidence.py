"""Evidence for an answer in a corpus: the line about the person, whether it contains the answer, and the part to quote.

If no line is about the person asked about, the evidence is the most similar names, for which it may have been mistaken.
Knows nothing about models: a verdict also needs the model's confidence (attnlab.trust).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from attnlab.corpora.library import Corpus, Line, Near, normal, spans, title_of

AROUND = 60  # characters quoted on either side of an answer
# Capitalised words, with the particles that join the parts of a name.
_NAME = re.compile(r"[^\W\d_a-z][\w'’.-]*(?:,? (?:[^\W\d_a-z][\w'’.-]*|(?:da|de|del|der|di|la|of|the|van|von)(?= )))*")

_BEFORE_PLACE = re.compile(r"(?:\b(?:at|from|in|near)|\d,?)\s$")


@dataclass(frozen=True)
class Evidence:
    """What a corpus says about a question and its answer."""

    question: str
    answer: str
    lines: tuple[Line, ...]
    """The lines about the person named in the question, those that contain the answer first."""
    place: tuple[int, int] | None
    """Position of the answer in the first line."""
    nearest: tuple[Near, ...]
    """If there is no line: the headings most similar to the name in the question."""

    @property
    def seen(self) -> bool:
        """Whether the corpus has a line about the person named in the question."""
        return bool(self.lines)

    @property
    def supported(self) -> bool:
        """Whether such a line contains the answer as whole words."""
        return self.place is not None

    @property
    def quote(self) -> str:
        """The part of the line around the answer, or its beginning."""
        if not self.lines:
            return ""
        begin, end = self.place or (0, AROUND)
        return excerpt(self.lines[0].text, begin, end)


def excerpt(text: str, begin: int, end: int) -> str:
    """Return a part of a text with some words around it, and an ellipsis where text is omitted."""
    left, right = max(begin - AROUND, 0), min(end + AROUND, len(text))
    if left:
        left = max(text.find(" ", left, begin) + 1, left)  # not within a word, unless there is no blank
    if right < len(text):
        right = max(text.rfind(" ", end, right), end) if " " in text[end:right] else right
    return f"{'… ' if left else ''}{text[left:right].strip()}{' …' if right < len(text) else ''}"


def _is_own_name(line: str, begin: int, end: int) -> bool:
    """Whether a part of a line is the person's own name or a part of it, and so no evidence.

    Warren Spahn's line is no evidence for a town called Warren, unless the word follows `in`, `from` or similar, or the
    number that ends a date.
    """
    heading = title_of(line)
    if begin < len(heading):
        return True
    return set(line[begin:end].split()) <= set(heading.split()) and not _BEFORE_PLACE.search(line[:begin])


def named_in(line: str, answers: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the answers that a line names as whole words, except the person's own name, with their first position.

    Of overlapping answers, the longest counts.
    """
    longest = max(map(len, answers), default=0)
    taken: list[tuple[int, int]] = []
    for begin, end in sorted(spans(line, answers, longest), key=lambda span: span[0] - span[1]):
        apart = all(end <= first or last <= begin for first, last in taken)
        if apart and not _is_own_name(line, begin, end):
            taken.append((begin, end))
    places: dict[str, tuple[int, int]] = {}
    for begin, end in sorted(taken):
        places.setdefault(line[begin:end], (begin, end))
    return places


def place_in(line: str, answer: str) -> tuple[int, int] | None:
    """Return the position of an answer in a line that names it."""
    wanted = normal(answer).strip()
    return named_in(line, {wanted}).get(wanted)


def name_in(question: str) -> str:
    """Guess the name in a question about an unknown person: the longest run of capitalised words."""
    runs = [match.group() for match in _NAME.finditer(question)]
    # The first word of a question is capitalised without being a name.
    beginning = question.lstrip().split(" ")[0]
    runs = [run for run in runs if run != beginning] or runs
    return max(runs, key=len, default=question)


def evidence(corpus: Corpus, question: str, answer: str, n: int = 5) -> Evidence:
    """Look up a question and its answer in a corpus; if no line is about the name, find the n most similar names."""
    lines = [Line(line.number, normal(line.text)) for line in corpus.about(question)]
    if not lines:
        return Evidence(question, answer, (), None, corpus.nearest(name_in(question), n))
    places = [(line, place_in(line.text, answer)) for line in lines]
    places.sort(key=lambda pair: pair[1] is None)  # lines that contain the answer come first
    return Evidence(question, answer, tuple(line for line, _ in places), places[0][1], ())
