"""Workers on other machines without any: what is asked of Ray, and processes that do not stop when asked to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnlab.errors import UserError
from attnlab.studies import workers
from attnlab.studies.workers import Command, run_job
from attnlab.supervisor import Child


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command("any", (), tmp_path / "log.txt", threads=2)


def cluster(*machines: dict[str, float]) -> Any:
    """A Ray cluster of machines with these resources, which starts nothing; the last one is gone."""
    nodes = [{"Alive": True, "Resources": machine} for machine in machines]
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
        workers._RayTask(cluster(*machines), asked)


def main(arguments: list[str]) -> int:
    """The command of the next test, which does not stop when it is asked to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path(arguments[0]).touch()
    time.sleep(60)
    return 0


def test_a_process_that_does_not_stop_when_asked_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(workers, "_SAVING", 0.1)
    started, interrupted, is_working = list[Child](), list[bool](), tmp_path / "working"
    start, sleep = Command.start, time.sleep

    def remember(command: Command) -> Child:
        started.append(start(command))
        return started[-1]

    def interrupt_once_it_works(seconds: float) -> None:
        sleep(min(seconds, 0.02))
        if is_working.exists() and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(Command, "start", remember)
    monkeypatch.setattr(time, "sleep", interrupt_once_it_works)
    with pytest.raises(KeyboardInterrupt):
        run_job(Command("test_workers", (str(is_working),), tmp_path / "log.txt"))
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


class _Failed(Exception):
    """Stands in for an error of a task."""

    cause = FileNotFoundError("the study must be on a file system that all machines share")


def test_a_task_that_fails_on_its_worker_is_not_tried_again(command: Command) -> None:
    def get(_: Any) -> int:
        raise _Failed

    with pytest.raises(FileNotFoundError, match="must be on a file system that all machines share .* has no .*absent"):
        run_job(Command("any", (), command.log.parent / "absent" / "logs" / "log.txt"))
    errors = SimpleNamespace(TaskCancelledError=KeyError, RayTaskError=_Failed, RayError=Exception)
    submitted = SimpleNamespace(remote=lambda _: "reference")
    ray = cluster({"CPU": 8.0})
    ray.remote, ray.wait, ray.get = lambda **_: lambda _: submitted, lambda *_, **__: [True], get
    ray.exceptions = errors
    task = workers._RayTask(ray, command)
    assert task.poll() == 1
    assert task.reason.endswith("FileNotFoundError: the study must be on a file system that all machines share")
