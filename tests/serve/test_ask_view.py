"""The view that asks runs, in Chromium: answers, the slider of risks, attention, steps of generation, interventions, links."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from serving import Served

from conftest import MARKUP

QUESTION = "Where was Hank Bauer born?"
WAIT = 60_000  # milliseconds: a worker starts with torch


def open_view(page: Any, asked: Served, **query: str) -> Any:
    """The view with a query, with its answer if it asks something."""
    page.goto(asked.link)
    page.goto(f"{asked.base}/ask?{urlencode(query)}")
    if "q" in query:
        page.get_by_role("heading", name="Change what it computes").wait_for(timeout=WAIT)
    return page


def tokens(page: Any) -> list[str]:
    return page.locator(".words .token").all_inner_texts()


def test_a_question_is_answered_token_by_token_with_a_verdict_and_evidence(page: Any, asked: Served) -> None:
    open_view(page, asked, run="recall-1")
    page.get_by_role("button", name=QUESTION).wait_for(timeout=WAIT)
    assert page.get_by_label("Run").input_value() == "recall-1"
    page.get_by_label("Text", exact=True).fill(QUESTION)
    for mode in ("continue", "ask"):
        page.get_by_label("What to do").select_option(mode)
        assert page.get_by_label("Text", exact=True).input_value() == QUESTION
        assert page.get_by_label("Text", exact=True).get_attribute("placeholder")
    page.get_by_label("Text", exact=True).press("Enter")
    page.get_by_role("heading", name="Change what it computes").wait_for(timeout=WAIT)
    written = page.locator(".writing .piece").all_inner_texts()
    assert written[-1] == "end"
    assert page.locator(".said .badge").inner_text()
    assert "Henry Albert Bauer" in page.locator(".evidence").inner_text()
    assert page.get_by_role("img", name="Likeliest answers").count() == 1
    assert page.get_by_role("slider", name="Accepted risk").is_disabled()  # it is not calibrated
    page.get_by_text("Why there is no guarantee").click()
    assert "attnlab calibrate" in page.locator(".decided details").inner_text()


def test_the_newest_run_is_opened_first(page: Any, asked: Served) -> None:
    open_view(page, asked)
    page.locator(".examples button").first.wait_for(timeout=WAIT)
    with asked.client() as client:
        entries = client.get("/api/runs").json()["entries"]
    newest = [one["path"] for entry in entries for one in (entry, *entry["runs"])]
    offered = [one.get_attribute("value") for one in page.get_by_label("Run").locator("option").all()]
    assert offered == [*(name for name in newest if name in offered), "example"]
    assert page.get_by_label("Run").input_value() == offered[0]


def test_the_slider_changes_the_decision_without_a_request(page: Any, asked: Served) -> None:
    open_view(page, asked, run="sure-1", q=QUESTION, risk="0.01")
    slider = page.get_by_role("slider", name="Accepted risk")
    assert "It abstains." in page.locator(".decided").inner_text()
    assert "could not be certified" in page.locator(".decided .reason").first.inner_text()
    assert page.locator(".differs").count() == 0  # the tokens are the answer
    smallest = page.get_by_text("The smallest risk on the slider that can be certified").inner_text()
    while "could not be certified" in page.locator(".decided").inner_text():
        assert (before := page.locator(".level").inner_text()) != "50 %"
        slider.press("ArrowRight")
        assert page.locator(".level").inner_text() != before
    assert smallest.endswith(f" is {page.locator('.level').inner_text()}.")
    requests: list[str] = []
    page.on("request", lambda one: requests.append(one.url) if "/api/" in one.url else None)
    slider.focus()
    page.keyboard.press("End")
    assert page.locator(".level").inner_text() == "50 %"
    assert "It abstains." not in page.locator(".decided").inner_text()
    assert "At most 50 %" in page.locator(".decided details").text_content()
    assert not requests
    assert "risk=0.5" in page.url


def test_heads_tokens_and_averages_are_chosen_by_pointer_and_keyboard(page: Any, asked: Served) -> None:
    open_view(page, asked, run="recall-1", q=QUESTION)
    page.get_by_role("button", name="Layer 2, head 2", exact=True).click()
    assert page.locator(".chosen h3").inner_text() == "Layer 2, head 2"
    token = page.get_by_role("button", name="Token 6: Bauer")
    token.hover()
    said = page.locator(".readout").inner_text()
    assert said.startswith("“Bauer” looks at")
    assert "%" in said
    assert page.locator(".arcs path").count() > 0
    assert "The model gave it" not in said  # questions are not what it was trained to predict
    assert page.get_by_text("⁇ separates the question from the answer.").is_visible()
    token.click()
    assert token.get_attribute("aria-pressed") == "true"
    assert "token=5" in page.url
    page.keyboard.press("ArrowLeft")
    assert page.locator(".readout").inner_text().startswith("“k”")
    page.keyboard.press("Enter")
    assert "token=4" in page.url
    page.get_by_label("Show").select_option("in")
    page.get_by_role("button", name="Layer 1, average of 2 heads").click()
    assert "head=mean" in page.url
    page.get_by_role("button", name="Average of all layers and heads").click()
    assert "layer=all" in page.url
    large = page.get_by_role("img", name="Average of all layers and heads")
    large.focus()
    page.keyboard.press("ArrowUp")
    assert "“an”" in page.locator(".large .tip").inner_text()
    page.keyboard.press("Enter")
    assert "token=3" in page.url


def test_one_head_is_followed_through_generation(page: Any, asked: Served) -> None:
    open_view(page, asked, run="text-1", mode="continue", q="The cat sat")
    steps = page.locator(".follow tbody tr")
    assert steps.count() == page.locator(".writing .piece").count()
    assert page.locator(".follow tr.current").count() == 1
    given = len(tokens(page)) - page.locator(".words .written").count()
    page.get_by_role("button", name="Next step").click()
    assert f"token={given}" in page.url
    assert page.locator(".words .produced").inner_text() == page.locator(".writing .piece").nth(1).inner_text()
    page.locator(".follow .step").nth(3).click()
    assert f"token={given + 2}" in page.url
    assert "Step 4 of" in page.locator(".follow").inner_text()
    assert "The model gave it" in page.locator(".readout").inner_text()
    assert page.locator(".continued strong").inner_text().startswith(page.locator(".writing .piece").first.inner_text())
    with page.expect_download() as download:
        page.locator(".follow").get_by_role("button", name="LaTeX").click()
    assert "\\begin{tabular}{lrl}" in download.value.path().read_text()
    with page.expect_download() as download:
        page.get_by_role("group", name="Export: Text with arcs").get_by_role("button", name="SVG").click()
    assert download.value.suggested_filename == "text-with-arcs.svg"
    drawn = download.value.path().read_text(encoding="utf-8")
    assert drawn.count("</text>") == len(tokens(page))
    assert "<path" in drawn


def test_a_head_is_switched_off_and_an_activation_replaced(page: Any, asked: Served) -> None:
    open_view(page, asked, run="recall-1", q=QUESTION)
    page.get_by_role("button", name="Switch off head 1 of layer 1").click()
    page.locator(".compared table").wait_for(timeout=WAIT)
    assert "Switch off layer 1, head 1" in page.locator(".changes").inner_text()
    assert page.get_by_role("button", name="Layer 1, head 1, switched off").count() == 1
    assert "Original writes" in page.locator(".compared").inner_text()
    page.get_by_label("Activation").select_option("resid_post")
    page.get_by_role("combobox", name="Token").select_option("5")
    page.get_by_label("Replace by").select_option("text")
    assert page.get_by_role("combobox", name="Another text of").input_value()
    page.get_by_role("button", name="Change", exact=True).click()
    page.locator(".changes li").nth(1).wait_for()
    page.locator(".compared table").wait_for(timeout=WAIT)
    assert "at token 6 “Bauer” by that of" in page.locator(".changes").inner_text()
    page.get_by_role("button", name="Remove: Switch off layer 1, head 1").click()
    assert page.locator(".changes li").count() == 1
    page.get_by_role("button", name="Switch off each head in turn").click()
    page.locator(".each-head .export").wait_for(timeout=WAIT)
    assert page.locator(".each-head td").count() == 4
    with page.expect_download() as download:
        page.locator(".each-head").get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename.endswith(".csv")


def test_a_link_restores_everything(page: Any, asked: Served) -> None:
    change = '[{"layer":1,"tap":"z","head":0,"position":null,"by":"zero","other":""}]'
    query = {"run": "sure-1", "q": QUESTION, "risk": "0.3", "layer": "2", "head": "1", "token": "4", "changes": change}
    open_view(page, asked, **query)
    page.locator(".compared table").wait_for(timeout=WAIT)
    assert page.get_by_label("Run").input_value() == "sure-1"
    assert page.get_by_label("Text", exact=True).input_value() == QUESTION
    assert page.locator(".level").inner_text() == "30 %"
    assert page.locator(".chosen h3").inner_text() == "Layer 2, head 1"
    assert page.locator(".token[aria-pressed=true]").get_attribute("aria-label").startswith("Token 5:")
    assert "Switch off layer 2, head 1" in page.locator(".changes").inner_text()
    assert page.url.endswith(urlencode(query))


def test_markup_in_names_and_texts_is_only_text(page: Any, asked: Served) -> None:
    alerts: list[str] = []
    page.on("dialog", lambda one: (alerts.append(one.message), one.dismiss()))
    open_view(page, asked, run=MARKUP, mode="continue", q=MARKUP)
    assert page.get_by_label("Run").input_value() == MARKUP
    assert page.locator("img").count() == 0
    assert not alerts


def test_influence_is_called_by_its_name(page: Any, asked: Served) -> None:
    def without_heads(route: Any) -> None:
        about = route.fetch().json()
        layers = [{**one, "taps": [tap for tap in one["taps"] if tap != "z"]} for one in about["layers"]]
        route.fulfill(json={**about, "layers": layers})

    page.route("**/api/ask/open", without_heads)
    open_view(page, asked, run="mean-1", q=QUESTION, layer="2")
    assert "no attention weights over tokens" in page.locator("section .notice:visible").inner_text()
    assert page.locator(".chosen h3").inner_text() == "Layer 2, influence of all heads"
    assert "depends on" in page.locator(".readout").inner_text()
    assert page.get_by_label("Show").locator("option").all_inner_texts()[0] == "what the token depends on"
    assert page.locator(".layer-label span").nth(1).inner_text() == "Mean"
    assert page.get_by_role("button", name="of layer 2").count() == 0  # nothing to switch off
    assert page.get_by_role("button", name="Switch off each head").count() == 0
    assert "the answer is the likeliest as a whole" in page.locator(".differs").inner_text()  # it has learned nothing


def test_a_change_that_does_not_fit_is_taken_out(chromium: Any, asked: Served) -> None:
    # Chromium logs the answer 422, which the fixture "page" takes for an error.
    context = chromium.new_context()
    page = context.new_page()
    open_view(page, asked, run="recall-1")
    page.get_by_role("button", name=QUESTION).wait_for(timeout=WAIT)
    alert = page.locator(".view.ask [role=alert]:visible")
    page.get_by_label("Text", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Change what it computes").wait_for(timeout=WAIT)
    assert alert.count() == 0
    page.get_by_role("button", name="Switch off head 1 of layer 1").click()
    page.locator(".compared table").wait_for(timeout=WAIT)
    page.get_by_label("Replace by").select_option("text")
    page.get_by_role("combobox", name="Another text of").fill("Hank")
    page.get_by_role("button", name="Change", exact=True).click()
    page.get_by_text("Taken out again: the other text has").wait_for(timeout=WAIT)
    page.locator(".compared table").wait_for(timeout=WAIT)
    assert page.locator(".changes li").all_inner_texts() == ["Switch off layer 1, head 1\n×"]
    assert "Hank%22" not in page.url
    context.close()


def test_a_request_is_stopped_and_the_next_one_works(page: Any, asked: Served, ask_root: Path) -> None:
    open_view(page, asked, run="recall-1")
    page.get_by_role("button", name=QUESTION).wait_for(timeout=WAIT)
    page.route(
        "**/ask/open", lambda _: None
    )  # the answer takes its time: a small run opens before anybody could stop it
    page.get_by_label("Run").select_option("sure-1")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("Stopped.").wait_for()
    page.unroute("**/ask/open")
    page.get_by_label("Run").select_option("recall-1")
    page.get_by_role("button", name=QUESTION).click(timeout=WAIT)
    page.get_by_role("heading", name="Change what it computes").wait_for(timeout=WAIT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_it_fits_the_screen_and_has_no_violations(page: Any, asked: Served, scheme: str, size: tuple[int, int]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    open_view(page, asked, run="recall-1", q=QUESTION, changes='[{"layer":0,"tap":"z","head":0,"by":"zero"}]')
    page.locator(".compared table").wait_for(timeout=WAIT)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
