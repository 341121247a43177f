"""The study of trust from the plan to the page, with a model too small to know anything: the numbers must fit together."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnlab import studies
from attnlab.corpora import Corpus, Question, load_questions
from attnlab.errors import DataError, Interrupted, OutputExists, UserError
from attnlab.store.runs import Run
from attnlab.studies import trust
from attnlab.studies.trust import BINS, Asked, VerdictCount, curve, describe_group, fallback, histogram, separation
from attnlab.trust import calibration_of

GIVEN: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 2.0, "tokens_per_batch": 1024, "checkpoint_every": 4},
}
PARTS = {"facts": "train", "calibration": "calibration", "known": "test", "spare": "dev"}
WORLD = {use: f"people:120:{part}" for use, part in PARTS.items()}
PLAN = trust.Plan("people:120", **WORLD, preset="quick", given=GIVEN, quick=True, max_risk=0.2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def console() -> Any:
    with Path("/dev/null").open("w") as nowhere:
        yield Console(file=nowhere, width=80)


def test_the_whole_story_stopped_and_gone_on_with(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trust, "measure", interrupt)
        with pytest.raises(Interrupted, match=f"attnlab resume {folder}"):
            trust.STUDY.begin(PLAN, folder, console)
    result = studies.resume(folder, console)
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    older = {key: value for key, value in result.items() if key != "verdict"}
    assert trust.STUDY.document(older) == trust.STUDY.document(result)
    assert result["verdict"] == [*trust.STUDY.document(older).lead]
    groups = {one["name"]: one for one in result["groups"]}
    assert list(groups) == ["known", "withheld", "invented"]
    for name, one in groups.items():
        assert one["questions"] == len(load_questions(folder / f"{name}.tsv"))
        assert math.isclose(sum(one["histogram"]), 1)
        assert sum(verdict["count"] for verdict in one["verdicts"].values()) == one["questions"]
    assert groups["known"]["looked_up"]["unseen"]["count"] == 0
    assert groups["withheld"]["looked_up"]["unseen"]["share"] == 1
    assert groups["invented"]["looked_up"]["answered"]["count"] == 0
    assert groups["invented"]["right"]["count"] == 0
    assert {(one["score"], one["against"]) for one in result["separation"]} == {
        (score, other) for score in ("confidence", "entropy", "distance") for other in ("withheld", "invented")
    }
    assert result["curve"]["risk"][-1] == pytest.approx(1 - result["accuracy"])
    assert 0 <= result["fallback"]["share"] <= 1
    run = Run.open(folder)
    assert run.path == folder / "finetune"
    assert calibration_of(run) is not None
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for shown in (page, text):
        assert "What the guarantee covers, and what it does not" in shown
        assert "never seen" in shown
    with pytest.raises(OutputExists):
        trust.STUDY.begin(PLAN, folder, console)


def test_mistakes_are_found_before_a_folder_is_made(tmp_path: Path, console: Console) -> None:
    blind = tmp_path / "blind.tsv"
    blind.write_text("Where was Hank Aaron born?\n")
    for wrong, message in (
        (trust.Plan("people:120", str(blind), None, None), "has no answer"),
        (trust.Plan("people:60", "people:60:train", None, None), "it takes 60"),
        (trust.Plan("people:120", "people:120:train", None, str(blind)), "no questions are left"),
    ):
        with pytest.raises(DataError, match=message):
            trust.STUDY.begin(wrong, tmp_path / "study", console)
    with pytest.raises(UserError, match="--max-risk"):
        trust.STUDY.begin(trust.Plan(max_risk=1.5), tmp_path / "study", console)
    assert not (tmp_path / "study").exists()


def asked(name: str, confidence: list[float], right: list[bool], held: list[bool] | None = None) -> Asked:
    """A group as if it had been asked."""
    count = len(confidence)
    questions = tuple(Question(f"Where was {name} {n} born?", "York" if ok else "Bath") for n, ok in enumerate(right))
    sure = tuple(confidence)
    verdicts = ("recalled and supported",) * count
    held_back = tuple(held or [False] * count)
    return Asked(
        name,
        questions,
        ("York",) * count,
        sure,
        sure,
        tuple(1 - c for c in sure),
        sure,
        verdicts,
        ("",) * count,
        held_back,
    )


def test_rates_are_counted_at_the_threshold() -> None:
    group = describe_group(
        asked("known", [0.9, 0.9, 0.8, 0.1], [True, False, True, True], [False, True, True, True]), 0.8
    )
    assert group.answered.count == 3
    assert (group.wrong.count, group.wrong.of) == (1, 3)
    assert group.looked_up.answered.count == 1
    assert group.looked_up.wrong.count == 0
    assert group.right.count == 3
    assert group.verdicts["recalled and supported"] == VerdictCount(4, 3)
    assert [one.confidence for one in group.examples] == [0.9, 0.9, 0.8, 0.1]
    nothing = describe_group(asked("known", [0.9], [True], [True]), None)
    assert nothing.answered.count == 0
    assert nothing.wrong.share is None


def test_separation_and_curve() -> None:
    known = asked("known", [0.9, 0.8, 0.7], [True, True, False])
    other = asked("withheld", [0.1, 0.2, 0.75], [False] * 3)
    areas = {one.score: one.area.value for one in separation(known, other)}
    assert all(math.isclose(area, 8 / 9) for area in areas.values())
    drawn = curve(known)
    assert drawn.coverage == pytest.approx([1 / 3, 2 / 3, 1])
    assert drawn.risk == pytest.approx([0, 0, 1 / 3])
    heights = histogram([0.0, 0.01, 0.5, 1.0])
    assert len(heights) == BINS
    assert (heights[0], heights[-1]) == (0.5, 0.25)


def test_what_it_falls_back_on_is_held_against_chance() -> None:
    towns = {"Ann Lee": "York", "Bo Ek": "Bath", "Cy Fox": "Leeds", "Di Gun": "York"}
    corpus = Corpus("town", tuple(f"{name}. Born in {town} ." for name, town in towns.items()))
    told = [Question(f"Where was {name} born?", town) for name, town in towns.items()]
    questions = tuple(Question(f"Where was {name} born?", "Hull") for name in ("Anne Lee", "Bob Ek"))
    group = asked("withheld", [0.5, 0.5], [False, False])
    group = Asked(group.name, questions, ("York", "York"), *list(vars(group).values())[3:])
    found = fallback(group, corpus, told)
    assert found is not None
    assert (found.hits.count, found.hits.of, found.chance) == (1, 2, 0.5)
    assert [one.nearest for one in found.examples] == ["Ann Lee"]
    assert fallback(group, corpus, []) is None
