"""What speaks for or against a stretch of a line as an answer, as names of features.

Why: names of words and shapes around a stretch are all that the choice rests on, so that the same code learns where people
were born, when, or for whom they played. There is no list of places here, and no word has a meaning of its own: that `born`
matters is learned.
It must not know how clues are weighed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from attnlab.reader.pages import CAPITAL, SMALL, Page

_LEAST_LINES = 3  # a word in fewer lines tells nothing about where answers stand
NONE = ""  # the answer where the line does not say it


@dataclass
class Customs:
    """How the words of a corpus are used: in how many lines, with what beside them."""

    lines: Counter[str] = field(default_factory=Counter)
    capital: Counter[str] = field(default_factory=Counter)
    before_comma: Counter[str] = field(default_factory=Counter)
    after_comma: Counter[str] = field(default_factory=Counter)
    follows: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, pages: Iterable[Page]) -> Customs:
        """Counts over the pages of a corpus."""
        customs = cls()
        for page in pages:
            customs.lines.update(set(page.pieces))
            for at, (piece, one) in enumerate(zip(page.pieces, page.classes, strict=True)):
                if one == CAPITAL:
                    customs.capital[piece] += 1
                    customs.before_comma[piece] += page.skeleton[at + 1 : at + 3] == (",", CAPITAL)
                    customs.after_comma[piece] += page.skeleton[max(at - 2, 0) : at] == (CAPITAL, ",")
                    customs.follows[piece, page.skeleton[at - 1] if at else "<"] += 1
        return customs


@dataclass
class Known:
    """The answers of the training questions of one kind, and how often a stretch was the answer where it stood in a line."""

    answers: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    answers_at: Counter[tuple[str, bool]] = field(default_factory=Counter)
    seen_at: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def learn(self, stretches: Sequence[Stretch], answer: str) -> None:
        """Takes in one question: what stood in the line, and what the answer was."""
        places = {(one.text, one.later) for one in stretches}
        self.answers[answer] += 1
        self.seen.update({text for text, _ in places})
        self.seen_at.update(places)
        self.answers_at.update(place for place in places if place[0] == answer)


@dataclass(frozen=True)
class Stretch:
    """A candidate: its text, what the line says for it, and what is worth knowing together with its being a known answer."""

    text: str
    clues: tuple[str, ...]
    later: bool
    """Whether it follows another name after a comma, as Ohio does in `Columbus, Ohio`."""
    crossed: tuple[str, ...]


def few(number: int, most: int) -> int:
    """A number, or the most that is told apart."""
    return min(number, most)


def _magnitude(number: int) -> int:
    """A count in powers of two."""
    return few((number + 1).bit_length() - 1, 6)


def _fifth(part: int, whole: int) -> int:
    """In which fifth a share lies."""
    return few(int(5 * part / whole), 4) if whole else 0


class _Chain(NamedTuple):
    """Runs of capitals with commas between, such as `Columbus, Ohio`, seen from a stretch in it."""

    first: int
    last: int
    whole: bool
    """Whether the stretch is all of its run."""
    before: int
    rivals: int
    """How many of the runs before it are candidates, too."""
    after: int


@dataclass(frozen=True)
class _Layout:
    """What is worked out once for a page: runs of pieces of one class, brackets, sentences, telling words."""

    page: Page
    run_begin: tuple[int, ...]
    run_end: tuple[int, ...]
    bracket: tuple[bool, ...]
    sentence: tuple[int, ...]
    begun: tuple[int, ...]
    """The number of places before each piece at which candidates begin."""
    telling: tuple[int, ...]
    """The small words that stand in several lines of the corpus."""
    candidates: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, page: Page, stretches: Sequence[tuple[int, int]], customs: Customs) -> _Layout:
        """The layout of a page with its candidates."""
        count = len(page.pieces)
        begins, ends = list(range(count)), list(range(1, count + 1))
        for at in range(1, count):
            if page.classes[at] == page.classes[at - 1] == CAPITAL:
                begins[at] = begins[at - 1]
        for at in range(count - 2, -1, -1):
            if page.classes[at] == page.classes[at + 1] == CAPITAL:
                ends[at] = ends[at + 1]
        depth = accumulate((piece == "(") - (piece == ")") for piece in page.pieces)
        sentence = accumulate((piece in (".", ";") for piece in page.pieces), initial=0)
        starts = {begin for begin, _ in stretches}
        begun = accumulate((at in starts for at in range(count)), initial=0)
        telling = (
            at for at in range(count) if page.classes[at] == SMALL and customs.lines[page.pieces[at]] >= _LEAST_LINES
        )
        return cls(
            page,
            tuple(begins),
            tuple(ends),
            tuple(level > 0 for level in depth),
            tuple(sentence),
            tuple(begun),
            tuple(telling),
            frozenset(stretches),
        )

    def chain(self, begin: int, end: int) -> _Chain:
        """The chain around a stretch."""
        page, first, last = self.page, self.run_begin[begin], self.run_end[end - 1]
        whole = (begin, end) == (first, last)
        before = rivals = after = 0
        while first >= 2 and page.pieces[first - 1] == "," and page.classes[first - 2] == CAPITAL:
            last_before, first = first - 1, self.run_begin[first - 2]
            before, rivals = before + 1, rivals + ((first, last_before) in self.candidates)
        while last + 1 < len(page.pieces) and page.pieces[last] == "," and page.classes[last + 1] == CAPITAL:
            last, after = self.run_end[last + 1], after + 1
        return _Chain(first, last, whole, before, rivals, after)


def _neighbours(page: Page, begin: int, end: int) -> Iterator[str]:
    """The skeleton to the left and to the right, piece by piece and together."""
    left = [page.skeleton[at] if at >= 0 else "<" for at in range(begin - 1, begin - 5, -1)]
    right = [page.skeleton[at] if at < len(page.pieces) else ">" for at in range(end, end + 2)]
    yield from (f"left {away} {piece}" for away, piece in enumerate(left))
    yield from (f"right {away} {piece}" for away, piece in enumerate(right))
    yield from (f"lefts {' '.join(left[:many])}" for many in (2, 3, 4))
    yield f"rights {' '.join(right)}"
    for many, more in ((1, 1), (2, 1), (1, 2), (2, 2)):
        yield f"between {' '.join(left[:many])} _ {' '.join(right[:more])}"


def _telling_words(layout: _Layout, begin: int, end: int, chain: _Chain, where: str) -> Iterator[str]:
    """Every telling word of the line: before or after the stretch, and how many candidates lie between."""
    page, seen = layout.page, set[str]()
    for at in reversed(layout.telling):
        word = page.pieces[at]
        if at < begin and word not in seen:
            seen.add(word)
            between = few(layout.begun[chain.first] - layout.begun[min(at + 1, chain.first)], 4)
            yield f"after {word}"
            yield f"after {word} {between}"
            yield f"after {word} {between} {where}"
    seen.clear()
    for at in layout.telling:
        word = page.pieces[at]
        if at >= end and word not in seen:
            seen.add(word)
            between = few(layout.begun[at] - layout.begun[min(chain.last, at)], 4)
            yield f"before {word} {between}"


def _looks(page: Page, begin: int, end: int, customs: Customs) -> Iterator[str]:
    """The stretch itself: its ending, length and shape, the heading's words in it, and how its first word is used elsewhere."""
    word, final = page.pieces[begin], page.pieces[end - 1]
    yield from (f"ends {final[-3:]}", f"ends {final[-2:]}", f"pieces {few(end - begin, 8)}")
    yield f"shape {' '.join(page.classes[begin:end])}"
    yield from (f"upper {word.isupper()}", f"joined {not word.isalnum()}")
    yield f"own before {begin > 0 and page.pieces[begin - 1] in page.own}"
    yield f"own after {end < len(page.pieces) and page.pieces[end] in page.own}"
    if page.classes[begin] == CAPITAL:
        count, many = customs.capital[word], _magnitude(customs.capital[word])
        yield f"said in {many}"
        yield f"before commas {_fifth(customs.before_comma[word], count)} {many}"
        yield f"after commas {_fifth(customs.after_comma[word], count)} {many}"
        yield f"after in {_fifth(customs.follows[word, 'in'], count)} {many}"
        yield f"small {customs.lines[word.lower()] >= count}"


