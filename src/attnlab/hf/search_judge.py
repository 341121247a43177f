"""From the trials of a search to what may be said: the best of them, and how far to trust it. Plain data; trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from attnlab.corpora.labelled import Tables
from attnlab.hf.asked import data_of
from attnlab.report.words import duration, interval, percent, plural
from attnlab.stats import chosen_best, proportion_interval

if TYPE_CHECKING:
    from attnlab.hf.search import Search

Trial = Mapping[str, Any]
COLUMNS = ("trial", "batch_size", "lr", "epochs", "best_epoch", "accuracy", "low", "high", "seconds", "pruned")


def best_of(trials: Sequence[Trial]) -> Trial:
    """The finished trial with the most right labels on validation; the earliest of equals."""
    return max((one for one in trials if not one["pruned"]), key=lambda one: (one["right"], -one["number"]))


def settings_in_words(params: Mapping[str, Any]) -> str:
    """The settings of a trial."""
    return f"batch {params['batch_size']}, rate {params['lr']:.3g}, {plural(params['epochs'], 'epoch')}"


def about_space(space: Mapping[str, Any]) -> str:
    """What is tried."""
    low, high = space["lr"]
    fewest, most = space["epochs"]
    batches = ", ".join(map(str, space["batch_size"]))
    epochs = f"{fewest} to {plural(most, 'epoch')}" if fewest < most else plural(most, "epoch")
    return f"batches of {batches}; rates from {low:g} to {high:g}; {epochs}; judged on validation only"


def in_a_line(one: Trial) -> str:
    """A trial on the screen."""
    early = ", ended early" if one["pruned"] else ""
    return (
        f"{settings_in_words(one['params'])}: {percent(one['accuracy'])} right in epoch {one['best_epoch']},"
        f" {duration(one['seconds'])}{early}"
    )


def with_interval(one: Trial) -> dict[str, Any]:
    """A trial for the table, with the interval of its accuracy."""
    low, high = proportion_interval(one["right"], one["texts"])
    return {**one, "low": low, "high": high}


def as_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """All trials as the lines of a table."""
    yield "\t".join(COLUMNS)
    for one in map(with_interval, trials):
        values = {**one, **one["params"], "trial": one["number"], "pruned": "yes" if one["pruned"] else "no"}
        yield "\t".join(f"{value:.6g}" if isinstance(value := values[name], float) else str(value) for name in COLUMNS)


def corrected(trials: Sequence[Trial]) -> dict[str, Any] | None:
    """The best accuracy without what the choice flatters by, where there was one to make among finished trials."""
    finished = [one["outcomes"] for one in trials if not one["pruned"]]
    if len(finished) < 2 or len(finished[0]) < 2:
        return None
    return asdict(chosen_best([[int(sign) for sign in one] for one in finished]))


def verdict(best: Trial, trials: Sequence[Trial], kept: Mapping[str, Any]) -> list[str]:
    """What came out, and how far to trust it."""
    many, first = len(trials), trials[0]
    said = [
        f"The best of {plural(many, 'trial')}: {settings_in_words(best['params'])}, {percent(best['accuracy'])} of"
        f" {best['texts']:,} validation texts right, in epoch {best['best_epoch']}."
    ]
    if best is not first:
        gain = 100 * (best["right"] - first["right"]) / best["texts"]
        said.append(f"That is {gain:.1f} points more than the settings it started from ({percent(first['accuracy'])}).")
    if many > 1:
        found = corrected(trials)
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
        "tried": about_space(plan.space()),
        "optimizer": plan.asked.settings.optimizer,
        "trials": [with_interval(one) for one in trials],
        "best": best["number"],
        "params": best["params"],
        "corrected": corrected(trials),
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
