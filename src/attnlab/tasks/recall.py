"""Learn to recall: many short views of every document, each asking for something in it.

A view is `title ⁇ span ⁇`, with the loss on the span: given the title of a document, sometimes with part of the text to the
left of the span, the model must recall a name, a place or another capitalised phrase. A view costs a dozen tokens where a
whole line costs sixty, and trains what a question needs later: from the full name to the fact. Some views list all spans of
a document in order, `title ⁇ span ⁇ span ⁇`: even cheaper, and they teach the order. Training questions are mixed in from
the start, and sometimes the whole line is an example.

Strangers are names that no document has, combined from existing names. The correct answer to them is empty, so that the model
learns to answer nothing about people it has not read about. They are given as bare names, like all titles: if they were
given in questions, people who are never asked about would look like strangers.
"""

from __future__ import annotations

import calendar
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.config import require
from attnlab.corpora import Corpus, title_of
from attnlab.registry import task
from attnlab.tasks import Example, Task, TaskData

_WORD = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*\.?", re.UNICODE)
_MONTHS = frozenset(calendar.month_name[1:])


@dataclass(frozen=True)
class Reading:
    """One document, tokenized in the parts of its views."""

    title: Sequence[int]
    line: Sequence[int]
    spans: tuple[tuple[Sequence[int], Sequence[int]], ...]  # the end of the text to the left, and the span


