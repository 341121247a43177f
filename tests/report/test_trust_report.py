"""The report on trust says what its numbers say, also where there are none."""

from __future__ import annotations

import pytest
from made_up import make_trust

from attnlab.report.text import as_markdown
from attnlab.report.trust import (
    curve_chart,
    document,
    fallback_words,
    histogram_chart,
    outcome,
    reliability_chart,
    rules_table,
    stairs,
    summary_table,
    verdict_table,
)


def test_the_sentence_at_the_top() -> None:
    result = make_trust()
    assert result["rule"]["met"]
    said = outcome(result)
    assert "wrong in 10 % of its answers" in said
    assert f"answers {100 * result['groups'][0]['answered']['share']:.1f} % of 100 questions" in said
    assert "answering every question would be wrong in 20.0 %" in said
    assert "also answers 0.0 % of 20 names whose lines it never read" in said
    assert "invented" not in said
    few = outcome(make_trust(met=False))
    assert "could not be certified" in few
    assert "80.0 % of 100 questions" in few
    assert "answering every question would be wrong in 20.0 %" in few


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.08, 0.42, "clearly more than"), (0.01, 0.42, "cannot tell"), (0.01, 0.04, "clearly less than")],
)
def test_what_it_falls_back_on_is_claimed_only_where_the_interval_lies_apart(
    low: float, high: float, words: str
) -> None:
    result = make_trust()
    result["fallback"] |= {"low": low, "high": high}
    assert words in fallback_words(result)
    assert fallback_words({**result, "fallback": None}) == ""


def test_tables_leave_out_what_never_happened() -> None:
    result = make_trust()
    assert [row.name.text for row in verdict_table(result).rows] == ["recalled and supported", "never seen"]
    assert [row.name.text for row in summary_table(result).rows] == ["known", "withheld"]
    summary = summary_table(result)
    place = [column.title for column in summary.columns].index("Wrong of all") - 1
    assert [row.cells[place].text for row in summary.rows] == ["20.0 %", summary.rows[1].cells[place].text]
    assert rules_table(make_trust(met=False)).rows[0].cells[2].text == "not certified"


def test_charts_say_what_they_show() -> None:
    result = make_trust()
    assert [one.name for one in histogram_chart(result).series] == ["known names", "withheld names"]
    assert curve_chart(result).series[0].dots_name == "at the certified threshold"
    assert not curve_chart(make_trust(met=False)).series[0].dots
    assert "after calibration" in [one.name for one in reliability_chart(result).series]
    assert stairs([0.25, 0.75]) == ([0.0, 50.0, 50.0, 100.0], [25.0, 25.0, 75.0, 75.0])


def test_the_guarantee_and_its_limits_are_told() -> None:
    for result in (make_trust(), make_trust(met=False), {**make_trust(), "fallback": None, "separation": []}):
        text = as_markdown(document(result))
        assert "What the guarantee covers, and what it does not" in text
        assert "It does not cover names that were never seen" in text
        assert ("falls back on" in text) == (result["fallback"] is not None)
        assert ("Known or not" in text) == bool(result["separation"])
