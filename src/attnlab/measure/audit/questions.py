"""The questions of an audit: does it see the future, hidden tokens or other texts; is it repeatable; do layers share weights?

Every question takes a subject and the lengths it runs at, and returns the worst finding.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from attnlab.inside.taps import capture, taps_of
from attnlab.measure.audit.leaks import (
    LIMIT,
    RULER,
    Finding,
    Setting,
    difference,
    few,
    future_leak,
    future_leak_at_all_cuts,
    future_share,
    gradient_leak,
    gradient_of,
    influence,
    left_padding,
    moved,
    not_long,
    positions,
    relative,
    replace_tokens,
    ruler,
    settings,
    size_of,
    worst,
)
from attnlab.measure.audit.subject import NotTested, Subject
from attnlab.report.words import plural

# The future

_ALL_CUTS = 150  # tokens up to which every cut is tested at every length; beyond, at the longest only


def _must_be_causal(subject: Subject) -> None:
    if not subject.causal:
        raise NotTested("may see the future")


def responds(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the output depend on the input at all? Otherwise every other answer would be meaningless."""
    shares = []
    for tokens in lengths:
        with subject.mode(False):
            y = subject.run(subject.draw(2, tokens))
            steps = moved(y, subject.run(subject.draw(2, tokens, seed=500)))
        shares.append((steps > 0).float().mean().item())
    return Finding(1 - max(shares), "the output does not depend on the input: there is nothing to audit")


