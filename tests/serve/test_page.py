"""The page as a whole: navigation, deep links, keyboard, theme, phone width, accessibility, and no other host."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from serving import Served

VIEWS = ("design", "ask", "runs", "mechanisms")
LINKS = (*(f"/{view}" for view in VIEWS), "/mechanisms?name=sliding", "/runs/recall-1")
PROGRESS = re.compile(
    r"(Loading|Computing|Reading|Making|Opening|Simulating|Solving|Marking|Sampling|Auditing|Measuring)\b.* …"
)
PHONE = {"width": 390, "height": 844}


def settle(page: Any) -> None:
    """Wait until the view has its heading, and nothing is loading; event streams stay open."""
    page.locator("main h1").first.wait_for(timeout=60_000)
    until = time.monotonic() + 60
    while found := PROGRESS.search(page.locator("main").inner_text()):
        assert time.monotonic() < until, f"still {found[0]}"
        page.wait_for_timeout(100)
    page.wait_for_timeout(300)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_from_the_bar_and_by_its_address(page: Any, served: Served, view: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("link", name=view.capitalize()).click()
    settle(page)
    assert page.url.split("?")[0] == f"{served.base}/{view}"
    heading = page.locator("main h1").inner_text()
    assert page.locator("main h1").count() == 1
    assert page.locator("nav a[aria-current=page]").inner_text() == view.capitalize()
    assert page.title().lower().startswith(view)
    page.goto(f"{served.base}/{view}")
    settle(page)
    assert page.locator("main h1").inner_text() == heading
    assert page.locator("#message").is_hidden()


def test_back_and_forward_change_the_view(page: Any, served: Served) -> None:
    bar = page.get_by_role("navigation", name="Views")
    bar.get_by_role("link", name="Mechanisms").click()
    settle(page)
    bar.get_by_role("link", name="Runs").click()
    settle(page)
    page.go_back()
    page.get_by_role("heading", name="Mechanisms", level=1).wait_for()
    page.go_forward()
    page.get_by_role("heading", name="Runs", level=1).wait_for()


def test_the_bar_is_used_by_keyboard_alone(page: Any, served: Served) -> None:
    settle(page)
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"no visible focus on {reached[-1]}"
    assert reached == ["Skip to content", "attnlab", "Design", "Ask", "Runs", "Mechanisms", "◐"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Mechanisms", level=1).wait_for()
    page.locator("#view:focus").wait_for()  # focus moves to what was opened


def test_the_theme_stays_after_a_reload(page: Any, served: Served) -> None:
    page.emulate_media(color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    button = page.get_by_role("button", name="Dark theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    dark = page.evaluate(colour)
    assert dark != light
    assert button.get_attribute("aria-pressed") == "true"
    page.reload()
    settle(page)
    assert page.evaluate(colour) == dark
    button.click()
    assert page.evaluate(colour) == light


def test_a_browser_that_stores_nothing_shows_the_page(page: Any, served: Served) -> None:
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    page.reload()
    settle(page)
    page.get_by_role("button", name="Dark theme").click()
    assert page.locator("html").get_attribute("data-theme") in ("light", "dark")


def test_an_error_is_one_line_that_can_be_dismissed(page: Any, served: Served) -> None:
    settle(page)
    message = page.locator("#message")
    fail = "import('/static/lib/api.js').then(({ ApiError }) => void Promise.reject(new ApiError('No such run.', 404)))"
    page.evaluate(fail)
    page.get_by_text("No such run.").wait_for()
    message.get_by_role("button", name="Dismiss").click()
    assert message.is_hidden()
    page.evaluate(fail)
    page.get_by_text("No such run.").wait_for()
    page.keyboard.press("Escape")
    assert message.is_hidden()


@pytest.mark.parametrize(("view", "asked"), [("runs", "runs"), ("mechanisms", "mechanisms"), ("ask", "ask/runs")])
def test_a_view_that_is_left_while_it_loads_is_over(page: Any, served: Served, view: str, asked: str) -> None:
    held: list[Any] = []
    ended: list[str] = []
    page.route(f"**/api/{asked}", lambda route: held.append(route))
    page.on("requestfailed", lambda request: ended.append(request.url))
    bar = page.get_by_role("navigation", name="Views")
    bar.get_by_role("link", name=view.capitalize()).click()
    page.wait_for_timeout(300)
    bar.get_by_role("link", name="Design").click()
    page.get_by_label("start from").select_option("twenty")
    page.wait_for_url("**/design?preset=twenty")
    assert f"{served.base}/api/{asked}" in ended
    for route in held:
        route.continue_()
    page.wait_for_timeout(300)
    assert page.url == f"{served.base}/design?preset=twenty"
    # What is written for a view that was left has no effect, wherever it comes from.
    late = "import('/static/lib/address.js').then(({ writeState }) => writeState({ q: 1 }, AbortSignal.abort()))"
    page.evaluate(late)
    assert page.url == f"{served.base}/design?preset=twenty"


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("/nonsense", "There is no page /nonsense"),
        ("/mechanisms/performer", "There is no page /mechanisms/performer"),
        ("/runs/none", "there is no run 'none'"),
        ("/runs/..%2F..%2Fetc", "there is no run '../../etc'"),
        ("/runs?with=none", "there is no run 'none'"),
        ("/mechanisms?name=none", "there is no mechanism 'none'"),
    ],
)
def test_what_does_not_exist_is_said_in_place(page: Any, served: Served, link: str, said: str) -> None:
    answer = page.goto(served.base + link)
    page.locator("main .notice").get_by_text(said).wait_for(timeout=60_000)
    assert not PROGRESS.search(page.locator("main").inner_text())
    assert page.locator("#message").is_hidden()
    assert page.get_by_role("navigation", name="Views").get_by_role("link").count() == len(VIEWS)
    assert answer.status == (404 if "no page" in said else 200)
    with served.client() as client:
        assert client.get("/nonsense").json()["error"].startswith("there is nothing at /nonsense")


@pytest.mark.parametrize("link", LINKS)
def test_no_page_scrolls_sideways_on_a_phone(page: Any, served: Served, link: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(served.base + link)
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("link", LINKS)
def test_axe_finds_no_violation(page: Any, served: Served, link: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(served.base + link)
    settle(page)
    found = Axe().run(page).response["violations"]
    assert not found, "\n".join(
        f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary'][:300]}"
        for one in found
    )


def test_every_request_goes_to_this_server(page: Any, served: Served) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.context.route(re.compile(f"^(?!{re.escape(served.base)}|data:|blob:)"), lambda route: route.abort())
    for view in VIEWS:
        page.goto(f"{served.base}/{view}")
        settle(page)
        assert page.locator("main").inner_text().strip(), "never blank"
    assert not [url for url in asked if not url.startswith((served.base, "data:", "blob:"))]
