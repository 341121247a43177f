"""Who must not meet: hidden tokens and the others, and the texts of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from attnlab.measure.audit.leaks import (
    Setting,
    difference,
    gradient_of,
    moved,
    relative,
    replace_tokens,
    size_of,
)
from attnlab.measure.audit.probes import RULER, Finding, left_padding, not_long, settings, worst
from attnlab.measure.audit.subject import NotTested, Subject

CONVENTION = "padding is True at hidden tokens"


def hidden_tokens(tokens: int, seed: int) -> Tensor:
    """Which tokens are hidden (True), in six texts: at the beginning, at the end, here and there."""
    left = left_padding(3, tokens)[1:]
    holes = torch.rand(2, tokens, generator=torch.Generator().manual_seed(seed)) < 0.3
    holes[:, tokens // 2] = True
    return torch.cat([left, left.flip(1), holes])


def must_take_padding(subject: Subject) -> None:
    """Refuse to hide tokens from a subject that knows no padding."""
    if "padding" not in subject.takes:
        raise NotTested("takes no padding")


def padding(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the content of hidden tokens move others?"""
    must_take_padding(subject)
    chosen = [one for one in settings(subject, not_long(lengths)) if one.tokens > 1]
    return worst(found for setting in chosen for found in padding_at(subject, setting))


def padding_at(subject: Subject, setting: Setting) -> Iterator[Finding]:
    """The same under given circumstances, by changing what is hidden and by gradients."""
    hidden = hidden_tokens(setting.tokens, setting.seed)
    steps = padding_leak(subject, setting, hidden)
    place, size = int(steps.argmax()), steps.max().item()
    words = f"output {place} moves by {size:.2g} of its range when hidden tokens change"
    yield Finding(size, f"{words} ({CONVENTION}; {setting})")
    if setting.norm == 1 and setting.tokens <= RULER:
        with suppress(NotTested):
            share = padding_gradient(subject, setting, hidden)
            yield Finding(share, f"a share {share:.2g} of the gradient lies on hidden tokens ({CONVENTION}; {setting})")


def padding_leak(subject: Subject, setting: Setting, hidden: Tensor) -> Tensor:
    """How much every output that counts moves (T) when hidden tokens become larger ones."""
    x = subject.draw(len(hidden), setting.tokens, setting.norm, setting.seed)
    anew = subject.draw(len(hidden), setting.tokens, setting.norm, setting.seed + 500)
    other = replace_tokens(subject, x, hidden, setting, number=1)
    with subject.mode(setting.training):
        y, free, after = (subject.run(one, padding=hidden).where(~hidden[..., None], 0) for one in (x, anew, other))
    return relative(moved(y, after), moved(y, free), size_of(y))


def padding_gradient(subject: Subject, setting: Setting, hidden: Tensor) -> float:
    """The share that hidden tokens have in the gradient of all others."""
    x = subject.draw(len(hidden), setting.tokens, setting.norm, setting.seed)
    with subject.mode(setting.training), torch.enable_grad():
        vectors = subject.vectors(x)
        y = subject.run(x, vectors, padding=hidden)
        aim = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        norms = gradient_of((y * aim)[~hidden].sum(), vectors).norm(dim=-1).nan_to_num(0, 0, 0)
    inside, outside = norms[hidden].max(), norms[~hidden].max()
    return (inside / (inside + outside).clamp_min(1e-30)).item()


def batch(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Do the texts of a batch meet?"""
    return worst(
        found
        for setting in settings(subject, not_long(lengths))
        if setting.norm == 1
        for found in batch_at(subject, setting)
    )


def batch_at(subject: Subject, setting: Setting) -> Iterator[Finding]:
    """The first text beside others, beside larger ones, beside padded ones, and alone."""
    x = subject.draw(3, setting.tokens, seed=setting.seed)
    others = torch.arange(3)[:, None].expand(3, setting.tokens) > 0
    with subject.mode(setting.training):
        y = subject.run(x)[:1]
        for number in range(3):
            apart = difference(y, subject.run(replace_tokens(subject, x, others, setting, number))[:1])
            yield Finding(apart, f"a text moves by {apart:.2g} when others in its batch change ({setting})")
        if "padding" in subject.takes:
            hidden = left_padding(3, setting.tokens).flip(1)
            apart = difference(y, subject.run(x, padding=hidden)[:1])
            yield Finding(apart, f"a text moves by {apart:.2g} when others in its batch are padded ({setting})")
        apart = difference(y, subject.run(x[:1]))
        yield Finding(apart, f"a text gives something else alone than in a batch, by {apart:.2g} ({setting})")
