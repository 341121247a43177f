"""Which batch size, learning rate and number of epochs? A search that sees the validation table only, within a stated budget.

Optuna proposes (its tree-structured Parzen estimator); a trial that lies below the median of the others at the same share of
its schedule is ended early. Every trial is a file, whole or not there, and the sampler of each is seeded by its number: so a
search that was stopped goes on as if it had not been. Then the best settings are trained once more, by `make_classifier`, with
the same seed; only there is a model kept, and the test table measured, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError
from attnlab.folders import add_files, is_written, read_json, reporting_damage, to_json, write_folder
from attnlab.hf.classify import Asked, check, data_of, fine_tune, fingerprints, make_classifier
from attnlab.hf.loading import PACKAGES
from attnlab.hf.outcome import Epoch, Outcome
from attnlab.hf.settings import FineTuning
from attnlab.progress import display, say
from attnlab.report import strict
from attnlab.report.words import duration, interval, percent, plural
from attnlab.stats import chosen_best, proportion_interval
from attnlab.studies.study import Result, Study

__all__ = ["STUDY", "Search", "begin", "make_plan"]
TRIALS = 12  # where the user says neither their number nor a time
BATCHES = (16, 32, 64)
FEWEST_EPOCHS = 2
BELOW, ABOVE = 5.0, 10.0  # how far the rate may lie below and above the one it starts from
RANDOM_FIRST = 4  # trials before the estimator and the median say anything
PARTS = 4  # of a schedule, after which trials are held against each other
COLUMNS = ("trial", "batch_size", "lr", "epochs", "best_epoch", "accuracy", "low", "high", "seconds", "pruned")
Trial = Mapping[str, Any]


class Pruned(Exception):
    """Ends a trial that is not worth finishing."""


@dataclass(frozen=True)
class Search:
    """The whole study: what is fine-tuned, and the budget; 0 is no limit."""

    asked: Asked
    trials: int = TRIALS
    minutes: float = 0.0

    @classmethod
    @reporting_damage(Path("study.json"))
    def restore(cls, values: Mapping[str, Any]) -> Search:
        """The plan from what study.json holds."""
        return cls(**{**values, "asked": Asked.restore(values["asked"])})

    def space(self) -> dict[str, Any]:
        """What is tried: around the given settings, which are the first trial."""
        given = self.asked.settings
        return {
            "batch_size": sorted({*BATCHES, given.batch_size}),
            "lr": [given.rate / BELOW, given.rate * ABOVE],
            "epochs": [min(FEWEST_EPOCHS, given.epochs), given.epochs],
        }

    def over(self, trials: list[dict[str, Any]]) -> bool:
        """Whether the budget is spent; one trial there is always."""
        spent = sum(one["seconds"] for one in trials)
        return bool(trials) and (
            (self.trials and len(trials) >= self.trials) or (self.minutes and spent >= 60 * self.minutes) or False
        )

    def budget(self) -> str:
        """The budget in words."""
        many = f"at most {self.trials} trials" if self.trials else ""
        long = f"no new trial after {self.minutes:g} minutes" if self.minutes else ""
        return ", ".join(part for part in (many, long) if part)


def make_plan(asked: Asked, trials: int | None = None, minutes: float | None = None) -> Search:
    """The study as a user asks for it."""
    if trials is not None and trials < 1:
        raise UserError(f"--trials must be at least 1, not {trials}")
    if minutes is not None and not 0 < minutes < 1e6:
        raise UserError(f"--minutes must be above 0, not {minutes:g}")
    return Search(asked.absolute(), trials or (0 if minutes else TRIALS), minutes or 0.0)


def _conclude(folder: Path, plan: Search, console: Console) -> Result:
    """Try what the budget allows, train the best once more, and judge."""
    tables = plan.asked.tables()
    trials = _try_all(folder, plan, replace(tables, test=None), console)
    best = best_of(trials)
    settings = _settings_of(plan, best["params"])
    say(console, f"the best is trial {best['number']}: trained once more, and kept in {folder / 'best'}")
    kept = folder / "best" / "result.json"
    if not is_written(kept):
        with display("the best settings", console) as show:
            make_classifier(plan.asked.model, tables, settings, folder / "best", show, plan.asked.command)
    result: dict[str, Any] = strict(judge(plan, trials, read_json(kept), tables))
    lines = "".join(f"{line}\n" for line in _as_lines(trials))
    add_files(folder, {"trials.tsv": lines.encode()})
    return result


def _settings_of(plan: Search, params: Mapping[str, Any]) -> FineTuning:
    """The settings of a trial."""
    return replace(plan.asked.settings, **params)


def _try_all(folder: Path, plan: Search, tables: Tables, console: Console) -> list[dict[str, Any]]:
    """Every trial that the budget still allows; the tables are those without the test table."""
    kept = folder / "trials"
    if not kept.exists():
        write_folder(kept, "trials", {})
    trials = [read_json(path) for path in sorted(kept.glob("[0-9]*.json")) if is_written(path)]
    say(console, f"budget: {plan.budget()}, then the best once more; {len(trials)} trials are done")
    say(console, f"tried: {_about_space(plan.space())}")
    while not plan.over(trials):
        number = len(trials) + 1
        one = _one_trial(plan, tables, trials, console)
        add_files(kept, {f"{number:04d}.json": to_json(one)})
        trials.append(one)
        say(console, f"trial {number}: {_in_a_line(one)}")
        if number == 1:
            say(console, estimate(plan, one["seconds"]))
    return trials


def estimate(plan: Search, first: float) -> str:
    """How long the rest may take: the first has the most epochs, the others as many on average as lie in the middle."""
    low, high = plan.space()["epochs"]
    mean = first * (low + high) / (2 * high)
    rest = [(plan.trials - 1) * mean] if plan.trials else []
    rest += [max(0.0, 60 * plan.minutes - first)] if plan.minutes else []
    return f"the first took {duration(first)}: the others may take about {duration(min(rest))}, and the best once more"


def _one_trial(plan: Search, tables: Tables, trials: list[dict[str, Any]], console: Console) -> dict[str, Any]:
    """Propose settings and train them, to the end or until they fall behind."""
    study = rebuilt(plan, trials)
    proposed = study.ask(distributions(plan))
    number, began, epochs = len(trials) + 1, time.perf_counter(), list[Epoch]()
    settings, outcome = _settings_of(plan, proposed.params), None
    with display(f"trial {number}", console) as show:
        show.line(_settings_in_words(proposed.params))
        with suppress(Pruned):
            outcome = fine_tune(
                plan.asked.model, tables, settings, None, show, watcher(proposed, epochs, settings.epochs)
            )
    return _recorded(number, proposed, epochs, outcome, len(tables.dev.rows), time.perf_counter() - began)


def _recorded(
    number: int, proposed: Any, epochs: list[Epoch], outcome: Outcome | None, texts: int, seconds: float
) -> dict[str, Any]:
    """A trial as it is kept; of one that was ended early, its best epoch so far."""
    best = max(epochs, key=lambda one: one.dev_accuracy)
    found: dict[str, Any] = strict(
        {
            "number": number,
            "params": proposed.params,
            "pruned": outcome is None,
            "accuracy": best.dev_accuracy,
            "right": round(best.dev_accuracy * texts),
            "texts": texts,
            "best_epoch": best.epoch,
            "epochs": [asdict(one) for one in epochs],
            "outcomes": "".join(map(str, map(int, outcome.right))) if outcome else None,
            "reached": {str(part): value for part, value in proposed.study.trials[-1].intermediate_values.items()},
            "seconds": seconds,
        }
    )
    return found


def watcher(proposed: Any, epochs: list[Epoch], planned: int) -> Callable[[Epoch], None]:
    """Writes the epochs of a trial down, tells optuna after every part of the schedule, and ends what falls behind."""

    def watch(one: Epoch) -> None:
        epochs.append(one)
        part = PARTS * one.epoch // planned
        if part > PARTS * (one.epoch - 1) // planned:
            proposed.report(max(each.dev_accuracy for each in epochs), part)
            if part < PARTS and proposed.should_prune():
                raise Pruned

    return watch


def distributions(plan: Search) -> dict[str, Any]:
    """The space as optuna knows it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    space = plan.space()
    slowest, fastest = space["lr"]
    return {
        "batch_size": CategoricalDistribution(space["batch_size"]),
        "lr": FloatDistribution(slowest, fastest, log=True),
        "epochs": IntDistribution(*space["epochs"]),
    }


