"""The time that a comparison is expected to take, and where its runs may be trained."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.errors import UserError
from attnlab.lm import train
from attnlab.lm.trackers import Trackers
from attnlab.report.words import roughly
from attnlab.store.records import plain, restored
from attnlab.studies.compare import Data, Plan, estimate, estimating, make_plan
from attnlab.studies.compare.estimating import Estimate
from attnlab.studies.workers import read_workers

TEXT = Data("prose:100:train", "prose:100:dev")


def test_time_follows_runs_and_epochs(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimating, "_BUDGET", 60.0)  # of a busy machine
    monkeypatch.setattr(estimating, "_STEPS", 4)
    plan = make_plan(["dot", "linear"], task="words", data=TEXT, seeds=3, workers=2, given=small)
    found = estimate(plan)
    assert found is not None
    assert (found.runs, found.at_a_time, found.measured) == (6, 2, ("dot", "linear"))
    longer = tuple(one.with_settings(one.name, {"train.epochs": 2000.0}) for one in plan.variants)
    much = estimate(replace(plan, variants=longer))
    assert much is not None
    assert much.seconds > 100 * found.seconds  # of 1,000 times the epochs
    tuned = estimate(replace(plan, tune=make_plan(["dot", "linear"], tune="train.lr=1,2", seeds=1).tune, tune_seeds=2))
    assert tuned is not None
    assert tuned.runs == 6 + 2 * 2 * 2
    assert list(tmp_path.iterdir()) == []


def test_measuring_neither_logs_nor_compiles(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[object] = []

    def tracking(names: object, *_: object) -> AbstractContextManager[Trackers]:
        logged.append(names)
        return nullcontext(Trackers({}))

    monkeypatch.setattr(train, "tracking", tracking)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: logged.append("compiled"))
    monkeypatch.setattr(estimating, "_BUDGET", 60.0)
    given = {**small, "train": {**small["train"], "log": "tensorboard", "compile": True}}
    assert estimate(make_plan(["dot", "linear"], task="words", data=TEXT, seeds=1, given=given)) is not None
    assert logged == [(), ()]


def test_it_says_what_it_rests_on() -> None:
    assert str(Estimate(725.0, 15, 2, 20, ("dot", "linear"))) == (
        "about 12 minutes of training for 15 runs, 2 at a time (estimate from 20 steps of dot, linear)"
    )
    assert "for 3 runs, if run one at a time on this machine (" in str(Estimate(9.0, 3, 0, 2, ("dot",)))
    assert [roughly(one) for one in (1, 12, 50, 90, 9000)] == [
        "5 seconds",
        "10 seconds",
        "a minute",
        "2 minutes",
        "2.5 hours",
    ]


def test_workers_are_a_number_or_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read_workers("3"), read_workers(2), read_workers("ray://host:10001")) == (3, 2, "ray://host:10001")
    for wrong in ("-1", "rays", "ray://", "3.5", "slurm://host"):
        with pytest.raises(UserError, match="--workers must be a number .*, ray, ray://HOST:PORT or slurm, not"):
            read_workers(wrong)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"--workers slurm needs submitit: pip install 'attnlab\[slurm\]'"):
        read_workers("slurm")


def test_a_plan_of_an_older_version_is_read() -> None:
    plan = make_plan(["dot", "linear"], seeds=1, quick=True, jobs=3)
    stored = plain(plan)
    stored["jobs"] = stored.pop("workers")
    assert restored(Plan, stored).workers == 3
