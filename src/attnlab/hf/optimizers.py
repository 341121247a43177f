"""Which optimizer? The same encoder, tables, seeds and epochs, fine-tuned once with each optimizer and seed.

Order, folders, tests and report are those of a comparison; the texts of the validation table are its questions. The test
table is never read. Finished trainings are stored, so that a study that was stopped resumes where it was.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError, unknown
from attnlab.hf.classify import Figures, Outcome, Request, fine_tune, short_name, versions
from attnlab.hf.settings import RATES, FineTuning
from attnlab.lm.progress import display, say
from attnlab.machine import environment
from attnlab.report import strict
from attnlab.report.words import duration, listed, percent, plural
from attnlab.store.folders import to_json, write_folder
from attnlab.store.records import flat, plain, restored
from attnlab.store.runs import Run
from attnlab.studies.compare import Plan
from attnlab.studies.compare.document import document
from attnlab.studies.compare.judge import compare_all, difference, spread_of
from attnlab.studies.compare.plan import seed_numbers
from attnlab.studies.compare.records import (
    Comparison,
    ComparisonResult,
    Figure,
    Record,
    SeedRun,
    VariantResult,
    notes_on,
)
from attnlab.studies.compare.variants import Variant
from attnlab.studies.legacy import Study

__all__ = ["STUDY", "OptimizersPlan", "make_plan"]

_SEEDS = 3
_FIGURES = (
    Figure(
        "accuracy",
        "right labels",
        "right",
        "share",
        False,
        "of the validation texts, in the best epoch; chosen on the same texts, which makes all of them a little optimistic",
    ),
    Figure("loss", "validation loss", "loss", "loss", True, "nats per text, in the best epoch"),
    Figure("best_epoch", "best epoch", "best epoch", "epoch", True, "the first with the most right labels"),
    Figure(
        "seconds_per_epoch",
        "time of an epoch",
        "epoch",
        "seconds",
        True,
        "without validation, one training at a time",
    ),
    Figure("seconds", "whole time", "time", "seconds", True, "with loading and validation"),
)


@dataclass(frozen=True)
class OptimizersPlan:
    """The whole study: what is fine-tuned, the rate of every optimizer, those whose rate the user gave, and the seeds."""

    asked: Request
    rates: Mapping[str, float]
    chosen: tuple[str, ...]
    seeds: tuple[int, ...]

    def tables(self) -> Tables:
        """The tables to train and to validate on."""
        return replace(self.asked.tables, test=None)

    def settings(self, name: str, seed: int) -> FineTuning:
        """The settings of one training."""
        return replace(self.asked.settings, optimizer=name, lr=self.rates[name], seed=seed)  # type: ignore[arg-type]

    def comparison(self) -> Plan:
        """The same as a comparison of all pairs."""
        return Plan(
            tuple(map(Variant, self.rates)),
            "optimizer",
            self.seeds,
            exam=self.asked.dev or "topics:dev",
            all_pairs=True,
        )


def read_rates(text: str) -> dict[str, float]:
    """Optimizers separated by commas, each with a rate unless it is to have its default: adamw=3e-5,sgd."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, said = (piece.strip() for piece in part.partition("="))
        if name not in RATES:
            raise UserError(f"--optimizers: {unknown('optimizer', name, RATES)}")
        if name in found:
            raise UserError(f"--optimizers names {name} twice: leave one out; rates are compared by --search")
        try:
            found[name] = float(said) if sign else 0.0
        except ValueError:
            found[name] = -1.0
        if sign and not 0 < found[name] < math.inf:
            raise UserError(
                f"--optimizers: the rate of {name} must be a number above 0, such as {name}={RATES[name]:g}"
            )
    if len(found) < 2:
        raise UserError(
            f"--optimizers compares two or more, such as adamw,sgd; for a single one use --optimizer {text}"
        )
    return found


