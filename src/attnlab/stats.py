"""Statistics of results: intervals, and later tests. Plain numbers in, plain numbers out."""

from __future__ import annotations


def proportion_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson), which also holds near 0 and 1 and for few trials."""
    from scipy.stats import binomtest

    interval = binomtest(successes, trials).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)
