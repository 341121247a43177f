"""Who may talk to the server, and how much.

The server runs code with the rights of its user, and every page that a browser shows may send requests to it. So every
request must name this server as its host (against DNS rebinding) and carry a secret of this start: the token, in a link or
as a bearer token, or the session, in a cookie that the link sets. A request that another site's page makes is refused by its
origin. There are no CORS headers. Requests and connections are limited in size, time and number.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from attnlab.reading import packaged_text
from attnlab.serve.routes import POLICY

BODY_LIMIT = 2**20  # bytes of a request
HEADER_LIMIT = 2**16  # bytes of its headers
HEADER_SECONDS = 10.0  # for them to arrive
REQUEST_LIMIT = 64  # requests at a time
CONNECTION_LIMIT = 128  # a few times as many files are open while others are accepted; systems allow 1,024, macOS 256
_SAFE = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class Access:
    """The secrets of this start, and the hosts, with their port, by which the server may be called."""

    token: str
    session: str  # the value of the cookie, not the token: browsers send cookies to every port of a host
    cookie: str  # its name, which has the port in it
    hosts: frozenset[str]

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def knows_cookie(self, headers: Iterable[str]) -> bool:
        """Whether the session is in these Cookie headers; the cookies of other programs are ignored, whatever they hold."""
        pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
        values = [value.encode() for name, _, value in pairs if name == self.cookie]
        return any(hmac.compare_digest(value, self.session.encode()) for value in values)


def hosts_of(names: Iterable[str], port: int) -> frozenset[str]:
    """The values of the Host header that name a server with these names or addresses; it always has the local ones."""
    known = {name.lower() for name in (*names, "127.0.0.1", "localhost", "[::1]")}
    return frozenset({f"{name}:{port}" for name in known} | (known if port == 80 else set()))


class Guard:
    """Refuses requests that may not be served, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(Request(scope))
        if answer:
            await answer(scope, receive, with_headers)
            return
        self.running += 1
        try:
            await self.app(scope, receive, with_headers)
        finally:
            self.running -= 1

    def _answer(self, request: Request) -> Response | None:
        """The refusal of a request that may not be served, or the answer to one with the token; None for others."""
        opened = "text/html" in request.headers.get("accept", "") and not request.scope["path"].startswith("/api/")
        refused = _explanation if opened else refusal
        if request.headers.get("host", "").lower() not in self.access.hosts:
            return refused(421, "unknown host name in the request: use the link that attnlab printed")
        tokens = request.query_params.getlist("token")
        if request.method in _SAFE and any(map(self.access.knows, tokens)):
            return self._enter(request)
        if not self._may(request):
            return refused(403, "no access: open the link that attnlab printed, with its token")
        if sum(len(name) + len(value) for name, value in request.headers.raw) > HEADER_LIMIT:
            return refusal(431, f"the headers of the request are longer than {HEADER_LIMIT:,} bytes")
        if "transfer-encoding" in request.headers:
            return refusal(411, "the request does not say its length: send it with Content-Length")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_LIMIT:
            return refusal(413, f"the request is longer than {BODY_LIMIT:,} bytes")
        if self.running >= REQUEST_LIMIT:
            return refusal(429, "too many requests at a time: try again")
        return None

    def _may(self, request: Request) -> bool:
        """Whether a request has a secret and does not come from another site."""
        headers = request.headers
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.access.knows(token)
        known = self.access.knows_cookie(headers.getlist("cookie"))
        origin, own = headers.get("origin"), f"http://{headers['host'].lower()}"
        if request.method not in _SAFE and origin != own:
            return False
        # A link on another site may open the page. What the link holds may make the page compute something with the
        # user's own runs, but the other site sees nothing of it, and may not reach the API itself.
        opened = headers.get("sec-fetch-mode") == "navigate" and not request.scope["path"].startswith("/api/")
        here = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return known and origin in (None, own) and (here or opened)

    def _enter(self, request: Request) -> Response:
        """Exchange the token for a cookie, so that it does not stay in the address."""
        rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
        # The path has been decoded. "//other.example" and "/\\other.example" would lead elsewhere.
        path = "/" + quote(request.scope["path"].lstrip("/"), safe="/:@")
        answer = Response(status_code=303, headers={"location": path + (f"?{rest}" if rest else "")})
        answer.set_cookie(self.access.cookie, self.access.session, httponly=True, samesite="lax")
        return answer


_CLOSING = {"connection": "close"}  # clients without access get one answer per connection


def refusal(status: int, message: str) -> Response:
    """An answer that says in one line why there is no other; with 429 the client may try again."""
    headers = {429: {"retry-after": "1"}, 403: _CLOSING, 421: _CLOSING}.get(status)
    return JSONResponse({"error": message}, status, headers)


def _explanation(status: int, _: str) -> Response:
    """The same for a person with a browser: what to do."""
    return HTMLResponse(packaged_text("serve", "static", "enter.html"), status, _CLOSING)


class Connection(H11Protocol):
    """A connection whose first request must arrive in time; later ones come only from clients with access."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request; of too many connections, close the oldest that has sent none."""
        super().connection_made(transport)
        self.late = self.loop.call_later(HEADER_SECONDS, self._close_if_waiting)
        waiting = [other for other in self.connections if isinstance(other, Connection) and not other.cycle]
        if len(self.connections) > CONNECTION_LIMIT and waiting:
            min(waiting, key=lambda other: other.late.when())._close_if_waiting()

    def _close_if_waiting(self) -> None:
        if not self.cycle:
            self.connections.discard(self)
            self.transport.abort()
