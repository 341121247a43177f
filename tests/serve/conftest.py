"""Real runs, a server of them, and a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served, serving

from attnlab.cli import main
from attnlab.serve.routes import Options

_TINY = (
    "--preset",
    "quick",
    "--train.epochs",
    "12",
    "--model.n_embd",
    "64",
    "--model.n_layer",
    "2",
    "--model.n_head",
    "2",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder belong to `make browser`, those that need no browser too: they start servers and train."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real study of a very small model."""
    root = tmp_path_factory.mktemp("served") / "runs"
    data = ("--corpus", "people:60", "--facts", "people:60:train", "--exam", "people:60:test")
    main(["run", "recall", *data, *_TINY, "--out", str(root / "recall-1")])
    return root


@pytest.fixture(scope="session")
def served(runs_root: Path) -> Iterator[Served]:
    """A server of these runs."""
    with serving(Options(runs_root)) as one:
        yield one


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured here is not kept in the cache of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def coding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that runs pasted code, of an empty folder."""
    with serving(Options(tmp_path_factory.mktemp("coding"), allow_code=True)) as one:
        yield one


# Runs to ask

_MEAN = '''
from torch import nn

class Mean(nn.Module):
    """A running mean with gates: there is no pattern to read."""
    def __init__(self, n_embd, n_head, block_size, *, rotary=False):
        super().__init__()
        self.gate, self.out = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)
    def forward(self, x, padding=None, cache=None):
        weight = self.gate(x).exp()
        return self.out((weight * x).cumsum(1) / weight.cumsum(1))
'''
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def ask_root(runs_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs to ask: a study, a calibrated run, one with markup in its name, one of running text, one with code of its own."""
    from attnlab.corpora import load_questions

    root = tmp_path_factory.mktemp("asked") / "runs"
    shutil.copytree(runs_root / "recall-1", root / "recall-1")
    shutil.copytree(runs_root / "recall-1" / "pretrain", root / MARKUP)
    (root.parent / "text.txt").write_text("The cat sat on the mat, and the dog sat on the log. " * 20 + "\n")
    small = ("--model.n_embd", "32", "--model.n_layer", "2", "--model.n_head", "2")
    once = ("--train.epochs", "1")
    main(
        [
            "pretrain",
            str(root.parent / "text.txt"),
            *small,
            *once,
            "--model.block_size",
            "64",
            "--out",
            str(root / "text-1"),
        ]
    )
    (root.parent / "mean.py").write_text(_MEAN)
    mechanism = ("--model.mechanism", f"dot, {root.parent / 'mean.py'}:Mean", "--preset", "quick")
    main(["pretrain", "--corpus", "people:60", *mechanism, *small, *once, "--out", str(root / "mean-1")])
    # A model that has learned one answer to everything is sure of it, so that a risk is certified with few questions.
    facts, held_out = root.parent / "facts.tsv", root.parent / "held-out.tsv"
    facts.write_text("".join(f"{one.question}\tYork\n" for one in load_questions("people:60:train")))
    others = [*load_questions("people:60:test"), *load_questions("people:60:calibration")]
    held_out.write_text("".join(f"{one.question}\tYork\n" for one in others))
    long = ("--preset", "quick", *small, "--train.epochs", "60", "--train.lr", "0.01", "--out", str(root / "sure-1"))
    main(["finetune", "--corpus", "people:60", "--facts", str(facts), *long])
    main(["calibrate", str(root / "sure-1"), "--questions", str(held_out)])
    return root


@pytest.fixture(scope="session")
def asked(ask_root: Path) -> Iterator[Served]:
    """A server of the runs to ask."""
    with serving(Options(ask_root)) as one:
        yield one


# A browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Chromium; where it is missing, tests are skipped, or fail if ATTNLAB_REQUIRE_BROWSER is set."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("ATTNLAB_REQUIRE_BROWSER"):
            pytest.fail("Chromium is not installed, and ATTNLAB_REQUIRE_BROWSER is set")
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*flags, "--disable-sync", "--no-first-run"])
        yield browser
        browser.close()


@pytest.fixture
def refused() -> str:
    """What Chromium logs for every answer with a status from 400; a test that uses this expects such answers."""
    return "Failed to load resource"


@pytest.fixture
def page(chromium: Any, served: Served, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page with access; an error in its script or console fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page, problems = context.new_page(), []
    expected = request.getfixturevalue("refused") if "refused" in request.fixturenames else None

    def log(message: Any) -> None:
        if message.type == "error" and not (expected and message.text.startswith(expected)):
            problems.append(message.text)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", log)
    page.goto(served.link)
    yield page
    context.close()
    assert not problems, problems
