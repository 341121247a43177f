"""A line of text in pieces, and the stretches of it that may be an answer.

Why: what an answer looks like is learned, not known beforehand. `London` is one word with a capital, `Newcastle upon Tyne`
two with a small one between them, `June 30, 1990` a word, a number, a comma and a number: whatever shapes the answers of the
training questions have, stretches of these shapes are candidates, and nothing else is.
It must not know what is asked, nor how one stretch is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnlab.corpora.library import normal

# Words (a possessive `'s` stands apart: the answer is Chicago, not Chicago's), numbers, and runs of one mark.
_PIECE = re.compile(r"[^\W\d_]+(?:[.'’-](?!s\b)[^\W\d_]+)*|\d\w*|([^\w\s])\1*|_")
CAPITAL, SMALL, _NUMBER = "C", "c", "0"


@dataclass(frozen=True)
class Page:
    """The text below a heading in pieces: where each stands, of which class it is, and what is left of it in a skeleton."""

    text: str
    pieces: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    classes: tuple[str, ...]
    skeleton: tuple[str, ...]
    """Small words and marks as they are, everything else as its class: the sentence without its names and numbers."""
    own: frozenset[str]
    """The words of the heading."""

    def stretch(self, begin: int, end: int) -> str:
        """The text from one piece to before another."""
        return self.text[self.places[begin][0] : self.places[end - 1][1]]


def _class_of(piece: str) -> str:
    """A word with a capital, a small one, a number; a mark is a class of its own."""
    if piece[0].isdigit():
        return _NUMBER
    if piece[0].isalpha():
        return SMALL if piece[0].islower() else CAPITAL
    return piece


def page_of(line: str, heading: str) -> Page:
    """A line in pieces, without its heading."""
    line, heading = normal(line), normal(heading)
    text = line[len(heading) :].lstrip(". ") if heading else line
    found = list(_PIECE.finditer(text))
    pieces = tuple(match.group() for match in found)
    classes = tuple(map(_class_of, pieces))
    skeleton = tuple(one if one in (CAPITAL, _NUMBER) else piece for piece, one in zip(pieces, classes, strict=True))
    own = frozenset(match.group() for match in _PIECE.finditer(heading) if match.group()[0].isalpha())
    return Page(text, pieces, tuple(match.span() for match in found), classes, skeleton, own)


def _shape_of(classes: Sequence[str]) -> str:
    """The classes of a stretch, with neighbours of one class as one: `New York` has the shape of `York`."""
    kept = [one for at, one in enumerate(classes) if at == 0 or one != classes[at - 1] or one not in "Cc0"]
    return " ".join(kept)


def shapes_of(answers: Iterable[str]) -> dict[str, int]:
    """The shapes that answers have, with the number of pieces of the longest of each shape."""
    longest: dict[str, int] = {}
    for answer in answers:
        classes = [_class_of(match.group()) for match in _PIECE.finditer(normal(answer))]
        shape = _shape_of(classes)
        longest[shape] = max(longest.get(shape, 0), len(classes))
    return longest


def candidates(page: Page, shapes: Mapping[str, int]) -> list[tuple[int, int]]:
    """The stretches of a page that have one of these shapes and are no longer than it allows, from left to right."""
    count, longest = len(page.pieces), max(shapes.values(), default=0)
    return [
        (begin, end)
        for begin in range(count)
        for end in range(begin + 1, min(begin + longest, count) + 1)
        if shapes.get(_shape_of(page.classes[begin:end]), 0) >= end - begin
    ]
