"""Without a run of one's own the view Ask opens on the example; and how an answer was made, step by step, in Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from serving import Served, serving

from attnlab.corpora import load_questions
from attnlab.inside.trace import trace
from attnlab.lm.model import load_model
from attnlab.serve.ask import EXAMPLE_QUESTION
from attnlab.serve.routes import Options
from attnlab.store.runs import EXAMPLE, Run

WAIT = 60_000  # milliseconds: a worker starts with torch
QUESTION = "Where was Hank Bauer born?"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a folder without runs."""
    with serving(Options(tmp_path_factory.mktemp("empty") / "runs")) as one:
        yield one


def open_steps(page: Any, served: Served, **query: str) -> Any:
    page.goto(served.link)
    page.goto(f"{served.base}/ask?{urlencode(query)}")
    page.locator(".panel h3").wait_for(timeout=WAIT)
    return page


def step_to(page: Any, title: str) -> None:
    """Go on to the first step with this title."""
    for _ in range(30):
        if title in page.locator(".panel h3").inner_text():
            return
        page.get_by_role("button", name="Next", exact=True).click()
    raise AssertionError(title)


def test_the_first_visit_shows_an_answer_its_head_and_an_ablation(page: Any, empty: Served) -> None:
    page.goto(empty.link)
    page.get_by_role("link", name="Ask").click()
    page.locator(".needed button").wait_for(timeout=WAIT)
    assert "comes with attnlab" in page.locator(".own").inner_text()
    assert "attnlab run recall --quick" in page.locator(".own").inner_text()
    assert page.get_by_label("Text", exact=True).input_value() == EXAMPLE_QUESTION
    held_out = {one.question: one.answer for one in load_questions(f"{Run(EXAMPLE).record.facts.source[:-6]}:test")}
    assert page.locator(".said strong").inner_text() == held_out[EXAMPLE_QUESTION]
    assert page.locator(".said .badge").inner_text() == "recalled and supported"
    # The head is the one without which the answer is least likely.
    shares = [float(text.split(" %")[0].strip("< ")) for text in page.locator(".each-head td").all_inner_texts()]
    worst = shares.index(min(shares))
    heads = len(shares) // page.locator(".each-head tbody tr").count()
    assert f"layer {worst // heads + 1}, head {worst % heads + 1}" in page.locator(".needed").inner_text()
    assert page.locator(".chosen h3").inner_text() == f"Layer {worst // heads + 1}, head {worst % heads + 1}"
    assert page.locator(".needed button").inner_text().startswith("Switch off")
    page.locator(".needed button").click()
    page.locator(".compared table").wait_for(timeout=WAIT)
    assert page.locator(".changes li").count() == 1
    assert page.locator(".needed button").inner_text().startswith("Switch on")
    page.locator(".panel .quiet", has_text="As the changed model computes it").wait_for(timeout=WAIT)
    page.goto(page.url)  # a link to it asks nothing of its own
    page.locator(".compared table").wait_for(timeout=WAIT)
    assert page.locator(".each-head td").count() == 0


def test_the_steps_show_the_numbers_of_the_model(page: Any, asked: Served, ask_root: Path) -> None:
    open_steps(page, asked, run="recall-1", q=QUESTION)
    run = Run.open(ask_root / "recall-1")
    steps = trace(*load_model(run.model), QUESTION, question=True)
    assert len(page.locator(".chips li").all()) == len(steps.tokens)
    step_to(page, "Layer 2, head 1: query and keys")
    assert page.locator(".choose button[aria-pressed=true]").count() == 1
    page.get_by_role("group", name="Heads of this layer").get_by_role("button", name="Head 2").click()
    layer = steps.layers[1]
    scores = page.locator(".compared-tokens tbody:last-of-type td.number").all_inner_texts()
    assert scores == [f"{product:.2f}".replace("-", "−") for product in layer.products[1]]
    assert "head=2" in page.url
    step_to(page, "scores to weights")
    weights = page.locator(".compared-tokens tbody td.weight").all_inner_texts()
    assert [float(text.strip(" %")) for text in weights] == pytest.approx(
        [100 * x for x in layer.weights[1][: steps.token + 1]], abs=0.06
    )
    row = page.locator(".compared-tokens tbody tr").nth(5)
    row.hover()
    assert page.locator(".text .pointed").inner_text().strip() == row.locator("th").inner_text().strip()
    step_to(page, "weights to values")
    page.locator(".compared-tokens .vector").first.hover()
    assert re.search(r"Value of “.*”, channel \d+ of 32: −?\d", page.locator(".panel .tip").inner_text())
    step_to(page, "The MLP joins the stream")
    before, after = (f"{100 * point.final:.1f} %" for point in steps.points[-2:])
    words = page.locator(".lens").inner_text()
    assert f"{before} before this step, {after} after it" in words.replace("< 0.1", "0.0")
    step_to(page, "Prediction")
    assert page.get_by_role("button", name="Next", exact=True).is_disabled()
    shown = page.locator(".logits tbody td.weight").first.inner_text()
    assert shown == page.locator(".writing .share").first.inner_text()  # what it wrote with
    assert page.locator(".lens-table tbody tr").count() == len(steps.points)


