"""Loss per sentence, and two perplexities with different names.

`token_perplexity` is the exponential of the mean loss per token. `sentence_perplexity` is what the course reports call
perplexity: exp of the mean loss of each sentence, averaged over the sentences. The second is larger, since a few hard
sentences dominate it, and the two must never be compared with each other.

Sentences of equal length are batched, so that there is no padding and a sentence's loss does not depend on its batch.
Running text is read in windows instead, as in validation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from attnlab import corpora
from attnlab.corpora import Corpus, RunningText
from attnlab.corpora.running import split_lines
from attnlab.errors import DataError, Diverged
from attnlab.inside.taps import eval_mode
from attnlab.kernels import vocabulary
from attnlab.lm.batches import IGNORED, batches_by_length, collate, number_documents
from attnlab.lm.model import LanguageModel
from attnlab.lm.stages import stored_config
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.runs import Run
from attnlab.tasks import Example, TaskData, UniformExamples, make_task

_AT_ONCE = 4096  # tokens per batch
_MOST = 300.0  # nats per token, whose exponential can still be squared


def _exp(loss: float) -> float:
    """A perplexity from a loss."""
    if not loss < _MOST:
        raise Diverged(f"the mean loss of a text is {loss:.3g}, far above that of any guess: the model has diverged")
    return math.exp(loss)


# The sentences on which the course reports compare their models.
PROBES = (
    "After learning language models model natural language.",
    "The quick brown fox jumps over the lazy dog.",
    "Amidst the twilight, the ancient ruins whispered secrets long forgotten.",
    "Quantum entanglement fascinates physicists and philosophers alike, bridging worlds with invisible threads.",
)


@dataclass(frozen=True)
class SentenceLosses:
    """Per sentence: the mean loss per token, the number of predicted tokens, and how many of them are unknown words."""

    losses: tuple[float, ...]
    tokens: tuple[int, ...]
    unknown: tuple[int, ...]

    @property
    def loss(self) -> float:
        """The mean loss per token."""
        return sum(loss * count for loss, count in zip(self.losses, self.tokens, strict=True)) / sum(self.tokens)

    @property
    def token_perplexity(self) -> float:
        """The exponential of the mean loss per token."""
        return _exp(self.loss)

    @property
    def sentence_perplexity(self) -> float:
        """The mean over sentences of exp(mean loss of the sentence): the course reports' perplexity."""
        return sum(map(_exp, self.losses)) / len(self.losses)

    def summary(self) -> dict[str, float]:
        """Return plain values, ready for JSON."""
        return {
            "sentences": len(self.losses),
            "tokens": sum(self.tokens),
            "unknown_share": sum(self.unknown) / sum(self.tokens),
            "loss": self.loss,
            "token_perplexity": self.token_perplexity,
            "sentence_perplexity": self.sentence_perplexity,
        }

    def to_csv(self) -> bytes:
        """Return a CSV table with one line per sentence, in order."""
        rows = zip(self.losses, self.tokens, self.unknown, strict=True)
        return (
            "loss,tokens,unknown\n" + "".join(f"{loss!r},{tokens},{unknown}\n" for loss, tokens, unknown in rows)
        ).encode()

    @classmethod
    def from_csv(cls, text: str) -> SentenceLosses:
        """Read what to_csv wrote."""
        rows = [line.split(",") for line in text.split("\n")[1:-1]]
        return cls(*(tuple(kind(row[at]) for row in rows) for at, kind in enumerate((float, int, int))))


def sentence_losses(
    model: LanguageModel,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    longest: int = 0,
    padded: bool = False,
    spaces: bool = False,
    begin: tuple[int, ...] = (),
    ended: bool = True,
) -> SentenceLosses:
    """Measure the loss of lines, one sentence each, truncated to `longest` tokens (0: the block), as in the task `words`.

    `longest` may exceed the block if the model reads longer texts. With `padded`, every sentence is padded to `longest` as in
    training; a correct mechanism is unaffected. With `spaces`, words are split at spaces only, so that punctuation belongs to
    them. `begin` comes before every line, and the stop symbol ends it if it is `ended`.
    """
    longest = min(longest or model.config.block_size, model.longest)
    end = [tokenizer.stop] if ended else []
    sentences = [[*begin, *tokenizer.opening(line, spaces=spaces), *end][:longest] for line in lines]
    for number, ids in enumerate(sentences, start=1):
        if len(ids) < 2:
            raise DataError(f"sentence {number} ({lines[number - 1][:40]!r}) has no token to predict: leave it out")
    if not sentences:
        raise DataError("there is no sentence to measure: give at least one")
    losses = whole_losses(model, sentences, tokenizer.pad, longest if padded else None)
    unknown = [0 if tokenizer.unknown is None else ids[1:].count(tokenizer.unknown) for ids in sentences]
    return SentenceLosses(tuple(losses), tuple(len(ids) - 1 for ids in sentences), tuple(unknown))


def whole_losses(
    model: LanguageModel, sentences: Sequence[list[int]], pad: int, width: int | None = None
) -> list[float]:
    """Return the mean loss per sentence (token ids), read as in training; optionally padded to a width."""
    fill = [width - len(ids) if width else 0 for ids in sentences]
    rows = zip(sentences, fill, strict=True)
    return _example_losses(model, [Example(ids + [pad] * more, 1, more) for ids, more in rows], pad)


