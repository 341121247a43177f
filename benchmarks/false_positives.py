"""How often equal mechanisms are found to differ, and true differences are found: the tests of comparisons, in many worlds.

    python benchmarks/false_positives.py [--replications 2000] [--only pairs,families,clusters,one_seed,planning]

Answers are simulated: right with a probability that is logistic in the ability of the run minus the difficulty of the
question. Every run has an effect of its own (its seed), and every mechanism may have one on every question (the interaction
of mechanism and question, which is what a claim about new questions is about). The parts:

pairs      one pair, 2 to 5 seeds: the analysis of variance with crossed random factors alone, the paired t test over seeds
           alone, and stats.crossed, which takes the larger p and the wider interval of the two
families   13 mechanisms against a reference with 3 seeds, in several worlds: each pair by itself, all variances pooled, and
           shared as by stats.shared_seeds; `found` is a true difference of 20 points
clusters   sentences of few documents, of similar and of very different sizes: sentences as items, documents as items, and
           stats.crossed, which counts documents of very different sizes as fewer
one_seed   perplexities of one seed, with normal and heavy tails: scipy's BCa bootstrap and stats.crossed
planning   how often a plan made from a pilot of 3 seeds reaches its 80 % (at most 400 pilots, which are slow); and how often
           stats.seeds_by_questions shows that equal mechanisms are equivalent within 5 points
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, stdtr, stdtrit
from scipy.stats import binomtest, bootstrap

from attnlab import stats
from attnlab.stats.crossed import by_cluster

Array = NDArray[np.float64]

DIFFICULTY = 1.5  # spread of the questions, in logits
ALPHA = 0.05
PILOTS = 400  # at most: a plan takes about half a second
REACHED = 0.795  # what counts as 80 % power


# A world


def accuracies(shift: float, spread: float, interaction: float = 0.0) -> tuple[float, float]:
    """Mean and standard deviation of the accuracy of runs, by Gauss-Hermite quadrature over runs and questions."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    hard = math.hypot(DIFFICULTY, interaction)
    of_runs = expit(shift + spread * nodes[:, None] + hard * nodes[None, :]) @ weights
    mean = float(weights @ of_runs)
    return mean, math.sqrt(max(0.0, float(weights @ (of_runs - mean) ** 2)))


def spread_for(deviation: float) -> float:
    """The spread of the runs in logits that gives their accuracy this standard deviation."""
    return 0.0 if deviation == 0 else float(brentq(lambda spread: accuracies(0.0, spread)[1] - deviation, 0.0, 5.0))


def shift_for(gain: float, spread: float, interaction: float) -> float:
    """The advantage in logits that gains so much accuracy over a half."""
    return (
        float(brentq(lambda shift: accuracies(shift, spread, interaction)[0] - 0.5 - gain, 0.0, 9.0)) if gain else 0.0
    )


def answers(
    rng: np.random.Generator,
    shifts: Sequence[float],
    spreads: Sequence[float],
    seeds: int,
    items: int,
    interaction: float,
    collapse: float = 0.0,
) -> Array:
    """Right and wrong of several mechanisms: [mechanisms, seeds, questions]; a run that collapses answers one in ten."""
    count = len(shifts)
    difficulty = DIFFICULTY * rng.normal(size=items) + interaction * rng.normal(size=(count, 1, items))
    lucky = np.reshape(spreads, (count, 1, 1)) * rng.normal(size=(count, seeds, 1))
    chance = expit(np.reshape(shifts, (count, 1, 1)) + lucky - difficulty)
    chance = np.where(rng.random((count, seeds, 1)) < collapse, 0.1, chance)
    return (rng.random((count, seeds, items)) < chance).astype(np.float64)


