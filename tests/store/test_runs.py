from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from attnlab import machine
from attnlab.errors import AttnlabWarning, CheckpointError, OutputExists, StorageError, UserError
from attnlab.store import folders, runs
from attnlab.store.folders import digest
from attnlab.store.runs import MetricsMark, Run, RunRecord, Step


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "value.json"
    folders.write_bytes(path, folders.to_json({"old": 1}))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="disk is full"):
        folders.write_bytes(path, folders.to_json({"new": 2}))
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_folder_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10))

    def full_at_second(_descriptor: int) -> None:
        if next(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_at_second)
    with pytest.raises(StorageError):
        folders.write_folder(tmp_path / "model", "model", {"a": b"1", "b": b"2"})
    assert list(tmp_path.iterdir()) == []


def test_create_refuses_and_open_explains(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RunRecord())
    assert run.record == RunRecord(format=1)
    with pytest.raises(OutputExists, match="exists already"):
        Run.create(tmp_path / "run", RunRecord())
    with pytest.raises(UserError, match="no such run folder"):
        Run.open(tmp_path / "absent")
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        Run.open(tmp_path)
    with pytest.raises(UserError, match="attnlab resume"):
        _ = run.model


def test_a_study_stands_for_its_last_model_once_there_is_one(tmp_path: Path) -> None:
    folders.write_folder(tmp_path / "study", "study", {"study.json": b"{}"})
    with pytest.raises(UserError, match="is a study that is not finished"):
        Run.open(tmp_path / "study")
    Run.create(tmp_path / "study/finetune", RunRecord())
    (tmp_path / "study/finetune/model").mkdir()
    assert Run.open(tmp_path / "study").path == tmp_path / "study/finetune"


def test_damaged_json_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RunRecord())
    (run.path / "config.json").write_text("[1, 2")
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        _ = run.record


def test_metrics_survive_a_cut_line_and_rewind(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RunRecord())
    assert run.metrics() == []
    rows = [json.dumps(Step(step, 0.1 * step, 1.0, 2.5, 1.0, 10, 0.5).row()) for step in (1, 2, 3)]
    (run.path / "metrics.jsonl").write_text("\n".join([*rows, '{"st']))
    assert [row.step for row in run.metrics()] == [1, 2, 3]
    run.rewind_metrics(MetricsMark(len(rows[0]) + 1, digest(f"{rows[0]}\n".encode())))
    assert (run.path / "metrics.jsonl").read_text() == f"{rows[0]}\n"
    with pytest.raises(CheckpointError, match="is damaged before its byte 3"):
        run.rewind_metrics(MetricsMark(3, digest(b"abc")))


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RunRecord())
    for step in (5, 10, 100):
        run.save_checkpoint(step, {"state.json": b"{}"})
    assert [path.name for path in run.checkpoints()] == ["step-000010", "step-000100"]


def test_free_names_count_up(tmp_path: Path) -> None:
    assert runs.unused_path("a", tmp_path).name == "a-1"
    (tmp_path / "a-1").mkdir()
    assert runs.unused_path("a", tmp_path).name == "a-2"


def test_environment_tells_versions_and_nothing_personal() -> None:
    found = machine.environment()
    assert {"attnlab", "python", "torch", "processor", "cores"} <= set(found)
    assert str(Path.home()) not in json.dumps(found)


def test_an_unfinished_run_gives_its_best_checkpoint_else_the_last_and_says_so(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", RunRecord())
    for step in (200, 1000):
        run.save_checkpoint(step, {"state.json": b"{}"})
    with pytest.warns(
        AttnlabWarning, match=r"run is not finished: this is its last checkpoint, step 1,000; `attnlab res"
    ):
        assert run.model.name == "step-001000"
    (run.path / "best").mkdir()
    with pytest.warns(AttnlabWarning, match="its best checkpoint; "):
        assert run.model == run.path / "best"
    (run.path / "model").mkdir()
    assert run.model == run.path / "model"  # without a warning


def test_a_stopped_study_stands_for_what_it_has_pretrained(tmp_path: Path) -> None:
    folders.write_folder(tmp_path / "study", "study", {"study.json": b"{}"})
    Run.create(tmp_path / "study/pretrain", RunRecord()).save_checkpoint(1, {"state.json": b"{}"})
    Run.create(tmp_path / "study/finetune", RunRecord())  # begun, without a checkpoint
    with pytest.warns(AttnlabWarning, match="before fine-tuning; `attnlab resume "):
        assert Run.open(tmp_path / "study").path == tmp_path / "study/pretrain"


def test_a_run_is_named_by_its_folder_or_by_its_name_under_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Run.create(Path("runs/mine"), RunRecord())
    assert Run.open("mine").path == Run.open("runs/mine").path == Path("runs/mine")
    Path("mine").mkdir()  # somebody else's
    assert Run.open("mine").path == Path("runs/mine")
    Path("mine").rmdir()
    Run.create(Path("mine"), RunRecord())
    assert Run.open("mine").path == Path("mine")
    assert runs.located("absent") == Path("absent")
