"""Child processes: values, limits, private folders, and that nothing of them outlives a call or the parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attnlab.errors import DataError
from attnlab.supervisor import NO_LIMITS, Child, ChildError, Done, Item, Limits, MemoryExceeded, Raised

MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def _find_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children import the functions below by the name of this module."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PYTHONPATH", path)


@dataclass(frozen=True)
class Size:
    name: str
    lengths: tuple[int, ...]
    folder: Path | None = None


def double(size: Size, times: int = 2) -> Size:
    return Size(size.name, tuple(times * length for length in size.lengths), size.folder)


def count(limit: int) -> Iterator[int]:
    yield from range(limit)
    return limit


def count_slowly() -> Iterator[int]:
    for number in range(10_000):
        time.sleep(0.01)
        yield number


def refuse(kind: str) -> None:
    raise {"user": DataError("the file is empty"), "other": KeyError("two\nlines\ud800")}[kind]


def exit_at_once(code: int) -> None:
    os._exit(code)


def abort() -> None:
    os.kill(os.getpid(), signal.SIGABRT)


def allocate(size: int) -> int:
    return len(bytearray(size))


def write(size: int) -> None:
    Path(tempfile.gettempdir(), "large").write_bytes(bytes(size))


def shout(size: int) -> None:
    print("x" * size)
    print("the end", flush=True)


def give_back(value: object) -> object:
    return value


def large_number() -> int:
    return 2**70


def wrong_type() -> Size:
    return {"name": 3}  # type: ignore[return-value]


def leave_files() -> list[str]:
    own = tempfile.mkdtemp()
    return [own, subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip()]


def start_another() -> int:
    """The id of a process of the same group that would run for long."""
    return subprocess.Popen(["sleep", "60"]).pid


def search_path() -> list[str]:
    return [*sys.path, str(Path.cwd())]


def run(function: Callable[..., Any], *arguments: Any, limits: Limits = NO_LIMITS) -> Any:
    """The value of a function, computed in a child of its own."""
    with Child() as child:
        return child.call(function, *arguments, limits=limits)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_ended(*pids: int) -> None:
    until = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(is_running, pids))


def test_arguments_and_values_are_records() -> None:
    with Child() as child:
        asked = Size("a", (1, 2), Path("x"))
        assert child.call(double, asked, 3) == Size("a", (3, 6), Path("x"))
        child.send(count, 2)
        assert [child.receive() for _ in range(3)] == [Item(0), Item(1), Done(2)]
        assert child.receive(0.01) is None
        assert child.call(os.getpid) == child.pid
        with pytest.raises(TypeError, match="no function of a module"):
            child.call(lambda: None)
        with pytest.raises(TypeError, match="cannot be part of a record"):
            child.call(double, object())


def test_errors_arrive_as_what_they_are_and_the_child_goes_on() -> None:
    with Child() as child:
        with pytest.raises(DataError, match="the file is empty"):
            child.call(refuse, "user")
        with pytest.raises(Raised, match="KeyError: .*two"):
            child.call(refuse, "other")
        with pytest.raises(Raised, match="OverflowError"):
            child.call(large_number)
        with pytest.raises(ChildError, match="cannot be read"):
            child.call(wrong_type)
        assert child.call(give_back, ["\ud800", "x"]) == ["?", "x"]


def test_a_function_that_yields_stops_when_asked_to() -> None:
    with Child() as child:
        child.send(count_slowly)
        assert child.receive() == Item(0)
        child.stop()
        while not isinstance(message := child.receive(), Done):
            pass
        assert message == Done(None)
        child.stop()  # too late: ignored
        assert child.call(allocate, 3) == 3


def test_the_time_limit_counts_from_when_the_child_is_ready() -> None:
    with pytest.raises(ChildError, match="more than 0.3 s"):
        run(time.sleep, 60, limits=Limits(seconds=0.3))
    assert run(allocate, 1, limits=Limits(seconds=0.5)) == 1  # starting takes longer on a busy machine


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
def test_memory_and_files_are_limited_for_one_call() -> None:
    with Child() as child:
        with pytest.raises(MemoryExceeded, match="more than 0.1 GB"):
            child.call(allocate, 500 * MEGABYTE, limits=Limits(memory=10**8))
        assert child.call(allocate, 500 * MEGABYTE) == 500 * MEGABYTE
        with pytest.raises(Raised, match="OSError: .*File too large"):
            child.call(write, MEGABYTE, limits=Limits(file=1000))
        child.call(write, MEGABYTE)


def test_a_child_that_dies_says_how() -> None:
    for function, arguments, words in ((exit_at_once, (3,), "exit code 3"), (abort, (), "SIGABRT, probably .*1 GB")):
        with pytest.raises(ChildError, match=words):
            run(function, *arguments, limits=Limits(memory=10**9))


def test_messages_are_bounded_and_forged_ones_refused() -> None:
    with pytest.raises(ChildError, match="too long"):
        run(give_back, "x" * 2000, limits=Limits(message=1000))
    with Child() as child:
        child.call(allocate, 1)
        child._received += (5).to_bytes(8, "big") + b"[" * 5
        with pytest.raises(ChildError, match="cannot be read"):
            child.receive()


def test_output_goes_to_a_file_or_nowhere_and_does_not_block(tmp_path: Path) -> None:
    with Child() as child:
        child.call(shout, 10 * MEGABYTE)
    with Child(output=tmp_path / "log.txt") as child:
        child.call(shout, 3)
    assert (tmp_path / "log.txt").read_text() == "xxx\nthe end\n"


def test_temporary_files_are_private_and_deleted_with_the_child() -> None:
    with Child() as child:
        paths = [Path(name) for name in child.call(leave_files)]
        assert all(path.is_dir() and path.is_relative_to(child.folder) for path in paths)
    assert not child.folder.exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_the_whole_process_group_ends_with_the_child() -> None:
    with Child() as child:
        other = child.call(start_another)
        assert is_running(other)
    assert_ended(child.pid, other)
    with Child() as child:
        other = child.call(start_another)
        child.send(exit_at_once, 0)
        while child.poll() is None:
            time.sleep(0.01)
        assert_ended(other)
    with Child() as child:
        other = child.call(start_another)
        with pytest.raises(ChildError, match="exit code 0"):
            child.call(exit_at_once, 0)
        assert_ended(other)


PARENT = """
import time
from attnlab.supervisor import Child
import test_supervisor as tests
child = Child()
print(child.pid, child.call(tests.start_another), flush=True)
child.send({task})
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("task", ["time.sleep, 60", "tests.sum_without_pause"])
def test_nothing_is_left_when_the_parent_is_killed(task: str) -> None:
    """Neither the child, whatever it computes, nor what it has started."""
    code = PARENT.format(task=task)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert all(map(is_running, pids))
        parent.kill()
    assert_ended(*pids)


