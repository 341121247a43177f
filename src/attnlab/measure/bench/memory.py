"""Peak memory of a step as the system counts it, in a child process made for it.

torch does not count memory on a CPU, and counting its tensors would miss what libraries allocate inside their kernels. So
a small server that has imported everything forks a child for every request. The child builds its inputs, resets the
system's high-water mark, runs one step, and answers with how far the mark rose: everything the step held at once beyond
its inputs, and nothing left over from others. The allocator returns freed memory at once, so that the mark shows what is
needed and not what is retained; that costs time, so a child that is asked for its time runs again with an allocator that
retains memory, as in training. A child that needs more than its limit is refused memory by the system, and ends.

    python -m attnlab.measure.bench.memory MODULE_OR_FILE:FUNCTION

reads one request per line as JSON; `arguments` are those of FUNCTION, which makes the step, with the length as `tokens`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from attnlab.errors import one_line
from attnlab.machine import STATUS, end_with_parent, memory_held, retain_freed_memory
from attnlab.measure.bench import Point, format_bytes

MAKER = "attnlab.measure.bench.cases:prepare_fields"
WARM_UP_TOKENS = 64
_MARK = Path("/proc/self/clear_refs")
_RESET = "5"  # written to the mark: the peak starts again from what is held now
_SLOW = 15.0  # seconds; a slower step is not repeated
_RETAINED_BLOCK = 2**16  # bytes; larger blocks go back to the system when they are freed

Step = Callable[[], object]


@dataclass(frozen=True)
class _Request:
    """A step to measure: the arguments that make it, its limit in bytes, and whether its time is wanted as in training."""

    arguments: dict[str, object]
    limit: int
    threads: int
    timed: bool

    @property
    def tokens(self) -> int:
        tokens = self.arguments["tokens"]
        assert isinstance(tokens, int)
        return tokens


def measurable() -> bool:
    """Whether this system reports the peak of a process: Linux does."""
    return STATUS.exists() and _MARK.exists() and hasattr(os, "fork")


def clock(threads: int) -> Callable[[], float]:
    """Processor time for one thread, which other programs do not lengthen; wall time for more."""
    return time.process_time if threads == 1 else time.perf_counter


# In the child


def _held(field: str) -> int:
    size = memory_held(field)
    assert size is not None, field
    return size


def _return_freed_memory() -> None:
    """Have glibc return freed memory to the system; with another allocator the mark includes what that retains."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mmap_threshold, trim_threshold = -3, -1
        mallopt(mmap_threshold, _RETAINED_BLOCK)
        mallopt(trim_threshold, _RETAINED_BLOCK)


def watch(step: Step, threads: int = 1) -> tuple[int, float]:
    """Bytes at the peak of a step beyond what was held before, and its seconds."""
    import resource

    now = clock(threads)
    gc.collect()
    _MARK.write_text(_RESET)
    before, began = _held("VmRSS"), now()
    result = step()
    seconds = now() - began
    del result
    return max(resource.getpagesize(), _held("VmHWM") - before), seconds  # the system counts whole pages


def _time_as_in_training(step: Step, threads: int) -> float:
    """Seconds of a step while memory is retained from step to step; the shorter of two, or one if it is slow."""
    retain_freed_memory()
    now, times = clock(threads), list[float]()
    while len(times) < 2 and sum(times) < _SLOW:
        began = now()
        step()
        times.append(now() - began)
    return min(times)


def _answer(make: Callable[..., Step], request: _Request) -> Point:
    """Measure the step in this process, after a short one in which libraries load what they need."""
    import resource

    import torch

    torch.set_num_threads(request.threads)
    with suppress(Exception):  # some need longer texts
        make(**{**request.arguments, "tokens": min(WARM_UP_TOKENS, request.tokens)})()
    try:
        most = _held("VmSize") + request.limit
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        step = make(**request.arguments)
        size, seconds = watch(step, request.threads)
        if request.timed:
            seconds = _time_as_in_training(step, request.threads)
        return Point(request.tokens, seconds, size, runs=1)
    except Exception as error:  # whatever a user's module may raise
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error)):
            return Point(request.tokens, skipped=f"needs more than {format_bytes(request.limit)}")
        return Point(request.tokens, skipped=one_line(error))


# The server


def _load(maker: str) -> Callable[..., Step]:
    """The function behind `module:function` or `file.py:function`."""
    place, _, name = maker.rpartition(":")
    if place.endswith(".py"):
        sys.path.append(str(Path(place).parent))
        place = Path(place).stem
    function: Callable[..., Step] = getattr(importlib.import_module(place), name)
    return function


def _load_torch() -> None:
    """Have torch load what it loads at its first gradient, which takes seconds, here and not in every child."""
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    x = torch.ones(8, 8, requires_grad=True)
    torch.autograd.grad((x @ x).softmax(-1), x, torch.ones(8, 8))
    gc.freeze()  # collecting in a child would copy every page of what was loaded


def _answer_in_child(make: Callable[..., Step], request: _Request) -> str:
    """The answer of a new fork of this process, as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        end_with_parent(signal.SIGKILL)  # even within a step
        os.write(writer, json.dumps(asdict(_answer(make, request))).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    if answer:
        return answer
    # Libraries that do not check their allocations are ended by the limit instead of reporting it.
    how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
    reason = f"ended by {how}, probably for want of {format_bytes(request.limit)}"
    return json.dumps(asdict(Point(request.tokens, skipped=reason)))


def _serve(maker: str) -> None:
    """Answer requests until there are no more; anything else that is printed goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this process too, without a traceback
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        make = _load(maker)
        _load_torch()
        _return_freed_memory()
        for line in sys.stdin:
            out.write(_answer_in_child(make, _Request(**json.loads(line))) + "\n")
            out.flush()


# The client


class MemoryProbe:
    """Measures steps on a server, which starts with the first request and ends with the `with` block."""

    def __init__(self, limit: float, threads: int = 1, maker: str = MAKER, timed: bool = False) -> None:
        self.limit = int(limit)
        self.threads = threads
        self.maker = maker
        self.timed = timed
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> MemoryProbe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()

    def measure(self, arguments: Mapping[str, object]) -> Point:
        """Peak memory and time of one step, or why there are none."""
        if self._server is None:
            command = [sys.executable, "-P", "-m", "attnlab.measure.bench.memory", self.maker]
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = _Request(dict(arguments), self.limit, self.threads, self.timed)
        answer = ""
        with suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(asdict(request)) + "\n")
            self._server.stdin.flush()
            answer = self._server.stdout.readline()
        if not answer:
            return Point(request.tokens, skipped="the process that measures memory ended")
        return Point(**json.loads(answer))


if __name__ == "__main__":
    _serve(sys.argv[1])
