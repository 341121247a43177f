"""What a planned comparison would find, from the seeds and items of a finished one. Nothing is trained here."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnlab import stats
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.report.document import Cell, Column, Row, Table
from attnlab.report.words import duration
from attnlab.stats.means import by_cluster
from attnlab.stats.planning import MOST_SEEDS, Components, about, count_of
from attnlab.store import listing
from attnlab.store.folders import read_json, reporting_damage
from attnlab.store.records import restored
from attnlab.studies.compare.plan import Plan, tuning_plan
from attnlab.studies.compare.records import Record, read_records

if TYPE_CHECKING:
    from attnlab.stats.checks import Numbers

_SEEDS = (2, 3, 5, 10)
_ALPHA = 0.05
_LARGEST_LOG = 100.0  # of a ratio of perplexities
_CAUTIOUS = "if seeds vary as much as the pilot allows"
_FOUND = "found in 4 of 5 comparisons"


@dataclass(frozen=True)
class Pilot:
    """How much the differences of a finished comparison vary, and the time of its runs."""

    folder: str
    pairs: list[str]
    seeds: int
    items: int
    units: int  # clusters, or items where each is alone
    components: Components
    seconds: float  # of training and measuring one run


@dataclass(frozen=True)
class Outlook:
    """What some seeds and items would find; differences are shares of right answers, or of the perplexity."""

    seeds: int
    items: int
    difference: float  # the smallest with 80 % power
    cautious: float  # the same if seeds vary as much as the pilot allows
    seconds: float


@dataclass(frozen=True)
class Aim:
    """What it takes to find a difference; None: one seed, or more than can be planned."""

    difference: float
    power: float | None
    cautious: float | None
    seeds: int | None  # the fewest, with the planned items
    seeds_for_items: int | None = None  # and where no number of seeds is enough: more items with so many seeds
    items: int | None = None


@dataclass(frozen=True)
class Advice:
    """What a planned comparison can find, one fact per line; with a pilot, also as numbers."""

    lines: list[str]
    alpha: float
    items: str  # what they are called
    unit: str  # of differences, after multiplication by 100
    pilot: Pilot | None = None
    outlooks: tuple[Outlook, ...] = ()
    aim: Aim | None = None

    def table(self) -> Table:
        """The smallest differences, by seeds and items."""
        counts = sorted({one.items for one in self.outlooks})
        columns = [Column("seeds"), *(Column(f"{count:,} {self.items}") for count in counts), Column("time")]
        rows = []
        for seeds in sorted({one.seeds for one in self.outlooks}):
            found = [one for one in self.outlooks if one.seeds == seeds]
            cells = [Cell(f"{_percent(one.difference)} ({_percent(one.cautious)})") for one in found]
            rows.append(Row(Cell(str(seeds)), [*cells, Cell(duration(found[0].seconds))]))
        caption = f"Smallest difference in {self.unit} that is {_FOUND} (in brackets: {_CAUTIOUS}), and the time:"
        return Table("plan", caption, columns, rows)


def advise(plan: Plan, pilot: Path | str | None = None, difference: float | None = None) -> Advice:
    """What a comparison can find, from how much seeds and items vary in a pilot: the folder of a finished comparison."""
    if difference is not None and pilot is None:
        raise UserError("--difference needs --pilot FOLDER, a finished comparison that shows how much seeds vary")
    if difference is not None and not 0 < difference < 1:
        raise UserError(f"--difference is a share between 0 and 1, such as 0.02 for two points, not {difference:g}")
    comparisons = len(plan.compared())
    alpha, lines = _ALPHA / comparisons, []
    if comparisons > 1:
        lines.append(f"{comparisons} comparisons: planned with p below {alpha:.2g}, which Holm asks of the first")
    if len(plan.seeds) == 1:
        lines.append("1 seed: nothing can be claimed about other seeds; plan at least 3")
    words = ("sentences", "% of perplexity") if plan.words else ("questions", "points")
    if pilot is None:
        return Advice([*lines, *_without_pilot(plan, alpha)], alpha, *words)
    known, about_pilot = _read(str(pilot), plan, *words)
    planned = len(plan.sentences if plan.words else plan.questions)
    outlooks = tuple(
        _outlook(plan, known, seeds, items, alpha)
        for seeds in sorted({*_SEEDS, max(2, len(plan.seeds))})
        for items in (math.ceil(planned / 2), planned, 2 * planned)
    )
    lines += about_pilot
    aim = None
    if difference is not None:
        aim = _aim(plan, known, planned, difference, alpha)
        lines += _about_aim(aim, len(plan.seeds), f"{planned:,} {words[0]}", *words)
    return Advice(lines, alpha, *words, known, outlooks, aim)


def _without_pilot(plan: Plan, alpha: float) -> list[str]:
    lines = [
        "what can be found depends on how much seeds vary, which only a pilot shows: run this command with `--seeds 3"
        " --out runs/pilot` instead of --plan, then with `--plan --pilot runs/pilot`"
    ]
    if plan.words:
        return lines
    asked = f"{count_of(len(plan.questions), 'question')}: even if every seed gave the same answers,"
    gain = stats.gain_over_half(len(plan.questions), alpha)
    said = f"a gain below {100 * gain:.1f} points over 50 %" if gain else "no gain over 50 %"
    verb = "would be missed in more than 1 of 5 comparisons" if gain else "would be found in 4 of 5 comparisons"
    return [*lines, f"{asked} {said} {verb}, unless the two tend to make the same mistakes"]


# The pilot


def _read(name: str, plan: Plan, noun: str, unit: str) -> tuple[Pilot, list[str]]:
    """The pilot of this name, and what there is to say about it."""
    entry = listing.find(name)
    said = shlex.quote(str(entry.path))
    if entry.kind == "study" and entry.state != "complete":
        raise UserError(f"{said} is not finished: `attnlab resume {said}` first")
    result = read_json(entry.path / "result.json") if entry.kind == "study" else {}
    if result.get("kind") != "comparison":
        raise UserError(f"{said} is no comparison: give --pilot the folder of a finished `attnlab compare`")
    with reporting_damage(entry.path / "study.json"):
        pilot = restored(Plan, read_json(entry.path / "study.json")["plan"])
        pairs = [(one["a"], one["b"]) for one in result["comparisons"] if one["valid"]]
    if pilot.words != plan.words:
        kinds = ("answers to questions", "perplexity")
        raise UserError(
            f"{said} measured {kinds[pilot.words]}, not {kinds[plan.words]}: make a pilot with the same --task"
        )
    if len(pilot.seeds) == 1:
        raise UserError(f"{said} has one seed, which does not show how much seeds vary: make a pilot with --seeds 3")
    if not pairs:
        raise UserError(f"{said} has no valid comparison, since its models see the future: make a pilot of sound ones")
    records = read_records(pilot, entry.path)
    every = [one for rows in records.values() for one in rows]
    tables = [_differences(pilot, records[a], records[b]) for a, b in pairs]
    items = tables[0].shape[1]
    if pilot.clusters is not None:
        tables = [by_cluster(table, pilot.clusters) for table in tables]
    found = Pilot(
        str(entry.path),
        [f"{a} against {b}" for a, b in pairs],
        len(pilot.seeds),
        items,
        tables[0].shape[1],
        stats.variance_components(tables),
        sum(one.values["seconds"] + one.measured.measuring for one in every) / len(every),
    )
    if found.components.cautious == Components(0.0, 0.0, 0.0, 0.0):
        raise UserError(
            f"the sides of every pair of {said} were equal in every run: train the pilot longer, or use more data"
        )
    return found, _about_pilot(plan, found, pilot, noun, unit)


def _differences(pilot: Plan, a: Sequence[Record], b: Sequence[Record]) -> Numbers:
    """The paired differences that are tested, seeds x items: of answers, or of what sentences add to the log ratio."""
    if not pilot.words:
        right_a, right_b = (np.array([record.answers() for record in side], dtype=float) for side in (a, b))
        return right_a - right_b
    texts_a, texts_b = ([record.losses("dev.csv") for record in side] for side in (a, b))
    return stats.log_ratio_table([one.losses for one in texts_a], [one.losses for one in texts_b], texts_a[0].tokens)


def _about_pilot(plan: Plan, pilot: Pilot, other: Plan, noun: str, unit: str) -> list[str]:
    parts = pilot.components
    spread = [100 * math.sqrt(part) for part in (parts.seeds, parts.most_seeds, parts.items, parts.rest)]
    lines = [
        f"pilot {pilot.folder}: {', '.join(pilot.pairs)}, {count_of(pilot.seeds, 'seed')} x {pilot.items:,} {noun}",
        f"its differences vary by {spread[0]:.2g} {unit} between seeds (at most {spread[1]:.2g}, with 80 %"
        f" confidence), {spread[2]:.2g} between {noun}, {spread[3]:.2g} otherwise (standard deviations)",
    ]
    measured = [stages.absolute(str(one.dev or one.exam)) for one in (other, plan)]
    if measured[0] != measured[1]:
        lines.append(f"the pilot was measured on {measured[0]}, not on {measured[1]}, where seeds may vary otherwise")
    return lines


def _percent(difference: float) -> str:
    """A share in points or per cent, with two digits."""
    return "over 100" if difference > 1 else f"{100 * difference:.{0 if difference >= 0.1 else 1}f}"


# Plans


def _units(plan: Plan, items: int) -> int:
    """The clusters of so many items, in the proportion of the planned data; items where each is alone."""
    return max(2, round(items * len(set(plan.clusters)) / len(plan.clusters)) if plan.clusters else items)


def _outlook(plan: Plan, pilot: Pilot, seeds: int, items: int, alpha: float) -> Outlook:
    """What some seeds and items would find."""

    def smallest(parts: Components) -> float:
        found = stats.smallest_difference(parts, seeds, _units(plan, items), alpha)
        return math.expm1(min(found, _LARGEST_LOG)) if plan.words else found

    runs = len(plan.variants) * seeds * (4 if plan.variance else 1) + (
        len(tuning_plan(plan).order()) if plan.tune else 0
    )
    parts, seconds = pilot.components, pilot.seconds * runs / max(1, plan.at_a_time)
    return Outlook(seeds, items, smallest(parts), smallest(parts.cautious), seconds)


def _aim(plan: Plan, pilot: Pilot, items: int, difference: float, alpha: float) -> Aim:
    """What it takes to find a difference."""
    parts, seeds, units = pilot.components, len(plan.seeds), _units(plan, items)
    effect = math.log1p(difference) if plan.words else difference
    needed = stats.seeds_needed(parts, units, effect, alpha)
    aim = Aim(difference, None, None, needed)
    if seeds > 1:
        power, cautious = (stats.power(one, seeds, units, effect, alpha) for one in (parts, parts.cautious))
        aim = replace(aim, power=power, cautious=cautious)
    more = max(2, seeds)
    while needed is None and more <= MOST_SEEDS:
        if found := stats.items_needed(parts, more, effect, alpha):
            return replace(aim, seeds_for_items=more, items=math.ceil(found * items / units))
        more *= 2
    return aim


def _about_aim(aim: Aim, seeds: int, asked: str, items: str, unit: str) -> list[str]:
    size, lines = f"a difference of {_percent(aim.difference)} {unit}", []
    if aim.power is not None and aim.cautious is not None:
        lines.append(
            f"{size} would be found in {100 * aim.power:.0f} % of comparisons with {count_of(seeds, 'seed')} x {asked}"
            f" ({100 * aim.cautious:.0f} % {_CAUTIOUS})"
        )
    if aim.seeds is not None:
        lines.append(f"{size} is {_FOUND} from {count_of(aim.seeds, 'seed')} x {asked} on")
    elif aim.items is not None and aim.seeds_for_items is not None:
        lines.append(
            f"{size} is found by no number of seeds with {asked}, which vary too much: it takes {about(aim.items)}"
            f" {items} x {aim.seeds_for_items} seeds"
        )
    else:
        lines.append(f"{size} is found by no plan of up to {MOST_SEEDS:,} seeds: look for a larger one")
    return lines
