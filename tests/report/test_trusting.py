"""The report on trust says what its numbers say, also where there are none."""

from __future__ import annotations

from typing import Any

import pytest
from attnlab.report.trusting import fallback_words, limits, outcome, rules_table, summary_table, verdict_table
from attnlab.report.trusting_charts import curve_figure, histogram_figure, reliability_figure, stairs
from attnlab.report.trusting_page import trust_markdown, trust_page

from attnlab import stats
from attnlab.corpora import Question
from attnlab.studies.trust import Asked, curve, describe_group, separation


def group(name: str, confidence: list[float], right: list[bool], verdict: str) -> Asked:
    questions = tuple(Question(f"Where was {name} <{n}> born?", "York" if ok else "Bath") for n, ok in enumerate(right))
    count, sure = len(right), tuple(confidence)
    unsure, held = tuple(1 - one for one in sure), tuple(verdict == "never seen" for _ in right)
    return Asked(name, questions, ("York",) * count, sure, sure, unsure, sure, (verdict,) * count, ("",) * count, held)


def made(max_risk: float = 0.1, met: bool = True) -> dict[str, Any]:
    """A result as the study makes it, of 100 known names of which the 80 surest are right."""
    sure = [0.99 - n / 1000 for n in range(80)] + [0.4 - n / 1000 for n in range(20)]
    right = [True] * 80 + [False] * 20
    known = group("known", sure, right, "recalled and supported")
    withheld = group("withheld", [0.3 + n / 100 for n in range(20)], [False] * 20, "never seen")
    rule = stats.selective_rule(sure if met else sure[:4], right if met else right[:4], max_risk)
    kept = stats.calibration(sure, right)
    rules = [vars(rule) | {"chosen_on": {}, "certified_on": {}}]
    found = {"count": 4, "of": 20, "share": 0.2, "low": 0.08, "high": 0.42, "chance": 0.05, "examples": []}
    return {
        "study": "trust",
        "title": "Does it know?",
        "command": "attnlab run trust",
        "finished": "2030-01-01",
        "seconds": 61.0,
        "world": {"corpus": "people", "documents": 2800, "quick": False},
        "max_risk": max_risk,
        "rule": rules[0],
        "groups": [describe_group(one, rule.threshold) for one in (known, withheld)],
        "accuracy": 0.8,
        "separation": separation(known, withheld),
        "curve": curve(known),
        "reliability": {
            name: vars(kept) | {"table": [vars(one) for one in kept.table]} for name in ("before", "after")
        },
        "fallback": found,
        "calibration": {"questions": 100, "temperature": 1.5, "rules": rules},
        "runs": {},
        "environment": {"attnlab": "0", "processor": "one"},
    }


def test_the_sentence_at_the_top() -> None:
    result = made()
    assert result["rule"]["met"]
    said = outcome(result)
    assert "wrong in 10 % of its answers" in said
    assert f"answers {100 * result['groups'][0]['answered']['share']:.1f} % of 100 questions" in said
    assert "of 20 names whose lines it never read 0.0 %" in said
    assert "invented" not in said
    few = outcome(made(met=False))
    assert "could not be certified" in few
    assert "80.0 % of 100 questions" in few


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.08, 0.42, "clearly more than"), (0.01, 0.42, "cannot tell"), (0.01, 0.04, "clearly less than")],
)
def test_what_it_falls_back_on_is_claimed_only_where_the_interval_lies_apart(
    low: float, high: float, words: str
) -> None:
    result = made()
    result["fallback"] |= {"low": low, "high": high}
    assert words in fallback_words(result)
    assert fallback_words({**result, "fallback": None}) == ""


def test_tables_leave_out_what_never_happened() -> None:
    result = made()
    assert [row.name.text for row in verdict_table(result).rows] == ["recalled and supported", "never seen"]
    assert [row.name.text for row in summary_table(result).rows] == ["known", "withheld"]
    assert rules_table(made(met=False)).rows[0].cells[2].text == "not certified"
    assert any("never seen" in line for line in limits(result))


def test_charts_say_what_they_show() -> None:
    result = made()
    assert "known names" in str(histogram_figure(result).wide)
    assert "at the certified threshold" in str(curve_figure(result).small)
    assert "at the certified threshold" not in str(curve_figure(made(met=False)).small)
    assert "after the temperature" in str(reliability_figure(result).wide)
    assert stairs([0.25, 0.75]) == ([0.0, 50.0, 50.0, 100.0], [25.0, 25.0, 75.0, 75.0])


def test_page_and_markdown_hold_the_same_and_nobodys_markup() -> None:
    for result in (made(), made(met=False), {**made(), "fallback": None, "separation": []}):
        page, text = trust_page(result), trust_markdown(result)
        assert "known &lt;0&gt; born" in page
        assert "known <0>" not in text
        for shown in (page, text):
            assert "Promised and kept" in shown
            assert "It does not cover names that were never seen" in shown
