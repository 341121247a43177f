"""Workers: values, streams, errors, time limits, waiting, and a new process after the end of one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import run_async

from attnlab.errors import AttnlabError, UserError
from attnlab.serve.worker import Busy, TimeLimit, Worker, import_all


@pytest.fixture(autouse=True)
def _find_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the tasks below by the name of this module."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PYTHONPATH", path)


def double(value: int) -> int:
    return 2 * value


def count(limit: int) -> Iterator[int]:
    yield from range(limit)
    return limit


def refuse() -> None:
    raise UserError("not like this")


def stop() -> None:
    os._exit(1)


def identity() -> int:
    return os.getpid()


def test_values_streams_and_errors_of_one_process() -> None:
    async def check() -> None:
        worker = Worker()
        assert await worker.run(double, 4) == b"8"
        assert [value async for value in worker.stream(count, 3)] == [b"0", b"1", b"2", None]
        with pytest.raises(UserError, match="not like this"):
            await worker.run(refuse)
        assert await worker.run(identity) == await worker.run(identity) != str(os.getpid()).encode()
        worker.close()

    run_async(check())


def test_a_task_that_takes_too_long_is_ended_and_the_next_gets_a_new_process() -> None:
    async def check() -> None:
        worker = Worker()
        first = await worker.run(identity)
        with pytest.raises(TimeLimit, match="longer than 0.2 seconds"):
            await worker.run(time.sleep, 60, timeout=0.2)
        assert await worker.run(identity) != first
        with pytest.raises(AttnlabError, match="ended unexpectedly"):
            await worker.run(stop)
        assert await worker.run(double, 1) == b"2"
        worker.close()

    run_async(check())


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cancelled_task_ends_its_process() -> None:
    async def check() -> None:
        worker = Worker()
        first = await worker.run(identity)
        running = asyncio.ensure_future(worker.run(time.sleep, 60))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await worker.run(identity) != first
        end = time.monotonic() + 10
        while is_running(int(first)) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        assert not is_running(int(first))
        worker.close()

    run_async(check())


def count_slowly() -> Iterator[int]:
    for number in range(10_000):
        time.sleep(0.01)
        yield number


def test_a_task_that_yields_stops_when_it_is_cancelled_and_its_process_stays() -> None:
    async def check() -> None:
        worker = Worker()
        first = await worker.run(identity)
        values = worker.stream(count_slowly)
        assert await anext(values) == b"0"
        await values.aclose()
        assert await worker.run(identity) == first
        assert await worker.run(double, 3) == b"6"
        worker.close()

    run_async(check())


def leave_a_file() -> str:
    folder = tempfile.mkdtemp()
    return subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip() + "|" + folder


def test_temporary_files_of_a_process_and_its_children_are_deleted_with_it() -> None:
    async def check() -> None:
        worker = Worker()
        left = [Path(path) for path in json.loads(await worker.run(leave_a_file)).split("|")]
        assert all(one.is_dir() for one in left)
        worker.close()
        assert not any(one.exists() for one in left)

    run_async(check())


def test_a_start_that_nobody_waits_for_any_more_serves_the_next_task() -> None:
    async def check() -> None:
        worker = Worker()
        running = asyncio.ensure_future(worker.run(identity))
        await asyncio.sleep(0)
        running.cancel()
        assert await worker.run(double, 2) == b"4"
        worker.close()

    run_async(check())


def test_a_reader_that_stops_reading_keeps_nobody_waiting() -> None:
    async def check() -> None:
        worker = Worker(waiting=2)
        values = worker.stream(count, 1000)
        assert await anext(values) == b"0"
        assert await asyncio.wait_for(worker.run(double, 1), 60) == b"2"
        assert [value async for value in values] == [*(b"%d" % number for number in range(1, 1000)), None]
        worker.close()

    run_async(check())


def test_the_event_loop_goes_on_while_a_process_starts_and_gets_much_to_read() -> None:
    async def check() -> None:
        worker, turns = Worker(), 0

        async def watch() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        watching = asyncio.ensure_future(watch())
        assert await worker.run(len, "x" * 5_000_000) == b"5000000"
        watching.cancel()
        assert turns >= 5  # a loop that waits for the process has one or two
        worker.close()

    run_async(check())


def test_what_cannot_be_sent_is_an_error() -> None:
    async def check() -> None:
        worker = Worker()
        with pytest.raises(Exception, match="no function of a module"):
            await worker.run(lambda: None)
        assert await worker.run(double, 2) == b"4"
        worker.close()

    run_async(check())


def test_modules_are_imported_ahead() -> None:
    async def check() -> None:
        worker = Worker()
        await worker.run(import_all, "colorsys")
        assert "colorsys" in json.loads(await worker.run(imported))
        worker.close()

    run_async(check())


def imported() -> list[str]:
    return list(sys.modules)


def test_too_many_waiting_tasks_are_refused() -> None:
    async def check() -> None:
        worker = Worker(waiting=2)
        running = [asyncio.ensure_future(worker.run(time.sleep, 0.3)) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(Busy):
            await worker.run(double, 1)
        await asyncio.gather(*running)
        assert await worker.run(double, 1) == b"2"
        worker.close()

    run_async(check())


def long_text(length: int) -> str:
    return "x" * length


def test_long_messages_arrive_whole_with_the_event_loop_of_the_server() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def check() -> None:
        worker = Worker()
        for length in (10, 2_000_000, 100_000):
            assert len(json.loads(await worker.run(long_text, length))) == length
        worker.close()

    run_async(check(), uvloop.run)
