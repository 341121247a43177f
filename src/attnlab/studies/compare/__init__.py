"""Compare mechanisms, or any one setting, so that the result can be cited.

Every variant is audited, its settings are tuned if asked, and it is trained with every seed, measured and judged; seeds can be
added later. `plan_from_pilot` says beforehand what a comparison can find. The parts:

variants  what is compared: settings that differ in one thing
plan      seeds, data, the order of the runs, and what is checked before training
runs      the runs, several at a time, each trained and measured in its own process
records   the result
cautions  what the data cannot show
judge     intervals, tests, Holm's correction, and verdicts in words
long_texts  the same for texts longer than those trained on
document  the report
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console

from attnlab import stats
from attnlab.errors import AttnlabError, ConfigError, UserError
from attnlab.lm.model import load_model
from attnlab.lm.progress import say
from attnlab.measure import audit
from attnlab.report.document import Cell, Column, Document, Row, Table
from attnlab.report.words import duration, listed, plural
from attnlab.stats.checks import Numbers
from attnlab.stats.crossed import FEWEST_CLUSTERS, by_cluster, effective_clusters, has_reference
from attnlab.store import listing
from attnlab.store import records as store
from attnlab.store.folders import add_files, is_written, locked, unlist, write_folder
from attnlab.store.runs import Run, unused_path
from attnlab.studies.compare import document, judge, runs
from attnlab.studies.compare.cautions import CAUTIONS, cautions
from attnlab.studies.compare.judge import difference_table
from attnlab.studies.compare.long_texts import with_long_texts
from attnlab.studies.compare.plan import ALPHA, TUNING, Plan
from attnlab.studies.compare.records import ComparisonResult, figures
from attnlab.studies.compare.variants import Trial, Tuning
from attnlab.studies.options import seed_numbers
from attnlab.studies.study import Outcome, StoredStudy, load, study

__all__ = ["Compare", "Outlook", "Outlooks", "Plan", "add_seeds", "compare", "plan_from_pilot"]

_AUDITS = "audits.json"
_TRIALS = "tuning"  # the folder of the trials
_SEEDS = (2, 3, 5, 10)  # for which a planned comparison is described
_AIM = 0.8  # the chance to show what is true that a plan should have
_LARGEST_LOG = 100.0  # of a ratio of perplexities
_NO_PILOT = (
    "what can be found depends on how much seeds vary, which only a pilot shows: run this command with `--seeds 3"
    " --out runs/pilot` instead of --plan, then with `--plan --pilot runs/pilot`"
)


@study("compare", own_command=True)
class Compare(Plan):
    """Compare mechanisms, or any one setting, with several seeds each and a statistical test.

    Compares mechanisms (dot additive, path.py:Class), presets or settings files that differ in one
    setting, or finished runs; or the values of one setting, with --vary. Each is audited first.
    Resume a stopped comparison with `attnlab resume`.
    """

    def train(self, folder: Path, console: Console) -> None:
        """Audit every variant, tune settings, and train and measure every run that is not done yet."""
        if not is_written(folder / _AUDITS):
            result = cautions(self)
            add_files(folder, {CAUTIONS: store.encode(result)})
            for note in result.notes:
                say(console, f"note: {note}")
            self._audit(folder, console)
        if self.tune and not is_written(folder / TUNING):
            self._tune(folder, console)
        runs.train_all(self.as_trained(folder), folder, console)

    def judge(self, folder: Path, console: Console) -> ComparisonResult:
        """Test and describe the differences between the variants."""
        result = judge.judge(self, folder, store.read(dict[str, audit.Report], folder / _AUDITS))
        return with_long_texts(self, folder, result) if self.lengths else result

    def document(self, result: ComparisonResult) -> Document:
        """Return the report."""
        return document.document(self, result)

    def _audit(self, folder: Path, console: Console) -> None:
        """Audit every variant's model."""
        audits = {}
        for variant in self.variants:
            model = variant.small_model(self.seeds[0])
            if self.runs:
                model = load_model(Run.open(self.path(folder, variant.name, self.seeds[0])).model)[0]
            result = audit.audit_module(model, name=variant.name)
            audits[variant.name] = result
            words = f"wrong as declared: {result.defect}" if result.verdict == "declared" else result.verdict
            reasons = {"fail": result.faults.values(), "not tested": [result.untested.get("future", "")]}
            say(
                console,
                f"audit of {variant.name}: {'; '.join([words, *reasons.get(result.verdict, ()), *result.notes])}",
            )
        add_files(folder, {_AUDITS: store.encode(audits)})

    def _tune(self, folder: Path, console: Console) -> None:
        """Train all trials that are not done yet, like the runs of a comparison, and store the choice.

        Mechanisms have different best learning rates, so that one rate for all favours the mechanism it was found with.
        """
        trying, place = self.tuning_plan(), folder / _TRIALS
        if not place.exists():
            write_folder(place, "trials", {"study.json": trying.study_json()})
        trying.refuse_changes(place)
        names = ", ".join(tuned.setting for tuned in self.tuned)
        say(console, f"tuning {names}: {len(trying.order())} runs")
        failed = runs.try_all(trying, place, console)
        # A value at which training diverges is a bad value; anything else is no fault of the value.
        runs.refuse_failed([job for job in failed if not job.diverged], trying, folder)
        tuning = choose(self, place, {(job.name, job.seed): job.task.failure() for job in failed})
        for name, values in tuning.chosen.items():
            say(console, f"tuned {name}: " + ", ".join(f"{key}={value}" for key, value in values.items()))
        add_files(folder, {TUNING: store.encode(tuning)})


