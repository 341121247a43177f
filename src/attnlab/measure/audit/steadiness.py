"""The same numbers in every mode and every time, and numbers at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from attnlab.measure.audit.isolation import must_take_padding
from attnlab.measure.audit.leaks import Setting, difference, influence
from attnlab.measure.audit.probes import Finding, left_padding, not_long, positions, settings, worst
from attnlab.measure.audit.subject import NotTested, Subject
from attnlab.taps import capture, taps_of


def pattern_of(subject: Subject, x: Tensor) -> dict[str, Tensor]:
    """The output and the patterns while they are captured; nothing where no layer has a tap for its pattern."""
    module = subject.module
    taps = [] if module is None else [name for name in taps_of(module) if name.endswith("hook_pattern")]
    if module is None or not taps:
        return {}
    with capture(module, taps) as seen:
        seen["output"] = subject.run(x)
    return dict(seen)


def train_eval(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Are the outputs, and what they look at, the same in train() and eval()?"""
    if subject.module is None:
        raise NotTested("a plain function has no modes")
    return worst(found for tokens in lengths for found in train_eval_at(subject, tokens, tokens in not_long(lengths)))


def train_eval_at(subject: Subject, tokens: int, closely: bool) -> Iterator[Finding]:
    """The same at a length: outputs, patterns where taps show them, and influences where one looks closely."""
    x, asked = subject.draw(2, tokens), positions(tokens, 6, tokens) if closely else []
    found = []
    for training in (False, True):
        with subject.mode(training):
            seen: dict[str, Tensor] = {"outputs": subject.run(x), **pattern_of(subject, x)}
            with suppress(NotTested):
                seen["influences"] = influence(subject, x[:1], asked) if asked else torch.zeros(1)
            found.append(seen)
    for name in found[0]:
        apart = difference(found[0][name].detach(), found[1][name].detach())
        yield Finding(apart, f"{name} in train() and eval() differ by {apart:.2g} ({tokens} tokens)")


def repeat(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the same text give the same numbers again, whatever the random generators say and whoever watches?"""
    return worst(
        found for setting in settings(subject, lengths) if setting.norm == 1 for found in repeat_at(subject, setting)
    )


def repeat_at(subject: Subject, setting: Setting) -> Iterator[Finding]:
    """The same under given circumstances."""
    x = subject.draw(setting.rows, setting.tokens)
    outputs, states = [], []
    with subject.mode(setting.training):
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            outputs.append(subject.run(x).detach())
            states.append(torch.get_rng_state())
        watched = pattern_of(subject, x)
    apart = max(difference(outputs[0], other) for other in outputs[1:])
    yield Finding(apart, f"the same text gives other outputs the next time, by {apart:.2g} ({setting})")
    seeds = float(torch.equal(states[0], states[1]))
    yield Finding(seeds, f"it seeds torch's random generator, which is everybody's ({setting})")
    if watched:
        apart = difference(outputs[0], watched["output"].detach())
        yield Finding(apart, f"it gives other outputs, by {apart:.2g}, when its pattern is captured ({setting})")


def count_bad(subject: Subject, x: Tensor, factor: float = 1.0, hidden: Tensor | None = None) -> int:
    """Numbers that are NaN or infinite in the outputs and in all gradients."""
    with torch.enable_grad():
        vectors = (subject.vectors(x).detach() * factor).requires_grad_()
        y = subject.run(x, vectors, padding=hidden)
        parameters = [] if subject.module is None else [p for p in subject.module.parameters() if p.requires_grad]
        aim = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        sources = [vectors, *parameters]
        gradients = torch.autograd.grad((y * aim).sum(), sources, allow_unused=True) if y.requires_grad else []
    return sum(int((~one.isfinite()).sum()) for one in (y, *gradients) if one is not None)


def large(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Is everything finite, forward and backward, for inputs of any size?"""

    def at(tokens: int, factor: float, training: bool) -> Finding:
        with subject.mode(training):
            bad = count_bad(subject, subject.draw(2, tokens), factor)
        return Finding(bad, f"{bad} numbers are NaN or infinite ({Setting(tokens, factor, training)})")

    chosen = {min(lengths), max(not_long(lengths))}
    return worst(at(n, size, train) for n in chosen for size in (0.0, 1.0, 100.0, 1e4) for train in (False, True))


def masked(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Is everything finite, forward and backward, where a token may see nothing at all?"""
    must_take_padding(subject)

    def at(tokens: int, training: bool) -> Finding:
        hidden = left_padding(3, tokens)
        hidden[2] = True
        with subject.mode(training):
            bad = count_bad(subject, subject.draw(3, tokens), hidden=hidden)
        return Finding(bad, f"{bad} numbers are NaN or infinite where all is hidden ({Setting(tokens, 1, training)})")

    return worst(at(tokens, training) for tokens in not_long(lengths) for training in (False, True))
