"""The answers that a model is taken to choose from, and which of them are answers of one kind.

Why: probabilities of answers can be computed exactly when the answers can be counted. The training answers alone are too
few, since what is right of a new person need never have been an answer before; so the salient spans of the corpus, what
the recall task asks for, are among them. It must not know about models, nor which answer is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from attnlab.corpora import Question, title_of
from attnlab.corpora.evidence import name_in
from attnlab.corpora.library import normal
from attnlab.tasks.recall import proper_words, salient_spans
from attnlab.tokenizers import Tokenizer

_MOST = 20_000  # candidates; of a larger corpus the commonest
_LONGEST = 16  # tokens of a span, unless a training answer is longer

_Lines = Callable[[], Iterable[str]]


def _span_counts(lines: _Lines) -> Counter[str]:
    """How often every salient span occurs; the lines are read twice, one at a time."""
    proper = proper_words(lines())
    counts: Counter[str] = Counter()
    for line in lines():
        title = title_of(line)
        text = line[len(title) :].lstrip(". ")
        counts.update(text[begin:end] for begin, end in salient_spans(text, title, proper))
    return counts


def _known_answers(facts: Iterable[Question]) -> list[str]:
    """The answers of questions, each once."""
    return list(dict.fromkeys(item.answer.strip() for item in facts if item.answer and item.answer.strip()))


def candidates(tokenizer: Tokenizer, facts: Sequence[Question], lines: _Lines) -> tuple[str, ...]:
    """The training answers, then the salient spans of the corpus from the commonest on.

    What a tokenizer cannot write, or writes like another answer, is left out, and spans far longer than any answer are.
    """
    known = _known_answers(facts)
    longest = max([_LONGEST, *(len(tokenizer.encode(answer)) for answer in known)])
    spans = (span for span, _ in _span_counts(lines).most_common())
    found: dict[tuple[int, ...], str] = {}
    for answer in (*known, *spans):
        ids = tuple(tokenizer.encode(answer))
        if ids and len(ids) <= longest and not set(ids) & set(tokenizer.stops):
            found.setdefault(ids, answer)
        if len(found) == _MOST:
            break
    return tuple(found.values())


def form_of(question: str) -> str:
    """A question without the name that it asks about."""
    return question.replace(name_in(question), "…")


def kinds(facts: Iterable[Question]) -> dict[str, frozenset[str]]:
    """For every form of question the answers of its kind: those of all forms that are joined to it by shared answers."""
    by_form: dict[str, set[str]] = {}
    for item in facts:
        if item.answer and item.answer.strip():
            by_form.setdefault(form_of(item.question), set()).add(normal(item.answer.strip()))
    groups: list[tuple[set[str], set[str]]] = []  # forms, answers
    for form, answers in by_form.items():
        joined = [group for group in groups if group[1] & answers]
        groups = [group for group in groups if not group[1] & answers]
        forms = {form}.union(*(group[0] for group in joined))
        groups.append((forms, answers.union(*(group[1] for group in joined))))
    return {form: frozenset(answers) for forms, answers in groups for form in forms}


def of_kind(question: str, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """The known answers to questions like this one; all there are where none is of its form."""
    return known.get(form_of(question)) or frozenset[str]().union(*known.values())