def choose(plan: Plan, folder: Path, failures: Mapping[tuple[str, int], str]) -> Tuning:
    """Choose for every variant the values with the best mean figure; a trial with a run that diverged is never chosen."""
    column, trying = figures(plan.words)[0], plan.tuning_plan()
    trials = []
    for variant, values, trial in plan.trials():
        failed = next((failures[trial.name, seed] for seed in trying.seeds if (trial.name, seed) in failures), "")
        measured = [] if failed else [trying.measured(folder, trial.name, seed) for seed in trying.seeds]
        each = tuple(runs.read_measured(place).values[column.key] for place in measured)
        mean = None
        if each:
            mean = stats.geometric_mean(each) if column.kind == "perplexity" else sum(each) / len(each)
        trials.append(Trial(variant.name, values, mean, each, failed))
    best = min if column.lower_is_better else max
    chosen = {}
    for variant in plan.variants:
        own = [trial for trial in trials if trial.variant == variant.name]
        reached = [trial.figure for trial in own if trial.figure is not None]
        if not reached:
            raise AttnlabError(f"every trial of {variant.name} diverged ({own[0].failure}): try lower values")
        chosen[variant.name] = next(trial.values for trial in own if trial.figure == best(reached))
    return Tuning(plan.tuned, column.key, len(trying.items), trying.seeds, tuple(trials), chosen)


def compare(
    *variants: str,
    out: Path | str | None = None,
    console: Console | None = None,
    seeds: int | Sequence[int] | None = None,
    **options: Any,
) -> Outcome[ComparisonResult]:
    """Compare variants by name, silently without a console; `options` are the fields of Compare.

    attnlab.compare("dot", "additive", task="words", seeds=3).result.verdict
    """
    fields = options if seeds is None else {**options, "seeds": seeds}
    arguments = [*map(repr, variants), *(f"{key}={value!r}" for key, value in fields.items())]
    options.setdefault("command", f"attnlab.compare({', '.join(arguments)})")
    try:
        plan = Compare(names=variants, seeds=() if seeds is None else seed_numbers(seeds), **options)
    except TypeError as error:
        raise UserError(f"attnlab.compare: {error}; see help(attnlab.compare)") from None
    return plan.begin(Path(out) if out else unused_path("compare"), console or Console(quiet=True))


def add_seeds(folder: Path, seeds: int | Sequence[int]) -> None:
    """Add seeds to a finished comparison, so that resuming trains them and judges all; its report counts the looks."""
    try:
        plan = load(folder)
    except ConfigError:
        plan = None
    if not isinstance(plan, Compare):
        raise UserError(f"{folder} is not a comparison: seeds can be added to comparisons only")
    if not is_written(folder / "result.json"):
        raise UserError(f"{folder} is not finished: resume it first, without --seeds")
    if plan.runs:
        raise UserError(f"{folder} compares finished runs: compare them with further ones in a new comparison")
    wanted = seed_numbers(seeds)
    if not set(wanted) > set(plan.seeds):
        had = ", ".join(map(str, plan.seeds))
        raise UserError(f"{folder} has seeds {had}: name more, such as --seeds {max(plan.seeds) + 4}")
    both = (*plan.seeds, *(seed for seed in wanted if seed not in plan.seeds))
    command = f"{plan.command}; attnlab resume FOLDER --seeds {','.join(map(str, both))}"
    longer = replace(plan, seeds=both, looks=(*plan.looks, plan.seeds), command=command)
    with locked(folder):
        stored = store.read(StoredStudy, folder / "study.json")
        unlist(folder, "result.json")  # judged again when resumed
        stored = replace(stored, plan=msgspec.Raw(store.encode(longer)))
        add_files(folder, {"study.json": store.encode(stored)})


