"""Noisy keys k_i ~ N(mu_i, Sigma_i): the output of one head, two equal heads, two split heads, and heads fitted to the
noise.

The scores of one key for all queries are jointly Gaussian, so the simulation draws one small vector per key, never the
key. The closed form uses a_a = sigmoid(D) with D = s_a - log-sum-exp of the other scores: exact if only key a varies,
and first order in the small noise of the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.design import inputs
from attnlab.design.attention import Scale, factor, log_sum_exp, softmax
from attnlab.design.exact import Array
from attnlab.design.inputs import Data
from attnlab.design.results import html_table, number, rich_table, vector
from attnlab.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

CHUNK = 50_000
BINS = 80
_NEAR = 0.9  # a weight of at least this counts as near 1
_LOUDEST = 1e6  # largest strength and variance
_FAR = 4.0  # standard errors beyond which simulation and closed form disagree
_FAIL = 0.25  # the blend fails when the weight on v_a leaves [1/4, 3/4]


@dataclass(frozen=True)
class Keys:
    """Means, the variance alpha in every direction, and the variance of each key along its own mean."""

    means: Array
    alpha: float
    varying: Array
    factor: float

    @property
    def _directions(self) -> Array:
        return self.means / np.maximum(np.linalg.norm(self.means, axis=1, keepdims=True), 1e-300)

    def covariance(self, queries: Array) -> Array:
        """The covariance of the scores of each key for these queries: keys x queries x queries."""
        along = (self._directions @ queries.T) * np.sqrt(self.varying)[:, None]
        plain = self.alpha * (queries @ queries.T)
        return self.factor**2 * (plain[None] + along[:, :, None] * along[:, None, :])

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Samples of the keys, for fitting: count x keys x width."""
        stretch = rng.normal(size=(count, len(self.means), 1)) * np.sqrt(self.varying)[None, :, None]
        return (
            self.means + np.sqrt(self.alpha) * rng.normal(size=(count, *self.means.shape)) + stretch * self._directions
        )


@dataclass(frozen=True)
class _Moments:
    """The weight on v_a: mean, standard deviation, and the shares at 0.9 or more, at 0.1 or less, and outside
    [1/4, 3/4].
    """

    mean: float
    sd: float
    near_one: float
    near_zero: float
    failures: float


@dataclass(frozen=True)
class _Design:
    """One choice of queries under noise: simulated, with standard errors, and in closed form."""

    name: str
    queries: Array
    simulated: _Moments
    standard_error: _Moments
    closed_form: _Moments
    squared_error: float
    histogram: Array
    law: Array

    @property
    def distance(self) -> float:
        """The largest distance between simulation and closed form, in standard errors of the simulation."""
        pairs = [
            (getattr(self.simulated, name), getattr(self.closed_form, name), getattr(self.standard_error, name))
            for name in ("mean", "sd", "failures")
        ]
        return max(abs(one - other) / max(error, 1e-12) for one, other, error in pairs)


