"""The application: the routes of every view under /api, and the files of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from attnlab import __version__
from attnlab.report.html import script, style
from attnlab.serve import ask, design, mechanisms, runs
from attnlab.serve.lab import PROBLEMS, Lab, NotFound, Options, install_errors
from attnlab.store.folders import digest

VIEWS = ("design", "ask", "runs", "mechanisms")
_STATIC = resources.files("attnlab.serve").joinpath("static")
_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
# The script and style of reports, which those of the page are based on; the script as a module.
_SHARED = {"report.js": lambda: script() + "export { enhancements };\n", "report.css": style}
_page = APIRouter(include_in_schema=False)


def create_app(options: Options) -> FastAPI:
    """The application; it lets everyone in, so it is served behind a Guard."""
    lab = Lab(options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(lab.warm_up()) if options.warm_up else None
        yield
        if warming:
            warming.cancel()
        await asyncio.to_thread(lab.close)

    app = FastAPI(
        title="attnlab",
        version=__version__,
        docs_url=None,  # its scripts would come from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    app.state.lab = lab
    install_errors(app)
    app.add_exception_handler(404, _nothing_there)
    for view in (design, ask, runs, mechanisms):
        app.include_router(view.router, prefix="/api")
    app.include_router(_page)
    return app


async def page() -> HTMLResponse:
    """The page, whatever it shows: it reads its address."""
    return HTMLResponse(_read("index.html"))


for _path in ("/", *(f"/{view}" for view in VIEWS), "/runs/{rest:path}"):
    _page.add_api_route(_path, page)


@_page.get("/favicon.ico")
async def icon() -> HTMLResponse:
    """The icon, where browsers look for it."""
    return HTMLResponse(_read("icon.svg"), media_type="image/svg+xml")


async def _nothing_there(request: Request, _: Exception) -> Response:
    """The answer where there is no route: the page, which says so, for a browser that opens it; a line of JSON for others."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_read("index.html"), 404)
    return JSONResponse({"error": f"there is nothing at {request.url.path}: the views are {', '.join(VIEWS)}"}, 404)


@_page.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    """A file of the page, or that the browser has it already."""
    kind = _TYPES.get(path.rpartition(".")[2])
    if kind is None:
        raise NotFound(f"there is no file {path!r}")
    text = _SHARED[path]() if path in _SHARED else _read(path)
    headers = {"cache-control": "no-cache", "etag": f'"{digest(text.encode())[:16]}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(text, media_type=kind, headers=headers)


def _read(path: str) -> str:
    """The text of a file of the page."""
    parts = path.split("/")
    try:
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise OSError
        return _STATIC.joinpath(*parts).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise NotFound(f"there is no file {path!r}") from None