# What a planned comparison would find, from the seeds and items of a finished one


@dataclass(frozen=True)
class Outlook:
    """What some seeds and items can show: the smallest difference that is found with 80 % power, as a share of answers or of
    the perplexity; with a margin, the chance that equals are shown to be equivalent.
    """

    seeds: int
    items: int
    cautious: float  # if seeds vary as much as the pilot allows
    plain: float  # if they vary as in the pilot
    seconds: float


@dataclass(frozen=True)
class Outlooks:
    """What a comparison can show: notes, one per line, and with a pilot an outlook for each size."""

    notes: tuple[str, ...]
    alpha: float
    items: str  # what they are called
    unit: str  # of differences, after multiplication by 100
    outlooks: tuple[Outlook, ...] = ()
    margin: float | None = None  # of equivalence, if that is planned

    def table(self) -> Table:
        """The outlooks by seeds and items."""
        counts = sorted({outlook.items for outlook in self.outlooks})
        columns = [Column("seeds"), *(Column(f"{count:,} {self.items}") for count in counts), Column("time")]
        rows = []
        for seeds in sorted({outlook.seeds for outlook in self.outlooks}):
            same = [outlook for outlook in self.outlooks if outlook.seeds == seeds]
            cells = [Cell(f"{_percent(case.cautious)} ({_percent(case.plain)})", case.cautious) for case in same]
            rows.append(Row(Cell(str(seeds), seeds), [*cells, Cell(duration(same[0].seconds), same[0].seconds)]))
        shown = f"Smallest difference in {self.unit} that is found in 4 of 5 comparisons"
        if self.margin is not None:
            size = f"{100 * self.margin:g} {self.unit}"
            shown = f"Chance in % that variants without any difference are shown to be equivalent within {size}"
        caption = f"{shown}, if seeds vary as much as the pilot allows (in brackets: as in the pilot), and the time:"
        return Table("plan", caption, columns, rows)

    def closing(self) -> str:
        """What to do if none of the planned sizes is enough to show equivalence."""
        if self.margin is None or max(outlook.cautious for outlook in self.outlooks) >= _AIM:
            return ""
        return (
            f"None of these sizes reaches {100 * _AIM:g} %: plan more seeds than {self.outlooks[-1].seeds}, more"
            f" {self.items}, or a larger --margin."
        )


def _percent(difference: float) -> str:
    """A share in points or per cent, with two digits."""
    return "over 100" if difference > 1 else f"{100 * difference:.{0 if difference >= 0.1 else 1}f}"


