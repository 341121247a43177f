"""What the checks share: where to look, and how to report the worst that was met."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.measure.audit.leaks import Setting
from attnlab.measure.audit.subject import NotTested, Subject

NORMS = (1.0, 0.01, 100.0)
LONG = 150  # tokens, beyond which less is asked
FEW = (1, 2, 7, 64, LONG)
RULER = 64  # tokens of the text whose leak is told position by position


@dataclass(frozen=True)
class Finding:
    """The worst that a check met: a number, in words, and for leaks the size at every position."""

    value: float
    says: str
    by_position: tuple[float, ...] = ()


def worst(findings: Iterable[Finding]) -> Finding:
    """The finding with the largest value; sizes by position are the largest of all."""
    every = list(findings)
    if not every:
        raise NotTested("no length that it takes is long enough")
    longest = max(len(one.by_position) for one in every)
    columns = zip(*(one.by_position for one in every if len(one.by_position) == longest), strict=True)
    first = max(every, key=lambda one: one.value)
    return Finding(first.value, first.says, tuple(max(column) for column in columns))


def ruler(lengths: Sequence[int]) -> int:
    """The length whose leak is told position by position."""
    return max((tokens for tokens in lengths if tokens <= RULER), default=min(lengths))


def few(lengths: Sequence[int]) -> list[int]:
    """Some of many lengths, for what costs much or depends little on length: the nearest to each of FEW, and the longest."""
    nearest = {max((tokens for tokens in lengths if tokens <= most), default=min(lengths)) for most in FEW}
    return sorted({*nearest, max(lengths)})


def not_long(lengths: Sequence[int]) -> list[int]:
    """The lengths at which everything is asked; at longer ones, what depends on length."""
    return [tokens for tokens in lengths if tokens <= LONG] or [min(lengths)]


def settings(subject: Subject, lengths: Sequence[int]) -> Iterator[Setting]:
    """Every length in both modes, and the shorter ones in every norm; a batch of one in train(), of two in eval()."""
    for tokens in lengths:
        several = not subject.reads_ids and tokens <= max(RULER, min(lengths))
        for number, norm in enumerate(NORMS if several else NORMS[:1]):
            for training in (False, True):
                yield Setting(tokens, norm, training, rows=1 if training else 2, seed=number)


def positions(tokens: int, most: int, seed: int) -> list[int]:
    """Positions with a future: all of them, or the ends, the last of every 16 and some at random, `most` or so."""
    if tokens - 1 <= most:
        return list(range(tokens - 1))
    chosen = {0, 1, tokens // 2, tokens - 2}
    edges = list(range(15, tokens - 1, 16))
    stride = max(1, 2 * len(edges) // most)
    chosen |= set(edges[seed % stride :: stride])
    return sorted(chosen | set(random.Random(seed).sample(range(tokens - 1), most // 3)))


def left_padding(rows: int, tokens: int) -> Tensor:
    """Hidden tokens (True) at the beginning, more of them in later rows, none in the first."""
    return torch.arange(tokens) < torch.arange(rows)[:, None] * ((tokens + 2) // 3)
