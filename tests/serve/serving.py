"""A server of the real application in a thread, for requests and for a browser."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from attnlab.serve.routes import Options
from attnlab.serve.server import bind, make_server


@dataclass(frozen=True)
class Served:
    """A running server: the first link with its token, the folder of its runs, and all links."""

    link: str
    root: Path
    links: list[str]

    @property
    def base(self) -> str:
        return self.link.partition("/?")[0]

    @property
    def token(self) -> str:
        return self.link.partition("token=")[2]

    def client(self) -> httpx.Client:
        """A client with access."""
        return httpx.Client(base_url=self.base, headers={"authorization": f"Bearer {self.token}"}, timeout=120)


@contextmanager
def serving(options: Options, host: str = "127.0.0.1") -> Iterator[Served]:
    """A server in a thread, ended at the end."""
    bound = bind(host, 0)
    server, links = make_server(options, bound, host)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield Served(links[0], options.root, links)
    finally:
        server.should_exit = True
        thread.join(10)


_T = TypeVar("_T")


def run_async(work: Coroutine[Any, Any, _T], run: Callable[[Coroutine[Any, Any, _T]], _T] = asyncio.run) -> _T:
    """Run a coroutine in a thread: a browser keeps the event loop of this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, work).result()
