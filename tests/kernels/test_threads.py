from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.kernels import in_parts


@given(count=st.integers(0, 40), threads=st.integers(1, 6))
def test_the_parts_are_the_whole_in_order(count: int, threads: int) -> None:
    parts = in_parts(lambda begin, end: list(range(begin, end)), count, threads)
    assert [number for part in parts for number in part] == list(range(count))
    assert len(parts) == max(1, min(count, threads))


def test_the_parts_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)
    assert len({*in_parts(lambda begin, end: meeting.wait(), 3, 3)}) == 3


def test_a_failure_of_any_part_is_raised() -> None:
    for bad in (0, 2):
        with pytest.raises(ZeroDivisionError):
            in_parts(lambda begin, end, bad=bad: 1 // (begin - bad), 4, 2)


FORKED = """
import os, signal
from attnlab.kernels import in_parts

def work(begin, end):
    return end - begin

assert in_parts(work, 6, 3) == [2, 2, 2]
child = os.fork()
signal.alarm(10)
assert in_parts(work, 6, 3) == [2, 2, 2]
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=30)
