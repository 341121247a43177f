"""The design view in a browser: dragging, the solver, noise, sheets, links."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any
from urllib.parse import parse_qs, urlparse
from xml.etree import ElementTree

import pytest
from serving import Served

_SLOW = 60_000  # milliseconds: the first question starts a process
_INSIDE = "/design?preset=inside&j=3"


def _open(page: Any, served: Served, path: str) -> None:
    page.goto(served.base + path)
    page.wait_for_selector(".playground")


def _handle(page: Any, name: str) -> Any:
    return page.get_by_role("slider", name=name, exact=True)


def _position(page: Any, name: str) -> tuple[float, float]:
    """Where a point is, as told to screen readers."""
    x, y = _handle(page, name).get_attribute("aria-valuetext").split(", ")
    return float(x), float(y)


def _drag(page: Any, name: str, dx: float, dy: float, steps: int = 20) -> None:
    box = _handle(page, name).locator(".hit").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx, y + dy, steps=steps)
    page.mouse.up()


def _weights(page: Any) -> list[float]:
    cells = page.locator(".weights tbody td:nth-child(4)").all_text_contents()
    return [float(cell.replace("−", "-")) for cell in cells]


def _reading(page: Any, name: str) -> str:
    return page.locator(".weights dl").locator(f"dt:text-is('{name}') + dd").inner_text()


def _solve(page: Any) -> Any:
    page.get_by_role("button", name="Find a query").click()
    box = page.locator(".verdict-box")
    box.locator(".badge").wait_for(timeout=_SLOW)
    return box


def test_dragging_the_query_moves_weights_output_and_margin(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    before, margin = _weights(page), _reading(page, "margin m")
    assert before[0] == max(before)
    output = page.locator(".output").get_attribute("transform")
    _drag(page, "Query", -230, 0)
    after = _weights(page)
    assert after[2] == max(after)
    assert sum(after) == pytest.approx(1, abs=0.002)
    assert page.locator(".output").get_attribute("transform") != output
    assert _reading(page, "margin m") != margin
    assert "k₂ leads" in _reading(page, "margin m")


def test_every_frame_of_a_drag_is_measured(page: Any, served: Served) -> None:
    """What the frames take is printed by benchmarks/serve.py."""
    _open(page, served, "/design?preset=twenty")
    page.evaluate("performance.clearMeasures('design-frame')")
    for dx, dy in ((-100, 30), (100, -30)):
        _drag(page, "Query", dx, dy, steps=30)
    assert page.evaluate("performance.getEntriesByName('design-frame').length") >= 10
    assert float(page.locator(".playground").get_attribute("data-frame-p95")) > 0


def test_a_long_query_makes_sharp_weights(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    page.get_by_role("textbox", name="Query scale").fill("60")
    assert _weights(page)[0] == pytest.approx(1, abs=0.01)
    page.get_by_role("textbox", name="Query scale").fill("x")
    assert page.get_by_text("must be a positive number").is_visible()


def test_points_move_with_the_arrow_keys_and_are_added_and_removed(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    x, y = _position(page, "Key 1")
    _handle(page, "Key 1").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    moved = _position(page, "Key 1")
    assert moved == pytest.approx((x + 0.01, y - 0.1))
    page.get_by_role("button", name="Add a point").click()
    assert len(_weights(page)) == 5
    page.get_by_role("button", name="Remove key 0 and value 0").click()
    _handle(page, "Value 3").focus()
    page.keyboard.press("Delete")
    assert len(_weights(page)) == 3


def test_a_finger_drags_points_and_not_the_page(chromium: Any, served: Served) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(served.link)
    page.wait_for_selector(".playground")
    page.evaluate("scrollTo(0, 300)")
    before = _position(page, "Query")
    box = _handle(page, "Query").locator(".hit").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    devtools = context.new_cdp_session(page)
    path = [(x - 8 * step, y + 6 * step) for step in range(13)]
    for kind, points in (("touchStart", path[:1]), *(("touchMove", [at]) for at in path[1:]), ("touchEnd", [])):
        at = [{"x": one[0], "y": one[1]} for one in points]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})
    page.wait_for_timeout(300)
    after = _position(page, "Query")
    assert after[0] < before[0] - 0.5
    assert after[1] < before[1] - 0.3
    assert page.evaluate("scrollY") == 300
    context.close()


def test_a_point_dragged_to_the_edge_gets_more_room(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    for _ in range(3):
        _drag(page, "Key 0", 300, 0, steps=5)
    assert _position(page, "Key 0")[0] > 1.5


def test_the_table_has_any_number_of_dimensions(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    page.get_by_label("dimensions of keys").select_option("5")
    page.get_by_label("dimensions of values").select_option("1")
    page.get_by_label("key 0, coordinate 5").fill("3")
    page.get_by_label("query before scaling, coordinate 5").fill("2")
    assert _weights(page)[0] == pytest.approx(1, abs=0.01)
    page.get_by_label("key 0, coordinate 5").fill("three")
    assert page.get_by_text("key 0, coordinate 5: write a number").is_visible()
    page.get_by_label("Vertical axis of the plane of keys").select_option("4")
    assert _position(page, "Key 0")[1] == 3
    page.get_by_label("dimensions of keys").select_option("1")
    _drag(page, "Key 1", 40, 40)
    assert _position(page, "Key 1")[1] == 0


def test_of_two_equal_keys_none_leads(page: Any, served: Served) -> None:
    _open(page, served, "/design?k=1,0;0,1&v=1,0;0,1&q=1,1")
    assert "share the lead" in _reading(page, "margin m")
    assert page.locator(".weights .leads").count() == 0


def test_the_texts_say_that_scores_are_divided(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    for on in (True, False):
        page.get_by_label("divide scores by √d").set_checked(on)
        assert ("q·k/√d" in page.locator(".weights thead").inner_text()) == on
        assert ("q·k/√d" in page.locator(".explain").inner_text()) == on
        assert ("√d × the margin" in page.locator(".plane-note").first.inner_text()) == on


def test_a_value_is_selected_and_the_query_moves_there(page: Any, served: Served) -> None:
    _open(page, served, "/design?j=3")
    verdict = _solve(page)
    assert verdict.locator(".badge").inner_text() == "solved"
    assert "Key 3 leads every other key by at least" in verdict.inner_text()
    assert "at most 0.01" in verdict.inner_text()
    assert "attnlab design select" in verdict.inner_text()
    page.wait_for_timeout(700)
    assert _weights(page)[3] == pytest.approx(1, abs=0.01)


def test_an_impossible_wish_gets_its_proof_in_words_and_in_the_plane(page: Any, served: Served) -> None:
    _open(page, served, _INSIDE)
    verdict = _solve(page)
    assert verdict.locator(".badge").inner_text() == "impossible"
    assert "0.3214·k₀ + 0.3214·k₁ + 0.3571·k₂" in verdict.inner_text()
    assert page.locator(".keys line.proof").count() == 3
    page.wait_for_url(re.compile("asked=1"))
    _drag(page, "Query", 40, 30)
    page.wait_for_timeout(400)
    query, link = _position(page, "Query"), page.url
    page.goto("about:blank")
    page.goto(link)
    verdict.locator(".badge").wait_for(timeout=_SLOW)
    assert verdict.locator(".badge").inner_text() == "impossible"
    assert page.locator(".keys line.proof").count() == 3
    assert _position(page, "Query") == query  # where the sender left it
    page.locator(".solver select").select_option("2")
    assert page.get_by_text("The points or the question have changed since").is_visible()
    page.locator(".solver select").select_option("3")
    assert page.get_by_text("The points or the question have changed since").is_hidden()
    _drag(page, "Key 3", 0, 30)
    assert page.locator(".keys line.proof").count() == 0
    assert page.get_by_text("The points or the question have changed since").is_visible()
    assert page.get_by_label("start from").input_value() == ""
    page.wait_for_timeout(400)
    assert "asked" not in page.url


def test_a_verdict_about_points_that_have_changed_moves_nothing(page: Any, served: Served) -> None:
    _open(page, served, _INSIDE)
    held: list[Any] = []
    page.route("**/api/design/solve", lambda route: held.append(route))
    page.get_by_role("button", name="Find a query").click()
    page.get_by_text("Solving …").wait_for()
    _drag(page, "Key 3", 0, 150)
    query = _position(page, "Query")
    assert page.get_by_text("The points or the question have changed since").is_hidden()
    held[0].continue_()
    page.locator(".verdict-box.stale .badge").wait_for(timeout=_SLOW)
    assert page.get_by_text("The points or the question have changed since").is_visible()
    assert "The query has moved" not in page.locator(".verdict-box").inner_text()
    page.wait_for_timeout(700)
    assert _position(page, "Query") == query
    assert page.locator(".keys line.proof").count() == 0


def test_values_are_averaged_with_weights(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    page.get_by_role("button", name="Average these").click()
    page.get_by_label("weights, such as").fill("1, 3")
    assert "0.25,0.75" in _solve(page).inner_text()
    page.get_by_label("weights, such as").fill("1")
    page.get_by_role("button", name="Find a query").click()
    assert page.get_by_text("Give 2 positive weights").is_visible()


def test_a_target_is_dragged_and_reached_or_refuted(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    assert _handle(page, "Target").count() == 0
    assert page.get_by_label("target, coordinate 1").count() == 0
    page.get_by_role("button", name="Reach this point").click()
    assert page.get_by_label("target, coordinate 1").count() == 1
    _drag(page, "Target", 20, -20)
    assert _solve(page).locator(".badge").inner_text() == "solved"
    page.wait_for_timeout(700)
    names = [page.locator(f".values-plane .{kind} .name").bounding_box() for kind in ("output", "target")]
    assert names[0]["y"] + names[0]["height"] <= names[1]["y"]  # one below the other
    _drag(page, "Target", 150, 20)
    page.get_by_role("button", name="Find a query").click()
    page.get_by_text("The target lies outside the hull of the values").wait_for(timeout=_SLOW)
    assert page.locator(".values-plane line.proof").count() == 2


def test_the_noise_experiment_runs_pauses_and_tells_the_share_of_failures(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    page.get_by_role("tab", name="Noise on a key").click()
    page.locator(".noise-chart").nth(2).wait_for(timeout=_SLOW)
    shares = page.locator(".noise-chart .share").all_inner_texts()
    assert [share.split()[0] for share in shares] == ["87.7", "87.7", "13.5"]
    page.get_by_text(re.compile(r"^1?\d of \d+ failed")).first.wait_for()
    page.get_by_role("button", name="Pause").click()
    said = page.locator(".noise-chart dl").first.inner_text()
    page.wait_for_timeout(400)
    assert page.locator(".noise-chart dl").first.inner_text() == said
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("strength C").fill("much")
    page.get_by_role("button", name="Run").click()
    assert page.get_by_text("strength C of the queries: write a number such as 10.").is_visible()


def test_all_samples_are_shown_at_once_where_motion_is_unwanted(page: Any, served: Served) -> None:
    page.emulate_media(reduced_motion="reduce")
    _open(page, served, "/design?tab=noise")
    page.get_by_text("of 400 failed").first.wait_for(timeout=_SLOW)


def test_a_proof_is_chosen_and_in_the_link(page: Any, served: Served) -> None:
    _open(page, served, "/design?tab=proofs&proof=rotary")
    page.get_by_role("heading", name="Rotary positions").wait_for(timeout=30_000)
    assert page.locator(".proof li").count() == 6
    assert "checked by algebra" in page.locator(".proof").inner_text()
    page.get_by_label("derivation").select_option("copying")
    page.get_by_role("heading", name="The copying bound").wait_for(timeout=30_000)
    page.wait_for_url("**proof=copying**")


def test_a_sheet_is_answered_by_dragging_and_by_typing(page: Any, served: Served) -> None:
    _open(page, served, "/design?tab=sheet&sheet=worked")
    first = page.locator(".task-card").first
    first.wait_for(timeout=_SLOW)
    first.get_by_role("button", name="Show in the planes").click()
    assert len(_weights(page)) == 4
    page.get_by_role("textbox", name="Query scale").fill("1")
    for coordinate, x in enumerate(("4.7", "6.5", "6"), start=1):
        page.get_by_role("tab", name="All numbers").click()
        page.get_by_label(f"query before scaling, coordinate {coordinate}").fill(x)
    page.locator(".current-task").get_by_role("button", name="Use the current query").click()
    page.get_by_role("tab", name="Answer a sheet").click()
    assert page.get_by_label("answer to select").input_value() == "[4.7, 6.5, 6]"
    page.get_by_label("answer to average two").fill("(K[0] + K[1])/2")
    page.get_by_role("button", name="Mark the answers").click()
    page.get_by_text("1 of 4 points; 2 of 4 tasks answered.").wait_for(timeout=_SLOW)
    assert first.locator(".badge").inner_text() == "passed"
    assert "off by 0.1855" in page.locator(".task-card").nth(3).inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as answers.toml").click()
    assert 'average two" = "(K[0] + K[1])/2"' in download.value.path().read_text()


def test_a_sheet_comes_from_a_file_or_is_pasted(page: Any, served: Served) -> None:
    _open(page, served, "/design?tab=sheet")
    text = b'title = "<img src=x onerror=alert(1)>"\n[[task]]\nname = "<b>"\nask = "number"\nvalue = 3\n'
    page.get_by_label("file (TOML)").set_input_files({"name": "s.toml", "mimeType": "text/plain", "buffer": text})
    page.get_by_label("answer to <b>").fill("3")
    page.get_by_role("button", name="Mark the answers").click()
    page.get_by_text("1 of 1 point;").wait_for(timeout=_SLOW)


def test_a_pasted_sheet_is_in_the_link(page: Any, served: Served) -> None:
    _open(page, served, "/design?tab=sheet")
    page.get_by_text("Paste a sheet").click()
    text = '[[task]]\nname = "größe"\nask = "select"\nindex = 1\nkeys = [[1, 0], [0, 1]]\nvalues = [[1, 0], [0, 1]]\n'
    page.get_by_label("text of the sheet").fill(text)
    page.get_by_role("button", name="Load the text").click()
    page.get_by_label("answer to größe").wait_for(timeout=_SLOW)
    page.wait_for_url(re.compile("toml="))
    page.get_by_label("answer to größe").fill("[0, 20]")
    page.wait_for_url(re.compile("answers="))
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.get_by_label("answer to größe").wait_for(timeout=_SLOW)
    page.wait_for_timeout(300)
    assert page.get_by_label("answer to größe").input_value() == "[0, 20]"
    page.get_by_role("button", name="Mark the answers").click()
    page.get_by_text("1 of 1 point;").wait_for(timeout=_SLOW)
    page.goto(served.base + "/design?tab=sheet&toml=damaged")
    page.get_by_text("The sheet in the link is damaged").wait_for(timeout=_SLOW)
    page.goto(served.base + "/design?tab=sheet&sheet=worked&answers=damaged")
    page.get_by_text("The answers in the link are damaged").wait_for(timeout=_SLOW)


def test_no_link_has_a_solution(page: Any, served: Served) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    _open(page, served, "/design?tab=sheet")
    text = '[[task]]\nname = "count"\nask = "number"\nvalue = 3323392  # secret\ntolerance = 0\n'
    page.get_by_label("file (TOML)").set_input_files(
        {"name": "s.toml", "mimeType": "text/plain", "buffer": text.encode()}
    )
    page.wait_for_url(re.compile("toml="))
    page.get_by_label("answer to count").fill("3323392")
    page.get_by_role("button", name="Mark the answers").click()
    page.get_by_text("1 of 1 point;").wait_for(timeout=_SLOW)
    page.get_by_role("button", name="Copy link for students").click()
    page.get_by_text("copied", exact=True).wait_for()
    page.wait_for_timeout(300)
    link = page.evaluate("navigator.clipboard.readText()")
    assert list(parse_qs(urlparse(link).query)) == ["tab", "toml"]
    assert "answers" not in parse_qs(urlparse(page.url).query)  # a teacher's answers are solutions
    for address in (link, page.url):
        packed = parse_qs(urlparse(address).query)["toml"][0]
        unpacked = zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), -15).decode()
        assert 'ask = "number"' in unpacked
        assert "3323392" not in unpacked
        assert "secret" not in unpacked
    page.goto("about:blank")
    page.goto(link)
    page.get_by_text("Marked by your teacher").wait_for(timeout=_SLOW)
    page.get_by_label("answer to count").fill("7")
    page.wait_for_url(re.compile("answers="))  # a student's own
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as answers.toml").click()
    assert download.value.path().read_text() == '"count" = 7\n'


def test_planes_noise_and_tables_are_exported(page: Any, served: Served) -> None:
    page.emulate_media(reduced_motion="reduce", color_scheme="dark")
    _open(page, served, "/design?tab=noise")
    page.get_by_text("of 400 failed").first.wait_for(timeout=_SLOW)
    for title in ("Keys and query", "Values and output", "Noise, one head"):
        group = page.get_by_role("group", name=f"Export: {title}", exact=True)
        with page.expect_download() as download:
            group.get_by_role("button", name="SVG").click()
        drawn = download.value.path().read_text(encoding="utf-8")
        assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
        assert "class=" not in drawn  # it has its style in itself
        assert 'fill="rgb(255, 255, 255)"' in drawn  # for print, whatever the page looks like
        with page.expect_download() as download:
            group.get_by_role("button", name="PNG").click()
        assert download.value.path().read_bytes().startswith(b"\x89PNG")
    page.get_by_role("tab", name="All numbers").click()
    for title, name, row in (
        ("Scores and weights of all keys", "scores-and-weights-of-all-keys", "k₀,1.38,"),
        ("Keys, values and query", "keys-values-and-query", "q ÷ scale,0.6,0.5,,"),
    ):
        with page.expect_download() as download:
            page.get_by_role("group", name=f"Export: {title}").get_by_role("button", name="CSV").click()
        assert download.value.suggested_filename == f"{name}.csv"
        assert f"\n{row}" in download.value.path().read_text(encoding="utf-8")


def test_an_empty_sheet_is_refused_in_one_line(page: Any, served: Served) -> None:
    _open(page, served, "/design?tab=sheet")
    page.get_by_text("Paste a sheet").click()
    page.get_by_label("text of the sheet").fill("   ")
    page.get_by_role("button", name="Load the text").click()
    assert page.get_by_text("The sheet is empty").is_visible()


def test_a_link_restores_what_its_sender_saw(page: Any, served: Served) -> None:
    _open(page, served, _INSIDE)
    _drag(page, "Query", 40, 30)
    page.get_by_role("button", name="Average these").click()
    page.get_by_label("v₂").check()
    page.wait_for_url(re.compile("i=0%2C1%2C2"))
    link, weights, query = page.url, _weights(page), _position(page, "Query")
    state = parse_qs(urlparse(link).query)
    assert state["do"] == ["average"]
    assert state["i"] == ["0,1,2"]
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".playground")
    assert _weights(page) == weights
    assert _position(page, "Query") == query
    assert page.get_by_label("v₂").is_checked()
    assert page.get_by_role("button", name="Average these").get_attribute("aria-pressed") == "true"


def test_a_link_is_copied(page: Any, served: Served) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    _open(page, served, "/design?preset=twenty")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("copied", exact=True).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == f"{served.base}/design?preset=twenty"


def test_leaving_the_view_leaves_the_address_of_the_next_one_alone(page: Any, served: Served) -> None:
    _open(page, served, "/design?preset=inside")
    _handle(page, "Query").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("link", name="Mechanisms").click()
    page.wait_for_timeout(500)
    assert page.url == f"{served.base}/mechanisms"


@pytest.mark.parametrize(
    "query", ["k=1;x&v=1;2", "k=1,2&v=1&q=a&c=-1&tol=x&i=99&j=99&tab=none", "preset=none&do=dance"]
)
def test_a_link_with_nonsense_still_opens(page: Any, served: Served, query: str) -> None:
    _open(page, served, f"/design?{query}")
    assert sum(_weights(page)) == pytest.approx(1, abs=0.002)


@pytest.mark.parametrize(
    "path", ["/design?preset=twenty", "/design?preset=worked", "/design?tab=sheet&sheet=worked", "/design?tab=proofs"]
)
def test_nothing_is_wider_than_a_phone(page: Any, served: Served, path: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    _open(page, served, path)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("height", [844, 664])
def test_both_planes_are_seen_while_a_point_is_dragged_on_a_phone(page: Any, served: Served, height: int) -> None:
    page.set_viewport_size({"width": 390, "height": height})
    _open(page, served, "/design")
    page.locator(".keys figcaption").evaluate("(node) => scrollTo(0, node.getBoundingClientRect().top + scrollY - 100)")
    planes = [page.locator(f"{place} svg.plane").bounding_box() for place in (".keys", ".values-plane")]
    assert all(box["y"] >= 90 and box["y"] + box["height"] <= height for box in planes)
    before = _weights(page)
    query = page.locator(".handle.query .ring").bounding_box()
    x, y = query["x"] + query["width"] / 2, query["y"] + query["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y + 80, steps=4)
    page.mouse.up()
    assert _weights(page) != before


def test_terms_are_explained_by_hovering_and_by_focus(page: Any, served: Served) -> None:
    _open(page, served, "/design")
    term, meaning = page.locator("dfn", has_text="softmax"), page.get_by_role("tooltip")
    term.hover()
    assert "divided by the sum over all keys" in meaning.inner_text()
    page.keyboard.press("Escape")
    assert meaning.count() == 0
    term.focus()
    assert meaning.is_visible()
    assert term.get_attribute("aria-describedby") == meaning.get_attribute("id")
    page.locator("dfn", has_text="query").focus()
    assert "The vector of the token that looks" in meaning.inner_text()
    assert page.locator("dfn", has_text=re.compile("^scores?$")).count() == 1, "each term is marked once"
