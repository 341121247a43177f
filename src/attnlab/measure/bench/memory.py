"""Peak memory of a step, by the system's own account, in a child process made for it.

torch keeps no count of memory on a CPU, and a count of its tensors would miss what libraries take inside their kernels. So
a small server that has imported everything forks a child for every question. The child builds its inputs, resets the
system's high-water mark, runs one step, and answers with how far the mark rose: everything the step held at once beyond
its inputs, and nothing left over from others. The allocator is told to give freed memory back at once, so that the mark shows
what is needed and not what is kept; that costs time, so a child that is asked for its time runs again with an allocator
that keeps memory, as training does. A child that would need more than its limit is refused by the system, and no harm is done.

    python -m attnlab.measure.bench.memory MODULE_OR_FILE:FUNCTION

reads one JSON table per line, the arguments of FUNCTION, which makes the step; `tokens` among them is the length.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from attnlab.machine import STATUS, end_with_parent, memory_held

MAKER = "attnlab.measure.bench.contestants:prepare_fields"
MARK = Path("/proc/self/clear_refs")
RESET = "5"  # written to the mark: the peak begins anew at what is held now
WARM_UP_TOKENS = 64
SLOW = 15.0  # seconds; what takes longer is not repeated
KEPT_BLOCK = 2**16  # bytes; larger blocks go back to the system when they are freed


@dataclass(frozen=True)
class Glance:
    """One step in a child: bytes at the peak beyond the inputs, seconds; or why there are none."""

    bytes: int | None = None
    seconds: float | None = None
    failed: str = ""


def measurable() -> bool:
    """Whether this system tells a process its peak: Linux does."""
    return STATUS.exists() and MARK.exists() and hasattr(os, "fork")


def clock(threads: int) -> Callable[[], float]:
    """Processor time for one thread, which other programs do not lengthen; the wall's for more."""
    return time.process_time if threads == 1 else time.perf_counter


def readable(size: float) -> str:
    """A number of bytes for people."""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if size >= u), (1e3, "KB"))
    return f"{size / unit:.0f} {name}" if size >= 10 * unit else f"{size / unit:.1f} {name}"


# In the child


def _held(field: str) -> int:
    """machine.memory_held, where `measurable` says that the system tells."""
    size = memory_held(field)
    assert size is not None, field
    return size


def _give_memory_back() -> None:
    """Have glibc return what is freed."""
    try:
        library = ctypes.CDLL(None)
        mmap_threshold, trim_threshold = -3, -1
        library.mallopt(mmap_threshold, KEPT_BLOCK)
        library.mallopt(trim_threshold, KEPT_BLOCK)
    except (AttributeError, OSError):
        return  # another allocator; the mark then shows what it keeps as well


def _limit_memory(size: int) -> None:
    """Let this process take so many more bytes, and no more."""
    import resource

    most = _held("VmSize") + size
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def watch(step: Callable[[], object], threads: int = 1) -> Glance:
    """One step under the system's eyes."""
    import resource

    now = clock(threads)
    gc.collect()
    MARK.write_text(RESET)
    before, began = _held("VmRSS"), now()
    result = step()
    seconds = now() - began
    del result
    return Glance(max(resource.getpagesize(), _held("VmHWM") - before), seconds)  # the system counts whole pages


def _settled(step: Callable[[], object], threads: int) -> float:
    """Seconds of a step as it runs in training, where memory is kept from step to step; the least of two, or one if slow."""
    from attnlab.train import retain_freed_memory

    retain_freed_memory()
    now, times = clock(threads), list[float]()
    while len(times) < 2 and sum(times) < SLOW:
        began = now()
        step()
        times.append(now() - began)
    return min(times)


def answer(make: Callable[..., Callable[[], object]], question: Mapping[str, Any]) -> dict[str, Any]:
    """What the child says: a short step first, for what libraries load when they are first called."""
    import torch

    arguments, limit = dict(question["arguments"]), int(question["limit"])
    torch.set_num_threads(question["threads"])
    with suppress(Exception):  # some need longer texts
        make(**{**arguments, "tokens": min(WARM_UP_TOKENS, arguments["tokens"])})()
    try:
        _limit_memory(limit)
        step = make(**arguments)
        glance = watch(step, question["threads"])
        return vars(replace(glance, seconds=_settled(step, question["threads"])) if question["timed"] else glance)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return {"failed": f"needs more than {readable(limit)}"}
        return {"failed": describe(error)}
    except Exception as error:  # whatever a user's module may raise
        return {"failed": describe(error)}


def describe(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# The server


def _load(maker: str) -> Callable[..., Callable[[], object]]:
    """The function behind `module:function` or `file.py:function`."""
    place, _, name = maker.rpartition(":")
    function: Callable[..., Callable[[], object]] = getattr(_load_module(place), name)
    return function


def _load_module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their own module
    spec.loader.exec_module(module)
    return module


def _wake_torch() -> None:
    """Have torch load what it loads at its first gradient, which takes seconds, here and not in every child."""
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    x = torch.ones(8, 8, requires_grad=True)
    torch.autograd.grad((x @ x).softmax(-1), x, torch.ones(8, 8))
    gc.freeze()  # collecting in a child would copy every page of what was loaded


def _ask_a_child(make: Callable[..., Callable[[], object]], question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a fresh fork of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        end_with_parent(signal.SIGKILL)  # in mid-step too
        os.write(writer, json.dumps(answer(make, question)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    if said:
        told: dict[str, Any] = json.loads(said)
        return told
    # Libraries that do not check what they are given die of the limit instead of reporting it.
    how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
    return {"failed": f"ended by {how}, probably for want of {readable(question['limit'])}"}


def _serve(maker: str) -> None:
    """Answer questions until there are no more; what else is printed goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # who stops the program stops this too, without a word
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        make = _load(maker)
        _wake_torch()
        _give_memory_back()
        for line in sys.stdin:
            out.write(json.dumps(_ask_a_child(make, json.loads(line))) + "\n")
            out.flush()


# Outside


class Gauge:
    """The server as its user sees it; it starts with the first question and ends with the `with`."""

    def __init__(self, limit: float, threads: int = 1, maker: str = MAKER, timed: bool = False) -> None:
        self.limit = int(limit)
        self.threads = threads
        self.maker = maker
        self.timed = timed
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Gauge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()

    def glance(self, arguments: Mapping[str, Any]) -> Glance:
        """Peak memory and time of one step."""
        if self._server is None:
            command = [sys.executable, "-P", "-m", "attnlab.measure.bench.memory", self.maker]
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        question = {
            "arguments": dict(arguments),
            "limit": self.limit,
            "threads": self.threads,
            "timed": self.timed,
        }
        try:
            self._server.stdin.write(json.dumps(question) + "\n")
            self._server.stdin.flush()
            said = self._server.stdout.readline()
        except BrokenPipeError:
            said = ""
        return Glance(**json.loads(said)) if said else Glance(failed="the process that measures memory ended")


if __name__ == "__main__":
    _serve(sys.argv[1])
