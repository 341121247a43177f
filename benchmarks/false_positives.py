"""How often equal mechanisms are found to differ, and true differences are found: three tests of seeds x questions.

    python benchmarks/false_positives.py [--replications 2000] [--seeds 2,3,5] [--items 150,450,1000]

    old   analysis of variance with seeds and questions as crossed random factors, alone
    t     the paired t test over the means of the seeds, alone
    new   stats.crossed: the larger p and the wider interval of the two

Answers are simulated: right with a probability that is logistic in the ability of the run minus the difficulty of the
question. Every run has an effect of its own, spread so that the accuracy of runs has a standard deviation of 0, 2 or 6.6
points. 14 mechanisms are compared with a common reference, all of them equal; families of 3 are made of the same runs.
Power and coverage are measured with mechanisms that are truly better. Seeds with equally many right answers make t infinite,
which is common with 2 seeds and few questions. The default takes under 4 minutes on a core of its own.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, stdtr, stdtrit

from attnlab import stats

Array = NDArray[np.float64]
Figures = dict[str, tuple[float, float]]  # by test, with their Monte Carlo standard errors

TESTS = ("old", "t", "new")
SPREADS = (0.066, 0.02, 0.0)  # standard deviation of the accuracy of runs
GAINS = (0.05, 0.1)
FAMILIES = (3, 14)
DIFFICULTY = 1.5  # spread of the questions, in logits
ALPHA = 0.05


# Calibration


def accuracies(shift: float, spread: float) -> tuple[float, float]:
    """Mean and standard deviation of the accuracy of runs, by Gauss-Hermite quadrature over runs and questions."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    of_runs = expit(shift + spread * nodes[:, None] + DIFFICULTY * nodes[None, :]) @ weights
    mean = float(weights @ of_runs)
    return mean, math.sqrt(max(0.0, float(weights @ (of_runs - mean) ** 2)))


def spread_for(deviation: float) -> float:
    """The spread of the runs in logits that gives their accuracy this standard deviation."""
    return 0.0 if deviation == 0 else float(brentq(lambda spread: accuracies(0.0, spread)[1] - deviation, 0.0, 5.0))


def shift_for(gain: float, spread: float) -> float:
    """The advantage in logits that gains so much accuracy over a half."""
    return float(brentq(lambda shift: accuracies(shift, spread)[0] - 0.5 - gain, 0.0, 5.0))


# Simulation


@dataclass(frozen=True)
class Found:
    """The p of many comparisons, and whether their intervals hold the true difference, by test."""

    p: dict[str, Array]
    covered: dict[str, Array]


def answers(rng: np.random.Generator, shift: float, spread: float, difficulty: Array, runs: int, seeds: int) -> Array:
    """Right and wrong of several mechanisms: [mechanisms, seeds, questions]."""
    logits = (shift + spread * rng.normal(size=(runs, seeds, 1)) - difficulty).astype(np.float32)
    return (rng.random(logits.shape, dtype=np.float32) < expit(logits)).astype(np.float64)


def judged(records: list[stats.Crossed], truth: float) -> Found:
    """All three tests of every comparison."""
    mean, error, freedom, of_seeds = (
        np.array([getattr(record, name) for record in records], dtype=float)
        for name in ("mean", "error", "freedom", "error_seeds")
    )
    scales = {"old": (error, freedom), "t": (of_seeds, np.full(len(records), records[0].seeds - 1.0))}
    p, covered = {}, {}
    for name, (scale, degrees) in scales.items():
        with np.errstate(divide="ignore", invalid="ignore"):  # seeds with equal means: t is infinite
            p[name] = np.where(mean == 0, 1.0, 2 * stdtr(degrees, -abs(mean) / scale))
        covered[name] = ~(abs(mean - truth) > stdtrit(degrees, 1 - ALPHA / 2) * scale)
    p["new"] = np.array([record.p for record in records], dtype=float)
    covered["new"] = np.array([(record.low or 0.0) <= truth <= (record.high or 0.0) for record in records])
    return Found(p, covered)


