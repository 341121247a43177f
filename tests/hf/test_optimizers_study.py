"""Optimizers compared: really trained, judged by the functions of stats on what was stored, and resumed without training."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnlab import stats, studies
from attnlab.corpora.labelled import Tables
from attnlab.errors import Interrupted, UserError
from attnlab.hf import RATES, Epoch, FineTuning, Outcome, ScoredTable, optimizers
from attnlab.hf.classify import ModelFacts
from attnlab.hf.optimizers import Optimizers, OptimizersResult, read_rates
from attnlab.hf.tuning import TableFiles
from attnlab.report import write_document
from attnlab.store import records
from attnlab.store.folders import read_json, write_folder
from attnlab.studies.training import share_of
from verbs import call, reseal

NAMES, SEEDS = ("adamw", "sgd"), (0, 1)


def quiet() -> Console:
    return Console(quiet=True)


def outcome_of(folder: Path, name: str, seed: int) -> Outcome:
    return records.read(Outcome, folder / name / f"seed-{seed}" / "result.json")


@pytest.fixture(scope="module")
def finished(roberta: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study by the command: two optimizers, two seeds, two epochs."""
    folder = tmp_path_factory.mktemp("studies") / "optimizers"
    tables = (files / "train.tsv", files / "dev.tsv")
    options = ("--optimizers", "adamw=0.005,sgd", "--seeds", "2", "--epochs", "2", "--batch_size", "16")
    assert call("classify", *tables, "--model", roberta, *options, "--out", folder) == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_the_verdict_is_what_the_statistics_say_of_the_stored_texts(finished: Path) -> None:
    result = records.read(OptimizersResult, finished / "result.json")
    right = {name: [outcome_of(finished, name, seed).right for seed in SEEDS] for name in NAMES}
    assert all(len(row) == 40 for rows in right.values() for row in rows)
    (pair,) = result.pairs
    expected = stats.seeds_by_questions(right["adamw"], right["sgd"])
    assert (pair.a, pair.b, pair.p) == ("adamw", "sgd", expected.both.p)
    assert pair.sentence == f"adamw against sgd: {stats.in_words(expected, 'adamw', 'sgd', item='text')}."
    assert "40 texts x 2 seeds" in pair.sentence
    assert "question" not in pair.sentence
    for summary in result.optimizers:
        outcomes = [outcome_of(finished, summary.name, seed) for seed in SEEDS]
        mean = share_of(*right[summary.name])
        assert (summary.accuracy, summary.low, summary.high) == (mean.accuracy, mean.low, mean.high)
        assert [max(curve) for curve in summary.curves] == [outcome.accuracy for outcome in outcomes]
        assert summary.best_epochs == tuple(curve.index(max(curve)) + 1 for curve in summary.curves)


def test_the_report_says_that_rates_are_not_tuned_and_shows_the_epochs(finished: Path) -> None:
    page, markdown = (finished / "report.html").read_text(), (finished / "report.md").read_text()
    for text in (page, markdown):
        assert "Learning rates: adamw 0.005, sgd 0.01. The default of sgd is not tuned" in text
        assert "Best epoch" in text
        assert "Time of an epoch" in text
    assert "mean and range of the seeds" in page


