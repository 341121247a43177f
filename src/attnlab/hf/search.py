"""Which batch size, learning rate and number of epochs? A search that sees the validation table only, within a stated budget.

Optuna proposes settings (with its tree-structured Parzen estimator); a trial below the median of the others at the same share
of its schedule is ended early. Every trial is a file, complete or absent, and the sampler of each is seeded by its number: a
search that was stopped continues as if it had not been. Then the best settings are trained once more, by `make_classifier`,
with the same seed; only that model is kept, and only it is measured on the test table, once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab.corpora.labelled import Tables
from attnlab.errors import AttnlabError, Interrupted, UserError
from attnlab.hf.classify import Epoch, Request, fine_tune, make_classifier, short_name
from attnlab.hf.loading import PACKAGES
from attnlab.hf.settings import FineTuning
from attnlab.lm.progress import display, say
from attnlab.machine import cores
from attnlab.report import strict
from attnlab.report.classification import search_document
from attnlab.report.words import duration, interval, percent, plural
from attnlab.stats import Chosen, chosen_best, proportion_interval
from attnlab.store.folders import add_files, is_written, read_json, reporting_damage, to_json, write_folder, write_json
from attnlab.store.records import flat, plain, restored
from attnlab.studies.legacy import Result, Study, StudyResult
from attnlab.studies.workers import (
    PAUSE,
    Attempts,
    Command,
    exit_code_of,
    lock_when_free,
    opened,
    read_workers,
    stop_all,
)

__all__ = ["STUDY", "SearchPlan", "make_plan"]

_TRIALS = 12  # if the user gives neither their number nor a time
_BATCHES = (16, 32, 64)
_FEWEST_EPOCHS = 2
_BELOW, _ABOVE = 5.0, 10.0  # how far the rate may lie below and above the given one, as factors
_RANDOM_FIRST = 4  # trials before the estimator and the median are used
_ON_CLUSTER = 4  # trials at a time on a cluster
_PARTS = 4  # of a schedule, after each of which trials are compared


class Pruned(Exception):
    """Ends a trial that is not worth finishing."""


# Plan, space and trials


@dataclass(frozen=True)
class Params:
    """What is searched for."""

    batch_size: int
    lr: float
    epochs: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, rate {self.lr:.3g}, {plural(self.epochs, 'epoch')}"


@dataclass(frozen=True)
class _Space:
    """What is tried: these batch sizes, and everything between the lowest and the highest rate and number of epochs."""

    batch_size: tuple[int, ...]
    lr: tuple[float, float]
    epochs: tuple[int, int]

    def __str__(self) -> str:
        fewest, most = self.epochs
        batches = ", ".join(map(str, self.batch_size))
        epochs = f"{fewest} to {plural(most, 'epoch')}" if fewest < most else plural(most, "epoch")
        return f"batches of {batches}; rates from {self.lr[0]:g} to {self.lr[1]:g}; {epochs}; judged on validation only"

    def distributions(self) -> dict[str, Any]:
        """The space as Optuna describes it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        return {
            "batch_size": CategoricalDistribution(self.batch_size),
            "lr": FloatDistribution(*self.lr, log=True),
            "epochs": IntDistribution(*self.epochs),
        }


