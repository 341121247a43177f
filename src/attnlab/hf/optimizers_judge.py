"""From finished trainings to what may be said of optimizers: figures, tests and sentences of a comparison. Trains nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.corpora.labelled import Tables
from attnlab.hf.asked import data_of
from attnlab.hf.classify import versions
from attnlab.report.words import percent, plural
from attnlab.runs import Run, environment
from attnlab.studies.compare.figures import Figure
from attnlab.studies.compare.judge import compare_all, pair, spread_of
from attnlab.studies.compare.records import Record, notes_on

if TYPE_CHECKING:
    from attnlab.hf.optimizers import Trainings

FIGURES = (
    Figure(
        "accuracy",
        "right labels",
        "right",
        "share",
        False,
        "of the validation texts, in the best epoch; that it was chosen on the same texts flatters all of them a little",
        "accuracy",
    ),
    Figure("loss", "validation loss", "loss", "loss", True, "nats a text, in the best epoch", "loss"),
    Figure(
        "best_epoch", "best epoch", "best epoch", "epoch", True, "the first with the most right labels", "best_epoch"
    ),
    Figure(
        "seconds_per_epoch",
        "time of an epoch",
        "epoch",
        "seconds",
        True,
        "training alone, one training at a time",
        "seconds_per_epoch",
    ),
    Figure("seconds", "whole time", "time", "seconds", True, "with loading and validation", "seconds"),
)


def about_rates(rates: Mapping[str, float], chosen: Sequence[str]) -> str:
    """Where the learning rates come from, and what that means."""
    defaults = [f"{name} {rate:g}" for name, rate in rates.items() if name not in chosen]
    given = [f"{name} {rates[name]:g}" for name in chosen]
    said = [f"as given: {', '.join(given)}"] if given else []
    if not defaults:
        return f"Learning rates {said[0]}."
    said.append(f"each optimizer's default, not tuned: {', '.join(defaults)}")
    warning = "With a rate tuned by --search an optimizer may do better, and the order may change."
    return f"Learning rates {'; '.join(said)}. {warning}"


def read_records(plan: Trainings, folder: Path) -> dict[str, list[Record]]:
    """The trainings by optimizer, in the order of the seeds, as records of a comparison."""
    found: dict[str, list[Record]] = {}
    for name in plan.rates:
        for seed in plan.seeds:
            path = plan.comparison().path(folder, name, seed)
            stored = Run(path).result
            each = [one["seconds"] for one in stored["epochs"]]
            stored["seconds_per_epoch"] = sum(each) / len(each)
            values = {one.key: one.of(stored) for one in FIGURES}
            there = {key: float(value) for key, value in values.items() if value is not None}
            found.setdefault(name, []).append(Record(seed, Run(path), path, there, stored))
    return found


def judge(plan: Trainings, folder: Path, tables: Tables) -> dict[str, Any]:
    """The result in the shape of a comparison, ready for JSON and for the report."""
    records = read_records(plan, folder)
    every = [one for rows in records.values() for one in rows]
    columns = [one for one in FIGURES if all(one.key in record.values for record in every)]
    comparison = plan.comparison()
    specimens = [describe(plan, folder, name, rows, columns) for name, rows in records.items()]
    comparisons = [of_texts(one) for one in compare_all(comparison, records, columns[0], set())]
    names = ", ".join(records)
    return {
        "kind": "comparison",
        "study": "optimizers",
        "title": f"{names}: which fine-tunes {plan.asked.called} better?",
        "question": f"The same {plural(len(tables.train.rows), 'text')}, seeds and epochs for each, judged text by text on"
        f" {tables.dev.source}.",
        "command": plan.asked.command,
        "finished": date.today().isoformat(),
        "seconds": round(sum(one.values["seconds"] for one in every), 1),
        "varied": "optimizer, with its learning rate",
        "seeds": list(plan.seeds),
        "jobs": 1,
        "order": [list(one) for one in comparison.order()],
        "data": data_of(plan.asked, tables),
        "figures": [one.to_dict() for one in columns],
        "specimens": specimens,
        "comparisons": comparisons,
        "paired": [pair(a, b, column, records) for a, b in comparison.compared() for column in columns[1:]],
        "rates": {name: {"lr": rate, "given": name in plan.chosen} for name, rate in plan.rates.items()},
        "verdict": [
            lead(specimens, comparisons, len(plan.seeds)),
            about_rates(plan.rates, plan.chosen),
            *diverged(records),
            *notes_on(records),
            *(f"Look at the data: {one}." for one in tables.warnings),
        ],
        "environment": {**environment(), **versions()},
        "settings": {name: shared(plan, name) for name in records},
    }


def shared(plan: Trainings, name: str) -> dict[str, Any]:
    """The settings of all trainings by one optimizer."""
    return {key: value for key, value in asdict(plan.settings(name, 0)).items() if key != "seed"}


def describe(
    plan: Trainings, folder: Path, name: str, rows: Sequence[Record], columns: Sequence[Figure]
) -> dict[str, Any]:
    """One optimizer with all its trainings."""
    spread = {}
    for column in columns:
        each = [row.values[column.key] for row in rows]
        found = spread_of(each, column.kind)
        none = {"low": None, "high": None} if column.kind == "epoch" else {}  # a few whole numbers: shown one by one
        spread[column.key] = {**found, **none, "each": each}
    return {
        "name": name,
        "reference": name == next(iter(plan.rates)),
        "leaks": False,
        "settings": {
            "optimizer": name,
            "learning rate": plan.rates[name],
            "rate": "given" if name in plan.chosen else "default",
        },
        "values": spread,
        "runs": [
            {
                "seed": row.seed,
                "folder": os.path.relpath(row.folder, folder),
                "values": row.values,
                "epochs": row.measured["epochs"],
            }
            for row in rows
        ],
    }


def diverged(records: Mapping[str, Sequence[Record]]) -> list[str]:
    """The optimizers whose loss was no number in the end, which says more of the rate than of them."""
    found = {name: [row.seed for row in rows if "loss" not in row.values] for name, rows in records.items()}
    why = "its loss is not a number. Give it a smaller rate."
    return [
        f"{name} diverged with {plural(len(seeds), 'seed')} of {len(records[name])}: {why}"
        for name, seeds in found.items()
        if seeds
    ]


def of_texts(comparison: dict[str, Any]) -> dict[str, Any]:
    """A comparison whose words speak of texts: they are the questions here."""
    return comparison | {key: comparison[key].replace("question", "text") for key in ("words", "test")}


def lead(specimens: Sequence[Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """Who comes first, and over whom that is shown."""
    best = max(specimens, key=lambda one: one["values"]["accuracy"]["mean"])
    over: dict[bool, list[str]] = {True: [], False: []}
    for one in comparisons:
        if best["name"] in (one["a"], one["b"]):
            over[one["shown"]].append(one["b"] if one["a"] == best["name"] else one["a"])
    mean = f"{percent(best['values']['accuracy']['mean'])} of labels right" + (
        f", mean of {seeds} seeds" if seeds > 1 else ""
    )
    said = [f"shown to be better than {listed(over[True])}"] if over[True] else []
    said += [f"not shown to be better than {listed(over[False])}"] if over[False] else []
    return f"{best['name']} comes first with {mean}; it is {', and '.join(said)}."


def listed(names: Sequence[str]) -> str:
    """Names as one would say them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
