"""Resume gives the losses of an uninterrupted run, or refuses; damage is found; one process writes at a time."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attnlab.config import RunConfig, resolve
from attnlab.errors import CheckpointError, UserError
from attnlab.lm import progress, stages, train
from attnlab.lm.model import load_model
from attnlab.store.folders import MANIFEST, add_files, is_locked, is_written, locked, read_json, verify, write_folder
from attnlab.store.runs import Run

SETTINGS: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 2.0, "tokens_per_batch": 512, "checkpoint_every": 4, "threads": 1},
}


class Killed(Exception):
    """Ends a training as kill -9 would, since nothing catches it."""


def stopped_at(path: Path, step: int, config: RunConfig) -> Run:
    def stop(now: train.Step) -> None:
        if now.step == step:
            raise Killed

    with pytest.raises(Killed):
        stages.pretrain(config, "people:60", "people:60:train", path, progress.Show(step=stop))
    return Run.open(path)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve("small", given=SETTINGS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, config: RunConfig) -> Run:
    path = tmp_path_factory.mktemp("whole") / "run"
    return stages.pretrain(config, "people:60", "people:60:train", path)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, config: RunConfig) -> Path:
    """Stopped at step 11, with checkpoints of steps 4 and 8."""
    return stopped_at(tmp_path_factory.mktemp("killed") / "run", 11, config).path


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Run:
    shutil.copytree(killed, tmp_path / "run")
    return Run(tmp_path / "run")


def same(resumed: Run, whole: Run) -> bool:
    told = [[row.loss for row in run.metrics()] for run in (resumed, whole)]
    return told[0] == told[1] and resumed.result.final_loss == whole.result.final_loss


def test_killed_before_the_first_checkpoint(tmp_path: Path, config: RunConfig, whole: Run) -> None:
    assert same(stages.resume(stopped_at(tmp_path / "run", 3, config)), whole)


@pytest.mark.parametrize("torn", [b'{"step": 12, "lo', b"\0" * 40, b'{"step": 12, "lo\n'])
def test_a_torn_last_line_is_dropped(copy: Run, whole: Run, torn: bytes) -> None:
    with (copy.path / "metrics.jsonl").open("ab") as stream:
        stream.write(torn)
    assert len(copy.metrics()) == 11
    assert same(stages.resume(copy), whole)


def test_damage_before_the_checkpoint_is_refused(copy: Run) -> None:
    path = copy.path / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1].replace(b'"loss":', b'"loss":1'), *lines[2:]]))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged before its byte [0-9,]+: restore it"):
        stages.resume(copy)
    path.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged at line 2"):
        copy.metrics()


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(copy: Run, whole: Run) -> None:
    flip(copy.checkpoints()[-1] / "optimizer.safetensors")
    said: list[str] = []
    resumed = stages.resume(copy, progress.Show(line=said.append))
    assert any("falling back" in line and "step-000008/optimizer.safetensors is damaged" in line for line in said)
    assert "resuming from step 4" in said
    assert same(resumed, whole)


def test_without_an_intact_checkpoint_it_is_refused(copy: Run, whole: Run) -> None:
    for checkpoint in copy.checkpoints():
        flip(checkpoint / "model.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint of .* is intact .* remove the folder"):
        stages.resume(copy)
    shutil.rmtree(copy.path / "checkpoints")
    assert same(stages.resume(copy), whole)


def test_a_checkpoint_by_time(tmp_path: Path, config: RunConfig) -> None:
    often = resolve("small", given={**SETTINGS, "train": {**SETTINGS["train"], "checkpoint_every": 10**6}})
    timed = resolve("small", given={**SETTINGS, "train": {**SETTINGS["train"], "checkpoint_minutes": 1e-9}})
    assert stopped_at(tmp_path / "steps", 5, often).checkpoints() == []
    assert [one.name for one in stopped_at(tmp_path / "minutes", 5, timed).checkpoints()] == [
        "step-000003",
        "step-000004",
    ]


def flip(path: Path, place: float = 0.5, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("place", [0.0, 0.31, 0.77, 1.0])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_flipped_bit_in_a_model_is_found(whole: Run, tmp_path: Path, name: str, place: float) -> None:
    shutil.copytree(whole.model, tmp_path / "model")
    flip(tmp_path / "model" / name, place, bit=0)
    with pytest.raises(CheckpointError, match=f"{name} is damaged or was edited"):
        load_model(tmp_path / "model")


def test_every_flipped_bit_of_a_manifest_is_found_or_changes_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", "model", {"a.json": b'{"value": 1}'})
    content = (tmp_path / "folder" / MANIFEST).read_bytes()
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (tmp_path / "folder" / MANIFEST).write_bytes(damaged)
        try:
            assert read_json(tmp_path / "folder/a.json") == {"value": 1}
            assert is_written(tmp_path / "folder/a.json")
        except CheckpointError:
            continue


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl"])
def test_a_flipped_bit_in_a_run_is_found(whole: Run, tmp_path: Path, name: str) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    flip(tmp_path / "run" / name, bit=0)
    run = Run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="is damaged or was edited"):
        print(run.record, run.result, run.metrics())


def test_a_folder_without_its_manifest_is_refused(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    (tmp_path / "run/model" / MANIFEST).unlink()
    with pytest.raises(UserError, match=r"model has no manifest\.json: it was not written by attnlab, or is damaged"):
        load_model(Run.open(tmp_path / "run").model)
    (tmp_path / "run" / MANIFEST).unlink()
    with pytest.raises(UserError, match=r"run has no manifest\.json"):
        Run.open(tmp_path / "run")


def test_a_file_counts_once_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any write of a replacement, a folder holds the old file, no file, or the new one, and never damage."""
    from attnlab.store import folders

    folder, write = tmp_path / "folder", folders.write_bytes
    seen = set()
    for survived in range(4):
        shutil.rmtree(folder, ignore_errors=True)
        write_folder(folder, "run", {"value.json": b'{"value": "old"}'})
        left = [survived]

        def dying(path: Path, content: bytes, left: list[int] = left) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            write(path, content)

        with monkeypatch.context() as patched:
            patched.setattr(folders, "write_bytes", dying)
            with suppress(Killed):
                add_files(folder, {"value.json": b'{"value": "new"}'})
        verify(folder)
        there = is_written(folder / "value.json")
        seen.add(read_json(folder / "value.json")["value"] if there else None)
    assert seen == {"old", None, "new"}