@dataclass(frozen=True)
class Trial:
    """A trial as it is stored; of one that was ended early, its best epoch so far."""

    number: int
    params: Params
    pruned: bool
    accuracy: float
    right: int
    texts: int
    best_epoch: int
    epochs: tuple[Epoch, ...]
    outcomes: str | None  # 1 for every text of validation that is right, else 0; None if it was ended early
    reached: Mapping[str, float]  # the best accuracy after each part of the schedule
    seconds: float

    @classmethod
    def read(cls, path: Path) -> Trial:
        """A stored trial."""
        with reporting_damage(path):
            return restored(cls, read_json(path))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of its accuracy."""
        return proportion_interval(self.right, self.texts)


@dataclass(frozen=True)
class SearchPlan:
    """The whole study: what is fine-tuned, and the budget; 0 means no limit."""

    asked: Request
    trials: int = _TRIALS
    minutes: float = 0.0
    workers: int | str = 1

    @property
    def at_a_time(self) -> int:
        """How many trials run at a time."""
        return self.workers if isinstance(self.workers, int) else _ON_CLUSTER

    def space(self) -> _Space:
        """The space around the given settings, which are the first trial."""
        given = self.asked.settings
        return _Space(
            tuple(sorted({*_BATCHES, given.batch_size})),
            (given.rate / _BELOW, given.rate * _ABOVE),
            (min(_FEWEST_EPOCHS, given.epochs), given.epochs),
        )

    def is_spent(self, trials: Sequence[Trial], running: int = 0) -> bool:
        """Whether the budget is spent by finished and running trials; there is always one trial."""
        if not trials and not running:
            return False
        seconds = sum(one.seconds for one in trials) / self.at_a_time
        return 0 < self.trials <= len(trials) + running or 0 < 60 * self.minutes <= seconds

    def budget(self) -> str:
        """The budget in words."""
        many = f"at most {self.trials} trials" if self.trials else ""
        long = f"no new trial after {self.minutes:g} minutes" if self.minutes else ""
        return ", ".join(part for part in (many, long) if part)

    def settings(self, params: Params) -> FineTuning:
        """The settings of a trial."""
        return replace(self.asked.settings, batch_size=params.batch_size, lr=params.lr, epochs=params.epochs)


def make_plan(
    asked: Request, trials: int | None = None, minutes: float | None = None, workers: int | str = 1
) -> SearchPlan:
    """The study that a user asks for."""
    if trials is not None and trials < 1:
        raise UserError(f"--trials must be at least 1, not {trials}")
    if minutes is not None and not 0 < minutes < 1e6:
        raise UserError(f"--minutes must be above 0, not {minutes:g}")
    return SearchPlan(asked.absolute(), trials or (0 if minutes else _TRIALS), minutes or 0.0, read_workers(workers))


# Trials


def train(plan: SearchPlan, folder: Path, console: Console) -> None:
    """Try what the budget allows, and train the best once more.

    Which settings are tried next, and which are the best, follows from the trials before: they are compared here.
    """
    tables = plan.asked.tables
    trials = _try_all(plan, folder / "trials", replace(tables, test=None), console)
    best = best_of(trials)
    say(console, f"the best is trial {best.number}: trained once more, and kept in {folder / 'best'}")
    if not is_written(folder / "best" / "result.json"):
        with display("the best settings", console) as show:
            settings = plan.settings(best.params)
            make_classifier(plan.asked.model, tables, settings, folder / "best", show, plan.asked.command)
    add_files(folder, {"trials.tsv": "".join(_table(trials)).encode()})


def _read_trials(folder: Path) -> list[Trial]:
    return [Trial.read(path) for path in sorted(folder.glob("[0-9]*.json")) if is_written(path)]


def _try_all(plan: SearchPlan, folder: Path, tables: Tables, console: Console) -> list[Trial]:
    """Every trial that the budget still allows; the tables are without the test table."""
    if not folder.exists():
        write_folder(folder, "trials", {})
    trials = _read_trials(folder)
    say(console, f"budget: {plan.budget()}, then the best once more; {len(trials)} trials are done")
    say(console, f"tried: {plan.space()}")
    finished = (
        _one_by_one(plan, tables, trials, console) if plan.workers == 1 else _together(plan, folder, trials, console)
    )
    for one in finished:
        add_files(folder, {f"{one.number:04d}.json": to_json(strict(plain(one)))})
        trials.append(one)
        early = ", ended early" if one.pruned else ""
        right = f"{percent(one.accuracy)} right in epoch {one.best_epoch}"
        say(console, f"trial {one.number}: {one.params}: {right}, {duration(one.seconds)}{early}")
        if one.number == 1:
            say(console, estimate(plan, one.seconds))
    return sorted(trials, key=lambda one: one.number)


def _one_by_one(plan: SearchPlan, tables: Tables, trials: Sequence[Trial], console: Console) -> Iterator[Trial]:
    """Trials in this process, each proposed from all before it; the caller adds them to `trials`."""
    while not plan.is_spent(trials):
        yield _one_trial(plan, tables, trials, len(trials) + 1, console)


def _together(plan: SearchPlan, folder: Path, trials: Sequence[Trial], console: Console) -> Iterator[Trial]:
    """Several trials at a time, each in a process of its own; the caller adds them to `trials` as they end."""
    logs, running = folder.resolve() / "logs", dict[int, Attempts]()
    logs.mkdir(exist_ok=True)
    threads = max(1, cores() // plan.at_a_time)
    with opened(plan.workers) as workers:
        say(console, f"{plan.at_a_time} trials at a time on {workers.place}")
        try:
            while running or not plan.is_spent(trials):
                while len(running) < plan.at_a_time and not plan.is_spent(trials, len(running)):
                    used = {*running, *(one.number for one in trials)}
                    number = next(one for one in itertools.count(1) if one not in used)
                    words = str(logs.parent), str(number), str(threads)
                    command = Command("attnlab.hf.search", words, logs / f"{number:04d}.txt", threads)
                    running[number] = Attempts(workers, command, f"trial {number}", console)
                time.sleep(PAUSE)
                for number, task in list(running.items()):
                    if (code := task.poll()) is None:
                        continue
                    del running[number]
                    if code == Interrupted.exit_code:
                        raise Interrupted(task.failure())
                    if code != 0:
                        raise AttnlabError(f"trial {number} failed: {task.failure()} (its output: {task.command.log})")
                    yield Trial.read(logs / f"{number:04d}.json")
        finally:
            stop_all(list(running.values()))


def main(arguments: list[str]) -> int:
    """One trial in its own process: FOLDER NUMBER THREADS; errors are reported in one line."""
    import torch

    folder, number, threads = Path(arguments[0]), *map(int, arguments[1:])

    def work() -> None:
        with lock_when_free(folder / "logs", f"{number:04d}.lock"):
            torch.set_num_threads(threads)
            plan = restored(SearchPlan, read_json(folder.parent / "study.json")["plan"])
            tables = replace(plan.asked.tables, test=None)
            one = _one_trial(plan, tables, _read_trials(folder), number, Console(quiet=True))
            write_json(folder / "logs" / f"{number:04d}.json", strict(plain(one)))

    return exit_code_of(work)


def estimate(plan: SearchPlan, first: float) -> str:
    """How long the rest may take: the first trial has the most epochs, the others the mean number."""
    low, high = plan.space().epochs
    mean = first * (low + high) / (2 * high)
    rest = [(plan.trials - 1) * mean / plan.at_a_time] if plan.trials else []
    rest += [max(0.0, 60 * plan.minutes - first)] if plan.minutes else []
    return f"the first took {duration(first)}: the others may take about {duration(min(rest))}, and the best once more"


def _one_trial(plan: SearchPlan, tables: Tables, trials: Sequence[Trial], number: int, console: Console) -> Trial:
    """Propose settings and train them, to the end or until they fall behind."""
    proposed = rebuild_study(plan, trials, number).ask(plan.space().distributions())
    params, epochs, outcome = Params(**proposed.params), list[Epoch](), None
    began = time.perf_counter()
    with display(f"trial {number}", console) as show:
        show.line(str(params))
        with suppress(Pruned):
            watch = watcher(proposed, epochs, params.epochs)
            outcome = fine_tune(plan.asked.model, tables, plan.settings(params), None, show, watch)
    best, texts = max(epochs, key=lambda one: one.dev_accuracy), len(tables.dev.rows)
    return Trial(
        number,
        params,
        outcome is None,
        best.dev_accuracy,
        round(best.dev_accuracy * texts),
        texts,
        best.epoch,
        tuple(epochs),
        "".join(map(str, map(int, outcome.right))) if outcome else None,
        {str(part): value for part, value in proposed.study.trials[-1].intermediate_values.items()},
        time.perf_counter() - began,
    )


def watcher(proposed: Any, epochs: list[Epoch], planned: int) -> Callable[[Epoch], None]:
    """Records the epochs of a trial, reports to Optuna after every part of the schedule, and ends what falls behind."""

    def watch(one: Epoch) -> None:
        epochs.append(one)
        part = _PARTS * one.epoch // planned
        if part > _PARTS * (one.epoch - 1) // planned:
            proposed.report(max(each.dev_accuracy for each in epochs), part)
            if part < _PARTS and proposed.should_prune():
                raise Pruned

    return watch


def rebuild_study(plan: SearchPlan, trials: Sequence[Trial], number: int | None = None) -> Any:
    """Optuna's study with all finished trials, for the next trial or that of a number; the first has the given settings."""
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    number = len(trials) + 1 if number is None else number
    seed = 1000 * plan.asked.settings.seed + number - 1  # another for every trial, the same after a stop
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(n_startup_trials=_RANDOM_FIRST, seed=seed % 2**32),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=_RANDOM_FIRST),
    )
    for one in trials:
        study.add_trial(
            create_trial(
                state=TrialState.PRUNED if one.pruned else TrialState.COMPLETE,
                value=one.accuracy,
                params=asdict(one.params),
                distributions=plan.space().distributions(),
                intermediate_values={int(part): value for part, value in one.reached.items()},
            )
        )
    if number == 1:
        given = plan.asked.settings
        study.enqueue_trial(asdict(Params(given.batch_size, given.rate, given.epochs)))
    return study


