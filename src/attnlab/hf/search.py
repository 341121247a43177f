"""Which batch size, learning rate and number of epochs? A search that sees the validation table only, within a budget.

Optuna proposes settings (with its tree-structured Parzen estimator), ends trials early that lie below the median of the
others at the same share of their schedule, and stores everything in the folder of the study, from which a search that was
stopped continues. Then the best settings are trained once more, by `make_classifier`, with the same seed; only that model is
kept, and only it is measured on the test table, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from rich.console import Console

from attnlab.hf.classify import Classification, Epoch, Measured, fine_tune, make_classifier, short_name
from attnlab.hf.loading import PACKAGES
from attnlab.hf.tuning import Tuning, TuningResult
from attnlab.lm.progress import display, say
from attnlab.lm.stages import Show
from attnlab.report.document import Cell, Column, Document, Row, Table, Text, section
from attnlab.report.parts import accuracy_cell, cell, text_column
from attnlab.report.words import count, duration, interval, percent, plural
from attnlab.stats import Chosen, chosen_best, proportion_interval
from attnlab.store import records
from attnlab.store.folders import is_written
from attnlab.studies.study import study

_TRIALS = 12  # if neither their number nor a time is given
_BATCHES = (16, 32, 64)
_FEWEST_EPOCHS = 2
_BELOW, _ABOVE = 5.0, 10.0  # how far the rate may lie below and above the given one, as factors
_RANDOM_FIRST = 4  # trials before the estimator and the median are used
_PARTS = 4  # of a schedule, after each of which trials are compared


@dataclass(frozen=True)
class Trial:
    """One trial; of one that was ended early, its best epoch so far."""

    number: int
    batch_size: int
    lr: float
    epochs: int
    pruned: bool
    right: int
    texts: int
    accuracy: float
    low: float
    high: float
    best_epoch: int
    seconds: float

    def __str__(self) -> str:
        return f"batch {self.batch_size}, rate {self.lr:.3g}, {plural(self.epochs, 'epoch')}"


@dataclass(frozen=True, kw_only=True)
class SearchResult(TuningResult):
    """The result of a search; `dev` and `test` are those of the model that was kept."""

    kind: str = "search"
    trials: tuple[Trial, ...]
    best: int  # the number of the best trial
    corrected: Chosen | None  # its accuracy, corrected for the choice
    accuracy: float | None  # on the test table
    dev: Measured
    test: Measured | None


@study("search", own_command=True)
class Search(Tuning[SearchResult]):
    """Search batch size, learning rate and number of epochs on the validation table."""

    trials: int = 0  # at most; 0: no limit
    minutes: float = 0.0  # after which no new trial starts; 0: no limit

    packages: ClassVar[tuple[str, ...]] = (*PACKAGES, "optuna")

    def completed(self) -> Self:
        """Set the usual number of trials if no budget was given."""
        return self if self.trials or self.minutes else replace(self, trials=_TRIALS)

    @property
    def space(self) -> dict[str, Any]:
        """What is tried, around the given settings, which are the first trial."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        settings = self.settings
        return {
            "batch_size": CategoricalDistribution(sorted({*_BATCHES, settings.batch_size})),
            "lr": FloatDistribution(settings.rate / _BELOW, settings.rate * _ABOVE, log=True),
            "epochs": IntDistribution(min(_FEWEST_EPOCHS, settings.epochs), settings.epochs),
        }

    def stored(self, folder: Path) -> Any:
        """Return Optuna's study in the folder; a new one begins with the given settings."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        search = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / "trials.log"))),
            study_name="search",
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_RANDOM_FIRST),
        )
        settings = self.settings
        first = {"batch_size": settings.batch_size, "lr": settings.rate, "epochs": settings.epochs}
        search.enqueue_trial(first, skip_if_exists=True)
        for trial in search.get_trials(states=[optuna.trial.TrialState.RUNNING]):  # stopped before it was finished
            search.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            search.enqueue_trial(trial.params)
        return search

    def train(self, folder: Path, console: Console) -> None:
        """Try what the budget allows, and train the best once more."""
        import optuna

        search = self.stored(folder)
        say(console, f"budget: {self.budget()}; {plural(len(self.finished(search)), 'trial')} done")
        while not self.is_spent(trials := self.finished(search)):
            # Another seed for every trial, the same after a stop.
            seed = (1000 * self.settings.seed + len(trials)) % 2**32
            search.sampler = optuna.samplers.TPESampler(n_startup_trials=_RANDOM_FIRST, seed=seed)
            with display(f"trial {len(trials) + 1}", console) as show:
                self.try_settings(search, search.ask(self.space), show)
            trial = self.finished(search)[-1]
            early = ", ended early" if trial.pruned else ""
            right = f"{percent(trial.accuracy)} right in epoch {trial.best_epoch}"
            say(console, f"trial {trial.number}: {trial}: {right}, {duration(trial.seconds)}{early}")
        best = best_of(trials)
        say(console, f"the best is trial {best.number}: trained once more, and kept in {folder / 'best'}")
        if not is_written(folder / "best" / "result.json"):
            settings = replace(self.settings, batch_size=best.batch_size, lr=best.lr, epochs=best.epochs)
            with display("the best settings", console) as show:
                make_classifier(self.model, self.tables, settings, folder / "best", show, self.command)

    def budget(self) -> str:
        """The budget in words."""
        trials = [f"at most {plural(self.trials, 'trial')}"] if self.trials else []
        return ", ".join(trials + ([f"no new trial after {self.minutes:g} minutes"] if self.minutes else []))

    def is_spent(self, trials: Sequence[Trial]) -> bool:
        """Whether the budget is spent; there is always one trial."""
        seconds = sum(trial.seconds for trial in trials)
        return bool(trials) and (0 < self.trials <= len(trials) or 0 < 60 * self.minutes <= seconds)

    def try_settings(self, search: Any, trial: Any, show: Show) -> None:
        """Train proposed settings, to the end or until they fall behind."""
        import optuna

        epochs: list[Epoch] = []
        settings = replace(self.settings, **trial.params)

        def watch(epoch: Epoch) -> None:
            epochs.append(epoch)
            best = max(epochs, key=lambda epoch: epoch.dev_accuracy)
            trial.set_user_attr("best_epoch", best.epoch)
            # Equal shares of schedules are compared: the rate of a short one falls to zero sooner.
            part = _PARTS * epoch.epoch // settings.epochs
            if part > _PARTS * (epoch.epoch - 1) // settings.epochs:
                trial.report(best.dev_accuracy, part)
                if part < _PARTS and trial.should_prune():
                    raise optuna.TrialPruned

        show.line(", ".join(f"{name} {value:.3g}" for name, value in trial.params.items()))
        try:
            outcome = fine_tune(self.model, self.judged, settings, None, show, watch)
        except optuna.TrialPruned:
            search.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            trial.set_user_attr("right", list(map(int, outcome.right)))
            search.tell(trial, outcome.accuracy)

    def finished(self, search: Any) -> list[Trial]:
        """List the finished trials in their order."""
        from optuna.trial import TrialState

        texts, trials = len(self.tables.dev.rows), list[Trial]()
        for stored in search.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]):
            right = round(stored.value * texts)
            trials.append(
                Trial(
                    len(trials) + 1,
                    **stored.params,
                    pruned=stored.state == TrialState.PRUNED,
                    right=right,
                    texts=texts,
                    accuracy=stored.value,
                    low=proportion_interval(right, texts)[0],
                    high=proportion_interval(right, texts)[1],
                    best_epoch=stored.user_attrs["best_epoch"],
                    seconds=stored.duration.total_seconds(),
                )
            )
        return trials

    def judge(self, folder: Path, console: Console) -> SearchResult:
        """Judge the trials, and the best settings trained once more."""
        search, kept = self.stored(folder), records.read(Classification, folder / "best" / "result.json")
        trials = self.finished(search)
        right = [trial.user_attrs["right"] for trial in search.get_trials() if "right" in trial.user_attrs]
        corrected = chosen_best(right) if len(right) > 1 and len(right[0]) > 1 else None
        return SearchResult(
            title=f"{short_name(self.model)} on {self.tables.train.source}: which settings?",
            command=self.command,
            seconds=sum(trial.seconds for trial in trials) + kept.seconds,
            facts={
                **self.facts(),
                "budget": self.budget(),
                "space": ", ".join(f"{name}: {values}" for name, values in self.space.items()),
            },
            settings=self.settings,
            trials=tuple(trials),
            best=best_of(trials).number,
            corrected=corrected,
            accuracy=kept.test.accuracy if kept.test else None,
            dev=kept.dev,
            test=kept.test,
            verdict=tuple(_verdict(trials, corrected, kept)),
            warnings=self.tables.warnings,
        )

    def document(self, result: SearchResult) -> Document:
        """Return the trials one by one."""
        where = (
            "The best settings were trained once more with the same seed: the folder best has the model and its report."
        )
        return self.report(result, *section("Trials", _trials_table(result), Text([where])))


def best_of(trials: Sequence[Trial]) -> Trial:
    """The finished trial with the most right labels on validation; of equals, the earliest."""
    return max((trial for trial in trials if not trial.pruned), key=lambda trial: (trial.right, -trial.number))


def _verdict(trials: Sequence[Trial], corrected: Chosen | None, kept: Classification) -> Iterator[str]:
    """What came out, and how far to trust it."""
    best, first = best_of(trials), trials[0]
    yield (
        f"The best of {plural(len(trials), 'trial')}: {best}, {percent(best.accuracy)} of {count(best.texts)} validation"
        f" texts right, in epoch {best.best_epoch}; the settings it started from: {percent(first.accuracy)}."
    )
    if len(trials) > 1:
        yield (
            f"It is the highest of {len(trials)}, chosen on the same texts it is measured on, and therefore optimistic: other"
            " texts will likely give less, and settings with nearly as many right may be as good."
        )
    if corrected:
        yield (
            f"Settings chosen on some of the texts have {percent(corrected.corrected)} on the rest; the epoch was still"
            " chosen on all."
        )
    if kept.test:
        yield (
            f"On the test table, measured once with the best settings: {percent(kept.test.accuracy)} of"
            f" {count(kept.test.texts)} texts right (95 % interval {interval(kept.test.low, kept.test.high)})."
        )
    else:
        yield "No test table was given: an unbiased figure needs texts on which nothing was chosen (--test)."
    if kept.dev.right != best.right:
        yield (
            f"Trained once more with the same seed it has {percent(kept.dev.accuracy)} on validation: rounding depends on"
            " the machine and the number of threads."
        )


def _trials_table(result: SearchResult) -> Table:
    rows = [
        Row(
            Cell(str(trial.number), trial.number),
            [
                cell(trial.batch_size, "count"),
                Cell(f"{trial.lr:.3g}", trial.lr),
                cell(trial.epochs, "count"),
                cell(trial.best_epoch, "count"),
                accuracy_cell(trial),
                cell(trial.seconds, "seconds"),
                Cell("ended early" if trial.pruned else "to the end"),
            ],
            "best" if trial.number == result.best else "",
            "good",
        )
        for trial in result.trials
    ]
    minor = {title: Column(title, minor=True) for title in ("Epochs", "Best epoch", "Time")}
    names = ("Trial", "Batch", "Learning rate", "Epochs", "Best epoch", "Validation", "Time")
    titles = [minor.get(name, Column(name)) for name in names]
    caption = (
        "Below each accuracy the 95 % interval of that trial alone, which ignores that the best of many is chosen. Ended"
        " early: below the median of the others at the same share of its schedule."
    )
    return Table("Trials", caption, [*titles, text_column("Trained", minor=True)], rows, brief=True)
