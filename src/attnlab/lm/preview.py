"""What a task makes of data, to be shown before training: counts, and examples as texts and as rows of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from attnlab.config import RunConfig
from attnlab.corpora import Corpus, RunningText
from attnlab.lm.stages import Sources, learn_tokenizer, reads_running_text
from attnlab.lm.tokenizers import Tokenizer, count_words
from attnlab.lm.train import IGNORED, collate, count_ids, make_epoch
from attnlab.lm.word_split import LengthBar, word_lengths
from attnlab.tasks import Example, TaskData, UniformExamples, make_task, show

NO_TARGET = "░"  # shown for a token that is not learned


@dataclass(frozen=True)
class WordCounts:
    """Statistics of a corpus of sentences; `lengths` are the bars of a histogram of words per sentence."""

    sentences: int
    tokens: int
    distinct: int
    unknown_share: float
    lengths: tuple[LengthBar, ...]


@dataclass(frozen=True)
class ShownExample:
    """An example as texts: what is read and what is asked for; and the same as the row x, y of its batch."""

    input: str
    target: str
    x: str
    y: str


@dataclass(frozen=True)
class Preview:
    """What a task makes of the data."""

    documents: int
    characters: int
    symbols: int
    examples_per_epoch: int
    tokens_per_epoch: int
    examples: tuple[ShownExample, ...]
    words: WordCounts | None = None


def preview(config: RunConfig, corpus: str, facts: str | None, count: int) -> Preview:
    """Show what a task makes of the data: counts, and examples of the first epoch."""
    sources = Sources.read(corpus, facts, running=reads_running_text(config))
    text, tokenizer = sources.corpus, learn_tokenizer(config, sources)
    task = make_task(config.task, TaskData(tokenizer, config.model.block_size, text, sources.facts))
    examples, batches = make_epoch(task, config, 0)
    if isinstance(examples, UniformExamples):  # in random order already
        chosen = list(range(min(count, len(examples))))
    else:
        chosen = np.random.default_rng(config.seed).permutation(len(examples))[:count].tolist()
    lines = text.lines if isinstance(text, Corpus) else ()
    return Preview(
        documents=task.count_documents(text),
        characters=text.size if isinstance(text, RunningText) else sum(len(line) + 1 for line in lines),
        symbols=tokenizer.size,
        examples_per_epoch=len(examples),
        tokens_per_epoch=count_ids(examples),
        examples=tuple(_shown_example(examples, batches, index, tokenizer) for index in chosen),
        words=_word_counts(lines, tokenizer) if tokenizer.words else None,
    )


def _shown_example(
    examples: Sequence[Example], batches: Sequence[Sequence[int]], index: int, tokenizer: Tokenizer
) -> ShownExample:
    batch = next(batch for batch in batches if index in batch)
    rows = collate([examples[place] for place in batch], tokenizer.pad)
    ids, targets = (tensor[batch.index(index)].tolist() for tensor in rows)
    between = " " if tokenizer.words else ""
    y = between.join(
        between.join(NO_TARGET for _ in group) if ignored else tokenizer.decode(list(group))
        for ignored, group in groupby(targets, key=IGNORED.__eq__)
    )
    return ShownExample(*show(examples[index], tokenizer), tokenizer.decode(ids), y)


def _word_counts(lines: Sequence[str], tokenizer: Tokenizer) -> WordCounts:
    counts = count_words(lines)
    known = tokenizer.backend.get_vocab()
    return WordCounts(
        sentences=len(lines),
        tokens=counts.total(),
        distinct=len(counts),
        unknown_share=sum(count for word, count in counts.items() if word not in known) / max(1, counts.total()),
        lengths=word_lengths(lines),
    )