# The verdict


@dataclass(frozen=True)
class Score:
    """Right labels of the kept model on one table."""

    right: int
    texts: int
    accuracy: float
    low: float
    high: float

    @classmethod
    def of(cls, measured: Result) -> Score:
        """The score in the result of a classification."""
        return cls(*(measured[key] for key in ("right", "texts", "accuracy", "low", "high")))


@dataclass(frozen=True)
class _RatedTrial:
    """A trial with the 95 % interval of its accuracy."""

    trial: Trial = flat()
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True, kw_only=True)
class _SearchResult(StudyResult):
    """The result of a search."""

    kind: str = "search"
    study: str = "search"
    budget: dict[str, int | float | str | None]
    space: _Space
    tried: str
    optimizer: str
    trials: list[_RatedTrial]
    best: int
    params: Params
    corrected: Chosen | None
    accuracy: float | None
    dev: Score
    test: Score | None
    folder: str = "best"
    verdict: list[str]
    warnings: Sequence[str]
    data: dict[str, str | list[str]]
    settings: FineTuning


def best_of(trials: Sequence[Trial]) -> Trial:
    """The finished trial with the most right labels on validation; of equals, the earliest."""
    return max((one for one in trials if not one.pruned), key=lambda one: (one.right, -one.number))


def _table(trials: Sequence[Trial]) -> Iterator[str]:
    """The lines of trials.tsv."""
    columns = ("trial", "batch_size", "lr", "epochs", "best_epoch", "accuracy", "low", "high", "seconds", "pruned")
    yield "\t".join(columns) + "\n"
    for one in trials:
        tried = one.params.batch_size, one.params.lr, one.params.epochs
        found = one.best_epoch, one.accuracy, *one.interval, one.seconds, "yes" if one.pruned else "no"
        values = (one.number, *tried, *found)
        yield "\t".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values) + "\n"


