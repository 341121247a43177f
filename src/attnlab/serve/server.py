"""The server process: the routes of every view under /api and the files of the page; a socket, a token, and uvicorn.

A request is read into the record of its route, the route's task is run, mostly in a worker process, and what it returns is
sent as JSON. The server itself imports neither numpy nor torch.
"""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import ipaddress
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
import webbrowser
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route as Address

from attnlab.errors import AttnlabError, UserError, one_line
from attnlab.serve import ask, design, mechanisms, runs
from attnlab.serve.access import CONNECTION_LIMIT, HEADER_LIMIT, Access, Connection, Guard, hosts_of, refusal
from attnlab.serve.routes import VIEWS, NotFound, Options, Q, Route, WorkerName
from attnlab.serve.site import SHARED
from attnlab.serve.worker import Busy, Worker, import_all, in_thread
from attnlab.store.folders import digest, locked
from attnlab.store.records import encode_line

ROUTES = (*design.ROUTES, *ask.ROUTES, *runs.ROUTES, *mechanisms.ROUTES)
LIVE_PAGES = 24  # event streams at a time
_POLL = 0.25  # seconds between looks at whether a client is still there
_CLOSE = 1  # seconds for requests to end, and then for workers, when the server does
_SILENCE = 15.0  # seconds after which a comment shows that the server is there
_STATIC = resources.files("attnlab.serve").joinpath("static")
_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}


def create_app(options: Options) -> Starlette:
    """The application; it lets everyone in, so it is served behind a Guard."""
    lab = Lab(options)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(lab.warm_up()) if options.warm_up else None
        yield
        if warming:
            warming.cancel()
        await asyncio.wait({asyncio.create_task(in_thread(lab.close))}, timeout=_CLOSE)

    app = Starlette(
        routes=[
            *(Address(f"/api{route.path}", partial(lab.answer, route), methods=[route.method]) for route in ROUTES),
            *(Address(path, _page) for path in ("/", *(f"/{view}" for view in VIEWS), "/runs/{rest:path}")),
            Address("/static/{path:path}", _static),
        ],
        exception_handlers={404: _nothing_there, AttnlabError: _failed, HTTPException: _failed, Exception: _failed},
        lifespan=lifespan,
    )
    app.state.lab = lab
    return app


# Tasks


