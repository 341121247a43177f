"""A server of the real application in a thread, for requests and for a browser, or in a process, for signals and limits."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from attnlab.serve import server
from attnlab.serve.routes import Options, Query, Route
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

    def connect(self, *lines: str) -> socket.socket:
        """A connection that has sent some lines of a request, with CR LF after each."""
        connection = socket.create_connection(("127.0.0.1", httpx.URL(self.base).port or 80), timeout=30)
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        return connection

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


# In a process

FILES = 1024  # that a process may open, as most systems allow


def get_stuck(options: Options, _: Query) -> None:
    """A task that says that it runs, and then waits for longer than any test."""
    (options.root / f"stuck-{os.getpid()}").touch()
    time.sleep(3600)


@contextmanager
def serving_process(root: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Served]]:
    """A server in a process of its own, without what takes long to start; it has two routes that get stuck."""
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "TMPDIR": str(root)}
    command = ["sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"', sys.executable, __file__, str(root), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, env=environment, process_group=0, **pipes) as process:
        try:
            assert process.stdout is not None
            link = re.search(r"http://\S+", process.stdout.readline())
            assert link is not None
            while process.stdout.readline() != "Press Ctrl-C to stop.\n":
                pass
            yield process, Served(link[0], root, [link[0]])
        finally:
            process.kill()


if __name__ == "__main__":
    import serving  # by this name a worker finds the task

    routes = (Route("GET", f"/stuck/{worker}", Query, serving.get_stuck, worker) for worker in (None, "reports"))
    server.ROUTES = (*server.ROUTES, *routes)
    server.run(Options(Path(sys.argv[1])), "127.0.0.1", 0, print, browser="--browser" in sys.argv)
