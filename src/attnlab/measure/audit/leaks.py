"""Sizes of leaks, as pure functions of a subject: by changing tokens, and by gradients.

The size of a leak lies between 0 and 1. What a change moves is compared with what redrawing the whole input moves, so that
neither small inputs nor a large constant in the output hide a leak; of a gradient it is the share of the tokens that must
not be seen. A change within rounding is no leak; its size is then given relative to the outputs. How a module rounds is
measured: tokens that hardly change move an output along a straight line, and what departs from the line is rounding.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from attnlab.measure.audit.subject import NotTested, Subject
from attnlab.report.words import plural

LIMIT = 1e-6  # of a leak: rounding in float32 stays below
SAME = 1e-5  # of two ways to compute the same numbers, which round differently
_SCALES = (1.0, 10.0, 0.0)  # of replacement tokens; a maximum over the text must meet larger ones
_SMALL = 1e-6  # of a token: the smallest change that float32 holds
_ROUNDING = 10.0  # times the rounding that was measured
_COPIES = 8
_PAIRS = 2**19  # rows x tokens x tokens that one backward pass may hold
_PAIRS_FORWARD = 2**20  # the same for a pass without gradients
_OPPOSITE = (-2.0, -3.0, -0.5)  # factors of a token: a change that neither an even function nor a ReLU can miss
_NUMBERS = 2**24  # rows x tokens x width that one pass may hold


@dataclass(frozen=True)
class Setting:
    """The conditions of one measurement."""

    tokens: int
    norm: float = 1.0
    training: bool = False
    rows: int = 2
    seed: int = 0
    padding: Tensor | None = None  # which tokens of the rows are hidden; a mask that hides nothing may change the path
    condition: str = ""  # of the subject

    def __str__(self) -> str:
        scale = "" if self.norm == 1 else f", inputs x {self.norm:g}"
        padded = "" if self.padding is None else ", padding given"
        condition = f", {self.condition}" if self.condition else ""
        return f"{plural(self.tokens, 'token')}{scale}{padded}{condition}, {'train()' if self.training else 'eval()'}"


def difference(first: Tensor, other: Tensor) -> float:
    """The largest distance between two tensors, relative to the largest number in them; 1 where only one is finite."""
    both = first.isfinite() & other.isfinite()
    if (first.isfinite() != other.isfinite()).any():
        return 1.0
    first, other = first.where(both, 0), other.where(both, 0)
    if not first.numel():
        return 0.0
    size = max(first.abs().max().item(), other.abs().max().item())
    return min((first - other).abs().max().item() / max(size, 1e-30), 2.0)


def steps_between(before: Tensor, after: Tensor) -> Tensor:
    """How far every output moves (B T); outputs that were not finite before are ignored."""
    steps = (after - before).abs().nan_to_num(nan=1e30, posinf=1e30).where(before.isfinite(), 0)
    return steps.detach().amax(2)


def moved(before: Tensor, after: Tensor) -> Tensor:
    """How far the output at every position moves (T), in the text where it moves most."""
    return steps_between(before, after).amax(0)


def size_of(y: Tensor) -> Tensor:
    """The largest number in the outputs."""
    return y.detach().nan_to_num(0, 0, 0).abs().max()


def replace_tokens(subject: Subject, x: Tensor, where: Tensor, setting: Setting, number: int) -> Tensor:
    """Other tokens where `where` (B T) is True; in turns of the same size, ten times larger, or zero."""
    other = subject.draw(x.shape[0], x.shape[1], setting.norm, 1000 + 10 * setting.seed + number)
    if subject.reads_ids:
        return torch.where(where, other, x)
    return torch.where(where[..., None], _SCALES[number % len(_SCALES)] * other, x)


def rounding(
    subject: Subject, x: Tensor, step: Tensor, padding: Tensor | None = None, seeds: Sequence[int] = (0, 0, 0)
) -> Tensor:
    """How far outputs may depart from a straight line (B T) when tokens change by small steps (B T); seeds add their noise."""
    try:
        vectors = subject.vectors(x).detach()
    except NotTested:
        return torch.zeros(x.shape[:2])
    change = step[..., None] * torch.randn(vectors.shape[-1], generator=torch.Generator().manual_seed(2)).to(vectors)
    low, middle, high = (
        subject.run(x, vectors * (1 + sign * change), padding, seed=seed).detach()
        for sign, seed in zip((-1, 0, 1), seeds, strict=True)
    )
    return _ROUNDING * (low - 2 * middle + high).abs().amax(2).nan_to_num(0, 0, 0)


def run_freely(subject: Subject, setting: Setting, x: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of a text, and how far they move when all of it is drawn anew (T)."""
    anew = subject.draw(len(x), setting.tokens, setting.norm, setting.seed + 500)
    y, other = (subject.run(text, padding=setting.padding) for text in (x, anew))
    return y, moved(y, other)