def stretches_of(page: Page, found: Sequence[tuple[int, int]], customs: Customs) -> list[Stretch]:
    """The candidates of a page with all that the line says about each."""
    layout = _Layout.of(page, found, customs)
    return [_stretch_of(layout, begin, end, customs) for begin, end in found]


def _stretch_of(layout: _Layout, begin: int, end: int, customs: Customs) -> Stretch:
    """One candidate with all that the line says about it."""
    page, chain = layout.page, layout.chain(begin, end)
    inside, rest = begin - layout.run_begin[begin], layout.run_end[end - 1] - end
    where = f"{chain.whole:d}:{few(chain.before, 2)}:{few(chain.rivals, 2)}"
    run, after = f"run {few(inside, 2)}:{few(rest, 2)}", few(chain.after, 2)
    lead = [page.skeleton[at] if at >= 0 else "<" for at in range(chain.first - 1, chain.first - 4, -1)]
    small = [page.pieces[at] for at in range(chain.first - 1, -1, -1) if page.classes[at] == SMALL][:3]
    small += ["<"] * (3 - len(small))
    crossed = (
        f"where {where}",
        f"chain {few(chain.before, 2)}:{after}",
        run,
        f"words {small[0]}",
        f"own {any(piece in page.own for piece in page.pieces[begin:end])}",
    )
    clues = [
        *_neighbours(page, begin, end),
        *_telling_words(layout, begin, end, chain, where),
        *_looks(page, begin, end, customs),
        *crossed,
        f"where {where} {after}",
        f"where {where} {after} {run}",
        *(f"lead {' '.join(lead[:many])}" for many in (1, 2)),
        *(f"lead {' '.join(lead[:many])} {where}" for many in (1, 2, 3)),
        *(f"words {' '.join(small[:many])}" for many in (2, 3)),
        f"words {' '.join(small[:2])} {where}",
        f"bracket {layout.bracket[begin]}",
        f"bracket {layout.bracket[begin]} {where}",
        f"order {few(layout.begun[begin], 8)}",
        f"sentence {few(layout.sentence[begin], 3)}",
    ]
    return Stretch(page.stretch(begin, end), tuple(clues), chain.before > 0, crossed)


