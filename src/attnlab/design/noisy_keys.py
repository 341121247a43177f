"""Noisy keys k_i ~ N(mu_i, Sigma_i): the output of one head, of equal heads, of split heads, and of heads fitted to the
noise. Sigma_i is alpha·I plus, for keys whose norm varies, a variance along mu_i.

The scores of one key for all queries are jointly Gaussian, so the simulation draws one small vector per key, never the
key. The closed form conditions on the norms of the varying keys, for which it is exact, and takes the noise alpha of
the other keys to second order; `_law` has the derivation, and returns the typical size of the term left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from attnlab.design import inputs
from attnlab.design.attention import Scale, factor, softmax
from attnlab.design.exact import Array
from attnlab.design.inputs import Data
from attnlab.design.results import html_table, number, percent, plain, rich_table, vector
from attnlab.errors import UserError

CHUNK = 50_000
BINS = 80
_NEAR = 0.9  # a weight of at least this counts as near 1
_LOUDEST = 1e6  # largest strength and variance
_FAR = 4.0  # standard errors beyond which simulation and closed form disagree
_FAIL = 0.5  # the blend of k values fails when the weight on v_a is off 1/k by more than this share of it
_NODES, _SHIFTS = 2**13, 16  # of the integral over the noise


@dataclass(frozen=True)
class Keys:
    """Means, the variance alpha in every direction, and the variance of each key along its own mean."""

    means: Array
    alpha: float
    varying: Array
    factor: float

    @property
    def directions(self) -> Array:
        """The means as unit vectors."""
        return self.means / np.maximum(np.linalg.norm(self.means, axis=1, keepdims=True), 1e-300)

    def covariance(self, queries: Array) -> Array:
        """The covariance of the scores of each key for these queries: keys x queries x queries."""
        along = (self.directions @ queries.T) * np.sqrt(self.varying)[:, None]
        plain = self.alpha * (queries @ queries.T)
        return self.factor**2 * (plain[None] + along[:, :, None] * along[:, None, :])

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Samples of the keys, for fitting: count x keys x width."""
        stretch = rng.normal(size=(count, len(self.means), 1)) * np.sqrt(self.varying)[None, :, None]
        return (
            self.means + np.sqrt(self.alpha) * rng.normal(size=(count, *self.means.shape)) + stretch * self.directions
        )


@dataclass(frozen=True)
class _Moments:
    """The weight on v_a: mean, standard deviation, and the shares at 0.9 or more, at 0.1 or less, and off 1/k by more than
    half of it, where k values are averaged.
    """

    mean: float
    sd: float
    near_one: float
    near_zero: float
    failures: float


@dataclass(frozen=True)
class _Design:
    """One choice of queries under noise: simulated, with standard errors; and in closed form, with the standard errors of its
    integration and the typical size of what the approximation changes. `law` is the histogram of the closed form.
    """

    name: str
    queries: Array
    simulated: _Moments
    standard_error: _Moments
    closed_form: _Moments
    integration_error: _Moments
    approximation: _Moments
    squared_error: float
    histogram: Array
    law: Array

    @property
    def distance(self) -> float:
        """The largest distance between simulation and closed form beyond what the approximation explains, in standard
        errors of both.
        """
        return self.furthest[0]

    @property
    def furthest(self) -> tuple[float, float, str]:
        """The largest distance, the part of it that the approximation explains, and the quantity."""
        apart = []
        for name, words in (("mean", "mean"), ("sd", "sd"), ("failures", "share failed")):
            errors = getattr(self.standard_error, name), getattr(self.integration_error, name)
            difference = abs(getattr(self.simulated, name) - getattr(self.closed_form, name))
            allowed = getattr(self.approximation, name)
            beyond = max(difference - allowed, 0.0) / max(float(np.hypot(*errors)), 1e-12)
            apart.append((beyond, allowed, words))
        return max(apart)