def rebuilt(plan: Search, trials: list[dict[str, Any]]) -> Any:
    """Optuna's study with all trials that there are, and the given settings as the first of all."""
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = 1000 * plan.asked.settings.seed + len(trials)  # another for every trial, the same after a stop
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(n_startup_trials=RANDOM_FIRST, seed=seed % 2**32),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=RANDOM_FIRST),
    )
    for one in trials:
        study.add_trial(
            create_trial(
                state=TrialState.PRUNED if one["pruned"] else TrialState.COMPLETE,
                value=one["accuracy"],
                params=one["params"],
                distributions=distributions(plan),
                intermediate_values={int(part): value for part, value in one["reached"].items()},
            )
        )
    if not trials:
        given = plan.asked.settings
        study.enqueue_trial({"batch_size": given.batch_size, "lr": given.rate, "epochs": given.epochs})
    return study


# From trials to what may be said


def best_of(trials: Sequence[Trial]) -> Trial:
    """The finished trial with the most right labels on validation; the earliest of equals."""
    return max((one for one in trials if not one["pruned"]), key=lambda one: (one["right"], -one["number"]))


def _settings_in_words(params: Mapping[str, Any]) -> str:
    """The settings of a trial."""
    return f"batch {params['batch_size']}, rate {params['lr']:.3g}, {plural(params['epochs'], 'epoch')}"


