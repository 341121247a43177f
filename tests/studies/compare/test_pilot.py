"""Plans from a pilot: what its runs vary by, what seeds and items would find, and nothing promised without one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import make_plan

from attnlab import stats
from attnlab.corpora import Question
from attnlab.errors import UserError
from attnlab.store.folders import read_json
from attnlab.studies import compare
from attnlab.studies.compare import Plan, plan_from_pilot
from verbs import call, reseal

Compared = tuple[Path, Any]
PARTS = stats.Components(seeds=0.05**2, items=0.2**2, rest=0.4**2, most_seeds=0.11**2)


@pytest.fixture
def words() -> Plan:
    """A plan on the data of the pilot `compared`."""
    held = {"corpus": "prose:100:train", "dev": "prose:300:dev"}
    return make_plan(["dot", "shared_qk"], task="words", seeds=4, data=held)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan for questions, with a pilot of the variances above whose runs took a minute; each question is alone."""
    monkeypatch.setattr(compare, "_read_pilot", lambda *_: (PARTS, 60.0, "a pilot"))
    plan = make_plan(["dot", "linear"], quick=True, seeds=4, workers=2)
    plan.__dict__.update(questions=[Question("?", "!")] * 45, clusters=None)
    return plan


def test_a_pilot_of_words_is_what_the_test_of_its_runs_saw(compared: Compared, words: Plan) -> None:
    folder, result = compared
    parts, seconds, note = compare._read_pilot(str(folder), words, "% of perplexity")
    tested = next(pair for pair in result.comparisons if pair.a == "shared_qk")  # zero_mask sees the future
    items = tested.effect.details.sentences
    assert f"2 seeds x {items:,} sentences" in note
    units = len(set(words.clusters)) if words.clusters else items
    assert np.sqrt(parts.seeds / 2 + parts.rest / (2 * units)) >= tested.effect.details.both.error_seeds * (1 - 1e-9)
    runs = [run.values["seconds"] for variant in result.variants for run in variant.runs]
    assert seconds > sum(runs) / len(runs)
    found = {(outlook.seeds, outlook.items) for outlook in plan_from_pilot(words, folder).outlooks}
    assert found == {(seeds, many) for seeds in (2, 3, 4, 5, 10) for many in ((items + 1) // 2, items, 2 * items)}


def test_the_table_says_what_the_statistics_say_the_cautious_number_first(questions: Plan) -> None:
    found = plan_from_pilot(questions, "runs/pilot")
    for outlook in found.outlooks:
        assert outlook.plain == stats.smallest_difference(PARTS, outlook.seeds, outlook.items)
        assert outlook.cautious == stats.smallest_difference(PARTS.cautious, outlook.seeds, outlook.items)
        assert outlook.seconds == 60.0 * 2 * outlook.seeds / 2
    table = found.table()
    titles = [column.title for column in table.columns]
    assert titles == ["seeds", "23 questions", "45 questions", "90 questions", "time"]
    four = next(row for row in table.rows if row.name.text == "4")
    here = next(outlook for outlook in found.outlooks if (outlook.seeds, outlook.items) == (4, 45))
    assert here.cautious > here.plain
    assert four.cells[1].text == f"{100 * here.cautious:.0f} ({100 * here.plain:.0f})"
    assert four.cells[-1].text == "4 min 00 s"


def test_several_comparisons_are_planned_at_a_stricter_level(questions: Plan) -> None:
    three = replace(questions, variants=(*questions.variants, replace(questions.variants[1], name="other")))
    three.__dict__.update(questions=[Question("?", "!")] * 45, clusters=None)
    found = plan_from_pilot(three, "runs/pilot")
    assert found.alpha == 0.025
    assert found.outlooks[0].plain == stats.smallest_difference(PARTS, 2, 23, 0.025, 3)
    assert "2 comparisons: planned with p below 0.025" in found.notes[0]


def test_items_of_one_cluster_are_planned_together(questions: Plan) -> None:
    questions.__dict__["clusters"] = tuple(number // 3 for number in range(45))
    found = plan_from_pilot(questions, "runs/pilot").outlooks
    assert found[1].plain == stats.smallest_difference(PARTS, 2, 15)


def test_nothing_is_promised_for_one_seed_or_without_a_pilot(words: Plan, questions: Plan) -> None:
    alone = plan_from_pilot(replace(questions, seeds=(0,)))
    assert "1 seed: nothing can be claimed about other seeds" in alone.notes[0]
    found = plan_from_pilot(words)
    assert not found.outlooks
    assert "--plan --pilot runs/pilot" in found.notes[0]


def test_answers_are_subtracted_seed_by_seed() -> None:
    class Answered:
        def __init__(self, *right: bool) -> None:
            self.right = right

        def answers(self) -> list[bool]:
            return list(self.right)

    a, b = [Answered(True, False), Answered(True, True)], [Answered(False, False), Answered(False, True)]
    plan = make_plan(["dot", "linear"], quick=True)
    np.testing.assert_array_equal(compare._differences(plan, a, b), [[1, 0], [1, 0]])  # type: ignore[arg-type]


def test_mistakes_name_the_fix(compared: Compared, words: Plan, tmp_path: Path) -> None:
    folder, _ = compared
    with pytest.raises(
        UserError, match="measured perplexity, not answers to questions: make a pilot with the same --task"
    ):
        plan_from_pilot(make_plan(["dot", "linear"], quick=True), folder)
    with pytest.raises(UserError, match="is not a comparison: give --pilot the folder of a finished"):
        plan_from_pilot(words, folder / "dot" / "seed-0")
    one = tmp_path / "one"
    shutil.copytree(folder, one)
    stored = read_json(one / "study.json")
    stored["plan"]["seeds"] = [0]
    (one / "study.json").write_text(json.dumps(stored))
    reseal(one)
    with pytest.raises(
        UserError, match="has one seed, which does not show how much seeds vary: make a pilot with --seeds 3"
    ):
        plan_from_pilot(words, one)
    (one / "result.json").unlink()
    reseal(one)
    with pytest.raises(UserError, match=r"is not finished: `attnlab resume .*` first"):
        plan_from_pilot(words, one)


def test_the_command(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = compared
    asked = ["compare", "dot", "shared_qk", "--task", "words", "--corpus", "prose:100:train", "--dev", "prose:300:dev"]
    asked += ["--tokenizer.min_count", "1", "--plan", "--pilot", str(folder)]
    assert call(*asked) == 0
    shown = capsys.readouterr().out
    assert "Smallest difference in % of perplexity" in shown
    assert "10" in shown.split("seeds  ")[1]
    assert call(*asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["varied"] == "model.mechanism"
    assert len(found["outlooks"]) == 12
    assert call("compare", "dot", "linear", "--pilot", str(folder)) == 2
    assert "--pilot needs --plan" in capsys.readouterr().err


def test_a_margin_plans_the_test_of_equivalence(questions: Plan) -> None:
    plan = replace(questions, margin=0.05)
    plan.__dict__.update(questions=questions.questions, clusters=None)
    found = plan_from_pilot(plan, "runs/pilot")
    assert "shown to be equivalent within 5 points" in found.table().caption
    more = replace(PARTS, items=PARTS.items + 2 / 90)
    here = next(outlook for outlook in found.outlooks if (outlook.seeds, outlook.items) == (10, 90))
    assert here.plain == stats.equivalence_power(more, 10, 90, 0.05)
    assert here.cautious < here.plain < 1
    assert max(outlook.cautious for outlook in found.outlooks) < 0.8
    assert found.closing() == (
        "None of these sizes reaches 80 %: plan more seeds than 10, more questions, or a larger --margin."
    )
    assert not replace(found, outlooks=(*found.outlooks, replace(here, cautious=0.8))).closing()
    assert not plan_from_pilot(questions, "runs/pilot").closing()
