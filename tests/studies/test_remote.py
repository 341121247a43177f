"""Workers on other machines without any: what is asked of Ray and of sbatch, and processes that do not stop when asked to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnlab.errors import UserError
from attnlab.studies import remote
from attnlab.studies.remote import Attendant
from attnlab.studies.workers import Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command("any", (), tmp_path / "log.txt", threads=2)


def cluster(*machines: dict[str, float]) -> Any:
    """A Ray cluster of machines with these resources, which starts nothing; the last one is gone."""
    nodes = [{"Alive": True, "Resources": one} for one in machines]
    gone = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
    return SimpleNamespace(nodes=lambda: [*nodes, gone], cluster_resources=lambda: {"CPU": 6.0})


@pytest.mark.parametrize(
    ("machines", "gpu", "says"),
    [
        (({"CPU": 1.0}, {"CPU": 1.0}), False, "a run needs 2 cores, and .* more than 1: use --train.threads 1"),
        (({"CPU": 8.0},), True, "a run needs a GPU, and no machine of the Ray cluster has one: use --device cpu"),
        (({"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}), True, "has more than 1 beside a GPU"),
    ],
)
def test_what_no_machine_of_ray_has_is_refused(command: Command, machines: Any, gpu: bool, says: str) -> None:
    asked = Command(command.module, (), command.log, command.threads, gpu)
    with pytest.raises(UserError, match=says):
        remote._Ray(cluster(*machines)).start(asked)


def test_a_process_that_does_not_stop_when_asked_is_killed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready'); time.sleep(60)"
    monkeypatch.setattr(remote, "_SAVING", 0.1)
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        attendant = Attendant(command)
        attendant._process = process
        attendant._end()
    assert process.returncode == -9


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs with the names of Slurm's, which write down how they are called."""
    pytest.importorskip("submitit")
    for name, does in (
        ("sbatch", 'cat "$1"; echo Submitted batch job 12'),
        ("srun", ""),
        ("sacct", ""),
        ("scancel", ""),
    ):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/called\n{does}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "called"


def test_slurm_sets_the_time_limit_and_a_job_that_does_not_end_is_killed(slurm: Path, command: Command) -> None:
    with remote.slurm(slurm.parent) as workers:
        task = workers.start(command)
    text = (slurm.parent / "logs" / "submitit" / "12_submission.sh").read_text()
    assert "#SBATCH --cpus-per-task=2\n" in text
    assert "--time" not in text
    task.kill()
    assert "scancel --full --signal=KILL 12\n" in slurm.read_text()


class _Failed(Exception):
    """Stands in for an error of a task."""

    cause = FileNotFoundError("the study must be on a file system that all machines share")


def test_a_task_that_fails_on_its_worker_is_not_tried_again(command: Command) -> None:
    def get(_: Any) -> int:
        raise _Failed

    absent = Attendant(Command("any", (), command.log.parent / "absent" / "logs" / "log.txt"))
    with pytest.raises(FileNotFoundError, match="must be on a file system that all machines share .* has no .*absent"):
        absent()
    errors = SimpleNamespace(TaskCancelledError=KeyError, RayTaskError=_Failed, RayError=Exception)
    submitted = SimpleNamespace(remote=lambda _: "reference")
    ray = SimpleNamespace(
        remote=lambda **_: lambda _: submitted, wait=lambda *_, **__: [True], get=get, exceptions=errors
    )
    task = remote._RayTask(ray, command)
    assert task.poll() == 1
    assert task.reason.endswith("FileNotFoundError: the study must be on a file system that all machines share")
