"""Distance of a mechanism from exact attention, over the option that trades accuracy for cost (its knob).

    measured = examine(registry.find("mechanism", "performer"), random_source())
    measured.rows, measured.spectrum

Queries, keys and values are random, or those of a trained model. The error is that of the output in the Frobenius norm,
relative to the exact output, beside that of the trivial answer, the mean of the values that may be seen. For mechanisms
of few rows or features, the singular values of the exact pattern tell how near a pattern of their rank can be. Learned
parts, such as Linformer's projections, are measured untrained.

Knows no mechanism by name: knobs are declared in the registry, and forms are the values of the options that are a choice
among names.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab import corpora, ops, registry
from attnlab.errors import ConfigError, UserError
from attnlab.inside.taps import capture
from attnlab.lm.model import load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.mechanisms.heads import Attention
from attnlab.registry import Entry
from attnlab.report.document import Axis, Cell, Chart, Column, Document, Row, Section, Series, Table
from attnlab.store.runs import Run, lineage

MEAN, PROJECTED = "mean of the values", "random projection"
LEVELS = (0.5, 0.2, 0.1, 0.01)  # errors whose rank is reported
EXACT = 1e-5  # an error below this is rounding
_TEXTS = 8  # of a run's corpus
_LEAST = 1e-3  # smaller errors are drawn as this one, since a logarithmic axis has no zero
_NO_ERROR = {
    "own": "is not an approximation of dot-product attention",
    "exact": "weighs as dot-product attention does, given the same queries and keys",
}
_CLEARLY = 0.95  # of the mean's error: below this, a mechanism is nearer by more than chance


# Queries, keys and values


class QKV(NamedTuple):
    """Queries, keys and values of one draw, for every sample."""

    q: Float[Tensor, "S H T C"]
    k: Float[Tensor, "S H T C"]
    v: Float[Tensor, "S H T C"]


@dataclass(frozen=True)
class Source:
    """Named samples, drawn as often as needed; all of one shape, and all causal or none."""

    names: tuple[str, ...]
    draw: Callable[[int], QKV]
    heads: int
    tokens: int
    width: int
    causal: bool
    words: str

    @property
    def mask(self) -> Bool[Tensor, "1 1 T T"] | None:
        """Which tokens may see which."""
        return ops.visible(self.tokens, self.tokens, None, self.causal)


@contextmanager
def chance(purpose: str, seed: int = 0, number: int = 0) -> Iterator[None]:
    """Seed torch's own generator per purpose and draw, and restore its state afterwards; also a decorator."""
    digest = hashlib.sha256(f"{purpose} {seed} {number}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest[:6]))
        yield


def random_source(
    spreads: tuple[float, ...] = (0.5, 1.0, 2.0),
    tokens: int = 256,
    width: int = 32,
    causal: bool = False,
    seed: int = 0,
) -> Source:
    """Normal queries and keys of some standard deviations, and standard normal values; samples differ in scale only."""
    if not spreads or min(spreads) <= 0:
        raise UserError("--std takes numbers above 0, such as --std 0.5 --std 2")
    scale = torch.tensor(spreads)[:, None, None, None]

    def draw(number: int) -> QKV:
        with chance("sample", seed, number):
            q, k, v = torch.randn(3, 1, 1, tokens, width)
        return QKV(q * scale, k * scale, v.expand(len(spreads), -1, -1, -1))

    words = (
        f"{tokens} tokens, one head of width {width}, {'causal' if causal else 'bidirectional'}; entries of queries and"
        " keys normal with the std given, entries of values with std 1"
    )
    return Source(tuple(f"std {spread:g}" for spread in spreads), draw, 1, tokens, width, causal, words)


def run_source(folder: Path, seed: int = 0, *, trust_code: bool = False) -> Source:
    """Queries, keys and values of every layer of a trained model on texts of its corpus, and random ones."""
    run = Run.open(folder)
    model, tokenizer = load_model(run.model, trust_code=trust_code)
    others = [name for name in model.config.mechanisms if registry.find("mechanism", name).weights == "own"]
    if others or model.config.bottleneck:
        reason = f"attends by {', '.join(others)}" if others else "has a bottleneck"
        raise UserError(f"{folder} {reason}, so it has no queries and keys to compare: name a run of mechanism dot")
    ids = _texts_of(run, tokenizer, model.config.block_size)
    with torch.no_grad(), capture(model, "") as seen:
        model(ids)
    layers = range(model.config.n_layer)
    q, *shared = (
        torch.stack([seen[f"blocks.{layer}.attn.hook_{name}"].transpose(1, 2) for layer in layers]) for name in "qkv"
    )  # layer, text, head, token, width
    heads, tokens, width = q.shape[2:]
    k, v = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in shared)  # heads may share keys and values

    def draw(number: int) -> QKV:
        with chance("sample", seed, number):
            noise = torch.randn(3, 1, heads, tokens, width)
        texts = (part[:, number % len(ids)] for part in (q, k, v))
        return QKV(*(torch.cat(pair) for pair in zip(texts, noise, strict=True)))

    names = (*(f"layer {layer + 1}" for layer in layers), "random")
    words = (
        f"{folder}: {len(ids)} texts of its corpus, {tokens} tokens each, {heads} heads of width {width}, causal;"
        " random: entries of queries, keys and values normal with std 1"
    )
    return Source(names, draw, heads, tokens, width, True, words)


