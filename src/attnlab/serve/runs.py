"""The routes of the view "runs": the list, reports, runs side by side, samples, and what changes while they train."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from attnlab.serve import documents, samples
from attnlab.serve.events import as_events, changes
from attnlab.serve.lab import Lab, TheLab, as_lines, connected
from attnlab.store import listing

router = APIRouter(tags=["runs"])

_PAUSE = 1.0  # seconds between looks at a run that trains
_LIST_PAUSE = 2.0  # and at all of them
_TIMEOUT = 120.0
_SAMPLING = 600.0  # up to six runs with ten texts each

Name = Annotated[str, Field(min_length=1, max_length=500)]
Condition = Annotated[str, Field(min_length=1, max_length=200)]
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events."}
}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}, "description": "Lines of JSON."}
}


class Entry(BaseModel):
    """One folder, named by its path below the folder of runs; null where a figure is unknown."""

    name: str
    kind: str
    what: str
    state: str
    when: str
    preset: str | None
    mechanism: str | None
    task: str | None
    seed: int | None
    progress: float | None
    tokens: int | None
    seconds: float | None
    loss: float | None
    accuracy: float | None
    note: str
    runs: list[Entry]


class Listing(BaseModel):
    """All folders, the newest first."""

    root: str
    entries: list[Entry]


class Markup(BaseModel):
    """A report as markup, and the command that writes it."""

    markup: str
    command: str


class Report(Markup):
    """The report of one folder."""

    entry: Entry
    path: str
    files: list[str]


class Sampling(BaseModel):
    """What to sample from which runs."""

    names: list[Name] = Field(min_length=1, max_length=6)
    prompt: str = Field("", max_length=2000)
    count: int = Field(3, ge=1, le=10, title="the number of texts")
    temperature: float = Field(0.8, ge=0, le=10, allow_inf_nan=False, title="the temperature")
    top_k: int = Field(0, ge=0, le=100_000)
    seed: int = Field(0, ge=0, le=2**31 - 1, title="the seed")
    limit: int = Field(80, ge=1, le=400, title="the maximum number of tokens")


@router.get("/runs")
async def list_runs(lab: TheLab, filter: Annotated[list[Condition] | None, Query(max_length=20)] = None) -> Listing:
    """All runs and studies that meet the conditions, such as mechanism=dot or train.lr>=0.001."""
    root = lab.options.root
    # In a thread, because it mostly waits for the disk, and the first page should not wait for a worker to start.
    entries = await asyncio.to_thread(documents.list_runs, root, tuple(filter or ()))
    return Listing(root=documents.readable(str(root)), entries=[Entry(**one) for one in entries])


@router.get("/events/runs", responses=_EVENTS)
async def follow_all(request: Request, lab: TheLab) -> StreamingResponse:
    """A message when a run is created, trains, stops or ends."""

    async def values() -> AsyncGenerator[dict[str, Any] | None]:
        number = 0
        async for changed in changes(lab.options.root, _LIST_PAUSE):
            number += changed
            yield {"version": number} if changed else None

    return as_events(request, values())


@router.get("/comparison")
async def compare(request: Request, lab: TheLab, name: Annotated[list[Name], Query(max_length=20)]) -> Markup:
    """Runs side by side: the report of `attnlab report RUN RUN`."""
    names = [_below(lab, one) for one in name]
    found = await connected(request, lab.reports, documents.compare_runs, lab.options.root, names, timeout=_TIMEOUT)
    return Markup(**found)


@router.post("/samples", responses=_LINES)
async def sample(lab: TheLab, asked: Sampling, request: Request) -> StreamingResponse:
    """Texts of several runs, a line of JSON for each run."""
    names = [_below(lab, one) for one in dict.fromkeys(asked.names)]
    settings = asked.model_dump(include={"count", "temperature", "top_k", "seed", "limit"})
    arguments = (lab.options.root, names, asked.prompt, settings, lab.options.trust_code)
    values = lab.models.stream(samples.sample_runs, *arguments, timeout=_SAMPLING)
    return await as_lines(request, _without_end(values))


@router.get("/runs/{name:path}/report")
async def report(request: Request, lab: TheLab, name: str) -> Report:
    """The report of a run, study or other folder, as far as it has come."""
    found = await connected(
        request, lab.reports, documents.report_of, lab.options.root, _below(lab, name), timeout=_TIMEOUT
    )
    return Report(**found)


@router.get("/runs/{name:path}/events", responses=_EVENTS)
async def follow(request: Request, lab: TheLab, name: str) -> StreamingResponse:
    """A message, at most one per second, when a run or study has changed; the last when it is complete."""
    folder = lab.options.root / _below(lab, name)

    async def values() -> AsyncGenerator[dict[str, Any] | None]:
        async for changed in changes(folder, _PAUSE):
            if not changed:
                yield None
                continue
            entry = await asyncio.to_thread(listing.read, folder)
            yield {"state": entry.state, "progress": entry.progress, "loss": entry.loss, "when": entry.when}
            if entry.state == "complete":
                return

    return as_events(request, values())


def _below(lab: Lab, name: str) -> str:
    """The path of a folder below the folder of runs; anything else is not found."""
    return lab.folder(name).relative_to(lab.options.root.resolve()).as_posix()


async def _without_end(values: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """What a task yields, without what it returns."""
    async with aclosing(values):
        async for value in values:
            if value is not None:
                yield value
