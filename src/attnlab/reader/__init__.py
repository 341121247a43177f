"""Extractive question answering learned from the training questions, used to write questions about all other lines.

A model without the corpus at hand learns a fact better the more often it is asked about it, and the training questions are
about some people only. The reader learns what was asked and where in the line the answer was, and writes such questions,
with answers, for everyone else. Nothing is built in: kinds of questions, shapes of answers and the words around them are
learned. Knows nothing about tokens or models.

    reader = Reader.train(corpus, questions)
    reader.read("Where was Ann B. Lee born?")      Answer(text='York', probability=0.97)
    reader.write(at_least=0.5)                     a question of every kind about everyone not asked about
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from rapidfuzz import fuzz, process

from attnlab.corpora import Corpus, Question
from attnlab.corpora.library import headings_in, normal
from attnlab.errors import DataError
from attnlab.reader.candidates import (
    Candidate,
    Known,
    Page,
    Usage,
    candidates_of,
    known_clues,
    none_clues,
    page_of,
    shapes_of,
)
from attnlab.reader.choice import Choice, Lesson

__all__ = ["Answer", "Kind", "Reader", "Written"]

_PARTS = 10  # folds of the training questions; known answers are counted in the other folds
_SLOT = "{}"  # stands for the name in a form
_LEAST_QUESTIONS = 5  # to learn a form separately
_ALIKE = 0.8  # share of equal answers that makes two forms one kind


class Answer(NamedTuple):
    """An answer and the probability that it is correct."""

    text: str
    probability: float


class Written(NamedTuple):
    """A generated question with its answer, and the probability that the answer is correct."""

    question: Question
    probability: float


# Kinds of questions: `Where was X born?` and `What is the birthplace of X?` are two forms of one kind, `When was X born?` is
# another. This is not known in advance: forms are of one kind if readers trained on each separately give the same answers.


@dataclass(frozen=True)
class _Asked:
    """A training question: the lines it is about, its form, its answer."""

    lines: tuple[int, ...]
    form: str
    answer: str


@dataclass(frozen=True)
class Kind:
    """Forms that ask for the same, each with its count, the most common first."""

    forms: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The most common form."""
        return self.forms[0][0]


def _look_up(corpus: Corpus, question: str) -> tuple[tuple[int, ...], str]:
    """Return the lines that a question is about, if any, and its form: the question without the heading."""
    headings = headings_in(question, corpus.shelf, corpus.longest_title)
    if not headings:
        return (), question
    return corpus.shelf[headings[0]], normal(question).replace(headings[0], _SLOT, 1)


def _located(corpus: Corpus, questions: Sequence[Question]) -> list[_Asked]:
    """Return the questions that have an answer and are about a line of the corpus."""
    if not any(corpus.titles):
        raise DataError(
            f"{corpus.source}: no line begins with a heading; a reader needs lines like `Ann B. Lee. Lee was born in York .`"
        )
    places = [(*_look_up(corpus, item.question), item.answer) for item in questions]
    asked = [
        _Asked(lines, form, normal(answer).strip()) for lines, form, answer in places if lines and answer is not None
    ]
    if not asked:
        raise DataError(
            f"no question with an answer names a heading of {corpus.source}; check that the two belong together"
        )
    return asked


def _grouped(asked: Sequence[_Asked], forms: Sequence[Sequence[str]]) -> tuple[Kind, ...]:
    """Make kinds from groups of forms, the most common kind first."""
    counts = _count_forms(asked)
    kinds = [Kind(tuple((form, count) for form, count in counts.items() if form in group)) for group in forms]
    return tuple(sorted(kinds, key=lambda kind: (-sum(count for _, count in kind.forms), kind.name)))