def share(values: Iterable[bool | np.bool_]) -> str:
    """A share in per cent with its exact 95 % interval."""
    each = [bool(one) for one in values]
    ends = binomtest(sum(each), len(each)).proportion_ci()
    return f"{100 * sum(each) / len(each):.1f} ({100 * ends.low:.1f} to {100 * ends.high:.1f})"


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table in Markdown, row by row as it is measured."""
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


# Pairs


def tests_of_pair(table: Array, truth: float) -> dict[str, tuple[float, bool]]:
    """P and whether the interval holds the truth, of the three tests of one pair."""
    both = stats.crossed(table)
    if both.error is None or both.error_seeds is None or both.freedom is None:  # nothing varies
        return dict.fromkeys(("alone", "t", "crossed"), (1.0, True))
    found = {}
    for name, error, freedom in (("alone", both.error, both.freedom), ("t", both.error_seeds, len(table) - 1.0)):
        away = abs(both.mean - truth) <= stdtrit(freedom, 1 - ALPHA / 2) * error
        p = 2 * float(stdtr(freedom, -abs(both.mean) / error)) if error else float(both.mean == 0)
        found[name] = (p, bool(away))
    assert both.p is not None
    assert both.low is not None
    assert both.high is not None
    return found | {"crossed": (both.p, both.low <= truth <= both.high)}


def pairs(replications: int) -> None:
    """One pair: false differences, coverage and power."""

    def rows() -> Iterable[Sequence[str]]:
        for deviation, interaction in ((0.066, 0.0), (0.066, 1.0), (0.02, 0.0), (0.02, 1.0)):
            for seeds, items in ((2, 450), (3, 150), (3, 450), (5, 450)):
                rng, spread = np.random.default_rng(0), spread_for(deviation)
                better = shift_for(0.1, spread, interaction)
                null, gain = (
                    [
                        tests_of_pair(one[1] - one[0], truth)
                        for one in (
                            answers(rng, (0.0, shift), (spread, spread), seeds, items, interaction)
                            for _ in range(replications)
                        )
                    ]
                    for shift, truth in ((0.0, 0.0), (better, 0.1))
                )
                for name in ("alone", "t", "crossed"):
                    yield (
                        f"{100 * deviation:g}, {'with' if interaction else 'without'}",
                        f"{seeds} x {items}",
                        name,
                        share(one[name][0] < ALPHA for one in null),
                        share(one[name][0] < 0.001 for one in null),
                        share(one[name][1] for one in gain),
                        share(one[name][0] < ALPHA for one in gain),
                    )

    print("\n## Pairs\n\nRuns vary by so many points, with or without an interaction of mechanism and question.\n")
    print_table(("world", "size", "test", "p < 0.05", "p < 0.001", "covered", "10 points found"), rows())


# Families


def pooled(tables: Array) -> list[float]:
    """The p of every mechanism against the first, with one variance between seeds for all."""
    differences = tables[1:] - tables[0]
    seeds = tables.shape[1]
    means, variance = differences.mean(axis=(1, 2)), differences.mean(axis=2).var(axis=1, ddof=1).mean()
    return [float(p) for p in 2 * stdtr((seeds - 1) * len(differences), -abs(means) / math.sqrt(variance / seeds))]


def of_family(tables: Array) -> dict[str, list[float]]:
    """The p of every mechanism against the first, by three ways to know the variance between seeds."""
    named = {str(at): table for at, table in enumerate(tables)}
    against = [(str(at), "0") for at in range(1, len(tables))]
    shared = stats.shared_seeds(named, against)
    return {
        "own": [stats.crossed(named[a] - named[b]).p or 1.0 for a, b in against],
        "pooled": pooled(tables),
        "shared": [
            stats.crossed(named[a] - named[b], shared=one).p or 1.0 for (a, b), one in zip(against, shared, strict=True)
        ],
    }


def families(replications: int) -> None:
    """Many mechanisms against one reference."""
    plain = spread_for(0.066)

    def scaled(*factors: float) -> Callable[[int], list[float]]:
        return lambda count: [plain * factors[at % len(factors)] for at in range(count)]

    def first(factor: float) -> Callable[[int], list[float]]:
        return lambda count: [plain * factor, *[plain] * (count - 1)]

    worlds: dict[str, tuple[Callable[[int], list[float]], float, float]] = {
        "equal": (scaled(1.0), 0.0, 0.0),
        "interaction": (scaled(1.0), 1.0, 0.0),
        "reference: 5 times the variance": (first(5**0.5), 0.0, 0.0),
        "reference: 5 times the spread": (first(5.0), 0.0, 0.0),
        "every other: 5 times the spread": (scaled(1.0, 5.0), 0.0, 0.0),
        "1 in 10 runs collapses": (scaled(1.0), 0.0, 0.1),
    }

    def rows() -> Iterable[Sequence[str]]:
        for mechanisms in (14, 5):
            for name, (spreads, interaction, collapse) in worlds.items():
                rng, better = np.random.default_rng(1), shift_for(0.2, plain, interaction)
                false: dict[str, list[bool]] = {}
                found: dict[str, list[bool]] = {}
                for shift, where in ((0.0, false), (better, found)):
                    shifts = [*[0.0] * (mechanisms - 2), 0.0, shift]
                    for _ in range(replications):
                        tables = answers(rng, shifts, spreads(mechanisms), 3, 150, interaction, collapse)
                        for way, p_values in of_family(tables).items():
                            adjusted = stats.holm(p_values)
                            one = adjusted[-1] if shift else min(adjusted)
                            where.setdefault(way, []).append(one < ALPHA)
                yield from ((str(mechanisms - 1), name, way, share(false[way]), share(found[way])) for way in false)

    print("\n## Families\n\n3 seeds x 150 questions; runs vary by 6.6 points unless the world says otherwise.\n")
    print_table(("pairs", "world", "variance of seeds", "any false difference after Holm", "20 points found"), rows())


# Clusters


def clusters(replications: int) -> None:
    """Sentences of few documents, which are alike, with 3 seeds; no true difference."""

    def rows() -> Iterable[Sequence[str]]:
        for documents in (6, 10, 20):
            for scatter, size in ((0.3, "similar"), (1.3, "very different")):
                rng = np.random.default_rng(2)
                found: dict[str, list[bool]] = {"sentences": [], "documents": [], "crossed": []}
                for _ in range(replications):
                    sizes = np.maximum(2, rng.lognormal(math.log(40), scatter, documents)).astype(int)
                    numbers = np.repeat(np.arange(documents), sizes)
                    of_document = 0.2 * rng.normal(size=documents)
                    table = (
                        of_document[numbers] + 0.02 * rng.normal(size=(3, 1)) + 0.5 * rng.normal(size=(3, len(numbers)))
                    )
                    found["sentences"].append((stats.crossed(table).p or 1.0) < ALPHA)
                    means = by_cluster(table, numbers.tolist())
                    found["documents"].append((stats.crossed(means).p or 1.0) < ALPHA)
                    found["crossed"].append((stats.crossed(table, clusters=numbers.tolist()).p or 1.0) < ALPHA)
                yield (str(documents), size, *(share(each) for each in found.values()))

    print("\n## Clusters\n\nFalse differences (p < 0.05), with 3 seeds.\n")
    titles = ("documents", "sizes", "sentences as items", "documents as items", "stats.crossed")
    print_table(titles, rows())


# One seed


def one_seed(replications: int) -> None:
    """Perplexities of one seed: losses of sentences of different lengths, no true difference."""
    draws: dict[str, Callable[[np.random.Generator, int], Array]] = {
        "normal": lambda rng, count: rng.normal(size=count),
        "t with 3 degrees of freedom": lambda rng, count: rng.standard_t(3, size=count),
        "lognormal": lambda rng, count: rng.lognormal(0.0, 1.2, size=count) - math.exp(0.72),
    }

    def rows() -> Iterable[Sequence[str]]:
        for items in (10, 30, 200):
            for tail, draw in draws.items():
                rng = np.random.default_rng(3)
                by_bootstrap, by_crossed = [], []
                for _ in range(replications):
                    differences, tokens = 0.3 * draw(rng, items), rng.integers(3, 40, items)

                    def ratio(values: Array, sizes: Array, axis: int) -> Array:
                        return np.asarray((values * sizes).sum(axis) / sizes.sum(axis))

                    ends = bootstrap(
                        (differences, tokens), ratio, paired=True, vectorized=True, n_resamples=1000, rng=rng
                    ).confidence_interval
                    by_bootstrap.append(not ends.low <= 0 <= ends.high)
                    base = np.full((1, items), 4.0)
                    p = stats.compare_perplexities(base + differences, base, tokens).both.p
                    by_crossed.append(p is not None and p < ALPHA)
                yield (str(items), tail, share(by_bootstrap), share(by_crossed))

    print("\n## One seed\n\nFalse differences (p < 0.05).\n")
    print_table(("sentences", "differences", "BCa bootstrap", "stats.crossed"), rows())


# Planning


def planning(replications: int) -> None:
    """Plans made from pilots of 3 seeds x 450 questions, for 5 seeds; and equals that are shown to be equivalent."""

    def equivalent(deviation: float, seeds: int) -> list[bool]:
        rng, spread = np.random.default_rng(5), spread_for(deviation)
        tests = (
            stats.seeds_by_questions(*answers(rng, (0.0, 0.0), (spread, spread), seeds, 450, 0.0), margin=0.05)
            for _ in range(replications)
        )
        return [test.equivalence is not None and test.equivalence.shown for test in tests]

    def rows() -> Iterable[Sequence[str]]:
        for deviation in (0.066, 0.02):
            rng = np.random.default_rng(4)
            true = stats.Components(2 * deviation**2, 0.1**2, 0.4**2, 0.0)
            reached: dict[str, list[bool]] = {"cautious": [], "plain": []}
            for _ in range(min(replications, PILOTS)):
                table = (
                    math.sqrt(true.seeds) * rng.normal(size=(3, 1))
                    + 0.1 * rng.normal(size=(1, 450))
                    + 0.4 * rng.normal(size=(3, 450))
                )
                pilot = stats.variance_components([table])
                for name, parts in (("cautious", pilot.cautious), ("plain", pilot)):
                    planned = stats.smallest_difference(parts, 5, 450)
                    reached[name].append(stats.power(true, 5, 450, planned) >= REACHED)
            shown = (share(equivalent(deviation, seeds)) for seeds in (3, 5, 10))
            yield (f"{100 * deviation:g}", share(reached["cautious"]), share(reached["plain"]), *shown)

    pilots = f"{min(replications, PILOTS)} pilots whose plan for 5 seeds has {100 * REACHED:g} % power or more"
    print(f"\n## Planning\n\n{pilots}; equals shown to be equivalent within 5 points.\n")
    equals = (f"equivalent, {seeds} seeds" for seeds in (3, 5, 10))
    titles = ("runs vary by, points", "cautious number", "plain number", *equals)
    print_table(titles, rows())


PARTS = {part.__name__: part for part in (pairs, families, clusters, one_seed, planning)}


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=2000)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, joined by commas")
    asked = parser.parse_args()
    print(f"{asked.replications:,} replications; in per cent, with exact 95 % intervals.")
    for name in asked.only.split(","):
        PARTS[name](asked.replications)


if __name__ == "__main__":
    main()
