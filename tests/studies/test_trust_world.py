"""Who is known, withheld and invented: nobody is in two groups, and nothing about the withheld is left."""

from __future__ import annotations

import pytest

from attnlab.corpora import Corpus, Question, load_corpus, load_questions
from attnlab.corpora.library import documents_about
from attnlab.errors import DataError
from attnlab.studies.trust_world import Pools, make_world

CORPUS = load_corpus("people:300")
BUILT_IN = Pools(*(load_questions(f"people:300:{part}") for part in ("train", "calibration", "test")))
SPLIT = Pools((*BUILT_IN.facts, Question("Where is nobody born?", "Nowhere")))


@pytest.mark.parametrize("pools", [BUILT_IN, SPLIT], ids=["given", "split"])
def test_the_groups_share_nobody_and_the_withheld_leave_no_trace(pools: Pools) -> None:
    world = make_world(CORPUS, pools, 40, seed=0)
    kept = Corpus("kept", world.lines)
    names = {
        part: {documents_about(CORPUS, one.question)[0] for one in getattr(world, part)}
        for part in ("calibration", "known", "withheld")
    }
    trained = {number for one in world.facts for number in documents_about(CORPUS, one.question)}
    groups = [*names.values(), trained]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert len(world.withheld) == len(world.invented) == (40 if pools is BUILT_IN else len(BUILT_IN.facts) // 6)
    for item in (*world.withheld, *world.invented):
        assert not documents_about(kept, item.question)
    for item in world.withheld:
        assert CORPUS.lines[documents_about(CORPUS, item.question)[0]] not in world.lines
    for item in world.invented:
        assert not documents_about(CORPUS, item.question)
        assert item.answer is None
    assert len(world.lines) == len(CORPUS.lines) - len(world.withheld)
    for item in (*world.facts, *world.calibration, *world.known):
        assert item.question.startswith("Where is nobody") or documents_about(kept, item.question)


def test_all_questions_go_somewhere_and_strangers_stay_in_training() -> None:
    world = make_world(CORPUS, SPLIT, 40, seed=0)
    together = {*world.facts, *world.calibration, *world.known, *world.withheld}
    assert together == set(SPLIT.facts)
    assert SPLIT.facts[-1] in world.facts
    assert len(world.calibration) == len(world.known) == round(0.2 * (len(BUILT_IN.facts) - len(world.withheld)))


def test_an_examination_that_is_given_is_kept_but_for_what_was_trained_on() -> None:
    pools = Pools(BUILT_IN.facts, None, (*(BUILT_IN.known or ()), BUILT_IN.facts[0], BUILT_IN.facts[1]))
    world = make_world(CORPUS, pools, 40, seed=0)
    assert set(world.known) <= set(pools.known or ())
    assert not set(world.known) & set(world.facts)


def test_the_seed_decides() -> None:
    first, again, other = (make_world(CORPUS, BUILT_IN, 40, seed) for seed in (0, 0, 1))
    assert first == again
    assert first.withheld != other.withheld
    assert first.invented != other.invented


def test_names_are_combined_of_what_is_there() -> None:
    world = make_world(CORPUS, BUILT_IN, 40, seed=0)
    words = {word for title in CORPUS.titles for word in title.split()}
    forms = {"Where was … born?", "In which city was … born?", "What is the birthplace of …?"}
    forms |= {"In what place was … born?", "What was the place of birth of …?"}
    for item in world.invented:
        form = next(one for one in forms if item.question.startswith(one.split("…")[0]))
        begin, end = form.split("…")
        name = item.question.removeprefix(begin).removesuffix(end)
        assert set(name.split()) <= words


def test_of_two_names_the_shorter_inside_does_not_make_a_withheld_one_known() -> None:
    lines = [f"Ann{n} Lee{n}. Lee was born in York ." for n in range(80)]
    lines += [f"Mary Ann{n} Lee{n}. Mary was born in Bath ." for n in range(80)]
    facts = tuple(Question(f"Where was {line.split('.')[0]} born?", "York") for line in lines)
    world = make_world(Corpus("two", tuple(lines)), Pools(facts), 40, seed=0)
    kept = Corpus("kept", world.lines)
    assert world.withheld
    assert not any(documents_about(kept, one.question) for one in world.withheld)
    assert len(world.withheld) < 26  # some longer names had to be left out


def test_too_few_names_are_refused() -> None:
    with pytest.raises(DataError, match="it takes 60"):
        make_world(CORPUS, Pools(BUILT_IN.facts[:50]), 40, seed=0)


def test_files_of_a_world_are_read_back() -> None:
    world = make_world(CORPUS, BUILT_IN, 40, seed=0)
    files = world.files()
    assert files["corpus.txt"].decode().split("\n")[:-1] == list(world.lines)
    assert files["known.tsv"].count(b"\n") == len(world.known)
    assert b"\t" not in files["invented.tsv"]


def test_who_is_withheld_does_not_depend_on_which_questions_calibrate() -> None:
    """Training is the same whichever part of the held-out questions is spared for choosing settings."""
    dev, calibration = load_questions("people:300:dev"), load_questions("people:300:calibration")
    given, swapped = (
        make_world(CORPUS, Pools(BUILT_IN.facts, one, BUILT_IN.known, other), 40, seed=0)
        for one, other in ((calibration, dev), (dev, calibration))
    )
    assert (given.lines, given.facts, given.known) == (swapped.lines, swapped.facts, swapped.known)
    assert {*given.withheld} & {*dev}
    assert {*given.calibration} < {*calibration}
    assert not {*given.calibration, *given.known, *given.facts} & {*dev}
