"""The attention of one answer: which head to show first, and what it looks at. Pure; knows no HTML and no mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.report.words import percent

CUE = "⁇"  # the symbol after which an answer is written
Pattern = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Head:
    """One head; layers and heads are counted from 1, as people do."""

    layer: int
    number: int
    pattern: Pattern
    sentence: str
    title: str = ""  # in place of its number, where several heads are shown as one
    verb: str = "looks at"  # what a token does to those with weight in its row

    @property
    def name(self) -> str:
        """The head in words."""
        return f"layer {self.layer}, {self.title or f'head {self.number}'}"


def visible(token: str) -> str:
    """A token with its spaces and line ends to be seen."""
    return token.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or "∅"


def answer_row(tokens: Sequence[str]) -> int:
    """The row that chooses the first token of the answer: the last cue, else the last row."""
    cues = [place for place, token in enumerate(tokens) if token.strip() == CUE]
    return cues[-1] if cues else len(tokens) - 1


def strongest(weights: Sequence[float]) -> int:
    """The column with the largest weight."""
    return max(range(len(weights)), key=lambda column: weights[column])


def sentence(tokens: Sequence[str], weights: Sequence[float]) -> str:
    """What a row looks at most."""
    column = strongest(weights)
    return (
        f"Where the answer is chosen (row {visible(tokens[answer_row(tokens)])}), it looks most at"
        f" {visible(tokens[column])} ({percent(weights[column])})."
    )


def heads(attention: Mapping[str, Any]) -> list[Head]:
    """All heads of the answer, layer by layer."""
    tokens = attention["tokens"]
    row = answer_row(tokens)
    return [
        Head(layer, number, pattern, sentence(tokens, pattern[row]))
        for layer, patterns in enumerate(attention["patterns"], start=1)
        for number, pattern in enumerate(patterns, start=1)
    ]


def left_out(attention: Mapping[str, Any]) -> str:
    """The layers that have no weights over tokens, as a sentence; empty if there are none."""
    numbers = [str(layer) for layer, patterns in enumerate(attention["patterns"], start=1) if not patterns]
    several = "s" * (len(numbers) > 1)
    return f"Layer{several} {', '.join(numbers)} left out: no weights of tokens on tokens there." if numbers else ""


def adds_up(every: Sequence[Head]) -> bool:
    """Whether every row of weights adds up to one, as far as three decimals tell; not all mechanisms do that."""
    return all(abs(sum(row) - 1) <= 0.001 * (1 + len(row)) for head in every for row in head.pattern)


def first_to_show(every: Sequence[Head], row: int) -> Head:
    """The head that looks hardest at one earlier token when the answer is chosen.

    The first token is left out, because heads with nothing to do rest on it, and so is the row's own.
    """

    def focus(head: Head) -> float:
        return max(head.pattern[row][1:row], default=0.0)

    return max(every, key=focus)


def compact(pattern: Pattern) -> list[list[int]]:
    """Weights in thousandths without the zeros at the end of each row: what the page's tooltips read."""
    rows = []
    for weights in pattern:
        whole = [round(1000 * weight) for weight in weights]
        while whole and whole[-1] == 0:
            whole.pop()
        rows.append(whole)
    return rows
