"""Patterns as pictures: those of a mechanism on a toy text, beside the exact one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnlab import ops
from attnlab.measure.approximation.error import look, worth_it
from attnlab.measure.approximation.forms import Setting, settings_of
from attnlab.measure.approximation.pictures import GREY, INK, blank
from attnlab.measure.approximation.samples import Drawn, Source, alone
from attnlab.registry import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def toy_source(tokens: int = 64, causal: bool = True) -> Source:
    """A text whose exact pattern can be recognised: neighbours, a look 24 tokens back, and two tokens that all look at."""
    place = torch.arange(tokens, dtype=torch.float32)

    def waves(shift: float, count: int) -> Tensor:
        frequency = 0.1 + 1.4 * (0.618034 * torch.arange(1, count + 1) % 1)  # no two waves meet again soon
        angle = (place[:, None] - shift) * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * count**-0.5

    salient = torch.zeros(tokens, 1)
    salient[[9, 33]] = 1.0
    k = torch.cat([waves(0, 7), waves(0, 8), salient, torch.zeros(tokens, 1)], dim=-1)
    q = torch.cat([6 * waves(0, 7), 5 * waves(24, 8), 4 * torch.ones(tokens, 1), torch.zeros(tokens, 1)], dim=-1)
    scale = 32**0.25 * (q.std() / k.std()).sqrt()  # the same scores, from queries and keys of one size
    drawn = Drawn(*(one[None, None] for one in (q * 32**0.5 / scale, k * scale, torch.eye(tokens)[:, :32])))
    words = f"a toy text of {tokens} tokens, {'causal' if causal else 'bidirectional'}"
    return Source(("toy",), lambda _: drawn, 1, tokens, 32, causal, words)


@torch.no_grad()
@alone
def pattern_picture(entry: Entry, seed: int = 0) -> Figure:
    """The exact pattern of a toy text, and beside it every form of a mechanism at some values of its knobs."""
    source = toy_source(causal=entry.causal)
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)[0, 0]
    lines = lines_of(worth_it(entry, source, list(settings_of(entry, source)), seed))
    columns = 1 + max(len(line) for line in lines)
    figure, axes = blank(len(lines), columns, max(4.6, 2.1 * columns), 1.0 + 2.3 * len(lines))
    for line, settings in enumerate(lines):
        draw_pattern(axes[line, 0], exact, "exact")
        for ax in axes[line, 1 + len(settings) :]:
            ax.set_visible(False)
        for ax, setting in zip(axes[line, 1:], settings, strict=False):
            _, pattern = look(entry, source, setting, drawn, (seed, 0))
            form, knob, value = setting.key
            words = (form, f"{knob} {value}" if knob else "")
            draw_pattern(ax, pattern[0, 0], "\n".join(word for word in words if word) or entry.name)
    figure.suptitle(f"{entry.name} beside exact attention", fontsize=11, color=INK)
    figure.supxlabel(
        f"{source.words}; rows look at columns\nblue: weights, by their roots; red: negative ones",
        fontsize=7,
        color=GREY,
    )
    return figure


def lines_of(settings: list[Setting]) -> list[list[Setting]]:
    """A line for every form and knob, with a small, a middle and a large value; without a knob one line of all forms."""
    groups: dict[Any, list[Setting]] = {}
    for setting in settings:
        groups.setdefault((setting.form, setting.knob) if setting.knob else None, []).append(setting)
    lines = []
    for group, members in groups.items():
        last = len(members) - 1
        places = range(len(members)) if group is None else dict.fromkeys((last // 4, last // 2, last))
        lines.append([members[place] for place in places])
    return lines


def draw_pattern(ax: Axes, pattern: Tensor, title: str) -> None:
    """One pattern, its weights by their roots, since few are large."""
    shown = pattern.sign() * pattern.abs().sqrt()
    ax.imshow(shown.numpy(), cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    ax.set_title(title, fontsize=8, color=INK)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color("#c9ccd1")
