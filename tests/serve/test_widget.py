"""The widget's script in a blank page of Chromium, with the real widget behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import attnlab

KEYS, VALUES = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
MODEL = """
async ({ script, traits }) => {
  const acts = {};
  window.model = {
    get: (name) => traits[name],
    set: (name, value) => { traits[name] = value; },
    save_changes: () => window.saved(JSON.parse(JSON.stringify(traits))),
    send: async (content) => {
      const answer = await window.ask(content);
      (acts["msg:custom"] ?? []).forEach((act) => act(answer));
    },
    on: (name, act) => (acts[name] ??= []).push(act),
    off: () => {},
    change: (name, value) => { traits[name] = value; (acts[`change:${name}`] ?? []).forEach((act) => act()); },
  };
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  const el = document.createElement("div");
  document.body.append(el);
  module.default.render({ model: window.model, el });
}
"""


@pytest.fixture
def mounted(chromium: Any) -> Iterator[tuple[Any, Any, list[Any]]]:
    """A blank page with the widget, the widget in Python, and what the page has saved."""
    widget, saved, sent, problems = attnlab.design_widget(KEYS, VALUES), [], [], []
    widget.send = sent.append
    context = chromium.new_context(viewport={"width": 1100, "height": 800}, offline=True)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))

    def ask(content: Any) -> Any:
        widget._answer(widget, content, [])
        return sent.pop()

    page.expose_function("ask", ask)
    page.expose_function("saved", lambda traits: saved.append(traits))
    traits = {name: getattr(widget, name) for name in ("key_points", "value_points", "query", "scaled", "_style")}
    page.evaluate(MODEL, {"script": widget._esm, "traits": traits})
    page.locator(".playground").wait_for()
    yield page, widget, saved
    context.close()
    assert not problems


def test_a_point_that_moves_is_saved_and_a_query_that_is_set_is_shown(mounted: Any) -> None:
    page, _, saved = mounted
    page.locator(".keys [tabindex='0']").first.focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_timeout(200)
    assert saved
    assert saved[-1]["query"] != KEYS[0] or saved[-1]["key_points"] != KEYS
    before = page.locator(".side").inner_text()
    page.evaluate("window.model.change('query', [0, 8])")
    assert page.locator(".side").inner_text() != before


def test_the_solver_answers_in_the_widget(mounted: Any) -> None:
    page, widget, saved = mounted
    page.emulate_media(reduced_motion="reduce")
    page.locator(".solver .details select").select_option("1")
    page.get_by_role("button", name="Find a query").click()
    page.get_by_text("solved", exact=True).wait_for()
    assert widget.verdict["status"] == "solved"
    assert saved[-1]["query"] == pytest.approx(widget.verdict["query"], rel=1e-6)


def test_styles_of_the_widget_do_not_reach_the_notebook(mounted: Any) -> None:
    page, _, _ = mounted
    assert page.evaluate("getComputedStyle(document.body).fontFamily") != page.evaluate(
        "getComputedStyle(document.querySelector('div').shadowRoot.querySelector('.page')).fontFamily"
    )