def sum_without_pause() -> int:
    """One call of C code that no other thread of Python interrupts."""
    return sum(range(10**11))


def test_children_do_not_import_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    *path, current = run(search_path)
    assert current == str(tmp_path)
    assert not {"", current} & set(path)


def main(arguments: list[str]) -> int:
    """The command of the next test."""
    folder = Path(arguments[0])
    try:
        (folder / "ready").touch()
        print("working", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        (folder / "saved").touch()
    return 7


@pytest.mark.parametrize("how", ["interrupt", "parent is gone"])
def test_a_command_is_asked_to_save(tmp_path: Path, how: str) -> None:
    with Child("test_supervisor", str(tmp_path), output=tmp_path / "log", orphan_signal=signal.SIGINT) as child:
        until = time.monotonic() + 30
        while not (tmp_path / "ready").exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert child.poll() is None
        if how == "interrupt":
            child.interrupt()
        else:
            child._lifeline.close()
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert child.poll() == 7
        assert (tmp_path / "saved").exists()
        assert (tmp_path / "log").read_text() == "working\n"


def test_watching_works_without_the_signals_of_linux() -> None:
    """Where the system does not send a signal, a thread does."""
    code = (
        "import fcntl, os, sys, time; from attnlab import supervisor\n"
        "fcntl.__dict__.pop('F_SETSIG', None)\n"
        "supervisor._end_with_parent(int(sys.argv[1]), 9); print('ready', flush=True); time.sleep(60)"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(reader)], pass_fds=[reader], start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 30)[0]
    os.close(writer)
    assert process.wait(10) == -signal.SIGKILL
    os.close(reader)
    process.stdout.close()
