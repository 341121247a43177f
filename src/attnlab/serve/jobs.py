"""Commands that the page has started: child processes with their output.

A job is `python -m attnlab ...` in a process group of its own. Stopping one sends an interrupt to that process alone, which
saves everything and can be resumed. When the server ends, its jobs are interrupted too, and killed if they take too long.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Literal

from attnlab.errors import UserError
from attnlab.serve.worker import Busy
from attnlab.terminal import printable

AT_A_TIME = 2
_KEPT_LINES = 500
_KEPT_JOBS = 20
_LONGEST = 2000  # characters of a line; a longer one is kept as several
_GRACE = 20.0  # seconds to save everything when the server ends

State = Literal["running", "complete", "stopped", "failed"]


@dataclass
class Job:
    """A command, its folder below the folder of runs, and what it has printed."""

    number: int
    arguments: Sequence[str]
    folder: str
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.time)
    ended: float | None = None
    asked_to_stop: bool = False
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    printed: int = 0  # lines, with those no longer kept
    _printing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def line(self) -> str:
        """The command as it would be typed."""
        return command_line(self.arguments)

    @property
    def state(self) -> State:
        """What became of it."""
        if self.ended is None:
            return "running"
        if self.process.returncode == 0:
            return "complete"
        return "stopped" if self.asked_to_stop or self.process.returncode in (130, -signal.SIGINT) else "failed"

    def since(self, printed: int) -> tuple[list[str], int]:
        """The kept lines after the first `printed`, and how many there were in all."""
        with self._printing:
            kept, total = list(self.lines), self.printed
        new = total - max(0, printed)
        return kept[-new:] if new > 0 else [], total

    def stop(self) -> None:
        """Ask it to save everything and end."""
        self.asked_to_stop = True
        # A server that was started with interrupts ignored has children that ignore them.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)

    def read(self, stream: IO[bytes]) -> None:
        """Keep what it prints until it ends."""
        with TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="\n") as text:
            while line := text.readline(_LONGEST):
                # The last state of a line that was overwritten, as bars do.
                last = line.rstrip("\r\n").rpartition("\r")[2]
                with self._printing:
                    self.lines.append(printable(last))
                    self.printed += 1
        self.process.wait()
        self.ended = time.time()


def command_line(arguments: Sequence[str]) -> str:
    """Arguments of attnlab as they would be typed."""
    return shlex.join(["attnlab", *arguments])


class Jobs:
    """The jobs of a server, the newest last."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._next = 1
        self._starting = threading.Lock()

    def all(self) -> list[Job]:
        """All jobs that are remembered."""
        return list(self._jobs.values())

    def find(self, number: int) -> Job | None:
        """A job by its number."""
        return self._jobs.get(number)

    def folders(self) -> set[str]:
        """The folders that running jobs write."""
        return {job.folder for job in self.all() if job.ended is None}

    def start(self, arguments: Sequence[str], folder: str) -> Job:
        """Start a command; refuse more than a few at a time, and two in one folder."""
        with self._starting:
            running = [job for job in self.all() if job.ended is None]
            if any(job.folder == folder for job in running):
                raise UserError(f"{folder} is being written by another job: wait for it, or stop it")
            if len(running) >= AT_A_TIME:
                raise Busy(f"{AT_A_TIME} jobs are running already: wait for one, or stop it")
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnlab", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "100", "NO_COLOR": "1"},
                start_new_session=True,
            )
            job = Job(self._next, tuple(arguments), folder, process)
            self._next += 1
            self._jobs[job.number] = job
            for old in [one for one in self.all() if one.ended is not None][:-_KEPT_JOBS]:
                del self._jobs[old.number]
        assert process.stdout is not None
        threading.Thread(target=job.read, args=(process.stdout,), daemon=True).start()
        return job

    def close(self) -> None:
        """Interrupt all jobs, and kill those that do not end soon, with what they have started."""
        running = [job for job in self.all() if job.process.poll() is None]
        for job in running:
            job.stop()
        end = time.monotonic() + _GRACE
        for job in running:
            try:
                job.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(job.process.pid, signal.SIGKILL)


def unused_folder(stem: str, root: Path, taken: set[str]) -> str:
    """The first unused STEM-N below the folder of runs."""
    number = 1
    while os.path.lexists(root / f"{stem}-{number}") or f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"
