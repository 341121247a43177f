"""What a planned comparison would find, from the seeds and items of a finished one. Nothing is trained here."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnlab import stats
from attnlab.errors import UserError
from attnlab.report.document import Cell, Column, Row, Table
from attnlab.report.words import duration, plural
from attnlab.stats.means import by_cluster
from attnlab.store import listing
from attnlab.studies.compare.plan import Plan, tuning_plan
from attnlab.studies.compare.records import Record, read_records, read_result
from attnlab.studies.compare.tuning import stored_plan

if TYPE_CHECKING:
    from attnlab.stats.checks import Numbers

_SEEDS = (2, 3, 5, 10)
_ALPHA = 0.05
_LARGEST_LOG = 100.0  # of a ratio of perplexities
_NO_PILOT = (
    "what can be found depends on how much seeds vary, which only a pilot shows: run this command with `--seeds 3"
    " --out runs/pilot` instead of --plan, then with `--plan --pilot runs/pilot`"
)


@dataclass(frozen=True)
class Outlook:
    """The smallest difference that some seeds and items find with 80 % power, as a share of answers or of the perplexity."""

    seeds: int
    items: int
    cautious: float  # if seeds vary as much as the pilot allows
    difference: float  # if they vary as in the pilot
    seconds: float


@dataclass(frozen=True)
class Outlooks:
    """What a comparison can find: notes, one per line, and with a pilot the smallest differences."""

    notes: tuple[str, ...]
    alpha: float
    items: str  # what they are called
    unit: str  # of differences, after multiplication by 100
    outlooks: tuple[Outlook, ...] = ()

    def table(self) -> Table:
        """The smallest differences, by seeds and items."""
        counts = sorted({outlook.items for outlook in self.outlooks})
        columns = [Column("seeds"), *(Column(f"{count:,} {self.items}") for count in counts), Column("time")]
        rows = []
        for seeds in sorted({outlook.seeds for outlook in self.outlooks}):
            same = [outlook for outlook in self.outlooks if outlook.seeds == seeds]
            cells = [Cell(f"{_percent(case.cautious)} ({_percent(case.difference)})", case.cautious) for case in same]
            rows.append(Row(Cell(str(seeds), seeds), [*cells, Cell(duration(same[0].seconds), same[0].seconds)]))
        caption = (
            f"Smallest difference in {self.unit} that is found in 4 of 5 comparisons if seeds vary as much as the pilot"
            " allows (in brackets: if they vary as in the pilot), and the time:"
        )
        return Table("plan", caption, columns, rows)


def plan_from_pilot(plan: Plan, pilot: str | Path | None = None) -> Outlooks:
    """What a comparison can find, from how much seeds and items vary in a finished comparison."""
    pairs, nouns = len(plan.compared()), ("sentences", "% of perplexity") if plan.words else ("questions", "points")
    alpha, notes = _ALPHA / pairs, []
    if pairs > 1:
        notes.append(f"{pairs} comparisons: planned with p below {alpha:.2g}, which Holm asks of the first")
    if len(plan.seeds) == 1:
        notes.append("1 seed: nothing can be claimed about other seeds; plan at least 3")
    if pilot is None:
        return Outlooks((*notes, _NO_PILOT), alpha, *nouns)
    parts, seconds, note = _read_pilot(str(pilot), plan, *nouns)
    planned = len(plan.sentences if plan.words else plan.questions)
    # Clusters, where items share them, in the proportion of the planned data.
    share = len(set(plan.clusters)) / len(plan.clusters) if plan.clusters else 1.0
    trials = len(tuning_plan(plan).order()) if plan.tune else 0

    def outlook(seeds: int, items: int) -> Outlook:
        units = max(2, round(items * share))
        cautious, usual = (stats.smallest_difference(part, seeds, units, alpha) for part in (parts.cautious, parts))
        if plan.words:
            cautious, usual = (math.expm1(min(log, _LARGEST_LOG)) for log in (cautious, usual))
        runs = len(plan.variants) * seeds + trials
        return Outlook(seeds, items, cautious, usual, seconds * runs / max(1, plan.at_a_time))

    outlooks = [
        outlook(seeds, items)
        for seeds in sorted({*_SEEDS, max(2, len(plan.seeds))})
        for items in (math.ceil(planned / 2), planned, 2 * planned)
    ]
    return Outlooks((*notes, note), alpha, *nouns, tuple(outlooks))


def _read_pilot(name: str, plan: Plan, noun: str, unit: str) -> tuple[stats.Components, float, str]:
    """The variances of a pilot's differences, the mean time of its runs in seconds, and a note on it."""
    entry = listing.find(name)
    path = shlex.quote(str(entry.path))
    if entry.kind == "study" and entry.state != "complete":
        raise UserError(f"{path} is not finished: `attnlab resume {path}` first")
    result = read_result(entry.path) if entry.kind == "study" else None
    if result is None:
        raise UserError(f"{path} is not a comparison: give --pilot the folder of a finished `attnlab compare`")
    pilot = stored_plan(entry.path)
    assert isinstance(pilot, Plan)
    if pilot.words != plan.words:
        kinds = ("answers to questions", "perplexity")
        raise UserError(
            f"{path} measured {kinds[pilot.words]}, not {kinds[plan.words]}: make a pilot with the same --task"
        )
    if len(pilot.seeds) == 1:
        raise UserError(f"{path} has one seed, which does not show how much seeds vary: make a pilot with --seeds 3")
    pairs = [(pair.a, pair.b) for pair in result.comparisons if pair.valid]
    if not pairs:
        raise UserError(f"{path} has no valid comparison, since its models see the future: make a pilot of sound ones")
    records = read_records(pilot, entry.path)
    tables = [_differences(pilot, records[a], records[b]) for a, b in pairs]
    size = f"{plural(len(pilot.seeds), 'seed')} x {tables[0].shape[1]:,} {noun}"
    if pilot.clusters is not None:
        tables = [by_cluster(table, pilot.clusters) for table in tables]
    parts = stats.variance_components(tables)
    if parts.cautious == stats.Components(0.0, 0.0, 0.0, 0.0):
        raise UserError(f"the runs of every pair of {path} were equal: train the pilot longer, or use more data")
    runs = [record for rows in records.values() for record in rows]
    seconds = sum(run.values["seconds"] + run.measured.measuring for run in runs) / len(runs)
    spread = [100 * math.sqrt(part) for part in (parts.seeds, parts.most_seeds, parts.items, parts.rest)]
    note = (
        f"pilot {entry.path}, {size}: its differences vary by {spread[0]:.2g} {unit} between seeds (at most"
        f" {spread[1]:.2g}, with 80 % confidence), {spread[2]:.2g} between {noun}, {spread[3]:.2g} otherwise"
    )
    return parts, seconds, note


def _differences(pilot: Plan, a: Sequence[Record], b: Sequence[Record]) -> Numbers:
    """The paired differences that are tested, seeds x items: of answers, or of what sentences add to the log ratio."""
    if not pilot.words:
        right_a, right_b = (np.array([record.answers() for record in side], dtype=float) for side in (a, b))
        return right_a - right_b
    texts_a, texts_b = ([record.losses("dev.csv") for record in side] for side in (a, b))
    return stats.log_ratio_table(
        [text.losses for text in texts_a], [text.losses for text in texts_b], texts_a[0].tokens
    )


def _percent(difference: float) -> str:
    """A share in points or per cent, with two digits."""
    return "over 100" if difference > 1 else f"{100 * difference:.{0 if difference >= 0.1 else 1}f}"
