"""Tune settings for every variant by itself: the same trials for each, chosen on data that the verdict is not taken from.

Mechanisms have different best learning rates, so that one rate for all favours the mechanism it was found with. The trials are
trained like the runs of a comparison, in the folder `tuning`, with other seeds than those that are judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import stats
from attnlab.errors import AttnlabError
from attnlab.lm.progress import say
from attnlab.store import records
from attnlab.store.folders import add_files, is_written, write_folder
from attnlab.studies.compare import jobs
from attnlab.studies.compare.plan import Grid, Plan, trials_of, tuning_plan
from attnlab.studies.compare.records import Trial, Tuning, figures, read_measured
from attnlab.studies.study import load

FOLDER, FILE = "tuning", "tuning.json"


def tune(plan: Plan, folder: Path, console: Console) -> None:
    """Train all trials that are not done yet, and store the choice."""
    if is_written(folder / FILE):
        return
    trying, place = tuning_plan(plan), folder / FOLDER
    if not place.exists():
        write_folder(place, "trials", {"study.json": trying.study_json()})
    trying.refuse_changes(place)
    names = ", ".join(tuned.setting for tuned in plan.tuned)
    say(console, f"tuning {names}: {len(trying.order())} runs")
    failed = jobs.try_all(trying, place, console)
    # A value at which training diverges is a bad value; anything else is no fault of the value.
    jobs.refuse_failed([job for job in failed if not job.diverged], trying, folder)
    failures = {(job.name, job.seed): job.task.failure() for job in failed}
    tuning = choose(plan, trying, place, failures)
    for name, values in tuning.chosen.items():
        say(console, f"tuned {name}: " + ", ".join(f"{key}={value}" for key, value in values.items()))
    add_files(folder, {FILE: records.encode(tuning)})


def choose(plan: Plan, trying: Plan, folder: Path, failures: Mapping[tuple[str, int], str]) -> Tuning:
    """Choose for every variant the values with the best mean figure; a trial with a run that diverged is never chosen."""
    column = figures(plan.words)[0]
    trials = []
    for variant, values, trial in trials_of(plan):
        failed = next((failures[trial.name, seed] for seed in trying.seeds if (trial.name, seed) in failures), "")
        measured = [] if failed else [read_measured(trying, folder, trial.name, seed) for seed in trying.seeds]
        each = tuple(run.values()[column.key] for run in measured)
        mean = None
        if each:
            mean = stats.geometric_mean(each) if column.kind == "perplexity" else sum(each) / len(each)
        trials.append(Trial(variant.name, values, mean, each, failed))
    chosen = {
        variant.name: _best([trial for trial in trials if trial.variant == variant.name], column.lower_is_better)
        for variant in plan.variants
    }
    items = len(trying.sentences if plan.words else trying.questions)
    return Tuning(plan.tuned, column.key, items, trying.seeds, tuple(trials), chosen)


def _best(trials: Sequence[Trial], lower: bool) -> dict[str, Any]:
    """The values of the best trial; the first of equal ones."""
    done = [
        (-trial.figure if lower else trial.figure, -place)
        for place, trial in enumerate(trials)
        if trial.figure is not None
    ]
    if not done:
        raise AttnlabError(f"every trial of {trials[0].variant} diverged ({trials[0].failure}): try lower values")
    return trials[-max(done)[1]].values


def choice_of(folder: Path) -> Tuning | None:
    """The stored choice of a comparison, or None if nothing was tuned yet."""
    return records.read(Tuning, folder / FILE) if is_written(folder / FILE) else None


def stored_plan(folder: Path) -> Grid[Any]:
    """The plan stored in a folder, with the values chosen by tuning."""
    plan = load(folder)
    assert isinstance(plan, Grid)
    return with_choice(plan, folder) if isinstance(plan, Plan) else plan


def with_choice(plan: Plan, folder: Path) -> Plan:
    """The plan with the values chosen for every variant."""
    tuning = choice_of(folder) if plan.tune else None
    if tuning is None:
        return plan
    chosen = (variant.with_settings(variant.name, tuning.chosen[variant.name]) for variant in plan.variants)
    return replace(plan, variants=tuple(chosen))
