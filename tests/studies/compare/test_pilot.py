"""Plans from a pilot: what its runs vary by, what seeds and items would find, and nothing promised without one."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab import stats
from attnlab.errors import UserError
from attnlab.store.folders import read_json
from attnlab.studies.compare import Plan, advise, make_plan, planning
from attnlab.studies.compare.planning import Pilot
from verbs import call, reseal

Compared = tuple[Path, dict[str, Any]]
PILOT = Pilot(
    folder="runs/pilot",
    pairs=["linear against dot"],
    seeds=3,
    items=45,
    units=45,
    components=stats.Components(seeds=0.05**2, items=0.2**2, rest=0.4**2, most_seeds=0.11**2),
    seconds=60.0,
)


@pytest.fixture
def words() -> Plan:
    """A plan on the data of the pilot `compared`."""
    data = {"corpus": "prose:100:train", "dev": "prose:100:dev"}
    return replace(make_plan(["dot", "shared_qk"], task="words", seeds=4), **data)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan for questions, with the pilot above; of the questions each is alone."""
    monkeypatch.setattr(planning, "_read", lambda *_: (PILOT, []))
    plan = make_plan(["dot", "linear"], quick=True, seeds=4, jobs=2)
    plan.__dict__.update(questions=[None] * 45, clusters=None)
    return plan


def test_a_pilot_of_words_is_what_the_test_of_its_runs_saw(compared: Compared, words: Plan) -> None:
    folder, result = compared
    found = advise(words, folder, 0.05)
    pilot, tested = found.pilot, next(one for one in result["comparisons"] if one["a"] == "shared_qk")
    assert pilot is not None
    assert pilot.pairs == ["shared_qk against dot"]  # zero_mask sees the future
    assert (pilot.seeds, pilot.items) == (2, tested["details"]["sentences"])
    parts, both = pilot.components, tested["details"]["both"]
    from_seeds = parts.seeds / 2 + parts.rest / (2 * pilot.units)
    assert math.sqrt(from_seeds) >= both["error_seeds"] * (1 - 1e-9)
    runs = [run["values"]["seconds"] for one in result["variants"] for run in one["runs"]]
    assert pilot.seconds > sum(runs) / len(runs)
    assert "% of perplexity" in found.unit
    assert {(one.seeds, one.items) for one in found.outlooks} == {
        (seeds, items)
        for seeds in (2, 3, 4, 5, 10)
        for items in (math.ceil(pilot.items / 2), pilot.items, 2 * pilot.items)
    }


def test_the_table_says_what_the_statistics_say(questions: Plan) -> None:
    found = advise(questions, "runs/pilot")
    for one in found.outlooks:
        assert one.difference == stats.smallest_difference(PILOT.components, one.seeds, one.items)
        assert one.cautious == stats.smallest_difference(PILOT.components.cautious, one.seeds, one.items)
        assert one.seconds == 60.0 * 2 * one.seeds / 2
    table = found.table()
    assert [column.title for column in table.columns] == [
        "seeds",
        "23 questions",
        "45 questions",
        "90 questions",
        "time",
    ]
    four = next(row for row in table.rows if row.name.text == "4")
    here = next(one for one in found.outlooks if (one.seeds, one.items) == (4, 45))
    assert four.cells[1].text == f"{100 * here.difference:.0f} ({100 * here.cautious:.0f})"
    assert four.cells[-1].text == "4 min 00 s"


def test_several_comparisons_are_planned_at_a_stricter_level(questions: Plan) -> None:
    three = replace(questions, variants=(*questions.variants, replace(questions.variants[1], name="other")))
    three.__dict__.update(questions=[None] * 45, clusters=None)
    found = advise(three, "runs/pilot")
    assert found.alpha == 0.025
    assert found.outlooks[0].difference == stats.smallest_difference(PILOT.components, 2, 23, 0.025)
    assert "2 comparisons: planned with p below 0.025" in found.lines[0]


