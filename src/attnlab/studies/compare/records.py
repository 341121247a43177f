"""The finished runs of a comparison, read; those that do not belong together are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab import stages
from attnlab.errors import UserError
from attnlab.folders import read_bytes, read_json
from attnlab.perplexity import SentenceLosses
from attnlab.runs import Run, lineage
from attnlab.studies.compare.figures import figures
from attnlab.studies.compare.plan import Plan
from attnlab.studies.compare.specimens import different


@dataclass(frozen=True)
class Record:
    """One run with what came out of it."""

    seed: int
    run: Run
    folder: Path  # what was measured
    values: dict[str, float]
    measured: dict[str, Any]

    def answers(self) -> list[bool]:
        """Right and wrong, question by question."""
        return [line == "1" for line in read_bytes(self.folder / "right.csv").decode().splitlines()[1:]]

    def losses(self, name: str) -> SentenceLosses:
        """The losses of the sentences in one of its files."""
        return SentenceLosses.from_csv(read_bytes(self.folder / name).decode())


def read_records(plan: Plan, folder: Path) -> dict[str, list[Record]]:
    """All runs of a comparison by specimen, in the order of the seeds; those that do not belong together are refused."""
    found = all_records(plan, folder)
    refuse_differences(plan, found)
    return found


def all_records(plan: Plan, folder: Path) -> dict[str, list[Record]]:
    """All runs by specimen, in the order of the seeds."""
    found: dict[str, list[Record]] = {}
    for specimen in plan.specimens:
        for seed in plan.seeds:
            run, place = Run.open(plan.path(folder, specimen.name, seed)), plan.measured(folder, specimen.name, seed)
            record = {"measured": read_json(place / "measured.json"), "result": whole_result(run)}
            values = {one.key: one.of(record) for one in figures(plan.words)}
            there = {key: float(value) for key, value in values.items() if value is not None}
            found.setdefault(specimen.name, []).append(Record(seed, run, place, there, record["measured"]))
    return found


def whole_result(run: Run) -> dict[str, Any]:
    """What came out of a run, with the time and tokens of the runs that it started from."""
    result, base = run.result, run.config["base"]
    if base:
        before = whole_result(Run.open(run.path / base))
        seconds, tokens = (result[key] + before[key] for key in ("seconds", "tokens"))
        result |= {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}
        result["peak_memory"] = max(result.get("peak_memory") or 0, before.get("peak_memory") or 0) or None
    return result


def refuse_differences(plan: Plan, records: Mapping[str, Sequence[Record]]) -> None:
    """Refuse runs that differ in more than the specimen and the seed; those of one specimen, in more than the seed."""
    first = lineage(records[plan.specimens[0].name][0].run)
    for name, rows in records.items():
        for record in rows:
            own = lineage(record.run)
            found = (
                apart(first, own) - {plan.varied}
                | apart(lineage(rows[0].run), own)
                | misplaced(plan, name, record, own)
            )
            if found:
                raise UserError(
                    f"{first[0].path} and {record.run.path} differ in {', '.join(sorted(found))} beside {plan.varied}:"
                    " what came out could not be told apart; remove the run that is wrong and resume, or start anew"
                )


def apart(one: Sequence[Run], other: Sequence[Run]) -> set[str]:
    """In what two runs differ, with all that they started from: settings, stages, data."""
    if [run.config["stage"] for run in one] != [run.config["stage"] for run in other]:
        return {"stage"}
    found: set[str] = set()
    for left, right in zip(one, other, strict=True):
        found |= different(stages.stored_config(left), stages.stored_config(right))
        found |= {"data"} if sums(left) != sums(right) else set()
    return found


def misplaced(plan: Plan, name: str, record: Record, own: Sequence[Run]) -> set[str]:
    """What shows that a run lies in a folder that is not its own: another seed, or another specimen."""
    configs = [stages.stored_config(run) for run in own]
    # What a user's finished run started from may have a seed of its own.
    seeds = {config.seed for config in (configs[:1] if plan.runs else configs)}
    found = {"seed"} if seeds != {record.seed} else set()
    if not plan.runs and plan.find(name).value(plan.varied) != configs[-1].flat().get(plan.varied):
        found.add("specimen")
    return found


def sums(run: Run) -> list[str | None]:
    """The checksums of the data a run was trained on."""
    return [entry["sha256"] if entry else None for entry in run.config["data"].values()]


def notes_on(records: Mapping[str, Sequence[Record]]) -> list[str]:
    """What a reader must know of the runs as a whole."""
    every = [record.run for rows in records.values() for record in rows]
    places = {json.dumps(read_json(run.path / "env.json"), sort_keys=True) for run in every}
    ways = {(run.result.get("processes"), run.result.get("threads")) for run in every}
    seeds = len(next(iter(records.values())))
    found = []
    if len(places) > 1 or len(ways) > 1:
        found.append(
            "Not all runs were made on the same machine with the same versions and threads: do not compare their times."
        )
    if seeds == 2:
        found.append(
            "With two seeds, equals are found to differ in about 8 % of comparisons, not in 5 %: train three or more."
        )
    return found