def leak_into(
    subject: Subject, setting: Setting, x: Tensor, changed: Tensor, where: Tensor, y: Tensor, freely: Tensor
) -> Tensor:
    """The share of its range by which every other output moves (B T) when the tokens in `where` (B T) change.

    A leak is compared with rounding once; after that the subject is known to leak.
    """
    kind = "hidden" if where is setting.padding else "later"
    watched = ~where if setting.padding is None else ~where & ~setting.padding

    def share(steps: Tensor) -> Tensor:
        size = size_of(y)
        free = torch.where(steps <= LIMIT * size, size, torch.maximum(freely, steps))
        return (steps / free.clamp_min(1e-30)).clamp_max(1.0).where(watched, 0)

    leaks = share(steps_between(y, subject.run(changed, padding=setting.padding)))
    if leaks.max() <= LIMIT or kind in subject.confirmed:
        return leaks
    # In doubt, copies of a text are compared with copies: they round alike, draw the same numbers, and show nothing new.
    rows = leaks.amax(1).argmax().expand(_COPIES) if len(x) < len(changed) else slice(None)
    watched = watched[rows]
    texts = x.expand_as(changed)[rows], changed[rows]
    steps = steps_between(*(subject.run(text, padding=setting.padding) for text in texts))
    # Tokens change so that the outputs move as far; then only those in question, in the last bit of 16-bit numbers.
    most = 1e-3 / max(1.0, setting.norm) ** 0.5
    small = [share(steps).max().clamp(_SMALL, most).expand(watched.shape)]
    small += [] if subject.condition == "repeated tokens" else [most * (~watched).float()]
    for text, step in product(texts, small):
        limits = rounding(subject, text, step, setting.padding).where(watched, 0)
        steps = steps.where(steps > limits.amax(1, keepdim=True), 0)
    subject.confirmed.update([kind] if share(steps).max() > LIMIT else [])
    return leaks if kind in subject.confirmed else torch.zeros_like(leaks)


def future_leak(subject: Subject, setting: Setting, cuts: Sequence[int]) -> Tensor:
    """How much every output moves (cuts T) when the tokens after a cut change; zero after the cut, where it may.

    One cut at a time: the readable reference of `future_leak_at_all_cuts`.
    """
    x = subject.draw(setting.rows, setting.tokens, setting.norm, setting.seed)
    leaks = torch.zeros(len(cuts), setting.tokens)
    with subject.mode(setting.training):
        y, freely = run_freely(subject, setting, x)
        for row, cut in enumerate(cuts):
            later = (torch.arange(setting.tokens) > cut).expand(setting.rows, -1)
            changed = replace_tokens(subject, x, later, setting, row + cut)
            leaks[row] = leak_into(subject, setting, x, changed, later, y, freely).amax(0)
    return leaks


