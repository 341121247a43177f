"""Candidate answers in a line of text, and their features (clues) as strings.

What an answer looks like is learned. `London` is one capitalised word, `Newcastle upon Tyne` two with a lower-case word
between them, `June 30, 1990` a word, a number, a comma and a number: the parts of a line that have the shape of a training
answer are candidates, and no others. Their clues are the words and shapes around them, so that the same code learns where
people were born, when, or for whom they played. There is no list of places here, and no word is special: that `born` matters
is learned. Knows nothing about what is asked, or how clues are weighted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from attnlab.corpora.library import normal

# Words (a possessive `'s` is separate: the answer is Chicago, not Chicago's), numbers, and runs of one punctuation mark.
_PIECE = re.compile(r"[^\W\d_]+(?:[.'’-](?!s\b)[^\W\d_]+)*|\d\w*|([^\w\s])\1*|_")
_CAPITAL, _SMALL, _NUMBER = "C", "c", "0"
_LEAST_LINES = 3  # a word in fewer lines is not informative


@dataclass(frozen=True)
class Page:
    """The text below a heading in pieces, with the position, class and skeleton of each."""

    text: str
    pieces: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    classes: tuple[str, ...]
    skeleton: tuple[str, ...]
    """Lower-case words and punctuation verbatim, everything else as its class: the sentence without names and numbers."""
    own: frozenset[str]
    """The words of the heading."""


def _class_of(piece: str) -> str:
    """Capitalised word, lower-case word, or number; a punctuation mark is its own class."""
    if piece[0].isdigit():
        return _NUMBER
    if piece[0].isalpha():
        return _SMALL if piece[0].islower() else _CAPITAL
    return piece


def page_of(line: str, heading: str) -> Page:
    """Split a line into pieces, without its heading."""
    line, heading = normal(line), normal(heading)
    text = line[len(heading) :].lstrip(". ") if heading else line
    matches = list(_PIECE.finditer(text))
    pieces = tuple(match.group() for match in matches)
    classes = tuple(map(_class_of, pieces))
    skeleton = tuple(tag if tag in (_CAPITAL, _NUMBER) else piece for piece, tag in zip(pieces, classes, strict=True))
    own = frozenset(match.group() for match in _PIECE.finditer(heading) if match.group()[0].isalpha())
    return Page(text, pieces, tuple(match.span() for match in matches), classes, skeleton, own)


def _shape_of(classes: Sequence[str]) -> str:
    """The classes of pieces, with repetitions merged: `New York` has the shape of `York`."""
    kept = [tag for at, tag in enumerate(classes) if at == 0 or tag != classes[at - 1] or tag not in "Cc0"]
    return " ".join(kept)


def shapes_of(answers: Iterable[str]) -> dict[str, int]:
    """Return the shapes of answers, with the number of pieces of the longest answer of each shape."""
    longest: dict[str, int] = {}
    for answer in answers:
        classes = [_class_of(match.group()) for match in _PIECE.finditer(normal(answer))]
        shape = _shape_of(classes)
        longest[shape] = max(longest.get(shape, 0), len(classes))
    return longest


# Clues


@dataclass
class Usage:
    """Word statistics of a corpus: number of lines, and the neighbours of words."""

    lines: Counter[str] = field(default_factory=Counter)
    capital: Counter[str] = field(default_factory=Counter)
    before_comma: Counter[str] = field(default_factory=Counter)
    after_comma: Counter[str] = field(default_factory=Counter)
    follows: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, pages: Iterable[Page]) -> Usage:
        """Count over the pages of a corpus."""
        usage = cls()
        for page in pages:
            usage.lines.update(set(page.pieces))
            for at, (piece, tag) in enumerate(zip(page.pieces, page.classes, strict=True)):
                if tag == _CAPITAL:
                    usage.capital[piece] += 1
                    usage.before_comma[piece] += page.skeleton[at + 1 : at + 3] == (",", _CAPITAL)
                    usage.after_comma[piece] += page.skeleton[max(at - 2, 0) : at] == (_CAPITAL, ",")
                    usage.follows[piece, page.skeleton[at - 1] if at else "<"] += 1
        return usage


@dataclass
class Known:
    """How often a text was the answer to a training question of one kind, and how often it was a candidate."""

    answers: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    answers_at: Counter[tuple[str, bool]] = field(default_factory=Counter)
    seen_at: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def learn(self, candidates: Sequence[Candidate], answer: str) -> None:
        """Count one question: the candidates of its line, and its answer."""
        places = {(candidate.text, candidate.later) for candidate in candidates}
        self.answers[answer] += 1
        self.seen.update({text for text, _ in places})
        self.seen_at.update(places)
        self.answers_at.update(place for place in places if place[0] == answer)


@dataclass(frozen=True)
class Candidate:
    """A candidate: its text, its clues, and the clues that are also combined with whether it is a known answer."""

    text: str
    clues: tuple[str, ...]
    later: bool
    """Whether it follows another name and a comma, as Ohio does in `Columbus, Ohio`."""
    crossed: tuple[str, ...]


def _magnitude(number: int) -> int:
    """A count in powers of two."""
    return min((number + 1).bit_length() - 1, 6)


def _fifth(part: int, whole: int) -> int:
    """A share in fifths."""
    return min(int(5 * part / whole), 4) if whole else 0


class _Chain(NamedTuple):
    """Runs of capitalised words joined by commas, such as `Columbus, Ohio`, relative to a candidate in it."""

    first: int
    last: int
    whole: bool
    """Whether the candidate is all of its run."""
    before: int
    rivals: int
    """How many of the runs before it are also candidates."""
    after: int


class _Layout:
    """What is computed once per page: runs of capitalised words, brackets, sentences, informative words."""

    def __init__(self, page: Page, candidates: Sequence[tuple[int, int]], usage: Usage) -> None:
        count, classes = len(page.pieces), page.classes
        starts = {begin for begin, _ in candidates}

        def joined(first: int, at: int) -> int:
            """Keep the edge of a run of capitalised words, or begin a new run."""
            return first if classes[at] == classes[at - 1] == _CAPITAL else at

        self.page, self.candidates = page, frozenset(candidates)
        self.run_begin = list(accumulate(range(count), joined))
        self.run_end = list(accumulate(range(count, 0, -1), joined))[::-1]
        self.bracket = [level > 0 for level in accumulate((piece == "(") - (piece == ")") for piece in page.pieces)]
        self.sentence = list(accumulate((piece in (".", ";") for piece in page.pieces), initial=0))
        # The number of candidate starts before each piece.
        self.begun = list(accumulate((at in starts for at in range(count)), initial=0))
        # The lower-case words that occur in several lines of the corpus.
        self.telling = [
            at for at in range(count) if classes[at] == _SMALL and usage.lines[page.pieces[at]] >= _LEAST_LINES
        ]

    def chain(self, begin: int, end: int) -> _Chain:
        """The chain around a candidate."""
        page, first, last = self.page, self.run_begin[begin], self.run_end[end - 1]
        whole = (begin, end) == (first, last)
        before = rivals = after = 0
        while first >= 2 and page.pieces[first - 1] == "," and page.classes[first - 2] == _CAPITAL:
            last_before, first = first - 1, self.run_begin[first - 2]
            before, rivals = before + 1, rivals + ((first, last_before) in self.candidates)
        while last + 1 < len(page.pieces) and page.pieces[last] == "," and page.classes[last + 1] == _CAPITAL:
            last, after = self.run_end[last + 1], after + 1
        return _Chain(first, last, whole, before, rivals, after)


def _neighbours(page: Page, begin: int, end: int) -> Iterator[str]:
    """The skeleton to the left and to the right, separately and combined."""
    left = [page.skeleton[at] if at >= 0 else "<" for at in range(begin - 1, begin - 5, -1)]
    right = [page.skeleton[at] if at < len(page.pieces) else ">" for at in range(end, end + 2)]
    yield from (f"left {away} {piece}" for away, piece in enumerate(left))
    yield from (f"right {away} {piece}" for away, piece in enumerate(right))
    yield from (f"lefts {' '.join(left[:many])}" for many in (2, 3, 4))
    yield f"rights {' '.join(right)}"
    for many, more in ((1, 1), (2, 1), (1, 2), (2, 2)):
        yield f"between {' '.join(left[:many])} _ {' '.join(right[:more])}"


def _telling_words(layout: _Layout, begin: int, end: int, chain: _Chain, where: str) -> Iterator[str]:
    """Every informative word of the line: before or after the candidate, and how many candidates are between."""
    page, seen = layout.page, set[str]()
    for at in reversed(layout.telling):
        word = page.pieces[at]
        if at < begin and word not in seen:
            seen.add(word)
            between = min(layout.begun[chain.first] - layout.begun[min(at + 1, chain.first)], 4)
            yield f"after {word}"
            yield f"after {word} {between}"
            yield f"after {word} {between} {where}"
    seen.clear()
    for at in layout.telling:
        word = page.pieces[at]
        if at >= end and word not in seen:
            seen.add(word)
            between = min(layout.begun[at] - layout.begun[min(chain.last, at)], 4)
            yield f"before {word} {between}"


def _looks(page: Page, begin: int, end: int, usage: Usage) -> Iterator[str]:
    """The candidate itself: ending, length and shape, words of the heading, and how its first word is used elsewhere."""
    word, final = page.pieces[begin], page.pieces[end - 1]
    yield from (f"ends {final[-3:]}", f"ends {final[-2:]}", f"pieces {min(end - begin, 8)}")
    yield f"shape {' '.join(page.classes[begin:end])}"
    yield from (f"upper {word.isupper()}", f"joined {not word.isalnum()}")
    yield f"own before {begin > 0 and page.pieces[begin - 1] in page.own}"
    yield f"own after {end < len(page.pieces) and page.pieces[end] in page.own}"
    if page.classes[begin] == _CAPITAL:
        count, many = usage.capital[word], _magnitude(usage.capital[word])
        yield f"said in {many}"
        yield f"before commas {_fifth(usage.before_comma[word], count)} {many}"
        yield f"after commas {_fifth(usage.after_comma[word], count)} {many}"
        yield f"after in {_fifth(usage.follows[word, 'in'], count)} {many}"
        yield f"small {usage.lines[word.lower()] >= count}"


def candidates_of(page: Page, shapes: Mapping[str, int], usage: Usage) -> list[Candidate]:
    """Return the parts of a page that have one of these shapes and are not too long, from left to right, with their clues."""
    count, longest = len(page.pieces), max(shapes.values(), default=0)
    spans = [
        (begin, end)
        for begin in range(count)
        for end in range(begin + 1, min(begin + longest, count) + 1)
        if shapes.get(_shape_of(page.classes[begin:end]), 0) >= end - begin
    ]
    layout = _Layout(page, spans, usage)
    return [_candidate_of(layout, begin, end, usage) for begin, end in spans]


def _candidate_of(layout: _Layout, begin: int, end: int, usage: Usage) -> Candidate:
    page, chain = layout.page, layout.chain(begin, end)
    inside, rest = begin - layout.run_begin[begin], layout.run_end[end - 1] - end
    where = f"{chain.whole:d}:{min(chain.before, 2)}:{min(chain.rivals, 2)}"
    run, after = f"run {min(inside, 2)}:{min(rest, 2)}", min(chain.after, 2)
    lead = [page.skeleton[at] if at >= 0 else "<" for at in range(chain.first - 1, chain.first - 4, -1)]
    small = [page.pieces[at] for at in range(chain.first - 1, -1, -1) if page.classes[at] == _SMALL][:3]
    small += ["<"] * (3 - len(small))
    crossed = (
        f"where {where}",
        f"chain {min(chain.before, 2)}:{after}",
        run,
        f"words {small[0]}",
        f"own {any(piece in page.own for piece in page.pieces[begin:end])}",
    )
    clues = [
        *_neighbours(page, begin, end),
        *_telling_words(layout, begin, end, chain, where),
        *_looks(page, begin, end, usage),
        *crossed,
        f"where {where} {after}",
        f"where {where} {after} {run}",
        *(f"lead {' '.join(lead[:many])}" for many in (1, 2)),
        *(f"lead {' '.join(lead[:many])} {where}" for many in (1, 2, 3)),
        *(f"words {' '.join(small[:many])}" for many in (2, 3)),
        f"words {' '.join(small[:2])} {where}",
        f"bracket {layout.bracket[begin]}",
        f"bracket {layout.bracket[begin]} {where}",
        f"order {min(layout.begun[begin], 8)}",
        f"sentence {min(layout.sentence[begin], 3)}",
    ]
    text = page.text[page.places[begin][0] : page.places[end - 1][1]]
    return Candidate(text, tuple(clues), chain.before > 0, crossed)


def _standing(answers: int, seen: int) -> str:
    """How often a text was the answer: new, seen but never the answer, or the share of cases in fifths."""
    if not answers:
        return f"never {_magnitude(seen)}" if seen else "new"
    return f"known {_fifth(answers, max(seen, answers))}"


def known_clues(candidates: Sequence[Candidate], known: Known) -> list[list[str]]:
    """Return the clues from known answers for each candidate of a line, alone and combined with its place."""
    rows, rank = [], 0
    for item in candidates:
        answers, seen = known.answers[item.text], known.seen[item.text]
        here = _standing(known.answers_at[item.text, item.later], known.seen_at[item.text, item.later])
        row = [f"{_standing(answers, seen)}", f"here {here}", f"known before {min(rank, 4)} {_standing(answers, seen)}"]
        rows.append([*row, *(f"here {here} {crossed}" for crossed in item.crossed)])
        rank += answers > 0
    return rows


def none_clues(pages: Iterable[Page], candidates: Sequence[Candidate], known: Known, usage: Usage) -> list[str]:
    """Return the clues for the line not containing the answer: its words, and how few known answers it has."""
    told = {word for page in pages for word in page.pieces if word[0].islower() and usage.lines[word] >= _LEAST_LINES}
    many = sum(known.answers[candidate.text] > 0 for candidate in candidates)
    return ["none", f"none with {min(many, 3)}", *(f"none though {word}" for word in sorted(told))]
