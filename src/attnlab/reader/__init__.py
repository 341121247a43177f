"""A reader that learns from questions with answers to find answers in lines, and then writes questions about the others.

Why: a model without the book learns a fact the better the more often it is asked, and only some people are asked about in
the training questions. The reader sees what was asked and where in the line the answer stood, and writes such questions, with
answers, for everybody else. It is generic: kinds of questions, shapes of answers and the words that lead to them are learned.
It must not know about tokens or models; what it writes are questions like any others.

    reader = Reader.train(corpus, questions)
    reader.read("Where was Ann B. Lee born?")      Answer(text='York', probability=0.97)
    reader.write(at_least=0.5)                     a question of every kind for everybody not asked about
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attnlab.corpora import Corpus, Question
from attnlab.corpora.library import normal
from attnlab.errors import DataError
from attnlab.reader.choice import Choice, Lesson
from attnlab.reader.clues import NONE, Customs, Known, Stretch, known_clues, none_clues, stretches_of
from attnlab.reader.kinds import (
    SLOT,
    Asked,
    Kind,
    common_forms,
    grouped,
    located,
    look_up,
    nearest_kind,
    same_kind,
)
from attnlab.reader.pages import Page, candidates, page_of, shapes_of

__all__ = ["Answer", "Kind", "Reader", "Written"]

_PARTS = 10  # of the training questions; what is known in one part is counted in the others


class Answer(NamedTuple):
    """What a reader found, and how likely it is right."""

    text: str
    probability: float


class Written(NamedTuple):
    """A question that a reader wrote, with its answer, and how likely the answer is right."""

    question: Question
    probability: float


@dataclass
class _Book:
    """A corpus in pages, read once; the candidates of a line are worked out when they are needed first."""

    corpus: Corpus
    pages: tuple[Page, ...]
    customs: Customs
    worked_out: dict[tuple[int, frozenset[tuple[str, int]]], list[Stretch]] = field(default_factory=dict)

    @classmethod
    def of(cls, corpus: Corpus) -> _Book:
        """A corpus in pages."""
        pages = tuple(page_of(line, title) for line, title in zip(corpus.lines, corpus.titles, strict=True))
        return cls(corpus, pages, Customs.of(pages))

    def stretches(self, lines: Sequence[int], shapes: frozenset[tuple[str, int]]) -> list[Stretch]:
        """The candidates of the lines under one heading."""
        for number in lines:
            if (number, shapes) not in self.worked_out:
                page = self.pages[number]
                self.worked_out[number, shapes] = stretches_of(page, candidates(page, dict(shapes)), self.customs)
        return [one for number in lines for one in self.worked_out[number, shapes]]


def _rows_of(book: _Book, lines: Sequence[int], stretches: Sequence[Stretch], known: Known) -> list[list[str]]:
    """The clues of every candidate of a question, and last those of the answer not being there."""
    rows = [[*one.clues, *more] for one, more in zip(stretches, known_clues(stretches, known), strict=True)]
    return [*rows, none_clues((book.pages[number] for number in lines), stretches, known, book.customs)]


def _lessons_of(
    book: _Book, asked: Sequence[Asked], kind: int, shapes: frozenset[tuple[str, int]], seed: int
) -> list[Lesson]:
    """Questions of one kind as lessons, with known answers counted in the parts that a question is not in.

    Counted among all of them, every right answer of a training question would be a known one, and a new name never right.
    """
    headings = sorted({one.lines for one in asked})
    drawn = np.random.default_rng([seed, kind]).permutation(len(headings))
    part = {lines: int(place) % _PARTS for lines, place in zip(headings, drawn, strict=True)}
    lessons = []
    for out in range(_PARTS):
        known = _known_of(book, [one for one in asked if part[one.lines] != out], shapes)
        for one in asked:
            if part[one.lines] == out:
                stretches = book.stretches(one.lines, shapes)
                right = [stretch.text == one.answer for stretch in stretches]
                lessons.append(Lesson(kind, _rows_of(book, one.lines, stretches, known), [*right, not any(right)]))
    return lessons


def _known_of(book: _Book, asked: Sequence[Asked], shapes: frozenset[tuple[str, int]]) -> Known:
    """What is known from the answers of questions."""
    known = Known()
    for one in asked:
        known.learn(book.stretches(one.lines, shapes), one.answer)
    return known


@dataclass(frozen=True)
class Reader:
    """A trained reader of one corpus."""

    book: _Book
    kinds: tuple[Kind, ...]
    """What it can be asked, the commonest kind first."""
    shapes: tuple[frozenset[tuple[str, int]], ...]
    known: tuple[Known, ...]
    choice: Choice
    asked: frozenset[tuple[tuple[int, ...], int]]
    seed: int

    @classmethod
    def train(cls, corpus: Corpus, questions: Sequence[Question], seed: int = 0) -> Reader:
        """A reader that has learned from the questions that are about lines of a corpus."""
        asked, book = located(corpus, questions), _Book.of(corpus)
        forms = common_forms(asked)
        if len(forms) < 2:
            everything = sorted({one.form for one in asked})
            return cls.learn(book, asked, grouped(asked, [everything]), seed)
        often = [one for one in asked if one.form in forms]
        first = cls.learn(book, often, grouped(often, [[form] for form in forms]), seed)
        number = {kind.name: at for at, kind in enumerate(first.kinds)}
        groups = same_kind(often, forms, lambda form, lines: first.answer(lines, number[form]).text)
        kinds = grouped(often, groups)
        # Forms that were asked once or twice are read like the common form they resemble.
        rare = sorted({one.form for one in asked} - set(forms))
        homes = [nearest_kind(kinds, form) for form in rare]
        groups = [
            [*(form for form, _ in kind.forms), *(form for form, home in zip(rare, homes, strict=True) if home == at)]
            for at, kind in enumerate(kinds)
        ]
        return cls.learn(book, asked, grouped(asked, groups), seed)

    @classmethod
    def learn(cls, book: _Book, asked: Sequence[Asked], kinds: tuple[Kind, ...], seed: int) -> Reader:
        """A reader of questions whose kinds are known."""
        of_form = {form: number for number, kind in enumerate(kinds) for form, _ in kind.forms}
        parts = [[one for one in asked if of_form[one.form] == number] for number in range(len(kinds))]
        shapes = tuple(frozenset(shapes_of(one.answer for one in part).items()) for part in parts)
        lessons = [
            lesson
            for number, part in enumerate(parts)
            for lesson in _lessons_of(book, part, number, shapes[number], seed)
        ]
        known = tuple(_known_of(book, part, form) for part, form in zip(parts, shapes, strict=True))
        done = frozenset((one.lines, of_form[one.form]) for one in asked)
        return cls(book, kinds, shapes, known, Choice.learn(lessons, len(kinds)), done, seed)

    def answer(self, lines: tuple[int, ...], kind: int) -> Answer:
        """The likeliest answer in the lines under a heading, whose probabilities are added where it stands several times."""
        stretches = self.book.stretches(lines, self.shapes[kind])
        if not stretches:
            return Answer(NONE, 0.0)
        rows = _rows_of(self.book, lines, stretches, self.known[kind])
        total: dict[str, float] = {}
        for one, probability in zip(stretches, self.choice.probabilities(kind, rows)[:-1], strict=True):
            total[one.text] = total.get(one.text, 0.0) + float(probability)
        best = max(total, key=lambda text: total[text])
        return Answer(best, total[best])

    def read(self, asked: int | str, kind: int = 0) -> Answer:
        """The answer to a question, or to a kind of question about a line; empty where no stretch of it may be one."""
        if isinstance(asked, int):
            heading = normal(self.book.corpus.titles[asked])
            return self.answer(self.book.corpus.shelf.get(heading, (asked,)), kind)
        lines, form = look_up(self.book.corpus, asked)
        if not lines:
            raise DataError(
                f"no line of {self.book.corpus.source} is about “{asked}”: it names no heading; check the name"
            )
        return self.answer(lines, nearest_kind(self.kinds, form))

    def write(self, kinds: Sequence[int] | None = None, at_least: float = 0.0) -> tuple[Written, ...]:
        """A question of every kind about every heading that was not asked about in that kind, with answers as likely as asked.

        Forms of a kind are drawn in the proportions in which they were asked.
        """
        chosen = range(len(self.kinds)) if kinds is None else kinds
        rng = np.random.default_rng(self.seed)
        written = []
        for heading, lines in self.book.corpus.shelf.items():
            for number in chosen:
                forms, counts = zip(*self.kinds[number].forms, strict=True)
                form = forms[rng.choice(len(forms), p=np.array(counts) / sum(counts))]
                if (lines, number) in self.asked:
                    continue
                found = self.answer(lines, number)
                if found.text and found.probability >= at_least:
                    question = Question(form.replace(SLOT, heading, 1), found.text)
                    written.append(Written(question, found.probability))
        return tuple(written)
