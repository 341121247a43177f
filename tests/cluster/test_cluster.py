"""Comparisons on a Ray cluster with workers that are killed: the results are those of an undisturbed one."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnlab.errors import UserError
from attnlab.store.runs import Run
from attnlab.studies.compare import compare
from attnlab.studies.study import load
from attnlab.studies.workers import Attempts, Command, ray_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]  # warnings of ray

ASKED: dict[str, Any] = {
    "corpus": "prose:100:train",
    "dev": "prose:100:dev",
    "task": "words",
    "seeds": 1,
    "given": {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 64},
        "train": {"epochs": 100.0, "tokens_per_batch": 512, "checkpoint_every": 20, "lr": 3e-3},
        "tokenizer": {"min_count": 1},
    },
}
NAMES = ("dot", "linear")


def losses(folder: Path) -> dict[str, list[float]]:
    """The loss of every step, by mechanism."""
    return {name: [one.loss for one in Run.open(folder / name / "seed-0").metrics()] for name in NAMES}


def figures(result: Any) -> list[Any]:
    return [variant.values["dev_token_perplexity"] for variant in result.variants]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("undisturbed") / "study"
    return folder, compare(*NAMES, workers=2, out=folder, **ASKED).result


def job_of(folder: Path, name: str) -> tuple[int, int] | None:
    """The process that trains a variant, and the worker that waits for it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")[:-1]
        except OSError:
            continue
        if words[-3:] == [str(folder), name, "0"]:
            return int(path.parent.name), int((path.parent / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return None


def strike(folder: Path, name: str, blow: Callable[[int, int], None]) -> threading.Thread:
    """Do something to a run and its worker once it has made 50 steps, which is after its second checkpoint."""
    metrics = folder / name / "seed-0" / "metrics.jsonl"

    def wait() -> None:
        for _ in range(6000):
            if metrics.is_file() and metrics.read_bytes().count(b"\n") >= 50 and (found := job_of(folder, name)):
                blow(*found)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def compared(folder: Path, workers: str, **blows: Callable[[int, int], None]) -> tuple[Any, str]:
    """The result of a comparison in which something happens to its runs, and what it said."""
    said = StringIO()
    threads = [strike(folder, name, blow) for name, blow in blows.items()]
    outcome = compare(*NAMES, workers=workers, out=folder, console=Console(file=said, width=200), **ASKED)
    for one in threads:
        one.join()
    return outcome.result, said.getvalue()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray cluster of two cores that only this machine can reach, with a token that only the tests know."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        port, client = one.getsockname()[1], two.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        where = ["--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}"]
        size = ["--num-cpus=2", "--object-store-memory=100000000", "--include-dashboard=false"]
        program = str(Path(sys.executable).with_name("ray"))
        head = subprocess.Popen(
            [program, "start", "--head", "--block", *where, *size, f"--temp-dir={folder}"], stdout=subprocess.DEVNULL
        )
        address = f"ray://127.0.0.1:{client}"
        connecting = [sys.executable, "-c", f"import ray; ray.init('{address}', log_to_driver=False)"]
        for _ in range(5):  # its port is open before it can serve anybody
            if subprocess.run(connecting, capture_output=True, timeout=120).returncode == 0:
                break
            time.sleep(2)
        yield address
        head.terminate()
        head.wait(30)


def test_workers_of_ray_are_killed(cluster: str, undisturbed: tuple[Path, Any], tmp_path: Path) -> None:
    """One loses the worker that waits for it, the other is killed itself."""
    result, said = compared(
        tmp_path / "study",
        cluster,
        dot=lambda _, worker: os.kill(worker, signal.SIGKILL),
        linear=lambda process, _: os.kill(process, signal.SIGKILL),
    )
    assert "the others run on Ray with 2 cores" in said
    assert "dot, seed 0: its worker was lost" in said
    assert "linear, seed 0: ended by SIGKILL" in said
    assert said.count("it is started again") == 2
    assert losses(tmp_path / "study") == losses(undisturbed[0])
    assert figures(result) == figures(undisturbed[1])


def test_what_ray_cannot_start_is_an_error_at_once(cluster: str, tmp_path: Path) -> None:
    """Ray itself would wait for more cores for ever; and a folder that a machine does not see stays out of its sight."""
    with ray_cluster(cluster) as workers:
        with pytest.raises(UserError, match="needs 64 cores, and .* more than 2: use --train.threads 2"):
            workers.start(Command("any", (), tmp_path / "log.txt", threads=64))
        with pytest.raises(UserError, match="needs a GPU, .*: use --device cpu"):
            workers.start(Command("any", (), tmp_path / "log.txt", gpu=True))
        said = StringIO()
        absent = Command("any", (), tmp_path / "absent" / "log.txt")
        task = Attempts(workers, absent, "dot, seed 0", Console(file=said))
        while task.poll() is None:
            time.sleep(0.1)
        assert (task.code, said.getvalue()) == (1, "")
        assert "the study must be on a file system that all machines share" in task.failure()


def test_ctrl_c_stops_and_saves(undisturbed: tuple[Path, Any], tmp_path: Path) -> None:
    """`ray` without a cluster starts one; the comparison is then finished on this machine."""
    folder = tmp_path / "study"
    code = (
        "from attnlab.studies.compare import compare; from attnlab.errors import Interrupted\n"
        f"try: compare(*{NAMES!r}, workers='ray', out={str(folder)!r}, **{ASKED!r})\n"
        "except Interrupted as error: print(error)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    strike(folder, "dot", lambda *_: process.send_signal(signal.SIGINT)).join()
    said, _ = process.communicate(timeout=90)
    assert f"Resume with: attnlab resume {folder}" in said
    assert job_of(folder, "dot") is None
    run = Run.open(folder / "dot" / "seed-0")
    assert not run.complete
    # Saved when it was asked to stop, not only every 20 steps.
    assert run.checkpoints()[-1].name == f"step-{len(run.metrics()):06d}"
    result = replace(load(folder), workers="2").resume(folder, Console(quiet=True)).result
    assert losses(folder) == losses(undisturbed[0])
    assert figures(result) == figures(undisturbed[1])