def test_one_process_writes_a_run(copy: Run, whole: Run) -> None:
    with locked(copy.path):
        assert is_locked(copy.path)
        with pytest.raises(UserError, match="is being written by another process"):
            stages.resume(copy)
    assert not is_locked(copy.path)
    assert same(stages.resume(copy), whole)
    assert stages.resume(copy).complete


def test_a_run_is_locked_while_it_trains(tmp_path: Path, config: RunConfig) -> None:
    seen = []
    stages.pretrain(
        config,
        "people:60",
        None,
        tmp_path / "run",
        progress.Show(step=lambda _: seen.append(is_locked(tmp_path / "run"))),
    )
    assert seen
    assert all(seen)
    assert not is_locked(tmp_path / "run")


def test_a_folder_that_looks_like_a_checkpoint_is_none(copy: Run, whole: Run) -> None:
    (copy.path / "checkpoints/step-backup").mkdir()
    assert same(stages.resume(copy), whole)
    assert json.loads((copy.path / MANIFEST).read_text())["kind"] == "run"


def test_killed_while_an_old_checkpoint_is_removed(tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it is no checkpoint, and goes when the run is resumed."""
    config = resolve("small", given={**SETTINGS, "train": {**SETTINGS["train"], "checkpoint_every": 3}})

    def half(path: Path, ignore_errors: bool = False) -> None:
        if path.is_dir():
            (path / MANIFEST).unlink()
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            stages.pretrain(config, "people:60", "people:60:train", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert [one.name for one in run.checkpoints()] == ["step-000006", "step-000009"]
    assert same(stages.resume(run), whole)
    assert not [one for one in run.path.rglob("*") if one.name.endswith(".tmp")]