def test_its_report_is_written_again(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", finished, "--out", tmp_path / "again") == 0
    for name in ("report.html", "report.md"):
        assert (tmp_path / "again" / name).read_text() == (finished / name).read_text()
    capsys.readouterr()
    assert call("evaluate", finished) == 2
    assert f"is a study that has no model of its own: see `attnlab runs show {finished}`" in capsys.readouterr().err


def test_resuming_trains_only_what_is_missing(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_json(copy / "result.json")
    (copy / "result.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(optimizers, "fine_tune", None)
        studies.resume(copy, quiet())
    assert read_json(copy / "result.json") == before
    missing, trained = outcome_of(copy, "sgd", 1), []
    shutil.rmtree(copy / "sgd" / "seed-1")
    (copy / "result.json").unlink()
    real = optimizers.fine_tune

    def watched(model: str, tables: Tables, settings: FineTuning, **more: Any) -> Outcome:
        trained.append((settings, tables.test))
        return real(model, tables, settings, **more)

    monkeypatch.setattr(optimizers, "fine_tune", watched)
    studies.resume(copy, quiet())
    expected = FineTuning(optimizer="sgd", lr=RATES["sgd"], seed=1, epochs=2, batch_size=16)
    assert trained == [(expected, None)]
    assert outcome_of(copy, "sgd", 1).dev == missing.dev


def test_stopped_it_says_how_to_resume(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(copy / "sgd")
    (copy / "result.json").unlink()

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizers, "fine_tune", stopped)
    with pytest.raises(Interrupted, match="attnlab resume"):
        studies.resume(copy, quiet())
    assert (copy / "adamw" / "seed-0" / "result.json").is_file()


def test_a_table_that_changed_is_refused(copy: Path) -> None:
    study = read_json(copy / "study.json")
    study["fingerprints"]["dev (dev.tsv)"] = "0" * 64
    (copy / "study.json").write_text(json.dumps(study))
    (copy / "result.json").unlink()
    reseal(copy)
    with pytest.raises(UserError, match=r"dev \(dev\.tsv\) changed since"):
        studies.resume(copy, quiet())


# Invented outcomes, judged


def invented(seed: int, share: float, many: int = 60) -> Outcome:
    """An outcome with about this share of right labels."""
    draw = random.Random(seed)
    chances = tuple((0.9, 0.1) if draw.random() < share else (0.1, 0.9) for _ in range(many))
    dev = ScoredTable((0,) * many, chances, 0.5)
    epochs = (Epoch(1, 0.7, 0.5, None, 0.1, 1.0), Epoch(2, 0.6, 0.5, 0.5, dev.accuracy, 2.0))
    facts = ModelFacts(architecture="none", parameters=1, vocabulary=1)
    return Outcome(epochs=epochs, best_epoch=2, seconds=4.0, facts=facts, labels=("a", "b"), dev=dev, test=None)


def judge(folder: Path, files: Path, shares: dict[str, float], seeds: int, change: Any = None) -> OptimizersResult:
    texts = TableFiles(files / "train.tsv", files / "dev.tsv")
    plan = Optimizers(
        model="a-model",
        texts=texts,
        settings=FineTuning(epochs=2),
        rates=read_rates(",".join(shares)),
        seeds=tuple(range(seeds)),
    )
    for place, (name, share) in enumerate(shares.items()):
        for seed in range(seeds):
            outcome = invented(100 * place + seed, share)
            if change is not None:
                outcome = change(name, seed, outcome)
            write_folder(folder / name / f"seed-{seed}", "training", {"result.json": records.encode(outcome)})
    result = plan.judge(folder, quiet())
    assert write_document(plan.document(result), folder).is_file()  # a loss of NaN leaves a gap
    return result


def test_holm_over_all_pairs(tmp_path: Path, files: Path) -> None:
    result = judge(tmp_path, files, {"adamw": 0.9, "sgd": 0.5, "muon": 0.83}, 3)
    assert [(pair.a, pair.b) for pair in result.pairs] == [
        ("adamw", "sgd"),
        ("adamw", "muon"),
        ("sgd", "muon"),
    ]
    right = {name: [outcome_of(tmp_path, name, seed).right for seed in range(3)] for name in ("adamw", "sgd", "muon")}
    single = [stats.seeds_by_questions(right[pair.a], right[pair.b]).both.p for pair in result.pairs]
    assert [pair.adjusted for pair in result.pairs] == stats.holm([p for p in single if p is not None])
    assert all("Holm over 3 comparisons" in pair.sentence for pair in result.pairs)
    best = result.verdict[0]
    assert best.startswith("adamw comes first with ")
    assert best.endswith("shown to be better than sgd, and not shown to be better than muon.")
    assert result.optimizers[0].seconds_per_epoch == 1.5


def test_one_seed_has_mcnemars_test(tmp_path: Path, files: Path) -> None:
    result = judge(tmp_path, files, {"adamw": 0.9, "sgd": 0.6}, 1)
    expected = stats.mcnemar(outcome_of(tmp_path, "adamw", 0).right, outcome_of(tmp_path, "sgd", 0).right)
    assert result.pairs[0].p == expected.p
    assert "exact McNemar" in result.pairs[0].sentence


def test_an_optimizer_that_diverged_is_named(tmp_path: Path, files: Path) -> None:
    def diverge(name: str, seed: int, outcome: Outcome) -> Outcome:
        lost = replace(outcome, dev=ScoredTable(outcome.dev.gold, ((0.0, 0.0),) * len(outcome.dev.gold), None))
        return lost if (name, seed) == ("sgd", 1) else outcome

    result = judge(tmp_path, files, {"adamw": 0.9, "sgd": 0.6}, 2, diverge)
    assert [summary.diverged for summary in result.optimizers] == [0, 1]
    assert "sgd diverged: use a smaller rate." in result.verdict
    assert not any(outcome_of(tmp_path, "sgd", 1).right)


# What is asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--optimizers", "adam,sgd"), "optimizer must be one of adamw, sgd, adagrad, muon, not 'adam'"),
        (("--optimizers", "adamw"), "compares two or more"),
        (("--optimizers", "adamw,adamw"), "adamw is given twice"),
        (("--optimizers", "adamw=fast,sgd"), "lr must be a finite number, not 'fast'"),
        (("--optimizers", "adamw=-1,sgd"), "--optimizers: lr must be at least 0"),
        (("--optimizers", "adamw=inf,sgd"), "lr must be a finite number, not inf"),
        (("--optimizers", "adamw,sgd", "--lr", "0.001"), "leave --lr out"),
        (("--optimizers", "adamw,sgd", "--seed", "3"), "leave out --optimizer and --seed"),
        (("--optimizers", "adamw,sgd", "--seeds", "0"), "--seeds must be a number from 1"),
        (("--optimizers", "adamw,sgd", "--search"), "--search tunes one optimizer"),
        (("--seeds", "3"), "--seeds needs --optimizers"),
        (("--optimizers", "adamw,sgd", "--model", "bag-of-words"), "bag-of-words has no optimizer and no epochs"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(
    options: tuple[str, ...], message: str, refused: Callable[[tuple[str, ...], str], None]
) -> None:
    refused(options, message)


def test_a_test_table_is_refused(files: Path, refused: Callable[[tuple[str, ...], str], None]) -> None:
    refused(("--optimizers", "adamw,sgd", "--test", str(files / "test.tsv")), "--optimizers judges on validation")


def test_rates() -> None:
    assert read_rates("adamw=3e-5, muon") == {"adamw": 3e-5, "muon": RATES["muon"]}
