"""The patterns of a mechanism over a toy text, beside that of exact attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlab import ops
from attnlab.measure.approximation.error import EXACT, Setting, attend, relative, settings_until_exact
from attnlab.measure.approximation.samples import QKV, Source, chance
from attnlab.registry import Entry
from attnlab.report.document import Head, Heads

_SMALL = 32  # tokens of the text that a page shows, few enough to name each


@dataclass(frozen=True)
class Pattern:
    """The weights of one form of a mechanism at one value of a knob; `error` is relative to the exact pattern."""

    form: str
    knob: str
    value: int
    weights: Tensor
    error: float

    @property
    def words(self) -> list[str]:
        """The form and the knob with its value, as far as there are any."""
        return [word for word in (self.form, f"{self.knob} {self.value}" if self.knob else "") if word]


@dataclass(frozen=True)
class Patterns:
    """The exact pattern of a text, and lines of patterns of a mechanism."""

    exact: Tensor
    lines: Sequence[Sequence[Pattern]]
    source: str


@torch.no_grad()
@chance("alone", 0, 0)  # leaves torch's random numbers as they were
def patterns(entry: Entry, tokens: int = 64, seed: int = 0) -> Patterns:
    """Every form of a mechanism at some values of its knobs."""
    source = _toy_source(tokens, entry.causal)
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)

    def pattern(setting: Setting) -> Pattern:
        _, weights = attend(entry, source, setting, drawn, seed, 0)
        return Pattern(*setting.key, weights[0, 0], float(relative(weights, exact).max()))

    settings = _in_lines(settings_until_exact(entry, source, seed))
    return Patterns(exact[0, 0], [[pattern(one) for one in line] for line in settings], source.words)


def _toy_source(tokens: int, causal: bool) -> Source:
    """A text whose exact pattern is easy to recognise: neighbours, a look 24 of 64 tokens back, and two salient tokens."""
    place = torch.arange(tokens, dtype=torch.float32)

    def waves(shift: float, count: int) -> Tensor:
        frequency = 0.1 + 1.4 * (0.618034 * torch.arange(1, count + 1) % 1)  # no two waves meet again soon
        angle = (place[:, None] - shift) * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * count**-0.5

    salient = torch.zeros(tokens, 1)
    salient[[9 * tokens // 64, 33 * tokens // 64]] = 1.0
    back = 24 * tokens / 64
    k = torch.cat([waves(0, 7), waves(0, 8), salient, torch.zeros(tokens, 1)], dim=-1)
    q = torch.cat([6 * waves(0, 7), 5 * waves(back, 8), 4 * torch.ones(tokens, 1), torch.zeros(tokens, 1)], dim=-1)
    scale = 32**0.25 * (q.std() / k.std()).sqrt()  # the same scores, from queries and keys of one size
    drawn = QKV(*(one[None, None] for one in (q * 32**0.5 / scale, k * scale, torch.eye(tokens)[:, :32])))
    words = f"a toy text of {tokens} tokens, {'causal' if causal else 'bidirectional'}"
    return Source(("toy",), lambda _: drawn, lambda _: drawn, 1, tokens, 32, causal, words)


def _in_lines(settings: list[Setting]) -> list[list[Setting]]:
    """One line per form and knob, with a small, a medium and a large value; without a knob one line of all forms."""
    groups: dict[Any, list[Setting]] = {}
    for setting in settings:
        groups.setdefault((setting.form, setting.knob) if setting.knob else None, []).append(setting)
    lines = []
    for group, members in groups.items():
        last = len(members) - 1
        places = range(len(members)) if group is None else dict.fromkeys((last // 4, last // 2, last))
        lines.append([members[place] for place in places])
    return lines


def heads(entry: Entry) -> Heads:
    """The patterns as a block of a report: the exact one first, then a line per form and knob."""
    found = patterns(entry, _SMALL)
    sentence = f"The weights of dot-product attention over {found.source}: rows look at columns."
    shown = [Head(1, 1, found.exact.tolist(), sentence, "exact", group="dot product")]
    for layer, line in enumerate(found.lines, start=2):
        group = line[0].form if line[0].knob and line[0].form else entry.name
        shown += [
            Head(layer, number, one.weights.tolist(), _sentence(entry, one), _title(one), group=group)
            for number, one in enumerate(line, start=1)
        ]
    names = [str(number) for number in range(1, _SMALL + 1)]
    inexact = [place for place, one in enumerate(found.lines[0], start=1) if one.error > EXACT] or [1]
    return Heads(names, shown, _SMALL - 1, cell=15.0, chosen=inexact[len(inexact) // 2])


def _title(one: Pattern) -> str:
    return f"{one.knob} {one.value}" if one.knob else one.form or "its pattern"


def _sentence(entry: Entry, one: Pattern) -> str:
    """How far a pattern is from the exact one, where it is meant to be near it."""
    if entry.weights in ("own", "exact"):
        return "Learned parts have their initial values." if entry.weights == "own" else ""
    return f"Its distance from the exact pattern is {100 * one.error:.0f} % of that pattern's norm."
