"""docs/pictures/page-*.png: the pictures of the tour in README.md, made from a real quick run.

    python tools/screenshots.py [FOLDER]

Trains a quick run in FOLDER/runs (default: in a temporary folder, one to two minutes), unless there is one, serves it, and
takes pictures of the page in Chromium, which must be installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
LARGEST = 300_000  # bytes of a picture
WIDTH = 1200
HEIGHTS = {"design": 960, "ask": 1180}  # of the pictures, else:
HEIGHT = 780
RUN = "recall-1"


def make_run(root: Path) -> None:
    """Train the quick study, unless it is there."""
    if not (root / RUN / "report.html").exists():
        root.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "attnlab", "run", "--quick", "--out", f"{root.name}/{RUN}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=root.parent)


def question_of(root: Path) -> str:
    """A question that the study says to ask."""
    answers = (root / RUN / "report.html").read_text(encoding="utf-8")
    found = re.search(r'<article class="answer-card right">\s*<p class="question">([^<]+)</p>', answers)
    return found[1] if found else "Where was Babe Ruth born?"


def design(page: Any, _: str) -> None:
    """The design view, with a verdict of the solver."""
    page.goto_view("/design")
    page.get_by_role("button", name="Find a query").click()
    page.locator(".verdict-box .badge").wait_for(timeout=60_000)


def ask(page: Any, question: str) -> None:
    """An answer with the attention of a head."""
    page.goto_view(f"/ask?run={RUN}&q={quote(question)}&risk=0.3")
    page.get_by_role("heading", name="Change what it computes").wait_for(timeout=120_000)


def runs(page: Any, _: str) -> None:
    """The report of a run."""
    page.goto_view(f"/runs/{RUN}")
    page.locator("svg.chart").first.wait_for(timeout=60_000)


def mechanisms(page: Any, _: str) -> None:
    """The catalogue."""
    page.goto_view("/mechanisms")
    page.locator(".tile").first.wait_for(timeout=120_000)


VIEWS: tuple[Callable[[Any, str], None], ...] = (design, ask, runs, mechanisms)


def take(link: str, question: str, chromium: str) -> None:
    """Take all pictures."""
    from playwright.sync_api import sync_playwright

    base = link.partition("/?")[0]
    with sync_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page: Any = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", reduced_motion="reduce"
        )
        page.goto(link)
        page.goto_view = lambda path: page.goto(base + path)
        for view in VIEWS:
            view(page, question)
            page.set_viewport_size({"width": WIDTH, "height": HEIGHTS.get(view.__name__, HEIGHT)})
            page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(800)
            path = PICTURES / f"page-{view.__name__}.png"
            page.screenshot(path=str(path))
            size = path.stat().st_size
            print(f"{path.name}: {size / 1e3:.0f} kB")
            if size > LARGEST:
                raise SystemExit(f"{path} is larger than {LARGEST:,} bytes")
        browser.close()


def main() -> None:
    """Train, serve and take the pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is not installed")
    with tempfile.TemporaryDirectory(prefix="attnlab-tour-") as temporary:
        root = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "runs"
        make_run(root)
        command = [sys.executable, "-m", "attnlab", "serve", str(root), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                link = server.stdout.readline().partition("Open ")[2].strip()
                server.stdout.readline()
                take(link, question_of(root), chromium)
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
