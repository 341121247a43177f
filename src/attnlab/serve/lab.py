"""What the routes share: the folder of runs, the workers, the options of this start, and errors as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from attnlab.errors import AttnlabError, one_line
from attnlab.serve.worker import Busy, TimeLimit, Worker, import_all

_END = object()
_POLL = 0.25  # seconds between looks at whether a client is still there


@dataclass(frozen=True)
class Options:
    """How the server was started: the folder of runs, and whether code of runs and of visitors may be executed."""

    root: Path = Path("runs")
    trust_code: bool = False
    allow_code: bool = False
    warm_up: bool = False  # whether workers import what their first task needs right after the start


class NotFound(AttnlabError):
    """What was asked for does not exist."""


class Forbidden(AttnlabError):
    """It may not be done with the options of this start."""


class Problem(BaseModel):
    """Why a request was refused, in one line."""

    error: str


# What every route may answer, for the OpenAPI document.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": words}
    for status, words in {
        403: "No access.",
        404: "Not found.",
        413: "The request is too long.",
        422: "The request is invalid.",
        429: "Too many requests at a time.",
        504: "It took too long.",
    }.items()
}
_STATUS: tuple[tuple[type[AttnlabError], int], ...] = (
    (NotFound, 404),
    (Forbidden, 403),
    (Busy, 429),
    (TimeLimit, 504),
    (AttnlabError, 422),
)


@dataclass
class Lab:
    """The state of a server."""

    options: Options
    models: Worker = field(default_factory=Worker)  # holds the model that was asked last
    solver: Worker = field(default_factory=lambda: Worker(waiting=64))  # answers in milliseconds
    reports: Worker = field(default_factory=lambda: Worker(waiting=64))  # reads folders of runs and renders reports
    measures: Worker = field(default_factory=Worker)  # audits and benchmarks, which keep no question waiting

    def folder(self, name: str) -> Path:
        """The folder of a run or study by its path below the folder of runs; anything else is not found."""
        root = self.options.root.resolve()
        try:
            path = (root / name).resolve()
            known = path != root and path.is_relative_to(root) and path.is_dir()
        except (OSError, ValueError):  # too long, or with a null byte
            known = False
        if not known or any(part.startswith(".") for part in Path(name).parts):
            raise NotFound(f"there is no run {name!r}: the list of runs shows those of this folder")
        return path

    async def warm_up(self) -> None:
        """Have the workers import what their first task needs."""
        needed = {
            self.reports: ("attnlab.serve.documents", "torch"),
            self.models: ("attnlab.trust.asking", "attnlab.inside.look"),
            self.solver: ("attnlab.design.solve",),
        }
        with suppress(AttnlabError):  # the first task says what is wrong
            await asyncio.gather(*(one.run(import_all, *names, timeout=300) for one, names in needed.items()))

    def close(self) -> None:
        """End the workers."""
        for worker in (self.models, self.solver, self.reports, self.measures):
            worker.close()


def lab_of(request: Request) -> Lab:
    """The state of the server that got a request."""
    return request.app.state.lab


TheLab = Annotated[Lab, Depends(lab_of)]


async def connected(
    request: Request, worker: Worker, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0
) -> Any:
    """The value of a task; it is ended when the client goes away."""
    return await _while_connected(request, worker.run(task, *arguments, timeout=timeout))


async def _while_connected(request: Request, value: Coroutine[Any, Any, Any]) -> Any:
    """A value that is waited for as long as the client is there."""
    running = asyncio.ensure_future(value)
    try:
        while not running.done():
            await asyncio.wait({running}, timeout=_POLL)
            if not running.done() and await request.is_disconnected():
                raise AttnlabError("the client went away")
        return running.result()
    finally:
        running.cancel()


async def as_lines(request: Request, values: AsyncGenerator[Any]) -> StreamingResponse:
    """An answer of one line of JSON per value.

    An error before the first value is raised, so that it has its status; a later one is the last line.
    """

    async def next_line() -> bytes | None:
        value = await anext(values, _END)
        try:
            return None if value is _END else _line(value)
        except ValueError:
            await values.aclose()
            raise AttnlabError(
                "the model computed something that is not a finite number: it may have diverged"
            ) from None

    first = await _while_connected(request, next_line())

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(values):
            line = first
            while line is not None:
                yield line
                try:
                    line = await next_line()
                except AttnlabError as error:
                    yield _line({"error": str(error), "status": _status_of(error)})
                    return

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def _status_of(error: AttnlabError) -> int:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


_INVALID = {  # kinds of pydantic's errors, in the words of this page
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number"),
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "extra_forbidden": "is unknown here: leave it out",
}


def _invalid(request: Request, first: dict[str, Any]) -> str:
    """What is wrong with a request: the title of its field, or else its name, and what it must be."""
    names = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    body = getattr(request.scope.get("route"), "body_field", None)
    known = getattr(body.field_info.annotation, "model_fields", {}) if body else {}
    title = known[names[0]].title if len(names) == 1 and names[0] in known else None
    if first["type"] not in _INVALID or not names:
        return f"{title or '.'.join(names) or 'the request'}: {first['msg']}"
    return f"{title or '.'.join(names)} {_INVALID[first['type']].format(**first.get('ctx', {}))}"


def _problem(status: int, message: str) -> JSONResponse:
    headers = {"retry-after": "1"} if status == 429 else None
    return JSONResponse({"error": message.encode("utf-8", "replace").decode()}, status, headers)


def install_errors(app: FastAPI) -> None:
    """Have every error answered by one line of JSON."""

    @app.exception_handler(AttnlabError)
    async def refused(_: Request, error: AttnlabError) -> JSONResponse:
        return _problem(_status_of(error), str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _problem(422, _invalid(request, error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def failed(_: Request, error: HTTPException) -> JSONResponse:
        return _problem(error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return _problem(500, f"an error of attnlab itself: {one_line(error)}")