def simulate(
    rng: np.random.Generator, seeds: int, items: int, spread: float, gain: float, runs: int, replications: int
) -> Found:
    """Compare mechanisms with a common reference, over and over: [replications, mechanisms]."""
    shift, records = shift_for(gain, spread) if gain else 0.0, []
    for _ in range(replications):
        difficulty = DIFFICULTY * rng.normal(size=items)
        reference = answers(rng, 0.0, spread, difficulty, 1, seeds)
        records += [stats.crossed(own - reference[0]) for own in answers(rng, shift, spread, difficulty, runs, seeds)]
    found = judged(records, gain)
    p, covered = ({name: one.reshape(-1, runs) for name, one in part.items()} for part in (found.p, found.covered))
    return Found(p, covered)


def any_false(p: Array, size: int) -> Array:
    """The share of families of this size with a false difference after Holm, per replication.

    Holm finds a difference if and only if the smallest p is below alpha / size.
    """
    families = p[:, : p.shape[1] // size * size].reshape(len(p), -1, size)
    return np.asarray((families.min(axis=2) < ALPHA / size).mean(axis=1))


def measured(rng: np.random.Generator, seeds: int, items: int, spread: float, replications: int) -> dict[str, Figures]:
    """All figures of one setting by name, each by test."""
    null = simulate(rng, seeds, items, spread, 0.0, max(FAMILIES), replications)
    better = {gain: simulate(rng, seeds, items, spread, gain, 1, replications) for gain in GAINS}
    per_replication = {
        "p < 0.05": {test: (null.p[test] < ALPHA).mean(axis=1) for test in TESTS},
        "p < 0.001": {test: (null.p[test] < 0.001).mean(axis=1) for test in TESTS},
        **{f"any of {size}": {test: any_false(null.p[test], size) for test in TESTS} for size in FAMILIES},
        "covered": {test: np.concatenate([one.covered[test] for one in better.values()]) for test in TESTS},
        **{
            f"{100 * gain:.0f} points": {test: (one.p[test] < ALPHA).mean(axis=1) for test in TESTS}
            for gain, one in better.items()
        },
    }
    return {
        name: {
            test: (float(values.mean()), float(values.std() / math.sqrt(len(values)))) for test, values in row.items()
        }
        for name, row in per_replication.items()
    }


def show(spread: float, rows: dict[tuple[int, int], dict[str, Figures]]) -> None:
    """One table: a row per seeds, items and test, in per cent."""
    names = list(next(iter(rows.values())))
    print(f"\n## Accuracy of runs varies by {100 * spread:g} points\n")
    print("| seeds x items | test |", " | ".join(names), "| power lost |")
    print("|---|---|", "---|" * len(names), "---|", sep="")
    for (seeds, items), figures in rows.items():
        for test in TESTS:
            cells = [f"{100 * figures[name][test][0]:.1f}" for name in names]
            lost = [figures[name]["old"][0] - figures[name]["new"][0] for name in names[-len(GAINS) :]]
            last = " and ".join(f"{100 * one:.0f}" for one in lost) if test == "new" else ""
            print(f"| {seeds} x {items:,} | {test} | {' | '.join(cells)} | {last} |", flush=True)
    errors = {name: max(row[name][test][1] for row in rows.values() for test in TESTS) for name in names}
    print(
        "\nMonte Carlo standard error, at most:", ", ".join(f"{name} {100 * one:.2f}" for name, one in errors.items())
    )


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=2000)
    for name, usual in (("seeds", "2,3,5"), ("items", "150,450,1000")):
        parser.add_argument(f"--{name}", default=usual, type=lambda text: [int(one) for one in text.split(",")])
    asked = parser.parse_args()
    print(
        f"{asked.replications:,} replications, in per cent. p < 0.05, p < 0.001: of comparisons of equals. any of 3, any of"
        " 14: families with a false difference after Holm. covered: 95 % intervals that hold the true difference."
        " 5 points, 10 points: power at 0.05 for a true difference of so many; power lost: old minus new."
    )
    for spread in SPREADS:
        rng, logits = np.random.default_rng(0), spread_for(spread)
        rows = {
            (seeds, items): measured(rng, seeds, items, logits, asked.replications)
            for seeds in asked.seeds
            for items in asked.items
        }
        show(spread, rows)


if __name__ == "__main__":
    main()
