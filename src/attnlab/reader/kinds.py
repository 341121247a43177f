"""The forms of questions (questions without the name), and which forms ask for the same.

`Where was X born?` and `What is the birthplace of X?` are two forms of one kind of question, `When was X born?` is another.
This is not known in advance: forms are of one kind if readers trained on each form separately give the same answers. Knows
nothing about how a reader works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, process

from attnlab.corpora import Corpus, Question, documents_about
from attnlab.corpora.library import normal
from attnlab.errors import DataError

SLOT = "{}"
_LEAST_QUESTIONS = 5  # to learn a form separately
_ALIKE = 0.8  # share of equal answers that makes two forms one kind


@dataclass(frozen=True)
class Asked:
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


def look_up(corpus: Corpus, question: str) -> tuple[tuple[int, ...], str]:
    """Return the lines that a question is about, if any, and its form: the question without the heading."""
    numbers = documents_about(corpus, question)
    if not numbers:
        return (), question
    heading = normal(corpus.titles[numbers[0]])
    lines = tuple(number for number in numbers if normal(corpus.titles[number]) == heading)
    return lines, normal(question).replace(heading, SLOT, 1)


def located(corpus: Corpus, questions: Sequence[Question]) -> list[Asked]:
    """Return the questions that have an answer and are about a line of the corpus."""
    if not any(corpus.titles):
        raise DataError(
            f"{corpus.source}: no line begins with a heading; a reader needs lines like `Ann B. Lee. Lee was born in York .`"
        )
    places = [(*look_up(corpus, item.question), item.answer) for item in questions]
    asked = [
        Asked(lines, form, normal(answer).strip()) for lines, form, answer in places if lines and answer is not None
    ]
    if not asked:
        raise DataError(
            f"no question with an answer names a heading of {corpus.source}; check that the two belong together"
        )
    return asked


def grouped(asked: Sequence[Asked], forms: Sequence[Sequence[str]]) -> tuple[Kind, ...]:
    """Make kinds from groups of forms, the most common kind first."""
    counts = Counter(item.form for item in asked)
    kinds = [
        Kind(tuple(sorted(((form, counts[form]) for form in group), key=lambda pair: (-pair[1], pair[0]))))
        for group in forms
    ]
    return tuple(sorted(kinds, key=lambda kind: (-sum(count for _, count in kind.forms), kind.name)))


def common_forms(asked: Sequence[Asked]) -> list[str]:
    """Return the forms that are common enough to be learned separately, the most common first."""
    counts = Counter(item.form for item in asked)
    return sorted(
        (form for form, count in counts.items() if count >= _LEAST_QUESTIONS), key=lambda form: (-counts[form], form)
    )


def _alike(first: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of answers are mostly the same."""
    return sum(a == b for a, b in zip(first, other, strict=True)) >= _ALIKE * len(first)


def same_kind(
    asked: Sequence[Asked], forms: Sequence[str], answer: Callable[[str, tuple[int, ...]], str]
) -> list[list[str]]:
    """Group the forms that give mostly the same answers for the lines that either was asked about."""
    lines = {form: [item.lines for item in asked if item.form == form] for form in forms}
    groups: list[list[str]] = []
    for form in forms:
        for group in groups:
            usual = group[0]
            tests = lines[form], lines[usual]
            if all(_alike([answer(form, at) for at in test], [answer(usual, at) for at in test]) for test in tests):
                group.append(form)
                break
        else:
            groups.append([form])
    return groups


def nearest_kind(kinds: Sequence[Kind], form: str) -> int:
    """Return the kind of a form; of a new one, that of the most similar form."""
    forms = {known: number for number, kind in enumerate(kinds) for known, _ in kind.forms}
    if form in forms:
        return forms[form]
    nearest = process.extractOne(form, list(forms), scorer=fuzz.token_set_ratio)
    return forms[nearest[0]] if nearest else 0
