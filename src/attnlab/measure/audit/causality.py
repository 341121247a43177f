"""Who sees whom in time: nobody the future, unless it is meant to be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from attnlab.measure.audit.leaks import (
    LIMIT,
    Setting,
    difference,
    future_leak,
    future_leak_at_all_cuts,
    future_share,
    gradient_leak,
    influence,
    moved,
)
from attnlab.measure.audit.probes import RULER, Finding, few, left_padding, not_long, positions, ruler, settings, worst
from attnlab.measure.audit.subject import NotTested, Subject

ALL_CUTS = (
    150  # tokens up to which all cuts are tested at every length; beyond, at the longest, to which others are held
)


def must_be_causal(subject: Subject) -> None:
    """Refuse to look for leaks from the future where the future may be seen."""
    if not subject.causal:
        raise NotTested("may see the future")


def responds(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the output depend on the input at all? Without this every other answer would be empty."""
    shares = []
    for tokens in lengths:
        with subject.mode(False):
            y = subject.run(subject.draw(2, tokens))
            steps = moved(y, subject.run(subject.draw(2, tokens, seed=500)))
        shares.append((steps > 0).float().mean().item())
    return Finding(1 - max(shares), "the output does not depend on the input: there is nothing to audit")


def future(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Do earlier outputs move when later tokens change?"""
    must_be_causal(subject)
    ticks = ruler(lengths)
    chosen = [*settings(subject, few(lengths))]
    if "padding" in subject.takes:
        chosen += [
            Setting(tokens, training=mode, padded=True) for tokens in {ticks, max(lengths)} for mode in (False, True)
        ]
    found = [future_at(subject, one, one.tokens == ticks) for one in chosen]
    closely = [tokens for tokens in lengths if tokens > 1 and (tokens <= ALL_CUTS or tokens == max(lengths))]
    found += [future_at_all_cuts(subject, Setting(tokens, rows=1)) for tokens in closely]
    return worst(found)


def future_at_all_cuts(subject: Subject, setting: Setting) -> Finding:
    """The same at every cut of one text."""
    return worst_leak(future_leak_at_all_cuts(subject, setting), range(setting.tokens - 1), setting)


def worst_leak(leaks: Tensor, cuts: Sequence[int], setting: Setting) -> Finding:
    """The largest of the leaks (cuts T) in words."""
    row, place = divmod(int(leaks.argmax()), setting.tokens)
    later = f"tokens {cuts[row] + 1} and later change" if cuts[row] + 2 < setting.tokens else "the last token changes"
    return Finding(
        leaks.max().item(), f"output {place} moves by {leaks.max():.2g} of its range when {later} ({setting})"
    )


def future_at(subject: Subject, setting: Setting, by_position: bool) -> Finding:
    """The same under given circumstances."""
    cuts = positions(setting.tokens, 8 if setting.norm == 1 else 4, setting.seed + 3 * setting.training)
    if not cuts:
        return Finding(0.0, "", (0.0,) if by_position else ())
    leaks = future_leak(subject, setting, cuts)
    return replace(worst_leak(leaks, cuts, setting), by_position=tuple(leaks.amax(0).tolist()) if by_position else ())


def gradient(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does a gradient flow from an output to later tokens?"""
    must_be_causal(subject)
    ticks = ruler(lengths)
    return worst(
        gradient_at(subject, one, one.tokens == ticks)
        for one in settings(subject, lengths)
        if one.norm == 1 or (one.tokens == ticks and not one.training)
    )


def gradient_at(subject: Subject, setting: Setting, by_position: bool) -> Finding:
    """The same under given circumstances."""
    most = RULER if setting.tokens <= RULER and setting.norm == 1 else 12
    asked = positions(setting.tokens, most, 7 + setting.seed + setting.training)
    if not asked:
        return Finding(0.0, "", (0.0,) if by_position else ())
    shares = gradient_leak(subject, setting, asked)
    row = int(shares.argmax())
    says = f"a share {shares.max():.2g} of the gradient of output {asked[row]} lies on later tokens ({setting})"
    sizes = [0.0] * setting.tokens
    for position, share in zip(asked, shares.tolist(), strict=True):
        sizes[position] = share
    return Finding(shares.max().item(), says, tuple(sizes) if by_position else ())


def prefix(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Is the output of the beginning of a text the beginning of the output, in both modes and at every length?"""
    must_be_causal(subject)
    whole = (Setting(max(lengths), training=training, rows=1 if training else 2) for training in (False, True))
    return worst(found for setting in whole for found in prefix_at(subject, setting, lengths))


def prefix_at(subject: Subject, setting: Setting, lengths: Sequence[int]) -> Iterator[Finding]:
    """The same under given circumstances."""
    x = subject.draw(setting.rows, setting.tokens)
    with subject.mode(setting.training):
        y = subject.run(x).detach()
        for kept in (tokens for tokens in lengths if tokens < setting.tokens):
            apart = difference(y[:, :kept], subject.run(x[:, :kept]).detach())
            words = f"the outputs of the first {kept} tokens differ by {apart:.2g} when more follow ({setting})"
            yield Finding(apart, words)


def cache(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does a text written piece by piece, with a cache, give what it gives at once?"""
    must_be_causal(subject)
    subject.new_cache()
    with subject.mode(False):
        return worst(
            cached_at(subject, tokens, pieces, hidden, seed)
            for seed, tokens in enumerate(not_long(lengths))
            for pieces in ([1] * min(tokens, 40), [4, 1, 1, 3], [3, 7, 20])
            for hidden in (None, left_padding(2, tokens))
            if hidden is None or "padding" in subject.takes
        )


def cached_at(subject: Subject, tokens: int, pieces: Sequence[int], hidden: Tensor | None, seed: int) -> Finding:
    """The same for one text: first what the pieces leave over, then the pieces."""
    x = subject.draw(2, tokens, seed=seed)
    ends = [tokens - sum(pieces[step:]) for step in range(len(pieces))]
    bounds = sorted({0, tokens, *(end for end in ends if end > 0)})
    cache, parts = subject.new_cache(), []
    for begin, end in pairwise(bounds):
        parts.append(subject.run(x[:, begin:end], padding=None if hidden is None else hidden[:, :end], cache=cache))
    with_cache, at_once = torch.cat(parts, dim=1), subject.run(x, padding=hidden)
    if hidden is not None:
        with_cache, at_once = with_cache[~hidden], at_once[~hidden]
    apart = difference(with_cache, at_once)
    padded = "" if hidden is None else ", padded"
    return Finding(apart, f"outputs with a cache differ by {apart:.2g} from those without ({tokens} tokens{padded})")


def both_ways(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the bidirectional form see the future? The value is the share of outputs that do not."""
    if subject.causal:
        raise NotTested("has no bidirectional form")
    asked = positions(ruler(lengths), RULER, 0)
    if not asked:
        raise NotTested("takes no text of several tokens")
    with subject.mode(False):
        shares = future_share(influence(subject, subject.draw(1, ruler(lengths)), asked), asked)
    blind = (shares <= LIMIT).float().mean().item()
    return Finding(
        blind, f"{100 * blind:.0f} % of the outputs of the bidirectional form see no later token: it is causal"
    )
