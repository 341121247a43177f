"""What a comparison shows of every run, and how each figure is to be read. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["perplexity", "loss", "share", "seconds", "rate", "bytes", "count", "epoch"]


@dataclass(frozen=True)
class Figure:
    """One column: where it is found in what was measured, what it is called, and which way is better."""

    key: str
    title: str
    short: str
    kind: Kind
    lower_is_better: bool
    note: str
    at: str  # dotted place in {"result": ..., "measured": ...}

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Its value in the record of a run, where there is one."""
        value: Any = record
        for part in self.at.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "at"} | {"unit": ""}


TOKEN = "exp(mean loss of a token)"
SENTENCE = "mean over sentences of exp(a sentence's mean loss), as in the course reports"

OF_TEXT = (
    Figure(
        "dev_token_perplexity",
        "dev perplexity of tokens",
        "dev ppl, tokens",
        "perplexity",
        True,
        TOKEN,
        "measured.dev.token_perplexity",
    ),
    Figure(
        "dev_sentence_perplexity",
        "dev perplexity of sentences",
        "dev ppl, sentences",
        "perplexity",
        True,
        SENTENCE,
        "measured.dev.sentence_perplexity",
    ),
    Figure(
        "train_token_perplexity",
        "training perplexity of tokens",
        "train ppl, tokens",
        "perplexity",
        True,
        TOKEN + ", on training sentences, as many as dev has at most",
        "measured.train.token_perplexity",
    ),
    Figure(
        "train_sentence_perplexity",
        "training perplexity of sentences",
        "train ppl, sentences",
        "perplexity",
        True,
        SENTENCE + "; on training sentences, as many as dev has at most",
        "measured.train.sentence_perplexity",
    ),
)
OF_QUESTIONS = (
    Figure(
        "accuracy",
        "right answers",
        "right",
        "share",
        False,
        "exact match on questions that were not trained on",
        "measured.accuracy",
    ),
)
OF_ALL = (
    Figure(
        "final_loss",
        "final training loss",
        "loss",
        "loss",
        True,
        "mean of the last twentieth of the steps, with dropout on",
        "result.final_loss",
    ),
    Figure(
        "seconds",
        "training time",
        "time",
        "seconds",
        True,
        "wall time of training, beside the other jobs",
        "result.seconds",
    ),
    Figure(
        "tokens_per_second",
        "tokens a second",
        "tokens/s",
        "rate",
        False,
        "in training, padding left out",
        "result.tokens_per_second",
    ),
    Figure(
        "peak_memory",
        "peak memory",
        "memory",
        "bytes",
        True,
        "resident memory of the training process at its peak, libraries and data included",
        "result.peak_memory",
    ),
    Figure("parameters", "parameters", "parameters", "count", True, "with embedding and head", "result.parameters"),
    Figure(
        "flops_per_token",
        "FLOPs a token",
        "FLOPs/token",
        "count",
        True,
        "forward and backward, in an unpadded text of mean length",
        "measured.flops_per_token",
    ),
)


def figures(words: bool) -> tuple[Figure, ...]:
    """The figures of a comparison; the first is what it is about."""
    return (*(OF_TEXT if words else OF_QUESTIONS), *OF_ALL)