def future(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Do earlier outputs change when later tokens do?"""
    _must_be_causal(subject)
    ticks = ruler(lengths)
    chosen = [*settings(subject, few(lengths))]
    if "padding" in subject.takes:
        chosen += [
            Setting(tokens, training=mode, padded=True) for tokens in {ticks, max(lengths)} for mode in (False, True)
        ]
    leaks = [_future_at(subject, setting, setting.tokens == ticks) for setting in chosen]
    closely = [tokens for tokens in lengths if tokens > 1 and (tokens <= _ALL_CUTS or tokens == max(lengths))]
    leaks += [_future_at_all_cuts(subject, Setting(tokens, rows=1)) for tokens in closely]
    return worst(leaks)


def _future_at_all_cuts(subject: Subject, setting: Setting) -> Finding:
    return _worst_leak(future_leak_at_all_cuts(subject, setting), range(setting.tokens - 1), setting)


def _worst_leak(leaks: Tensor, cuts: Sequence[int], setting: Setting) -> Finding:
    row, place = divmod(int(leaks.argmax()), setting.tokens)
    later = f"tokens {cuts[row] + 1} and later change" if cuts[row] + 2 < setting.tokens else "the last token changes"
    return Finding(
        leaks.max().item(), f"output {place} moves by {leaks.max():.2g} of its range when {later} ({setting})"
    )


def _future_at(subject: Subject, setting: Setting, by_position: bool) -> Finding:
    cuts = positions(setting.tokens, 8 if setting.norm == 1 else 4, setting.seed + 3 * setting.training)
    if not cuts:
        return Finding(0.0, "", (0.0,) if by_position else ())
    leaks = future_leak(subject, setting, cuts)
    return replace(_worst_leak(leaks, cuts, setting), by_position=tuple(leaks.amax(0).tolist()) if by_position else ())


def gradient(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does a gradient flow from an output to later tokens?"""
    _must_be_causal(subject)
    ticks = ruler(lengths)
    return worst(
        _gradient_at(subject, setting, setting.tokens == ticks)
        for setting in settings(subject, lengths)
        if setting.norm == 1 or (setting.tokens == ticks and not setting.training)
    )


def _gradient_at(subject: Subject, setting: Setting, by_position: bool) -> Finding:
    most = RULER if setting.tokens <= RULER and setting.norm == 1 else 12
    asked = positions(setting.tokens, most, 7 + setting.seed + setting.training)
    if not asked:
        return Finding(0.0, "", (0.0,) if by_position else ())
    shares = gradient_leak(subject, setting, asked)
    row = int(shares.argmax())
    says = f"{100 * shares.max():.3g} % of the gradient of output {asked[row]} falls on later tokens ({setting})"
    sizes = [0.0] * setting.tokens
    for position, share in zip(asked, shares.tolist(), strict=True):
        sizes[position] = share
    return Finding(shares.max().item(), says, tuple(sizes) if by_position else ())


def prefix(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Is the output of the beginning of a text the beginning of the output, in both modes and at every length?"""
    _must_be_causal(subject)
    whole = (Setting(max(lengths), training=training, rows=1 if training else 2) for training in (False, True))
    return worst(leak for setting in whole for leak in _prefix_at(subject, setting, lengths))


def _prefix_at(subject: Subject, setting: Setting, lengths: Sequence[int]) -> Iterator[Finding]:
    x = subject.draw(setting.rows, setting.tokens)
    with subject.mode(setting.training):
        y = subject.run(x).detach()
        for kept in (tokens for tokens in lengths if tokens < setting.tokens):
            apart = difference(y[:, :kept], subject.run(x[:, :kept]).detach())
            first = "first token" if kept == 1 else f"first {kept} tokens"
            words = f"the outputs of the {first} differ by {apart:.2g} when more follow ({setting})"
            yield Finding(apart, words)


def cache(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does a text read piece by piece, with a cache, give the same outputs as read at once?"""
    _must_be_causal(subject)
    subject.new_cache()
    with subject.mode(False):
        return worst(
            _cached_at(subject, tokens, pieces, hidden, seed)
            for seed, tokens in enumerate(not_long(lengths))
            for pieces in ([1] * min(tokens, 40), [4, 1, 1, 3], [3, 7, 20])
            for hidden in (None, left_padding(2, tokens))
            if hidden is None or "padding" in subject.takes
        )


def _cached_at(subject: Subject, tokens: int, pieces: Sequence[int], hidden: Tensor | None, seed: int) -> Finding:
    """One text: first everything before the pieces, then the pieces."""
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
    return Finding(
        apart, f"outputs with a cache differ by {apart:.2g} from those without ({plural(tokens, 'token')}{padded})"
    )


def bidirectional(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the bidirectional form see the future? The value is the share of outputs that do not."""
    if subject.causal:
        raise NotTested("has no bidirectional form")
    asked = positions(ruler(lengths), RULER, 0)
    if not asked:
        raise NotTested("accepts no text of several tokens")
    with subject.mode(False):
        shares = future_share(influence(subject, subject.draw(1, ruler(lengths)), asked), asked)
    blind = (shares <= LIMIT).float().mean().item()
    return Finding(
        blind, f"{100 * blind:.0f} % of the outputs of the bidirectional form see no later token: it is causal"
    )


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


def padding(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the content of hidden tokens affect others?"""
    _must_take_padding(subject)
    chosen = [setting for setting in settings(subject, not_long(lengths)) if setting.tokens > 1]
    return worst(leak for setting in chosen for leak in _padding_at(subject, setting))


def _padding_at(subject: Subject, setting: Setting) -> Iterator[Finding]:
    hidden = _hidden_tokens(setting.tokens, setting.seed)
    steps = _padding_leak(subject, setting, hidden)
    place, size = int(steps.argmax()), steps.max().item()
    words = f"output {place} moves by {size:.2g} of its range when hidden tokens change"
    yield Finding(size, f"{words} ({_CONVENTION}; {setting})")
    if setting.norm == 1 and setting.tokens <= RULER:
        with suppress(NotTested):
            share = _padding_gradient(subject, setting, hidden)
            words = f"{100 * share:.3g} % of the gradient falls on hidden tokens"
            yield Finding(share, f"{words} ({_CONVENTION}; {setting})")


def _padding_leak(subject: Subject, setting: Setting, hidden: Tensor) -> Tensor:
    """How much every output that counts moves (T) when hidden tokens become larger ones."""
    x = subject.draw(len(hidden), setting.tokens, setting.norm, setting.seed)
    anew = subject.draw(len(hidden), setting.tokens, setting.norm, setting.seed + 500)
    other = replace_tokens(subject, x, hidden, setting, number=1)
    with subject.mode(setting.training):
        y, free, after = (subject.run(rows, padding=hidden).where(~hidden[..., None], 0) for rows in (x, anew, other))
    return relative(moved(y, after), moved(y, free), size_of(y))


def _padding_gradient(subject: Subject, setting: Setting, hidden: Tensor) -> float:
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
    """Do the texts of a batch affect each other?"""
    return worst(
        leak
        for setting in settings(subject, not_long(lengths))
        if setting.norm == 1
        for leak in _batch_at(subject, setting)
    )


def _batch_at(subject: Subject, setting: Setting) -> Iterator[Finding]:
    """The first text in a batch with others, with larger ones, with padded ones, and alone; then two texts in one row."""
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
    if subject.causal and setting.tokens > 2:
        with suppress(NotTested):
            yield _packed_at(subject, setting)


def _packed_at(subject: Subject, setting: Setting) -> Finding:
    """Two texts in one row: does one move when the other changes?"""
    tokens = setting.tokens
    whole, cut = (tokens, tokens // 3) if "documents" in subject.takes else (2 * tokens, tokens)
    x, second = subject.draw(2, whole, seed=setting.seed), torch.arange(whole) >= cut
    documents, sizes = second.long().expand(2, -1), []
    with subject.mode(setting.training):
        y = subject.run_packed(x, documents)
        for others in (second, ~second):
            after = subject.run_packed(replace_tokens(subject, x, others.expand(2, -1), setting, 1), documents)
            sizes.append(difference(y[:, ~others], after[:, ~others]))
    return Finding(max(sizes), f"a text moves by {max(sizes):.2g} when another packed into its row changes ({setting})")


# Repeatable, the same in every mode, and finite


def _pattern_of(subject: Subject, x: Tensor) -> dict[str, Tensor]:
    """The output and the patterns under capture; empty if no layer has a tap for its pattern."""
    module = subject.module
    taps = [] if module is None else [name for name in taps_of(module) if name.endswith("hook_pattern")]
    if module is None or not taps:
        return {}
    with capture(module, taps) as seen:
        seen["output"] = subject.run(x)
    return dict(seen)


def train_eval(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Are outputs and attention the same in train() and eval()?"""
    if subject.module is None:
        raise NotTested("a plain function has no modes")
    return worst(leak for tokens in lengths for leak in _train_eval_at(subject, tokens, tokens in not_long(lengths)))


def _train_eval_at(subject: Subject, tokens: int, closely: bool) -> Iterator[Finding]:
    """One length: outputs, patterns where there are taps, and influences if it is tested closely."""
    x, asked = subject.draw(2, tokens), positions(tokens, 6, tokens) if closely else []
    outputs = []
    for training in (False, True):
        with subject.mode(training):
            seen: dict[str, Tensor] = {"outputs": subject.run(x), **_pattern_of(subject, x)}
            with suppress(NotTested):
                seen["influences"] = influence(subject, x[:1], asked) if asked else torch.zeros(1)
            outputs.append(seen)
    for name in outputs[0]:
        apart = difference(outputs[0][name].detach(), outputs[1][name].detach())
        yield Finding(apart, f"{name} in train() and eval() differ by {apart:.2g} ({plural(tokens, 'token')})")


def repeat(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Does the same text give the same numbers again, whatever the seed, and while its pattern is captured?"""
    return worst(
        leak for setting in settings(subject, lengths) if setting.norm == 1 for leak in _repeat_at(subject, setting)
    )


def _repeat_at(subject: Subject, setting: Setting) -> Iterator[Finding]:
    x = subject.draw(setting.rows, setting.tokens)
    outputs, states = [], []
    with subject.mode(setting.training):
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            outputs.append(subject.run(x).detach())
            states.append(torch.get_rng_state())
        watched = _pattern_of(subject, x)
    apart = max(difference(outputs[0], other) for other in outputs[1:])
    yield Finding(apart, f"the same text gives other outputs the next time, by {apart:.2g} ({setting})")
    seeds = float(torch.equal(states[0], states[1]))
    yield Finding(seeds, f"it seeds torch's global random generator ({setting})")
    if watched:
        apart = difference(outputs[0], watched["output"].detach())
        yield Finding(apart, f"it gives other outputs, by {apart:.2g}, when its pattern is captured ({setting})")


def _count_bad(subject: Subject, x: Tensor, factor: float = 1.0, hidden: Tensor | None = None) -> int:
    """Count NaN and infinite numbers in the outputs and in all gradients."""
    with torch.enable_grad():
        vectors = (subject.vectors(x).detach() * factor).requires_grad_()
        y = subject.run(x, vectors, padding=hidden)
        parameters = [] if subject.module is None else [p for p in subject.module.parameters() if p.requires_grad]
        aim = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        sources = [vectors, *parameters]
        gradients = torch.autograd.grad((y * aim).sum(), sources, allow_unused=True) if y.requires_grad else []
    return sum(int((~tensor.isfinite()).sum()) for tensor in (y, *gradients) if tensor is not None)


def large(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Is everything finite, forward and backward, for inputs of any size?"""

    def at(tokens: int, factor: float, training: bool) -> Finding:
        with subject.mode(training):
            bad = _count_bad(subject, subject.draw(2, tokens), factor)
        return Finding(bad, f"{bad} numbers are NaN or infinite ({Setting(tokens, factor, training)})")

    chosen = {min(lengths), max(not_long(lengths))}
    return worst(at(n, size, train) for n in chosen for size in (0.0, 1.0, 100.0, 1e4) for train in (False, True))


def masked(subject: Subject, lengths: Sequence[int]) -> Finding:
    """Is everything finite, forward and backward, where a token may see no token at all?"""
    _must_take_padding(subject)

    def at(tokens: int, training: bool) -> Finding:
        hidden = left_padding(3, tokens)
        hidden[2] = True
        with subject.mode(training):
            bad = _count_bad(subject, subject.draw(3, tokens), hidden=hidden)
        return Finding(bad, f"{bad} numbers are NaN or infinite where all is hidden ({Setting(tokens, 1, training)})")

    return worst(at(tokens, training) for tokens in not_long(lengths) for training in (False, True))


# Weights that layers share by mistake: one object, or one tensor, in several layers. A head tied to the embedding is fine.


def _layers_of(name: str) -> tuple[str, ...]:
    """The numbers in a dotted name, which identify its layer."""
    return tuple(re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name))


def _in_several_layers(names: Sequence[str], depth: int | None = None) -> bool:
    """Whether names belong to different layers, counting nested layers down to a depth."""
    return len({_layers_of(name)[:depth] for name in names if _layers_of(name)}) > 1


def _shared(module: nn.Module, between_layers: bool) -> list[tuple[str, ...]]:
    """The names of every object with weights in several places, and of every weight in several layers.

    With `between_layers` (a list of layers) only those in several of them: within one, sharing is its author's choice.
    """
    depth = 1 if between_layers else None
    places: defaultdict[object, list[str]] = defaultdict(list)
    for name, part in module.named_modules(remove_duplicate=False):
        if any(True for _ in part.parameters()):
            places[id(part)].append(name)
    shared = [
        tuple(names)
        for names in places.values()
        if len(names) > 1 and (_in_several_layers(names, depth) or not between_layers)
    ]
    inside = tuple(f"{name}." for names in shared for name in names)
    weights: defaultdict[object, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.numel() and not name.startswith(inside):
            weights[parameter.data_ptr()].append(name)
    shared += [tuple(names) for names in weights.values() if _in_several_layers(names, depth)]
    return [names for names in shared if not any(names[0].startswith(f"{above[0]}.") for above in shared)]


def _called_again(module: nn.Module, run: Callable[[], object]) -> list[tuple[str, int]]:
    """Blocks (modules of several with weights) that one pass calls more than once, and how often."""
    counts: Counter[str] = Counter()

    def watch(name: str) -> Callable[..., None]:
        def count(*_: object) -> None:
            counts[name] += 1

        return count

    handles = []
    for name, part in module.named_modules():
        parts = [part for part in part.modules() if part._parameters]
        if name and len(parts) > 1:
            handles.append(part.register_forward_pre_hook(watch(name)))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    again = [(name, number) for name, number in counts.items() if number > 1]
    return [(name, number) for name, number in again if not any(name.startswith(f"{above}.") for above, _ in again)]


def tied(module: nn.Module, run: Callable[[], object] | None = None, between_layers: bool = False) -> Finding:
    """How many objects or weights are used in several places, or only in several layers, and which."""
    shared = _shared(module, between_layers)
    lines = [f"the same weights serve as {_listed(names)}" for names in shared]
    if run is not None and not shared:
        lines += [f"one pass goes {number} times through {name}" for name, number in _called_again(module, run)]
    return Finding(len(lines), "; ".join(_first(lines, 3)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_first(list(names), 4))


def _first(items: list[str], most: int) -> Iterator[str]:
    """The first few, and how many more there are."""
    yield from items[:most]
    if len(items) > most:
        yield f"{len(items) - most} more"
