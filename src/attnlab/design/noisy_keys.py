"""Keys that vary: k_i ~ N(mu_i, Sigma_i). What the output does for one head, two equal heads, two split heads, and
heads fitted to the noise.

The scores of one key for all queries are jointly Gaussian, so one small vector a key is drawn, never a key. The
closed form uses a_a = sigmoid(D) with D = s_a - log-sum-exp of the other scores: exact when only key a varies, first
order in the small noise of the others.
"""

from __future__ import annotations

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
from attnlab.design.results import number, vector
from attnlab.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

CHUNK = 50_000
BINS = 80
_NEAR = 0.9  # a weight from here on is "near" a value
_LOUDEST = 1e6  # of strengths and variances
_FAR = 4.0  # standard errors beyond which simulation and closed form do not agree
_FAIL = 0.25  # the blend has failed when the weight on v_a leaves [1/4, 3/4]


@dataclass(frozen=True)
class Keys:
    """Means, the noise alpha in every direction, and the variance of each key along its own mean direction."""

    means: Array
    alpha: float
    varying: Array
    factor: float

    def covariance(self, queries: Array) -> Array:
        """Covariances of the scores of each key for these queries: keys x queries x queries."""
        unit = self.means / np.maximum(np.linalg.norm(self.means, axis=1, keepdims=True), 1e-300)
        along = (unit @ queries.T) * np.sqrt(self.varying)[:, None]
        plain = self.alpha * (queries @ queries.T)
        return self.factor**2 * (plain[None] + along[:, :, None] * along[:, None, :])

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Whole keys, for designs that must look at them: count x keys x width."""
        unit = self.means / np.maximum(np.linalg.norm(self.means, axis=1, keepdims=True), 1e-300)
        stretch = rng.normal(size=(count, len(self.means), 1)) * np.sqrt(self.varying)[None, :, None]
        return self.means + np.sqrt(self.alpha) * rng.normal(size=(count, *self.means.shape)) + stretch * unit


@dataclass(frozen=True)
class _Moments:
    """The weight on v_a: mean, standard deviation, and the share of samples at 0.9 or more, at 0.1 or less, and
    outside [1/4, 3/4].
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
        """How far simulation and closed form lie apart at most, in standard errors of the simulation."""
        pairs = [
            (getattr(self.simulated, name), getattr(self.closed_form, name), getattr(self.standard_error, name))
            for name in ("mean", "sd", "failures")
        ]
        return max(abs(one - other) / max(error, 1e-12) for one, other, error in pairs)


@dataclass(frozen=True)
class Noise:
    """All designs beside each other."""

    designs: tuple[_Design, ...]
    pair: tuple[int, int]
    strength: float
    alpha: float
    varying: float
    samples: int
    keys: int

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        plain = [asdict(design) for design in self.designs]
        for row in plain:
            row |= {name: row[name].tolist() for name in ("queries", "histogram", "law")}
        for row, design in zip(plain, self.designs, strict=True):
            row["standard_errors_apart"] = design.distance
        settings = {name: getattr(self, name) for name in ("pair", "strength", "alpha", "varying", "samples", "keys")}
        return {"status": "solved", "statement": self.statement(), **settings, "designs": plain}

    def to_json(self) -> str:
        """One object."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False)

    def statement(self) -> str:
        """The finding in one sentence."""
        one, split = self.designs[0].simulated, next(d for d in self.designs if d.name == "two split heads").simulated
        return (
            f"Aiming at (v_{self.pair[0]} + v_{self.pair[1]})/2: with one head the weight on v_{self.pair[0]} has "
            f"standard deviation {number(one.sd)}, "
            f"with split heads {number(split.sd)}, and they still fail in {split.failures:.1%} of samples."
        )

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        a = self.pair[0]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for title in (f"weight on v_{a}", "mean", "sd", f">= {_NEAR}", f"<= {1 - _NEAR:.1f}", "failed", "E|c-y|²"):
            table.add_column(title, justify="left" if title.startswith("weight") else "right", no_wrap=True)
        for d in self.designs:
            s, c, e = d.simulated, d.closed_form, d.standard_error
            table.add_row(d.name, f"{s.mean:.4f} ±{e.mean:.4f}", *_cells(s), number(d.squared_error))
            table.add_row("  closed form", f"{c.mean:.4f}        ", *_cells(c), "", style="dim")
        head = (
            f"{self.keys} keys, queries of strength {number(self.strength)}, noise {number(self.alpha)} "
            f"everywhere and {number(self.varying)} along key {a}, {self.samples:,} samples"
        )
        queries = [Text(f"  {d.name}: " + "  ".join(vector(q) for q in d.queries), style="dim") for d in self.designs]
        note = Text(
            f"failed: the weight on v_{a} is outside [{_FAIL}, {1 - _FAIL}]; y = (v_{a} + v_{self.pair[1]})/2",
            style="dim",
        )
        apart = max(design.distance for design in self.designs)
        law = Text(f"simulation and closed form are at most {apart:.1f} standard errors apart", style="dim")
        if apart > _FAR:
            law = Text(
                f"The closed form is off by {apart:.0f} standard errors here: it takes noise {number(self.alpha)} as tiny."
            )
        return Group(Text(head, style="bold"), Text(self.statement()), table, law, note, *queries)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{'</td><td>'.join([d.name, f'{d.simulated.mean:.4f}', *_cells(d.simulated)])}</td></tr>"
            for d in self.designs
        )
        titles = "".join(
            f"<th>{t}</th>" for t in ("design", "mean", "sd", f"&ge; {_NEAR}", f"&le; {1 - _NEAR:.1f}", "failed")
        )
        return f"<div><p>{self.statement()}</p><table><tr>{titles}</tr>{rows}</table></div>"


def _cells(m: _Moments) -> list[str]:
    return [f"{m.sd:.4f}", f"{m.near_one:.1%}", f"{m.near_zero:.1%}", f"{m.failures:.1%}"]


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
    """How designs for (v_a + v_b)/2 fare when the norm of key a varies: one head, equal heads, split heads, and
    `robust` ones.
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
        designs[f"robust, {heads} head{'s' * (heads > 1)}"] = _fitted(
            keys, v, (a, b), list(designs.values()), heads, seed
        )
    found = simulate(keys, v, (a, b), designs, samples, seed)
    return Noise(tuple(found), (a, b), float(strength), float(alpha), float(varying), samples, len(mu))