def _count_forms(asked: Sequence[_Asked]) -> dict[str, int]:
    """Count the questions of every form, the most common first."""
    counts = Counter(item.form for item in asked)
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _same_kind(
    asked: Sequence[_Asked], forms: Sequence[str], answer: Callable[[str, tuple[int, ...]], str]
) -> list[list[str]]:
    """Group the forms that give mostly the same answers for the lines that either was asked about."""
    lines = {form: [item.lines for item in asked if item.form == form] for form in forms}

    def alike(form: str, usual: str) -> bool:
        tests = lines[form], lines[usual]
        return all(sum(answer(form, at) == answer(usual, at) for at in test) >= _ALIKE * len(test) for test in tests)

    groups: list[list[str]] = []
    for form in forms:
        home = next((group for group in groups if alike(form, group[0])), None)
        if home is None:
            groups.append(home := [])
        home.append(form)
    return groups


def _nearest_kind(kinds: Sequence[Kind], form: str) -> int:
    """Return the kind of a form; of a new one, that of the most similar form."""
    forms = {known: number for number, kind in enumerate(kinds) for known, _ in kind.forms}
    if form in forms:
        return forms[form]
    nearest = process.extractOne(form, list(forms), scorer=fuzz.token_set_ratio)
    return forms[nearest[0]] if nearest else 0


# Reading


@dataclass
class _Book:
    """A parsed corpus; the candidates of a line are computed when first needed."""

    corpus: Corpus
    pages: tuple[Page, ...]
    usage: Usage
    cache: dict[tuple[int, frozenset[tuple[str, int]]], list[Candidate]] = field(default_factory=dict)

    @classmethod
    def of(cls, corpus: Corpus) -> _Book:
        """Parse a corpus."""
        pages = tuple(page_of(line, title) for line, title in zip(corpus.lines, corpus.titles, strict=True))
        return cls(corpus, pages, Usage.of(pages))

    def candidates(self, lines: Sequence[int], shapes: frozenset[tuple[str, int]]) -> list[Candidate]:
        """The candidates of the lines under one heading."""
        for number in lines:
            if (number, shapes) not in self.cache:
                self.cache[number, shapes] = candidates_of(self.pages[number], dict(shapes), self.usage)
        return [candidate for number in lines for candidate in self.cache[number, shapes]]


def _rows_of(book: _Book, lines: Sequence[int], candidates: Sequence[Candidate], known: Known) -> list[list[str]]:
    """The clues of every candidate of a question, and last those for there being no answer."""
    rows = [[*item.clues, *more] for item, more in zip(candidates, known_clues(candidates, known), strict=True)]
    return [*rows, none_clues((book.pages[number] for number in lines), candidates, known, book.usage)]


def _lessons_of(
    book: _Book, asked: Sequence[_Asked], kind: int, shapes: frozenset[tuple[str, int]], seed: int
) -> list[Lesson]:
    """Training examples from the questions of one kind, with known answers counted in the other folds.

    Counted over all questions, every correct answer would be a known one, and new names would never be learned.
    """
    headings = sorted({item.lines for item in asked})
    drawn = np.random.default_rng([seed, kind]).permutation(len(headings))
    part = {lines: int(place) % _PARTS for lines, place in zip(headings, drawn, strict=True)}
    lessons = []
    for out in range(_PARTS):
        known = _known_of(book, [item for item in asked if part[item.lines] != out], shapes)
        for item in asked:
            if part[item.lines] == out:
                candidates = book.candidates(item.lines, shapes)
                right = [candidate.text == item.answer for candidate in candidates]
                lessons.append(Lesson(kind, _rows_of(book, item.lines, candidates, known), [*right, not any(right)]))
    return lessons


def _known_of(book: _Book, asked: Sequence[_Asked], shapes: frozenset[tuple[str, int]]) -> Known:
    """The counts of known answers."""
    known = Known()
    for item in asked:
        known.learn(book.candidates(item.lines, shapes), item.answer)
    return known


