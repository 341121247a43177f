"""Plans as tests write them: names first, seeds as a number, data by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.measure.audit import Report
from attnlab.studies.compare import Compare
from attnlab.studies.options import seed_numbers


def audit(name: str, verdict: str = "pass", leaks: Sequence[float] = (), defect: str = "", **faults: str) -> Report:
    """The audit of a variant whose positions leak so much."""
    return Report(name, verdict, max(leaks, default=0.0), defect, faults, {}, (), tuple(leaks), (), (), ())


def data(corpus: str | None = None, dev: str | None = None, facts: str | None = None, exam: str | None = None) -> Any:
    return {"corpus": corpus, "dev": dev, "facts": facts, "exam": exam}


def make_plan(
    names: Sequence[str],
    *,
    seeds: int | Sequence[int] | None = None,
    data: Mapping[str, Any] | None = None,
    workers: int | str = 0,
    **options: Any,
) -> Compare:
    numbers = () if seeds is None else seed_numbers(seeds)
    plan = Compare(names=tuple(names), seeds=numbers, workers=str(workers), **(data or {}), **options)
    return plan.completed()
