"""Who may talk to the server, and how much.

The server runs code with the rights of its user, and every page that a browser shows may send requests to it. So every
request must name this server as its host (against DNS rebinding) and carry the secret of this start: as a cookie, which a
link with `?token=` sets, or as a bearer token. A request that another site's page makes is refused by its origin. There
are no CORS headers. Requests are limited in size and number.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 2**20  # bytes of a request
REQUEST_LIMIT = 64  # requests at a time
_TOO_LONG = f"the request is longer than {BODY_LIMIT:,} bytes"
_SAFE = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class Access:
    """The secret of this start, and the hosts, with their port, by which the server may be called."""

    token: str
    hosts: frozenset[str]
    port: int

    @property
    def cookie(self) -> str:
        """The name of the cookie; browsers do not tell ports apart, so it has the port in it."""
        return f"attnlab-{self.port}"

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(token.encode(), self.token.encode())


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
            await _limited(self.app, scope, receive, with_headers)
        finally:
            self.running -= 1

    def _answer(self, request: Request) -> Response | None:
        """The refusal of a request that may not be served, or the answer to one with the token; None for others."""
        if request.headers.get("host", "").lower() not in self.access.hosts:
            return refusal(421, "unknown host name in the request: use the link that attnlab printed")
        tokens = request.query_params.getlist("token")
        if request.method in _SAFE and any(map(self.access.knows, tokens)):
            return self._enter(request)
        if not self._may(request):
            return refusal(403, "no access: open the link that attnlab printed, with its token")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_LIMIT:
            return refusal(413, _TOO_LONG)
        if self.running >= REQUEST_LIMIT:
            return refusal(429, "too many requests at a time: try again")
        return None

    def _may(self, request: Request) -> bool:
        """Whether a request has the token and does not come from another site."""
        headers = request.headers
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.access.knows(token)
        known = self.access.knows(request.cookies.get(self.access.cookie, ""))
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
        answer.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="lax")
        return answer


async def _limited(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request; a body that says no length is cut off at the limit, and refused."""
    read, started = 0, False

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        return message if read <= BODY_LIMIT else {"type": "http.disconnect"}

    async def answer(message: Message) -> None:
        nonlocal started
        if started or read <= BODY_LIMIT:
            started = True
            await send(message)

    await app(scope, limited, answer)
    if not started and read > BODY_LIMIT:
        await refusal(413, _TOO_LONG)(scope, receive, send)


def refusal(status: int, message: str) -> Response:
    """An answer that says in one line why there is no other; with 429 the client may try again."""
    headers = {"retry-after": "1"} if status == 429 else None
    return JSONResponse({"error": message}, status, headers)