class Lab:
    """The state of a server: its options, its workers, and the number of its event streams."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.workers: dict[WorkerName, Worker] = {
            "models": Worker(),  # holds the model that was asked last
            "solver": Worker(waiting=64),  # answers in milliseconds
            "reports": Worker(waiting=64),  # reads folders of runs, renders reports and cards
            "measures": Worker(),  # audits and benchmarks, which keep no question waiting
        }
        self.streams = 0

    async def warm_up(self) -> None:
        """Have the workers import what their first task needs."""
        needed: dict[WorkerName, tuple[str, ...]] = {
            "reports": ("attnlab.serve.runs", "torch"),
            "models": ("attnlab.inside.ablation",),
            "solver": ("attnlab.design.solve",),
        }
        with suppress(AttnlabError):  # the first task says what is wrong
            await asyncio.gather(
                *(self.workers[name].run(import_all, *modules, timeout=300) for name, modules in needed.items())
            )

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers.values():
            worker.close()

    async def answer(self, route: Route[Any], request: Request) -> Response:
        """Run the task of a route; it is ended when the client goes away."""
        query = await _read(request, route.query)
        task, arguments = route.task, (self.options, query)
        if inspect.isasyncgenfunction(task):
            return await self._events(request, task(*arguments))
        if route.worker is None:
            content = await in_thread(task, *arguments)
            return Response(encode_line(content), media_type="application/json")
        worker = self.workers[route.worker]
        if inspect.isgeneratorfunction(task):
            return await _as_lines(request, worker.stream(task, *arguments, timeout=route.seconds))
        running = worker.run(task, *arguments, timeout=route.seconds)
        return Response(await _while_connected(request, running), media_type="application/json")

    async def _events(self, request: Request, values: AsyncGenerator[Any]) -> Response:
        """Server-sent events, one per value; None keeps the connection open."""
        if self.streams >= LIVE_PAGES:
            raise Busy(f"too many live pages ({LIVE_PAGES}): close one")
        first = await anext(values)  # an error has its own status

        async def messages() -> AsyncIterator[bytes]:
            self.streams += 1
            try:
                async with aclosing(values):
                    yield _event(first)
                    sent = time.monotonic()
                    async for value in values:
                        if await request.is_disconnected():
                            return
                        if value is None and time.monotonic() - sent < _SILENCE:
                            continue
                        yield _event(value)
                        sent = time.monotonic()
            finally:
                self.streams -= 1

        return StreamingResponse(messages(), media_type="text/event-stream")


def _event(value: Any) -> bytes:
    return b": still here\n\n" if value is None else b"data: " + encode_line(value) + b"\n\n"


async def _while_connected(request: Request, value: Awaitable[Any]) -> Any:
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


async def _as_lines(request: Request, values: AsyncGenerator[bytes | None]) -> StreamingResponse:
    """An answer of one line per value; the last, None, ends it.

    An error before the first value is raised, so that it has its status; a later one is the last line.
    """
    first = await _while_connected(request, anext(values))

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(values):
            line = first
            while line is not None:
                yield line + b"\n"
                try:
                    line = await anext(values)
                except AttnlabError as error:
                    yield encode_line({"error": str(error), "status": _status_of(error)}) + b"\n"
                    return

    return StreamingResponse(lines(), media_type="application/x-ndjson")


# Requests


async def _read(request: Request, kind: type[Q]) -> Q:
    """The record that a request holds, or an error that names the field."""
    try:
        if request.method == "POST" and not request.path_params:
            return msgspec.json.decode(await request.body(), type=kind)
        lists = {name: request.query_params.getlist(name) for name in request.query_params}
        return msgspec.convert({**lists, **request.path_params}, kind)
    except ClientDisconnect:
        raise AttnlabError("the client went away") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message, _, place = str(error).partition(" - at `$")
        field = place.strip(".`") or "the request"
        raise UserError(f"{_titles(kind).get(field, field)}: {message[:1].lower()}{message[1:]}") from None


def _titles(kind: type[Any]) -> dict[str, str]:
    """The names of fields that declare one for readers."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    described = {each.name: each.type for each in info.fields if isinstance(each.type, msgspec.inspect.Metadata)}
    return {name: (kind.extra_json_schema or {}).get("title", name) for name, kind in described.items()}


# Errors


def _status_of(error: AttnlabError) -> int:
    """The status of the answer: that of the kind of error, or that the request cannot be processed."""
    return getattr(error, "status", 422)


async def _failed(_: Request, error: Exception) -> Response:
    """The answer to a request that raised an error."""
    if isinstance(error, AttnlabError):
        return refusal(_status_of(error), str(error))
    if isinstance(error, HTTPException):
        return refusal(error.status_code, error.detail)
    return refusal(500, f"an error of attnlab itself: {one_line(error)}")


