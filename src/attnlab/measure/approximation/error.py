"""Distance of a mechanism from exact attention on the same queries, keys and values, over the options that trade cost for it.

Two relative errors in the Frobenius norm: of the output, and of the pattern. Every mechanism is compared with the trivial
answer, the mean of the values that may be seen; one of few rows or features also with the nearest pattern of that rank,
which no choice of rows can beat (a causal form can: hiding the future adds rank). Of random features, the error of one
weight is compared with its closed form. Learned parts are measured at their initial values, fitted to exact attention on
other texts, and as a run of the mechanism has trained them.

Knows no mechanism by name: the options that are varied (knobs) are declared in the registry, and the forms are the values of
the options that are a choice among names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab import ops, registry
from attnlab.errors import ConfigError, UserError
from attnlab.inside.taps import capture
from attnlab.kernels.counting import Counter
from attnlab.measure.approximation.samples import QKV, Source, chance, seeded
from attnlab.mechanisms.heads import Attention
from attnlab.registry import Entry

LEVELS = (0.5, 0.2, 0.1, 0.01)  # errors whose rank is reported
EXACT = 1e-5  # an error below this is rounding
_REFERENCE_DRAWS = 8  # decompositions are slow, and hardly differ from draw to draw
MEAN, BEST, PROJECTED = "mean", "best of the rank", "random projection"
FITTED, IN_RUN = "fitted", "trained in the run"
_TEXTS_PER_STEP, _LR = 4, 0.03  # of fitting
What = Literal["output", "pattern"]
WHATS: tuple[What, ...] = ("output", "pattern")
Form = tuple[tuple[str, str], ...]  # options that are a choice among names, with their values
_Points = Float[Tensor, "... C"]
_Pair = tuple[Tensor, Tensor]  # an output and a pattern, or their errors
_Key = tuple[str, str, int]  # form, knob, value


# What is varied


class Setting(NamedTuple):
    """One form of a mechanism at one value of one knob; without a knob, at its defaults."""

    form: Form
    knob: str
    value: int

    @property
    def options(self) -> dict[str, object]:
        """The options of the constructor."""
        return dict(self.form) | ({self.knob: self.value} if self.knob else {})

    @property
    def key(self) -> _Key:
        """The key of its errors, with the form in words."""
        return " ".join(value for _, value in self.form), self.knob, self.value


def _forms_of(entry: Entry) -> list[Form]:
    """Every combination of the options that are a choice among names."""
    choices = [[(option.name, value) for value in option.choices] for option in entry.described() if option.choices]
    return list(itertools.product(*choices))


def require_approximation(entry: Entry) -> None:
    """Refuse a mechanism that does not approximate dot-product attention."""
    if entry.weights == "own":
        every = [registry.find("mechanism", name) for name in registry.names("mechanism")]
        others = ", ".join(one.name for one in every if one.weights not in ("own", "exact"))
        raise UserError(
            f"{entry.name} is not an approximation of dot-product attention: no error to show; these are: {others}"
        )
    if entry.weights == "exact":
        raise UserError(f"{entry.name} weighs as dot-product attention does, given the same queries and keys: no error")


def make(entry: Entry, source: Source, options: Mapping[str, object]) -> Attention:
    """Build a mechanism for the shapes of a source."""
    sizes = (source.heads * source.width, source.heads, source.tokens)
    module = entry.make(sizes, options, causal=source.causal).eval()
    if not isinstance(module, Attention):
        raise UserError(f"{entry.name} is no attnlab.mechanisms.heads.Attention: it has no pattern to look at")
    return module


def settings_of(entry: Entry, source: Source) -> Iterator[Setting]:
    """Every form at doubling values of every knob; if a mechanism refuses a value, at the next one.

    Up to the number of tokens, where exact attention is cheaper; features up to twice that, to show how slowly they gain.
    """
    last = source.tokens * (2 if entry.weights == "kernel" else 1)
    for form in _forms_of(entry):
        if not entry.knobs:
            yield Setting(form, "", 0)
        for knob in entry.knobs:
            value = 2
            while value <= last:
                for near in (value, value + 1):
                    setting = Setting(form, knob, near)
                    try:
                        make(entry, source, setting.options)
                    except ConfigError:
                        continue
                    yield setting
                    break
                value *= 2


def settings_until_exact(entry: Entry, source: Source, seed: int) -> list[Setting]:
    """The settings of a sweep up to the first that is exact: larger values would be exact too."""
    kept: list[Setting] = []
    done: set[tuple[Form, str]] = set()
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)
    for setting in settings_of(entry, source):
        if (setting.form, setting.knob) in done:
            continue
        kept.append(setting)
        _, pattern = attend(entry, source, setting, drawn, seed, 0)
        if (relative(pattern, exact) < EXACT).all():
            done.add((setting.form, setting.knob))
    return kept


@torch.no_grad()
def work(entry: Entry, source: Source, module: Attention) -> float:
    """Work relative to exact attention: pairs attended to, or FLOPs of the fast path over those of the fused kernel."""
    # Zeros: every weight is seen, and none rounds away.
    blank = QKV(*torch.zeros(3, 1, source.heads, source.tokens, source.width))
    if entry.weights == "sparse":  # at a few hundred tokens the fast path may use all pairs, because that is faster
        with capture(module, "hook_pattern") as seen:
            module.dispatch(*blank, None)
        pairs = source.tokens**2 if source.mask is None else int(source.mask.sum())
        return int((seen["hook_pattern"] > 0).sum()) / (source.heads * pairs)
    with Counter() as exact:
        ops.fused_attention(*blank, None, source.causal)
    with Counter() as own:
        module.fast(*blank, None)
    return own.total / exact.total


# What is measured


@dataclass(frozen=True)
class ErrorRow:
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
class Errors:
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
    untrained: tuple[str, ...]  # learned parts beyond the projections, measured at their initial values
    fit_steps: int
    rows: tuple[ErrorRow, ...]

    def find(self, what: What, sample: str, form: str, knob: str | None = None) -> list[ErrorRow]:
        """A curve, or the single row of a form without a knob."""
        return [
            row
            for row in self.rows
            if (row.what, row.sample, row.form) == (what, sample, form) and (knob is None or row.knob == knob)
        ]

    def label(self, form: str) -> str:
        """A form in words."""
        return form or (f"{self.name}, untrained" if {FITTED, IN_RUN} & set(self.forms) else self.name)


def learned_parts(module: Attention) -> dict[str, nn.Parameter]:
    """The parameters beyond the projections, which queries, keys and values have passed already."""
    return {name: one for name, one in module.named_parameters() if not name.startswith(("heads.", "out."))}


def fit(entry: Entry, source: Source, setting: Setting, place: int, steps: int, seed: int) -> Attention:
    """A mechanism whose learned parts are trained towards exact attention on one sample, on draws that are not measured."""
    with chance("mechanism", seed, 0):
        module = make(entry, source, setting.options)
    optimizer = torch.optim.Adam(learned_parts(module).values(), lr=_LR)
    for step in range(steps):
        numbers = range(_TEXTS_PER_STEP * step, _TEXTS_PER_STEP * (step + 1))
        q, k, v = (torch.stack(part) for part in zip(*(_part(source.teach(n), place) for n in numbers), strict=True))
        exact = ops.attention_pattern(q, k, source.mask) @ v
        optimizer.param_groups[0]["lr"] = _LR * (1 - step / steps)
        optimizer.zero_grad()
        with torch.enable_grad():
            ((module.dispatch(q, k, v, None) - exact).square().sum() / exact.square().sum()).backward()
        optimizer.step()
    return module


def _part(drawn: QKV, place: int) -> QKV:
    return QKV(*(one[place] for one in drawn))


def _trained(
    entry: Entry, source: Source, settings: list[Setting], steps: int, seed: int
) -> dict[_Key, list[Attention]]:
    """Mechanisms with trained parts, one per sample: fitted ones, and those of the run, which has none for the last sample."""
    found: dict[_Key, list[Attention]] = {}
    if steps and learned_parts(make(entry, source, settings[0].options)):
        for setting in settings:
            key = (f"{setting.key[0]} {FITTED}".strip(), *setting.key[1:])
            found[key] = [fit(entry, source, setting, place, steps, seed) for place in range(len(source.names))]
    if source.trained and entry.knobs:
        found[IN_RUN, entry.knobs[0], _size(source.trained[0], entry.knobs[0])] = list(source.trained)
    return found


def _size(module: Attention, knob: str) -> int:
    """The value that a knob has in a module."""
    if isinstance(module, Featured):
        return module.count
    value = getattr(module, knob)
    return len(value) if isinstance(value, Tensor) else int(value)


def _attend_each(modules: list[Attention], drawn: QKV) -> _Pair:
    """Output and pattern of one mechanism per sample; NaN where there are fewer mechanisms than samples."""
    pairs = []
    for place, module in enumerate(modules):
        with capture(module, "hook_pattern") as seen:
            q, k, v = (one[None] for one in _part(drawn, place))
            z = module.dispatch(q, k, v, None)
        pairs.append((z[0], seen["hook_pattern"][0]))
    empty = torch.full_like(pairs[0][0], torch.nan), torch.full_like(pairs[0][1], torch.nan)
    pairs += [empty] * (len(drawn.q) - len(pairs))
    outputs, patterns = zip(*pairs, strict=True)
    return torch.stack(outputs), torch.stack(patterns)


@torch.no_grad()
@chance("alone", 0, 0)  # leaves torch's random numbers as they were
def measure(entry: Entry, source: Source, draws: int = 32, seed: int = 0, fit_steps: int = 0) -> Errors:
    """The errors over some draws; each draws new samples and, if it is random, a new mechanism.

    With `fit_steps`, learned parts are also trained for that many steps, at every setting and for every sample.
    """
    settings = settings_until_exact(entry, source, seed)
    trained = _trained(entry, source, settings, fit_steps, seed)
    mean = ops.masked_softmax(torch.zeros(1, 1, source.tokens, source.tokens), source.mask)
    errors: dict[_Key, list[_Pair]] = {}
    for number in range(draws):
        drawn = source.draw(number)
        pattern = ops.attention_pattern(drawn.q, drawn.k, source.mask)
        output = pattern @ drawn.v
        answers = {(MEAN, "", 0): (mean @ drawn.v, mean.expand_as(pattern))}
        answers |= {setting.key: attend(entry, source, setting, drawn, seed, number) for setting in settings}
        answers |= {key: _attend_each(modules, drawn) for key, modules in trained.items()}
        if number < _REFERENCE_DRAWS:
            bounds = _bounds(entry, source, settings, pattern, seeded("projection", seed, number))
            answers |= {key: (bound @ drawn.v, bound) for key, bound in bounds}
        for key, (its_output, its_pattern) in answers.items():
            errors.setdefault(key, []).append((relative(its_output, output), relative(its_pattern, pattern)))
    works = {setting.key: work(entry, source, make(entry, source, setting.options)) for setting in settings}
    works |= {key: work(entry, source, modules[0]) for key, modules in trained.items()}
    rows = [
        _row(sample, key, what, found, works.get(key))
        for key, pairs in errors.items()
        for side, what in enumerate(WHATS)
        for place, sample in enumerate(source.names)
        if not (found := torch.stack([pair[side] for pair in pairs])[:, place]).isnan().all()
    ]
    return Errors(
        entry.name,
        entry.weights,
        entry.cost,
        source.words,
        source.causal,
        draws,
        source.names,
        entry.knobs,
        forms=tuple(dict.fromkeys([*(setting.key[0] for setting in settings), *(form for form, _, _ in trained)])),
        untrained=tuple(learned_parts(make(entry, source, settings[0].options))),
        fit_steps=fit_steps,
        rows=tuple(rows),
    )


def _bounds(
    entry: Entry, source: Source, settings: list[Setting], exact: Tensor, generator: torch.Generator
) -> Iterator[tuple[_Key, Tensor]]:
    """The nearest patterns of few rows or features, and Linformer's random projections."""
    if entry.weights not in ("low rank", "kernel"):
        return
    u, s, vh = torch.linalg.svd(exact, full_matrices=False)
    # Without a knob, the rank of products of features is the width.
    ranks = dict.fromkeys((setting.knob, setting.value if setting.knob else source.width) for setting in settings)
    for knob, rank in ranks:
        if rank <= source.tokens:
            yield (BEST, knob, rank), (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]  # Eckart and Young
            if entry.weights == "low rank":
                yield (PROJECTED, knob, rank), projected(exact, rank, generator)