def words(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the words of a text with their positions; the full stop of a sentence is not part of a word, that of `St.` is."""
    for match in _WORD.finditer(text):
        word, (begin, end) = match.group(), match.span()
        if word.endswith(".") and len(word) > 3:
            word, end = word[:-1], end - 1
        yield word, begin, end


def proper_words(lines: Iterable[str]) -> frozenset[str]:
    """Return the words that are more often capitalised than not within sentences: names, not sentence starts."""
    lower: Counter[str] = Counter()
    capital: Counter[str] = Counter()
    for line in lines:
        last: int | None = None
        for word, begin, end in words(line):
            if word[0].islower():
                lower[word.lower()] += 1
            elif last is not None and (line[last:begin] == " " or not set(".!?") & set(line[last:begin])):
                capital[word] += 1
            last = end
    return frozenset(word for word, count in capital.items() if count > lower[word.lower()])


def salient_spans(text: str, title: str, proper: frozenset[str]) -> list[tuple[int, int]]:
    """Return the runs of proper words in a text, without months and parts of the title."""
    known = {word for word, _, _ in words(title)}
    spans: list[tuple[int, int]] = []
    for word, begin, end in words(text):
        if word not in proper or word in _MONTHS or word in known:
            continue
        if spans and text[spans[-1][1] : begin] == " ":
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    return spans


class Strangers:
    """Names that do not exist, combined from the titles of a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.known = frozenset(corpus.titles)
        self.several = [title for title in corpus.titles if " " in title]

    def draw(self, share: float, rng: np.random.Generator) -> Iterator[str]:
        """Draw names, at most `share` times the number of documents; none if all titles are single words."""
        for _ in range(round(share * len(self.several))):
            first, second = (self.several[pick] for pick in rng.integers(len(self.several), size=2))
            name = f"{first.rsplit(' ', 1)[0]} {second.rsplit(' ', 1)[1]}"
            if name not in self.known:
                yield name


@task("recall")
class Recall(Task):
    """Short views of every document that ask for spans of it, mixed with training questions and whole lines.

    Parameters
    ----------
    views
        views per document and epoch
    listed
        probability that one view of a document lists all its spans instead
    bare
        share of the other views that show the title alone
    lines
        probability that the whole document is also an example
    questions
        probability that a training question is shown in an epoch
    left
        maximum tokens of the text to the left of the span in a view
    strangers
        names of nobody per document, whose answer is empty
    """

    reads_questions = True

    def __init__(
        self,
        data: TaskData,
        *,
        views: int = 1,
        listed: float = 0.3,
        bare: float = 0.15,
        lines: float = 0.05,
        questions: float = 0.25,
        left: int = 6,
        strangers: float = 0.0,
    ) -> None:
        for name, share in {"listed": listed, "bare": bare, "lines": lines, "questions": questions}.items():
            require(0 <= share <= 1, f"task recall: {name} must lie in [0, 1], not {share}")
        for name, number in {"views": views, "left": left, "strangers": strangers}.items():
            require(number >= 0, f"task recall: {name} must not be negative, but is {number}")
        self.tokenizer = data.tokenizer
        self.block_size = data.block_size
        self.views, self.bare, self.lines, self.questions = views, bare, lines, questions
        self.listed, self.left, self.strangers = listed, left, strangers
        texts = data.lines("recall")
        proper = proper_words(texts)
        self.readings = [self.read(line, proper) for line in texts]
        self.answered = data.answered
        self.nobody = Strangers(data.corpus) if strangers and isinstance(data.corpus, Corpus) else None

    def read(self, line: str, proper: frozenset[str]) -> Reading:
        """Tokenize a document; without a title, or if title and span do not fit the block, it has no spans."""
        title = title_of(line)

        def encode(part: str) -> Sequence[int]:
            return array("I", self.tokenizer.encode(part))  # a list would take nine times the memory

        text, cue = line[len(title) :].lstrip(". "), encode(title)
        spans = [
            (self.last_of(text[:begin].rstrip()), encode(text[begin:end]))
            for begin, end in (salient_spans(text, title, proper) if title else ())
        ]
        fitting = tuple((left, span) for left, span in spans if len(cue) + len(span) + 2 <= self.block_size)
        return Reading(cue, encode(line), fitting)

    def last_of(self, text: str) -> Sequence[int]:
        """Tokenize the end of a text, as many tokens as views show of it."""
        first, *words = text.rsplit(" ", self.left + 1)
        if len(words) > self.left and all(words) and first[-1:].strip():
            # As many tokens at least, and one word more, whose tokens depend on what is before it.
            text = " ".join(words)
        ids = self.tokenizer.encode(text)
        return array("I", ids[max(0, len(ids) - self.left) :])

    def examples(self, rng: np.random.Generator) -> list[Example]:
        """Return the examples of one epoch."""
        examples = [example for example in self.answered if rng.random() < self.questions]
        for reading in self.readings:
            if rng.random() < self.lines or not reading.spans:
                ended = [*reading.line, self.tokenizer.pad]
                examples.append(Example(ended[: self.block_size], 1))
            if self.views and reading.spans and rng.random() < self.listed:
                examples.append(self.list_of(reading))
                continue
            picks = rng.permutation(len(reading.spans))[: self.views]
            examples.extend(self.view(reading, pick, rng) for pick in picks)
        if self.nobody:
            unanswered = map(self.unanswered, self.nobody.draw(self.strangers, rng))
            examples.extend(example for example in unanswered if len(example.ids) <= self.block_size)
        return examples

    def unanswered(self, text: str) -> Example:
        """Return an example with an empty answer."""
        cue = [*self.tokenizer.encode(text), self.tokenizer.mask]
        return Example([*cue, self.tokenizer.mask], len(cue))

    def list_of(self, reading: Reading) -> Example:
        """Return a view that lists all spans in order, as many as fit."""
        ids = [*reading.title, self.tokenizer.mask]
        start = len(ids)
        for _, span in reading.spans:
            if len(ids) + len(span) + 1 > self.block_size:
                break
            ids += [*span, self.tokenizer.mask]
        return Example(ids, start)

    def view(self, reading: Reading, pick: int, rng: np.random.Generator) -> Example:
        """Return a view: the title, perhaps with text to the left of a span, then the span."""
        left, span = reading.spans[pick]
        room = self.block_size - len(reading.title) - len(span) - 2
        shown = 0 if rng.random() < self.bare else min(int(rng.integers(0, self.left + 1)), len(left), room)
        cue = [*reading.title, *left[len(left) - shown :], self.tokenizer.mask]
        return Example([*cue, *span, self.tokenizer.mask], len(cue))
