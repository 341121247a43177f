"""Where the variation between runs comes from: initial weights (with dropout), order, or choice of the training data.

A seed changes the first two at once, and the third is the same for all runs of a comparison. Here each changes by itself
while the other two stay fixed. The runs are trained like those of a comparison, in the folder `variance`. To vary the
training data, every run learns from a random nine tenths of it (of the sentences, or of the training questions). These parts
overlap: a mean over them varies by the root of a tenth of what fresh data of the same size would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from attnlab import corpora, stats
from attnlab.lm.progress import say
from attnlab.store.folders import to_json, write_folder
from attnlab.store.records import plain
from attnlab.studies.compare import jobs
from attnlab.studies.compare.plan import Plan
from attnlab.studies.compare.records import figures, read_measured
from attnlab.studies.compare.tuning import with_choice
from attnlab.studies.compare.variants import Variant

_FOLDER = "variance"
_SHARE = 0.9  # of the training data that each run learns from
_FIRST_SEED = 2000  # not one of those that are judged, nor of those of tuning
SOURCES = ("initial weights", "order of the data", "training data")


@dataclass(frozen=True)
class Sources:
    """The standard deviation of the tested figure of one variant, by source; of perplexities, of their logarithm."""

    variant: str
    spread: dict[str, stats.Deviation]


def train_variance(plan: Plan, folder: Path, console: Console) -> None:
    """Train and measure the runs that are not done yet."""
    place, varied = folder / _FOLDER, variance_plan(with_choice(plan, folder))
    if not place.exists():
        stored = {"study": varied.study, "plan": plain(varied)}
        write_folder(place, "trials", {"study.json": to_json(stored), **_splits(plan)})
    say(console, f"variance: {len(varied.variants)} runs in which one source of variation changes at a time")
    jobs.train_all(varied, place, console)


def _splits(plan: Plan) -> dict[str, bytes]:
    """Random parts of the training data as files, one per run that varies it."""
    assert plan.corpus is not None
    lines = (
        plan.data.corpus(plan.corpus).lines if plan.words else corpora.as_table(plan.data.questions(str(plan.facts)))
    )
    found = {}
    for number in _numbers(plan):
        rng = np.random.default_rng(_FIRST_SEED + number)
        kept = np.sort(rng.permutation(len(lines))[: math.ceil(_SHARE * len(lines))])
        found[_split_name(plan, number)] = "".join(f"{lines[place]}\n" for place in kept).encode()
    return found


def _numbers(plan: Plan) -> range:
    """The numbers of the runs per source: as many as the comparison had seeds at first."""
    return range(len(plan.looks[0] if plan.looks else plan.seeds))


def _split_name(plan: Plan, number: int) -> str:
    return f"part-{number}.{'txt' if plan.words else 'tsv'}"


def variance_plan(plan: Plan) -> Plan:
    """One variant per run, since what varies is not the seed of the whole run."""
    base = plan.seeds[0]

    def variant(one: Variant, source: str, number: int) -> Variant:
        other = _FIRST_SEED + number
        weights, order, part = (other if source == name else base for name in SOURCES)
        split = _split_name(plan, number if part == other else 0)
        values: dict[str, Any] = {"seed": weights, "train.order_seed": order}
        return one.with_settings(
            _run_name(one.name, source, number), values, **{"corpus" if plan.words else "facts": split}
        )

    runs = [variant(one, name, number) for one in plan.variants for name in SOURCES for number in _numbers(plan)]
    return replace(plan, variants=tuple(runs), seeds=(base,), tune=(), tune_on=None, study="variance", variance=False)


def _run_name(name: str, source: str, number: int) -> str:
    return f"{name}, {source} {number}"


def sources_of_variance(plan: Plan, folder: Path) -> list[Sources]:
    """The standard deviations by source, from the finished runs; `plan` is that of the comparison."""
    place, column = folder / _FOLDER, figures(plan.words)[0]
    varied = variance_plan(plan)

    def figure(name: str) -> float:
        value = read_measured(varied, place, name, varied.seeds[0]).values()[column.key]
        return math.log(value) if column.kind == "perplexity" else value

    return [
        Sources(
            one.name,
            {
                source: stats.deviation([figure(_run_name(one.name, source, number)) for number in _numbers(plan)])
                for source in SOURCES
            },
        )
        for one in plan.variants
    ]
