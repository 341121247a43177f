"""How well random features estimate one weight exp(x·y): their variance, measured and in closed form, and wrong signs.

The closed forms are those of the FAVOR+ paper (arXiv:2009.14794, lemma 2), relative to exp(x·y)², for directions drawn one by
one; s = x + y, d = x - y, and the number of features counts every sine and every cosine.

    positive         (exp(|s|²) - 1) / features
    hyperbolic       (exp(|s|²) - 1) (1 - exp(-|s|²)) / features
    trigonometric    exp(|s|² - 4 x·y) (1 - exp(-|d|²))² / features
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.measure.approximation.error import Setting, forms_of, make
from attnlab.measure.approximation.samples import Source, chance
from attnlab.registry import Entry

_Points = Float[Tensor, "... C"]


def _positive_variance(x: _Points, y: _Points) -> Tensor:
    return (x + y).square().sum(-1).expm1()


def _hyperbolic_variance(x: _Points, y: _Points) -> Tensor:
    """The relative variance of a pair of positive features, w and -w, counted as two."""
    size = (x + y).square().sum(-1)
    return -size.expm1() * (-size).expm1()


def _trigonometric_variance(x: _Points, y: _Points) -> Tensor:
    """The relative variance of a sine and a cosine, counted as two."""
    exponent = (x + y).square().sum(-1) - 4 * (x * y).sum(-1)
    return exponent.exp() * (-(x - y).square().sum(-1)).expm1().square()


@dataclass(frozen=True)
class Kind:
    """The variance of one kind of features, and how many of them make up one estimate."""

    variance: Callable[[_Points, _Points], Tensor]
    together: int


# The first member of a hyperbolic pair is an estimate by itself; a cosine needs its sine.
KINDS = {
    "positive": Kind(_positive_variance, 1),
    "hyperbolic": Kind(_hyperbolic_variance, 1),
    "trigonometric": Kind(_trigonometric_variance, 2),
}


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
    each = (log_q + log_k - exponent).exp() * KINDS[module.kind].together
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
        for form in forms_of(entry):
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
    law = KINDS[module.kind].variance(q * scale, k * scale).flatten(1)
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
