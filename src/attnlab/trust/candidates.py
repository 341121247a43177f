"""The possible answers of a model, and which of them are of the same kind.

Why: exact probabilities need a finite list of answers. The training answers alone are too
few, since the correct answer for a new person need not be among them; so the salient spans of the corpus, which
the recall task asks for, are included. It must not know about models or which answer is correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from attnlab.corpora import Question, title_of
from attnlab.corpora.evidence import name_in
from attnlab.corpora.library import normal
from attnlab.tasks.recall import proper_words, salient_spans
from attnlab.tokenizers import Tokenizer

_MOST = 20_000  # candidates; in a larger corpus the most common
_LONGEST = 16  # tokens of a span, unless a training answer is longer

_Lines = Callable[[], Iterable[str]]


def _span_counts(lines: _Lines) -> Counter[str]:
    """Count every salient span; the lines are read twice, one at a time."""
    proper = proper_words(lines())
    counts: Counter[str] = Counter()
    for line in lines():
        title = title_of(line)
        text = line[len(title) :].lstrip(". ")
        counts.update(text[begin:end] for begin, end in salient_spans(text, title, proper))
    return counts


def _known_answers(facts: Iterable[Question]) -> list[str]:
    return list(dict.fromkeys(item.answer.strip() for item in facts if item.answer and item.answer.strip()))


def candidates(tokenizer: Tokenizer, facts: Sequence[Question], lines: _Lines) -> tuple[str, ...]:
    """Return the training answers, then the salient spans of the corpus from the most common.

    Answers that the tokenizer cannot encode or distinguish are left out, and so are spans far longer than any answer.
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
    """Return a question without the name in it."""
    return question.replace(name_in(question), "…")


def kinds(facts: Iterable[Question]) -> dict[str, frozenset[str]]:
    """Return, per form of question, the answers of its kind: those of all forms connected to it by shared answers."""
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
    """Return the known answers to questions of this form; all answers if the form is unknown."""
    return known.get(form_of(question)) or frozenset[str]().union(*known.values())
