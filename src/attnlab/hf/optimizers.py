"""Which optimizer? The same encoder, tables, seeds and epochs, fine-tuned once by each optimizer with each seed.

Order, folders, tests and report are those of a comparison; the texts of the validation table are its questions. The test
table is never read. Trainings that are finished are kept, so that a study that was stopped goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError, unknown
from attnlab.hf import RATES, FineTuning, Outcome, fine_tune, optimizers_judge
from attnlab.hf.asked import Asked, check, fingerprints
from attnlab.progress import display, say
from attnlab.report import strict
from attnlab.report.words import duration, plural
from attnlab.runs import environment, reporting_damage, to_json, write_folder
from attnlab.studies.compare import Plan
from attnlab.studies.compare.plan import seed_numbers
from attnlab.studies.compare.specimens import Specimen
from attnlab.studies.study import Study

__all__ = ["STUDY", "Trainings", "begin", "make_plan"]


@dataclass(frozen=True)
class Trainings:
    """The whole study: what is fine-tuned, the rate of every optimizer, those whose rate was chosen by the user, seeds."""

    asked: Asked
    rates: Mapping[str, float]
    chosen: tuple[str, ...]
    seeds: tuple[int, ...]

    @classmethod
    @reporting_damage(Path("study.json"))
    def stored(cls, values: Mapping[str, Any]) -> Trainings:
        """What to_dict gave."""
        lists = {key: tuple(values[key]) for key in ("chosen", "seeds")}
        return cls(Asked.stored(values["asked"]), dict(values["rates"]), **lists)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def tables(self) -> Tables:
        """What is learned from and judged on."""
        return replace(self.asked.tables(), test=None)

    def settings(self, name: str, seed: int) -> FineTuning:
        """The settings of one training."""
        changed: dict[str, Any] = {"optimizer": name, "lr": self.rates[name], "seed": seed}
        return replace(self.asked.settings, **changed)

    def comparison(self) -> Plan:
        """The same as a comparison of each with each."""
        specimens = tuple(map(Specimen, self.rates))
        return Plan(specimens, "optimizer", self.seeds, exam=self.asked.dev or "topics:dev", all_pairs=True)


def read_rates(text: str) -> dict[str, float]:
    """Optimizers joined by commas, each with a rate if it is to have another than its own: adamw=3e-5,sgd."""
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
        raise UserError(f"--optimizers compares two or more, such as adamw,sgd; for one alone say --optimizer {text}")
    return found


def make_plan(asked: Asked, optimizers: str, seeds: int | Sequence[int] | None = None) -> Trainings:
    """The study as a user asks for it."""
    given = read_rates(optimizers)
    if asked.test:
        raise UserError(
            "--optimizers judges on validation: leave --test out, and measure it once with the one you choose"
        )
    if asked.settings.lr:
        raise UserError(
            "one --lr does not suit all optimizers: give rates by name, such as --optimizers adamw=3e-5,sgd=0.02"
        )
    if asked.settings.optimizer != FineTuning.optimizer or asked.settings.seed:
        raise UserError("--optimizers and --seeds say which: leave out --optimizer and --seed")
    chosen = tuple(name for name, rate in given.items() if rate)
    rates = {name: rate or RATES[name] for name, rate in given.items()}
    return Trainings(asked.absolute(), rates, chosen, seed_numbers(seeds))


def check_plan(plan: Trainings) -> None:
    """Find mistakes before anything is trained."""
    check(plan.asked, plan.tables(), "has no optimizer to choose")


def sums(plan: Trainings) -> dict[str, str]:
    """Checksums of the tables and the model."""
    return fingerprints(plan.asked, plan.tables())


def conclude(folder: Path, plan: Trainings, console: Console) -> dict[str, Any]:
    """Train what is not trained yet, judge, and write the result and the report."""
    tables = plan.tables()
    train_all(folder, plan, tables, console)
    result: dict[str, Any] = strict(optimizers_judge.judge(plan, folder, tables))
    return result


def train_all(folder: Path, plan: Trainings, tables: Tables, console: Console) -> None:
    """Every training that is not there yet, one after the other: so their times can be compared."""
    order, path = plan.comparison().order(), plan.comparison().path
    waiting = [one for one in order if not path(folder, *one).exists()]
    say(
        console,
        f"{len(plan.rates)} optimizers x {plural(len(plan.seeds), 'seed')} = {len(order)} trainings,"
        f" {plural(plan.asked.settings.epochs, 'epoch')} each; {len(order) - len(waiting)} are done",
    )
    say(console, optimizers_judge.about_rates(plan.rates, plan.chosen))
    for number, (name, seed) in enumerate(waiting, start=1):
        began = time.perf_counter()
        with display(f"{name}, seed {seed}", console) as show:
            outcome = fine_tune(plan.asked.model, tables, plan.settings(name, seed), show=show)
        keep(path(folder, name, seed), plan.settings(name, seed), outcome)
        left = (len(waiting) - number) * (time.perf_counter() - began)
        more = f"; about {duration(left)} for the other {len(waiting) - number}" if number == 1 and left else ""
        say(
            console,
            f"{len(order) - len(waiting) + number} of {len(order)}: {name}, seed {seed}:"
            f" {100 * outcome.accuracy:.1f} % right in epoch {outcome.best_epoch}, {duration(outcome.seconds)}{more}",
        )


def keep(path: Path, settings: FineTuning, outcome: Outcome) -> None:
    """Write a finished training down: its epochs, and right or wrong text by text."""
    import torch

    result = {
        "settings": asdict(settings),
        "accuracy": outcome.accuracy,
        "loss": outcome.dev.loss,
        "best_epoch": outcome.best_epoch,
        "epochs": [asdict(one) for one in outcome.epochs],
        "seconds": outcome.seconds,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "padding": outcome.padding,
        "facts": dict(outcome.facts),
        "threads": torch.get_num_threads(),
    }
    files = {
        "result.json": to_json(strict(result)),
        "env.json": to_json(environment()),
        "right.csv": "".join(f"{line}\n" for line in ("right", *map(int, outcome.right))).encode(),
    }
    write_folder(path, "training", files)


STUDY = Study(Trainings.stored, check_plan, sums, conclude, lambda _: "optimizers")
begin = STUDY.begin