def _corrected(trials: Sequence[Trial]) -> Chosen | None:
    """The best accuracy corrected for the choice, if there was one to make among finished trials."""
    finished = [one.outcomes for one in trials if one.outcomes is not None]
    if len(finished) < 2 or len(finished[0]) < 2:
        return None
    return chosen_best([[int(sign) for sign in one] for one in finished])


def verdict(trials: Sequence[Trial], dev: Score, test: Score | None) -> list[str]:
    """What came out, and how far to trust it; the scores are those of the kept model."""
    best, first, many = best_of(trials), trials[0], len(trials)
    said = [
        f"The best of {plural(many, 'trial')}: {best.params}, {percent(best.accuracy)} of {best.texts:,} validation texts"
        f" right, in epoch {best.best_epoch}."
    ]
    if best is not first:
        gain = 100 * (best.right - first.right) / best.texts
        said.append(f"That is {gain:.1f} points more than the settings it started from ({percent(first.accuracy)}).")
    if many > 1:
        less = ""
        if found := _corrected(trials):
            share = percent(found.corrected)
            less = f" Settings chosen on some of the texts have {share} on the rest; the epoch was still chosen on all."
        said.append(
            f"It is the highest of {many}, chosen on the same texts it is measured on, and therefore optimistic: other texts"
            f" will likely give less, and settings with nearly as many right may be as good.{less}"
        )
    if test:
        said.append(
            f"On the test table, measured once with the best settings: {percent(test.accuracy)} of {test.texts:,} texts right"
            f" (95 % interval {interval(test.low, test.high)})."
        )
    else:
        said.append("No test table was given: an unbiased figure needs texts on which nothing was chosen (--test).")
    if dev.right != best.right:
        said.append(
            f"Trained once more with the same seed it has {percent(dev.accuracy)} on validation: rounding depends on the"
            " machine and the number of threads."
        )
    return said


def judge(plan: SearchPlan, folder: Path, _console: Console) -> _SearchResult:
    """Judge the trials, and the best settings trained once more."""
    tables, trials, kept = plan.asked.tables, _read_trials(folder / "trials"), read_json(folder / "best/result.json")
    best, dev = best_of(trials), Score.of(kept["dev"])
    test = Score.of(kept["test"]) if kept["test"] else None
    return _SearchResult(
        title=f"{short_name(plan.asked.model)} on {tables.train.source}: which settings?",
        command=plan.asked.command,
        seconds=round(sum(one.seconds for one in trials) + kept["seconds"], 1),
        budget={"trials": plan.trials or None, "minutes": plan.minutes or None, "words": plan.budget()},
        space=plan.space(),
        tried=str(plan.space()),
        optimizer=plan.asked.settings.optimizer,
        trials=[_RatedTrial(one, *one.interval) for one in trials],
        best=best.number,
        params=best.params,
        corrected=_corrected(trials),
        accuracy=test.accuracy if test else None,
        dev=dev,
        test=test,
        verdict=verdict(trials, dev, test),
        warnings=tables.warnings,
        data=plan.asked.describe(tables),
        settings=plan.asked.settings,
        environment={**kept["environment"], "optuna": version("optuna")},
    )


STUDY = Study(
    plan=SearchPlan,
    name=lambda _: "search",
    check=lambda plan: plan.asked.check("chooses its strength by itself", (*PACKAGES, "optuna")),
    fingerprints=lambda plan: plan.asked.fingerprints(plan.asked.tables),
    train=train,
    judge=judge,
    document=search_document,
)
