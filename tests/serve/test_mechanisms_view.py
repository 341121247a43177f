"""The view of mechanisms in a browser: the catalogue, a card, an audit, costs, and a pasted class."""

from __future__ import annotations

from typing import Any

from serving import Served


def test_the_catalogue_is_searched_and_remembered_in_the_address(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/mechanisms")
    page.locator(".tile").first.wait_for(timeout=60_000)
    every = page.locator(".tile:visible").count()
    assert every >= 16
    page.get_by_label("Search").fill("arXiv:2009.14794")
    assert page.locator(".tile:visible strong").all_inner_texts() == ["performer"]
    page.get_by_label("Search").fill("")
    page.get_by_label("Weights").select_option("sparse")
    assert page.locator(".tile:visible strong").all_inner_texts() == ["bigbird", "sliding"]
    page.reload()
    page.locator(".tile:visible").first.wait_for()
    assert page.locator(".tile:visible strong").all_inner_texts() == ["bigbird", "sliding"]
    assert page.locator(".tile:visible svg path").count() > 2


def test_a_deep_link_opens_a_card_with_its_paper_and_patterns(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/mechanisms?name=sliding")
    page.get_by_role("heading", name="sliding", level=1).wait_for(timeout=60_000)
    paper = page.get_by_role("link", name="arXiv:2004.05150")
    assert paper.get_attribute("href") == "https://arxiv.org/abs/2004.05150"
    assert paper.get_attribute("target") == "_blank"
    assert paper.get_attribute("rel") == "noopener"
    assert page.get_by_text("attnlab/mechanisms/sliding.py").is_visible()
    assert page.locator(".layer label").all_inner_texts() == ["exact", "window 4", "window 8", "window 32"]
    assert page.locator("header .lead code").inner_text() == "window"
    assert "`" not in page.locator("main").inner_text()
    page.locator(".layer label").nth(1).click()
    assert "window 4" in page.locator(".panels figcaption").inner_text()
    page.locator(".panels svg.chart").hover()
    assert "%" in page.locator(".tip").inner_text()
    page.get_by_role("link", name="All mechanisms").click()
    page.get_by_role("heading", name="Mechanisms", level=1).wait_for()


def test_an_exported_map_holds_its_cells(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/mechanisms?name=sliding")
    page.locator(".panels .chart").wait_for(timeout=60_000)
    with page.expect_download() as download:
        page.locator(".panels .export").get_by_role("button", name="SVG").click()
    drawn = download.value.path().read_text()
    assert "<use" not in drawn
    assert drawn.count('fill="rgb(0, 71, 122)"') > 3


def test_an_audit_and_a_measurement_run_when_asked(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/mechanisms?name=gqa")
    page.get_by_role("button", name="Measure").wait_for(timeout=60_000)
    assert page.locator(".found *").count() == 0, "nothing is shown before it is measured"
    page.get_by_role("button", name="Audit").click()
    page.get_by_text("the audit found no fault").wait_for(timeout=120_000)
    assert page.get_by_role("row", name="padding ok hidden tokens change others").is_visible()
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("button", name="Cancel").wait_for()
    page.get_by_text("Time of a step").wait_for(timeout=300_000)
    assert page.locator("section[aria-labelledby=cost] svg.chart:visible").count() == 2
    page.reload()
    page.get_by_text("Time of a step").wait_for(timeout=60_000)
    assert page.get_by_role("button", name="Audit again").is_visible()


def test_a_measurement_can_be_cancelled(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/mechanisms?name=performer")
    page.get_by_role("button", name="Audit").click(timeout=60_000)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Audit").wait_for()
    assert page.locator(".found *").count() == 0


def test_the_page_says_how_to_allow_pasted_code(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/mechanisms")
    page.get_by_text("attnlab serve --allow-code").wait_for(timeout=60_000)
    assert page.locator("textarea").count() == 0


def test_a_pasted_class_is_audited(chromium: Any, coding: Served) -> None:
    page = chromium.new_context().new_page()
    page.goto(f"{coding.base}/mechanisms?token={coding.token}")
    code = page.get_by_label("Code")
    code.wait_for(timeout=60_000)
    code.fill(code.input_value().replace("values.cumsum(1) / seen.cumsum(1).clamp(min=1)", "x.flip(1)"))
    page.get_by_role("button", name="Audit").click()
    page.get_by_text("the audit found faults").wait_for(timeout=120_000)
    assert "future" in page.locator(".found").inner_text()
    code.fill("class <img onerror=alert(1)>")
    page.get_by_role("button", name="Audit").click()
    assert "the code cannot be read" in page.locator(".found .notice").inner_text()
    page.context.close()