def _texts_of(run: Run, tokenizer: Tokenizer, block: int) -> Tensor:
    """Some texts of the corpus that a run, or the run it started from, has read, all of one length: no padding."""
    records = [ancestor.record for ancestor in lineage(run) if ancestor.record.corpus]
    if not records or records[0].corpus is None:
        raise UserError(f"{run.path} has read no corpus: name a pretrained run")
    lines = corpora.load_corpus(records[0].corpus.source).lines
    if records[0].running_text:
        ids = [token for line in lines for token in (tokenizer.pad, *tokenizer.encode(line))][: block * _TEXTS]
        block = min(block, len(ids))
        return torch.tensor(ids[: len(ids) // block * block]).view(-1, block)
    longest = sorted(lines, key=len, reverse=True)[: 4 * _TEXTS]
    texts = sorted((tokenizer.encode(line)[:block] for line in longest), key=len, reverse=True)[:_TEXTS]
    return torch.tensor([text[: len(texts[-1])] for text in texts])


# What is varied


class Setting(NamedTuple):
    """One form of a mechanism at one value of one knob; without a knob, at its defaults."""

    form: str  # the values of the options that are a choice among names
    knob: str
    value: int
    options: Mapping[str, object]


def make(entry: Entry, source: Source, options: Mapping[str, object]) -> Attention:
    """Build a mechanism for the shapes of a source."""
    sizes = (source.heads * source.width, source.heads, source.tokens)
    module = entry.make(sizes, options, causal=source.causal).eval()
    if not isinstance(module, Attention):
        raise UserError(f"{entry.name} is no attnlab.mechanisms.heads.Attention: it has no pattern to look at")
    if module.reads_input:
        raise UserError(
            f"{entry.name} reads more from its input than queries, keys and values: look at a trained model"
        )
    return module


def knob_settings(entry: Entry, source: Source, seed: int = 0) -> Iterator[Setting]:
    """Every form at doubling values of every knob, or at the next value if one is refused, until it is exact.

    Up to the number of tokens, where exact attention is cheaper; features up to twice that, to show how slowly they gain.
    """
    choices = [[(option.name, value) for value in option.choices] for option in entry.described() if option.choices]
    last = source.tokens * (2 if entry.weights == "kernel" else 1)
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)
    for chosen in itertools.product(*choices):
        form = " ".join(value for _, value in chosen)
        if not entry.knobs:
            yield Setting(form, "", 0, dict(chosen))
        for knob in entry.knobs:
            error, value = 1.0, 2
            while value <= last and error > EXACT:
                for near in (value, value + 1):
                    setting = Setting(form, knob, near, {**dict(chosen), knob: near})
                    with suppress(ConfigError):  # refused
                        error = relative(attend(entry, source, setting, drawn, seed, 0)[1], exact).max().item()
                        yield setting
                        break
                value *= 2


# What is measured


@dataclass(frozen=True)
class ErrorRow:
    """The error of one form, or of what it is compared with, at one value of a knob, on one sample, over the draws."""

    sample: str
    form: str
    knob: str
    value: int
    median: float
    low: float  # a tenth of the draws lie below
    high: float  # a tenth of the draws lie above
    mean: float
    std: float
    pattern: float  # median error of the pattern


@dataclass(frozen=True)
class Spectrum:
    """Singular values of the exact patterns of one sample, by rank: their cumulative share, and the least error left."""

    sample: str
    cumulative: tuple[float, ...]
    error: tuple[float, ...]  # of the nearest pattern of rank 0, 1, 2 ...

    def rank_for(self, level: float) -> int:
        """The smallest rank at which a pattern can be within this error."""
        return next(rank for rank, error in enumerate(self.error) if error <= level)


@dataclass(frozen=True)
class Approximation:
    """All errors of a mechanism, and the singular values of exact attention if it is one of few rows or features."""

    name: str
    source: str
    draws: int
    samples: tuple[str, ...]
    knobs: tuple[str, ...]
    forms: tuple[str, ...]
    untrained: tuple[str, ...]  # learned parts beyond the projections, measured at their initial values
    rows: tuple[ErrorRow, ...]
    spectrum: tuple[Spectrum, ...]

    def curve(self, sample: str, form: str, knob: str | None = None) -> list[ErrorRow]:
        """The errors of a form over a knob, or its single row."""
        wanted = (sample, form)
        return [row for row in self.rows if (row.sample, row.form) == wanted and knob in (None, row.knob)]


@torch.no_grad()
@chance("alone")  # leaves torch's random numbers as they were
def examine(entry: Entry, source: Source, draws: int = 32, seed: int = 0) -> Approximation:
    """Measure the errors over some draws; each draws new samples and, if it is random, a new mechanism."""
    if entry.weights in _NO_ERROR:
        every = [registry.find("mechanism", name) for name in registry.names("mechanism")]
        others = ", ".join(other.name for other in every if other.weights not in _NO_ERROR)
        raise UserError(f"{entry.name} {_NO_ERROR[entry.weights]}: no error to show; these have one: {others}")
    settings = list(knob_settings(entry, source, seed))
    mean = ops.masked_softmax(torch.zeros(1, 1, source.tokens, source.tokens), source.mask)
    errors: dict[tuple[str, str, int], list[Tensor]] = defaultdict(list)  # by form, knob and value
    for number in range(draws):
        drawn = source.draw(number)
        pattern = ops.attention_pattern(drawn.q, drawn.k, source.mask)
        answers = {(MEAN, "", 0): (mean @ drawn.v, mean.expand_as(pattern))}
        for setting in settings:
            answers[setting[:3]] = attend(entry, source, setting, drawn, seed, number)
            if entry.weights == "low rank" and setting.knob:
                with chance(f"projection {setting.value}", seed, number):
                    few = projected(pattern, setting.value)
                answers[PROJECTED, setting.knob, setting.value] = few @ drawn.v, few
        for key, (its_output, its_pattern) in answers.items():
            errors[key].append(torch.stack([relative(its_output, pattern @ drawn.v), relative(its_pattern, pattern)]))
    learned = (name for name, _ in make(entry, source, settings[0].options).named_parameters())
    return Approximation(
        entry.name,
        source.words,
        draws,
        source.names,
        entry.knobs,
        forms=tuple(dict.fromkeys(setting.form for setting in settings)),
        untrained=tuple(name for name in learned if not name.startswith(("heads.", "out."))),
        rows=tuple(
            _row(sample, *key, torch.stack(of_draws)[:, :, place])
            for key, of_draws in errors.items()
            for place, sample in enumerate(source.names)
        ),
        spectrum=spectrum(source) if entry.weights in ("low rank", "kernel") else (),
    )


def attend(
    entry: Entry, source: Source, setting: Setting, drawn: QKV, seed: int, number: int
) -> tuple[Float[Tensor, "S H T C"], Float[Tensor, "S H T T"]]:
    """Output and pattern of a newly built mechanism; its random parts follow from the seed and the number of the draw."""
    with chance("mechanism", seed, number):
        module = make(entry, source, setting.options)
    with capture(module, "hook_pattern") as seen:
        output = module.dispatch(*drawn, None)
    return output, seen["hook_pattern"]


def relative(approximate: Float[Tensor, "S H T C"], exact: Float[Tensor, "S H T C"]) -> Float[Tensor, " S"]:
    """The Frobenius norm of the difference over that of the exact one, per sample."""
    return (approximate - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)


def _row(sample: str, form: str, knob: str, value: int, errors: Float[Tensor, "N 2"]) -> ErrorRow:
    output, pattern = errors.T
    low, median, high = output.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    std = output.std().item() if len(output) > 1 else 0.0
    spread = (median, low, high, output.mean().item(), std)
    return ErrorRow(sample, form, knob, value, *spread, pattern.quantile(0.5).item())


def projected(pattern: Tensor, rank: int) -> Tensor:
    """The pattern through a random projection of its columns, P·RᵀR, on which Linformer's theorem rests."""
    random = torch.randn(rank, pattern.shape[-1]) * rank**-0.5
    return (pattern @ random.T) @ random


@torch.no_grad()
def spectrum(source: Source, draws: int = 8) -> tuple[Spectrum, ...]:
    """The singular values of the exact patterns, averaged over draws and heads."""
    drawn = [source.draw(number) for number in range(draws)]
    patterns = [ops.attention_pattern(sample.q, sample.k, source.mask) for sample in drawn]
    values = torch.stack([torch.linalg.svdvals(pattern) for pattern in patterns]).double()  # draw, sample, head, rank
    # The error of the nearest matrix of a rank is the norm of the singular values that are left out.
    squares = torch.nn.functional.pad(values.square().flip(-1).cumsum(-1).flip(-1), (0, 1))
    errors = (squares / squares[..., :1]).sqrt().mean(dim=(0, 2)).tolist()
    cumulative = (values.cumsum(-1) / values.sum(-1, keepdim=True)).mean(dim=(0, 2)).tolist()
    parts = zip(source.names, cumulative, errors, strict=True)
    return tuple(Spectrum(sample, tuple(shares), tuple(left)) for sample, shares, left in parts)


# The report


def document(measured: Approximation) -> Document:
    """The measurements as a report: for every sample tables and a chart of the errors over the knobs; singular values."""
    lead = [
        f"Error of the output of {measured.name} against exact attention, over the size of that output: median of"
        f" {measured.draws} draws.",
        f"{measured.source}.",
    ]
    if measured.untrained:
        lead.append(f"Learned parts ({', '.join(measured.untrained)}) are untrained.")
    tables = [_error_table(measured, sample, knob) for sample in measured.samples for knob in measured.knobs or ("",)]
    sections = [Section("Errors", tables)]
    if measured.spectrum:
        sections.append(Section("Singular values", [_rank_table(measured.spectrum)]))
    sections.append(Section("Curves", charts(measured)))
    return Document("approximation", f"{measured.name} against exact attention", lead, sections)


def charts(measured: Approximation) -> list[Chart]:
    """The error over the knob, one chart per sample, and the singular values."""
    drawn = [_error_chart(measured, sample) for sample in measured.samples if measured.knobs]
    if measured.spectrum:
        title = "Singular values of the exact pattern"
        ranks = [float(rank + 1) for rank in range(len(measured.spectrum[0].cumulative))]
        series = [Series(singular.sample, ranks, singular.cumulative) for singular in measured.spectrum]
        y_axis = Axis("share of their sum, up to the rank", low=0, high=1)
        drawn.append(Chart("lines", title, title, Axis("rank", low=0), y_axis, series))
    return drawn


def _error_chart(measured: Approximation, sample: str) -> Chart:
    """One sample: a line per form and knob with its spread, and the mean."""
    series = []
    for form, knob in itertools.product((*measured.forms, PROJECTED), measured.knobs):
        if rows := measured.curve(sample, form, knob):
            spreads = [[max(error, _LEAST) for error in (row.median, row.low, row.high)] for row in rows]
            y, low, high = map(list, zip(*spreads, strict=True))
            name = form or (knob if len(measured.knobs) > 1 else measured.name)
            series.append(Series(name, [float(row.value) for row in rows], y, low, high))
    values = [value for line in series for value in line.x]
    series.append(Series(MEAN, [min(values), max(values)], 2 * [measured.curve(sample, MEAN)[0].median]))
    x_axis, y_axis = Axis(" or ".join(measured.knobs), log=True), Axis("relative error of the output", log=True)
    title = f"{measured.name}, {sample}: error over {x_axis}"
    return Chart("lines", title, title, x_axis, y_axis, series)


def _error_table(measured: Approximation, sample: str, knob: str) -> Table:
    """One sample, one knob: a row per form, a column per value; strong if it is clearly nearer than the mean."""
    mean = measured.curve(sample, MEAN)[0].median
    curves = {form: measured.curve(sample, form, knob) for form in (*measured.forms, PROJECTED)}
    values = sorted({row.value for curve in curves.values() for row in curve})

    def cell(error: float) -> Cell:
        shown = "0" if error < EXACT else f"{error:.3f}" if error < 10 else f"{error:,.0f}"
        return Cell(shown, error, tone="strong" if error < _CLEARLY * mean else "")

    rows = [Row(Cell(MEAN), [cell(mean) for _ in values])]
    for form, curve in curves.items():
        if cells := {row.value: cell(row.median) for row in curve}:
            rows.append(Row(Cell(form or measured.name), [cells.get(value, Cell("")) for value in values]))
    titles = [f"{value}" if knob else "error" for value in values]
    caption = f"{sample}, by {knob}" if knob else sample
    return Table(f"Errors, {sample} {knob}".strip(), caption, [Column("", number=False), *map(Column, titles)], rows)


def _rank_table(spectrum: Sequence[Spectrum]) -> Table:
    rows = []
    for singular in spectrum:
        ranks = [*(singular.rank_for(level) for level in LEVELS), len(singular.cumulative)]
        rows.append(Row(Cell(singular.sample), [Cell(str(rank), rank) for rank in ranks]))
    columns = [Column("", number=False), *(Column(f"{100 * level:.0f} %") for level in LEVELS), Column("of")]
    caption = "The rank from which on a pattern can be within an error of the exact one, by its singular values."
    return Table("Singular values", caption, columns, rows)
