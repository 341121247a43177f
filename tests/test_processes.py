"""Several processes train as one does, copied or sharded; the launcher restarts, stops and reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attnlab import launcher
from attnlab.processes import Ranks
from together import SAVED, SOME, STEPS, State, train

WORKER = """
import os, signal, sys, time
from pathlib import Path
folder, rank, restarts = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
world = os.environ["WORLD_SIZE"]
(folder / f"{restarts}-{rank}").write_text(str(os.getpid()))
def fail(message, code):
    sys.stderr.write(f"attnlab: {message}\\n")
    sys.exit(code)
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, State]:
    """What two processes trained, by name."""
    folder = tmp_path_factory.mktemp("together")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launcher._free_port())}
    script = Path(__file__).with_name("together.py")
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", script, folder],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
    return {path.stem: load_file(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def alone() -> State:
    return train(Ranks(), torch.float64, steps=range(SOME))


def distance(some: State, whole: State) -> float:
    """The largest relative difference of losses and gradient norms at the same steps."""
    first = SAVED if len(some["losses"]) == SOME - SAVED else 0
    there = whole["losses"][first : first + len(some["losses"])]
    return float(((some["losses"] - there) / there).abs().max())


@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-6), ("float32", 1e-3)])
def test_two_processes_have_the_losses_of_one(together: dict[str, State], dtype: str, most: float) -> None:
    one, two = (together[f"{kind}-{dtype}"]["losses"][:, 0] for kind in ("alone", "copied"))
    assert len(one) == len(two) == STEPS
    assert one[-1] < 0.6 * one[0]
    assert float(((two - one) / one).abs().max()) < most


@pytest.mark.parametrize("name", ["sharded-float64", "sharded-parts", "copied-parts"])
def test_sharded_weights_and_parts_of_batches_change_nothing(
    together: dict[str, State], alone: State, name: str
) -> None:
    assert distance(together[name], alone) < 1e-9


def test_without_muon_too(together: dict[str, State]) -> None:
    adamw = train(Ranks(), torch.float64, steps=range(SOME), preset="mingpt")
    assert distance(together["copied-adamw"], adamw) < 1e-9
    assert distance(together["sharded-adamw"], adamw) < 1e-9


def test_checkpoints_do_not_depend_on_the_processes(together: dict[str, State]) -> None:
    saved = train(Ranks(), torch.float64, steps=range(SAVED))
    for name in ("copied-saved", "sharded-saved"):
        assert together[name].keys() == saved.keys()
        for key, one in saved.items():
            assert one.dtype == together[name][key].dtype
            assert torch.allclose(one, together[name][key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sharded-resumed", "copied-resumed", "sharded-grown"])
def test_other_processes_resume(together: dict[str, State], alone: State, name: str) -> None:
    assert len(together[name]["losses"]) == SOME - SAVED
    assert distance(together[name], alone) < 1e-9


@pytest.mark.parametrize("name", ["copied-saved", "sharded-saved"])
def test_one_process_resumes(together: dict[str, State], alone: State, name: str) -> None:
    resumed = train(Ranks(), torch.float64, steps=range(SAVED, SOME), start=together[name])
    assert distance(resumed, alone) < 1e-9


def launched(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> int:
    """Launch two processes of a small program instead of attnlab's."""
    (folder / "worker.py").write_text(WORKER + body)
    monkeypatch.setattr(launcher, "PROGRAM", (sys.executable, str(folder / "worker.py")))
    return launcher.launch(2, [str(folder)])


def starts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("?-?"))


def test_a_killed_process_restarts_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
if restarts == 0:
    os.kill(os.getpid(), signal.SIGKILL) if rank else fail("lost the other", 75)
print("done by", rank)
"""
    assert launched(monkeypatch, tmp_path, body) == 0
    assert starts(tmp_path) == ["0-0", "0-1", "1-0", "1-1"]
    out, error = capfd.readouterr()
    assert out == "done by 0\n"
    assert "process 1 of 2 was killed by SIGKILL; starting all again (1 of 3 times)" in error


def test_it_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert launched(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") == 128 + signal.SIGKILL
    assert len(starts(tmp_path)) == 2 * (1 + launcher.RESTARTS)
    assert "also after 3 restarts" in capfd.readouterr().err


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(0.3 * (1 - rank)); fail('the file is empty', 2)",  # in both, later in the first
        "fail('the file is empty', 2) if rank else fail('lost', 75)",  # in the second only
        "sys.exit(75) if rank else fail('the file is empty', 2)",
    ],
)
def test_an_error_is_shown_once_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], body: str
) -> None:
    assert launched(monkeypatch, tmp_path, body) == 2
    assert starts(tmp_path) == ["0-0", "0-1"]
    assert capfd.readouterr().err.count("the file is empty") == 1


def test_one_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_GRACE", 0.2)
    assert launched(monkeypatch, tmp_path, "time.sleep(60) if rank else fail('the file is empty', 2)") == 2
    assert starts(tmp_path) == ["0-0", "0-1"]


STOPPING = """
def stop(number, frame):
    time.sleep(0.2)
    (folder / f"saved-{rank}").touch()
    fail("stopped", 130)
signal.signal(signal.SIGINT, stop), signal.signal(signal.SIGTERM, stop)
(folder / f"ready-{rank}").touch()
time.sleep(60)
"""
PARENT = """
import sys
from attnlab import launcher
launcher.PROGRAM = (sys.executable, sys.argv[1] + "/worker.py")
sys.exit(launcher.launch(2, sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stop_signals_reach_the_processes(tmp_path: Path, number: signal.Signals) -> None:
    """Killed with -9, the parent cannot pass anything on: the processes notice its end."""
    (tmp_path / "worker.py").write_text(WORKER + STOPPING)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
    parent.send_signal(number)
    wait_for(tmp_path / "saved-0", tmp_path / "saved-1")
    _, error = parent.communicate(timeout=30)
    assert parent.returncode == (-number if number == signal.SIGKILL else 130)
    assert error.count("stopped") == 1
    assert starts(tmp_path) == ["0-0", "0-1"]


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 30
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.02)
