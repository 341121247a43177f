"""The server process: a socket, a token, and uvicorn."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable

import uvicorn

from attnlab.errors import UserError
from attnlab.serve.access import Access, hosts_of
from attnlab.serve.app import create_app
from attnlab.serve.lab import Options


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


def make_server(options: Options, bound: socket.socket, host: str) -> tuple[uvicorn.Server, str]:
    """The server of a socket, and the link that opens its page."""
    port = bound.getsockname()[1]
    access = Access(secrets.token_urlsafe(32), hosts_of(host, port), port)
    config = uvicorn.Config(
        create_app(options, access),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    shown = f"[{host}]" if ":" in host else host
    return uvicorn.Server(config), f"http://{shown}:{port}/?token={access.token}"


def run(options: Options, host: str, port: int, say: Callable[..., None], *, browser: bool = False) -> None:
    """Serve until Ctrl-C."""
    bound = bind(host, port)
    server, link = make_server(options, bound, host)
    say(f"the page: {link}")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        say(
            "note: others on the network can reach it; the link is not encrypted, so anyone who sees it has your permissions"
        )
    say("Ctrl-C ends it")
    sys.stdout.flush()  # whoever reads it from a pipe needs the link now
    if browser:
        webbrowser.open(link)
    server.run(sockets=[bound])