def plan_from_pilot(plan: Plan, pilot: str | Path | None = None) -> Outlooks:
    """What a comparison can find, from how much seeds and items vary in a finished comparison."""
    pairs, unit = len(plan.compared()), "% of perplexity" if plan.words else "points"
    alpha, notes = ALPHA / pairs, list(cautions(plan).notes)
    if pairs > 1:
        notes.append(f"{pairs} comparisons: planned with p below {alpha:.2g}, which Holm asks of the first")
    if len(plan.seeds) == 1:
        notes.append("1 seed: nothing can be claimed about other seeds; plan at least 3")
    if pilot is None:
        return Outlooks((*notes, _NO_PILOT), alpha, plan.noun, unit)
    parts, seconds, note = _read_pilot(str(pilot), plan, unit)
    planned = len(plan.items)
    if plan.clusters and len(set(plan.clusters)) < FEWEST_CLUSTERS:
        return Outlooks((*notes, note), alpha, plan.noun, unit)
    # Clusters, where items share them, in the proportion of the planned data.
    share = effective_clusters(plan.clusters) / len(plan.clusters) if plan.clusters else 1.0
    trials = len(plan.tuning_plan().order()) if plan.tune else 0

    def outlook(seeds: int, items: int) -> Outlook:
        units, mechanisms = max(2, round(items * share)), len(plan.variants) if has_reference(plan.compared()) else 2
        cautious, plain = (shown(part, seeds, units, mechanisms) for part in (parts.cautious, parts))
        number = len(plan.variants) * seeds + trials
        return Outlook(seeds, items, cautious, plain, seconds * number / max(1, plan.at_a_time))

    def shown(part: stats.Components, seeds: int, units: int, mechanisms: int) -> float:
        if plan.margin is None:
            size = stats.smallest_difference(part, seeds, units, alpha, mechanisms)
            return math.expm1(min(size, _LARGEST_LOG)) if plan.words else size
        if plan.words:
            return stats.equivalence_power(part, seeds, units, math.log1p(plan.margin), alpha, mechanisms)
        # The test of answers adds two questions that differ in opposite directions.
        more = replace(part, items=part.items + 2 / units)
        return stats.equivalence_power(more, seeds, units, plan.margin, alpha, mechanisms)

    outlooks = [
        outlook(seeds, items)
        for seeds in sorted({*_SEEDS, max(2, len(plan.seeds))})
        for items in (math.ceil(planned / 2), planned, 2 * planned)
    ]
    return Outlooks((*notes, note), alpha, plan.noun, unit, tuple(outlooks), plan.margin)


def _read_pilot(name: str, plan: Plan, unit: str) -> tuple[stats.Components, float, str]:
    """The variances of a pilot's differences, the mean time of its runs in seconds, and a note on it."""
    entry = listing.find(name)
    path = shlex.quote(str(entry.path))
    if entry.kind == "study" and entry.state != "complete":
        raise UserError(f"{path} is not finished: `attnlab resume {path}` first")
    pilot = runs.stored_plan(entry.path) if entry.kind == "study" else None
    if not isinstance(pilot, Plan):
        raise UserError(f"{path} is not a comparison: give --pilot the folder of a finished `attnlab compare`")
    if pilot.words != plan.words:
        kinds = ("answers to questions", "perplexity")
        raise UserError(
            f"{path} measured {kinds[pilot.words]}, not {kinds[plan.words]}: make a pilot with the same --task"
        )
    if len(pilot.seeds) == 1:
        raise UserError(f"{path} has one seed, which does not show how much seeds vary: make a pilot with --seeds 3")
    pairs = [(pair.a, pair.b) for pair in pilot.read_result(entry.path).comparisons if pair.valid and pair.tested]
    if not pairs:
        raise UserError(
            f"{path} has no pair that was tested (its models leak, diverged, computed the same, or its documents were too"
            " few): make another pilot"
        )
    records = runs.read_records(pilot, entry.path)
    tables = [_differences(pilot, records[a], records[b]) for a, b in pairs]
    size = f"{plural(len(pilot.seeds), 'seed')} x {tables[0].shape[1]:,} {plan.noun}"
    if pilot.clusters is not None:
        tables = [by_cluster(table, pilot.clusters) for table in tables]
    parts = stats.variance_components(tables)
    compared = listed(dict.fromkeys(name for pair in pairs for name in pair))
    if parts.cautious == stats.Components(0.0, 0.0, 0.0, 0.0):
        raise UserError(f"the runs of every pair of {path} were equal: train the pilot longer, or use more data")
    every = [record for rows in records.values() for record in rows]
    seconds = sum(run.total_seconds for run in every) / len(every)
    spread = [100 * math.sqrt(part) for part in (parts.seeds, parts.most_seeds, parts.items, parts.rest)]
    note = (
        f"pilot {entry.path} of {compared}, {size}: its differences vary by at most {spread[1]:.2g} {unit} between seeds"
        f" (80 % limit; {spread[0]:.2g} in the pilot), {spread[2]:.2g} between {plan.noun}, {spread[3]:.2g} otherwise"
    )
    return parts, seconds, note


def _differences(pilot: Plan, a: Sequence[runs.Record], b: Sequence[runs.Record]) -> Numbers:
    """The paired differences that are tested, seeds x items: of answers, or of what sentences add to the log ratio."""
    if pilot.words:
        return difference_table(a, b, "dev.csv")
    right_a, right_b = (np.array([record.answers() for record in side], dtype=float) for side in (a, b))
    return right_a - right_b
