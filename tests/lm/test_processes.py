"""Several processes train as one does; torchrun restarts and stops them, and their errors are reported once."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from together import LONG, MECHANISMS, SAVED, SOME, STEPS, State, train

from attnlab.config import resolve
from attnlab.lm import stages
from attnlab.lm.processes import RESTARTS, Ranks
from attnlab.store.runs import Run

pytestmark = pytest.mark.processes

WORKER = """
import os, signal, sys, time
from pathlib import Path
folder, rank, restarts = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
world = os.environ["WORLD_SIZE"]
from attnlab.lm.processes import join_launch, record_failure
join_launch()
(folder / f"{restarts}-{rank}").write_text(str(os.getpid()))
def fail(message, code):
    record_failure(code, message)
    sys.exit(code)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def trained_together(folder: Path, *arguments: str) -> dict[str, State]:
    """What two processes trained, by name."""
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    script = Path(__file__).with_name("together.py")
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", script, folder, *arguments],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            _, error = process.communicate(timeout=120)
            assert (process.returncode, error) == (0, "")
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return {path.stem: load_file(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, State]:
    return trained_together(tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def alone() -> State:
    return train(Ranks(), range(STEPS))


def distance(some: State, whole: State, first: int = 0) -> float:
    """The largest relative difference of losses and gradient norms at the same steps."""
    there = whole["losses"][first : first + len(some["losses"])]
    return float(((some["losses"] - there) / there).abs().max())


@pytest.mark.parametrize("name", ["float64", "parts"])
def test_two_processes_have_the_losses_of_one(together: dict[str, State], alone: State, name: str) -> None:
    """Also with packed rows, odd numbers of rows and fewer rows than processes."""
    assert len(together[name]["losses"]) in (SOME, STEPS)
    assert distance(together[name], alone) < 1e-9


def test_adamw_has_the_losses_of_one(together: dict[str, State]) -> None:
    """Also in batches of rows, split by length."""
    adamw = train(Ranks(), preset="mingpt", rows_per_batch=0)
    assert distance(train(Ranks(), preset="mingpt"), adamw) < 1e-9
    assert distance(together["adamw"], adamw) < 1e-9
    assert distance(together["lengths"], adamw) < 1e-9


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_has_the_losses_of_one(together: dict[str, State], name: str) -> None:
    """Also one with parameters that short rows do not use."""
    assert distance(together[name], train(Ranks(), mechanism=name)) < 1e-9


def test_latents_have_the_losses_of_one(together: dict[str, State]) -> None:
    """Also where one process has texts too short for a latent."""
    assert distance(together["latents"], train(Ranks(), bottleneck=2)) < 1e-9
    adamw = train(Ranks(), preset="mingpt", bottleneck=2, rows_per_batch=0)
    assert distance(together["latents-lengths"], adamw) < 1e-9  # the last part of a batch may have no latents


def test_checkpoints_do_not_depend_on_the_processes(together: dict[str, State]) -> None:
    saved = train(Ranks(), range(SAVED))
    assert together["saved"].keys() == saved.keys()
    for key, tensor in saved.items():
        assert tensor.dtype == together["saved"][key].dtype
        assert torch.allclose(tensor, together["saved"][key], rtol=1e-9, atol=1e-12)


def test_the_processes_resume(together: dict[str, State], alone: State) -> None:
    assert len(together["resumed"]["losses"]) == SOME - SAVED
    assert distance(together["resumed"], alone, SAVED) < 1e-9


def test_one_process_resumes(together: dict[str, State], alone: State) -> None:
    resumed = train(Ranks(), range(SAVED, SOME), start=together["saved"])
    assert distance(resumed, alone, SAVED) < 1e-9


def test_a_checkpoint_with_parameters_never_used_so_far_is_resumed() -> None:
    saved = train(Ranks(), range(1, 3), mechanism="perceiver")  # two steps with documents shorter than a block
    resumed = train(Ranks(), range(3, 5), saved, mechanism="perceiver")
    assert distance(resumed, train(Ranks(), range(1, 5), mechanism="perceiver"), 2) == 0


def test_performer_counts_steps_and_not_calls() -> None:
    """Parts of batches and groups of packed documents are calls of the same step."""
    redrawn = train(Ranks(), mechanism="performer", options={"redraw": 2}, accumulate=3)
    assert redrawn["model/blocks.0.attn.steps"] == redrawn["model/blocks.1.attn.steps"] == SOME


def test_a_long_training_has_the_losses_of_one(tmp_path: Path) -> None:
    together = trained_together(tmp_path, "long")
    for precision, most in (("float64", 1e-6), ("float32", 1e-2)):
        one = train(Ranks(), range(LONG), precision=precision)
        assert one["losses"][-5:, 0].mean() < 0.6 * one["losses"][:5, 0].mean()
        assert distance(together[precision], one) < most


PARENT = """
import sys
from attnlab.lm import processes
processes.PROGRAM, processes._SAVING_SECONDS = (sys.argv[1] + "/worker.py",), 2
sys.exit(processes.launch(2, sys.argv[1:]))
"""


def start(folder: Path, body: str) -> subprocess.Popen[str]:
    """Launch two processes of a small program instead of attnlab's."""
    (folder / "worker.py").write_text(WORKER + body)
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def launched(folder: Path, body: str) -> tuple[int, str, str]:
    """The exit code and the output of two processes of a small program."""
    parent = start(folder, body)
    output, error = parent.communicate(timeout=120)
    return parent.returncode, output, error


def starts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("?-?"))


def test_a_killed_process_restarts_all(tmp_path: Path) -> None:
    body = """
if restarts == 0:
    os.kill(os.getpid(), signal.SIGKILL) if rank else fail("lost the other", 75)
print("done by", rank)
"""
    code, output, error = launched(tmp_path, body)
    assert (code, output) == (0, "done by 0\n")
    assert starts(tmp_path)[-2:] == ["1-0", "1-1"]
    assert error.count("\n") == 1
    assert "a process was killed or inter-process communication failed; all are started again (1 of 3 times)" in error


def test_it_gives_up(tmp_path: Path) -> None:
    code, _, error = launched(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert code == 128 + signal.SIGKILL
    assert {int(name[0]) for name in starts(tmp_path)} == set(range(1 + RESTARTS))
    assert "of 2 was killed by SIGKILL, also after 3 restarts: attnlab resume FOLDER" in error


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(0.3 * (1 - rank)); fail('the file is empty', 2)",  # in both, later in the first
        "fail('the file is empty', 2) if rank else (time.sleep(2), fail('lost', 75))",  # in the second only
        "(time.sleep(2), sys.exit(75)) if rank else fail('the file is empty', 2)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(60) if rank else fail('the file is empty', 2)",
    ],
)
def test_an_error_is_shown_once_and_not_tried_again(tmp_path: Path, body: str) -> None:
    """Whatever the other process does, even nothing at all."""
    assert launched(tmp_path, body) == (2, "", "attnlab: the file is empty\n")
    assert {*starts(tmp_path)} <= {"0-0", "0-1"}  # one may be ended before it has begun


