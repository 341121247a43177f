"""What is asked, apart from about whom: the forms of questions, and which forms ask for the same.

Why: `Where was X born?` and `What is the birthplace of X?` are one kind of question in two forms, `When was X born?` is
another, and nobody says so. Forms that are answered alike, by readers that have learned each form for itself, are one kind.
It must not know how a reader works.
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
_LEAST_QUESTIONS = 5  # of a form, to learn it for itself
_ALIKE = 0.8  # of the lines asked about, answered the same by two forms of one kind


@dataclass(frozen=True)
class Asked:
    """A training question: the lines it is about, its form, its answer."""

    lines: tuple[int, ...]
    form: str
    answer: str


@dataclass(frozen=True)
class Kind:
    """Forms that ask for the same, each with the number of times it was asked, the commonest first."""

    forms: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The commonest form."""
        return self.forms[0][0]


def look_up(corpus: Corpus, question: str) -> tuple[tuple[int, ...], str]:
    """The lines that a question is about, none where nothing is, and its form: the question without the heading."""
    found = documents_about(corpus, question)
    if not found:
        return (), question
    heading = normal(corpus.titles[found[0]])
    lines = tuple(number for number in found if normal(corpus.titles[number]) == heading)
    return lines, normal(question).replace(heading, SLOT, 1)


def located(corpus: Corpus, questions: Sequence[Question]) -> list[Asked]:
    """The questions that have an answer and are about a line of the corpus."""
    if not any(corpus.titles):
        raise DataError(
            f"{corpus.source}: no line begins with a heading; a reader needs lines like `Ann B. Lee. Lee was born in York .`"
        )
    found = [(*look_up(corpus, one.question), one.answer) for one in questions]
    asked = [
        Asked(lines, form, normal(answer).strip()) for lines, form, answer in found if lines and answer is not None
    ]
    if not asked:
        raise DataError(
            f"no question with an answer names a heading of {corpus.source}; check that the two belong together"
        )
    return asked


def grouped(asked: Sequence[Asked], forms: Sequence[Sequence[str]]) -> tuple[Kind, ...]:
    """Kinds from groups of forms, the kind that was asked most often first."""
    counts = Counter(one.form for one in asked)
    kinds = [
        Kind(tuple(sorted(((form, counts[form]) for form in group), key=lambda one: (-one[1], one[0]))))
        for group in forms
    ]
    return tuple(sorted(kinds, key=lambda kind: (-sum(count for _, count in kind.forms), kind.name)))


def common_forms(asked: Sequence[Asked]) -> list[str]:
    """The forms that were asked often enough to be learned by themselves, the commonest first."""
    counts = Counter(one.form for one in asked)
    return sorted(
        (form for form, count in counts.items() if count >= _LEAST_QUESTIONS), key=lambda form: (-counts[form], form)
    )


def _alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of answers are mostly the same."""
    return sum(a == b for a, b in zip(one, other, strict=True)) >= _ALIKE * len(one)


def same_kind(
    asked: Sequence[Asked], forms: Sequence[str], answer: Callable[[str, tuple[int, ...]], str]
) -> list[list[str]]:
    """Forms in groups: two are together where the lines that either was asked about are answered alike in both."""
    lines = {form: [one.lines for one in asked if one.form == form] for form in forms}
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
    """The kind of a form, or where it is new, of the form that reads most like it."""
    forms = {known: number for number, kind in enumerate(kinds) for known, _ in kind.forms}
    if form in forms:
        return forms[form]
    found = process.extractOne(form, list(forms), scorer=fuzz.token_set_ratio)
    return forms[found[0]] if found else 0