def make_plan(asked: Request, optimizers: str, seeds: int | Sequence[int] | None = None) -> OptimizersPlan:
    """The study that a user asks for."""
    given = read_rates(optimizers)
    if asked.test:
        raise UserError(
            "--optimizers judges on validation: leave --test out, and use it once with the optimizer you choose"
        )
    if asked.settings.lr:
        raise UserError(
            "one --lr does not suit all optimizers: give rates by name, such as --optimizers adamw=3e-5,sgd=0.02"
        )
    if asked.settings.optimizer != FineTuning.optimizer or asked.settings.seed:
        raise UserError("--optimizers and --seeds replace them: leave out --optimizer and --seed")
    chosen = tuple(name for name, rate in given.items() if rate)
    rates = {name: rate or RATES[name] for name, rate in given.items()}
    return OptimizersPlan(asked.absolute(), rates, chosen, seed_numbers(seeds, _SEEDS))


def train(plan: OptimizersPlan, folder: Path, console: Console) -> None:
    """Every training that is not finished, one after the other, so that their times can be compared."""
    order, path, tables = plan.comparison().order(), plan.comparison().path, plan.tables()
    waiting = [one for one in order if not path(folder, *one).exists()]
    say(
        console,
        f"{len(plan.rates)} optimizers x {plural(len(plan.seeds), 'seed')} = {len(order)} trainings,"
        f" {plural(plan.asked.settings.epochs, 'epoch')} each; {len(order) - len(waiting)} are done",
    )
    say(console, describe_rates(plan.rates, plan.chosen))
    for number, (name, seed) in enumerate(waiting, start=1):
        began = time.perf_counter()
        with display(f"{name}, seed {seed}", console) as show:
            outcome = fine_tune(plan.asked.model, tables, plan.settings(name, seed), show=show)
        store_training(path(folder, name, seed), plan.settings(name, seed), outcome)
        left = (len(waiting) - number) * (time.perf_counter() - began)
        more = f"; about {duration(left)} for the other {len(waiting) - number}" if number == 1 and left else ""
        say(
            console,
            f"{len(order) - len(waiting) + number} of {len(order)}: {name}, seed {seed}:"
            f" {100 * outcome.accuracy:.1f} % right in epoch {outcome.best_epoch}, {duration(outcome.seconds)}{more}",
        )


@dataclass(frozen=True)
class _Training:
    """result.json of one training."""

    settings: FineTuning
    accuracy: float
    loss: float
    figures: Figures = flat()
    threads: int = 1


def store_training(path: Path, settings: FineTuning, one: Outcome) -> None:
    """Store a finished training: its epochs, and right or wrong text by text."""
    result = _Training(settings, one.accuracy, one.dev.loss, one.figures, torch.get_num_threads())
    files = {
        "result.json": to_json(strict(plain(result))),
        "env.json": to_json(environment()),
        "right.csv": "".join(f"{line}\n" for line in ("right", *map(int, one.right))).encode(),
    }
    write_folder(path, "training", files)


# From finished trainings to figures, tests and sentences


def describe_rates(rates: Mapping[str, float], chosen: Sequence[str]) -> str:
    """Where the learning rates come from, and what that means for the comparison."""
    defaults = [f"{name} {rate:g}" for name, rate in rates.items() if name not in chosen]
    given = [f"{name} {rates[name]:g}" for name in chosen]
    said = [f"as given: {', '.join(given)}"] if given else []
    if not defaults:
        return f"Learning rates {said[0]}."
    said.append(f"each optimizer's default, not tuned: {', '.join(defaults)}")
    warning = "With a rate tuned by --search an optimizer may do better, and the order may change."
    return f"Learning rates {'; '.join(said)}. {warning}"


def _read_records(plan: OptimizersPlan, folder: Path) -> dict[str, list[Record]]:
    """The trainings by optimizer, in the order of the seeds, as records of a comparison."""
    found: dict[str, list[Record]] = {}
    for name in plan.rates:
        for seed in plan.seeds:
            path = plan.comparison().path(folder, name, seed)
            stored = Run(path).result
            each = [one["seconds"] for one in stored["epochs"]]
            stored["seconds_per_epoch"] = sum(each) / len(each)
            values = {one.key: stored[one.key] for one in _FIGURES}
            there = {key: float(value) for key, value in values.items() if value is not None}
            found.setdefault(name, []).append(Record(seed, Run(path), path, there))
    return found


