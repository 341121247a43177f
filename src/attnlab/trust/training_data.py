"""The training data of a run: its questions, its corpus, the possible answers, and the forms of questions.

A fine-tuned model knows what its base was trained on, and judging an answer needs all of it. It must not know about models,
or which answer is correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from attnlab import corpora
from attnlab.corpora import Corpus, Question, title_of
from attnlab.corpora.library import name_in, normal
from attnlab.corpora.sources import lines_of, load_corpus
from attnlab.errors import DataError
from attnlab.lm import stages
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.runs import DataSource, Run, lineage
from attnlab.tasks.recall import proper_words, salient_spans

_MOST = 20_000  # candidates; in a larger corpus the most common
_LONGEST = 16  # tokens of a span, unless a training answer is longer

_Lines = Callable[[], Iterable[str]]


def data_sources(run: Run, name: Literal["corpus", "facts"]) -> list[DataSource]:
    """Return the corpora or questions that a run and its bases were trained on, the run's own first."""
    records = (run.record for run in lineage(run))
    sources = (record.corpus if name == "corpus" else record.facts for record in records)
    return [data for data in sources if data]


@dataclass(frozen=True)
class _Lookup:
    """The corpus of a run; or None, and the reason."""

    corpus: Corpus | None
    note: str = ""


class TrainingData:
    """The data of a run and the runs it was trained from; `corpus` and `facts` may be given if they are in memory."""

    def __init__(self, run: Run, corpus: Corpus | None = None, facts: tuple[Question, ...] | None = None) -> None:
        self.run, self._corpus, self._facts = run, corpus, facts

    @cached_property
    def facts(self) -> tuple[Question, ...]:
        """All questions that the run was trained on; a changed file is an error."""
        if self._facts is not None:
            return self._facts
        facts: dict[Question, None] = {}
        for data in data_sources(self.run, "facts"):
            questions = corpora.load_questions(data.source)
            if stages.checksum(questions) != data.sha256:
                raise DataError(
                    f"{data.source} has changed since the run was trained on it: restore the file, or train again"
                )
            facts |= dict.fromkeys(questions)
        return tuple(facts)

    def lines(self) -> Iterable[str]:
        """Yield the lines that the run was trained on; none if they cannot be read."""
        if self._corpus is not None:
            yield from self._corpus.lines
            return
        with suppress(DataError):
            for data in data_sources(self.run, "corpus")[:1]:
                yield from lines_of(data.source)

    def look_up(self) -> _Lookup:
        """Load the corpus, if lines can be looked up in it."""
        try:
            sources = data_sources(self.run, "corpus")
            if not sources:
                return _Lookup(None, "it was not trained on a corpus that could be looked up")
            if next(run.record for run in lineage(self.run) if run.record.corpus).running_text:
                return _Lookup(None, "it read running text, which has no lines to look up")
            source = sources[0].source
            corpus = self._corpus or load_corpus(source, lookup=True)
        except DataError as error:
            return _Lookup(None, f"its corpus cannot be looked up now: {error}")
        if corpus.sha256 != sources[0].sha256:
            return _Lookup(None, f"{source} has changed since training, so nothing was looked up")
        if not corpus.shelf:
            return _Lookup(None, "the lines of its corpus have no headings to look up")
        return _Lookup(corpus)


# Possible answers


def candidates(tokenizer: Tokenizer, facts: Sequence[Question], lines: _Lines) -> tuple[str, ...]:
    """Return the training answers, then the salient spans of the corpus from the most common.

    Exact probabilities need a finite list of answers. The training answers alone are too few, since the correct answer for
    a new person need not be among them; so the spans that the recall task asks for are included. Answers that the tokenizer
    cannot encode or distinguish are left out, and so are spans far longer than any answer.
    """
    known = dict.fromkeys(item.answer.strip() for item in facts if item.answer and item.answer.strip())
    longest = max([_LONGEST, *(len(tokenizer.encode(answer)) for answer in known)])
    spans = (span for span, _ in _span_counts(lines).most_common())
    answers: dict[tuple[int, ...], str] = {}
    for answer in (*known, *spans):
        ids = tuple(tokenizer.encode(answer))
        if ids and len(ids) <= longest and not set(ids) & set(tokenizer.stops):
            answers.setdefault(ids, answer)
        if len(answers) == _MOST:
            break
    return tuple(answers.values())


def _span_counts(lines: _Lines) -> Counter[str]:
    """Count every salient span; the lines are read twice, one at a time."""
    proper = proper_words(lines())
    counts: Counter[str] = Counter()
    for line in lines():
        title = title_of(line)
        text = line[len(title) :].lstrip(". ")
        counts.update(text[begin:end] for begin, end in salient_spans(text, title, proper))
    return counts


# Forms of questions


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


def of_kind(question: str, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the known answers to questions of this form; all answers if the form is unknown."""
    return known.get(form_of(question)) or frozenset[str]().union(*known.values())


class Forms:
    """The forms of the training questions: the text before and after the name."""

    def __init__(self, facts: Iterable[Question]) -> None:
        self.around: Counter[tuple[str, str]] = Counter()
        for item in facts:
            before, _, after = item.question.partition(name_in(item.question))
            self.around[before, after] += 1

    def fitting(self, question: str) -> list[tuple[int, str, str]]:
        """Return the forms that fit a question: count, text before the name, text after it."""
        return [
            (count, before, after)
            for (before, after), count in self.around.items()
            if question.startswith(before) and question.endswith(after) and len(before + after) < len(question)
        ]

    def name(self, question: str) -> str:
        """Return the name in a question by the most common form that fits, else the longest run of capitalised words."""
        forms = self.fitting(question)
        if not forms:
            return name_in(question)
        _, before, after = max(forms)
        return question[len(before) : len(question) - len(after)]
