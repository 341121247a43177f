"""Peak memory of a step as the system counts it, in a child process made for it.

torch does not count memory on a CPU, and counting its tensors would miss what libraries allocate inside their kernels. So
a child process builds the inputs, resets the system's high-water mark, runs one step, and answers with how far the mark
rose: everything the step held at once beyond its inputs and beyond what was left over before. The allocator returns freed
memory at once, so that the mark shows what is needed and not what is retained; that costs time, so a step whose time is
wanted runs again in another child, whose allocator retains memory as in training. A step that needs more than its limit is
refused memory by the system. A child measures step after step; if it dies, the next step gets a new one.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from attnlab.errors import AttnlabError
from attnlab.machine import STATUS, memory_held, release_freed_memory, retain_freed_memory
from attnlab.measure.bench import Point, format_bytes
from attnlab.supervisor import Child, Limits, MemoryExceeded

MAKER = "attnlab.measure.bench.cases:prepare_fields"  # or FILE.py:FUNCTION
WARM_UP_TOKENS = 64
_MARK = Path("/proc/self/clear_refs")
_RESET = "5"  # written to the mark: the peak starts again from what is held now
_SLOW = 15.0  # seconds; a slower step is not repeated
_RETAINED_BLOCK = 2**16  # bytes; larger blocks go back to the system when they are freed

Step = Callable[[], object]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Request:
    """A step to measure: the function that makes it, and its arguments with the length as `tokens`."""

    maker: str
    arguments: dict[str, Any]
    threads: int

    @property
    def tokens(self) -> int:
        """The length of the text."""
        return int(self.arguments["tokens"])


def measurable() -> bool:
    """Whether this system reports the peak of a process: Linux does."""
    return STATUS.exists() and _MARK.exists()


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


def measure_peak(request: Request) -> Point:
    """Memory at the peak of a step, and its time while freed memory is returned."""
    _return_freed_memory()
    step = _prepared(request)
    release_freed_memory()
    size, seconds = watch(step, request.threads)
    return Point(request.tokens, seconds, size, runs=1)


def time_as_in_training(request: Request) -> float:
    """Seconds of a step while memory is retained from step to step; the shorter of two, or one if it is slow."""
    retain_freed_memory()
    step, now, times = _prepared(request), clock(request.threads), list[float]()
    while len(times) < 2 and sum(times) < _SLOW:
        began = now()
        step()
        times.append(now() - began)
    return min(times)


def _prepared(request: Request) -> Step:
    """A step, after a short one in which libraries load what they need."""
    import torch

    torch.set_num_threads(request.threads)
    make = _load(request.maker)
    with suppress(Exception):  # some need longer texts
        make(**{**request.arguments, "tokens": min(WARM_UP_TOKENS, request.tokens)})()
    return make(**request.arguments)


def _load(maker: str) -> Callable[..., Step]:
    """The function behind `module:function` or `file.py:function`."""
    place, _, name = maker.rpartition(":")
    if place.endswith(".py"):
        sys.path.append(str(Path(place).parent))
        place = Path(place).stem
    function: Callable[..., Step] = getattr(importlib.import_module(place), name)
    return function


# In the parent


class MemoryProbe:
    """Measures steps in child processes, which start with the first and end with the `with` block.

    One measures memory; where the time is wanted too, another one with an allocator that retains memory takes it.
    """

    def __init__(self, limit: float, threads: int = 1, maker: str = MAKER, timed: bool = False) -> None:
        self.limit = int(limit)
        self.threads = threads
        self.maker = maker
        self.timed = timed
        self._children: dict[str, Child] = {}

    def __enter__(self) -> MemoryProbe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children.values():
            child.end()

    def measure(self, arguments: Mapping[str, Any]) -> Point:
        """Peak memory and time of one step, or why there are none."""
        request = Request(self.maker, dict(arguments), self.threads)
        try:
            point = self._call(measure_peak, request)
            return replace(point, seconds=self._call(time_as_in_training, request)) if self.timed else point
        except MemoryExceeded:
            reason = f"needs more than {format_bytes(self.limit)}"
        except AttnlabError as error:
            reason = str(error)
        return Point(request.tokens, skipped=reason)

    def _call(self, function: Callable[[Request], _T], request: Request) -> _T:
        """Call a function in its own child; one that has died is replaced."""
        child = self._children.get(function.__name__)
        if child is None or child.poll() is not None:
            if child is not None:
                child.end()
            child = self._children[function.__name__] = Child(imports=("attnlab.measure.bench.cases",))
        return child.call(function, request, limits=Limits(memory=self.limit))
