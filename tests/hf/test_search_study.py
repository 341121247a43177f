"""A search for settings: within its budget, on validation only, the same after a stop, and the test table measured once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from attnlab import stats, studies
from attnlab.corpora.labelled import Tables
from attnlab.hf import Classification, Epoch, FineTuning, Outcome, ScoredTable, search
from attnlab.hf.classify import ModelFacts
from attnlab.hf.search import Search, SearchResult, Trial, best_of
from attnlab.hf.tuning import TableFiles
from attnlab.lm.progress import QUIET
from attnlab.store import records
from attnlab.studies.study import load
from verbs import call

TRIALS = 3


def quiet() -> Console:
    return Console(quiet=True)


def result_of(folder: Path) -> SearchResult:
    return records.read(SearchResult, folder / "result.json")


@pytest.fixture(scope="module")
def predicted() -> list[int]:
    """How many trials were finished whenever something was predicted."""
    return []


@pytest.fixture(scope="module")
def finished(roberta: Path, files: Path, tmp_path_factory: pytest.TempPathFactory, predicted: list[int]) -> Path:
    """A finished search by the command, with a test table."""
    from transformers import Trainer

    folder, real = tmp_path_factory.mktemp("searches") / "search", Trainer.predict

    def counted(self: Any, rows: Any, *more: Any, **named: Any) -> Any:
        assert len(rows) == 30
        plan = load(folder)
        assert isinstance(plan, Search)
        predicted.append(len(plan.finished(plan.stored(folder))))
        return real(self, rows, *more, **named)

    tables = (files / "train.tsv", files / "dev.tsv", "--test", files / "test.tsv")
    options = ("--search", "--trials", str(TRIALS), "--epochs", "2", "--lr", "0.003", "--batch_size", "16")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "predict", counted)
        assert call("classify", *tables, "--model", roberta, *options, "--out", folder) == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_the_test_table_is_measured_once_when_everything_is_chosen(finished: Path, predicted: list[int]) -> None:
    assert predicted == [TRIALS]
    result, kept = result_of(finished), records.read(Classification, finished / "best" / "result.json")
    assert kept.test is not None
    assert (result.test, result.accuracy) == (kept.test, kept.test.accuracy)
    assert (finished / "best" / "model" / "config.json").is_file()


def test_its_report_is_written_again(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", finished, "--out", tmp_path / "again") == 0
    for name in ("report.html", "report.md"):
        assert (tmp_path / "again" / name).read_text() == (finished / name).read_text()
    assert call("report", finished, "--json") == 0
    capsys.readouterr()
    assert call("evaluate", finished) == 2
    assert f"{finished} is a study that has no model of its own: see `attnlab runs show" in capsys.readouterr().err


def test_the_best_is_kept_and_the_table_is_whole(finished: Path) -> None:
    result = result_of(finished)
    assert [trial.number for trial in result.trials] == [1, 2, 3]
    first, best = result.trials[0], result.trials[result.best - 1]
    assert (first.batch_size, first.lr, first.epochs) == (16, 0.003, 2)  # what was given comes first
    assert best.right == max(trial.right for trial in result.trials if not trial.pruned)
    kept = records.read(Classification, finished / "best" / "result.json")
    assert (kept.settings.batch_size, kept.settings.lr, kept.settings.epochs) == (best.batch_size, best.lr, best.epochs)
    assert kept.dev.right == best.right  # the same seed
    for trial in result.trials:
        assert (trial.low, trial.high) == stats.proportion_interval(trial.right, 40)
        assert (trial.epochs, trial.batch_size in (16, 32, 64)) == (2, True)
        assert 0.0006 <= trial.lr <= 0.03
    plan = load(finished)
    assert isinstance(plan, Search)
    right = [trial.user_attrs["right"] for trial in plan.stored(finished).trials if "right" in trial.user_attrs]
    assert [sum(row) for row in right] == [trial.right for trial in result.trials if not trial.pruned]
    assert result.corrected is not None
    assert result.corrected == stats.chosen_best(right)
    for name in ("report.html", "report.md"):
        text = (finished / name).read_text()
        assert "therefore optimistic" in text
        assert "measured once" in text


def test_resuming_a_finished_search_trains_nothing(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = result_of(copy)
    (copy / "result.json").unlink()
    monkeypatch.setattr(search, "fine_tune", None)
    monkeypatch.setattr(search, "make_classifier", None)
    studies.resume(copy, quiet())
    assert result_of(copy) == before


def test_a_stopped_search_continues_as_if_it_had_not_been(
    finished: Path, roberta: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (files / "train.tsv", files / "dev.tsv", "--test", files / "test.tsv")
    options = ("--search", "--trials", str(TRIALS), "--epochs", "2", "--lr", "0.003", "--batch_size", "16")
    folder, real, seen = tmp_path / "search", search.fine_tune, list[Tables]()

    def stopping(model: str, tables: Tables, settings: FineTuning, *more: Any) -> Outcome:
        seen.append(tables)
        outcome = real(model, tables, settings, *more)
        if len(seen) == 2:
            raise KeyboardInterrupt  # at the end of the second trial, before it is stored
        return outcome

    monkeypatch.setattr(search, "fine_tune", stopping)
    assert call("classify", *tables, "--model", roberta, *options, "--out", folder) == 130
    stored = optuna.load_study(study_name="search", storage=journal_of(folder))
    assert [trial.state.name for trial in stored.trials] == ["COMPLETE", "FAIL"]
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR  # no traceback of the stop
    studies.resume(folder, quiet())
    assert len(seen) == TRIALS + 1
    assert all(tables.test is None for tables in seen)
    for trial, expected in zip(result_of(folder).trials, result_of(finished).trials, strict=True):
        assert (trial.number, str(trial), trial.pruned) == (expected.number, str(expected), expected.pruned)
        assert (trial.right, trial.best_epoch) == (expected.right, expected.best_epoch)


def journal_of(folder: Path) -> Any:
    from optuna.storages import JournalStorage, journal

    return JournalStorage(journal.JournalFileBackend(str(folder / "trials.log")))


# Budget, space, pruning: no training


def plan_of(files: Path, settings: FineTuning | None = None, **budget: Any) -> Search:
    texts = TableFiles(files / "train.tsv", files / "dev.tsv")
    return Search(model="a-model", texts=texts, settings=settings or FineTuning(), **budget).completed()


def trial(number: int, accuracy: float, *, pruned: bool = False, seconds: float = 30.0) -> Trial:
    tried = {"number": number, "batch_size": 32, "lr": 5e-5, "epochs": 4}
    return Trial.of(round(40 * accuracy), 40, **tried, pruned=pruned, best_epoch=1, seconds=seconds)


def space_of(plan: Search) -> Any:
    """The distributions from which Optuna proposes."""
    trial = optuna.create_study().ask()
    plan.propose(trial)
    return trial.distributions


def test_the_space_lies_around_the_optimizers_rate(files: Path) -> None:
    space = space_of(plan_of(files))
    assert space["batch_size"].choices == (16, 32, 64)
    assert (space["lr"].low, space["lr"].high) == pytest.approx((1e-5, 5e-4))
    assert (space["epochs"].low, space["epochs"].high) == (2, 10)
    sgd = space_of(plan_of(files, FineTuning(optimizer="sgd")))["lr"]
    assert (sgd.low, sgd.high) == pytest.approx((2e-3, 0.1))
    own = space_of(plan_of(files, FineTuning(batch_size=8, epochs=1)))
    assert own["batch_size"].choices == (8, 16, 32, 64)
    assert (own["epochs"].low, own["epochs"].high) == (1, 1)


def test_the_budget(files: Path) -> None:
    assert plan_of(files).trials == 12
    both = plan_of(files, trials=3, minutes=2.0)
    assert not both.is_spent([])
    assert not both.is_spent([trial(1, 0.5)] * 2)
    assert both.is_spent([trial(1, 0.5)] * 3)
    assert both.is_spent([trial(1, 0.5, seconds=120.0)])
    timed = plan_of(files, minutes=1.0)
    assert (timed.trials, timed.is_spent([trial(1, 0.5)])) == (0, False)
    assert timed.is_spent([trial(1, 0.5)] * 2)


def test_what_falls_behind_the_median_is_ended(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four trials that end at 60 to 90 %, then one more: ended after a part of its schedule if it is below their median."""
    plan, shares = plan_of(files, FineTuning(epochs=4)), list[float]()

    def follow(_model: str, _tables: Tables, settings: FineTuning, _folder: None, _show: Any, watch: Any) -> Outcome:
        for number, share in enumerate(shares, start=1):
            watch(Epoch(number, 0.5, 0.5, 0.5, share, 1.0))
        dev = ScoredTable((0,) * 40, ((1.0, 0.0),) * 40, 0.5)
        facts = ModelFacts(architecture="none", parameters=1, vocabulary=1)
        return Outcome(seconds=1.0, facts=facts, labels=("a", "b"), dev=dev, test=None)

    def end(many: int, *last: float) -> bool:
        folder = tmp_path / f"{many}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        stored = plan.stored(folder)
        for curve in (*([accuracy] * 4 for accuracy in (0.6, 0.7, 0.8, 0.9)[:many]), last):
            shares[:] = curve
            if plan.finished(stored):  # the first has the given settings
                stored.enqueue_trial({"batch_size": 32, "lr": 5e-5, "epochs": 4})
            plan.try_next(stored, QUIET)
        return plan.finished(stored)[-1].pruned

    monkeypatch.setattr(search, "fine_tune", follow)
    assert end(4, 0.5)
    assert not end(4, 0.8, 0.9, 0.9, 0.9)
    assert not end(4, 0.75, 0.75, 0.75, 0.1)  # the best so far counts
    assert not end(3, 0.1)  # of three trials no median is taken


def test_the_earliest_of_the_best_and_never_one_that_was_ended() -> None:
    trials = [trial(1, 0.5), trial(2, 0.7), trial(3, 0.7), trial(4, 0.9, pruned=True)]
    assert best_of(trials).number == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--search", "--trials", "0"), "--trials must be at least 1"),
        (("--search", "--minutes", "0"), "--minutes must be above 0"),
        (("--trials", "3"), "are the budget of --search"),
        (("--search", "--model", "bag-of-words"), "bag-of-words has no optimizer and no epochs"),
        (("--search", "--model", "absent/folder/here"), "is not a folder: name the folder of an encoder"),
    ],
)
def test_wrong_searches_are_refused_in_one_line(
    options: tuple[str, ...], message: str, refused: Callable[[tuple[str, ...], str], None]
) -> None:
    refused(options, message)