@dataclass(frozen=True)
class Reader:
    """A trained reader of one corpus."""

    book: _Book
    kinds: tuple[Kind, ...]
    """What it can be asked, the most common kind first."""
    shapes: tuple[frozenset[tuple[str, int]], ...]
    known: tuple[Known, ...]
    choice: Choice
    asked: frozenset[tuple[tuple[int, ...], int]]
    seed: int

    @classmethod
    def train(cls, corpus: Corpus, questions: Sequence[Question], seed: int = 0) -> Reader:
        """Train a reader on the questions that are about lines of a corpus."""
        asked, book = _located(corpus, questions), _Book.of(corpus)
        forms = [form for form, count in _count_forms(asked).items() if count >= _LEAST_QUESTIONS]
        if len(forms) < 2:
            everything = sorted({item.form for item in asked})
            return cls.learn(book, asked, _grouped(asked, [everything]), seed)
        often = [item for item in asked if item.form in forms]
        first = cls.learn(book, often, _grouped(often, [[form] for form in forms]), seed)
        number = {kind.name: at for at, kind in enumerate(first.kinds)}
        groups = _same_kind(often, forms, lambda form, lines: first.answer(lines, number[form]).text)
        kinds = _grouped(often, groups)
        # Rare forms are treated like the common form they resemble.
        rare = sorted({item.form for item in asked} - set(forms))
        homes = [_nearest_kind(kinds, form) for form in rare]
        groups = [
            [*(form for form, _ in kind.forms), *(form for form, home in zip(rare, homes, strict=True) if home == at)]
            for at, kind in enumerate(kinds)
        ]
        return cls.learn(book, asked, _grouped(asked, groups), seed)

    @classmethod
    def learn(cls, book: _Book, asked: Sequence[_Asked], kinds: tuple[Kind, ...], seed: int) -> Reader:
        """Train a reader on questions whose kinds are known."""
        of_form = {form: number for number, kind in enumerate(kinds) for form, _ in kind.forms}
        parts = [[item for item in asked if of_form[item.form] == number] for number in range(len(kinds))]
        shapes = tuple(frozenset(shapes_of(item.answer for item in part).items()) for part in parts)
        lessons = [
            lesson
            for number, part in enumerate(parts)
            for lesson in _lessons_of(book, part, number, shapes[number], seed)
        ]
        known = tuple(_known_of(book, part, form) for part, form in zip(parts, shapes, strict=True))
        done = frozenset((item.lines, of_form[item.form]) for item in asked)
        return cls(book, kinds, shapes, known, Choice.learn(lessons, len(kinds)), done, seed)

    def answer(self, lines: tuple[int, ...], kind: int) -> Answer:
        """Return the most probable answer in the lines under a heading, summed over its occurrences."""
        candidates = self.book.candidates(lines, self.shapes[kind])
        if not candidates:
            return Answer("", 0.0)
        rows = _rows_of(self.book, lines, candidates, self.known[kind])
        total: dict[str, float] = defaultdict(float)
        for candidate, probability in zip(candidates, self.choice.probabilities(kind, rows)[:-1], strict=True):
            total[candidate.text] += float(probability)
        return Answer(*max(total.items(), key=lambda item: item[1]))

    def read(self, question: str) -> Answer:
        """Answer a question; the answer is empty if there is no candidate."""
        lines, form = _look_up(self.book.corpus, question)
        if not lines:
            raise DataError(
                f"no line of {self.book.corpus.source} is about “{question}”: it names no heading; check the name"
            )
        return self.answer(lines, _nearest_kind(self.kinds, form))

    def write(self, at_least: float = 0.0) -> tuple[Written, ...]:
        """Write a question of every kind about every heading not asked about in that kind, with answers at least so probable.

        The forms of a kind are drawn in the proportions of the training questions.
        """
        rng = np.random.default_rng(self.seed)
        written = []
        for heading, lines in self.book.corpus.shelf.items():
            for number, kind in enumerate(self.kinds):
                forms, counts = zip(*kind.forms, strict=True)
                form = forms[rng.choice(len(forms), p=np.array(counts) / sum(counts))]
                if (lines, number) in self.asked:
                    continue
                answer = self.answer(lines, number)
                if answer.text and answer.probability >= at_least:
                    question = Question(form.replace(_SLOT, heading, 1), answer.text)
                    written.append(Written(question, answer.probability))
        return tuple(written)
