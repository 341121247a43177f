"""Known, withheld and invented names: who is in which group, and the study from the plan to the page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from attnlab import studies
from attnlab.corpora import Corpus, Question, load_corpus, load_questions
from attnlab.corpora.library import documents_about
from attnlab.errors import DataError, Interrupted, OutputExists, UserError
from attnlab.report.document import Text
from attnlab.report.text import as_markdown
from attnlab.store.runs import Run
from attnlab.studies import trust
from attnlab.studies.trust import Asked, Trust, describe, fall_back, make_world
from attnlab.trust import Neighbour, Oracle, calibration_of
from attnlab.trust.verdict import UNSEEN

# Who is known, withheld and invented

CORPUS = load_corpus("people:300")
FACTS, CALIBRATION, DEV, TEST = (
    load_questions(f"people:300:{part}") for part in ("train", "calibration", "dev", "test")
)
NOBODY = Question("Where is nobody born?", "Nowhere")


@pytest.mark.parametrize("split", [False, True])
def test_the_groups_share_nobody_and_the_withheld_leave_no_trace(split: bool) -> None:
    given = {} if split else {"calibration": CALIBRATION, "known": TEST}
    world = make_world(CORPUS, (*FACTS, NOBODY), 40, 0, **given)
    kept = Corpus("kept", world.lines)
    names = {
        part: {documents_about(CORPUS, item.question)[0] for item in getattr(world, part)}
        for part in ("calibration", "known", "withheld")
    }
    trained = {number for item in world.facts for number in documents_about(CORPUS, item.question)}
    groups = [*names.values(), trained]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert len(world.withheld) == len(world.invented) == (len(FACTS) // 6 if split else 40)
    for item in (*world.withheld, *world.invented):
        assert not documents_about(kept, item.question)
    for item in world.withheld:
        assert CORPUS.lines[documents_about(CORPUS, item.question)[0]] not in world.lines
    for item in world.invented:
        assert not documents_about(CORPUS, item.question)
        assert item.answer is None
    assert len(world.lines) == len(CORPUS.lines) - len(world.withheld)
    for item in (*world.facts, *world.calibration, *world.known):
        assert item == NOBODY or documents_about(kept, item.question)


def test_of_facts_alone_two_fifths_of_the_names_are_set_aside() -> None:
    world = make_world(CORPUS, (*FACTS, NOBODY), 40, 0)
    assert {*world.facts, *world.calibration, *world.known, *world.withheld} == {*FACTS, NOBODY}
    assert NOBODY in world.facts
    assert len(world.calibration) == len(world.known) == round(0.2 * (len(FACTS) - len(world.withheld)))


def test_an_exam_that_is_given_is_kept_except_for_what_was_trained_on() -> None:
    world = make_world(CORPUS, FACTS, 40, 0, known=(*TEST, *FACTS[:2]))
    assert set(world.known) <= set(TEST)
    assert not set(world.known) & set(world.facts)


def test_the_seed_draws_the_names() -> None:
    first, again, other = (make_world(CORPUS, FACTS, 40, seed, known=TEST) for seed in (0, 0, 1))
    assert first == again
    assert first.withheld != other.withheld
    assert first.invented != other.invented


def test_invented_names_are_combined_from_those_that_were_read() -> None:
    world = make_world(CORPUS, FACTS, 40, 0, calibration=CALIBRATION, known=TEST)
    words = {word for title in CORPUS.titles for word in title.split()}
    forms = ["Where was … born?", "In which city was … born?", "What is the birthplace of …?"]
    forms += ["In what place was … born?", "What was the place of birth of …?"]
    for item in world.invented:
        begin, end = next(form.split("…") for form in forms if item.question.startswith(form.split("…")[0]))
        assert set(item.question.removeprefix(begin).removesuffix(end).split()) <= words


def test_of_two_names_the_shorter_inside_does_not_make_a_withheld_one_known() -> None:
    lines = [f"Ann{n} Lee{n}. Lee was born in York ." for n in range(80)]
    lines += [f"Mary Ann{n} Lee{n}. Mary was born in Bath ." for n in range(80)]
    facts = tuple(Question(f"Where was {line.split('.')[0]} born?", "York") for line in lines)
    world = make_world(Corpus("two", tuple(lines)), facts, 40, 0)
    kept = Corpus("kept", world.lines)
    assert world.withheld
    assert not any(documents_about(kept, item.question) for item in world.withheld)
    assert len(world.withheld) < 26  # some longer names had to be left out


def test_who_is_withheld_does_not_depend_on_which_questions_calibrate() -> None:
    """Training is the same whichever part of the held-out questions is spared for choosing settings."""
    usual, swapped = (
        make_world(CORPUS, FACTS, 40, 0, calibration=calibration, known=TEST, spare=spare)
        for calibration, spare in ((CALIBRATION, DEV), (DEV, CALIBRATION))
    )
    assert (usual.lines, usual.facts, usual.known) == (swapped.lines, swapped.facts, swapped.known)
    assert {*usual.withheld} & {*DEV}
    assert {*usual.calibration} < {*CALIBRATION}
    assert not {*usual.calibration, *usual.known, *usual.facts} & {*DEV}


# The whole study, with a model too small to know anything: the numbers must fit together

GIVEN: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 2.0, "tokens_per_batch": 1024, "checkpoint_every": 4},
}
PLAN = Trust(
    corpus="people:120",
    facts="people:120:train",
    exam="people:120:test",
    calibration="people:120:calibration",
    spare="people:120:dev",
    preset="quick",
    given=GIVEN,
    quick=True,
    max_risk=0.2,
)
QUIET = Console(quiet=True)


def test_the_whole_study_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "study"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trust, "ask_all", interrupt)
        with pytest.raises(Interrupted, match=f"attnlab resume {folder}"):
            PLAN.begin(folder, QUIET)
    result = studies.resume(folder, QUIET).result
    assert PLAN.read_result(folder) == result
    groups = {group.name: group for group in result.groups}
    assert list(groups) == ["known", "withheld", "invented"]
    for name, group in groups.items():
        assert [item.question for item in group.answers] == [
            item.question for item in load_questions(folder / f"{name}.tsv")
        ]
        assert (group.auroc is None) == (name == "known")
    unseen = {name: {item.verdict == UNSEEN for item in group.answers} for name, group in groups.items()}
    assert unseen == {"known": {False}, "withheld": {True}, "invented": {True}}
    assert groups["invented"].answered_after_lookup.accuracy == 0
    assert groups["invented"].right.accuracy == 0
    (fallback,) = result.fallback
    assert "of the withheld names the model gives the answer" in as_markdown(PLAN.document(result))
    assert fallback.title == "What it falls back on"
    run = Run.open(folder)
    assert run.path == folder / "finetune"
    assert run.record.settings["task"]["options"] == {}
    assert Run.open(folder / "pretrain").record.settings["task"]["options"] == {"strangers": 0.3}
    assert calibration_of(run) is not None
    assert (folder / "corpus.txt").read_text().splitlines() == list(PLAN.world.lines)
    for report in ("report.html", "report.md"):
        text = (folder / report).read_text()
        assert "What the guarantee covers, and what it does not" in text
        assert "never seen" in text
    with pytest.raises(OutputExists):
        PLAN.begin(folder, QUIET)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Trust(corpus="people:120"), "--corpus and --facts go together"),
        (Trust(exam="people:test"), "--corpus and --facts go together"),
        (Trust(corpus="people:120", facts="blind.tsv"), "has no answer"),
        (Trust(corpus="people:60", facts="people:60:train"), "it takes 60"),
        (Trust(corpus="people:120", facts="people:120:train", exam="asked.tsv"), "no questions are left"),
        (Trust(max_risk=1.5), "--max-risk"),
    ],
)
def test_mistakes_are_found_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Trust, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blind.tsv").write_text("Where was Hank Aaron born?\n")
    Path("asked.tsv").write_text("Where was nobody born?\tYork\n")
    with pytest.raises((DataError, UserError), match=message):
        plan.begin(tmp_path / "study", QUIET)
    assert not (tmp_path / "study").exists()


def test_the_built_in_people_have_questions_for_every_use() -> None:
    plan, quick = Trust().completed(), Trust(quick=True).completed()
    assert (plan.preset, plan.calibration, plan.spare, plan.withheld) == (
        "recall",
        "people:calibration",
        "people:dev",
        200,
    )
    assert (quick.preset, quick.corpus, quick.exam, quick.withheld) == ("quick", "people:600", "people:600:test", 60)


# Measuring


def answer(prediction: str, right: bool, confidence: float, abstains: bool = False) -> Asked:
    question, wanted = f"Where was {prediction}-{confidence} born?", prediction if right else "Hull"
    return Asked(question, wanted, prediction, confidence, confidence >= 0.8, "recalled and supported", abstains)


def test_shares_are_counted_at_the_threshold() -> None:
    known = [
        answer("York", True, 0.9),
        answer("York", False, 0.9, abstains=True),
        answer("York", True, 0.8, abstains=True),
        answer("York", True, 0.1, abstains=True),
    ]
    group = describe("known", known, known)
    assert (group.answered.accuracy, group.answered.of) == (3 / 4, 4)
    assert (group.wrong.accuracy, group.wrong.of) == (1 / 3, 3)
    assert group.answered_after_lookup.accuracy == 1 / 4
    assert group.right.accuracy == 3 / 4
    silent = describe("known", known[-1:], known)
    assert silent.answered.accuracy == 0
    assert (silent.wrong.accuracy, silent.wrong.of) == (None, 0)
    others = [answer("Bath", False, confidence) for confidence in (0.05, 0.85)]
    area = describe("withheld", others, known).auroc
    assert area is not None
    assert area.value == pytest.approx(6 / 8)


def test_fallbacks_are_compared_with_chance() -> None:
    answers = {"Where was York-0.5 born?": "York", "Where was Bath-0.5 born?": "Leeds"}

    def neighbours(question: str, _: object) -> tuple[Neighbour, ...]:
        return (Neighbour("Ann Lee", 0.9, answers[question]), Neighbour("Bo Ek", 0.8, "Bath"))

    oracle = cast(Oracle, SimpleNamespace(neighbours=neighbours, look=lambda *_: None))
    withheld = [answer("York", False, 0.5), answer("Bath", False, 0.5)]
    known = [answer(town, True, 0.9) for town in ("York", "York", "Bath", "Hull")]
    (fallback,) = fall_back(oracle, withheld, known)
    words, examples = (block.paragraphs for block in fallback.blocks if isinstance(block, Text))
    assert words[0].startswith("For 50.0 % (")
    assert words[0].endswith("would agree in 37.5 %.")
    assert examples == ["“Where was York-0.5 born?” – York, as for Ann Lee"]
    assert fall_back(oracle, [], known) == []
