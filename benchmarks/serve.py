"""How fast the page is: first paint, bytes, script time of a drag frame, and 50 clients at a time.

    python benchmarks/serve.py [--seconds 60] [--clients 50] [--points 20] [--frames 200]

Starts `attnlab serve` on a folder with a very small run, opens it in Chromium, drags the query of the design view among
some points, sends requests of a mix of routes from many clients at a time, and drags again while the server trains. It
prints figures and ratios, and judges nothing: those of a busy machine say little.

The fair share of a client is the latency of a route when it is alone times the number of clients, since one server answers
all of them. The ratio of the 95th percentile under load to that share should stay below 3, memory flat, and answers of 429
("too many requests at a time") should appear only above the limits that are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from attnlab.serve.access import REQUEST_LIMIT
from attnlab.serve.routes import Options
from attnlab.serve.server import Lab

SOLVE = {"task": "select", "keys": [[1, 0], [0, 1], [1, 1]], "values": [[1], [2], [3]], "index": 2}
# Routes of a visit, with how often each is called.
MIX: tuple[tuple[str, str, dict[str, Any] | None, int], ...] = (
    ("GET", "/design", None, 3),
    ("GET", "/static/main.js", None, 3),
    ("GET", "/static/report.css", None, 3),
    ("GET", "/api/runs", None, 2),
    ("GET", "/api/runs/recall-1/report", None, 1),
    ("GET", "/api/mechanisms", None, 2),
    ("GET", "/api/mechanisms/dot", None, 1),
    ("POST", "/api/design/solve", SOLVE, 1),
)
_TINY = ("--model.n_embd", "64", "--model.n_layer", "2", "--model.n_head", "2")
_TRAINING = ("--corpus", "people:300", "--preset", "quick", "--train.steps", "100000", "--train.threads", "1")


@dataclass(frozen=True)
class Server:
    """A server process with its address and token."""

    process: subprocess.Popen[str]
    base: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        """What lets a request in."""
        return {"authorization": f"Bearer {self.token}"}

    def memory(self) -> float:
        """The memory of the server process in MB, without its workers."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, flags=re.MULTILINE)
        return int(found[1]) / 1024 if found else math.nan

    def processor_seconds(self) -> float:
        """The processor time of the server process so far, without its workers."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_server(root: Path) -> Iterator[Server]:
    """`attnlab serve` of a folder, ended at the end."""
    command = [sys.executable, "-m", "attnlab", "serve", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"(http://\S+?)/\?token=(\S+)", process.stdout.readline())
            if found is None:
                raise SystemExit("attnlab serve did not print its link")
            server = Server(process, found[1], found[2])
            while not _answers(server):
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()


def _answers(server: Server) -> bool:
    try:
        return httpx.get(f"{server.base}/design", headers=server.headers).is_success
    except httpx.TransportError:
        return False


# In the browser


def first_paint(browser: Any, server: Server) -> None:
    """Print when a new visitor sees something, and what was loaded until the view is there."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.base}/?token={server.token}")
    page.locator("h1").wait_for()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    sizes = page.evaluate(
        "performance.getEntries().filter((one) => 'transferSize' in one).map((one) => one.transferSize)"
    )
    print(f"first paint             {paint:7.0f} ms   (asked: below 1,000)")
    print(f"bytes transferred       {sum(sizes) / 1e3:7.1f} kB   in {len(sizes)} files")
    context.close()


def drag(browser: Any, server: Server, points: int, frames: int, when: str) -> None:
    """Print the script time of a frame while the query is dragged in circles."""
    rows = [(math.cos(2.4 * n) * (1 + n % 3), math.sin(2.4 * n) * (1 + n % 3)) for n in range(points)]
    text = ";".join(f"{x:.2f},{y:.2f}" for x, y in rows)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"{server.base}/design?k={text}&v={text}&q=1,0&token={server.token}")
    handle = page.get_by_label(re.compile("^query", re.IGNORECASE)).and_(page.locator(".keys *")).first
    handle.wait_for()
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    began = time.monotonic()
    for number in range(frames):
        page.mouse.move(x + 60 * math.sin(number / 9), y + 60 * math.cos(number / 9) - 60)
    page.mouse.up()
    seconds = time.monotonic() - began
    found = page.locator(".playground").evaluate("(one) => ({ ...one.dataset })")
    print(
        f"drag frame, p95         {float(found['frameP95']):7.2f} ms   {found['frames']} frames of {points} points in"
        f" {seconds:.1f} s, {when} (asked: below 8)"
    )
    context.close()


# Many clients


_Route = tuple[str, str, dict[str, Any] | None]


