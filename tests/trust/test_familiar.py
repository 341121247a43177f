"""Whether a model knows a name, by its own account."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnlab import stats
from attnlab.config import resolve
from attnlab.corpora import Question, load_corpus, load_questions
from attnlab.lm import stages
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.runs import Run
from attnlab.trust import Calibrated, Oracle, Row, calibrate, calibration_of
from attnlab.trust.answers import AnswerDistribution, familiarity
from attnlab.trust.asking import MAX_RISK
from attnlab.trust.training_data import Forms
from attnlab.trust.verdict import GUESS, SUPPORTED

SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 48, "block_size": 64, "vocab_size": 400}
FACTS = [
    Question("Where was Ann Lee born?", "York"),
    Question("Where was Bob Hill (1950) born?", "Leeds"),
    Question("Where was Hank M. Aaron born?", "Mobile"),
    Question("What is the birthplace of Cy Young?", "Gilmore"),
]


@pytest.fixture(scope="module")
def taught_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small real run that was shown strangers."""
    options = {"strangers": 1.0, "lines": 0.0}
    given = {"model": SMALL, "task": {"options": options}, "train": {"epochs": 60.0, "tokens_per_batch": 512}}
    folder = tmp_path_factory.mktemp("familiar") / "run"
    return stages.pretrain(resolve("small", given=given), "people:40", "people:40:train", folder)


@pytest.fixture(scope="module")
def taught(taught_run: Run) -> tuple[LanguageModel, Tokenizer]:
    return load_model(taught_run.model)


def test_a_question_is_suggested_that_is_answered_at_the_risk_that_is_named(taught_run: Run) -> None:
    oracle, asked = Oracle(taught_run), load_questions("people:40:train")
    question, risk = oracle.suggest(asked)
    assert (oracle.answer(question, risk).answer, risk) == (
        {item.question: item.answer for item in asked}[question],
        MAX_RISK,
    )
    assert oracle.trie is not None
    prior = (1.0, *(0.0 for _ in oracle.trie.answers))
    rows = (Row("", "", "", True, 0.9, 0.9),) * 20  # 20 right answers certify 1 - 0.05^(1/20) = 13.9 %
    oracle.calibration = Calibrated("", stats.Platt(1.0, 0.0), oracle.trie.answers, prior, rows, 0)
    question, risk = oracle.suggest(asked)
    answer = oracle.answer(question, risk)
    assert (answer.verdict, answer.abstains, risk) == (SUPPORTED, False, 0.14)
    assert answer.words.startswith(f"{answer.answer} (")
    refused = oracle.answer(question, MAX_RISK)
    assert (refused.verdict, refused.abstains) == (GUESS, True)
    assert refused.words.startswith(
        "no answer (guess: a risk of 10 % cannot be certified, the smallest is --max-risk 0.14): “"
    )
    strange = oracle.answer(f"Pray, {question}", risk)
    assert (strange.verdict, strange.abstains) == (GUESS, True)
    assert oracle.suggest([Question("Where was Zaphod Beeblebrox born?", None)]) == ("", MAX_RISK)


def test_a_model_that_met_strangers_tells_them_from_those_it_read_about(
    taught: tuple[LanguageModel, Tokenizer],
) -> None:
    titles = load_corpus("people:40").titles
    strangers = [
        f"{one.rsplit(' ', 1)[0]} {other.rsplit(' ', 1)[1]}" for one, other in zip(titles, titles[7:], strict=False)
    ]
    strangers = [name for name in strangers if name not in titles]
    known, unknown = (familiarity(*taught, names) for names in (titles, strangers))
    assert stats.auroc(known, unknown).value > 0.9
    assert known.mean() - unknown.mean() > 0.3
    assert ((known >= 0) & (known <= 1)).all()


def test_a_name_is_the_same_alone_and_among_others_and_may_be_too_long(
    taught: tuple[LanguageModel, Tokenizer],
) -> None:
    names = [*load_corpus("people:40").titles[:5], "Nobody " * 40]
    together = familiarity(*taught, names)
    alone = [float(familiarity(*taught, [name])[0]) for name in names]
    assert together == pytest.approx(alone, abs=1e-5)
    assert together[-1] < 1  # rotary positions go on beyond the block
    ending = LanguageModel(replace(taught[0].config, positions="learned"))
    assert familiarity(ending, taught[1], names)[-1] == 1


def test_the_name_follows_from_how_questions_are_put() -> None:
    forms = Forms(FACTS)
    assert forms.name("Where was Ann Lee born?") == "Ann Lee"
    assert forms.name("Where was Bob Hill (1960) born?") == "Bob Hill (1960)"
    assert forms.name("What is the birthplace of Ed de la Cruz?") == "Ed de la Cruz"
    assert forms.name("In which town did Ann Lee die?") == "Ann Lee"
    train = load_questions("people:200:train")
    titles = set(load_corpus("people:200").titles)
    named = [Forms(train).name(item.question) for item in load_questions("people:200:test")]
    assert np.mean([name in titles for name in named]) > 0.95


def test_answers_about_the_unknown_lose_their_probability_to_anything_else() -> None:
    found = AnswerDistribution(("York", "Bath"), np.log([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]))
    valid = found.if_known(np.array([1.0, 0.5, 0.0]))
    assert np.exp(valid.table) == pytest.approx(np.array([[0.7, 0.2, 0.1], [0.35, 0.1, 0.55], [0, 0, 1]]))
    assert np.exp(valid.table).sum(axis=1) == pytest.approx(1)


def test_a_new_confidence_keeps_the_order_of_answers() -> None:
    found = AnswerDistribution(("York", "Bath"), np.log([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.2, 0.1, 0.7]]))
    moved = found.with_confidence(np.array([0.4, 0.9, 0.5]))
    expected = np.array([[0.4, 0.2, 0.4], [0.9, 0.075, 0.025], [0.5, 0.0625, 0.4375]])
    assert np.exp(moved.table) == pytest.approx(expected)
    with np.errstate(divide="ignore"):
        certain = AnswerDistribution(("York", "Bath"), np.log([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    moved = certain.with_confidence(np.array([0.8, 0.1]))
    assert np.exp(moved.table) == pytest.approx(np.array([[0.8, 0.0, 0.2], [0.1, 0.0, 0.9]]))


def test_a_calibration_keeps_names_of_nobody_unanswered(tmp_path_factory: pytest.TempPathFactory) -> None:
    options = {"strangers": 1.0, "lines": 0.0}
    given = {"model": SMALL, "task": {"options": options}, "train": {"epochs": 8.0, "tokens_per_batch": 512}}
    folder = tmp_path_factory.mktemp("nobody") / "run"
    run = stages.pretrain(resolve("small", given=given), "people:60", "people:60:train", folder)
    found = calibrate(run, load_questions("people:60:calibration"))
    assert len(found.nobody) > 300
    assert calibration_of(run) == found
    sure = replace(found, rows=tuple(replace(row, score=0.999, right=True) for row in found.rows * 20))
    rule = sure.rule(0.1)
    assert rule.threshold is not None
    answered = int((found.scaling(found.nobody) >= rule.threshold).sum())
    assert stats.risk_bound(answered, len(found.nobody)) <= 0.05
    assert "invented names" in rule.words
    assert "invented names" not in replace(sure, nobody=()).rule(0.1).words
