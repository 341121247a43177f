"""What a certificate proves, in one sentence for a person."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from attnlab.design.attention import Problem
from attnlab.design.results import at_least, number


def explain(certificate: dict[str, Any], problem: Problem, bound: float) -> str:
    """The sentence, with its numbers."""
    ball = certificate.get("radius")
    every = "every query" if ball is None else f"every query with |scale·q| up to {at_least(ball)}"
    misses = f"{every} misses by at least {at_least(bound)}"
    if certificate["type"] == "separating":
        w = np.array(certificate["direction"])
        reach, want = float((problem.values @ w).max()), float(problem.target @ w)
        shown = ", ".join(number(x) for x in w) if len(w) <= 8 else f"{len(w)} numbers"
        return (
            f"The target lies outside the hull of the values: along w = ({shown}) every value is at most "
            f"{number(reach)} and "
            f"the target {number(want)}, so {misses}, whatever the keys are."
        )
    if certificate["type"] == "farkas":
        cases = _leaves(certificate["cases"])
        if cases > 1 or not certificate["cases"]["vector"]:
            return (
                f"In each of {cases} cases by the size of the weights an identity between logarithms of weights "
                f"is broken, so {misses}."
            )
        u = {i: float(Fraction(x)) for i, x in certificate["cases"]["vector"].items()}
        first = next(iter(u.values()))
        most = max(abs(x) for x in u.values()) * (1 if first > 0 else -1)
        terms = " ".join(f"{'+' if x / most > 0 else '-'} {_times(abs(x / most))}ln a_{i}" for i, x in u.items())
        return (
            f"For {every} {terms.removeprefix('+ ')} = 0, because these keys cancel; near the target it cannot "
            f"be, so {misses}."
        )
    cuts = certificate["combinations"]
    plural = f"bounds of this kind on {len(cuts)} weights" if len(cuts) > 1 else "this bound"
    return f"{_combination(cuts[0], every)}; with {plural} {misses}."


def _combination(cut: dict[str, Any], every: str) -> str:
    weights = {i: float(Fraction(x)) for i, x in cut["weights"].items()}
    nearly = "" if every == "every query" else "nearly "

    def mean(letter: str) -> str:
        shown = " + ".join(f"{number(w)}·{letter}_{i}" for i, w in list(weights.items())[:6])
        return shown + (" + ..." if len(weights) > 6 else "")

    j = cut["index"]
    return f"Key {j} is {nearly}{mean('k')}, so its weight a_{j} is {nearly}at most {mean('a')} for {every}"


def _times(share: float) -> str:
    return "" if number(share) == "1" else f"{number(share)}·"


def _leaves(case: dict[str, Any]) -> int:
    return _leaves(case["above"]) + _leaves(case["below"]) if "split" in case else 1