def test_it_plays_follows_another_token_and_a_link_restores_the_step(page: Any, asked: Served) -> None:
    page.clock.install()
    open_steps(page, asked, run="recall-1", q=QUESTION)
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(6500)
    assert page.locator(".made [role=status]").inner_text().startswith("Step 3 of")
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(6500)
    assert page.locator(".panel h3").inner_text() == "Layer 1, head 1: query and keys"
    page.get_by_role("button", name="MLP 2").press("Enter")
    assert page.locator(".panel h3").inner_text() == "Layer 2: The MLP joins the stream"
    assert page.evaluate("document.activeElement.textContent").startswith("MLP 2")
    page.get_by_role("button", name="Layer 1, head 2", exact=True).click()  # among the maps below
    assert page.locator(".panel h3").inner_text() == "Layer 1: The MLP joins the stream"
    page.get_by_role("combobox", name="Follow").select_option("1")
    page.get_by_role("button", name="Prediction").click()
    page.locator(".logits caption", has_text="after “was”").wait_for(timeout=WAIT)
    assert page.locator(".words [aria-pressed=true]").inner_text() == "was"  # in the text below too
    page.goto(page.url)
    page.locator(".logits caption", has_text="after “was”").wait_for(timeout=WAIT)


def test_terms_are_explained_on_hover_and_by_keyboard(page: Any, asked: Served) -> None:
    open_steps(page, asked, run="recall-1", q=QUESTION, step="2")
    meaning = page.get_by_role("tooltip")
    term = page.locator(".explained dfn", has_text="query")
    assert meaning.count() == 0
    term.hover()
    assert "looks" in meaning.inner_text()
    page.mouse.move(0, 0)
    assert meaning.count() == 0
    term.focus()
    assert "looks" in meaning.inner_text()
    page.keyboard.press("Escape")
    assert meaning.count() == 0


def test_a_head_is_switched_off_in_the_steps_and_other_mechanisms_say_what_they_do(page: Any, asked: Served) -> None:
    open_steps(page, asked, run="mean-1", mode="continue", q="Hank Bauer was")
    step_to(page, "Layer 1, head 1: weights to values")
    page.get_by_role("button", name="Switch off head 1", exact=True).click()
    page.locator(".panel .explained", has_text="was changed").wait_for(timeout=WAIT)
    output = page.get_by_role("img", name="Output of head 1")
    assert "of length 0" in output.get_attribute("aria-label")
    step_to(page, "Layer 2: influence")
    assert "has no weights over tokens" in page.locator(".explained").inner_text()
    assert page.locator(".choose").count() == 0
    shares = [float(text.strip(" %")) for text in page.locator(".compared-tokens tbody td.weight").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_every_step_fits_the_screen_and_has_no_violations(
    page: Any, asked: Served, scheme: str, size: tuple[int, int]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    open_steps(page, asked, run="recall-1", q=QUESTION)
    for title in ("Tokens", "Embedding", "query and keys", "weights to values", "Layer 1: The MLP", "Prediction"):
        step_to(page, title)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        found = Axe().run(page, context=".made")
        assert found.violations_count == 0, found.generate_report()


def test_a_run_named_example_of_ones_own_comes_first(runs_root: Path, tmp_path: Path) -> None:
    shutil.copytree(runs_root / "recall-1" / "pretrain", tmp_path / "example")
    with serving(Options(tmp_path)) as served, served.client() as client:
        assert [(run["name"], run["example"]) for run in client.get("/api/ask/runs").json()["runs"]] == [
            ("example", False)
        ]
        assert client.post("/api/ask/open", json={"run": "example"}).json()["parameters"] != sum(
            weight.numel() for weight in load_model(EXAMPLE / "model")[0].parameters()
        )
