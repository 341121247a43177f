"""Loss per sentence, and two perplexities with different names.

`token_perplexity` is the exponential of the mean loss per token. `sentence_perplexity` is what the course reports call
perplexity: exp of the mean loss of each sentence, averaged over the sentences. The second is larger, since a few hard
sentences dominate it, and the two must never be compared with each other.

Sentences of equal length are batched, so that there is no padding and a sentence's loss does not depend on its batch.
Lines in, numbers out; knows nothing about folders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnlab.errors import DataError
from attnlab.inside.taps import eval_mode
from attnlab.kernels import vocabulary
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer

_AT_ONCE = 4096  # tokens per batch

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
        return math.exp(self.loss)

    @property
    def sentence_perplexity(self) -> float:
        """The mean over sentences of exp(mean loss of the sentence): the course reports' perplexity."""
        return sum(map(math.exp, self.losses)) / len(self.losses)

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
) -> SentenceLosses:
    """Measure the loss of lines, one sentence each, truncated to `longest` tokens (0: the block), as in the task `words`.

    With `padded`, every sentence is padded to `longest` as in training; a correct mechanism is unaffected. With `spaces`,
    words are split at spaces only, so that punctuation belongs to them.
    """
    longest = min(longest or model.config.block_size, model.config.block_size)
    sentences = [tokenizer.sentence(line, longest, spaces=spaces) for line in lines]
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
    losses = [0.0] * len(sentences)
    with eval_mode(model), torch.inference_mode():
        for rows in _alike(sentences, width):
            means = _mean_losses(model, [sentences[row] for row in rows], pad, width)
            for row, loss in zip(rows, means, strict=True):
                losses[row] = loss
    return losses


def prefix_losses(model: LanguageModel, sentences: Sequence[list[int]]) -> list[float]:
    """Return the mean loss per sentence (token ids), with each token predicted from a text that ends before it.

    This is what happens in generation. A causal model has the same losses as with `whole_losses`.
    """
    prefixes: dict[int, list[tuple[int, int]]] = {}
    for number, ids in enumerate(sentences):
        for at in range(1, len(ids)):
            prefixes.setdefault(at, []).append((number, at))
    totals = [0.0] * len(sentences)
    with eval_mode(model), torch.inference_mode():
        for length, places in prefixes.items():
            rows = max(1, _AT_ONCE // length)
            for begin in range(0, len(places), rows):
                some = places[begin : begin + rows]
                read = torch.tensor([sentences[number][: at + 1] for number, at in some], device=model.device)
                hidden, aims = model.hidden(read[:, :-1])[:, -1], read[:, -1]
                losses = vocabulary.token_losses(hidden, model.head.weight, aims).tolist()
                for (number, _), loss in zip(some, losses, strict=True):
                    totals[number] += loss
    return [total / (len(ids) - 1) for total, ids in zip(totals, sentences, strict=True)]


def _alike(sentences: Sequence[Sequence[int]], width: int | None) -> list[list[int]]:
    """Indices of the sentences per batch: of equal length, unless all are padded to one width."""
    groups: dict[int, list[int]] = {}
    for number in sorted(range(len(sentences)), key=lambda one: len(sentences[one])):
        groups.setdefault(width or len(sentences[number]), []).append(number)
    found: list[list[int]] = []
    for length, numbers in groups.items():
        rows = max(1, _AT_ONCE // length)
        found += [numbers[at : at + rows] for at in range(0, len(numbers), rows)]
    return found


def _mean_losses(model: LanguageModel, sentences: Sequence[list[int]], pad: int, width: int | None) -> list[float]:
    lengths = torch.tensor([len(ids) - 1 for ids in sentences])
    filled = torch.tensor([ids + [pad] * ((width or len(ids)) - len(ids)) for ids in sentences], device=model.device)
    counted = (torch.arange(filled.shape[1] - 1) < lengths[:, None]).to(model.device)
    hidden = model.hidden(filled[:, :-1], wanted=counted)
    found = vocabulary.token_losses(hidden, model.head.weight, filled[:, 1:][counted])
    sums = [part.double().sum() for part in found.cpu().split(lengths.tolist())]
    return (torch.stack(sums) / lengths).tolist()


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
) -> list[Probe]:
    """Return sentences with their losses and perplexities."""
    found = sentence_losses(model, tokenizer, sentences, longest, padded, spaces)
    rows = zip(sentences, found.tokens, found.unknown, found.losses, strict=True)
    return [Probe(*row, math.exp(row[-1])) for row in rows]
