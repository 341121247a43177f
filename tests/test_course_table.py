"""benchmarks/course.py: the rule, rows from real results, missing studies, and docs/course.md as it is written."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attnlab import registry
from attnlab.corpora import as_table, load_questions
from attnlab.measure import approximation
from attnlab.store.folders import write_folder
from attnlab.store.records import encode
from attnlab.studies.reports import Reports

ROOT = Path(__file__).parents[1]
NOWHERE = Path("nowhere")


@pytest.fixture(scope="module")
def course() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("course")


@pytest.fixture(scope="module")
def design(course: Any) -> Any:
    return course.design_rows()


@pytest.mark.parametrize(
    ("reported", "found", "how", "verdict"),
    [
        ([3_323_392], (3_323_392,), {}, "reproduces"),
        ([3_323_392], (3_323_393,), {}, "contradicts"),
        ([0.188, 0.210, 0.230], (0.25, 0.22, 0.28), {}, "reproduces"),  # the interval meets the reported range
        ([0.188, 0.230], (0.21, 0.20, 0.22), {"better": "higher"}, "reproduces"),  # within it
        ([0.230], (0.25, 0.24, 0.26), {"better": "higher"}, "exceeds"),
        ([0.230], (0.25, 0.24, 0.26), {}, "contradicts"),  # if neither direction is better
        ([0.230], (0.10, 0.08, 0.12), {"better": "higher"}, "contradicts"),
        ([5.7], (1.1, 1.0, 1.2), {"better": "lower"}, "exceeds"),
        ([0.230], (0.10, 0.08, 0.12), {"better": "higher", "cut": True}, "not comparable"),
        ([0.230], (0.23, 0.20, 0.26), {"better": "higher", "cut": True}, "not comparable"),
        ([0.230], (0.85, 0.82, 0.88), {"better": "higher", "cut": True}, "exceeds"),  # better in less time
        ([380.8], (119.4, 111.6, 127.8), {"better": "lower", "same_data": False}, "not comparable"),
    ],
)
def test_a_number_is_judged_by_its_interval(
    course: Any, reported: list[float], found: tuple[float, ...], how: dict[str, Any], verdict: str
) -> None:
    assert course.judge(reported, *found, **how) == verdict


def test_statements_are_judged(course: Any) -> None:
    assert [course.claim(holds) for holds in (True, False)] == ["reproduces", "contradicts"]
    assert [course.claim(holds, new=True) for holds in (True, False)] == ["exceeds", "contradicts"]
    found = [course.above_zero(*ends) for ends in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1))]
    assert found == ["reproduces", "contradicts", "not shown"]


def test_a_further_run_varies_more_than_the_mean(course: Any) -> None:
    """Of three draws from a normal distribution, the interval holds a fourth in 95 % of cases."""
    draws = np.random.default_rng(0).normal(300.0, 5.0, (4000, 4))
    for kind in ("loss", "perplexity"):
        found = [course.further_run(list(row[:3]), kind) for row in draws]
        held = np.mean([low <= last <= high for (_, low, high), last in zip(found, draws[:, 3], strict=True)])
        assert held == pytest.approx(0.95, abs=0.015)
    assert course.further_run([5.85], "loss") == (5.85, None, None)


def test_part_a_has_every_code_and_finds_the_mistakes_of_the_reports(design: Any) -> None:
    assert list(dict.fromkeys(row.code for row in design)) == [f"A{number}" for number in range(1, 13)]
    wrong = {row.said: row.found for row in design if row.verdict == "contradicts"}
    assert wrong["q = (k_a + k_b)/2, not scaled"] == "off by 0.186 (above 0.05)"
    assert "13.5 % of samples, 7.9 % at C = 1,000" in wrong["with two split heads the weight on v_a stays near 1/2"]
    assert "4 x 2" in wrong["M = A"]
    assert {"q_1 = q_2", "two equal heads swing less"} <= wrong.keys()
    assert "two split heads swing less" not in wrong


def test_the_page_has_part_a_as_it_is_computed(design: Any) -> None:
    lines = (ROOT / "docs/course.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| A") and line.count("|") > 4] == [row.line() for row in design]


def test_missing_studies_and_data_are_not_run_and_have_no_number(course: Any) -> None:
    lines = [line for line in course.page({}, NOWHERE) if re.match(r"\| [B-E]\d?.* \| ", line)]
    rows = [course.Row(*map(str.strip, line.strip("| ").split(" | "))) for line in lines if line.count(" | ") == 4]
    missing = [row for row in rows if row.verdict == "not run"]
    assert len(missing) == len(course.STUDIES)
    assert {row.found for row in missing} == {course.ABSENT}
    assert [row.code for row in rows if row.verdict == "reproduces"] == ["B1", "B6", "B7", "D"]  # computed without data
    assert [line.split("|")[2].strip() for line in course.times({}, 1.0)][1] == "not run: reports"


def test_the_page_has_the_rows_that_are_kept(course: Any) -> None:
    lines = (ROOT / "docs/course.md").read_text(encoding="utf-8").splitlines()
    kept = course.read_store()
    for name, one in kept.items():
        assert [row.line() for row in one.rows if row.line() not in lines] == [], name
    assert set(course.times(kept, 1.0)) - set(lines) <= {"| A | 1.0 s | |"}


def test_what_is_kept_comes_back_as_it_was(course: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = course.read_store()
    monkeypatch.setattr(course, "STORE", tmp_path / "course.json")
    assert course.read_store() == {}
    course.write_store(kept)
    assert course.read_store() == kept


def test_the_figures_of_the_corpora_are_those_of_the_reports(course: Any, data_folder: Path) -> None:
    rows = [*course.recall_rows({}, data_folder), *course.words_rows({}, data_folder)]
    rows += course.sentiment_rows({}, data_folder)
    exact = [row for row in rows if row.verdict != "not run"]
    assert len(exact) == 14
    assert all(row.verdict == "reproduces" for row in exact)


def test_a_study_of_recall_becomes_rows(course: Any, tmp_path: Path) -> None:
    """On other people and with few epochs, so that accuracies do not compare."""
    exam = tmp_path / "exam.tsv"
    exam.write_text("".join(line + "\n" for line in as_table(load_questions("people:60:test")[:3])))
    model = {"model": {"n_layer": 2, "n_embd": 16, "n_head": 2}}
    plan = Reports(corpus="people:60", facts="people:60:train", exam=str(exam), epochs=(2,), given=model)
    result = plan.begin(tmp_path / "reports", Console(quiet=True)).result
    kept = course.found_in(tmp_path)
    rows = list(course.rows_of(kept, "reports"))
    assert [row.code for row in rows] == ["B2", "B5", "B6", "B3", "B2", "B8"]
    assert {row.verdict for row in rows[:4]} == {"not comparable"}
    assert rows[1].said == "pretrained, 650 epochs: 18.8, 21.0, 23.0 %"
    assert rows[1].found.startswith("2 epochs: ")
    assert rows[0].command == result.command
    seconds = {name: run.seconds for name, run in result.runs.items()}
    scaled = sum(325 * one if name.endswith("-pretrain") else one for name, one in seconds.items())
    assert kept["reports"].whole == pytest.approx(scaled), "only pretraining was cut, from 650 epochs to 2"


def test_errors_of_features_become_rows(course: Any, tmp_path: Path) -> None:
    source = approximation.random_source((0.5, 2.0), tokens=32, width=8)
    measured = approximation.examine(registry.find("mechanism", "performer"), source, draws=3)
    write_folder(tmp_path / "performer-error", "approximation", {"error.json": encode(measured)})
    unstable, *differences = course.rows_of(course.found_in(tmp_path), "performer-error")
    assert unstable.verdict == "reproduces"
    assert len(differences) == 4
    assert {row.verdict for row in differences} <= {"reproduces", "not shown", "contradicts"}
    assert unstable.command == "attnlab mechanisms show performer --error --out RUNS/performer-error"
