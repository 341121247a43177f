"""Figures of the attention solver: times and their growth, wrong verdicts, undecided ones per family, noise against
closed form.

`python benchmarks/design.py` takes a few minutes; `--instances 500` is a quick look. Exit 1 when a figure is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from attnlab.design import blend, noise, select
from attnlab.design.results import Result
from attnlab.design.verifier import NotAProof, verify

Array = NDArray[np.float64]
Rng = np.random.Generator


def _sizes(rng: Rng) -> tuple[int, int]:
    return int(rng.integers(2, 13)), int(rng.integers(1, 7))


def gaussian(rng: Rng) -> Array:
    """Keys as a network has them."""
    return rng.normal(size=_sizes(rng))


def integer(rng: Rng) -> Array:
    """Small whole numbers: keys coincide, lie on faces and inside."""
    return rng.integers(-2, 3, size=_sizes(rng)).astype(float)


def inside(rng: Rng) -> Array:
    """The first key is a rounded mean of others."""
    keys = rng.normal(size=(max(4, _sizes(rng)[0]), _sizes(rng)[1]))
    keys[0] = keys[1:4].mean(axis=0)
    return keys


def duplicated(rng: Rng) -> Array:
    """Every key is one of a few."""
    n, d = _sizes(rng)
    return rng.normal(size=(3, d))[rng.integers(0, 3, size=n)]


def collinear(rng: Rng) -> Array:
    """All on one line, up to rounding."""
    n, d = _sizes(rng)
    return rng.normal(size=d) + rng.normal(size=(n, 1)) * rng.normal(size=d)


def decimal(rng: Rng) -> Array:
    """Two decimals, as people type them, on a grid."""
    return np.round(rng.integers(-3, 4, size=_sizes(rng)) * 0.1, 2)


def single(rng: Rng) -> Array:
    """One key."""
    return rng.normal(size=(1, 3))


def wide(rng: Rng) -> Array:
    """More dimensions than keys."""
    n = int(rng.integers(2, 8))
    return rng.normal(size=(n, n + int(rng.integers(1, 10))))


def line(rng: Rng) -> Array:
    """One dimension."""
    return rng.normal(size=(_sizes(rng)[0], 1))


def huge(rng: Rng) -> Array:
    """Norms of a million."""
    return 1e6 * rng.normal(size=_sizes(rng))


def mixed(rng: Rng) -> Array:
    """Norms from a thousandth to a thousand."""
    n, d = _sizes(rng)
    return rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-3, 3, size=(n, 1))


FAMILIES: tuple[Callable[[Rng], Array], ...] = (
    gaussian,
    integer,
    inside,
    duplicated,
    collinear,
    decimal,
    single,
    wide,
    line,
    huge,
    mixed,
)


def instances(count: int, seed: int) -> Iterator[tuple[str, str, Array, Array, list[int], Array, float]]:
    """Family, task, keys, values, chosen keys, their weights, tolerance."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        family = FAMILIES[number % len(FAMILIES)]
        keys = family(rng)
        n = len(keys)
        kind = int(rng.integers(0, 3))
        values = keys.copy() if kind == 0 else np.eye(n) if kind == 1 else rng.normal(size=(n, int(rng.integers(1, 7))))
        tolerance = float(rng.choice([0.001, 0.01, 0.05, 0.2])) * (float(np.abs(values).max()) or 1.0)
        if (number // len(FAMILIES)) % 2:
            chosen = sorted(int(i) for i in rng.choice(n, size=int(rng.integers(1, n + 1)), replace=False))
            weights = (
                rng.dirichlet(np.full(len(chosen), 3.0))
                if rng.random() < 0.5
                else np.full(len(chosen), 1 / len(chosen))
            )
            yield family.__name__, "blend", keys, values, chosen, weights, tolerance
        else:
            yield family.__name__, "select", keys, values, [int(rng.integers(n))], np.ones(1), tolerance


def climb(errors: Callable[[Array], Array], query: Array, rng: Rng) -> float:
    """The least error that shrinking random steps find: crude, and sharing nothing with the solver."""
    least, step = float(errors(query[None, :])[0]), 1.0
    for _ in range(60):
        moved = (
            query * (1 + step * rng.normal(size=(30, 1)))
            + step * rng.normal(size=(30, len(query))) * np.abs(query).max()
        )
        found = errors(moved)
        if found.min() < least:
            least, query = float(found.min()), moved[int(found.argmin())]
        else:
            step /= 1.5
    return least


def wrong(result: Result, keys: Array, values: Array, target: Array, tolerance: float, rng: Rng) -> str | None:
    """Why the verdict is false, if it is; judged by plain attention in float64 and by the independent verifier."""

    def errors(queries: Array) -> Array:
        scores = queries @ keys.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.abs(weights / weights.sum(axis=1, keepdims=True) @ values - target).max(axis=1)

    assert result.query is not None
    assert result.bound is not None
    here = float(errors(result.query[None, :])[0])
    if result.status == "solved":
        if here > tolerance or result.bound > tolerance:
            return f"solved, but the error is {here:.3g} and the bound {result.bound:.3g}"
        return (
            None if here <= result.bound * (1 + 1e-12) else f"the error {here:.3g} passes the bound {result.bound:.3g}"
        )
    size = max(float(np.abs(keys).max()), 1e-12)
    tries = rng.normal(size=(2000, keys.shape[1])) * 10.0 ** rng.uniform(-1, 3, size=(2000, 1)) / size
    best = min(float(errors(tries).min()), here)
    near = result.query + rng.normal(size=(500, keys.shape[1])) * 10.0 ** rng.uniform(-3, 0, size=(500, 1)) / size
    best = min(best, float(errors(near).min()), climb(errors, tries[int(errors(tries).argmin())], rng))
    if best < result.lower_bound * (1 - 1e-9):
        return f"a query with error {best:.6g} passes the lower bound {result.lower_bound:.6g}"
    if result.status.startswith("impossible"):
        try:
            assert result.certificate is not None
            verify(result.certificate, keys.tolist(), values.tolist(), target.tolist(), tolerance)
        except NotAProof as error:
            return f"the certificate is refused: {error}"
        if best <= tolerance:
            return f"impossible, but a query with error {best:.6g} exists"
    return None


def verdicts(count: int, seed: int) -> bool:
    """Solve, judge, and print a table per family."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    longest: dict[str, float] = defaultdict(float)
    mistakes = []
    began = time.perf_counter()
    for number, (family, task, keys, values, chosen, weights, tolerance) in enumerate(instances(count, seed)):
        start = time.perf_counter()
        if task == "select":
            result = select(keys, values, chosen[0], tolerance=tolerance)
        else:
            result = blend(keys, values, chosen, weights, tolerance=tolerance)
        longest[family] = max(longest[family], time.perf_counter() - start)
        target = weights @ values[chosen]
        problem = wrong(result, keys, values, target, tolerance, np.random.default_rng([seed, number, 1]))
        table[family][result.status] += 1
        if result.certificate is not None:
            table[family][result.certificate["type"]] += 1
        if problem is not None:
            mistakes.append(f"instance {number} ({family}, {task}): {problem}")
    kinds = ("separating", "convex_combination", "farkas")
    print(f"\nverdicts over {count:,} random instances ({time.perf_counter() - began:.0f} s, seed {seed})")
    head = f"{'family':<12}{'solved':>8}{'impossible':>12}{'undecided':>11}{'share':>8}{'longest':>10}"
    print(f"{head}   certificates: {', '.join(kinds)}")
    good = not mistakes
    for family, row in table.items():
        share = row["undecided"] / (row["solved"] + row["impossible"] + row["undecided"])
        good &= share <= 0.01
        counts = f"{family:<12}{row['solved']:>8}{row['impossible']:>12}{row['undecided']:>11}{share:>8.2%}"
        print(f"{counts}{longest[family]:>8.2f} s   {', '.join(str(row[kind]) for kind in kinds)}")
    print(f"wrong verdicts: {len(mistakes)}")
    for mistake in mistakes[:20]:
        print("  ", mistake)
    return good


def timed(work: Callable[[], object], repeats: int = 3) -> float:
    """Seconds, best of a few."""
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def times() -> bool:
    """Select against the number of keys; the figure for 512 keys is 0.2 s, for 4,096 keys 5 s."""
    select(np.eye(2), np.eye(2), 0)  # imports
    print("\nselect, d = 64, values of width 64, tolerance 0.01")
    good = True
    for n, limit in (
        (64, np.inf),
        (128, np.inf),
        (256, np.inf),
        (512, 0.2),
        (1024, np.inf),
        (2048, np.inf),
        (4096, 5.0),
    ):
        rng = np.random.default_rng(n)
        keys, values = rng.normal(size=(n, 64)), rng.normal(size=(n, 64))
        result = select(keys, values, 0)
        seconds = timed(lambda keys=keys, values=values: select(keys, values, 0))  # type: ignore[misc]
        good &= result.status == "solved" and seconds < limit
        print(
            f"  n = {n:>5}: {seconds * 1000:8.1f} ms   {result.status}"
            + (f"   (allowed {limit} s)" if limit < np.inf else "")
        )
    print("select of a key inside the hull, d = 8, values orthonormal: solver, and the verifier alone")
    for n in (16, 32, 64, 128):
        rng = np.random.default_rng(n)
        keys, values = rng.normal(size=(n, 8)), np.eye(n)
        keys[0] = keys[1:].mean(axis=0)
        result = select(keys, values, 0)
        seconds = timed(lambda keys=keys, values=values: select(keys, values, 0), 1)  # type: ignore[misc]
        shown = f"  n = {n:>5}: {seconds * 1000:8.1f} ms   {result.status}"
        if (found := result.certificate) is not None:
            given = (found, keys.tolist(), values.tolist(), values[0].tolist(), 0.01)
            shown += f", verified in {timed(lambda given=given: verify(*given)) * 1000:.1f} ms"  # type: ignore[misc]
        good &= result.status.startswith("impossible")
        print(shown)
    return good


def under_noise(samples: int = 1_000_000) -> bool:
    """Simulation against closed form in standard errors, at several C and n, and the time for a million samples."""
    seconds = timed(lambda: noise(samples=samples))
    print(f"\nnoise, {samples:,} samples, n = 10, C = 10: {seconds:.2f} s   (allowed 2 s)")
    good = seconds < 2
    for strength, n in ((10.0, 10), (10.0, 2), (30.0, 10), (1000.0, 10)):
        for design in noise(samples=samples, strength=strength, n=n, seed=1).designs:
            s, c = design.simulated, design.closed_form
            good &= design.distance < 3
            shown = f"mean {s.mean:.4f} ({c.mean:.4f}), sd {s.sd:.4f} ({c.sd:.4f}), "
            shown += f"failed {s.failures:.2%} ({c.failures:.2%})"
            print(
                f"  C = {strength:6g}, n = {n:>2}, {design.name:<16} {shown}   at most {design.distance:.1f} standard "
                f"errors apart"
            )
    return good


def main() -> int:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    good = [times(), under_noise(), verdicts(options.instances, options.seed)]
    print("\nevery figure is reached" if all(good) else "\na figure is missed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