def _example_losses(model: LanguageModel, examples: Sequence[Example], pad: int) -> list[float]:
    """Return the mean loss over the targets of every example; those of equal length are batched."""
    losses = [0.0] * len(examples)
    if isinstance(examples, UniformExamples):
        lengths = [examples.length] * len(examples)
    else:
        lengths = [len(example.ids) for example in examples]
    with eval_mode(model), torch.inference_mode():
        for indices in batches_by_length(lengths, tokens=_AT_ONCE):
            batch = [examples[index] for index in indices]
            ids, targets = (tensor.to(model.device) for tensor in collate(batch, pad))
            documents, counted = number_documents(batch), targets != IGNORED
            packed = documents.to(model.device) if documents is not None else None
            hidden = model.hidden(ids, wanted=counted, documents=packed)
            by_token = vocabulary.token_losses(hidden, model.head.weight, targets[counted]).cpu().double()
            for index, part in zip(indices, by_token.split([row.end - row.start for row in batch]), strict=True):
                losses[index] = float(part.mean())
    return losses


def context_losses(
    model: LanguageModel, documents: Sequence[Sequence[int]], pad: int, beyond: int, length: int
) -> list[float]:
    """Return the mean loss per document (token ids) of its tokens after number `beyond`, read in windows of `length` tokens.

    The first window begins with the document, the others follow each other by an eighth of `beyond`: a token is predicted
    from all those before it in the first, and from at least `length` less that eighth in the others.
    """
    step, examples, counts = max(1, beyond // 8), [], []
    for ids in documents:
        last, done = len(ids) - 1, beyond
        for end in [*range(max(length, beyond + step), last, step), last]:
            begin = max(0, end - length)
            examples.append(Example(ids[begin : end + 1], done + 1 - begin))
            done = end
        counts.append(len(examples))
    losses = _example_losses(model, examples, pad)
    sums = [loss * (len(one.ids) - one.start) for loss, one in zip(losses, examples, strict=True)]
    return [
        sum(sums[first:end]) / (len(ids) - 1 - beyond)
        for ids, (first, end) in zip(documents, pairwise([0, *counts]), strict=True)
    ]


def prefix_losses(model: LanguageModel, sentences: Sequence[list[int]]) -> list[float]:
    """Return the mean loss per sentence (token ids), with each token predicted from a text that ends before it.

    This is what happens in generation. A causal model has the same losses as with `whole_losses`.
    """
    places = [(number, at) for number, ids in enumerate(sentences) for at in range(1, len(ids))]
    totals = [0.0] * len(sentences)
    with eval_mode(model), torch.inference_mode():
        for indices in batches_by_length([at for _, at in places], tokens=_AT_ONCE):
            batch = [places[index] for index in indices]
            read = torch.tensor([sentences[number][: at + 1] for number, at in batch], device=model.device)
            hidden, aims = model.hidden(read[:, :-1])[:, -1], read[:, -1]
            losses = vocabulary.token_losses(hidden, model.head.weight, aims).tolist()
            for (number, _), loss in zip(batch, losses, strict=True):
                totals[number] += loss
    return [total / (len(ids) - 1) for total, ids in zip(totals, sentences, strict=True)]


@dataclass(frozen=True)
class Probe:
    """One sentence with its loss and perplexity."""

    sentence: str
    tokens: int
    unknown: int
    loss: float
    perplexity: float


def probe(
    model: LanguageModel,
    tokenizer: Tokenizer,
    sentences: Sequence[str] = PROBES,
    longest: int = 0,
    padded: bool = False,
    spaces: bool = False,
    ended: bool = True,
) -> list[Probe]:
    """Return sentences with their losses and perplexities."""
    scored = sentence_losses(model, tokenizer, sentences, longest, padded, spaces, ended=ended)
    rows = zip(sentences, scored.tokens, scored.unknown, scored.losses, strict=True)
    return [Probe(*row, _exp(row[-1])) for row in rows]


# Runs


def text_for(run: Run, source: str) -> Corpus | RunningText:
    """The text to measure a run on: sentences, or running text, as in training."""
    return corpora.open_text(source) if run.record.running_text else corpora.load_corpus(source)


def losses_on(
    run: Run,
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: Corpus | RunningText,
    length: int = 0,
    spaces: bool = False,
) -> SentenceLosses:
    """Measure the loss of sentences, or of running text in windows one after the other, as in validation.

    `length` is that of a window, or of the longest sentence, in tokens; 0: as in training.
    """
    config, task = stored_config(run), run.record.task
    if isinstance(text, Corpus):
        return sentence_losses(model, tokenizer, text.lines, length or task.longest, task.padded, spaces)
    examples = make_task(config.task, TaskData(tokenizer, length or config.model.block_size, text)).validation()
    if not examples:
        raise DataError(f"{text.source} has no token to predict: give a longer text")
    losses = _example_losses(model, examples, tokenizer.pad)
    targets = (np.asarray(example.ids[example.start : example.end]) for example in examples)
    counts = [(len(ids), 0 if tokenizer.unknown is None else int((ids == tokenizer.unknown).sum())) for ids in targets]
    return SentenceLosses(tuple(losses), *(tuple(column) for column in zip(*counts, strict=True)))


def count_seen_lines(run: Run, lines: Sequence[str], tokenizer: Tokenizer) -> int | None:
    """Count the lines that a run was trained on; None if its own text cannot be read, or is no longer what it read."""
    record, config = run.record, stored_config(run)
    if record.corpus is None:
        return None
    try:
        if not record.running_text:
            known = frozenset(corpora.load_corpus(record.corpus.source).lines)
            return sum(line in known for line in lines)
        text = corpora.open_text(record.corpus.source)
        if text.sha256 != record.corpus.sha256:
            return None
        task = make_task(config.task, TaskData(tokenizer, config.model.block_size, text))
    except DataError:
        return None
    wanted = frozenset(lines)
    read = Counter(line for line in text.each_line() if line in wanted)
    seen = read - Counter(split_lines(task.held_out_text()))
    return sum(line in seen for line in lines)
