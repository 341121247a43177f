"""The view of runs in a real browser: list, reports, live curves, comparisons, samples, hostile names."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served

from attnlab.store.folders import Manifest, locked

MALICIOUS = "<img src=x onerror=alert(1)>"
_TIMEOUT = 60_000


@pytest.fixture
def growing(served: Served) -> Iterator[tuple[Path, list[str]]]:
    """A run that has trained a third of its steps, and the lines of the others."""
    run = served.root / "growing"
    shutil.copytree(served.root / "recall-1" / "pretrain", run)
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    third = len(rows) // 3
    (run / "metrics.jsonl").write_text("".join(rows[:third]), encoding="utf-8")
    for name in ("result.json", "manifest.json"):
        (run / name).rename(run / f".{name}")
    begun = {"config.json": (run / "config.json").read_bytes()}  # what is sealed when training starts
    (run / "manifest.json").write_bytes(Manifest.of("run", begun).to_bytes())
    yield run, rows[third:]
    shutil.rmtree(run)


@pytest.fixture
def hostile(served: Served) -> Iterator[str]:
    """A folder whose name is markup."""
    folder = served.root / MALICIOUS
    folder.mkdir()
    (folder / "manifest.json").write_text("{", encoding="utf-8")
    yield MALICIOUS
    shutil.rmtree(folder)


def test_the_list_is_searched_sorted_and_unfolded_and_its_address_restores_it(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/runs")
    page.get_by_role("link", name="recall-1").wait_for(timeout=_TIMEOUT)
    page.get_by_role("button", name="Runs of recall-1").click()
    page.get_by_role("link", name="finetune", exact=True).wait_for()
    page.locator("th.in-name button").click()
    assert page.locator("th[aria-sort=ascending]").inner_text().strip().startswith("Name")
    page.get_by_label("Search").fill("recall")
    page.wait_for_url(re.compile("q=recall"))
    page.reload()
    page.get_by_role("link", name="finetune", exact=True).wait_for(timeout=_TIMEOUT)
    assert page.get_by_label("Search").input_value() == "recall"
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text(encoding="utf-8").splitlines()))
    assert {"recall-1", "recall-1/pretrain"} <= {row["name"] for row in rows}
    with page.expect_download() as download:
        page.get_by_role("button", name="LaTeX").click()
    assert "recall-1/pretrain & run & pretrain & complete" in download.value.path().read_text(encoding="utf-8")
    page.get_by_label("Search").fill("nothing like this")
    page.get_by_text("Nothing meets the conditions.").wait_for()
    page.get_by_label("Search").fill("")
    page.get_by_label("Conditions").fill("model.n_embd = 64")
    page.get_by_label("Conditions").press("Enter")
    page.get_by_text("1 folder in").wait_for()


@pytest.mark.usefixtures("refused")
def test_conditions_that_are_refused_are_told_until_they_are_corrected(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/runs?filter=foo%3D1")
    field, problem = page.get_by_label("Conditions"), page.locator(".problem")
    problem.get_by_text("unknown column or setting 'foo'").wait_for(timeout=_TIMEOUT)
    assert len(problem.inner_text()) < 200
    assert "Reading" not in page.locator("main").inner_text()
    for given, said in (("seed=0", "1 folder in"), (">>", "a filter is NAME=VALUE"), ("loss<99", "1 folder in")):
        field.fill(given)
        field.press("Enter")
        problem.wait_for(state="visible" if given == ">>" else "hidden")
        page.get_by_text(said).wait_for()
        assert page.get_by_role("link", name="recall-1").is_visible()
    assert page.locator("#message").is_hidden()


def test_a_study_opens_as_its_report_with_exports_and_links_to_its_runs(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/runs/recall-1")
    page.get_by_role("heading", level=1, name="What does a small model remember?").wait_for(timeout=_TIMEOUT)
    assert page.locator("h1").count() == 1
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    assert download.value.suggested_filename.endswith(".csv")
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").first.click()
    assert "<svg" in Path(download.value.path()).read_text(encoding="utf-8")
    page.get_by_role("button", name="Copy the command").wait_for()
    page.get_by_role("link", name="pretrain", exact=True).click()
    page.get_by_role("heading", level=1, name=re.compile("The run pretrain")).wait_for(timeout=_TIMEOUT)
    assert page.url.endswith("/runs/recall-1/pretrain")
    page.go_back()
    page.get_by_role("heading", level=1, name="What does a small model remember?").wait_for(timeout=_TIMEOUT)


def test_curves_grow_while_a_run_trains_and_the_reader_stays_where_they_are(
    page: Any, served: Served, growing: tuple[Path, list[str]]
) -> None:
    run, rest = growing
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{served.base}/runs/growing")
    curve = page.locator("figure svg:not(.narrow) g.series path.line").first
    curve.wait_for(timeout=_TIMEOUT)
    before = curve.get_attribute("d")
    resume = page.get_by_role("group", name="Command that resumes it")
    assert resume.locator("code").inner_text() == f"attnlab resume {run}"
    page.locator("details summary").last.click()
    page.locator("details summary").last.focus()
    page.evaluate("scrollTo(0, 300)")
    page.wait_for_timeout(2500)
    reports = [one for one in requests if one.endswith("/report")]
    assert len(reports) == 1  # nothing changed, and the page does not ask
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("".join(rest))
    _until_changed(page, curve, before)
    assert page.evaluate("scrollY") == 300
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.locator("details").last.get_attribute("open") is not None
    for name in ("result.json", "manifest.json"):
        (run / f".{name}").rename(run / name)
    page.locator(".status-line .chip.complete").wait_for(timeout=_TIMEOUT)
    resume.wait_for(state="hidden")


@pytest.fixture
def training(served: Served) -> Iterator[Path]:
    """A study whose first run trains, a third done, with a validation and a sample."""
    study = served.root / "training"
    shutil.copytree(served.root / "recall-1", study, ignore=lambda *_: ["finetune", "no-pretraining", "result.json"])
    for folder, name in ((study, "study"), (study / "pretrain", "run")):
        begun = {
            file: (folder / file).read_bytes() for file in ("study.json", "config.json") if (folder / file).exists()
        }
        (folder / "manifest.json").write_bytes(Manifest.of(name, begun).to_bytes())
    metrics = study / "pretrain" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    rows = rows[: len(rows) // 3]
    rows[-2] |= {"dev_loss": 4.5, "sample": "an early sample"}
    rows[-1] |= {"dev_loss": 4.25, "sample": "Hank Aaron was a player", "seconds": 60.0, "progress": 1 / 3}
    metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    with locked(study / "pretrain"):
        yield study
    shutil.rmtree(study)


def test_a_study_in_training_shows_progress_time_left_validation_and_a_sample(
    page: Any, served: Served, training: Path
) -> None:
    page.goto(f"{served.base}/runs")
    page.get_by_text("training 33 %, 2 min left, pretrain").wait_for(timeout=_TIMEOUT)
    page.goto(f"{served.base}/runs/training")
    page.get_by_role("heading", level=1, name="The study training").wait_for(timeout=_TIMEOUT)
    assert page.locator(".status-line .chip").inner_text() == "training 33 %, 2 min left, pretrain"
    assert page.locator(".status-line progress").is_visible()
    row = page.get_by_role("row", name=re.compile("^pretrain training 33 % 2 min 00 s"))
    assert row.locator("td").last.inner_text() == "4.250"
    keys = page.locator("figure.curves .key:visible").all_text_contents()
    assert sorted(keys)[1:] == ["training", "validation"]
    assert sorted(keys)[0].startswith("lowest: 4.250 at step ")
    assert page.get_by_text("Hank Aaron was a player").is_visible()
    assert page.get_by_text("an early sample").count() == 0
    assert "attnlab resume" not in page.locator(".report").inner_text()
    with (training / "pretrain" / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        step = {"step": 99, "progress": 0.5, "epoch": 1.0, "loss": 3.0, "rate": 1.0, "tokens": 9999, "seconds": 90.0}
        stream.write(json.dumps({**step, "sample": "a later sample"}) + "\n")
    page.get_by_text("a later sample").wait_for(timeout=_TIMEOUT)
    assert page.locator(".status-line .chip").inner_text().startswith("training 50 %")


@pytest.mark.parametrize("view", ["runs", "ask"])
def test_a_folder_without_runs_shows_the_command_that_trains_one(page: Any, coding: Served, view: str) -> None:
    page.goto(coding.link)
    page.goto(f"{coding.base}/{view}")
    command = page.get_by_role("group", name="Command that trains a model").locator("code")
    command.wait_for(timeout=_TIMEOUT)
    assert command.inner_text() == f"attnlab run recall --quick --out {coding.root}/recall-1"


def _until_changed(page: Any, curve: Any, before: str) -> None:
    for _ in range(100):
        if curve.get_attribute("d") != before:
            return
        page.wait_for_timeout(200)
    raise AssertionError("the curve has not grown")


def test_a_stream_that_is_refused_is_told(page: Any, served: Served) -> None:
    page.route("**/api/events/runs", lambda route: route.fulfill(status=204))
    page.goto(f"{served.base}/runs")
    page.get_by_text("This page is no longer kept up to date").wait_for(timeout=_TIMEOUT)
    page.get_by_role("link", name="recall-1").wait_for()


def test_runs_side_by_side_and_their_samples(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/runs?open=recall-1")
    page.get_by_label("Choose recall-1/pretrain").check(timeout=_TIMEOUT)
    page.get_by_label("Choose recall-1/finetune").check()
    page.get_by_role("link", name="Compare 2 side by side").click()
    page.get_by_role("heading", level=1, name="2 runs side by side").wait_for(timeout=_TIMEOUT)
    page.get_by_label("Prompt").fill("Where")
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".sampled section").nth(1).wait_for(timeout=_TIMEOUT)
    assert page.locator(".sampled .text").count() == 6
    assert page.locator(".sampled section > .quiet").first.inner_text().startswith("repetition (seq-rep-4)")
    page.get_by_label("Method").select_option("beam search")
    page.get_by_role("button", name="Write", exact=True).click()
    page.get_by_text("log probability").nth(5).wait_for(timeout=_TIMEOUT)
    assert not page.get_by_label("Temperature").is_visible()


def test_studies_side_by_side_show_their_results_first(page: Any, served: Served) -> None:
    shutil.copytree(served.root / "recall-1", served.root / "recall-again")
    try:
        page.goto(f"{served.base}/runs?with=recall-1&with=recall-again")
        page.get_by_role("heading", level=1, name="2 studies side by side").wait_for(timeout=_TIMEOUT)
        assert page.locator(".report h2").first.inner_text() == "Results of the studies"
        table = page.locator(".report table").first
        heads = [text.strip() for text in table.locator("thead th").all_inner_texts()]
        assert heads[1].startswith("Accuracy")
        assert heads[2].startswith("95 % interval")
        names = table.locator("tbody th").all_inner_texts()
        assert {name.split(":")[0] for name in names} == {"recall-1", "recall-again"}
    finally:
        shutil.rmtree(served.root / "recall-again")


def test_a_chart_fits_a_phone_with_letters_that_can_be_read(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served.base}/runs/recall-1/pretrain")
    chart = page.locator("figure.curves svg.chart:visible").first
    chart.wait_for(timeout=_TIMEOUT)
    box = chart.bounding_box()
    assert box["x"] + box["width"] <= 390
    scale = "(svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
    assert 13 * chart.evaluate(scale) >= 11
    with page.expect_download() as download:
        page.locator("figure.curves .export").first.get_by_role("button", name="SVG").click()
    saved = Path(download.value.path()).read_text(encoding="utf-8")
    assert 'width="760"' in saved
    assert 'display="none"' not in saved.split(">")[0]


def test_a_name_that_is_markup_does_nothing(page: Any, served: Served, hostile: str) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"the name was run: {dialog.message}"))
    page.goto(f"{served.base}/runs")
    page.get_by_role("link", name=hostile).click(timeout=_TIMEOUT)
    page.get_by_role("heading", level=1, name=hostile).wait_for(timeout=_TIMEOUT)
    assert page.locator("main img").count() == 0


def test_it_fits_a_phone(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served.base}/runs?open=recall-1")
    page.get_by_role("link", name="finetune", exact=True).wait_for(timeout=_TIMEOUT)
    # The result is seen without scrolling. In one step, because the list may be drawn again at any time.
    right = "document.querySelector(\"tr[data-name='recall-1/finetune'] .in-result\")?.getBoundingClientRect().right"
    page.wait_for_function(f"() => {right} <= 390", timeout=_TIMEOUT)
    for path in ("/runs?open=recall-1", "/runs/recall-1"):
        page.goto(served.base + path)
        page.locator("main h1, main a.entry").first.wait_for(timeout=_TIMEOUT)
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
