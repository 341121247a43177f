"""Several processes for one training on this machine, as torchrun starts them, without torch in the parent.

The parent passes stop signals on, and starts all processes again when one was killed or lost the others; they then
resume from the last checkpoint. Errors that a restart cannot mend end the training at once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from attnlab.errors import PeerLost
from attnlab.machine import end_with_parent

PROGRAM = (sys.executable, "-P", "-m", "attnlab")
RESTARTS = 3
# Without torch's advice not to look for unused parameters, which some mechanisms have.
QUIET = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
_GRACE = 10.0  # seconds for the others to end after one has failed
_POLL = 0.05  # seconds


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `python -m attnlab ARGUMENTS` in several processes; return the exit code of the command.

    A restart uses the same arguments: name the run folder in them.
    """
    for restarts in range(RESTARTS + 1):
        codes, stopped = _run(processes, arguments, restarts)
        if stopped or not _restartable(codes):
            break
        if restarts < RESTARTS:
            sys.stderr.write(f"note: {_failure(codes)}; starting all again ({restarts + 1} of {RESTARTS} times)\n")
        else:
            sys.stderr.write(f"attnlab: {_failure(codes)}, also after {RESTARTS} restarts: attnlab resume FOLDER\n")
    final = [code for code in codes if code > 0 and code != PeerLost.exit_code]
    return next(iter(final), max(abs(code) + 128 * (code < 0) for code in codes))


def _restartable(codes: Sequence[int]) -> bool:
    """Whether a restart can help: a process was killed or lost the others, and none failed by itself."""
    return any(codes) and all(code <= 0 or code == PeerLost.exit_code for code in codes)


def _failure(codes: Sequence[int]) -> str:
    for rank, code in enumerate(codes):
        if code < 0:
            return f"process {rank} of {len(codes)} was killed by {signal.Signals(-code).name}"
    return "the processes lost each other"


def _run(processes: int, arguments: Sequence[str], restarts: int) -> tuple[list[int], bool]:
    """Run all processes once; return their exit codes, and whether a signal asked for the end.

    The first process prints. Errors of the others are shown only if the first has none of its own.
    """
    shared = {
        **os.environ,
        **QUIET,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "ATTNLAB_LAUNCHED": "1",
    }
    with ExitStack() as stack:
        kept = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(processes - 1)]
        workers: list[subprocess.Popen[bytes]] = []
        signals = stack.enter_context(_passing_on_signals(workers))
        for rank in range(processes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            workers.append(_start(arguments, {**shared, **own}, kept[rank - 1] if rank else None))
        _wait(workers)
        codes = [worker.returncode for worker in workers]
        if codes[0] in (0, PeerLost.exit_code) or codes[0] < 0:
            _show_error(codes[1:], kept)
        return codes, bool(signals)


def _start(arguments: Sequence[str], environment: dict[str, str], kept: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C reaches it once; it stops when the parent is killed."""
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if kept else None,
        stderr=kept,
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(signal.SIGTERM),
    )


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all processes; when one has failed, those that do not end by themselves are killed."""
    deadline = float("inf")
    while any(worker.poll() is None for worker in workers):
        if deadline == float("inf") and any(worker.returncode for worker in workers):
            deadline = time.monotonic() + _GRACE
        for worker in workers:
            if time.monotonic() > deadline:
                worker.kill()
        time.sleep(_POLL)


def _show_error(codes: Sequence[int], kept: Sequence[IO[bytes]]) -> None:
    """Show what the first failed process wrote to standard error last."""
    for code, stream in zip(codes, kept, strict=True):
        stream.seek(0)
        lines = stream.read().decode(errors="replace").strip().splitlines()
        if code > 0 and code != PeerLost.exit_code and lines:
            sys.stderr.write(lines[-1] + "\n")
            return


@contextmanager
def _passing_on_signals(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Pass stop signals on to the processes; yield those received."""
    received: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        for worker in workers:
            worker.send_signal(number)

    noticed = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, pass_on) for number in noticed}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