def future_leak_at_all_cuts(subject: Subject, setting: Setting) -> Tensor:
    """The same for every cut of one text (T-1 T): each row of a batch is the text with the tokens after one cut changed."""
    tokens = setting.tokens
    x = subject.draw(1, tokens, setting.norm, setting.seed)
    leaks = torch.zeros(tokens - 1, tokens)
    with subject.mode(setting.training):
        y, freely = run_freely(subject, setting, x)
        at_once = max(1, min(_PAIRS_FORWARD // tokens**2, _NUMBERS // max(x.numel(), y.numel())))
        for cuts in torch.arange(tokens - 1).split(at_once):
            later = torch.arange(tokens) > cuts[:, None]
            changed = opposite_tokens(subject, x, cuts, later)
            leaks[cuts] = leak_into(subject, setting, x, changed, later, y, freely).to(leaks)
    return leaks


def opposite_tokens(subject: Subject, x: Tensor, cuts: Tensor, later: Tensor) -> Tensor:
    """Copies of one text, one per cut, in which every later token differs: with its sign flipped, or another id."""
    if subject.reads_ids:
        return torch.where(later, (x + 1 + cuts[:, None] % max(1, subject.width - 1)) % subject.width, x)
    factors = torch.tensor(_OPPOSITE, dtype=x.dtype)[cuts % len(_OPPOSITE)]
    return torch.where(later[..., None], factors[:, None, None] * x, x)


def influence(subject: Subject, x: Tensor, asked: Sequence[int], seed: int = 0, step: float = 0.0) -> Tensor:
    """How strongly every input token acts on each output asked for (asked T): the norm of a gradient.

    The gradient is that of the output's component in a random direction, which no dependence escapes. `x` is one
    text (1 T ...); copies of it in a batch serve several outputs at once. Text and direction are changed by a `step`.
    """
    norms = []
    tokens = x.shape[1]
    at_once = max(1, min(_PAIRS // tokens**2, _NUMBERS // (tokens * subject.width)))
    for begin in range(0, len(asked), at_once):
        positions = torch.tensor(asked[begin : begin + at_once])
        copies = x.expand(len(positions), *x.shape[1:]).contiguous()
        with torch.enable_grad():
            vectors = (subject.vectors(copies).detach() * (1 + step)).requires_grad_()
            y = subject.run(copies, vectors)
            direction, other = torch.randn(2, y.shape[-1], generator=torch.Generator().manual_seed(seed)).to(y.dtype)
            direction = direction + step * other
            outputs = (y[torch.arange(len(positions)), positions] @ direction).sum()
        gradient = torch.autograd.grad(outputs, vectors, allow_unused=True)[0] if outputs.requires_grad else None
        if gradient is None:
            raise NotTested("no gradient flows from output to input")
        norms.append(gradient.norm(dim=-1))
    return torch.cat(norms).nan_to_num(0, 0, 0)


def future_share(influences: Tensor, asked: Sequence[int]) -> Tensor:
    """The share of later tokens in what acts on each output: the strongest of them (asked)."""
    later = torch.arange(influences.shape[1]) > torch.tensor(asked)[:, None]
    future = influences.where(later, 0).amax(1)
    allowed = influences.where(~later, 0).amax(1)
    # If almost nothing acts on an output, its share would be noise.
    return future / (future + allowed).clamp_min(1e-12 * influences.max().item() + 1e-30)


def future_gradient(subject: Subject, setting: Setting, asked: Sequence[int]) -> Tensor:
    """The share of later tokens in the gradient of each output asked for (asked), beyond rounding."""
    x, step = (
        subject.draw(1, setting.tokens, setting.norm, setting.seed),
        max(1e-4 / max(1.0, setting.norm) ** 2, _SMALL),
    )
    with subject.mode(setting.training):
        shares = future_share(influence(subject, x, asked, setting.seed), asked)
        if shares.max() <= LIMIT or "gradient" in subject.confirmed:
            return shares
        # In doubt, all rows ask for the same output, so that they tell each other nothing.
        place = [asked[int(shares.argmax())]] * len(asked)
        low, middle, high = (influence(subject, x, place, setting.seed, sign * step) for sign in (-1, 0, 1))
    later = torch.arange(setting.tokens) > place[0]
    limit = _ROUNDING * (low - 2 * middle + high).abs().where(later, 0).amax(1, keepdim=True)
    confirmed = future_share(middle.where(~later | (middle > limit), 0), place)
    subject.confirmed.update(["gradient"] if confirmed.max() > LIMIT else [])
    return shares if "gradient" in subject.confirmed else torch.zeros_like(shares)


# Where to look, and the worst finding

_NORMS = (1.0, 0.01, 100.0)
_LONG = 150  # tokens beyond which less is asked
_FEW = (1, 2, 7, 64, _LONG)
RULER = 64  # tokens of the text whose leak is reported by position


@dataclass(frozen=True)
class Finding:
    """The worst result of a check: a number, a description, and for leaks the size at every position."""

    value: float
    says: str
    by_position: tuple[float, ...] = ()


def worst(findings: Iterable[Finding]) -> Finding:
    """The finding with the largest value; sizes by position are the largest of all."""
    every = list(findings)
    if not every:
        raise NotTested("no length that it accepts is long enough")
    longest = max(len(leak.by_position) for leak in every)
    columns = zip(*(leak.by_position for leak in every if len(leak.by_position) == longest), strict=True)
    first = max(every, key=lambda leak: leak.value)
    return Finding(first.value, first.says, tuple(max(column) for column in columns))


def ruler(lengths: Sequence[int]) -> int:
    """The length whose leak is reported by position."""
    return max((tokens for tokens in lengths if tokens <= RULER), default=min(lengths))


def few(lengths: Sequence[int]) -> list[int]:
    """A few of the lengths, for slow checks and those that depend little on length: nearest to _FEW, and the longest."""
    nearest = {max((tokens for tokens in lengths if tokens <= most), default=min(lengths)) for most in _FEW}
    return sorted({*nearest, max(lengths)})


def not_long(lengths: Sequence[int]) -> list[int]:
    """The lengths at which everything is asked; longer ones are for what depends on length."""
    return [tokens for tokens in lengths if tokens <= _LONG] or [min(lengths)]


def settings(subject: Subject, lengths: Sequence[int], norms: Sequence[float] = _NORMS) -> Iterator[Setting]:
    """Every length in both modes, and the shorter ones in every norm; a batch of one in train(), of two in eval()."""
    for tokens in lengths:
        several = not subject.reads_ids and tokens <= max(RULER, min(lengths))
        for number, norm in enumerate(norms if several else norms[:1]):
            for training in (False, True):
                yield Setting(tokens, norm, training, rows=1 if training else 2, seed=number)


def positions(tokens: int, most: int, seed: int) -> list[int]:
    """Positions with a future: all, or about `most`: the ends, the last of every 16 and some at random."""
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