@dataclass(frozen=True)
class Noise:
    """All designs, compared."""

    designs: tuple[_Design, ...]
    pair: tuple[int, int]
    strength: float
    alpha: float
    varying: float
    samples: int
    keys: int

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        designs = []
        for design in self.designs:
            arrays = {name: getattr(design, name).tolist() for name in ("queries", "histogram", "law")}
            designs.append({**asdict(design), **arrays, "standard_errors_apart": design.distance})
        return {"status": "solved", "statement": self.statement(), **asdict(self), "designs": designs}

    def to_json(self) -> str:
        """One object, as `--json` prints it."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def statement(self) -> str:
        """The finding in one sentence."""
        one, split = (next(d for d in self.designs if d.name == n).simulated for n in ("one head", "two split heads"))
        a, b = self.pair
        return (
            f"Aiming at (v_{a} + v_{b})/2: with one head the weight on v_{a} has standard deviation {number(one.sd)}, with "
            f"split heads {number(split.sd)}, and they still fail in {split.failures:.1%} of samples."
        )

    def _table(self) -> list[list[str]]:
        """A header, and for every design the simulated and the closed-form moments."""
        header = [
            f"weight on v_{self.pair[0]}",
            "mean",
            "sd",
            f">= {_NEAR}",
            f"<= {1 - _NEAR:.1f}",
            "failed",
            "E|c-y|²",
        ]
        rows = [header]
        for d in self.designs:
            for name, m, error, square in (
                (d.name, d.simulated, f" ±{d.standard_error.mean:.4f}", number(d.squared_error)),
                ("  closed form", d.closed_form, " " * 8, ""),
            ):
                shares = [f"{share:.1%}" for share in (m.near_one, m.near_zero, m.failures)]
                rows.append([name, f"{m.mean:.4f}{error}", f"{m.sd:.4f}", *shares, square])
        return rows

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        a, b = self.pair
        head = (
            f"{self.keys} keys, queries of strength {number(self.strength)}, noise {number(self.alpha)} "
            f"everywhere and {number(self.varying)} along key {a}, {self.samples:,} samples"
        )
        apart = max(design.distance for design in self.designs)
        if apart <= _FAR:
            law = Text(f"simulation and closed form are at most {apart:.1f} standard errors apart", style="dim")
        else:
            law = Text(
                f"The closed form is off by {apart:.0f} standard errors here: it assumes that noise {number(self.alpha)} is "
                "tiny."
            )
        notes = [f"failed: the weight on v_{a} is outside [{_FAIL}, {1 - _FAIL}]; y = (v_{a} + v_{b})/2"]
        notes += [f"  {d.name}: " + "  ".join(vector(q) for q in d.queries) for d in self.designs]
        table = rich_table(self._table(), first="left")
        dim = (Text(note, style="dim") for note in notes)
        return Group(Text(head, style="bold"), Text(self.statement()), table, law, *dim)

    def _repr_html_(self) -> str:
        return f"<div><p>{self.statement()}</p>{html_table(self._table())}</div>"


def noise(
    means: Data | None = None,
    values: Data | None = None,
    indices: Sequence[int] = (0, 1),
    *,
    n: int = 10,
    strength: float = 10.0,
    alpha: float = 1e-6,
    varying: float = 0.5,
    samples: int = 1_000_000,
    robust: bool = False,
    heads: int = 2,
    seed: int = 0,
    scale: Scale = "none",
) -> Noise:
    """How well designs for (v_a + v_b)/2 work when the norm of key a varies: one head, equal heads, split heads, and with
    `robust` heads fitted to the noise.
    """
    for name, count, fewest, most in (
        ("n", n, 2, 4096),
        ("samples", samples, 1000, 10**9),
        ("heads", heads, 1, 64),
        ("seed", seed, 0, 2**63),
    ):
        if not fewest <= count <= most:
            raise UserError(f"{name} {count} is out of range; choose from {fewest} to {most}")
    mu = np.eye(n) if means is None else inputs.matrix(means, "keys").floats
    v = np.eye(len(mu)) if values is None else inputs.matrix(values, "values").floats
    inputs.pair(mu, v)
    pair = inputs.indices(indices, len(mu))
    if len(pair) != 2:
        raise UserError(f"{len(pair)} indices are given; name two keys, such as 0,1")
    for name, value, least in (("alpha", alpha, 0.0), ("varying", varying, 0.0), ("strength", strength, 1 / _LOUDEST)):
        if not least <= value <= _LOUDEST:
            raise UserError(f"{name} {value:g} is out of range; choose from {least:g} to {_LOUDEST:g}")
    if max(float(np.abs(mu).max()) ** 2 * strength * mu.shape[1], float(np.abs(v).max()) ** 2) > 1e30:
        raise UserError("keys, values or strength are too large to simulate; scale them to sizes near 1")
    stretch = np.zeros(len(mu))
    stretch[pair[0]] = varying
    keys = Keys(mu, float(alpha), stretch, factor(inputs.scale(scale), mu.shape[1]))
    a, b = pair
    one = strength * (mu[a] + mu[b])
    designs = {
        "one head": one[None],
        "two equal heads": np.vstack([one, one]),
        "two split heads": strength * mu[[a, b]],
    }
    if robust:
        fitted = _fitted(keys, v, (a, b), list(designs.values()), heads, seed)
        designs[f"robust, {heads} head{'s' * (heads > 1)}"] = fitted
    found = simulate(keys, v, (a, b), designs, samples, seed)
    return Noise(tuple(found), (a, b), float(strength), float(alpha), float(varying), samples, len(mu))


def simulate(
    keys: Keys, values: Array, pair: tuple[int, int], designs: dict[str, Array], samples: int, seed: int
) -> list[_Design]:
    """Simulate all designs on the same noisy keys, which all heads of a design share."""
    rng = np.random.default_rng(seed)
    every = np.vstack(list(designs.values()))
    distinct, place = np.unique(every, axis=0, return_inverse=True)
    place = place.ravel()
    means = (keys.factor * (keys.means @ distinct.T)).astype(np.float32)
    roots = [_root(c) for c in keys.covariance(distinct)]
    target = values[list(pair)].mean(axis=0)
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in designs}
    squares = dict.fromkeys(designs, 0.0)
    values32, target32 = values.astype(np.float32), target.astype(np.float32)
    for start in range(0, samples, CHUNK):
        count = min(CHUNK, samples - start)
        weights = np.empty((len(distinct), len(means), count), dtype=np.float32)
        for i, root in enumerate(roots):
            drawn = root @ rng.standard_normal((root.shape[1], count), dtype=np.float32)
            weights[:, i] = means[i][:, None] + drawn
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=1, keepdims=True)
        first = 0
        for name, queries in designs.items():
            rows = place[first : first + len(queries)]
            first += len(queries)
            mixed = weights[rows[0]].copy() if len(set(rows)) == 1 else weights[rows].mean(axis=0)
            parts[name].append(mixed[pair[0]])
            off = values32.T @ mixed - target32[:, None]
            squares[name] += float(np.einsum("mc,mc->", off, off))
    found = []
    for name, queries in designs.items():
        weight = np.concatenate(parts[name]).astype(np.float64)
        simulated, error = _moments(weight)
        closed, law = _law(keys, queries, pair[0])
        histogram = np.histogram(weight, bins=BINS, range=(0, 1))[0] / samples
        found.append(_Design(name, queries, simulated, error, closed, squares[name] / samples, histogram, law))
    return found


def _root(covariance: Array) -> NDArray[np.float32]:
    """L with L Lᵀ = covariance, without the directions of zero variance."""
    sizes, axes = np.linalg.eigh(covariance)
    keep = sizes > 1e-12 * max(float(sizes[-1]), 1e-300)
    return np.asarray(axes[:, keep] * np.sqrt(sizes[keep]), dtype=np.float32)


def _regions(weight: Array) -> tuple[NDArray[np.bool_], ...]:
    """Where the weight is near one, near zero, and outside [1/4, 3/4]."""
    return weight >= _NEAR, weight <= 1 - _NEAR, (weight < _FAIL) | (weight > 1 - _FAIL)


def _moments(weight: Array) -> tuple[_Moments, _Moments]:
    """The moments of a sample, and their standard errors."""
    n = len(weight)
    mean, sd = float(weight.mean()), float(weight.std())
    fourth = float(((weight - mean) ** 4).mean())
    shares = [float(region.mean()) for region in _regions(weight)]
    spread = [float(np.sqrt(p * (1 - p) / n)) for p in shares]
    sd_error = float(np.sqrt(max(fourth - sd**4, 0.0) / n)) / (2 * sd) if sd > 0 else 0.0
    return _Moments(mean, sd, *shares), _Moments(sd / float(np.sqrt(n)), sd_error, *spread)


def _law(keys: Keys, queries: Array, a: int) -> tuple[_Moments, Array]:
    """Closed form: the mean over heads of sigmoid(D_h), with D Gaussian along the direction in which it varies most."""
    from scipy.integrate import quad
    from scipy.special import expit, ndtr

    scores = keys.factor * (keys.means @ queries.T)
    covariance = keys.covariance(queries)
    others = np.arange(len(scores)) != a
    centre = np.array([scores[a, h] - log_sum_exp(scores[others, h]) for h in range(len(queries))])
    shares = softmax(scores[others].T)
    total = covariance[a] + np.einsum("gi,hi,igh->gh", shares, shares, covariance[others])
    sizes, axes = np.linalg.eigh(total)
    slope = axes[:, -1] * np.sqrt(max(float(sizes[-1]), 0.0))
    slope *= 1.0 if slope[np.abs(slope).argmax()] > 0 else -1.0

    def weight(t: Any) -> Any:
        return expit(centre + np.multiply.outer(t, slope)).mean(axis=-1)

    steps = sorted({float(np.clip(-c / s, -9, 9)) for c, s in zip(centre, slope, strict=True) if abs(s) > 1e-12})
    near = [x + w for x in steps for c in np.abs(slope) if c > 1e-12 for w in (-8 / c, 0, 8 / c)]
    points = sorted({x for x in near if -9 < x < 9})

    def moment(power: int) -> float:
        def density(t: float) -> float:
            return float(weight(t) ** power * np.exp(-t * t / 2) / np.sqrt(2 * np.pi))

        return float(sum(quad(density, lo, hi, limit=200)[0] for lo, hi in pairwise([-9.0, *points, 9.0])))

    mean = moment(1)
    grid = np.linspace(-9, 9, 200_001)
    on_grid, mass = weight((grid[1:] + grid[:-1]) / 2), np.diff(ndtr(grid))
    law = np.histogram(on_grid, bins=BINS, range=(0, 1), weights=mass)[0]
    shares_of_law = [float(mass[region].sum()) for region in _regions(on_grid)]
    return _Moments(mean, float(np.sqrt(max(moment(2) - mean**2, 0.0))), *shares_of_law), law


def _fitted(keys: Keys, values: Array, pair: tuple[int, int], naive: list[Array], heads: int, seed: int) -> Array:
    """Queries of least expected squared error, fitted from the naive designs and random starts, and chosen on other
    samples.
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng([seed, 1])
    seen, unseen = keys.sample(2000, rng), keys.sample(8000, rng)
    target = values[list(pair)].mean(axis=0)
    shape = (heads, keys.means.shape[1])

    def loss(flat: Array, sample: Array) -> tuple[float, Array]:
        queries = flat.reshape(shape)
        weights = softmax(keys.factor * (queries @ sample.transpose(0, 2, 1)))
        outputs = weights @ values
        off = outputs.mean(axis=1) - target
        pull = np.einsum("sm,nm->sn", off, values)[:, None, :] - np.einsum("sm,shm->sh", off, outputs)[:, :, None]
        gradient = 2 * keys.factor * np.einsum("shn,snd->hd", weights * pull, sample) / (heads * len(sample))
        return float((off**2).sum(axis=1).mean()), gradient.ravel()

    starts = [np.resize(q, shape) for q in naive]
    size = float(np.linalg.norm(starts[-1], axis=1).mean())
    starts += [start * rng.uniform(0.3, 1.5, size=(heads, 1)) for start in starts[:]]
    starts += [rng.normal(size=shape) * size / np.sqrt(shape[1]) for _ in range(4)]
    fits = [
        minimize(loss, start.ravel(), args=(seen,), jac=True, method="L-BFGS-B", options={"maxiter": 80}).x
        for start in starts
    ]
    fits += [start.ravel() for start in starts[: len(naive)]]
    return min(fits, key=lambda x: loss(x, unseen)[0]).reshape(shape)