STOPPING = """
def stop(number, frame):
    time.sleep(0.2)
    (folder / f"saved-{rank}").touch()
    fail("stopped", 130)
signal.signal(signal.SIGINT, stop), signal.signal(signal.SIGTERM, stop)
(folder / f"ready-{rank}").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stop_signals_reach_the_processes(tmp_path: Path, number: signal.Signals) -> None:
    """Killed with -9, the parent cannot pass anything on or print: the processes notice its end."""
    parent = start(tmp_path, STOPPING)
    wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
    parent.send_signal(number)
    wait_for(tmp_path / "saved-0", tmp_path / "saved-1")
    _, error = parent.communicate(timeout=30)
    killed = number == signal.SIGKILL
    assert (parent.returncode, error) == ((-number, "") if killed else (130, "attnlab: stopped\n"))
    assert starts(tmp_path) == ["0-0", "0-1"]


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 30
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.02)


SETTINGS = {"model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300}}
TRAINING = {"epochs": 12.0, "tokens_per_batch": 512, "checkpoint_every": 8, "precision": "float64", "threads": 1}
COMPARED = ("step", "loss", "norm", "dev_loss")


def command(folder: Path, **training: object) -> list[str]:
    """A training in two processes."""
    given = {"model": SETTINGS["model"], "train": {**TRAINING, **training}}
    options = [f"--{part}.{name}={value}" for part, values in given.items() for name, value in values.items()]
    corpus = ["--corpus", "people:60", "--facts", "people:60:train", "--dev", "people:60:test"]
    return [sys.executable, "-m", "attnlab", "pretrain", "--processes=2", *corpus, *options, "--out", str(folder)]


def trained_alone(folder: Path, **training: object) -> Run:
    config = resolve("small", given={**SETTINGS, "train": {**TRAINING, **training}})
    return stages.pretrain(config, "people:60", "people:60:train", folder, dev="people:60:test")


def wait_for_steps(folder: Path, steps: int) -> None:
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_bytes().count(b"\n") < steps:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(parent: int) -> list[int]:
    """The processes that a process has started, oldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(path.parent.name))
    return sorted(found)


def assert_same(run: Run, whole: Run) -> None:
    """Losses, norms of gradients and validation agree at every step."""
    assert run.complete
    rows = [[{key: getattr(row, key) for key in COMPARED} for row in one.metrics()] for one in (run, whole)]
    assert len(rows[0]) == len(rows[1])
    assert any(row["dev_loss"] for row in rows[1])
    for one, other in zip(*rows, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    assert run.result.final_loss == pytest.approx(whole.result.final_loss, rel=1e-6)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes in /proc")
def test_losses_do_not_change_when_a_process_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(command(tmp_path / "two"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_steps(tmp_path / "two", 10)
    os.kill(children(parent.pid)[-1], signal.SIGKILL)
    output, error = parent.communicate(timeout=240)
    assert parent.returncode == 0, error
    assert "all are started again (1 of 3 times)" in error
    assert "resuming from step" in output
    assert_same(Run.open(tmp_path / "two"), trained_alone(tmp_path / "one"))


def test_a_run_is_stopped_and_resumed_by_one_process(tmp_path: Path) -> None:
    training = {"ema": 0.9, "accumulate": 3, "validate_every": 5}
    parent = subprocess.Popen(
        command(tmp_path / "two", **training), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    wait_for_steps(tmp_path / "two", 10)
    parent.send_signal(signal.SIGINT)
    _, error = parent.communicate(timeout=240)
    assert parent.returncode == 130, error
    assert error.count("\n") == 1
    assert "stopped by Ctrl-C" in error
    stages.resume(Run.open(tmp_path / "two"))
    assert_same(Run.open(tmp_path / "two"), trained_alone(tmp_path / "one", **training))


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled_runs_have_the_losses_of_others(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path / "two", compile=True), capture_output=True, text=True, check=True)
    assert "without it" not in done.stdout + done.stderr
    assert_same(Run.open(tmp_path / "two"), trained_alone(tmp_path / "one"))
