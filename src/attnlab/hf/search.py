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

from attnlab.hf import FineTuning
from attnlab.hf.classify import Classification, Epoch, Measured, fine_tune, make_classifier, short_name
from attnlab.hf.loading import PACKAGES
from attnlab.hf.tuning import Tuning, TuningResult
from attnlab.lm.progress import Show, display, say
from attnlab.report.document import Cell, Column, Document, Text, section
from attnlab.report.parts import Accuracy, accuracy_cell, cell, table_of, text_column
from attnlab.report.words import count, duration, percent, plural
from attnlab.stats import Chosen, chosen_best
from attnlab.store import records
from attnlab.store.folders import is_written
from attnlab.studies.study import study

_TRIALS = 12  # if neither their number nor a time is given
_BATCHES = (16, 32, 64)
_FEWEST_EPOCHS = 2
_BELOW, _ABOVE = 5.0, 10.0  # how far the rate may lie below and above the given one, as factors
_RANDOM_FIRST = 4  # trials before the estimator and the median are used
_PARTS = 4  # of a schedule, after each of which trials are compared


@dataclass(frozen=True, kw_only=True)
class Trial(Accuracy):
    """One trial; of one that was ended early, its best epoch so far."""

    number: int
    batch_size: int
    lr: float
    epochs: int
    pruned: bool
    best_epoch: int
    seconds: float

    def __str__(self) -> str:
        return f"batch {self.batch_size}, rate {self.lr:.3g}, {plural(self.epochs, 'epoch')}"