def _standing(answers: int, seen: int) -> str:
    """How well a stretch is known as an answer: never met, met but never the answer, or in which fifth of the cases."""
    if not answers:
        return f"never {_magnitude(seen)}" if seen else "new"
    return f"known {_fifth(answers, max(seen, answers))}"


def known_clues(stretches: Sequence[Stretch], known: Known) -> list[list[str]]:
    """What the training answers say about each candidate of a line, alone and together with where it stands."""
    rows, rank = [], 0
    for one in stretches:
        answers, seen = known.answers[one.text], known.seen[one.text]
        here = _standing(known.answers_at[one.text, one.later], known.seen_at[one.text, one.later])
        row = [f"{_standing(answers, seen)}", f"here {here}", f"known before {few(rank, 4)} {_standing(answers, seen)}"]
        rows.append([*row, *(f"here {here} {crossed}" for crossed in one.crossed)])
        rank += answers > 0
    return rows


def none_clues(pages: Iterable[Page], stretches: Sequence[Stretch], known: Known, customs: Customs) -> list[str]:
    """What speaks for the answer not being in the line at all: its words, and how few known answers it has."""
    told = {word for page in pages for word in page.pieces if word[0].islower() and customs.lines[word] >= _LEAST_LINES}
    many = sum(known.answers[one.text] > 0 for one in stretches)
    return ["none", f"none with {few(many, 3)}", *(f"none though {word}" for word in sorted(told))]
