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
from attnlab.store.folders import add_files, is_written, read_json, reporting_damage, to_json, write_folder
from attnlab.store.records import plain, restored
from attnlab.studies.compare import jobs
from attnlab.studies.compare.plan import Plan, fingerprints, trials_of, tuning_plan
from attnlab.studies.compare.records import Trial, Tuning, figures, read_measured
from attnlab.studies.legacy import refuse_changes

FOLDER, FILE = "tuning", "tuning.json"


def tune(plan: Plan, folder: Path, console: Console) -> None:
    """Train all trials that are not done yet, and store the choice."""
    if is_written(folder / FILE):
        return
    trying, place = tuning_plan(plan), folder / FOLDER
    if not place.exists():
        stored = {"study": trying.study, "plan": plain(trying), "fingerprints": fingerprints(trying)}
        write_folder(place, "trials", {"study.json": to_json(stored)})
    refuse_changes(read_json(place / "study.json")["fingerprints"], fingerprints(trying))
    names = ", ".join(tuned.setting for tuned in plan.tune)
    say(console, f"tuning {names}: {len(trying.order())} runs")
    failed = jobs.try_all(trying, place, console)
    # A value at which training diverges is a bad value; anything else is no fault of the value.
    jobs.refuse_failed([job for job in failed if not job.diverged], trying, folder)
    failures = {(job.name, job.seed): job.task.failure() for job in failed}
    tuning = choose(plan, trying, place, failures)
    for name, values in tuning.chosen.items():
        say(console, f"tuned {name}: " + ", ".join(f"{key}={value}" for key, value in values.items()))
    add_files(folder, {FILE: to_json(plain(tuning))})


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
    return Tuning(plan.tune, column.key, items, trying.seeds, tuple(trials), chosen)


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
    return restored(Tuning, read_json(folder / FILE)) if is_written(folder / FILE) else None


def stored_plan(folder: Path) -> Plan:
    """The plan stored in a folder, with the values chosen by tuning."""
    path = folder / "study.json"
    with reporting_damage(path):
        plan = restored(Plan, read_json(path)["plan"])
    return with_choice(plan, folder)


def with_choice(plan: Plan, folder: Path) -> Plan:
    """The plan with the values chosen for every variant."""
    tuning = choice_of(folder) if plan.tune else None
    if tuning is None:
        return plan
    chosen = (variant.with_settings(variant.name, tuning.chosen[variant.name]) for variant in plan.variants)
    return replace(plan, variants=tuple(chosen))