async def _nothing_there(request: Request, _: Exception) -> Response:
    """The answer where there is no route: the page, which says so, for a browser that opens it; a line of JSON for others."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_file("index.html"), 404)
    return refusal(404, f"there is nothing at {request.url.path}: the views are {', '.join(VIEWS)}")


# The files of the page


async def _page(_: Request) -> Response:
    """The page, whatever it shows: it reads its address."""
    return HTMLResponse(_file("index.html"))


async def _static(request: Request) -> Response:
    """A file of the page, or that the browser has it already."""
    path: str = request.path_params["path"]
    kind = _TYPES.get(path.rpartition(".")[2])
    if kind is None:
        raise NotFound(f"there is no file {path!r}")
    text = SHARED[path]() if path in SHARED else _file(path)
    headers = {"cache-control": "no-cache", "etag": f'"{digest(text.encode())[:16]}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(text, media_type=kind, headers=headers)


def _file(path: str) -> str:
    """The text of a file of the page."""
    parts = path.split("/")
    try:
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise OSError
        return _STATIC.joinpath(*parts).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise NotFound(f"there is no file {path!r}") from None


# The process


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address, or an error that names the fix."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        why = getattr(error, "strerror", None) or "a port is a number from 0 to 65535"
        raise UserError(
            f"cannot serve at {host}:{port} ({why}): choose another --port, or --port 0 for a free one"
        ) from None
    return bound


def make_server(options: Options, bound: socket.socket, host: str) -> tuple[uvicorn.Server, list[str]]:
    """The server of a socket, and the links that open its page."""
    address, port = bound.getsockname()[:2]
    names = _own_names(bound.family) if ipaddress.ip_address(address.partition("%")[0]).is_unspecified else [host]
    names = [f"[{name}]" if ":" in name else name for name in names]
    access = Access(secrets.token_urlsafe(32), secrets.token_urlsafe(32), f"attnlab-{port}", hosts_of(names, port))
    config = uvicorn.Config(
        Guard(create_app(options), access),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE,
        ws="none",
        http=Connection,
        h11_max_incomplete_event_size=HEADER_LIMIT,
        backlog=CONNECTION_LIMIT,
    )
    return uvicorn.Server(config), [f"http://{name}:{port}/?token={access.token}" for name in names]


def _own_names(family: int) -> list[str]:
    """The names and addresses of this machine, as far as it knows them without asking the network."""
    names = ["127.0.0.1", socket.gethostname()]
    # Connecting a datagram socket sends nothing: it only finds the address that would be used.
    somewhere = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
    for kind in (socket.AF_INET, socket.AF_INET6) if family == socket.AF_INET6 else (socket.AF_INET,):
        with suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as asking:
            asking.connect((somewhere[kind], 9))
            names.append(asking.getsockname()[0])
    return list(dict.fromkeys(names))


def run(options: Options, host: str, port: int, say: Callable[..., None], *, browser: bool = False) -> None:
    """Serve until Ctrl-C."""
    bound = bind(host, port)
    server, links = make_server(options, bound, host)
    bound.listen()  # so that a browser waits for the server instead of failing
    say(f"Open {links[0]}")
    for link in links[1:]:
        say(f"or   {link}")
    if not ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback:
        say(
            "Note: others on the network can reach it; the link is not encrypted, so anyone who sees it has your permissions."
        )
    say("Press Ctrl-C to stop.")
    sys.stdout.flush()  # whoever reads it from a pipe needs the link now
    logging.getLogger("uvicorn.error").addFilter(_is_error)
    with _temporary_folder(), _opened(links[0]) if browser else nullcontext():
        server.run(sockets=[bound])


def _is_error(record: logging.LogRecord) -> bool:
    """Whether a message is about more than the open pages that Ctrl-C disconnects."""
    cancelled = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and not record.getMessage().startswith("Cancel ")


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """A folder for all temporary files of the server and its workers; those of servers that were killed are removed."""
    for lock in Path(tempfile.gettempdir()).glob("attnlab-*.server/.lock"):
        with suppress(OSError):
            status = lock.parent.lstat()
            if status.st_uid == os.getuid() and not status.st_mode & 0o077:  # which excludes links
                with lock.open("rb") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its server runs
                    shutil.rmtree(lock.parent, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix="attnlab-"))
    with locked(new):
        own = new.rename(f"{new}.server")  # not before it is locked
        tempfile.tempdir = str(own)
        try:
            yield
        finally:
            tempfile.tempdir = None
            shutil.rmtree(own, ignore_errors=True)


@contextmanager
def _opened(link: str) -> Iterator[None]:
    """Open a link in the browser through a private file, since other users can see the arguments of a command."""
    with tempfile.TemporaryDirectory(prefix="attnlab-link-") as folder:
        file = Path(folder) / "attnlab.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={escape(link)}">', encoding="utf-8")
        webbrowser.open(file.as_uri())
        yield
