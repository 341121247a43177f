"""Server-sent events: small messages when something changes, until the client goes away."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from attnlab.serve.worker import Busy
from attnlab.store.folders import is_locked

STREAMS = 24  # at a time
_SILENCE = 15.0  # seconds after which a comment shows that the server is there
_WATCHED = (
    *("result.json", "metrics.jsonl", "config.json", "study.json", "manifest.json"),
    *("bench.json", "reach.json", "report.json", "calibration.json"),
)
_PARTS = ("checkpoints", "model", "best", "code")  # folders inside a run that are not runs
_DEPTH = 4
_open = 0


def as_events(request: Request, values: AsyncGenerator[dict[str, Any] | None]) -> StreamingResponse:
    """An answer of one event per value; None keeps the connection open."""
    if _open >= STREAMS:
        raise Busy(f"{STREAMS} pages follow runs already: close one")

    async def messages() -> AsyncIterator[bytes]:
        global _open
        _open += 1
        sent = time.monotonic()
        try:
            async with aclosing(values):
                async for value in values:
                    if await request.is_disconnected():
                        return
                    if value is not None:
                        yield f"data: {json.dumps(value, allow_nan=False)}\n\n".encode()
                    elif time.monotonic() - sent > _SILENCE:
                        yield b": still here\n\n"
                    else:
                        continue
                    sent = time.monotonic()
        finally:
            _open -= 1

    return StreamingResponse(messages(), media_type="text/event-stream")


async def changes(folder: Path, pause: float) -> AsyncIterator[bool]:
    """True at first and after every change of a run below a folder, False where nothing changed for a while."""
    before: object = None
    while True:
        now = await asyncio.to_thread(lambda: tuple(_signature(folder, _DEPTH)))
        yield now != before
        before = now
        await asyncio.sleep(pause)


def _signature(folder: Path, depth: int) -> Iterator[tuple[object, ...]]:
    """What changes when a run below a folder is created, trains, stops or is completed."""
    try:
        inside = list(os.scandir(folder))
    except OSError:
        return
    for one in sorted(inside, key=lambda entry: entry.name):
        try:
            if one.name in _WATCHED:
                found = one.stat(follow_symlinks=False)
                yield one.path, found.st_mtime_ns, found.st_size
            elif one.name == ".lock":
                yield one.path, is_locked(folder)
            elif (
                depth and not one.name.startswith(".") and one.name not in _PARTS and one.is_dir(follow_symlinks=False)
            ):
                yield (one.path,)
                yield from _signature(Path(one.path), depth - 1)
        except OSError:  # it was deleted meanwhile
            continue