def _about_space(space: Mapping[str, Any]) -> str:
    """What is tried."""
    low, high = space["lr"]
    fewest, most = space["epochs"]
    batches = ", ".join(map(str, space["batch_size"]))
    epochs = f"{fewest} to {plural(most, 'epoch')}" if fewest < most else plural(most, "epoch")
    return f"batches of {batches}; rates from {low:g} to {high:g}; {epochs}; judged on validation only"


def _in_a_line(one: Trial) -> str:
    """A trial on the screen."""
    early = ", ended early" if one["pruned"] else ""
    return (
        f"{_settings_in_words(one['params'])}: {percent(one['accuracy'])} right in epoch {one['best_epoch']},"
        f" {duration(one['seconds'])}{early}"
    )


def _with_interval(one: Trial) -> dict[str, Any]:
    """A trial for the table, with the interval of its accuracy."""
    low, high = proportion_interval(one["right"], one["texts"])
    return {**one, "low": low, "high": high}


def _as_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """All trials as the lines of a table."""
    yield "\t".join(COLUMNS)
    for one in map(_with_interval, trials):
        values = {**one, **one["params"], "trial": one["number"], "pruned": "yes" if one["pruned"] else "no"}
        yield "\t".join(f"{value:.6g}" if isinstance(value := values[name], float) else str(value) for name in COLUMNS)


def _corrected(trials: Sequence[Trial]) -> dict[str, Any] | None:
    """The best accuracy without what the choice flatters by, where there was one to make among finished trials."""
    finished = [one["outcomes"] for one in trials if not one["pruned"]]
    if len(finished) < 2 or len(finished[0]) < 2:
        return None
    return asdict(chosen_best([[int(sign) for sign in one] for one in finished]))


def verdict(best: Trial, trials: Sequence[Trial], kept: Mapping[str, Any]) -> list[str]:
    """What came out, and how far to trust it."""
    many, first = len(trials), trials[0]
    said = [
        f"The best of {plural(many, 'trial')}: {_settings_in_words(best['params'])}, {percent(best['accuracy'])} of"
        f" {best['texts']:,} validation texts right, in epoch {best['best_epoch']}."
    ]
    if best is not first:
        gain = 100 * (best["right"] - first["right"]) / best["texts"]
        said.append(f"That is {gain:.1f} points more than the settings it started from ({percent(first['accuracy'])}).")
    if many > 1:
        found = _corrected(trials)
        less = ""
        if found:
            share = percent(found["corrected"])
            less = f" Settings chosen on some of the texts have {share} on the rest; the epoch was still chosen on all."
        said.append(
            f"It is the highest of {many}, chosen on the very texts it is counted on, and therefore optimistic: other texts"
            f" will likely give less, and settings with nearly as many right may be as good.{less}"
        )
    if kept["test"]:
        one = kept["test"]
        said.append(
            f"On the test table, measured once with the best settings: {percent(one['accuracy'])} of {one['texts']:,} texts"
            f" right (95 % interval {interval(one['low'], one['high'])})."
        )
    else:
        said.append("No test table was given: an honest figure needs texts that chose nothing (--test).")
    if kept["dev"]["right"] != best["right"]:
        said.append(
            f"Trained once more with the same seed it has {percent(kept['dev']['accuracy'])} on validation: not every"
            " machine and number of threads rounds alike."
        )
    return said


def judge(plan: Search, trials: Sequence[Trial], kept: Mapping[str, Any], tables: Tables) -> dict[str, Any]:
    """The result, ready for JSON and for the report; `kept` is that of the best settings, trained once more."""
    best = best_of(trials)
    return {
        "kind": "search",
        "study": "search",
        "title": f"{plan.asked.called} on {tables.train.source}: which settings?",
        "command": plan.asked.command,
        "finished": date.today().isoformat(),
        "seconds": round(sum(one["seconds"] for one in trials) + kept["seconds"], 1),
        "budget": {"trials": plan.trials or None, "minutes": plan.minutes or None, "words": plan.budget()},
        "space": plan.space(),
        "tried": _about_space(plan.space()),
        "optimizer": plan.asked.settings.optimizer,
        "trials": [_with_interval(one) for one in trials],
        "best": best["number"],
        "params": best["params"],
        "corrected": _corrected(trials),
        "accuracy": kept["test"]["accuracy"] if kept["test"] else None,
        "dev": {key: kept["dev"][key] for key in ("right", "texts", "accuracy", "low", "high")},
        "test": {key: kept["test"][key] for key in ("right", "texts", "accuracy", "low", "high")}
        if kept["test"]
        else None,
        "folder": "best",
        "verdict": verdict(best, trials, kept),
        "warnings": list(tables.warnings),
        "data": data_of(plan.asked, tables),
        "settings": asdict(plan.asked.settings),
        "environment": {**kept["environment"], "optuna": version("optuna")},
    }


STUDY = Study(
    restore=Search.restore,
    check=lambda plan: check(plan.asked, plan.asked.tables(), "chooses its strength by itself", (*PACKAGES, "optuna")),
    fingerprints=lambda plan: fingerprints(plan.asked, plan.asked.tables()),
    judge=_conclude,
    name=lambda _: "search",
)
begin = STUDY.begin