@dataclass(frozen=True, kw_only=True)
class SearchResult(TuningResult):
    """The result of a search; `accuracy` (on the test table), `dev` and `test` are those of the model that was kept."""

    trials: tuple[Trial, ...]
    best: int  # the number of the best trial
    corrected: Chosen | None  # its accuracy, corrected for the choice
    accuracy: float | None
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

    def stored(self, folder: Path) -> Any:
        """Return Optuna's study, which is stored in the folder."""
        import optuna
        from optuna.storages import JournalStorage, journal

        optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would print the traceback of a trial that is stopped
        return optuna.create_study(
            storage=JournalStorage(journal.JournalFileBackend(str(folder / "trials.log"))),
            study_name="search",
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_RANDOM_FIRST),
        )

    def train(self, folder: Path, console: Console) -> None:
        """Try what the budget allows, and train the best once more."""
        search = self.stored(folder)
        limits = [f"at most {plural(self.trials, 'trial')}"] if self.trials else []
        limits += [f"no new trial after {self.minutes:g} minutes"] if self.minutes else []
        say(console, f"budget: {', '.join(limits)}; {plural(len(self.finished(search)), 'trial')} done")
        while not self.is_spent(trials := self.finished(search)):
            with display(f"trial {len(trials) + 1}", console) as show:
                self.try_next(search, show)
            trial = self.finished(search)[-1]
            right = f"{percent(trial.accuracy)} right in epoch {trial.best_epoch}"
            early = ", ended early" if trial.pruned else ""
            say(console, f"trial {trial.number}: {trial}: {right}, {duration(trial.seconds)}{early}")
        best = best_of(trials)
        say(console, f"the best is trial {best.number}: trained once more, and kept in {folder / 'best'}")
        if not is_written(folder / "best" / "result.json"):
            settings = replace(self.settings, batch_size=best.batch_size, lr=best.lr, epochs=best.epochs)
            with display("the best settings", console) as show:
                make_classifier(self.model, self.tables, settings, folder / "best", show, self.command)

    def is_spent(self, trials: Sequence[Trial]) -> bool:
        """Whether the budget is spent; there is always one trial."""
        seconds = sum(trial.seconds for trial in trials)
        return bool(trials) and (0 < self.trials <= len(trials) or 0 < 60 * self.minutes <= seconds)

    def try_next(self, search: Any, show: Show) -> None:
        """Train the next proposal, to the end or until it falls behind; the first trial has the given settings.

        The proposal depends on the finished trials only, so that after a stop it is the one that was stopped.
        """
        from optuna import TrialPruned
        from optuna.samplers import TPESampler

        finished = len(self.finished(search))
        seed = (1000 * self.settings.seed + finished) % 2**32
        search.sampler = TPESampler(n_startup_trials=_RANDOM_FIRST, seed=seed)
        if not finished:
            first = self.settings
            search.enqueue_trial({"batch_size": first.batch_size, "lr": first.rate, "epochs": first.epochs})

        def objective(trial: Any) -> float:
            settings, epochs = self.propose(trial), list[Epoch]()

            def watch(epoch: Epoch) -> None:
                epochs.append(epoch)
                best = max(epochs, key=lambda epoch: epoch.dev_accuracy)
                trial.set_user_attr("best_epoch", best.epoch)
                # Equal shares of schedules are compared: the rate of a short one falls to zero sooner.
                part = _PARTS * epoch.epoch // settings.epochs
                if part > _PARTS * (epoch.epoch - 1) // settings.epochs:
                    trial.report(best.dev_accuracy, part)
                    if part < _PARTS and trial.should_prune():
                        raise TrialPruned

            show.line(", ".join(f"{name} {value:.3g}" for name, value in trial.params.items()))
            outcome = fine_tune(self.model, self.judged, settings, None, show, watch)
            trial.set_user_attr("right", list(map(int, outcome.right)))
            return outcome.accuracy

        search.optimize(objective, n_trials=1)

    def propose(self, trial: Any) -> FineTuning:
        """Return the settings that Optuna proposes, around the given ones."""
        settings = self.settings
        return replace(
            settings,
            batch_size=trial.suggest_categorical("batch_size", sorted({*_BATCHES, settings.batch_size})),
            lr=trial.suggest_float("lr", settings.rate / _BELOW, settings.rate * _ABOVE, log=True),
            epochs=trial.suggest_int("epochs", min(_FEWEST_EPOCHS, settings.epochs), settings.epochs),
        )

    def finished(self, search: Any) -> list[Trial]:
        """List the finished trials in their order."""
        from optuna.trial import TrialState

        texts = len(self.tables.dev.rows)
        return [
            Trial.of(
                round(stored.value * texts),
                texts,
                number=number,
                **stored.params,
                pruned=stored.state == TrialState.PRUNED,
                best_epoch=stored.user_attrs["best_epoch"],
                seconds=stored.duration.total_seconds(),
            )
            for number, stored in enumerate(search.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]), start=1)
        ]

    def judge(self, folder: Path, console: Console) -> SearchResult:
        """Judge the trials, and the best settings trained once more."""
        from optuna.trial import TrialState

        search, kept = self.stored(folder), records.read(Classification, folder / "best" / "result.json")
        trials = self.finished(search)
        right = [trial.user_attrs["right"] for trial in search.get_trials(states=[TrialState.COMPLETE])]
        corrected = chosen_best(right) if len(right) > 1 and len(right[0]) > 1 else None
        return SearchResult(
            tables=kept.tables,
            title=f"{short_name(self.model)} on {self.tables.train.source}: which settings?",
            seconds=sum(trial.seconds for trial in trials) + kept.seconds,
            trials=tuple(trials),
            best=best_of(trials).number,
            corrected=corrected,
            accuracy=kept.test.accuracy if kept.test else None,
            dev=kept.dev,
            test=kept.test,
            verdict=tuple(_verdict(trials, corrected, kept)),
        )

    def document(self, result: SearchResult) -> Document:
        """Return the trials one by one."""
        table = table_of(
            "Trials",
            "Below each accuracy the 95 % interval of that trial alone, which ignores that the best of many is chosen. Ended"
            " early: below the median of the others at the same share of its schedule.",
            result.trials,
            [
                (Column("Trial"), lambda trial: Cell(str(trial.number), trial.number)),
                ("Batch", lambda trial: cell(trial.batch_size, "count")),
                ("Learning rate", lambda trial: Cell(f"{trial.lr:.3g}", trial.lr)),
                (Column("Epochs", minor=True), lambda trial: cell(trial.epochs, "count")),
                (Column("Best epoch", minor=True), lambda trial: cell(trial.best_epoch, "count")),
                ("Validation", accuracy_cell),
                (Column("Time", minor=True), lambda trial: cell(trial.seconds, "seconds")),
                (text_column("Trained", True), lambda trial: Cell("ended early" if trial.pruned else "to the end")),
            ],
            mark=lambda trial: "best" if trial.number == result.best else "",
            brief=True,
        )
        kept = (
            "The best settings were trained once more with the same seed: the folder best has the model and its report."
        )
        return self.report(result, *section("Trials", table, Text([kept])))


def best_of(trials: Sequence[Trial]) -> Trial:
    """The finished trial with the most right labels on validation; of equals, the earliest."""
    return max((trial for trial in trials if not trial.pruned), key=lambda trial: (trial.right, -trial.number))


def _verdict(trials: Sequence[Trial], corrected: Chosen | None, kept: Classification) -> Iterator[str]:
    """What came out, and how far to trust it."""
    best = best_of(trials)
    yield (
        f"The best of {plural(len(trials), 'trial')}: {best}, {percent(best.accuracy)} of {count(best.texts)} validation"
        f" texts right, in epoch {best.best_epoch}; the settings it started from: {percent(trials[0].accuracy)}."
    )
    if corrected:
        yield (
            f"It is the highest of {len(trials)}, chosen on the texts it is measured on, and therefore optimistic: settings"
            f" chosen on some of the texts have {percent(corrected.corrected)} on the rest."
        )
    unknown = "No test table was given: an unbiased figure needs texts on which nothing was chosen (--test)."
    yield f"On the test table, measured once with the best settings: {kept.test}." if kept.test else unknown
