"""The report on trust says what its numbers say, also where there are none."""

from __future__ import annotations

from dataclasses import replace

from made_up import make_trust

from attnlab.report.document import Chart, Document, Table
from attnlab.report.text import as_markdown
from attnlab.studies.trust import Trust, TrustResult, outcome


def report(result: TrustResult) -> Document:
    return Trust().document(result)


def table(result: TrustResult, title: str) -> Table:
    return next(table for table in report(result).tables() if table.title == title)


def test_the_sentences_at_the_top() -> None:
    result = make_trust()
    assert result.calibration.rules[0].met
    sentences = outcome(result.groups, result.calibration.rules[0])
    assert sentences[0].startswith("Allowed to be wrong in 10 % of its answers, the model answers 8")
    assert "of 100 questions" in sentences[0]
    assert "answering every question, it would be right in 80.0 % (" in sentences[0]
    assert sentences[1].startswith("Its confidence tells known from withheld names with an area under the ROC curve")
    assert sentences[1].endswith("By its confidence alone it also answers 0.0 % (0.0 to 16.1 %) of 20 such names.")
    assert len(sentences) == 2
    unmet = make_trust(met=False)
    few = outcome(unmet.groups, unmet.calibration.rules[0])
    assert "could not be certified" in few[0]
    assert "80.0 % (71.1 to 86.7 %) of 100 questions" in few[0]
    assert len(few) == 2


def test_tables_leave_out_what_never_happened() -> None:
    result = make_trust()
    assert [row.name.text for row in table(result, "Verdicts").rows] == ["recalled and supported", "never seen"]
    summary = table(result, "Results")
    assert [row.name.text for row in summary.rows] == ["known", "withheld"]
    place = [column.title for column in summary.columns].index("AUROC") - 1
    assert [row.cells[place].text for row in summary.rows] == ["–", f"{result.groups[1].auroc.value:.3f}"]  # type: ignore[union-attr]


def test_the_chart_shows_the_certified_threshold() -> None:
    curve, unmet = (
        next(block for block in report(make_trust(met=met)).blocks() if isinstance(block, Chart))
        for met in (True, False)
    )
    assert curve.series[0].dots_name == "at the certified threshold"
    assert curve.series[0].y[-1] == 20.0
    assert not unmet.series[0].dots


def test_the_guarantee_and_its_limits_are_told() -> None:
    for result in (make_trust(), make_trust(met=False), replace(make_trust(), fallback=[])):
        text = as_markdown(report(result))
        assert "What the guarantee covers, and what it does not" in text
        assert "It does not cover names that were never seen" in text
        assert result.calibration.rules[0].words.split(".")[0] in text
        assert ("falls back on" in text) == (result.fallback != [])
