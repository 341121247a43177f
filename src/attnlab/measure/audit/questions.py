"""The questions of an audit: does it see the future, hidden tokens or other texts; is it repeatable; do layers share weights?

Every question takes a subject and the lengths it runs at, and yields findings; the worst one counts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from attnlab.inside.taps import capture, taps_of
from attnlab.measure.audit.leaks import (
    LIMIT,
    RULER,
    SAME,
    Finding,
    Setting,
    difference,
    few,
    future_gradient,
    future_leak,
    future_leak_at_all_cuts,
    future_share,
    influence,
    leak_into,
    left_padding,
    moved,
    not_long,
    positions,
    replace_tokens,
    rounding,
    ruler,
    run_freely,
    settings,
    size_of,
)
from attnlab.measure.audit.subject import CONDITIONS, NotTested, Subject, dropout_of
from attnlab.report.words import plural

Findings = Iterator[Finding]


def _differ(subject: Subject, x: Tensor, first: Tensor, other: Tensor, words: str, where: object) -> Finding:
    """How far two results differ that should be the same; no more than SAME if that is how the outputs of x round."""
    size = difference(first.detach(), other.detach())
    if size > SAME:
        step = torch.full(x.shape[:2], 1e-3)  # the last bit of numbers of 16 bits changes
        own = rounding(subject, x, step, seeds=(1, 2, 3)).flatten().sort().values
        most = own[int(0.9 * len(own))] / size_of(first).clamp_min(1e-30)  # a few may jump
        size = size if size > most else SAME
    return Finding(size, f"{words}, by {size:.2g} ({where})")


# The future

_ALL_CUTS = 65  # tokens up to which every cut is tested at every length; beyond, at the longest
# Where pieces of a text begin that is read with a cache, from the beginning or the end: single tokens at the end, a few
# pieces, and single tokens where blocks end.
_STARTS = (range(-40, 0), (-9, -5, -4, -3), [place + step for place in (32, 128, 256) for step in (-1, 0, 1)])


def _must_be_causal(subject: Subject) -> None:
    if not subject.causal:
        raise NotTested("may see the future")


def responds(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Does the output depend on the input at all? Otherwise every other answer would be meaningless."""
    shares = []
    for tokens in lengths:
        with subject.mode(False):
            y = subject.run(subject.draw(2, tokens))
            steps = moved(y, subject.run(subject.draw(2, tokens, seed=500)))
        shares.append((steps > 0).float().mean().item())
    yield Finding(1 - max(shares), "the output does not depend on the input: there is nothing to audit")


