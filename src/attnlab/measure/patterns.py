"""The patterns of a mechanism over a toy text, beside that of exact attention, as a block of a report."""

from __future__ import annotations

import torch
from torch import Tensor

from attnlab import ops
from attnlab.measure.approximation import (
    EXACT,
    QKV,
    Setting,
    Source,
    attend,
    chance,
    relative,
    settings_until_exact,
)
from attnlab.registry import Entry
from attnlab.report.document import Head, Heads

_TOKENS = 32  # of the toy text: few enough to name each
_WIDTH = 32


@torch.no_grad()
@chance("alone")  # leaves torch's random numbers as they were
def heads(entry: Entry) -> Heads:
    """The exact pattern first, then a line per form and knob at a small, a medium and a large value."""
    source = _toy_source(entry.causal)
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)
    sentence = f"The weights of dot-product attention over {source.words}: rows look at columns."
    shown, inexact = [Head(1, 1, exact[0, 0].tolist(), sentence, "exact", group="dot product")], list[int]()
    for layer, line in enumerate(_in_lines(settings_until_exact(entry, source, 0)), start=2):
        for number, setting in enumerate(line, start=1):
            _, weights = attend(entry, source, setting, drawn, 0, 0)
            error = float(relative(weights, exact))
            if layer == 2 and error > EXACT:
                inexact.append(len(shown))
            title = f"{setting.knob} {setting.value}" if setting.knob else setting.words or "its pattern"
            group = setting.words if setting.knob and setting.words else entry.name
            shown.append(Head(layer, number, weights[0, 0].tolist(), _sentence(entry, error), title, group=group))
    names = [str(number) for number in range(1, _TOKENS + 1)]
    inexact = inexact or [1]
    return Heads(names, shown, _TOKENS - 1, cell=15.0, chosen=inexact[len(inexact) // 2])


def _toy_source(causal: bool) -> Source:
    """A text whose exact pattern is easy to recognise: neighbours, a look 12 tokens back, and two salient tokens."""
    place = torch.arange(_TOKENS, dtype=torch.float32)

    def waves(shift: float, count: int) -> Tensor:
        frequency = 0.1 + 1.4 * (0.618034 * torch.arange(1, count + 1) % 1)  # no two waves meet again soon
        angle = (place[:, None] - shift) * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * count**-0.5

    salient = torch.zeros(_TOKENS, 1)
    salient[[4, 16]] = 1.0
    k = torch.cat([waves(0, 7), waves(0, 8), salient, torch.zeros(_TOKENS, 1)], dim=-1)
    q = torch.cat([6 * waves(0, 7), 5 * waves(12, 8), 4 * torch.ones(_TOKENS, 1), torch.zeros(_TOKENS, 1)], dim=-1)
    scale = _WIDTH**0.25 * (q.std() / k.std()).sqrt()  # the same scores, from queries and keys of one size
    parts = (q * _WIDTH**0.5 / scale, k * scale, torch.eye(_TOKENS)[:, :_WIDTH])
    drawn = QKV(*(part[None, None] for part in parts))
    words = f"a toy text of {_TOKENS} tokens, {'causal' if causal else 'bidirectional'}"
    return Source(("toy",), lambda _: drawn, 1, _TOKENS, _WIDTH, causal, words)


def _in_lines(settings: list[Setting]) -> list[list[Setting]]:
    """One line per form and knob, with a small, a medium and a large value; without a knob one line of all forms."""
    groups: dict[object, list[Setting]] = {}
    for setting in settings:
        groups.setdefault((setting.form, setting.knob) if setting.knob else None, []).append(setting)
    lines = []
    for group, members in groups.items():
        last = len(members) - 1
        places = range(len(members)) if group is None else dict.fromkeys((last // 4, last // 2, last))
        lines.append([members[place] for place in places])
    return lines


def _sentence(entry: Entry, error: float) -> str:
    """How far a pattern is from the exact one, where it is meant to be near it."""
    if entry.weights in ("own", "exact"):
        return "Learned parts have their initial values." if entry.weights == "own" else ""
    return f"Its distance from the exact pattern is {100 * error:.0f} % of that pattern's norm."
