"""The view of starting studies in a real browser: a form, its command line, a real job with progress and log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served

_TIMEOUT = 60_000
_SMALL = {"n_embd": "32", "n_head": "2", "n_layer": "1"}


@pytest.fixture
def new_folder(served: Served) -> Iterator[str]:
    yield "from-the-page"
    shutil.rmtree(served.root / "from-the-page", ignore_errors=True)


def test_the_command_line_follows_the_form_and_the_address_restores_it(page: Any, served: Served) -> None:
    page.goto(f"{served.base}/start")
    code = page.locator(".line code")
    code.get_by_text("attnlab run recall --out").wait_for(timeout=_TIMEOUT)
    page.get_by_label("quick").check()
    page.get_by_label("seed", exact=True).fill("x")
    page.get_by_text("--seed: 'x' is not a whole number").wait_for(timeout=_TIMEOUT)
    assert page.get_by_role("button", name="Start", exact=True).is_disabled()
    page.get_by_label("seed", exact=True).fill("7")
    code.get_by_text("--quick --seed 7").wait_for(timeout=_TIMEOUT)
    page.reload()
    code.get_by_text("--quick --seed 7").wait_for(timeout=_TIMEOUT)
    page.locator("#command").select_option("compare")
    page.get_by_label("variants").fill("dot\nadditive")
    code.get_by_text("attnlab compare dot additive").wait_for(timeout=_TIMEOUT)


def test_a_study_is_started_followed_stopped_and_resumed(page: Any, served: Served, new_folder: str) -> None:
    page.goto(f"{served.base}/start?do=pretrain&--corpus=people%3A60&--preset=quick&--train.steps=100000")
    page.get_by_text("Settings (").click()
    if not page.get_by_label("n_embd").is_visible():
        page.get_by_text("Settings (").click()
    if not page.get_by_label("n_embd").is_visible():
        page.get_by_text("Model", exact=True).click()
    for name, value in _SMALL.items():
        page.get_by_label(name).fill(value)
    page.get_by_label("Name of the new folder").fill(new_folder)
    page.locator(".line code").get_by_text(new_folder).wait_for(timeout=_TIMEOUT)
    page.get_by_role("button", name="Start", exact=True).click()
    job = page.locator("article.job").first
    job.locator(".log").get_by_text("parameters").wait_for(timeout=_TIMEOUT)
    job.get_by_text("training").wait_for(timeout=_TIMEOUT)
    job.get_by_role("button", name="Stop").click()
    job.locator(".chip.stopped").wait_for(timeout=_TIMEOUT)
    job.get_by_role("button", name="Resume").click()
    again = page.locator("article.job").first
    again.get_by_text(f"attnlab resume {served.root / new_folder}").wait_for(timeout=_TIMEOUT)
    again.get_by_role("button", name="Stop").click()
    again.locator(".chip.stopped").wait_for(timeout=_TIMEOUT)
    again.get_by_role("link", name=new_folder).click()
    page.get_by_role("heading", level=1, name=f"The run {new_folder}").wait_for(timeout=_TIMEOUT)


def test_it_fits_a_phone(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served.base}/start?do=compare")
    page.locator(".line code").wait_for(timeout=_TIMEOUT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


_SEEN = """() => {
  const [own, ready, bar] = [document.activeElement, document.querySelector(".ready"), document.querySelector(".bar")];
  const box = own.getBoundingClientRect();
  const seen = box.top >= bar.getBoundingClientRect().bottom && box.bottom <= ready.getBoundingClientRect().top;
  return [own.name || own.textContent, seen || ready.contains(own)];
}"""


def test_settings_are_legible_and_focus_is_never_behind_a_bar(page: Any, served: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served.base}/start?--train.lr=0.1")
    page.locator(".line code").wait_for(timeout=_TIMEOUT)
    for align, space in page.locator(".option").evaluate_all(
        "all => all.map(getComputedStyle).map(one => [one.textAlign, one.whiteSpace])"
    ):
        assert (align, space) in (("start", "normal"), ("left", "normal"))
    page.locator("#command").focus()
    reached = {}
    for _ in range(30):
        page.keyboard.press("Tab")
        name, seen = page.evaluate(_SEEN)
        reached[name] = seen
    assert {"--exam", "--train.lr"} <= set(reached)
    assert all(reached.values()), reached