def attend(entry: Entry, source: Source, setting: Setting, drawn: QKV, seed: int, number: int) -> _Pair:
    """Output and pattern of a newly built mechanism; its random parts follow from the seed and the number of the draw."""
    with chance("mechanism", seed, number):
        module = make(entry, source, setting.options)
    with capture(module, "hook_pattern") as seen:
        z = module.dispatch(*drawn, None)
    return z, seen["hook_pattern"]


def projected(pattern: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """The pattern through a random projection of its columns, P·RᵀR: the step that Linformer's theorem rests on."""
    random = torch.randn(rank, pattern.shape[-1], generator=generator) * rank**-0.5
    return (pattern @ random.T) @ random


def relative(found: Float[Tensor, "S H T C"], exact: Float[Tensor, "S H T C"]) -> Float[Tensor, " S"]:
    """The Frobenius norm of the difference over that of the exact one, per sample."""
    return (found - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)


def _row(sample: str, key: _Key, what: What, errors: Float[Tensor, " N"], work: float | None) -> ErrorRow:
    form, knob, value = key
    low, median, high = errors.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    std = errors.std().item() if len(errors) > 1 else 0.0
    return ErrorRow(
        sample, knob, value, form, what, median, low, high, errors.mean().item(), std, draws=len(errors), work=work
    )


# The singular values of exact patterns: how close to low rank attention is, on random input and in a trained model.


@dataclass(frozen=True)
class Spectrum:
    """Per sample and rank: singular values over the largest, their cumulative share, and the smallest possible error."""

    source: str
    width: int
    samples: tuple[str, ...]
    values: list[list[float]]
    cumulative: list[list[float]]
    error: list[list[float]]

    def rank_for(self, sample: int, level: float) -> int:
        """The smallest rank at which a pattern can be within this error."""
        return next(rank for rank, error in enumerate(self.error[sample]) if error <= level)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, with the ranks for some errors."""
        ranks = {
            name: {str(level): self.rank_for(number, level) for level in LEVELS}
            for number, name in enumerate(self.samples)
        }
        return {**asdict(self), "rank_for_error": ranks}


@torch.no_grad()
def spectrum(source: Source, draws: int = 8) -> Spectrum:
    """The spectra of the exact patterns, averaged over draws and heads."""
    found = []
    for number in range(draws):
        drawn = source.draw(number)
        found.append(torch.linalg.svdvals(ops.attention_pattern(drawn.q, drawn.k, source.mask)))
    values = torch.stack(found)  # draw, sample, head, rank

    def averaged(x: Tensor) -> list[list[float]]:
        return x.mean(dim=(0, 2)).tolist()

    # The error of the nearest matrix of rank 0, 1, 2 ... is the norm of the singular values that are left out.
    squares = values.double().square().flip(-1).cumsum(-1).flip(-1)
    squares = torch.cat([squares, torch.zeros_like(squares[..., :1])], dim=-1)
    errors = (squares / squares[..., :1]).sqrt()
    return Spectrum(
        source.words,
        source.width,
        source.names,
        averaged(values / values[..., :1]),
        averaged(values.cumsum(-1) / values.sum(-1, keepdim=True)),
        averaged(errors),
    )


# One weight exp(x·y), estimated by random features. The closed forms of the variance are those of the FAVOR+ paper
# (arXiv:2009.14794, lemma 2), relative to exp(x·y)², for independent directions; s = x + y, d = x - y, and the number of
# features counts every sine and every cosine.
#
#     positive         (exp(|s|²) - 1) / features
#     hyperbolic       (exp(|s|²) - 1) (1 - exp(-|s|²)) / features
#     trigonometric    exp(|s|² - 4 x·y) (1 - exp(-|d|²))² / features


KINDS = ("positive", "hyperbolic", "trigonometric")


def feature_variance(kind: str, x: _Points, y: _Points) -> Tensor:
    """The relative variance of one feature; the two of a hyperbolic or trigonometric pair count as two."""
    size = (x + y).square().sum(-1)
    if kind == "positive":
        return size.expm1()
    if kind == "hyperbolic":
        return -size.expm1() * (-size).expm1()
    assert kind == "trigonometric", kind
    return (size - 4 * (x * y).sum(-1)).exp() * (-(x - y).square().sum(-1)).expm1().square()


@runtime_checkable
class Featured(Protocol):
    """A mechanism with features: their logarithms, and their signs unless they are positive."""

    kind: str
    count: int

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The features of queries or keys."""


@dataclass(frozen=True)
class KernelRow:
    """One form on one sample: relative errors of a typical weight, features it needs, and wrong signs."""

    sample: str
    form: str
    features: int
    predicted: float  # median over pairs of the root mean square error, by the closed form
    measured: float
    needed: float  # features for an error of a tenth, by the closed form
    negative_weights: float  # share of all estimates
    negative_sums: float  # share of rows whose weights sum to less than zero


def estimates(module: Featured, q: _Points, k: _Points) -> Float[Tensor, "... M"]:
    """Every feature's contribution to the estimate of exp(x·y), over exp(x·y): its mean is 1 in expectation."""
    (log_q, signs_q), (log_k, signs_k) = module.features(q), module.features(k)
    exponent = (q * k).sum(-1, keepdim=True) / q.shape[-1] ** 0.5
    # A cosine needs its sine; the first member of a hyperbolic pair is an estimate by itself.
    each = (log_q + log_k - exponent).exp() * (2 if module.kind == "trigonometric" else 1)
    return each if signs_q is None or signs_k is None else each * signs_q * signs_k


def _sums_of(module: Featured, q: _Points, k: _Points) -> tuple[Tensor, Tensor]:
    """The estimated weights of all pairs, up to a scale per row, and their sums."""
    (log_q, signs_q), (log_k, signs_k) = module.features(q), module.features(k)
    left = (log_q - log_q.amax(-1, keepdim=True)).exp()
    right = (log_k - log_k.amax(dim=(-2, -1), keepdim=True)).exp()
    if signs_q is not None and signs_k is not None:
        left, right = left * signs_q, right * signs_k
    weights = left @ right.transpose(-2, -1)
    return weights, weights.sum(-1)


@torch.no_grad()
@chance("alone", 0, 0)  # leaves torch's random numbers as they were
def kernel_rows(entry: Entry, source: Source, features: int = 64, draws: int = 32, seed: int = 0) -> list[KernelRow]:
    """The error of a weight for every form and sample, measured and in closed form; empty for mechanisms without features.

    The closed form holds for independent directions; orthogonal ones may be better. In double precision.
    """
    rows: list[KernelRow] = []
    if entry.weights == "kernel" and entry.knobs:
        for form in _forms_of(entry):
            setting = Setting(form, entry.knobs[0], features)
            if isinstance(make(entry, source, setting.options), Featured):
                rows += _rows_of(entry, source, setting, draws, seed)
    return rows


def _rows_of(entry: Entry, source: Source, setting: Setting, draws: int, seed: int) -> list[KernelRow]:
    squares, negative, lost = [], [], []
    q, k, _ = (part.double() for part in source.draw(0))
    for number in range(draws):
        with chance("kernel", seed, number):
            module = make(entry, source, setting.options).double()
        assert isinstance(module, Featured)
        squares.append((estimates(module, q, k).mean(-1) - 1).square())
        weights, sums = _sums_of(module, q, k)
        negative.append((weights < 0).double().mean(dim=(1, 2, 3)))
        lost.append((sums < 0).double().mean(dim=(1, 2)))
    assert isinstance(module, Featured)
    scale = source.width**-0.25
    law = feature_variance(module.kind, q * scale, k * scale).flatten(1)
    measured = torch.stack(squares).mean(0).sqrt().flatten(1).median(-1).values
    return [
        KernelRow(
            sample,
            setting.key[0],
            module.count,
            (law[place] / module.count).sqrt().median().item(),
            measured[place].item(),
            100 * law[place].median().item(),
            torch.stack(negative)[:, place].mean().item(),
            torch.stack(lost)[:, place].mean().item(),
        )
        for place, sample in enumerate(source.names)
    ]
