"""The server process: a socket, a token, and uvicorn."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from html import escape
from pathlib import Path

import uvicorn

from attnlab.errors import UserError
from attnlab.serve.access import Access, Guard, hosts_of
from attnlab.serve.app import create_app
from attnlab.serve.routes import Options


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
    access = Access(secrets.token_urlsafe(32), hosts_of(names, port), port)
    config = uvicorn.Config(
        Guard(create_app(options), access),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
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
    say(f"Open {links[0]}")
    for link in links[1:]:
        say(f"or   {link}")
    if not ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback:
        say(
            "Note: others on the network can reach it; the link is not encrypted, so anyone who sees it has your permissions."
        )
    say("Press Ctrl-C to stop.")
    sys.stdout.flush()  # whoever reads it from a pipe needs the link now
    bound.listen()  # so that a browser waits for the server instead of failing
    with _opened(links[0]) if browser else nullcontext():
        server.run(sockets=[bound])


@contextmanager
def _opened(link: str) -> Iterator[None]:
    """Open a link in the browser through a private file, since other users can see the arguments of a command."""
    with tempfile.TemporaryDirectory(prefix="attnlab-link-") as folder:
        file = Path(folder) / "attnlab.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={escape(link)}">', encoding="utf-8")
        webbrowser.open(file.as_uri())
        yield