def judge(plan: OptimizersPlan, folder: Path) -> ComparisonResult:
    """Judge the finished trainings."""
    tables = plan.tables()
    records = _read_records(plan, folder)
    every = [one for rows in records.values() for one in rows]
    columns = [one for one in _FIGURES if all(one.key in record.values for record in every)]
    comparison = plan.comparison()
    variants = [_describe(plan, folder, name, rows, columns) for name, rows in records.items()]
    comparisons = compare_all(comparison, records, columns[0], set(), item="text")
    return ComparisonResult(
        study="optimizers",
        varied="optimizer, with its learning rate",
        title=f"{', '.join(records)}: which fine-tunes {short_name(plan.asked.model)} better?",
        question=f"The same {plural(len(tables.train.rows), 'text')}, seeds and epochs for each, judged text by text on"
        f" {tables.dev.source}.",
        command=plan.asked.command,
        seconds=round(sum(one.values["seconds"] for one in every), 1),
        seeds=plan.seeds,
        order=tuple(comparison.order()),
        facts=plan.asked.describe(tables),
        figures=tuple(columns),
        variants=tuple(variants),
        comparisons=tuple(comparisons),
        paired=tuple(difference(a, b, column, records) for a, b in comparison.compared() for column in columns[1:]),
        verdict=(
            _verdict(variants, comparisons, len(plan.seeds)),
            describe_rates(plan.rates, plan.chosen),
            *_diverged(records),
            *notes_on(records),
            *(f"Look at the data: {one}." for one in tables.warnings),
        ),
        environment={**environment(), **versions()},
        settings={name: _without_seed(plan.settings(name, 0)) for name in records},
    )


def _without_seed(settings: FineTuning) -> dict[str, str | int | float]:
    return {key: value for key, value in asdict(settings).items() if key != "seed"}


def _describe(
    plan: OptimizersPlan, folder: Path, name: str, rows: Sequence[Record], columns: Sequence[Figure]
) -> VariantResult:
    spread = {}
    for column in columns:
        found = spread_of([row.values[column.key] for row in rows], column.kind)
        # Epochs are a few whole numbers, shown one by one.
        spread[column.key] = replace(found, low=None, high=None) if column.kind == "epoch" else found
    origin = "given" if name in plan.chosen else "default"
    return VariantResult(
        name,
        name == next(iter(plan.rates)),
        {"optimizer": name, "learning rate": plan.rates[name], "rate": origin},
        spread,
        tuple(
            SeedRun(row.seed, os.path.relpath(row.folder, folder), row.values, epochs=tuple(row.run.result["epochs"]))
            for row in rows
        ),
    )


def _diverged(records: Mapping[str, Sequence[Record]]) -> list[str]:
    """The optimizers whose final loss is not a number: a sign of the rate rather than of the optimizer."""
    found = {name: [row.seed for row in rows if "loss" not in row.values] for name, rows in records.items()}
    why = "its loss is not a number. Give it a smaller rate."
    return [
        f"{name} diverged with {plural(len(seeds), 'seed')} of {len(records[name])}: {why}"
        for name, seeds in found.items()
        if seeds
    ]


def _verdict(tried: Sequence[VariantResult], comparisons: Sequence[Comparison], seeds: int) -> str:
    """Which comes first, and which it is shown to be better than."""
    best = max(tried, key=lambda one: one.values["accuracy"].mean or 0.0)
    over: dict[bool, list[str]] = {True: [], False: []}
    for one in comparisons:
        if best.name in (one.a, one.b):
            over[one.shown].append(one.b if one.a == best.name else one.a)
    mean = f"{percent(best.values['accuracy'].mean or 0.0)} of labels right"
    mean += f", mean of {seeds} seeds" if seeds > 1 else ""
    said = [f"shown to be better than {listed(over[True], 'or')}"] if over[True] else []
    said += [f"not shown to be better than {listed(over[False], 'or')}"] if over[False] else []
    return f"{best.name} comes first with {mean}; it is {', and '.join(said)}."


STUDY = Study(
    plan=OptimizersPlan,
    name=lambda _: "optimizers",
    check=lambda plan: plan.asked.check("has no optimizer to choose"),
    fingerprints=lambda plan: plan.asked.fingerprints(plan.tables()),
    train=train,
    judge=lambda plan, folder, _: judge(plan, folder),
    document=lambda result: document(restored(ComparisonResult, result)),
)
