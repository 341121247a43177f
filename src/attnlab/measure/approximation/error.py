"""How far a mechanism lies from exact attention on the same queries, keys and values, over the options that trade cost for it.

Two errors, both relative in the Frobenius norm: of the output, and of the pattern. Beside every mechanism stands the trivial
answer, the mean of the values that may be seen; beside one of few rows or features also the nearest pattern of that rank,
which no choice of rows can beat (a causal form can: hiding the future adds rank). Knows no mechanism by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import ops
from attnlab.measure.approximation.forms import Key, Setting, learned_parts, make, settings_of, work
from attnlab.measure.approximation.samples import Drawn, Source, alone, chance, seeded
from attnlab.registry import Entry
from attnlab.taps import capture

EXACT = 1e-5  # an error below this is rounding
REFERENCE_DRAWS = 8  # decompositions are slow, and hardly differ from draw to draw
MEAN, BEST, PROJECTED = "mean", "best of the rank", "random projection"
What = Literal["output", "pattern"]
WHATS: tuple[What, ...] = ("output", "pattern")
Pair = tuple[Tensor, Tensor]  # an output and a pattern, or their errors
Luck = tuple[int, int]  # a seed, and the number of the draw


@dataclass(frozen=True)
class Row:
    """An error over the draws: of one form (or of what it is compared with) at one value of a knob, on one sample."""

    sample: str
    knob: str
    value: int
    form: str
    what: What
    median: float
    low: float  # a tenth of the draws lie below
    high: float  # a tenth of the draws lie above
    mean: float
    std: float
    draws: int
    work: float | None  # multiplications, exact attention being 1


@dataclass(frozen=True)
class Nearness:
    """All errors of a mechanism."""

    name: str
    weights: str
    cost: str
    source: str
    causal: bool
    draws: int
    samples: tuple[str, ...]
    knobs: tuple[str, ...]
    forms: tuple[str, ...]
    untrained: tuple[str, ...]  # learned parts beyond the projections, measured as they start
    rows: tuple[Row, ...]

    def find(self, what: What, sample: str, form: str, knob: str | None = None) -> list[Row]:
        """A curve, or the one number of what has no knob."""
        return [
            row
            for row in self.rows
            if (row.what, row.sample, row.form) == (what, sample, form) and (knob is None or row.knob == knob)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@torch.no_grad()
@alone
def measure(entry: Entry, source: Source, draws: int = 32, seed: int = 0) -> Nearness:
    """The errors over some draws; each draws new samples and, where it is random, a new mechanism."""
    settings = worth_it(entry, source, list(settings_of(entry, source)), seed)
    errors: dict[Key, list[Pair]] = {}
    for number in range(draws):
        drawn = source.draw(number)
        exact = attended(ops.attention_pattern(drawn.q, drawn.k, source.mask), drawn.v)
        found = answers(entry, source, settings, drawn, exact, (seed, number))
        if number < REFERENCE_DRAWS:
            found = itertools.chain(found, references(entry, source, settings, drawn, exact, (seed, number)))
        for key, answer in found:
            pair = relative(answer[0], exact[0]), relative(answer[1], exact[1])
            errors.setdefault(key, []).append(pair)
    works = {setting.key: work(entry, source, setting) for setting in settings}
    rows = [
        row(sample, key, what, torch.stack([pair[side] for pair in pairs])[:, place], works.get(key))
        for key, pairs in errors.items()
        for side, what in enumerate(WHATS)
        for place, sample in enumerate(source.names)
    ]
    forms = tuple(dict.fromkeys(setting.key[0] for setting in settings))
    return Nearness(
        entry.name,
        entry.weights,
        entry.cost,
        source.words,
        source.causal,
        draws,
        source.names,
        entry.knobs,
        forms,
        learned_parts(make(entry, source, settings[0].options)),
        tuple(rows),
    )


def worth_it(entry: Entry, source: Source, settings: list[Setting], seed: int) -> list[Setting]:
    """The settings up to the first that is exact: more of the same would be exact too."""
    kept: list[Setting] = []
    done: set[tuple[Any, str]] = set()
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)
    for setting in settings:
        if (setting.form, setting.knob) in done:
            continue
        kept.append(setting)
        _, pattern = look(entry, source, setting, drawn, (seed, 0))
        if (relative(pattern, exact) < EXACT).all():
            done.add((setting.form, setting.knob))
    return kept


def answers(
    entry: Entry, source: Source, settings: list[Setting], drawn: Drawn, exact: Pair, luck: Luck
) -> Iterator[tuple[Key, Pair]]:
    """Output and pattern of the mean, and of the mechanism at all settings."""
    yield (MEAN, "", 0), attended(plain_mean(source).expand_as(exact[1]), drawn.v)
    for setting in settings:
        yield setting.key, look(entry, source, setting, drawn, luck)


def references(
    entry: Entry, source: Source, settings: list[Setting], drawn: Drawn, exact: Pair, luck: Luck
) -> Iterator[tuple[Key, Pair]]:
    """Output and pattern of what bounds a pattern of few rows or features, and of the theorem behind few rows."""
    if entry.weights not in ("low rank", "kernel"):
        return
    parts = tuple(torch.linalg.svd(exact[1], full_matrices=False))
    generator = seeded("projection", *luck)
    for knob, rank in ranks_of(settings, source):
        yield (BEST, knob, rank), attended(truncated(parts, rank), drawn.v)
        if entry.weights == "low rank":
            yield (PROJECTED, knob, rank), attended(projected(exact[1], rank, generator), drawn.v)


def ranks_of(settings: list[Setting], source: Source) -> list[tuple[str, int]]:
    """The ranks to compare with: those of the knob; without one, the width, which is the rank of products of features."""
    ranks = dict.fromkeys((setting.knob, setting.value if setting.knob else source.width) for setting in settings)
    return [(knob, rank) for knob, rank in ranks if rank <= source.tokens]


def look(entry: Entry, source: Source, setting: Setting, drawn: Drawn, luck: Luck) -> Pair:
    """Output and pattern of a mechanism made anew, its random parts from the seed and the number of the draw."""
    with chance("mechanism", *luck):
        module = make(entry, source, setting.options)
    with capture(module, "hook_pattern") as seen:
        z = module.dispatch(*drawn, None)
    return z, seen["hook_pattern"]


def attended(pattern: Float[Tensor, "S H T T"], v: Float[Tensor, "S H T C"]) -> Pair:
    """What a pattern makes of values, and the pattern."""
    return pattern @ v, pattern


def plain_mean(source: Source) -> Float[Tensor, "1 1 T T"]:
    """The pattern that answers the mean of all values that may be seen."""
    return ops.masked_softmax(torch.zeros(1, 1, source.tokens, source.tokens), source.mask)


def truncated(parts: tuple[Tensor, Tensor, Tensor], rank: int) -> Tensor:
    """The nearest matrix of a rank (Eckart and Young), from the singular value decomposition."""
    u, s, vh = parts
    return (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]


def projected(pattern: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """The pattern through a random projection of its columns, P·RᵀR: the step that Linformer's theorem rests on."""
    random = torch.randn(rank, pattern.shape[-1], generator=generator) * rank**-0.5
    return (pattern @ random.T) @ random


def relative(found: Float[Tensor, "S H T C"], exact: Float[Tensor, "S H T C"]) -> Float[Tensor, " S"]:
    """The Frobenius norm of the difference over that of the exact one, for every sample."""
    return (found - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)


def row(sample: str, key: Key, what: What, errors: Float[Tensor, " N"], work: float | None) -> Row:
    """The errors of all draws in a few numbers."""
    form, knob, value = key
    low, median, high = errors.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    spread = errors.std().item() if len(errors) > 1 else 0.0
    return Row(
        sample, knob, value, form, what, median, low, high, errors.mean().item(), spread, draws=len(errors), work=work
    )