def future(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Do earlier outputs change when later tokens do?"""
    _must_be_causal(subject)
    ticks = ruler(lengths)
    chosen = [*settings(subject, few(lengths))]
    if "padding" in subject.takes:
        for tokens, training in ((ticks, False), (max(not_long(lengths)), True)):
            hidden = torch.cat([left_padding(1, tokens), _hidden_tokens(tokens, 0)[::2]])
            chosen.append(Setting(tokens, training=training, rows=len(hidden), padding=hidden))
    for setting in chosen:
        cuts = positions(setting.tokens, 8 if setting.norm == 1 else 4, setting.seed + 3 * setting.training)
        if cuts:
            yield _worst_leak(future_leak(subject, setting, cuts), cuts, setting, setting.tokens == ticks)
    for tokens in lengths:
        if 1 < tokens <= _ALL_CUTS or 1 < tokens == max(lengths):
            setting = Setting(tokens, rows=1)
            yield _worst_leak(future_leak_at_all_cuts(subject, setting), range(tokens - 1), setting)
    longer = max(not_long(lengths))
    for condition in CONDITIONS:
        with suppress(Exception):  # a module need not run in other precisions
            other = subject.under(condition)
            for training in (False, True):
                setting = Setting(ticks, 1, training, rows=1, condition=condition)
                yield _worst_leak(future_leak_at_all_cuts(other, setting), range(ticks - 1), setting)
                setting, cuts = replace(setting, tokens=longer), [longer // 2, longer - 2]
                yield _worst_leak(future_leak(other, setting, cuts), cuts, setting)


def _worst_leak(leaks: Tensor, cuts: Sequence[int], setting: Setting, by_position: bool = False) -> Finding:
    row, place = divmod(int(leaks.argmax()), setting.tokens)
    later = f"tokens {cuts[row] + 1} and later change" if cuts[row] + 2 < setting.tokens else "the last token changes"
    words = f"output {place} moves by {leaks.max():.2g} of its range when {later} ({setting})"
    return Finding(leaks.max().item(), words, tuple(leaks.amax(0).tolist()) if by_position else ())


def gradient(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Does a gradient flow from an output to later tokens?"""
    _must_be_causal(subject)
    ticks = ruler(lengths)
    for setting in settings(subject, lengths):
        if setting.norm != 1 and (setting.tokens != ticks or setting.training):
            continue
        most = RULER if setting.tokens <= RULER and setting.norm == 1 else 12
        asked = positions(setting.tokens, most, 7 + setting.seed + setting.training)
        if not asked:
            continue
        shares = future_gradient(subject, setting, asked)
        size, place = shares.max().item(), asked[int(shares.argmax())]
        by_position = shares.new_zeros(setting.tokens if setting.tokens == ticks else 0)
        if setting.tokens == ticks:
            by_position[asked] = shares
        words = f"{100 * size:.3g} % of the gradient of output {place} falls on later tokens ({setting})"
        yield Finding(size, words, tuple(by_position.tolist()))


def prefix(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Is the output of the beginning of a text the beginning of the output, in both modes and at every length?"""
    _must_be_causal(subject)
    for training in (False, True):
        setting = Setting(max(lengths), training=training, rows=1 if training else 2)
        x = subject.draw(setting.rows, setting.tokens)
        with subject.mode(training):
            y = subject.run(x).detach()
            for kept in (tokens for tokens in lengths if tokens < setting.tokens):
                first = "first token" if kept == 1 else f"first {kept} tokens"
                words = f"the outputs of the {first} change when more follow"
                yield _differ(subject, x, y[:, :kept], subject.run(x[:, :kept]), words, setting)


def cache(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Does a text read piece by piece, with a cache, give the same outputs as read at once?"""
    _must_be_causal(subject)
    subject.new_cache()
    with subject.mode(False):
        for seed, tokens in enumerate(sorted({*not_long(lengths), max(lengths)})):
            x = subject.draw(2, tokens, seed=seed)
            for hidden in (None, left_padding(2, tokens)) if "padding" in subject.takes else (None,):
                shown = torch.ones(2, tokens, dtype=torch.bool) if hidden is None else ~hidden
                at_once = subject.run(x, padding=hidden)[shown]
                where = plural(tokens, "token") + ("" if hidden is None else ", padded")
                first = 0  # place of a cut: some must read all padding, and a token of every text, in the first piece
                if hidden is not None and not getattr(subject.call, "splits_padding", True):
                    first = 1 + int(hidden.sum(1).max())
                for starts in _STARTS:
                    places = {start % tokens for start in starts if -tokens < start < tokens}
                    bounds = sorted({0, tokens, *(place for place in places if place >= first)})
                    in_pieces = _run_with_cache(subject, x, bounds, hidden)[shown]
                    yield _differ(subject, x, in_pieces, at_once, "outputs with a cache differ", where)


def _run_with_cache(subject: Subject, x: Tensor, bounds: Sequence[int], hidden: Tensor | None) -> Tensor:
    """The outputs of a text in pieces; another text, with a cache of its own, is read in between."""
    parts, caches = [], (subject.new_cache(), subject.new_cache())
    for begin, end in pairwise(bounds):
        padding = None if hidden is None else hidden[:, :end]
        parts.append(subject.run(x[:, begin:end], padding=padding, cache=caches[0]))
        if hidden is None and len(bounds) < len(_STARTS[0]):
            subject.run(x[:, begin:end].flip(0), padding=padding, cache=caches[1])
    return torch.cat(parts, dim=1)


def bidirectional(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Does the bidirectional form see the future? The value is the share of outputs that do not."""
    if subject.causal:
        raise NotTested("has no bidirectional form")
    asked = positions(ruler(lengths), RULER, 0)
    if not asked:
        raise NotTested("accepts no text of several tokens")
    with subject.mode(False):
        shares = future_share(influence(subject, subject.draw(1, ruler(lengths)), asked), asked)
    blind = (shares <= LIMIT).float().mean().item()
    words = f"{100 * blind:.0f} % of the outputs of the bidirectional form see no later token: it is causal"
    yield Finding(blind, words)


# Hidden tokens, and the texts of a batch

_CONVENTION = "padding is True at hidden tokens"


def _hidden_tokens(tokens: int, seed: int) -> Tensor:
    """Which tokens are hidden (True), in six texts: at the beginning, at the end, here and there."""
    left = left_padding(3, tokens)[1:]
    holes = torch.rand(2, tokens, generator=torch.Generator().manual_seed(seed)) < 0.3
    holes[:, tokens // 2] = True
    return torch.cat([left, left.flip(1), holes])


def _must_take_padding(subject: Subject) -> None:
    if "padding" not in subject.takes:
        raise NotTested("accepts no padding mask")


def padding(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Does the content of hidden tokens affect others?"""
    _must_take_padding(subject)
    for setting in settings(subject, not_long(lengths)):
        if setting.tokens == 1:
            continue
        hidden = _hidden_tokens(setting.tokens, setting.seed)
        setting = replace(setting, rows=len(hidden), padding=hidden)
        x = subject.draw(setting.rows, setting.tokens, setting.norm, setting.seed)
        other = replace_tokens(subject, x, hidden, setting, number=1)  # larger ones
        with subject.mode(setting.training):
            steps = leak_into(subject, setting, x, other, hidden, *run_freely(subject, setting, x)).amax(0)
        place, size = int(steps.argmax()), steps.max().item()
        words = f"output {place} moves by {size:.2g} of its range when hidden tokens change"
        yield Finding(size, f"{words} ({_CONVENTION}; {setting})")
        yield from _weightless(subject, setting, x[-2:], hidden[-2:])


def _weightless(subject: Subject, setting: Setting, x: Tensor, hidden: Tensor) -> Findings:
    """Where an average of equal tokens is the same at all positions, it must be the same with some of them hidden."""
    x = x[:, :1].expand_as(x).contiguous()
    with subject.mode(setting.training):
        y, words = subject.run(x), f"hidden tokens count in an average of equal tokens ({_CONVENTION})"
        if subject.causal and difference(y, y[:, :1].expand_as(y)) <= SAME:
            finding = _differ(subject, x, y[~hidden], subject.run(x, padding=hidden)[~hidden], words, setting)
            yield replace(finding, value=finding.value if finding.value > SAME else 0.0)


def batch(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Do the texts of a batch affect each other: where one of them changes, next to padded ones, and alone?"""
    for setting in settings(subject, not_long(lengths), norms=(1.0,)):
        x = subject.draw(3, setting.tokens, seed=setting.seed)
        with subject.mode(setting.training):
            y = subject.run(x)
            for number in range(len(x)):
                others = torch.arange(len(x)) == number
                where = others[:, None].expand(x.shape[:2])
                after = subject.run(replace_tokens(subject, x, where, setting, number))
                yield _differ(subject, x, y[~others], after[~others], "a text moves when another changes", setting)
            if "padding" in subject.takes:
                after = subject.run(x, padding=left_padding(3, setting.tokens).flip(1))[:1]
                yield _differ(subject, x, y[:1], after, "a text moves when others in its batch are padded", setting)
            yield _differ(subject, x, y[1:2], subject.run(x[1:2]), "a text moves when it is alone", setting)


def packing(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Do two texts in one row affect each other?"""
    _must_be_causal(subject)
    for setting in settings(subject, not_long(lengths), norms=(1.0,)):
        if setting.tokens > 2:
            with subject.mode(setting.training):
                yield from _packed(subject, setting)


def _packed(subject: Subject, setting: Setting) -> Findings:
    """Two texts in one row: does one move when the other changes?"""
    tokens = setting.tokens
    whole, cut = (tokens, tokens // 3) if "documents" in subject.takes else (2 * tokens, tokens)
    x, second = subject.draw(2, whole, seed=setting.seed), torch.arange(whole) >= cut
    documents = second.long().expand(2, -1)
    y = subject.run_packed(x, documents)
    for others in (second, ~second):
        after = subject.run_packed(replace_tokens(subject, x, others.expand(2, -1), setting, 1), documents)
        words = "a text moves when another packed into its row changes"
        yield _differ(subject, x[:, :tokens], y[:, ~others], after[:, ~others], words, setting)


# Repeatable, the same in every mode, and finite


def _captured(subject: Subject, x: Tensor) -> dict[str, Tensor]:
    """The output and the patterns under capture; empty if no layer has a tap for its pattern, or under dropout."""
    module = subject.module
    taps = [] if module is None else [name for name in taps_of(module) if name.endswith("hook_pattern")]
    if module is None or not taps or (module.training and dropout_of(module)):
        return {}
    with capture(module, taps) as seen:
        seen["output"] = subject.run(x)
    return dict(seen)


def train_eval(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Are outputs, captured patterns and, unless the text is long, influences the same in train() and eval()?"""
    if subject.module is None:
        raise NotTested("a plain function has no modes")
    for tokens in lengths:
        x, asked = subject.draw(2, tokens), positions(tokens, 6, tokens) if tokens in not_long(lengths) else []
        modes = []
        for training in (False, True):
            with subject.mode(training):
                seen: dict[str, Tensor] = {"outputs": subject.run(x), **_captured(subject, x)}
                with suppress(NotTested):
                    seen["influences"] = influence(subject, x[:1], asked) if asked else torch.zeros(1)
                modes.append(seen)
        with subject.mode(True):
            alike = difference(modes[0]["outputs"], modes[1]["outputs"]) <= SAME
            for name in modes[1] if alike else ["outputs"]:
                words = f"{name} in train() and eval() differ"
                yield _differ(subject, x, modes[0][name], modes[1][name], words, plural(tokens, "token"))


def repeat(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Does the same text give the same numbers again: after others, with any seed, and while its pattern is captured?

    In train() outputs may depend on the seed, as with dropout.
    """
    layer = subject.under("")
    for setting in settings(subject, lengths, norms=(1.0,)):
        x, other = (subject.draw(setting.rows, setting.tokens, seed=seed) for seed in (0, 1))
        outputs, states, given = [], [], x.clone()
        with subject.mode(setting.training), layer.mode(setting.training):
            for seed in (1, 2, 3, 1):
                outputs.append(subject.run(x, seed=seed).detach())
                states.append(torch.get_rng_state())
                if seed > 1:
                    (subject if seed == 2 else layer).run(other)
            captured = _captured(subject, x)
        yield Finding(float(not torch.equal(x, given)), f"it changes its input in place ({setting})")
        for again in outputs[-1:] if setting.training else outputs[1:]:
            size = difference(outputs[0], again)
            yield Finding(size, f"the same text gives other outputs the next time, by {size:.2g} ({setting})")
        seeds = float(torch.equal(states[0], states[1]))
        yield Finding(seeds, f"it seeds torch's global random generator ({setting})")
        if captured:
            yield _differ(
                subject, x, outputs[0], captured["output"], "outputs change when the pattern is captured", setting
            )


def large(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Is everything finite, forward and backward, for inputs of any size?"""
    chosen = {min(lengths), max(not_long(lengths))}
    for tokens, factor, training in product(chosen, (0.0, 1.0, 100.0, 1e4), (False, True)):
        yield _nonfinite(subject, subject.draw(2, tokens), Setting(tokens, factor, training))


def masked(subject: Subject, lengths: Sequence[int]) -> Findings:
    """Is everything finite, forward and backward, where a token may see no token at all?"""
    _must_take_padding(subject)
    for tokens, training in product(not_long(lengths), (False, True)):
        hidden = left_padding(3, tokens)
        hidden[2] = True
        yield _nonfinite(subject, subject.draw(3, tokens), Setting(tokens, training=training), hidden)


def _nonfinite(subject: Subject, x: Tensor, setting: Setting, hidden: Tensor | None = None) -> Finding:
    """Count NaN and infinite numbers in the outputs and in all gradients."""
    with subject.mode(setting.training), torch.enable_grad():
        vectors = (subject.vectors(x).detach() * setting.norm).requires_grad_()
        y = subject.run(x, vectors, padding=hidden)
        parameters = [] if subject.module is None else [p for p in subject.module.parameters() if p.requires_grad]
        aim = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        sources = [vectors, *parameters]
        gradients = torch.autograd.grad((y * aim).sum(), sources, allow_unused=True) if y.requires_grad else []
    bad = sum(int((~tensor.isfinite()).sum()) for tensor in (y, *gradients) if tensor is not None)
    where, remedy = "", ""
    if hidden is not None:
        where, remedy = " where a token sees no token", "; attnlab.ops.masked_softmax gives zeros there"
    return Finding(bad, f"{bad} numbers are NaN or infinite{where} ({setting}){remedy}")


# Weights that layers share by mistake: one object, or one tensor, in several layers. A head tied to the embedding is fine.


def _in_several_layers(names: Sequence[str], depth: int | None = None) -> bool:
    """Whether names belong to different layers, by the numbers in them; nested layers count down to a depth."""
    layers = (tuple(re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name))[:depth] for name in names)
    return len({numbers for numbers in layers if numbers}) > 1


def _shared(module: nn.Module, between_layers: bool) -> list[list[str]]:
    """The names of every object with weights in several places, and of every weight in several layers.

    With `between_layers` (a list of layers) only those in several of them: within one, sharing is its author's choice.
    """
    depth = 1 if between_layers else None
    places: defaultdict[int, list[str]] = defaultdict(list)
    for name, part in module.named_modules(remove_duplicate=False):
        if next(part.parameters(), None) is not None:
            places[id(part)].append(name)
    several = [names for names in places.values() if len(names) > 1]
    shared = [names for names in several if _in_several_layers(names, depth) or not between_layers]
    inside = tuple(f"{name}." for names in shared for name in names)
    weights: defaultdict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.numel() and not name.startswith(inside):
            weights[parameter.data_ptr()].append(name)
    shared += [names for names in weights.values() if _in_several_layers(names, depth)]
    return [names for names in shared if not any(names[0].startswith(f"{above[0]}.") for above in shared)]


def _called_again(module: nn.Module, run: Callable[[], object]) -> dict[str, int]:
    """Blocks (modules of several with weights) that one pass calls more than once, and how often."""
    blocks = {part: name for name, part in module.named_modules() if name}
    calls: Counter[str] = Counter()

    def count(part: nn.Module, _: object) -> None:
        if len([inner for inner in part.modules() if inner._parameters]) > 1:
            calls[blocks[part]] += 1

    with ExitStack() as hooks:
        for part in blocks:
            hooks.enter_context(part.register_forward_pre_hook(count))
        run()
    again = {name: number for name, number in calls.items() if number > 1}
    return {name: n for name, n in again.items() if not any(name.startswith(f"{above}.") for above in again)}


def tied(module: nn.Module, run: Callable[[], object] | None = None, between_layers: bool = False) -> Finding:
    """How many objects or weights are used in several places, or only in several layers, and which."""
    lines = [f"the same weights serve as {', '.join(_first(names, 4))}" for names in _shared(module, between_layers)]
    if run is not None and not lines:
        lines = [f"one pass goes {number} times through {name}" for name, number in _called_again(module, run).items()]
    return Finding(len(lines), "; ".join(_first(lines, 3)))


def _first(items: Sequence[str], most: int) -> list[str]:
    """The first few, and how many more there are."""
    return [*items[:most], *([f"{len(items) - most} more"] if len(items) > most else [])]
