"""How fast the page is: first paint, bytes, script time of a drag frame, and 50 clients at a time.

    python benchmarks/serve.py [--seconds 60] [--clients 50] [--points 20] [--frames 200]

Starts `attnlab serve` on a folder with a very small run, opens it in Chromium, drags the query of the design view among
some points, sends requests of a mix of routes from many clients at a time, and drags again while the server trains. It
prints figures and ratios, and judges nothing: those of a busy machine say little.

The fair share of a client is its latency when it is alone times the number of clients, since one server answers all of
them. The ratio of the 95th percentile under load to that share should stay below 3, memory flat, and answers of 429
("too many requests at a time") should appear only above the limits that are printed.
"""

from __future__ import annotations

import argparse
import asyncio
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
from attnlab.serve.worker import Worker

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
_TRAINING = {"--corpus": "people:300", "--preset": "quick", "--train.steps": "100000", "--train.threads": "1"}


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


async def _one(client: httpx.AsyncClient, route: tuple[str, str, dict[str, Any] | None]) -> tuple[str, int, float]:
    method, path, body = route
    began = time.perf_counter()
    try:
        status = (await client.request(method, path, json=body)).status_code
    except httpx.TransportError:
        status = 0
    return f"{method} {path}", status, time.perf_counter() - began


def _client(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    return httpx.AsyncClient(base_url=server.base, headers=server.headers, timeout=120, limits=limits)


async def load(server: Server, clients: int, seconds: float) -> None:
    """Print latencies and statuses of many clients beside those of one."""
    routes = [(method, path, body) for method, path, body, often in MIX for _ in range(often)]
    async with _client(server) as client:
        for route in routes:  # workers start and load what they need
            await _one(client, route)
        alone = [await _one(client, route) for _ in range(3) for route in routes]
        share = clients * statistics.mean(taken for _, _, taken in alone)
        before, end = server.memory(), time.monotonic() + seconds
        found: list[tuple[str, int, float]] = []

        async def visit(seed: int) -> None:
            choose = random.Random(seed)
            while time.monotonic() < end:
                found.append(await _one(client, choose.choice(routes)))

        await asyncio.gather(*(visit(seed) for seed in range(clients)))
        after = server.memory()
        burst = await asyncio.gather(*(_one(client, ("GET", "/api/runs", None)) for _ in range(4 * REQUEST_LIMIT)))
    times = sorted(taken for _, _, taken in found)
    p95 = times[int(0.95 * len(times))]
    print(f"one client, mean        {1e3 * share / clients:7.1f} ms")
    print(f"{clients} clients, p95        {1e3 * p95:7.1f} ms   {len(found):,} requests in {seconds:g} s")
    print(f"p95 / fair share        {p95 / share:7.2f} x    (asked: at most 3)")
    print(f"memory of the server    {before:7.1f} MB   before, {after:.1f} MB after")
    print(f"statuses                {dict(sorted(Counter(status for _, status, _ in found).items()))}")
    refused = Counter(route for route, status, _ in found if status != 200)
    if refused:
        print(f"not 200                 {dict(refused)}")
    print(f"burst of {4 * REQUEST_LIMIT}            {dict(sorted(Counter(status for _, status, _ in burst).items()))}")
    waiting = Worker().most_waiting
    print(f"limits                  {REQUEST_LIMIT} requests at a time, {waiting} that wait for the solver")


@contextmanager
def training(server: Server) -> Iterator[None]:
    """A study that the server runs meanwhile."""
    with httpx.Client(base_url=server.base, headers=server.headers, timeout=60) as client:
        asked = {"command": "pretrain", "values": _TRAINING, "folder": "training"}
        answer = client.post("/api/jobs", json=asked)
        if not answer.is_success:
            raise SystemExit(f"training could not be started: {answer.text}")
        number = answer.json()["number"]
        time.sleep(8)  # it loads torch first
        try:
            yield
        finally:
            client.post(f"/api/jobs/{number}/stop")


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
            with training(server):
                drag(browser, server, given.points, given.frames, "server training")
            browser.close()
            # Playwright has an event loop of its own in this thread.
            thread = threading.Thread(target=lambda: asyncio.run(load(server, given.clients, given.seconds)))
            thread.start()
            thread.join()


if __name__ == "__main__":
    main()
