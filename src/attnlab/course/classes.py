"""Run students' classes in child processes with limits of time and memory, and say what became of them.

A server that has loaded torch forks a child for each class, several at a time, and prints a line of JSON for each as it
ends: what was measured, or why nothing was. A child that hangs, needs too much memory or exits affects no other. It works
in a folder of its own that is removed, and its output is discarded. The limits are against mistakes, not against malice:
the code runs as the user who marks.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnlab.errors import UserError, one_line
from attnlab.machine import end_with_parent, memory_held, retain_freed_memory

_LARGEST_FILE = 2**28  # bytes that a child may write to a file
_LONGEST_ANSWER = 10**6  # bytes that are read of what a child writes
_ROUNDS = 7
_Found = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A class to measure: its name as path.py:Class, sizes, what is wanted beyond the audit, and the limits."""

    name: str
    n_embd: int
    n_head: int
    length: int  # of the audit, in tokens
    tokens: int | None = None  # of the text on which it is timed
    training: str | None = None  # preset, corpus, dev and settings, as JSON
    seconds: float = 60.0
    memory: float = 2e9  # bytes
    report: bool = False  # whether the whole audit is wanted


# In the child


def _measure(job: Job, folder: Path) -> _Found:
    """The audit of a class and, if it passes, its time as a multiple of dot's, and its loss."""
    from attnlab.measure.audit import audit_mechanism

    report = audit_mechanism(job.name, n_embd=job.n_embd, n_head=job.n_head, length=job.length)
    found: _Found = {"verdict": report.verdict, "faults": report.faults or report.untested}
    if job.report:
        found["report"] = report.to_dict()
    if report.verdict == "pass":
        if job.tokens is not None:
            found["time_ratio"] = _time_ratio(job, job.tokens)
        if job.training is not None:
            found["loss"] = _loss(job, json.loads(job.training), folder)
    return found


def _time_ratio(job: Job, tokens: int) -> float:
    from attnlab.measure.bench.cases import Case, Inputs, prepare
    from attnlab.measure.bench.timing import take_turns

    retain_freed_memory()
    case = Case(job.name, whole=True, tokens=tokens, n_head=job.n_head, n_embd=job.n_embd)
    inputs = Inputs()
    steps = {"class": prepare(case, inputs), "dot": prepare(case.baseline, inputs)}
    take_turns(steps, 1, 1)  # warm up
    times = take_turns(steps, _ROUNDS, 1)
    return min(times["class"]) / min(times["dot"])


def _loss(job: Job, training: _Found, folder: Path) -> float:
    from attnlab.config import resolve
    from attnlab.lm import stages
    from attnlab.store.usercode import named_by_user

    given = training["settings"]
    model = {"positions": "learned", **given.get("model", {}), "mechanism": named_by_user(job.name)}
    given = {**given, "model": model, "train": {**given.get("train", {}), "threads": 1}}
    config = resolve(training["preset"], given=given)
    result = stages.pretrain(config, training["corpus"], out=folder / "run", dev=training["dev"]).result
    return float(result["best_dev_loss"] if training["dev"] else result["final_loss"])


def _live(job: Job, folder: Path, writer: int) -> None:
    """The life of a child: limits, measurement, answer."""
    import resource

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.chdir(folder)
    os.environ["XDG_STATE_HOME"] = str(folder)  # its record of trusted code ends with it
    memory = int(job.memory) + (memory_held("VmSize") or 0)
    # The server limits the time: RLIMIT_CPU can make the clock of processor time coarse, with which steps are timed.
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, _LARGEST_FILE)):
        resource.setrlimit(kind, (most, most))
    try:
        found = _measure(job, folder)
    except UserError as error:
        found = {"ended": str(error)}
    except BaseException as error:  # whatever a student's class may raise
        is_memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
        found = {"ended": _too_big(job) if is_memory else f"it raises {one_line(error)}"}
    os.write(writer, json.dumps(found).encode())


def _too_big(job: Job) -> str:
    return f"it needs more than {job.memory / 1e9:g} GB of memory"


# The server