def test_what_it_takes_to_find_a_difference(questions: Plan) -> None:
    aim = advise(questions, "runs/pilot", 0.15).aim
    assert aim is not None
    assert aim.power == stats.power(PILOT.components, 4, 45, 0.15)
    assert aim.seeds == stats.seeds_needed(PILOT.components, 45, 0.15)
    assert aim.items is None
    limited = advise(questions, "runs/pilot", 0.06)
    assert limited.aim is not None
    assert limited.aim.seeds is None
    assert limited.aim.seeds_for_items == 8
    assert limited.aim.items == stats.items_needed(PILOT.components, 8, 0.06)
    assert "found by no number of seeds with 45 questions" in limited.lines[-1]
    assert "up to 1,000 seeds" in advise(questions, "runs/pilot", 0.0001).lines[-1]


def test_items_of_one_cluster_are_planned_together(questions: Plan) -> None:
    questions.__dict__["clusters"] = tuple(number // 3 for number in range(45))
    found = advise(questions, "runs/pilot").outlooks
    assert found[1].difference == stats.smallest_difference(PILOT.components, 2, 15)


def test_one_seed_claims_nothing_about_others(questions: Plan) -> None:
    alone = replace(questions, seeds=(0,))
    alone.__dict__.update(questions=[None] * 45, clusters=None)
    found = advise(alone, "runs/pilot", 0.15)
    assert found.aim is not None
    assert found.aim.power is None
    assert "1 seed: nothing can be claimed about other seeds" in found.lines[0]


def test_nothing_is_promised_without_a_pilot(words: Plan) -> None:
    plan = make_plan(["dot", "linear"])
    found = advise(plan)
    assert not found.outlooks
    assert "--plan --pilot runs/pilot" in found.lines[0]
    gain = stats.gain_over_half(len(plan.questions))
    assert gain is not None
    assert f"even if every seed gave the same answers, a gain below {100 * gain:.1f} points" in found.lines[1]
    assert len(advise(words).lines) == 1


def test_answers_are_subtracted_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answered:
        def __init__(self, *right: bool) -> None:
            self.right = right

        def answers(self) -> list[bool]:
            return list(self.right)

    a, b = [Answered(True, False), Answered(True, True)], [Answered(False, False), Answered(False, True)]
    plan = make_plan(["dot", "linear"], quick=True)
    np.testing.assert_array_equal(planning._differences(plan, a, b), [[1, 0], [1, 0]])  # type: ignore[arg-type]


def test_mistakes_name_the_fix(compared: Compared, words: Plan, tmp_path: Path) -> None:
    folder, _ = compared
    with pytest.raises(
        UserError, match="measured perplexity, not answers to questions: make a pilot with the same --task"
    ):
        advise(make_plan(["dot", "linear"], quick=True), folder)
    with pytest.raises(UserError, match="is no comparison: give --pilot the folder of a finished `attnlab compare`"):
        advise(words, folder / "dot" / "seed-0")
    with pytest.raises(UserError, match="--difference needs --pilot FOLDER"):
        advise(words, None, 0.02)
    with pytest.raises(UserError, match="such as 0.02 for two points, not 2"):
        advise(words, folder, 2.0)
    one = tmp_path / "one"
    shutil.copytree(folder, one)
    stored = read_json(one / "study.json")
    stored["plan"]["seeds"] = [0]
    (one / "study.json").write_text(json.dumps(stored))
    reseal(one)
    with pytest.raises(
        UserError, match="has one seed, which does not show how much seeds vary: make a pilot with --seeds 3"
    ):
        advise(words, one)
    (one / "result.json").unlink()
    reseal(one)
    with pytest.raises(UserError, match=r"is not finished: `attnlab resume .*` first"):
        advise(words, one)


def test_the_command(compared: Compared, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = compared
    asked = ["compare", "dot", "shared_qk", "--task", "words", "--corpus", "prose:100:train", "--dev", "prose:100:dev"]
    asked += ["--tokenizer.min_count", "1", "--plan", "--pilot", str(folder)]
    assert call(*asked, "--difference", "0.05") == 0
    said = capsys.readouterr().out
    assert "a difference of 5.0 % of perplexity would be found in" in said
    assert "10" in said.split("seeds  ")[1]
    assert call(*asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["varied"] == "model.mechanism"
    assert found["pilot"]["seeds"] == 2
    assert len(found["outlooks"]) == 12
    assert call("compare", "dot", "linear", "--pilot", str(folder)) == 2
    assert "--pilot needs --plan" in capsys.readouterr().err
