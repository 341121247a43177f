"""Fast paths, each tested against its readable reference, the `pattern` of the mechanisms that use it.

Some are plain torch: gathered blocks (blocks.py), running sums (prefix.py). Where it pays, they are compiled: a kernel is one
file NAME.cpp that needs only a C++ compiler, with C functions called with pointers through ctypes. One of them is
`int probe()`, which solves a small problem and returns 0 if the numbers are right. build.py does the rest; without a
compiler, a plain torch version is used. Knows nothing about mechanisms.

Kernels process rows in threads of their own (`in_parts`), since a foreign function releases the interpreter lock while it
runs. OpenMP is not used: a second OpenMP runtime beside torch's would compete for the same cores.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


@functools.cache
def _pool(helpers: int) -> ThreadPoolExecutor:
    """A pool of threads."""
    return ThreadPoolExecutor(helpers, thread_name_prefix="attnlab")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not outlive a fork


def in_parts(work: Callable[[int, int], Any], count: int, threads: int) -> list[Any]:
    """Return the results of work(begin, end) for the parts of range(count), one part per thread, this one included."""
    parts = max(1, min(threads, count))
    borders = [count * part // parts for part in range(parts + 1)]
    if parts == 1:
        return [work(0, count)]
    others = [_pool(threads - 1).submit(work, borders[part], borders[part + 1]) for part in range(1, parts)]
    return [work(0, borders[1]), *(other.result() for other in others)]
