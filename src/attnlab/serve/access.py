"""Who may talk to the server, and how much.

The server runs code with the rights of its user, and every page that a browser shows may send requests to it. So every
request must name this server as its host (against DNS rebinding) and carry the secret of this start: as a cookie, which a
link with `?token=` sets, or as a bearer token. A request that another site's page makes is refused by its origin. There
are no CORS headers. Requests are limited in size and number.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

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
            return None

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = {**_HEADERS, "cache-control": "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in added.items() if k.encode() not in present),
                ]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("host", "").lower() not in self.access.hosts:
            return await _refuse(
                with_headers, 421, "unknown host name in the request: use the link that attnlab printed"
            )
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] in _SAFE and any(name == "token" and self.access.knows(value) for name, value in query):
            return await self._enter(scope, query, with_headers)
        if not self._may(scope, headers):
            return await _refuse(with_headers, 403, "no access: open the link that attnlab printed, with its token")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_LIMIT:
            return await _refuse(with_headers, 413, _TOO_LONG)
        if self.running >= REQUEST_LIMIT:
            return await _refuse(with_headers, 429, "too many requests at a time: try again", {"retry-after": "1"})
        self.running += 1
        try:
            await _limited(self.app, scope, receive, with_headers)
        finally:
            self.running -= 1
        return None

    def _may(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Whether a request has the token and does not come from another site."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.access.knows(token)
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        known = self.access.cookie in cookies and self.access.knows(cookies[self.access.cookie].value)
        origin, own = headers.get("origin"), f"http://{headers['host'].lower()}"
        if scope["method"] not in _SAFE and origin != own:
            return False
        # A link on another site may open the page. What the link holds may make the page compute something with the
        # user's own runs, but the other site sees nothing of it, and may not reach the API itself.
        opened = headers.get("sec-fetch-mode") == "navigate" and not scope["path"].startswith("/api/")
        here = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return known and origin in (None, own) and (here or opened)

    async def _enter(self, scope: Scope, query: Iterable[tuple[str, str]], send: Send) -> None:
        """Exchange the token for a cookie, so that it does not stay in the address."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        cookie = f"{self.access.cookie}={self.access.token}; Path=/; HttpOnly; SameSite=Lax"
        # The path has been decoded. "//other.example" and "/\\other.example" would lead elsewhere.
        path = "/" + quote(scope["path"].lstrip("/"), safe="/:@")
        await _answer(send, 303, None, {"location": path + (f"?{rest}" if rest else ""), "set-cookie": cookie})


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
        await _refuse(send, 413, _TOO_LONG)


async def _refuse(send: Send, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
    await _answer(send, status, {"error": message}, headers)


async def _answer(send: Send, status: int, content: object, headers: Mapping[str, str] | None = None) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    all_headers = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in all_headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