def _encodable(found: Any) -> Any:
    """Replace the halves of surrogate pairs, which no report could be written with."""
    return json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))


@dataclass
class _Child:
    number: int
    job: Job
    pid: int
    reader: int
    folder: Path
    deadline: float
    said: bytes = b""

    def end(self) -> _Found:
        """Kill it and its process group, and return what it found or how it ended."""
        late = time.monotonic() >= self.deadline
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.reader)
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            found = _encodable(json.loads(self.said)) if len(self.said) <= _LONGEST_ANSWER else None
        except ValueError:
            found = {"ended": self._how(status, late)}
        except RecursionError:
            found = None
        if not isinstance(found, dict):
            found = {"ended": "its answer cannot be read"}
        return {**found, "number": self.number}

    def _how(self, status: int, late: bool) -> str:
        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if late:
            return f"it takes more than {self.job.seconds:g} s"
        if by in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
            return (
                f"it ended by {signal.Signals(by).name}, probably because memory ran out ({self.job.memory / 1e9:g} GB)"
            )
        how = f"by {signal.Signals(by).name}" if by is not None else f"with exit code {os.WEXITSTATUS(status)}"
        return f"it ended {how} before it was measured"


def _start(number: int, job: Job, to_close: Sequence[int]) -> _Child:
    folder = Path(tempfile.mkdtemp(prefix="attnlab-class-"))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent(signal.SIGKILL)
            for descriptor in (reader, *to_close):
                os.close(descriptor)
            _live(job, folder, writer)
        finally:
            os._exit(0)
    os.close(writer)
    return _Child(number, job, pid, reader, folder, time.monotonic() + job.seconds)


def _work(jobs: Sequence[Job], workers: int, out: int) -> None:
    """Run all jobs, some at a time, and write their answers as they come."""
    waiting, running = list(enumerate(jobs)), dict[int, _Child]()
    while waiting or running:
        while waiting and len(running) < workers:
            child = _start(*waiting.pop(0), [*running, out])
            running[child.reader] = child
        first = min(child.deadline for child in running.values())
        ready = select.select(list(running), [], [], max(0.0, first - time.monotonic()))[0]
        for child in list(running.values()):
            data = os.read(child.reader, 2**16) if child.reader in ready else None
            child.said += data or b""
            if data == b"" or len(child.said) > _LONGEST_ANSWER or time.monotonic() >= child.deadline:
                del running[child.reader]
                os.write(out, json.dumps(child.end()).encode() + b"\n")


def _load() -> None:
    """Have torch and the audit load what they need here and not in every child."""
    import torch

    from attnlab.lm import stages  # noqa: F401
    from attnlab.measure.audit import audit_mechanism
    from attnlab.measure.bench import timing  # noqa: F401

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    audit_mechanism("dot", length=4)
    gc.freeze()  # collecting in a child would copy every page of what was loaded


def serve() -> None:
    """Read a list of jobs as JSON from standard input, and print what was found of each as it ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent(signal.SIGTERM)
    out = os.dup(1)
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    _load()
    _work([Job(**one) for one in asked["jobs"]], asked["workers"], out)


# The client


def run(jobs: Sequence[Job], workers: int, tell: Callable[[str], None] = lambda _: None) -> dict[Job, _Found]:
    """What was found of every class, or under `ended` why nothing was."""
    if not hasattr(os, "fork"):
        raise UserError("students' classes can be run on Linux and macOS only: mark them there")
    found: dict[Job, _Found] = {}
    if not jobs:
        return found
    request = json.dumps({"jobs": [asdict(job) for job in jobs], "workers": workers})
    command = [sys.executable, "-P", "-c", "from attnlab.course import classes; classes.serve()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(request)
            server.stdin.close()
            for line in server.stdout:
                answer = json.loads(line)
                found[jobs[answer.pop("number")]] = answer
                tell(f"{len(found)} of {len(jobs)} classes")
        finally:
            server.terminate()
    lost = {"ended": "the process that runs classes ended"}
    return {job: found.get(job, lost) for job in jobs}