def simulate(
    keys: Keys, values: Array, pair: tuple[int, int], designs: dict[str, Array], samples: int, seed: int
) -> list[_Design]:
    """The same keys for every design, and for every head of a design."""
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
    """L with L Lᵀ = covariance, without the directions that do not vary."""
    sizes, axes = np.linalg.eigh(covariance)
    keep = sizes > 1e-12 * max(float(sizes[-1]), 1e-300)
    return np.asarray(axes[:, keep] * np.sqrt(sizes[keep]), dtype=np.float32)


def _moments(weight: Array) -> tuple[_Moments, _Moments]:
    n = len(weight)
    mean, sd = float(weight.mean()), float(weight.std())
    fourth = float(((weight - mean) ** 4).mean())
    shares = [
        float((weight >= _NEAR).mean()),
        float((weight <= 1 - _NEAR).mean()),
        float(((weight < _FAIL) | (weight > 1 - _FAIL)).mean()),
    ]
    spread = [float(np.sqrt(p * (1 - p) / n)) for p in shares]
    sd_error = float(np.sqrt(max(fourth - sd**4, 0.0) / n)) / (2 * sd) if sd > 0 else 0.0
    return _Moments(mean, sd, *shares), _Moments(sd / float(np.sqrt(n)), sd_error, *spread)


def _law(keys: Keys, queries: Array, a: int) -> tuple[_Moments, Array]:
    """Mean over heads of sigmoid(D_h) with D jointly Gaussian, along the direction in which D varies most."""
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
    ends = [-9.0, *points, 9.0]

    def moment(power: int) -> float:
        return float(
            sum(
                quad(lambda t: weight(t) ** power * np.exp(-t * t / 2) / np.sqrt(2 * np.pi), lo, hi, limit=200)[0]
                for lo, hi in pairwise(ends)
            )
        )

    mean = moment(1)
    grid = np.linspace(-9, 9, 200_001)
    on_grid = weight((grid[1:] + grid[:-1]) / 2)
    mass = np.diff(ndtr(grid))
    law = np.histogram(on_grid, bins=BINS, range=(0, 1), weights=mass)[0]
    share = [
        float(mass[pick].sum())
        for pick in (on_grid >= _NEAR, on_grid <= 1 - _NEAR, (on_grid < _FAIL) | (on_grid > 1 - _FAIL))
    ]
    return _Moments(mean, float(np.sqrt(max(moment(2) - mean**2, 0.0))), *share), law


def _fitted(keys: Keys, values: Array, pair: tuple[int, int], naive: list[Array], heads: int, seed: int) -> Array:
    """Queries of least expected squared error, from the naive designs and random starts; chosen on samples not
    fitted to.
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