@dataclass(frozen=True)
class Noise:
    """All designs, compared."""

    designs: tuple[_Design, ...]
    indices: tuple[int, ...]
    varies: tuple[int, ...]
    heads: int
    strength: float
    alpha: float
    varying: float
    samples: int
    keys: int

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        designs = [{**asdict(design), "standard_errors_apart": design.distance} for design in self.designs]
        return plain({"status": "solved", "statement": self.statement(), **asdict(self), "designs": designs})

    def to_json(self) -> str:
        """One object, as `--json` prints it."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @property
    def _wanted(self) -> str:
        """The average that is aimed at, in letters."""
        return "(" + " + ".join(f"v_{i}" for i in self.indices) + f")/{len(self.indices)}"

    def statement(self) -> str:
        """The finding in one sentence."""
        single, equal, split = (design.simulated for design in self.designs[:3])
        return (
            f"Aiming at {self._wanted}: with one head the weight on v_{self.indices[0]} has standard deviation "
            f"{number(single.sd)}, with {self.heads} equal heads {number(equal.sd)}, which is no better, and with {self.heads} "
            f"split heads {number(split.sd)}; split heads fail in {percent(split.failures)} of samples."
        )

    def _table(self) -> list[list[str]]:
        """A header, and for every design the simulated and the closed-form moments."""
        weight = f"weight on v_{self.indices[0]}"
        rows = [[weight, "mean", "sd", f">= {_NEAR}", f"<= {1 - _NEAR:.1f}", "failed", "E|c-y|²"]]
        for d in self.designs:
            error = f" ±{d.standard_error.mean:.1g}"
            for name, m, after, square in (
                (d.name, d.simulated, error, number(d.squared_error)),
                ("  closed form", d.closed_form, " " * len(error), ""),
            ):
                shares = [percent(share) for share in (m.near_one, m.near_zero, m.failures)]
                rows.append([name, f"{m.mean:.4f}{after}", number(m.sd), *shares, square])
        return rows

    def agreement(self) -> str:
        """Whether simulation and closed form agree, and how good the closed form is."""
        apart, allowed, words = max(design.furthest for design in self.designs)
        second = f", allowing for an error of {number(allowed)} from terms of second order in alpha" if allowed else ""
        if apart <= _FAR:
            return f"Simulation and closed form agree within {apart:.1f} standard errors ({words}){second}."
        return (
            f"Simulation and closed form differ by {apart:.0f} standard errors ({words}){second}: alpha is too large for "
            "the closed form."
        )

    def __rich__(self) -> RenderableType:
        norms = ", ".join(map(str, self.varies))
        along = f" and {number(self.varying)} along key{'s' * (len(self.varies) > 1)} {norms}" if self.varies else ""
        head = (
            f"{self.keys} keys, queries of strength {number(self.strength)}, noise {number(self.alpha)} everywhere"
            f"{along}, {self.samples:,} samples"
        )
        low, high = limits(len(self.indices))
        notes = [
            self.agreement(),
            f"failed: the weight on v_{self.indices[0]} is outside [{number(low)}, {number(high)}]; y = {self._wanted}",
        ]
        notes += [f"  {d.name}: " + _queries(d.queries) for d in self.designs]
        table = rich_table(self._table(), first="left")
        dim = (Text(note, style="dim") for note in notes)
        return Group(Text(head, style="bold"), Text(self.statement()), table, *dim)

    def _repr_html_(self) -> str:
        return f"<div><p>{self.statement()}</p>{html_table(self._table())}<p>{self.agreement()}</p></div>"


def _queries(queries: Array) -> str:
    """The different queries of a design, with how often each occurs."""
    distinct, counts = np.unique(queries, axis=0, return_counts=True)
    shown = [(f"{count} x " if count > 1 else "") + vector(q) for q, count in zip(distinct, counts, strict=True)]
    return "  ".join(shown[:4]) + (f"  ... {len(shown)} in all" if len(shown) > 4 else "")


def noise(
    means: Data | None = None,
    values: Data | None = None,
    indices: Sequence[int] = (0, 1),
    *,
    n: int = 10,
    strength: float = 10.0,
    alpha: float = 1e-6,
    varying: float = 0.5,
    varies: Sequence[int] | None = None,
    heads: int = 2,
    samples: int = 1_000_000,
    robust: int = 0,
    seed: int = 0,
    scale: Scale = "none",
) -> Noise:
    """How well designs for the average of some values work when the norms of the keys `varies` vary (by default of the
    first one averaged): one head, equal heads, split heads, and with `robust` that many heads fitted to the noise.
    """
    for name, count, fewest, most in (
        ("n", n, 2, 4096),
        ("samples", samples, 1000, 10**9),
        ("heads", heads, 2, 64),
        ("robust", robust, 0, 64),
        ("seed", seed, 0, 2**63),
    ):
        if not fewest <= count <= most:
            raise UserError(f"{name} {count} is out of range; choose from {fewest} to {most}")
    mu = np.eye(n) if means is None else inputs.matrix(means, "keys").floats
    v = np.eye(len(mu)) if values is None else inputs.matrix(values, "values").floats
    inputs.pair(mu, v)
    for name, value, least in (("alpha", alpha, 0.0), ("varying", varying, 0.0), ("strength", strength, 1 / _LOUDEST)):
        if not least <= value <= _LOUDEST:
            raise UserError(f"{name} {value:g} is out of range; choose from {least:g} to {_LOUDEST:g}")
    if max(float(np.abs(mu).max()) ** 2 * strength * mu.shape[1], float(np.abs(v).max()) ** 2) > 1e30:
        raise UserError("keys, values or strength are too large to simulate; scale them to sizes near 1")
    chosen = blended(indices, len(mu))
    keys = noisy(mu, chosen, alpha, varying, varies, scale)
    query = strength * mu[chosen].sum(axis=0)
    split = np.array([strength * mu[group].sum(axis=0) for group in _shares_of_heads(chosen, heads)])
    designs = {"one head": query[None], f"{heads} equal heads": np.tile(query, (heads, 1))}
    designs[f"{heads} split heads"] = split
    if robust:
        fitted = _fitted(keys, v, chosen, list(designs.values()), robust, seed)
        designs[f"robust, {robust} head{'s' * (robust > 1)}"] = fitted
    return Noise(
        designs=tuple(simulate(keys, v, chosen, designs, samples, seed)),
        indices=tuple(chosen),
        varies=tuple(int(i) for i in np.flatnonzero(keys.varying)),
        heads=heads,
        strength=float(strength),
        alpha=float(alpha),
        varying=float(varying),
        samples=samples,
        keys=len(mu),
    )


def blended(indices: Sequence[int], n: int) -> list[int]:
    """The values to average, at least two."""
    chosen = inputs.indices(indices, n)
    if len(chosen) < 2:
        raise UserError("only one index is given; name at least two keys, such as 0,1")
    return chosen


def noisy(
    means: Array, chosen: Sequence[int], alpha: float, varying: float, varies: Sequence[int] | None, scale: Scale
) -> Keys:
    """The keys with their noise; by default the norm of the first chosen key varies."""
    stretch = np.zeros(len(means))
    stretch[chosen[:1] if varies is None else inputs.indices(varies, len(means))] = varying
    return Keys(means, float(alpha), stretch, factor(inputs.scale(scale), means.shape[1]))


def _shares_of_heads(chosen: Sequence[int], heads: int) -> list[list[int]]:
    """The keys that each of the split heads looks for, so that every key has the same share."""
    k = len(chosen)
    if heads % k and k % heads:
        raise UserError(f"{heads} heads cannot share {k} keys equally; choose a multiple or a divisor of {k}")
    return [[chosen[i] for i in range(k) if i % heads == h % k] for h in range(heads)]


def simulate(
    keys: Keys, values: Array, chosen: Sequence[int], designs: dict[str, Array], samples: int, seed: int
) -> list[_Design]:
    """Simulate all designs on the same noisy keys, which all heads of a design share."""
    rng = np.random.default_rng(seed)
    every = np.vstack(list(designs.values()))
    distinct, place = np.unique(every, axis=0, return_inverse=True)
    place = place.ravel()
    means = keys.factor * (keys.means @ distinct.T)
    roots = [_root(c) for c in keys.covariance(distinct)]
    target = values[list(chosen)].mean(axis=0)
    parts: dict[str, list[Array]] = {name: [] for name in designs}
    squares = dict.fromkeys(designs, 0.0)
    size = max(1, CHUNK * 20 // max(20, len(distinct) * len(means)))
    for start in range(0, samples, size):
        count = min(size, samples - start)
        weights = np.empty((len(distinct), len(means), count))
        for i, root in enumerate(roots):
            weights[:, i] = means[i][:, None] + root @ rng.standard_normal((root.shape[1], count))
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=1, keepdims=True)
        first = 0
        for name, queries in designs.items():
            rows = place[first : first + len(queries)]
            first += len(queries)
            kinds, counts = np.unique(rows, return_counts=True)
            mixed = np.tensordot(counts / len(rows), weights[kinds], axes=1) if len(kinds) > 1 else weights[kinds[0]]
            parts[name].append(mixed[chosen[0]].copy())
            off = values.T @ mixed - target[:, None]
            squares[name] += float(np.einsum("mc,mc->", off, off))
    results = []
    for name, queries in designs.items():
        weight = np.concatenate(parts[name])
        simulated, error = _moments(weight, len(chosen))
        closed, integration, approximation, law = _law(keys, queries, chosen[0], len(chosen))
        moments = simulated, error, closed, integration, approximation
        results.append(_Design(name, queries, *moments, squares[name] / samples, _histogram(weight), law))
    return results


def _histogram(weight: Array) -> Array:
    """The shares of weights in equal bins from 0 to 1."""
    return np.asarray(np.histogram(weight, bins=BINS, range=(0, 1))[0] / weight.size)


def _root(covariance: Array) -> Array:
    """L with L Lᵀ = covariance, without the directions of zero variance."""
    sizes, axes = np.linalg.eigh(covariance)
    keep = sizes > 1e-12 * max(float(sizes[-1]), 1e-300)
    return np.asarray(axes[:, keep] * np.sqrt(sizes[keep]))


def limits(blended: int) -> tuple[float, float]:
    """The weights between which the blend of so many values holds."""
    return (1 - _FAIL) / blended, (1 + _FAIL) / blended


def _edges(blended: int) -> tuple[float, float, float, float]:
    """The weights at which a sample changes its region: near one, near zero, and the limits of failure."""
    return _NEAR, 1 - _NEAR, *limits(blended)


def _moments(weight: Array, blended: int) -> tuple[_Moments, _Moments]:
    """The moments of a sample, and their standard errors."""
    n = len(weight)
    mean, sd = float(weight.mean()), float(weight.std())
    fourth = float(((weight - mean) ** 4).mean())
    near_one, near_zero, low, high = _edges(blended)
    regions = weight >= near_one, weight <= near_zero, (weight < low) | (weight > high)
    shares = [float(region.mean()) for region in regions]
    spread = [float(np.sqrt(p * (1 - p) / n)) for p in shares]
    sd_error = float(np.sqrt(max(fourth - sd**4, 0.0) / n)) / (2 * sd) if sd > 0 else 0.0
    return _Moments(mean, sd, *shares), _Moments(sd / float(np.sqrt(n)), sd_error, *spread)


def _law(keys: Keys, queries: Array, a: int, blended: int) -> tuple[_Moments, _Moments, _Moments, Array]:
    """The closed form of the weight on v_a, the mean over heads of sigmoid(D_h), D_h = s_a - L_h, L = log-sum-exp of the
    other scores: moments, standard errors of the integration, size of what is left out, histogram.

    Given the norms of the varying keys, the scores are s + z, where the z of one key has covariance A = alpha·scale²·QQᵀ
    over heads. With p = softmax of the other scores, L(z) = L + p·z + z'(diag p - pp')z/2 + ...: the linear term is
    Gaussian and kept, of the quadratic one its mean A_hh(1 - |p|²)/2 (which cannot exceed that of the largest z). So D is
    exact in the varying keys and in key a, and for two keys altogether. What is left out, R, has mean 0 and variance
    A_hh² tr((diag p - pp')²)/2 to leading order; whatever A is, its root mean square is at most 2 sqrt(A_hh) plus the mean
    of the largest z. `approximation` is what one such standard deviation changes: a typical size, not a limit; for the
    shares, the share of weights within three of them of an edge. The integral over norms and noise is a randomly shifted
    Richtmyer sequence with one coordinate for each, repeated for its error.
    """
    from scipy.special import expit, ndtri

    distinct, counts = np.unique(queries, axis=0, return_counts=True)
    heads, share = len(distinct), counts / counts.sum()
    others = np.arange(len(keys.means)) != a
    middle = keys.factor * (keys.means @ distinct.T)
    moving = np.flatnonzero(keys.varying)
    along = np.sqrt(keys.varying[moving])[:, None] * keys.factor * (keys.directions[moving] @ distinct.T)
    small = keys.alpha * keys.factor**2 * (distinct @ distinct.T)
    noisy = heads if keys.alpha else 0
    steps = np.sqrt(_primes(len(moving) + noisy))
    largest = np.sqrt(np.diag(small)) * np.sqrt(2 * np.log(max(len(middle) - 1, 1)))
    size = max(1, min(_NODES, 4_000_000 // (heads * len(middle))))
    weights, left_out = np.empty((_SHIFTS, _NODES)), np.empty((_SHIFTS, _NODES))
    for repeat in range(_SHIFTS):
        shift = np.random.default_rng(repeat).random(len(steps))
        uniform = (np.arange(_NODES)[:, None] * steps + shift) % 1
        normal = ndtri(np.clip(uniform, 1e-16, 1 - 1e-16))
        for start in range(0, _NODES, size):
            rows = slice(start, min(start + size, _NODES))
            scores = np.repeat(middle[None], rows.stop - start, axis=0)
            scores[:, moving] += normal[rows, : len(moving), None] * along
            rest = scores[:, others]
            top = rest.max(axis=1, keepdims=True)
            raised = np.exp(rest - top)
            total = raised.sum(axis=1)
            p = raised / total[:, None]
            square = (p**2).sum(axis=1)
            bend = np.minimum(np.diag(small) * (1 - square) / 2, largest)
            d = scores[:, a] - top[:, 0] - np.log(total) - bend
            if noisy:
                sizes, axes = np.linalg.eigh(small * (1 + np.einsum("sig,sih->sgh", p, p)))
                roots = axes * np.sqrt(np.maximum(sizes, 0.0))[:, None, :]
                d += np.einsum("sgh,sh->sg", roots, normal[rows, len(moving) : len(moving) + noisy])
            spread = np.sqrt(np.maximum(square - 2 * (p**3).sum(axis=1) + square**2, 0.0) / 2)
            off = np.minimum(np.diag(small) * spread, 2 * np.sqrt(np.diag(small)) + largest)
            weight = expit(d)
            weights[repeat, rows] = weight @ share
            left_out[repeat, rows] = np.maximum(expit(d + off) - weight, weight - expit(d - off)) @ share
    every = weights.ravel()
    repeated = np.array([list(vars(_moments(row, blended)[0]).values()) for row in weights])
    error = repeated.std(axis=0, ddof=1) / np.sqrt(_SHIFTS)
    rms = float(np.sqrt((left_out**2).mean()))
    near = [float((np.abs(weights - edge) < 3 * left_out).mean()) for edge in _edges(blended)]
    approximation = _Moments(rms, rms, near[0], near[1], min(near[2] + near[3], 1.0))
    return _moments(every, blended)[0], _Moments(*map(float, error)), approximation, _histogram(every)


def _primes(count: int) -> Array:
    """The first prime numbers."""
    primes: list[int] = []
    candidate = 2
    while len(primes) < count:
        if all(candidate % p for p in primes):
            primes.append(candidate)
        candidate += 1
    return np.array(primes, dtype=np.float64)


def _fitted(keys: Keys, values: Array, chosen: Sequence[int], naive: list[Array], heads: int, seed: int) -> Array:
    """Queries of least expected squared error, fitted from the naive designs and random starts, and chosen on other
    samples.
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng([seed, 1])
    seen, unseen = keys.sample(2000, rng), keys.sample(8000, rng)
    target = values[list(chosen)].mean(axis=0)
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
