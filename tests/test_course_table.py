"""benchmarks/course.py: the rule, figures from real results, and docs/course.md in step with docs/course.json."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from rich.console import Console

from attnlab import registry
from attnlab.corpora import as_table, load_questions
from attnlab.measure import approximation
from attnlab.store.folders import write_folder
from attnlab.store.records import encode
from attnlab.studies.reports import Reports
from test_package import understood

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def course() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("course")


@pytest.fixture(scope="module")
def parts(course: Any) -> Any:
    return course.parts(course.read_store())


@pytest.fixture(scope="module")
def rows(parts: Any) -> Any:
    return [row for each in parts.values() for row in each]


# The rule


@pytest.mark.parametrize(
    ("reported", "found", "better", "verdict"),
    [
        ([0.006, 0.020], ("share", 0.024, 0.014, 0.041), "neither", "compatible"),  # contains one of them
        ([0.006, 0.020], ("share", 0.013, 0.010, 0.016), "neither", "cannot tell"),  # contains neither
        ([0.006, 0.020], ("share", 0.054, 0.014, 0.074), "neither", "cannot tell"),  # contains it, but is too wide
        ([0.230], ("share", 0.25, 0.24, 0.26), "neither", "differs"),
        ([0.230], ("share", 0.25, 0.24, 0.26), "higher", "better"),
        ([0.230], ("share", 0.10, 0.08, 0.12), "higher", "differs"),
        ([0.230], ("share", 0.23), "higher", "cannot tell"),  # without an interval
        ([5.7], ("ratio", 1.1, 0.8, 1.4), "lower", "better"),  # wide, but wholly beyond
        ([5.7], ("ratio", 1.1, 0.8, 1.4), "neither", "differs"),
        ([0.5], ("ratio", 0.53, 0.44, 0.62), "neither", "compatible"),
        ([8.0], ("ratio", 7.0, 4.0, 9.0), "neither", "cannot tell"),  # by factors
        ([5.2], ("gap", 0.07, -5.68, 5.82), "neither", "cannot tell"),
    ],
)
def test_a_number_is_judged_by_its_interval(
    course: Any, reported: list[float], found: tuple[Any, ...], better: str, verdict: str
) -> None:
    assert course.judge(reported, course.Figure(*found), better=better) == verdict


def test_several_figures_must_agree(course: Any) -> None:
    near, far = course.Figure("loss", 5.0, 4.95, 5.05), course.Figure("loss", 6.0, 5.95, 6.05)
    assert course.judge([5.0], near, near) == "compatible"
    assert course.judge([5.0], near, far) == "cannot tell"


def test_a_direction_is_shown_by_an_interval_on_one_side(course: Any) -> None:
    found = [course.shown(course.Figure("difference", 1.0, *ends)) for ends in ((0.1, 9.0), (-9.0, -0.1), (-0.1, 9.0))]
    assert found == ["compatible", "differs", "cannot tell"]
    factor = course.Figure("factor", 0.5, 0.4, 0.6)
    assert [course.shown(factor, above=above) for above in (False, True)] == ["compatible", "differs"]


def test_counted_numbers_are_equal_or_not(course: Any) -> None:
    assert [course.equal(3_323_392, found) for found in (3_323_392, 3_323_393)] == ["same number", "differs"]
    assert course.equal(1.41, 1.411056, 2) == "same number"


def test_a_further_run_varies_more_than_the_mean(course: Any) -> None:
    """Of three draws from a normal distribution, the interval holds a fourth in 95 % of cases."""
    draws = np.random.default_rng(0).normal(300.0, 5.0, (4000, 4))
    for kind in ("loss", "perplexity"):
        found = [course.further_run(list(row[:3]), kind) for row in draws]
        held = np.mean([one.low <= last <= one.high for one, last in zip(found, draws[:, 3], strict=True)])
        assert held == pytest.approx(0.95, abs=0.015)
    assert course.further_run([5.85], "loss") == course.Figure("loss", 5.85)


# The page


def test_the_page_is_in_step_with_its_data(course: Any) -> None:
    assert (ROOT / "docs/course.md").read_text(encoding="utf-8") == course.page(course.read_store())


def test_every_compatible_row_has_a_narrow_interval(course: Any, rows: Any) -> None:
    """Computed from the figures and the widths of the page, not by the function that judges."""
    compatible = [row for row in rows if row.verdict == "compatible"]
    assert len(compatible) > 5
    for row in compatible:
        assert row.figures, row.said
        for one in row.figures:
            kind = course.KINDS[one.kind]
            assert one.low < one.high, row.said
            if kind.width is None:
                assert one.low > kind.null or one.high < kind.null, row.said
            else:
                spread = math.exp(math.log(one.high) - math.log(one.low)) if kind.by_factor else one.high - one.low
                assert spread < kind.width, row.said


def test_verdicts_are_from_the_list_and_no_claim_is_repeated(course: Any, rows: Any) -> None:
    assert {row.verdict for row in rows} <= set(get_args(course.Verdict)) == course.VERDICTS.keys()
    claims = Counter(re.sub(r"\W+", " ", row.said.lower()).strip() for row in rows)
    assert claims.most_common(1)[0][1] == 1
    assert Counter(row.key for row in rows if row.key).most_common(1)[0][1] == 1


def test_the_page_begins_with_the_claims_that_readers_ask_about(course: Any, rows: Any) -> None:
    assert 12 <= len(course.SUMMARY) <= 15
    head, *lines = course.summary_lines(rows)
    assert head.startswith("| they said | we get | so |")
    assert len(lines) == len(course.SUMMARY), "a claim names a row that is not there"
    text = (ROOT / "docs/course.md").read_text(encoding="utf-8")
    assert text.index(lines[-1]) < text.index("## A.") < text.index("```bash"), "commands are in the appendix"


def test_part_a_has_every_code_and_finds_the_mistakes_of_the_reports(parts: Any) -> None:
    design = parts["A"]
    assert list(dict.fromkeys(row.code for row in design)) == [f"A{number}" for number in range(1, 13)]
    wrong = {row.said: row.found for row in design if row.verdict == "differs"}
    assert wrong["one report: q = (k_a + k_b)/2, not scaled"] == "off by 0.186 (above 0.05)"
    assert "13.5 % of samples; 7.9 % at C = 1,000" in wrong["with two such heads the weight on v_a stays near 1/2"]
    assert "4 x 2" in wrong["one report: M = A"]
    assert "one report: q_1 = q_2 helps" in wrong
    assert len(wrong) == 5


def test_what_the_reports_do_not_say_counts_neither_way(rows: Any) -> None:
    for row in rows:
        assert row.said.startswith("(") == (row.verdict == "added"), row.said


def test_the_rows_say_which_of_several_numbers_an_interval_contains(course: Any, rows: Any) -> None:
    found = course.Figure("share", 0.024, 0.014, 0.041)
    text = "the interval contains their 2.0 % and lies above their 0.6 % and 1.2 %"
    assert course.beside((0.006, 0.012, 0.020), found) == text
    assert course.beside((0.230,), found) == "the interval lies below their 23.0 %"
    (row,) = (row for row in rows if row.key == "alone")
    assert text in row.found
    assert text in row.short


def test_a_conclusion_is_written_for_the_verdicts_that_it_follows_from(course: Any, rows: Any) -> None:
    changed = [dataclasses.replace(row, verdict="better") if row.key == "rank" else row for row in rows]
    with pytest.raises(AssertionError, match="No conclusion is written for: better and added"):
        list(course.summary_lines(changed))


def test_conclusions_in_rows_follow_from_their_figures(course: Any) -> None:
    def one(p: float, gap: float) -> Any:
        figures = {name: course.Figure("share", 0.5, 0.4, 0.6) for name in ("dot", "perceiver", "synthesizer")}
        for name in ("perceiver", "synthesizer"):
            figures[f"{name} minus dot"] = course.Figure("points", gap, gap - 0.1, gap + 0.1)
        return course.Kept("", figures, {"p": {"perceiver": p, "synthesizer": p}})

    assert all("p = 0.4: no difference shown" in row.found for row in course.remembered_rows(one(0.4, 0.05)))
    assert all("p = 0.01: a difference" in row.found for row in course.remembered_rows(one(0.01, 0.3)))

    def optimizers(low: float) -> str:
        gap = course.Figure("points", 0.04, low, 0.1)
        figures = dict.fromkeys(("adamw", "sgd", "adagrad"), course.Figure("share", 0.5, 0.4, 0.6))
        (row,) = course.optimizers_rows(course.Kept("", {**figures, "adagrad minus adamw": gap}))
        return str(row.found)

    assert optimizers(-0.1).endswith("not settled")
    assert not optimizers(0.01).endswith("not settled")


def test_invalid_and_open_rows_say_so(course: Any, rows: Any) -> None:
    named = {row.key: row for row in rows if row.key}
    assert "invalid" in named["mask"].found
    assert "1.0 GB" in named["bigbird"].found
    kept = course.read_store()
    for code in ("B5", "B6", "B9"):
        if code not in kept or "650" not in kept[code].figures:
            assert named[code].verdict == "cannot tell"
            assert re.fullmatch(r"open: \d+ of 650 epochs reached.*", named[code].found)


# Part F


def test_every_command_of_newer_courses_is_understood_and_every_test_exists(course: Any) -> None:
    kept = course.read_store()
    assert len(course.items(kept)) >= 13
    for item in course.items(kept):
        assert item.typed(kept), item.topic
        assert all(understood(command) for command in item.typed(kept))
        assert (ROOT / item.test).is_file(), item.test
    for one in course.PARITIES:
        file, _, name = one.test.partition("::")
        (body,) = re.findall(
            rf"^def {name}\(.*?(?=^def |^@|\Z)", (ROOT / file).read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        for most in one.most.split(", "):
            assert ("equal(" in body or "==" in body) if most == "equal" else most in body, (name, most)


def test_newer_courses_have_no_verdicts_and_count_nowhere(course: Any, rows: Any) -> None:
    text = (ROOT / "docs/course.md").read_text(encoding="utf-8")
    counted = re.findall(r"^\| \*\*[a-z ]+\*\* \| .* \| (\d+) \|$", text, flags=re.MULTILINE)
    assert sum(map(int, counted)) == len(rows)
    (part,) = re.findall(r"^## F\..*?(?=^## )", text, flags=re.DOTALL | re.MULTILINE)
    assert (
        len(re.findall(r"^\| ", part, flags=re.MULTILINE))
        == len(course.items(course.read_store())) + len(course.PARITIES) + 2
    )
    assert not [row for row in rows if row.line() in part]
    assert set(re.findall(r"\| ([a-z ]+) \|$", part, flags=re.MULTILINE)) == {"tested in", "test"}


def changed(name: str, ratio: float, p: float, below: str = "baseline") -> dict[str, Any]:
    read = {"sentences": 267, "seeds": 3}
    effect = {"value": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "p": p, "perplexities": read}
    return {"a": name, "b": below, "effect": effect, "adjusted": None}


def test_changes_become_findings_with_their_trials(course: Any, tmp_path: Path) -> None:
    tried = {"baseline": (20.0, 10.0, 15.0), "model.norm=none": (90.0, 40.0, 13.0), "model.positions=none": (9, 12, 30)}
    tuning = {
        "items": 133,
        "chosen": dict.fromkeys(tried),
        "trials": [
            {"variant": name, "values": {"train.lr": rate}, "figure": figure}
            for name, each in tried.items()
            for rate, figure in zip((0.002, 0.006, 0.018), each, strict=True)
        ],
    }
    result = {
        "variants": [
            {"name": name, "values": {"dev_token_perplexity": {"mean": mean}}}
            for name, mean in (("baseline", 10.0), ("model.norm=none", 13.0), ("model.positions=none", 9.5))
        ],
        "comparisons": [changed("model.norm=none", 1.3, 0.001), changed("model.positions=none", 0.95, 0.4)],
        "tuning": tuning,
    }
    write_folder(tmp_path / "ablations", "study", {"result.json": json.dumps(result).encode()})
    write_folder(
        tmp_path / "ablations-cumulative", "study", {"result.json": json.dumps({**result, "tuning": None}).encode()}
    )
    kept = course.found_in(tmp_path)
    norms, positions = (course.changes_found(kept["ablations"], name) for name in ("model.norm", "model.positions"))
    assert norms == "baseline 10.0; `model.norm=none` 13.0: 30.0 % (20.0 to 40.0 %) (267 stories x 3 seeds)"
    assert "9.5: -5.0 % (-15.0 to 5.0 %), no difference shown" in positions
    rates = course.rates_found(kept["ablations"])
    assert "0.002: 20.0, 0.006: 10.0 and 0.018: 15.0. Best: 0.002 for model.positions=none; 0.006 for baseline" in rates
    assert rates.endswith("perhaps not its best: model.norm=none and model.positions=none")
    assert "trials" not in kept["ablations-cumulative"].facts


def test_heads_of_a_model_become_a_finding(course: Any) -> None:
    ends = ((1, 0.1, -0.9, -0.8), (2, 0.85, -0.1, 0.05))
    heads = [
        {"layer": 1, "head": at, "value": left, "change": low, "low": low, "high": high} for at, left, low, high in ends
    ]
    found = course.heads_found(course.read_heads({"heads": heads, "value": 0.9, "items": 200}))
    assert found.startswith(
        "90.0 % of 200 held-out sums right; without layer 1, head 1 10.0 %, without layer 1, head 2 85.0 %"
    )
    assert "1 of the 2 heads are needed" in found


def test_without_studies_the_page_has_what_is_computed(course: Any) -> None:
    found = course.parts({})
    assert [row.code for row in found["B"]] == ["B5", "B6", "B9"]
    assert {row.found for row in found["B"]} == {"open: 0 of 650 epochs reached; [begin](#commands)"}
    assert found["C"] == found["D"] == found["E"] == []
    assert [row.code for row in found["appendix"]] == ["B1", "B6", "B9", "D", "B7"]
    assert "not run: reports" in course.page({})
    assert "Ablations:" not in course.page({})
    assert [item.topic for item in course.items({}) if item.study] == []


def test_what_is_kept_comes_back_as_it_was(course: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, text = course.read_store(), course.STORE.read_text(encoding="utf-8")
    monkeypatch.setattr(course, "STORE", tmp_path / "course.json")
    assert course.read_store() == {}
    course.write_store(kept)
    assert course.read_store() == kept
    assert course.STORE.read_text(encoding="utf-8") == text


# Reading results


def test_the_figures_of_the_corpora_are_those_of_the_reports(course: Any, data_folder: Path) -> None:
    counted = course.counted(data_folder)
    assert counted == course.read_store()["counts"]
    rows = list(course.count_rows({"counts": counted}))
    assert len(rows) == 15
    assert {row.verdict for row in rows} == {"same number", "done"}


def test_a_study_of_recall_becomes_rows(course: Any, tmp_path: Path) -> None:
    """On other people and with few epochs, so that accuracies do not compare."""
    exam = tmp_path / "exam.tsv"
    exam.write_text("".join(line + "\n" for line in as_table(load_questions("people:60:test")[:3])))
    model = {"model": {"n_layer": 2, "n_embd": 16, "n_head": 2}}
    plan = Reports(corpus="people:60", facts="people:60:train", exam=str(exam), epochs=(2,), given=model)
    result = plan.begin(tmp_path / "reports", Console(quiet=True)).result
    kept = course.found_in(tmp_path)
    rows = course.parts(kept)["B"]
    assert [row.code for row in rows] == ["B2", "B2", "B3", "B8", "B5", "B6", "B9"]
    assert {row.verdict for row in rows} == {"cannot tell"}
    assert rows[3].found.startswith("after 2 compressed epochs ")
    assert kept["reports"].command == f"{course.STUDIES['reports'].command} --out RUNS/reports"
    seconds = {name: run.seconds for name, run in result.runs.items()}
    scaled = sum(325 * one if name.endswith("-pretrain") else one for name, one in seconds.items())
    assert kept["reports"].whole == pytest.approx(scaled), "only pretraining was cut, from 650 epochs to 2"


def test_a_long_pretraining_is_open_until_it_is_examined(course: Any, tmp_path: Path) -> None:
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain/metrics.jsonl").write_text('{"progress": 0.01}\n{"progress": 0.2}\n')
    kept = {"B5": course.read_long("B5", tmp_path)}
    end = "; continue with `attnlab resume runs/b5/pretrain`"
    assert course.long_row(kept, "B5").found == "open: 130 of 650 epochs reached" + end

    def examine(epochs: int, correct: int) -> Any:
        low, high = course.stats.proportion_interval(correct, 500)
        summary = {"accuracy": correct / 500, "low": low, "high": high}
        write_folder(tmp_path / f"exam-{epochs}", "evaluation", {"result.json": json.dumps(summary).encode()})
        return course.long_row({"B5": course.read_long("B5", tmp_path)}, "B5")

    row = examine(50, 5)
    assert row.found.endswith(f"reached; after 50 epochs 1.0 % (0.4 to 2.3 %) of 500 other people{end}")
    assert row.verdict == "cannot tell"
    row = examine(650, 300)
    assert row.verdict == "differs"
    end = "500 other people: the interval lies above their 18.8 %, 21.0 % and 23.0 %"
    assert row.found.endswith(f"after 650 epochs 60.0 % (55.6 to 64.2 %) of {end}")


def test_errors_of_features_become_rows(course: Any, tmp_path: Path) -> None:
    source = approximation.random_source((0.5, 2.0), tokens=32, width=8)
    measured = approximation.examine(registry.find("mechanism", "performer"), source, draws=3)
    write_folder(tmp_path / "performer-error", "approximation", {"error.json": encode(measured)})
    kept = course.found_in(tmp_path)
    unstable, *differences = course.parts(kept)["C"]
    assert unstable.said.startswith("trigonometric features are unstable")
    assert sum(len(row.figures) for row in differences) == 4
    assert kept["performer-error"].command == "attnlab mechanisms show performer --error --out RUNS/performer-error"


def test_errors_of_projections_become_rows(course: Any, tmp_path: Path) -> None:
    source = approximation.random_source((0.5, 2.0), tokens=64, width=8)
    measured = approximation.examine(registry.find("mechanism", "linformer"), source, draws=3)
    write_folder(tmp_path / "linformer-error", "approximation", {"error.json": encode(measured)})
    kept = course.found_in(tmp_path)["linformer-error"]
    rank, projected, own = course.low_rank_rows(kept)
    assert (rank.key, projected.key, own.key) == ("low rank", "rank", "linformer")
    errors = [row.mean for row in measured.curve("std 2", "") if row.value in (8, 32)]
    assert own.figures[1].value == pytest.approx(errors[1] / errors[0])
    assert len(projected.figures) == len(own.figures) == 2
    clear = dataclasses.replace(kept, figures={name: course.Figure("ratio", 0.8, 0.7, 0.9) for name in kept.figures})
    assert list(course.low_rank_rows(clear))[2].short.endswith("so it does not follow the rule")
    assert not own.short.endswith("so it does not follow the rule")


def variant(name: str, level: float, **more: Any) -> dict[str, Any]:
    keys = ("final_loss", "train_sentence_perplexity", "dev_sentence_perplexity", "dev_token_perplexity", "seconds")
    values = {key: {"mean": level, "each": [level - 1, level, level + 1]} for key in keys}
    probes = [{"losses": [5.0, 6.0, 7.0]}] * 4
    return {"name": name, "values": values, "texts": {"spaced_probes": probes}, "leaks": False, **more}


def pair(name: str, ratio: float, p: float) -> dict[str, Any]:
    read = {"a": 100 * ratio, "b": 100.0, "sentences": 1000, "seeds": 3}
    effect = {"value": ratio, "low": ratio * 0.9, "high": ratio * 1.1, "p": p, "perplexities": read}
    return {"a": name, "b": "dot", "effect": effect, "adjusted": 2 * p}


def test_comparisons_on_sentences_become_rows(course: Any, tmp_path: Path) -> None:
    dot = variant("dot", 380.0)
    leaky = variant("zero_mask", 190.0, leaks=True, word_by_word={"whole": 150.0, "word_by_word": 5000.0})
    leaky["gain"] = {"word_by_word": {"value": 16.0, "low": 3.0, "high": 80.0}}
    results = {
        "additive-vs-dot": {
            "variants": [dot, variant("additive", 386.0)],
            "comparisons": [pair("additive", 1.01, 0.4)],
        },
        "masking": {"variants": [dot, leaky], "comparisons": [pair("zero_mask", 0.5, 0.001)]},
        "shared-projections": {
            "variants": [dot, variant("shared_qk", 381.0), variant("shared_qkv", 390.0)],
            "comparisons": [pair("shared_qk", 1.01, 0.04), pair("shared_qkv", 1.2, 0.02)],
        },
    }
    for name, result in results.items():
        files = {"result.json": json.dumps({"published": {"dot": {}}, **result}).encode()}
        write_folder(tmp_path / name, "study", files)
    rows = {row.key or row.said: row for row in course.parts(course.found_in(tmp_path))["D"]}
    assert rows["dot, dev perplexity of sentences"].verdict == "compatible"
    assert rows["dot, dev perplexity of sentences"].found == "380.0 (375.1 to 385.0)"
    assert rows["additive"].verdict == "cannot tell"
    assert rows["additive time"].verdict == "better"
    assert rows["mask"].verdict == rows["leak"].verdict == "compatible"
    assert rows["mask"].found.startswith("token perplexity 0.500 (0.450 to 0.550) times that of dot (50.0 and 100.0)")
    assert rows["leak"].found.endswith(": 5,000, whole texts 150")
    assert [rows[name].verdict for name in ("shared_qk", "shared_qkv")] == ["cannot tell", "cannot tell"]
    assert rows["shared_qk"].found.endswith("p = 0.08: no difference shown")
    assert rows["shared_qkv"].found.endswith("p = 0.04: a difference, which their single runs could not see")
