"""The static site that `attnlab page` writes, in a browser: below any folder, without a server that computes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_page import PHONE, settle

from attnlab.cli import main
from attnlab.serve.site import site_files

_PAGES = ("", "design/?preset=inside", "mechanisms/?name=sliding", "mechanisms/", "runs/", "runs/recall-1/", "ask/")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def written(runs_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site two folders below the one that is served."""
    folder = tmp_path_factory.mktemp("host") / "course" / "lab"
    main(["page", str(folder), str(runs_root / "recall-1"), str(runs_root / "recall-1" / "pretrain")])
    return folder


@pytest.fixture(scope="session")
def site(written: Path) -> Iterator[str]:
    """The address of a site on a server of plain files."""
    handler = partial(_Quiet, directory=str(written.parents[1]))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/course/lab/"
        server.shutdown()


@pytest.fixture
def visit(chromium: Any, site: str) -> Iterator[Any]:
    """Opens a page of the site; an error in its script, a file that is missing or a request elsewhere fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page, problems = context.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda asked: problems.append(asked.url) if not asked.url.startswith((site, "data:", "blob:")) else None,
    )

    def visit(path: str) -> Any:
        page.goto(site + path)
        settle(page)
        return page

    yield visit
    context.close()
    assert not problems, problems


@pytest.mark.parametrize("path", _PAGES)
def test_every_page_opens_without_a_violation_and_fits_a_phone(visit: Any, path: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = visit(path)
    page.emulate_media(reduced_motion="reduce")
    found = [(one["id"], one["nodes"][0]["html"][:200]) for one in Axe().run(page).response["violations"]]
    assert not found
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_links_between_the_pages_stay_below_the_folder(visit: Any, site: str) -> None:
    page = visit("")
    for view in ("Mechanisms", "Runs", "Ask", "Design"):
        page.get_by_role("navigation", name="Views").get_by_role("link", name=view).click()
        settle(page)
        assert page.url.startswith(f"{site}{view.lower()}")
        assert page.locator("nav a[aria-current=page]").inner_text() == view
        page.reload()
        settle(page)
        assert page.locator("nav a[aria-current=page]").inner_text() == view
    page = visit("mechanisms/")
    page.get_by_label("Search").fill("performer")
    page.locator(".tile:visible").click()
    page.get_by_role("heading", name="performer", level=1).wait_for()
    page.reload()
    page.get_by_role("heading", name="performer", level=1).wait_for()


def test_the_solver_answers_and_the_address_asks_again(visit: Any) -> None:
    page = visit("design/?preset=inside")
    for value, status in (("0", "solved"), ("3", "impossible")):
        page.locator(".solver select").select_option(value)
        page.get_by_role("button", name="Find a query").click()
        page.locator(f".verdict-box .badge.{status}").wait_for()
    assert "Key 3 is a mean of other keys" in page.locator(".verdict-box").inner_text()
    assert page.locator(".plane line.proof").count() == 3
    page.wait_for_url(re.compile("asked=1"))
    page.reload()
    page.locator(".verdict-box .badge.impossible").wait_for()


def test_proofs_noise_and_sheets_are_there_and_what_needs_a_server_says_so(visit: Any) -> None:
    page = visit("design/?tab=noise")
    page.get_by_text("in closed form").first.wait_for()
    assert page.get_by_role("button", name="Run", exact=True).count() == 0
    page.get_by_role("tab", name="Proofs").click()
    page.get_by_label("derivation").select_option("flops")
    page.locator(".proof li").nth(2).wait_for()
    page.get_by_role("tab", name="Answer a sheet").click()
    page.get_by_label("example").select_option("worked")
    page.get_by_label("answer to select").fill("10*K[0]")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as answers.toml").click()
    assert download.value.path().read_text() == '"select" = "10*K[0]"\n'
    assert page.get_by_role("button", name="Mark the answers").count() == 0
    for path, what in (
        ("mechanisms/?name=dot", "Measuring"),
        ("ask/", "Asking a model"),
        ("design/?tab=sheet", "Marking"),
    ):
        assert visit(path).get_by_text(f"{what}").get_by_text("needs a computer with attnlab").first.is_visible()


def test_a_report_is_shown_without_what_only_a_server_can_do(visit: Any) -> None:
    page = visit("runs/")
    assert page.locator("tbody tr").count() == 2
    page.get_by_role("link", name="recall-1").click()
    page.get_by_role("heading", level=1, name="What does a small model remember?").wait_for()
    page.get_by_role("button", name="CSV").first.wait_for()
    assert page.get_by_text("Ask this run").count() == 0
    assert page.get_by_label("Prompt").count() == 0
    page = visit("runs/recall-1/pretrain/")
    page.get_by_role("heading", level=1, name="The run pretrain").wait_for()


def test_the_files_hold_no_solution_and_no_path_of_this_machine(written: Path, runs_root: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in written.rglob("*") if path.suffix in (".json", ".html")}
    assert not [path for path, text in texts.items() if str(runs_root.parent) in text]
    sheet = json.loads(texts[written / "api/design/sheet/course.json"])
    assert sheet["tasks"]
    assert not sheet["has_solutions"]
    assert not re.search(r"^solution", sheet["for_students"], re.MULTILINE)
    assert all("default-src 'none'" in text for path, text in texts.items() if path.name == "index.html")


def test_reports_name_files_without_their_folders(tmp_path: Path) -> None:
    corpus, run = tmp_path / "corpus.txt", tmp_path / "work" / "runs" / "a"
    corpus.write_text("The cat sat on the mat and/or the dog.\n" * 40)
    sizes = "--train.steps 1 --model.n_layer 1 --model.n_embd 16 --model.n_head 1 --model.block_size 32"
    main(["pretrain", "--corpus", str(corpus), *f"--preset quick {sizes} --out {run}".split()])
    report = site_files([str(run)])["api/runs/a/report.json"].decode()
    assert "corpus.txt" in report
    assert tmp_path.name not in report


def test_a_folder_that_exists_or_a_name_without_a_report_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for words, said in (((tmp_path,), "exists already"), ((tmp_path / "new", tmp_path / "empty"), "has no report")):
        with pytest.raises(SystemExit):
            main(["page", *map(str, words)])
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()