class Client:
    """A connection that is kept; plain sockets, since a whole library would take more time than the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.host = server.base.removeprefix("http://")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, route: _Route) -> tuple[str, int, float]:
        """The name of a route, the status of its answer, and the seconds that it took."""
        method, path, body = route
        began = time.perf_counter()
        try:
            status = await self._send(method, path, b"" if body is None else json.dumps(body).encode())
        except (OSError, asyncio.IncompleteReadError):
            self._streams, status = None, 0
        return f"{method} {path}", status, time.perf_counter() - began

    async def _send(self, method: str, path: str, body: bytes) -> int:
        if self._streams is None:
            name, _, port = self.host.rpartition(":")
            self._streams = await asyncio.open_connection(name, int(port), limit=2**22)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nhost: {self.host}\r\nauthorization: Bearer {self.server.token}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", answer)
        if length is not None:
            await reader.readexactly(int(length[1]))
        else:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        return int(answer.split()[1])

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()


async def load(server: Server, clients: int, seconds: float) -> None:
    """Print latencies and statuses of many clients beside those of one."""
    routes: list[_Route] = [(method, path, body) for method, path, body, often in MIX for _ in range(often)]
    crowd = [Client(server) for _ in range(4 * REQUEST_LIMIT)]
    for route in routes:  # workers start and load what they need
        await crowd[0].send(route)
    alone = [await crowd[0].send(route) for _ in range(10) for route in routes]
    before, end = server.memory(), time.monotonic() + seconds
    spent, own = server.processor_seconds(), time.process_time()
    found: list[tuple[str, int, float]] = []

    async def visit(client: Client, seed: int) -> None:
        choose = random.Random(seed)
        while time.monotonic() < end:
            found.append(await client.send(choose.choice(routes)))

    await asyncio.gather(*(visit(client, seed) for seed, client in enumerate(crowd[:clients])))
    after = server.memory()
    spent, own = server.processor_seconds() - spent, time.process_time() - own
    burst = await asyncio.gather(*(client.send(("POST", "/api/design/solve", SOLVE)) for client in crowd))
    for client in crowd:
        client.close()
    print(
        f"{clients} clients              {len(found):7,}      requests in {seconds:g} s; a route alone, and p95 of all clients:"
    )
    worst = 0.0
    for where in dict.fromkeys(name for name, _, _ in alone):
        share = clients * statistics.mean(taken for name, _, taken in alone if name == where)
        times = sorted(taken for name, _, taken in found if name == where)
        p95 = times[int(0.95 * len(times))]
        worst = max(worst, p95 / share)
        print(f"  {where:32} {1e3 * share / clients:7.1f} ms {1e3 * p95:8.1f} ms   {p95 / share:.2f} of a fair share")
    print(f"p95 / fair share        {worst:7.2f} x    at most (asked: at most 3)")
    each = 1e3 / len(found)
    print(
        f"processor time          {each * spent:7.1f} ms   a request in the server, {each * own:.1f} ms in the clients"
    )
    print(f"memory of the server    {before:7.1f} MB   before, {after:.1f} MB after")
    print(f"statuses                {dict(sorted(Counter(status for _, status, _ in found).items()))}")
    refused = Counter(name for name, status, _ in found if status != 200)
    if refused:
        print(f"not 200                 {dict(refused)}")
    print(f"burst of {4 * REQUEST_LIMIT}, solver    {dict(sorted(Counter(status for _, status, _ in burst).items()))}")
    waiting = Lab(Options()).workers["solver"].most_waiting
    print(f"limits                  {REQUEST_LIMIT} requests at a time, {waiting} that wait for the solver")


@contextmanager
def training(root: Path) -> Iterator[None]:
    """A model that trains meanwhile."""
    command = [sys.executable, "-m", "attnlab", "pretrain", *_TRAINING, "--out", str(root / "training")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(8)  # it loads torch first
        try:
            yield
        finally:
            process.terminate()


def main() -> None:
    """Make a run, start the server, and print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--frames", type=int, default=200)
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="attnlab-serve-") as folder:
        root = Path(folder) / "runs"
        data = ("--corpus", "people:60", "--facts", "people:60:train", "--exam", "people:60:test")
        command = [sys.executable, "-m", "attnlab", "run", "recall", *data, "--preset", "quick", "--train.epochs", "12"]
        command += [*_TINY, "--out", str(root / "recall-1")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(f"load of the machine     {os.getloadavg()[0]:7.1f}      on {os.cpu_count()} processors")
        with running_server(root) as server, sync_playwright() as playwright:
            flags = ["--headless", "--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=chromium, args=flags)
            first_paint(browser, server)
            drag(browser, server, given.points, given.frames, "server idle")
            with training(root):
                drag(browser, server, given.points, given.frames, "model training")
            browser.close()
            # Playwright has an event loop of its own in this thread.
            thread = threading.Thread(target=lambda: asyncio.run(load(server, given.clients, given.seconds)))
            thread.start()
            thread.join()


if __name__ == "__main__":
    main()
