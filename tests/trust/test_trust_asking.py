"""A real small run, calibrated and asked: the numbers are those of the model, and what is not so is refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attnlab
from attnlab import corpora, stats, trust
from attnlab.config import resolve
from attnlab.corpora import Question, load_corpus, load_questions
from attnlab.corpora.library import name_in
from attnlab.errors import CheckpointError, DataError, UserError
from attnlab.lm import stages
from attnlab.lm.model import load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.records import encode
from attnlab.store.runs import Run, lineage
from attnlab.trust import Oracle, calibration_of, usual_questions
from attnlab.trust.answers import AnswerTrie, answer_distribution, familiarity
from attnlab.trust.training_data import TrainingData, candidates, form_of, kinds, of_kind
from attnlab.trust.verdict import UNSEEN
from verbs import reseal

HELD_OUT = load_questions("people:120:calibration")
FACTS = load_questions("people:120:train")
STRANGER = "Where was Zaphod Beeblebrox born?"


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Run:
    shutil.copytree(trained.path, tmp_path / "run")
    return Run.open(tmp_path / "run")


def test_right_answers_are_among_the_candidates_also_those_that_were_never_answers() -> None:
    corpus = load_corpus("people:120")
    tokenizer = Tokenizer.train("bpe", corpus.lines, 300)
    found = candidates(tokenizer, FACTS, lambda: corpus.lines)
    assert list(found[: len({one.answer for one in FACTS})]) == list(dict.fromkeys(one.answer for one in FACTS))
    asked = {one.answer for one in (*HELD_OUT, *load_questions("people:120:test"))}
    assert asked <= set(found)
    assert not asked <= {one.answer for one in FACTS}
    AnswerTrie(tokenizer, found)  # none is written like another


def test_what_a_tokenizer_cannot_write_is_no_candidate() -> None:
    tokenizer = Tokenizer.train("char", ["York Bath"], 0)
    facts = [
        Question("Where?", "York"),
        Question("Where?", "Leeds"),
        Question("Who?", " "),
        Question("Where?", "York "),
    ]
    assert candidates(tokenizer, facts, lambda: iter(())) == ("York",)


def test_kinds_are_told_by_the_answers_that_forms_share() -> None:
    facts = (
        Question("Where was Ann Lee born?", "York"),
        Question("Where was Bo Ek born?", "Bath"),
        Question("What is the birthplace of Cy Fox?", "Bath"),
        Question("What is the birthplace of Di Gun?", "Leeds"),
        Question("What did Ann Lee play?", "shortstop"),
    )
    known = kinds(facts)
    assert form_of("Where was Ann Lee born?") == "Where was … born?"
    assert of_kind("Where was Ed Hill born?", known) == {"York", "Bath", "Leeds"}
    assert of_kind("What did Ed Hill play?", known) == {"shortstop"}
    assert of_kind("Whither Ed Hill?", known) == {"York", "Bath", "Leeds", "shortstop"}
    assert of_kind("Where?", {}) == frozenset()


def test_a_calibration_holds_what_the_model_says(run: Run) -> None:
    found = attnlab.calibrate(run.path, HELD_OUT)
    assert calibration_of(run) == found
    assert found.strangers == 0
    model, tokenizer = load_model(run.model)
    trie, asked = AnswerTrie(tokenizer, found.answers), [one.question for one in HELD_OUT]
    exact = answer_distribution(model, tokenizer, asked[:3], trie).confidence
    own = answer_distribution(model, tokenizer, asked, trie, floor=found.floor)
    own = own.if_known(familiarity(model, tokenizer, [name_in(one) for one in asked]))
    same = own.with_confidence(found.scaling(own.confidence))
    assert found.scaling == stats.fit_platt(own.confidence, found.right)
    for place, (row, item, best) in enumerate(zip(found.rows, HELD_OUT, same.best(), strict=True)):
        assert (row.question, row.answer) == (item.question, item.answer)
        assert (row.prediction, row.right) == (best[0], best[0] == item.answer)
        assert math.isclose(row.confidence, best[1], rel_tol=1e-5)
        assert math.isclose(row.score, own.confidence[place], rel_tol=1e-5)
        assert place >= 3 or abs(row.score - exact[place]) <= found.floor  # without strangers, every name is familiar
    assert math.isclose(sum(found.prior), 1, abs_tol=1e-2)
    summary = found.summary((0.1,))
    assert summary.correct == sum(row.right for row in found.rows)
    assert summary.rules[0].words == found.rule(0.1).words


def test_thresholds_do_not_depend_on_the_map_and_mean_the_same_on_both_scales(run: Run) -> None:
    found = attnlab.calibrate(run, HELD_OUT)
    rng = np.random.default_rng(0)
    scores = rng.random(300).tolist()
    rows = tuple(replace(found.rows[0], score=one, right=rng.random() < one**0.2) for one in scores)
    rules = []
    for scaling in (stats.Platt(1.0, 0.0), stats.Platt(0.3, 2.0), stats.Platt(4.0, -3.0)):
        rule = replace(found, rows=rows, scaling=scaling).rule(0.15)
        assert rule.threshold is not None
        assert 0 < rule.coverage < 1
        assert sum(scaling(scores) >= rule.threshold) == rule.accepted
        rules.append((rule.accepted, rule.errors, rule.coverage))
    assert len({*rules}) == 1


def test_the_reported_calibration_error_is_not_that_of_the_fit(run: Run) -> None:
    found = attnlab.calibrate(run, HELD_OUT)
    summary = found.summary()
    crossed = stats.cross_fitted(found.scores, found.right)
    assert summary.ece_before == stats.calibration(found.scores, found.right).ece
    assert summary.ece_after == stats.calibration(crossed, found.right).ece
    assert summary.rules[0].risk_of_all == pytest.approx(1 - summary.accuracy)


def test_one_question_per_name_is_used_and_the_others_are_counted(run: Run) -> None:
    again = [Question(item.question.replace("?", " indeed?"), item.answer) for item in HELD_OUT[:4]]
    found = attnlab.calibrate(run, [*HELD_OUT, *again])
    assert (len(found.rows), found.repeated) == (len(HELD_OUT), 4)
    assert calibration_of(run) == found
    named = {name_in(row.question) for row in found.rows}
    assert named == {name_in(item.question) for item in HELD_OUT}
    assert any(row.question.endswith("indeed?") for row in found.rows)  # drawn, not the first of each
    with pytest.raises(UserError, match=r"6 questions are given, and 3 of them can be used, one per name"):
        attnlab.calibrate(run, [*HELD_OUT[:3], *again[:3]])


def test_questions_that_were_trained_on_are_refused_in_any_words(run: Run) -> None:
    with pytest.raises(UserError, match="1 of 10 questions were trained on"):
        attnlab.calibrate(run, [*HELD_OUT, FACTS[0]])
    corpus = load_corpus("people:120")
    name = corpus.titles[corpora.documents_about(corpus, FACTS[0].question)[0]]
    with pytest.raises(UserError, match="people:calibration"):
        attnlab.calibrate(run, [*HELD_OUT, Question(f"Tell me the town of {name}", FACTS[0].answer)])
    assert not (run.path / "calibration.json").exists()


def test_strangers_are_counted_and_left_out(run: Run) -> None:
    found = attnlab.calibrate(run, [*HELD_OUT, Question(STRANGER, "Betelgeuse")])
    assert (found.strangers, len(found.rows)) == (1, len(HELD_OUT))
    with pytest.raises(
        UserError, match="9 questions are given, and 0 of them|1 questions are given, and 0 of them can be used"
    ):
        attnlab.calibrate(run, [Question(STRANGER, "Betelgeuse")] * 9)
    with pytest.raises(DataError, match="question 2 has no answer"):
        attnlab.calibrate(run, [HELD_OUT[0], Question(STRANGER, None)])


def test_a_calibration_of_another_model_is_refused(run: Run, tmp_path: Path) -> None:
    attnlab.calibrate(run, HELD_OUT)
    path = run.path / "calibration.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "model": "0" * 64}))
    reseal(run.path)
    with pytest.raises(UserError, match="belongs to another model"):
        attnlab.ask(run, STRANGER)
    del stored["rows"]
    path.write_text(json.dumps(stored))
    reseal(run.path)
    with pytest.raises(CheckpointError, match="missing required field `rows`.*make it again with `attnlab calibrate"):
        attnlab.ask(run, STRANGER)


def test_asking_without_a_calibration(run: Run) -> None:
    item = HELD_OUT[0]
    answer = attnlab.ask(run.path, item.question, top=3)
    assert not answer.calibrated
    assert "attnlab calibrate" in answer.rule
    assert not answer.abstains
    assert answer.distance is None
    assert answer.alternatives[0] == (answer.answer, answer.probability)
    assert len(answer.alternatives) == 3
    assert [share for _, share in answer.alternatives] == sorted((s for _, s in answer.alternatives), reverse=True)
    assert answer.lines
    assert item.answer in answer.lines[0]
    assert answer.looked_up


def test_asking_about_a_stranger_shows_what_it_falls_back_on(run: Run) -> None:
    oracle = Oracle(run)
    name = load_corpus("people:120").titles[5]
    answer = oracle.answer(f"Where was {name}x born?")
    assert (answer.verdict, answer.abstains, answer.lines, answer.quote) == (UNSEEN, True, (), "")
    assert answer.nearest[0].name == name
    assert answer.nearest[0].answer == oracle.answer(f"Where was {name} born?").answer
    assert answer.words.startswith(f"no answer (never seen); similar names: {name}")
    assert (answer.probability, answer.alternatives) == (None, ())


def test_asking_after_a_calibration_keeps_its_rule(run: Run) -> None:
    attnlab.calibrate(run, HELD_OUT)
    oracle = Oracle(run)
    assert oracle.calibration is not None
    row = oracle.calibration.rows[0]
    answer = oracle.answer(row.question)
    assert (answer.answer, answer.calibrated, answer.abstains) == (
        row.prediction,
        True,
        True,
    )  # 9 answers certify nothing
    assert math.isclose(answer.probability, row.confidence, rel_tol=1e-6)
    assert answer.rule == oracle.calibration.rule(0.1).words
    assert answer.distance is not None
    exact = oracle.distribution([row.question]).distance(np.array(oracle.calibration.prior))[0]
    assert math.isclose(answer.distance, exact)
    for wrong in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(UserError, match="between 0 and 1"):
            oracle.answer(row.question, max_risk=wrong)
    with pytest.raises(UserError, match="the question is empty"):
        oracle.answer(" ")


@pytest.fixture
def tuned(run: Run, tmp_path: Path) -> Run:
    config = resolve("quick", "finetune", given={"train": {"epochs": 0.1, "tokens_per_batch": 1024}})
    facts = tmp_path / "facts.tsv"
    facts.write_text("".join(f"{one.question}\t{one.answer}\n" for one in FACTS[:20]))
    return stages.finetune(config, run, str(facts), None, tmp_path / "tuned")


def test_a_fine_tuned_run_knows_what_its_base_read(tuned: Run, run: Run, tmp_path: Path) -> None:
    assert [one.path.resolve() for one in lineage(tuned)] == [tuned.path.resolve(), run.path.resolve()]
    assert set(TrainingData(tuned).facts) == set(FACTS)
    answer = attnlab.ask(tuned, HELD_OUT[0].question)
    assert answer.lines
    assert usual_questions(run) == "people:120:calibration"
    with pytest.raises(UserError, match="which questions"):
        usual_questions(tuned)
    (tmp_path / "facts.tsv").write_text("Where?\tYork\n")
    with pytest.raises(DataError, match="has changed since"):
        _ = TrainingData(tuned).facts
    assert "has changed since" in attnlab.ask(tuned, HELD_OUT[0].question).words
    (tuned.path / "config.json").write_bytes(encode(replace(tuned.record, base="../gone")))
    reseal(tuned.path)
    with pytest.raises(DataError, match="trained from a run that is missing"):
        trust.calibrate(tuned, HELD_OUT)
    assert "a run that is missing" in attnlab.ask(tuned, HELD_OUT[0].question).words


def test_a_corpus_that_is_gone_or_changed_is_said(tiny_files: tuple[Run, Path]) -> None:
    run, corpus = tiny_files
    assert TrainingData(run).look_up().corpus is not None
    corpus.write_text("Ann Lee. Lee was born in Bath .\n")
    assert TrainingData(run).look_up().corpus is None
    assert "has changed since training" in TrainingData(run).look_up().note
    corpus.unlink()
    assert "does not exist" in TrainingData(run).look_up().note
    answer = attnlab.ask(run, "Where was Ann Lee born?")
    assert not answer.looked_up
    assert answer.verdict in ("guess", "not checked")


@pytest.fixture
def tiny_files(tmp_path: Path) -> tuple[Run, Path]:
    corpus, facts = tmp_path / "corpus.txt", tmp_path / "facts.tsv"
    corpus.write_text("Ann Lee. Lee was born in York .\nBo Ek. Ek was born in Bath .\n" * 20)
    facts.write_text("Where was Ann Lee born?\tYork\n")
    given = {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 64, "vocab_size": 280},
        "train": {"epochs": 1.0},
    }
    return stages.pretrain(resolve("quick", given=given), str(corpus), str(facts), tmp_path / "small"), corpus


def test_what_was_certified_does_not_cover_questions_of_another_form(run: Run) -> None:
    attnlab.calibrate(run, HELD_OUT)
    oracle = Oracle(run)
    name = load_corpus("people:120").titles[0]
    strange = oracle.answer(f"Was {name} tall?", max_risk=0.99)
    assert strange.abstains
    assert any("No training question is phrased like this" in one for one in strange.reasons)
    usual = oracle.answer(f"Where was {name}  born?", max_risk=0.99)
    assert not any("No training question is phrased like this" in one for one in usual.reasons)
    assert usual.question == f"Where was {name} born?"
