"""A search for settings: within its budget, on validation only, the same after a stop, and the test table measured once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnlab import stats, studies
from attnlab.corpora.labelled import Tables
from attnlab.errors import Interrupted
from attnlab.hf import Epoch, FineTuning, Outcome, search
from attnlab.hf.classify import Request
from attnlab.hf.search import (
    Params,
    Pruned,
    Score,
    SearchPlan,
    Trial,
    best_of,
    estimate,
    make_plan,
    rebuild_study,
    verdict,
    watcher,
)
from attnlab.store.folders import read_json
from attnlab.store.records import plain, restored
from verbs import call

TRIALS = 3


def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="module")
def predicted() -> list[int]:
    """How many trials were there whenever something was predicted."""
    return []


@pytest.fixture(scope="module")
def made(roberta: Path, files: Path, tmp_path_factory: pytest.TempPathFactory, predicted: list[int]) -> Path:
    """A finished search by the verb, with a test table."""
    from transformers import Trainer

    folder, real = tmp_path_factory.mktemp("searches") / "search", Trainer.predict

    def counted(self: Any, rows: Any, *more: Any, **named: Any) -> Any:
        assert len(rows) == 30
        predicted.append(len(list((folder / "trials").glob("[0-9]*.json"))))
        return real(self, rows, *more, **named)

    tables = (files / "train.tsv", files / "dev.tsv", "--test", files / "test.tsv")
    options = ("--search", "--trials", str(TRIALS), "--epochs", "2", "--lr", "0.003", "--batch_size", "16")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "predict", counted)
        assert call("classify", *tables, "--model", roberta, *options, "--out", folder) == 0
    return folder


def test_the_test_table_is_measured_once_when_everything_is_chosen(made: Path, predicted: list[int]) -> None:
    assert predicted == [TRIALS]
    result, kept = read_json(made / "result.json"), read_json(made / "best" / "result.json")
    assert result["test"]["right"] == kept["test"]["right"]
    assert result["accuracy"] == kept["test"]["accuracy"]
    assert (made / "best" / "model" / "config.json").is_file()


def test_its_report_is_written_again(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", made, "--out", tmp_path / "again") == 0
    for name in ("report.html", "report.md"):
        assert (tmp_path / "again" / name).read_text() == (made / name).read_text()
    assert call("report", made, "--json") == 0
    capsys.readouterr()
    assert call("evaluate", made) == 2
    assert f"{made / 'best'} is a transformers classifier already" in capsys.readouterr().err


def test_the_best_is_kept_and_the_table_is_whole(made: Path) -> None:
    result = read_json(made / "result.json")
    assert len(result["trials"]) == TRIALS
    best = result["trials"][result["best"] - 1]
    finished = [one for one in result["trials"] if not one["pruned"]]
    assert best["right"] == max(one["right"] for one in finished)
    kept = read_json(made / "best" / "result.json")
    assert {key: kept["settings"][key] for key in best["params"]} == best["params"]
    assert kept["dev"]["right"] == best["right"]  # the same seed
    for one in result["trials"]:
        assert (one["low"], one["high"]) == stats.proportion_interval(one["right"], 40)
        assert one["params"]["epochs"] == 2
        assert 0.0006 <= one["params"]["lr"] <= 0.03
        assert one["params"]["batch_size"] in (16, 32, 64)
    outcomes = [[int(sign) for sign in one["outcomes"]] for one in finished]
    assert [sum(row) for row in outcomes] == [one["right"] for one in finished]
    assert result["corrected"]["corrected"] == stats.chosen_best(outcomes).corrected
    lines = [line.split("\t") for line in (made / "trials.tsv").read_text().splitlines()]
    assert [line[0] for line in lines] == ["trial", "1", "2", "3"]
    assert lines[1][1:4] == ["16", "0.003", "2"]  # what was given comes first
    for name in ("report.html", "report.md"):
        text = (made / name).read_text()
        assert "therefore optimistic" in text
        assert "measured once" in text


def test_going_on_is_as_if_it_had_not_stopped(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    before, last = read_json(copy / "result.json"), copy / "trials" / f"{TRIALS:04d}.json"
    trial = read_json(last)
    (copy / "result.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(search, "fine_tune", None)
        patched.setattr(search, "make_classifier", None)
        assert studies.resume(copy, quiet()) == before
    for path in (copy / "result.json", last):
        path.unlink()
    asked: list[Tables] = []
    real = search.fine_tune

    def watched(model: str, tables: Tables, *more: Any) -> Outcome:
        asked.append(tables)
        return real(model, tables, *more)

    monkeypatch.setattr(search, "fine_tune", watched)
    studies.resume(copy, quiet())
    again = read_json(last)
    assert [one.test for one in asked] == [None]
    for key in ("params", "accuracy", "outcomes", "pruned", "best_epoch", "reached"):
        assert again[key] == trial[key]


@pytest.mark.cluster
def test_several_trials_at_a_time(made: Path, roberta: Path, files: Path, tmp_path: Path) -> None:
    """The first trial is that of a search one by one, all are there, and the test table is measured in the end."""
    tables = (files / "train.tsv", files / "dev.tsv", "--test", files / "test.tsv")
    options = ("--search", "--trials", str(TRIALS), "--epochs", "2", "--lr", "0.003", "--batch_size", "16")
    folder = tmp_path / "search"
    assert call("classify", *tables, "--model", roberta, *options, "--out", folder, "--workers", "2") == 0
    result, alone = read_json(folder / "result.json"), read_json(made / "result.json")
    assert [one["number"] for one in result["trials"]] == [1, 2, 3]
    for key in ("params", "accuracy", "outcomes", "reached"):
        assert result["trials"][0][key] == alone["trials"][0][key]
    assert result["test"]["texts"] == alone["test"]["texts"]
    (folder / "result.json").unlink()
    (folder / "trials" / "0002.json").unlink()
    assert [one["number"] for one in studies.resume(folder, quiet())["trials"]] == [1, 2, 3]


def test_stopped_it_keeps_its_trials(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    for path in (copy / "result.json", copy / "trials" / f"{TRIALS:04d}.json"):
        path.unlink()

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "fine_tune", stopped)
    with pytest.raises(Interrupted, match="attnlab resume"):
        studies.resume(copy, quiet())
    assert len(list((copy / "trials").glob("[0-9]*.json"))) == TRIALS - 1


# Budget, space, pruning: no training


def plan_of(settings: FineTuning | None = None, **budget: Any) -> SearchPlan:
    return make_plan(Request("a-model", settings or FineTuning()), **budget)


def trial(number: int, accuracy: float, *, pruned: bool = False, seconds: float = 30.0) -> Trial:
    reached = {str(part): accuracy for part in ((1, 2) if pruned else (1, 2, 3, 4))}
    right = round(40 * accuracy)
    outcomes = None if pruned else "1" * right + "0" * (40 - right)
    return Trial(number, Params(32, 5e-5, 4), pruned, accuracy, right, 40, 1, (), outcomes, reached, seconds)


def epoch(number: int, accuracy: float) -> Epoch:
    return Epoch(number, 0.5, 0.5, 0.5, accuracy, 1.0)


def test_the_space_lies_around_the_optimizers_rate() -> None:
    space = plan_of().space()
    assert (space.batch_size, space.lr, space.epochs) == ((16, 32, 64), pytest.approx((1e-5, 5e-4)), (2, 10))
    assert plan_of(FineTuning(optimizer="sgd")).space().lr == pytest.approx((2e-3, 0.1))
    own = plan_of(FineTuning(batch_size=8, epochs=1)).space()
    assert (own.batch_size, own.epochs) == ((8, 16, 32, 64), (1, 1))


def test_the_budget() -> None:
    assert plan_of().budget() == "at most 12 trials"
    both = plan_of(trials=3, minutes=2)
    assert both.budget() == "at most 3 trials, no new trial after 2 minutes"
    assert not both.is_spent([])
    assert not both.is_spent([trial(1, 0.5)] * 2)
    assert both.is_spent([trial(1, 0.5)] * 3)
    assert both.is_spent([trial(1, 0.5, seconds=120.0)])
    timed = plan_of(minutes=1.0)
    assert (timed.trials, timed.is_spent([trial(1, 0.5)])) == (0, False)
    assert timed.is_spent([trial(1, 0.5)] * 2)
    assert restored(SearchPlan, plain(both)) == both
    assert estimate(plan_of(trials=11), 10.0).startswith("the first took 10.0 s: the others may take about 1 min 00 s")


def test_the_given_settings_come_first_and_proposals_do_not_depend_on_stops() -> None:
    plan = plan_of(FineTuning(batch_size=8, lr=1e-4, epochs=6, seed=3))
    assert rebuild_study(plan, []).ask(plan.space().distributions()).params == {
        "batch_size": 8,
        "lr": 1e-4,
        "epochs": 6,
    }
    before = [trial(1, 0.5), trial(2, 0.7, pruned=True)]
    first, second = (rebuild_study(plan, before).ask(plan.space().distributions()).params for _ in range(2))
    assert first == second
    assert rebuild_study(plan, before[:1]).ask(plan.space().distributions()).params != first


def test_what_falls_behind_the_median_is_ended() -> None:
    plan = plan_of()
    others = [trial(number, share) for number, share in enumerate((0.6, 0.7, 0.8, 0.9), start=1)]

    def watch(trials: list[Trial], planned: int, *shares: float) -> list[Epoch]:
        proposed, epochs = rebuild_study(plan, trials).ask(plan.space().distributions()), list[Epoch]()
        for number, share in enumerate(shares, start=1):
            watcher(proposed, epochs, planned)(epoch(number, share))
        return epochs

    with pytest.raises(Pruned):
        watch(others, 4, 0.5)
    assert len(watch(others, 4, 0.8, 0.9, 0.9, 0.9)) == 4
    assert len(watch(others, 10, 0.1, 0.1)) == 2  # a fifth of the schedule: too early to tell
    with pytest.raises(Pruned):
        watch(others, 10, 0.1, 0.1, 0.1)
    assert len(watch(others, 2, 0.75, 0.1)) == 2  # at the end there is nothing left to save
    assert len(watch(others[:3], 4, 0.1)) == 1  # of three trials no median is taken


def test_the_earliest_of_the_best_and_never_one_that_was_ended() -> None:
    trials = [trial(1, 0.5), trial(2, 0.7), trial(3, 0.7), trial(4, 0.9, pruned=True)]
    assert best_of(trials).number == 2
    said = verdict(trials, Score(27, 40, 0.675, 0.5, 0.8), None)
    assert said[0].startswith(
        "The best of 4 trials: batch 32, rate 5e-05, 4 epochs, 70.0 % of 40 validation texts right"
    )
    assert said[1].startswith("That is 20.0 points more")
    assert "highest of 4" in said[2]
    assert said[3].startswith("No test table was given")
    assert "67.5 %" in said[4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--search", "--trials", "0"), "--trials must be at least 1"),
        (("--search", "--minutes", "0"), "--minutes must be above 0"),
        (("--trials", "3"), "are the budget of --search"),
        (("--search", "--model", "bag-of-words"), "bag-of-words chooses its strength by itself"),
        (("--search", "--model", "absent/folder/here"), "is not a folder: name the folder of an encoder"),
    ],
)
def test_wrong_searches_are_refused_in_one_line(
    options: tuple[str, ...], message: str, refused: Callable[[tuple[str, ...], str], None]
) -> None:
    refused(options, message)
