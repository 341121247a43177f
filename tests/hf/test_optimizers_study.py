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
from attnlab.hf import RATES, Epoch, FineTuning, Outcome, Scored, optimizers
from attnlab.hf.classify import Request
from attnlab.hf.optimizers import OptimizersPlan, describe_rates, judge, make_plan, read_rates, store_training
from attnlab.report import write_report
from attnlab.store.folders import read_json
from attnlab.store.records import plain, restored
from attnlab.studies.compare.document import epoch_charts
from attnlab.studies.compare.records import read_result
from verbs import call, reseal

NAMES, SEEDS = ("adamw", "sgd"), (0, 1)


def quiet() -> Console:
    return Console(quiet=True)


def answers(folder: Path, name: str, seed: int) -> list[bool]:
    lines = (folder / name / f"seed-{seed}" / "right.csv").read_text().splitlines()
    assert lines[0] == "right"
    return [line == "1" for line in lines[1:]]


@pytest.fixture(scope="module")
def made(roberta: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study by the verb: two optimizers, two seeds, two epochs."""
    folder = tmp_path_factory.mktemp("studies") / "optimizers"
    tables = (files / "train.tsv", files / "dev.tsv")
    options = ("--optimizers", "adamw=0.005,sgd", "--seeds", "2", "--epochs", "2", "--batch_size", "16")
    assert call("classify", *tables, "--model", roberta, *options, "--out", folder) == 0
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_what_is_said_is_what_the_statistics_say_of_the_stored_texts(made: Path) -> None:
    result: Any = read_result(made)
    right = {name: [answers(made, name, seed) for seed in SEEDS] for name in NAMES}
    assert all(len(one) == 40 for rows in right.values() for one in rows)
    (found,) = result.comparisons
    expected = stats.seeds_by_questions(right["sgd"], right["adamw"])
    assert (found.a, found.b) == ("sgd", "adamw")
    assert (found.effect.value, found.effect.p) == (expected.difference, expected.both.p)
    assert (found.effect.low, found.effect.high) == (expected.both.low, expected.both.high)
    assert found.words == stats.in_words(expected, "sgd", "adamw", item="text")
    assert "40 texts x 2 seeds" in found.words
    assert "question" not in found.words
    for line, seed in zip(found.by_seed, SEEDS, strict=True):
        one, other = right["sgd"][seed], right["adamw"][seed]
        assert line.mcnemar == stats.mcnemar(one, other)
        assert (line.a, line.b) == (sum(one) / 40, sum(other) / 40)
    for variant in result.variants:
        shares = tuple(sum(row) / 40 for row in right[variant.name])
        assert variant.values["accuracy"].each == shares
        assert variant.values["accuracy"].mean == pytest.approx(sum(shares) / 2)
        for run, row in zip(variant.runs, right[variant.name], strict=True):
            curve = [epoch["dev_accuracy"] for epoch in run.epochs]
            assert max(curve) == pytest.approx(sum(row) / 40)
            assert run.values["best_epoch"] == curve.index(max(curve)) + 1


def test_one_epoch_makes_no_curve(made: Path) -> None:
    result: Any = read_result(made)
    assert len(epoch_charts(result)) == 3
    short = [
        replace(variant, runs=tuple(replace(run, epochs=run.epochs[:1]) for run in variant.runs))
        for variant in result.variants
    ]
    assert epoch_charts(replace(result, variants=tuple(short))) == []


def test_same_texts_seeds_and_epochs_and_other_rates(made: Path) -> None:
    stored = {
        (name, seed): read_json(made / name / f"seed-{seed}" / "result.json")["settings"]
        for name in NAMES
        for seed in SEEDS
    }
    for (name, seed), settings in stored.items():
        assert (settings["optimizer"], settings["seed"], settings["epochs"], settings["batch_size"]) == (
            name,
            seed,
            2,
            16,
        )
    assert {one["lr"] for key, one in stored.items() if key[0] == "sgd"} == {RATES["sgd"]}
    assert {one["lr"] for key, one in stored.items() if key[0] == "adamw"} == {0.005}
    assert read_json(made / "result.json")["order"] == [["adamw", 0], ["sgd", 0], ["sgd", 1], ["adamw", 1]]


def test_the_report_says_that_rates_are_not_tuned_and_shows_the_epochs(made: Path) -> None:
    page, markdown = (made / "report.html").read_text(), (made / "report.md").read_text()
    for text in (page, markdown):
        assert "not tuned: sgd 0.01" in text
        assert "as given: adamw 0.005" in text
        assert "best epoch" in text
        assert "time of an epoch" in text
        assert "rests on one degree of freedom" in text
    assert "Validation accuracy, mean and range of the seeds" in page


def test_its_report_is_written_again(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", made, "--out", tmp_path / "again") == 0
    for name in ("report.html", "report.md"):
        assert (tmp_path / "again" / name).read_text() == (made / name).read_text()
    capsys.readouterr()
    assert call("evaluate", made) == 2
    assert f"is a finished study, not a run: see `attnlab runs show {made}`" in capsys.readouterr().err


def test_going_on_trains_nothing_that_is_there(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_json(copy / "result.json")
    (copy / "result.json").unlink()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to train")

    with monkeypatch.context() as patched:
        patched.setattr(optimizers, "fine_tune", never)
        assert studies.resume(copy, quiet()) == before
    missing, asked = answers(copy, "sgd", 1), []
    shutil.rmtree(copy / "sgd" / "seed-1")
    (copy / "result.json").unlink()
    real = optimizers.fine_tune

    def watched(model: str, tables: Tables, settings: FineTuning, **more: Any) -> Outcome:
        asked.append((settings.optimizer, settings.seed, tables.test))
        return real(model, tables, settings, **more)

    monkeypatch.setattr(optimizers, "fine_tune", watched)
    studies.resume(copy, quiet())
    assert asked == [("sgd", 1, None)]
    assert answers(copy, "sgd", 1) == missing


def test_stopped_it_says_how_to_go_on(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(copy / "sgd")
    (copy / "result.json").unlink()

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizers, "fine_tune", stopped)
    with pytest.raises(Interrupted, match="attnlab resume"):
        studies.resume(copy, quiet())
    assert (copy / "adamw" / "seed-0" / "result.json").is_file()


def test_a_table_that_changed_is_refused(copy: Path, files: Path, tmp_path: Path) -> None:
    study = read_json(copy / "study.json")
    study["fingerprints"]["dev (dev.tsv)"] = "0" * 64
    (copy / "study.json").write_text(json.dumps(study))
    (copy / "result.json").unlink()
    reseal(copy)
    with pytest.raises(UserError, match=r"dev \(dev\.tsv\) changed since"):
        studies.resume(copy, quiet())


# Made-up outcomes, judged


def scored(seed: int, share: float, many: int = 60) -> Outcome:
    """An outcome with about this share of right labels."""
    draw = random.Random(seed)
    chances = tuple((0.9, 0.1) if draw.random() < share else (0.1, 0.9) for _ in range(many))
    dev = Scored((0,) * many, chances, 0.5)
    epochs = (Epoch(1, 0.7, 0.5, float("nan"), 0.1, 1.0), Epoch(2, 0.6, 0.5, 0.5, dev.accuracy, 2.0))
    return Outcome(epochs, 2, 4.0, labels=("a", "b"), dev=dev, test=None)


def made_up(tmp_path: Path, files: Path, shares: dict[str, float], seeds: int) -> tuple[OptimizersPlan, Any]:
    asked = Request("a-model", FineTuning(epochs=2), str(files / "train.tsv"), str(files / "dev.tsv"))
    plan = make_plan(asked, ",".join(shares), seeds)
    for place, (name, share) in enumerate(shares.items()):
        for seed in range(seeds):
            store_training(
                tmp_path / name / f"seed-{seed}", plan.settings(name, seed), scored(100 * place + seed, share)
            )
    return plan, judge(plan, tmp_path)


def test_holm_over_all_pairs(tmp_path: Path, files: Path) -> None:
    _, result = made_up(tmp_path, files, {"adamw": 0.9, "sgd": 0.5, "muon": 0.83}, 3)
    pairs = result.comparisons
    assert [(one.a, one.b) for one in pairs] == [("sgd", "adamw"), ("muon", "adamw"), ("muon", "sgd")]
    assert [one.adjusted for one in pairs] == stats.holm([one.effect.p for one in pairs])
    assert [one.shown for one in pairs] == [True, False, True]
    best = result.verdict[0]
    assert best.startswith("adamw comes first with ")
    assert best.endswith("shown to be better than sgd, and not shown to be better than muon.")
    assert result.variants[0].values["seconds_per_epoch"].mean == 1.5
    assert write_report(plain(result), tmp_path).is_file()  # a loss that is not a number leaves a gap


def test_one_seed_has_mcnemars_test(tmp_path: Path, files: Path) -> None:
    _, result = made_up(tmp_path, files, {"adamw": 0.9, "sgd": 0.6}, 1)
    expected = stats.mcnemar(answers(tmp_path, "sgd", 0), answers(tmp_path, "adamw", 0))
    effect = result.comparisons[0].effect
    assert (effect.p, effect.low, effect.high) == (expected.p, expected.low, expected.high)
    assert effect.scope == "new texts, with this one seed"


def test_what_diverged_is_said(tmp_path: Path, files: Path) -> None:
    plan, _ = made_up(tmp_path, files, {"adamw": 0.9, "sgd": 0.6}, 2)
    lost = scored(1, 0.5)
    lost = replace(lost, dev=replace(lost.dev, loss=float("nan")))
    shutil.rmtree(tmp_path / "sgd" / "seed-1")
    store_training(
        tmp_path / "sgd" / "seed-1", plan.settings("sgd", 1), replace(lost, dev=replace(lost.dev, loss=float("nan")))
    )
    result = judge(plan, tmp_path)
    assert any(one.startswith("sgd diverged with 1 seed of 2:") for one in result.verdict)
    assert "loss" not in result.variants[0].values


# What is asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--optimizers", "adam,sgd"), "unknown optimizer 'adam': did you mean adamw"),
        (("--optimizers", "adamw"), "compares two or more"),
        (("--optimizers", "adamw,adamw"), "names adamw twice"),
        (("--optimizers", "adamw=fast,sgd"), "the rate of adamw must be a number above 0"),
        (("--optimizers", "adamw=-1,sgd"), "the rate of adamw must be a number above 0"),
        (("--optimizers", "adamw,sgd", "--lr", "0.001"), "one --lr does not suit all"),
        (("--optimizers", "adamw,sgd", "--seed", "3"), "leave out --optimizer and --seed"),
        (("--optimizers", "adamw,sgd", "--seeds", "0"), "--seeds must be a number from 1"),
        (("--optimizers", "adamw,sgd", "--search"), "--search tunes one optimizer"),
        (("--seeds", "3"), "--seeds needs --optimizers"),
        (("--optimizers", "adamw,sgd", "--model", "bag-of-words"), "bag-of-words has no optimizer to choose"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(
    options: tuple[str, ...], message: str, refused: Callable[[tuple[str, ...], str], None]
) -> None:
    refused(options, message)


def test_rates_and_what_is_said_of_them() -> None:
    assert read_rates("adamw=3e-5, muon") == {"adamw": 3e-5, "muon": 0.0}
    plan = make_plan(Request("a-model", FineTuning()), "adamw=3e-5,muon", [4, 5])
    assert plan.rates == {"adamw": 3e-5, "muon": RATES["muon"]}
    assert (plan.chosen, plan.seeds) == (("adamw",), (4, 5))
    assert plan == restored(OptimizersPlan, plain(plan))
    assert plan.settings("muon", 4) == replace(FineTuning(), optimizer="muon", lr=RATES["muon"], seed=4)
    assert describe_rates({"sgd": 0.1, "muon": 0.2}, ("sgd", "muon")) == "Learning rates as given: sgd 0.1, muon 0.2."
