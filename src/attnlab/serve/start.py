"""The routes of the view "start": forms of commands, and the jobs that they start."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from attnlab.errors import AttnlabError, UserError
from attnlab.serve import suggestions
from attnlab.serve.documents import readable
from attnlab.serve.events import as_events
from attnlab.serve.forms import Commands, Form, preset_settings
from attnlab.serve.jobs import AT_A_TIME, Job, State, command_line, unused_folder
from attnlab.serve.lab import Lab, NotFound, TheLab, connected
from attnlab.store import listing

router = APIRouter(tags=["start"])

_PAUSE = 0.5  # seconds between looks at a job
_TIMEOUT = 120.0
_FOLDER = re.compile(r"[A-Za-z0-9][\w.-]{0,79}", re.ASCII)

Text = Annotated[str, Field(max_length=4000)]
Given = bool | Text | Annotated[list[Text], Field(max_length=50)]


class Forms(BaseModel):
    """The commands that can be started, the settings of presets, and how many jobs may run at a time."""

    forms: list[Form]
    presets: dict[str, dict[str, str]]
    at_a_time: int


class Suggestions(BaseModel):
    """Names that forms may propose."""

    mechanism: list[str]


class Filled(BaseModel):
    """A filled form: the command, its options by name, and the name of the new folder."""

    command: str = Field(max_length=100)
    values: dict[Annotated[str, Field(max_length=100)], Given] = Field(default={}, max_length=120)
    folder: str = Field("", max_length=80)


class Line(BaseModel):
    """The command that a form stands for, and what is wrong with it."""

    line: str
    problem: str


class Resumed(BaseModel):
    """A run or study to go on with."""

    name: str = Field(min_length=1, max_length=500)


class Progress(BaseModel):
    """How far a run of a job has come."""

    name: str
    state: str
    progress: float | None
    loss: float | None


class Started(BaseModel):
    """A job."""

    number: int
    line: str
    folder: str
    exists: bool
    state: State
    started: float
    ended: float | None
    runs: list[Progress]


@router.get("/forms")
def forms(lab: TheLab) -> Forms:
    """The forms of all commands that can be started."""
    commands = _commands(lab)
    made = [commands.form(name, lab.options.trust_code) for name in commands.names()]
    return Forms(forms=made, presets=preset_settings(), at_a_time=AT_A_TIME)


@router.get("/suggestions")
async def suggest(request: Request, lab: TheLab) -> Suggestions:
    """The names of mechanisms."""
    return Suggestions(mechanism=await _mechanisms(request, lab))


@router.post("/line")
async def line(request: Request, lab: TheLab, filled: Filled) -> Line:
    """The command line of a form, and what is wrong with it; nothing is started."""
    try:
        arguments, _ = await _arguments(request, lab, filled)
    except AttnlabError as error:
        return Line(line="", problem=readable(str(error)))
    return Line(line=readable(command_line(arguments)), problem="")


@router.get("/jobs")
def jobs(lab: TheLab) -> list[Started]:
    """The jobs of this server, the newest first."""
    return [_started(lab, job) for job in reversed(lab.jobs.all())]


@router.post("/jobs", status_code=201)
async def start(request: Request, lab: TheLab, filled: Filled) -> Started:
    """Start a command in a new folder."""
    arguments, folder = await _arguments(request, lab, filled)
    return _started(lab, await asyncio.to_thread(lab.jobs.start, arguments, folder))


@router.post("/jobs/resume", status_code=201)
def resume(lab: TheLab, asked: Resumed) -> Started:
    """Go on with a run or study that was stopped."""
    _commands(lab)
    name = lab.folder(asked.name).relative_to(lab.options.root.resolve()).as_posix()
    entry = listing.read(lab.options.root / name)
    if entry.kind not in ("run", "study") or entry.state != "stopped":
        raise UserError(f"{entry.name} is {entry.state or entry.what}: only a stopped run or study can be resumed")
    trust = ["--trust-code"] if lab.options.trust_code else []
    return _started(lab, lab.jobs.start(["resume", str(entry.path), *trust], name))


@router.post("/jobs/{number}/stop")
def stop(lab: TheLab, number: int) -> Started:
    """Ask a job to save everything and end."""
    job = _job(lab, number)
    if job.ended is None:
        job.stop()
    return _started(lab, job)


@router.get(
    "/jobs/{number}/events",
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events."}
    },
)
async def follow(request: Request, lab: TheLab, number: int) -> StreamingResponse:
    """The state of a job and its new lines, at most twice a second, until it ends."""
    job = _job(lab, number)

    async def values() -> AsyncGenerator[dict[str, Any] | None]:
        printed, before = 0, None
        while True:
            ended = job.ended is not None  # read first: what is printed before the end is sent with it
            new, total = job.since(printed)
            now = await asyncio.to_thread(_started, lab, job)
            changed = bool(new) or now != before
            yield {"job": now.model_dump(), "after": printed, "lines": new} if changed else None
            printed, before = total, now
            if ended:
                return
            await asyncio.sleep(_PAUSE)

    return as_events(request, values())


def _commands(lab: Lab) -> Commands:
    if lab.options.commands is None:
        raise NotFound("this server starts nothing: start it with `attnlab serve`")
    return lab.options.commands


def _job(lab: Lab, number: int) -> Job:
    job = lab.jobs.find(number)
    if job is None:
        raise NotFound(f"there is no job {number}: it ended long ago, or with another server")
    return job


async def _mechanisms(request: Request, lab: Lab) -> list[str]:
    """The names of all mechanisms, which a worker finds once."""
    if not lab.mechanisms:
        lab.mechanisms = await connected(request, lab.reports, suggestions.mechanisms, timeout=_TIMEOUT)
    return lab.mechanisms


async def _arguments(request: Request, lab: Lab, filled: Filled) -> tuple[list[str], str]:
    """The arguments of a form, and the new folder that they name."""
    known = await _mechanisms(request, lab)
    commands, root = _commands(lab), lab.options.root
    folder = filled.folder or unused_folder(
        filled.command.split()[-1] if filled.command.split() else "", root, lab.jobs.folders()
    )
    if not _FOLDER.fullmatch(folder):
        raise UserError(f"'{folder}' is not a valid folder name: use letters, digits, dots, dashes and underscores")
    if (root / folder).exists() or (root / folder).is_symlink():
        raise UserError(f"{root / folder} exists already: choose another name")
    given = (filled.command, filled.values, root / folder, known, lab.options.trust_code)
    return await asyncio.to_thread(commands.arguments, *given), folder


def _started(lab: Lab, job: Job) -> Started:
    path = lab.options.root / job.folder
    return Started(
        number=job.number,
        line=readable(job.line),
        folder=job.folder,
        exists=path.is_dir(),
        state=job.state,
        started=job.started,
        ended=job.ended,
        runs=list(_progress(path)),
    )


def _progress(path: Path) -> list[Progress]:
    """How far the runs below a folder have come."""
    if not path.is_dir():
        return []
    entry = listing.read(path)
    runs = entry.runs if entry.kind == "study" else (entry,)
    return [
        Progress(
            name=readable(one.path.relative_to(path).as_posix()) if one.path != path else entry.name,
            state=one.state,
            progress=one.progress,
            loss=one.loss,
        )
        for one in runs
        if one.kind == "run"
    ]
