from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnlab import corpora
from attnlab.config import ModelConfig, resolve
from attnlab.errors import DataError
from attnlab.lm import evaluate, stages
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.trust.answers import AnswerTrie, answer_distribution

FACTS = "people:60:train"


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Tokenizer]:
    """A small real model that has learned its training questions by heart."""
    model = {"n_layer": 1, "n_head": 2, "n_embd": 64, "block_size": 64, "vocab_size": 400}
    config = resolve("small", "scratch", given={"model": model, "train": {"epochs": 60.0, "tokens_per_batch": 512}})
    run = stages.finetune(config, None, FACTS, "people:60", tmp_path_factory.mktemp("runs") / "run")
    return load_model(run.model)


def test_what_was_learned_is_answered_exactly(knowing: tuple[LanguageModel, Tokenizer]) -> None:
    examination = evaluate.examine(*knowing, corpora.load_questions(FACTS))
    assert examination.score().accuracy >= 0.9


def test_answers_do_not_depend_on_the_company_of_other_questions(knowing: tuple[LanguageModel, Tokenizer]) -> None:
    questions = [item.question for item in corpora.load_questions("people:60:test")]
    together = evaluate.answer_all(*knowing, questions)
    assert together == [evaluate.answer_all(*knowing, [question])[0] for question in questions]


def test_an_answer_is_one_line_whatever_the_model_writes(
    knowing: tuple[LanguageModel, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "generate", lambda *_: [knowing[1].encode("New\r\nYork\u2028City\n")])
    assert evaluate.answer_all(*knowing, ["Where?"]) == ["New York City"]


def test_a_long_answer_is_not_cut(tmp_path: Path) -> None:
    facts, answer = tmp_path / "facts.tsv", "a city with a name of some sixty letters, as there are few"
    facts.write_text(f"Where was Ann born?\t{answer}\n" * 5)
    model = {"n_layer": 1, "n_head": 2, "n_embd": 64, "vocab_size": 64}
    settings = {"epochs": 100.0, "tokens_per_batch": 512, "optimizer": "muon", "lr": 3e-3}
    config = resolve("mingpt", "scratch", given={"model": model, "train": settings})
    run = stages.finetune(config, None, str(facts), None, tmp_path / "run")
    assert evaluate.answer_all(*load_model(run.model), ["Where was Ann born?"]) == [answer]


def test_top_answers_are_probabilities_led_by_the_greedy_answer(knowing: tuple[LanguageModel, Tokenizer]) -> None:
    question = corpora.load_questions(FACTS)[0].question
    answers = evaluate.top_answers(*knowing, question, 5)
    values = [probability for _, probability in answers]
    assert answers[0][0] == evaluate.answer_all(*knowing, [question])[0]
    assert values == sorted(values, reverse=True)
    assert sum(values) <= 1 + 1e-6
    assert len({answer for answer, _ in answers}) == len(answers)


def test_the_probability_of_an_answer_is_that_of_its_tokens(knowing: tuple[LanguageModel, Tokenizer]) -> None:
    model, tokenizer = knowing
    question = corpora.load_questions(FACTS)[0].question
    answer, probability = evaluate.top_answers(model, tokenizer, question, 1)[0]
    start = evaluate.encode_question(tokenizer, question, 64)
    ids = [*start, *tokenizer.encode(answer), tokenizer.mask]
    scores = model(torch.tensor([ids]))[0].log_softmax(-1)
    exact = sum(scores[at - 1, ids[at]].item() for at in range(len(start), len(ids)))
    assert probability >= 0.999 * torch.tensor(exact).exp().item()


def test_questions_longer_than_the_block_are_read_where_positions_allow_it() -> None:
    tokenizer, question = Tokenizer.train("char", ["abcdefgh"], 16), "abcdefgh" * 5
    torch.manual_seed(0)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=32, block_size=16, vocab_size=16, positions="rotary")
    model = LanguageModel(replace(config, zero_init=False)).eval()
    with torch.no_grad():
        model.head.weight[[tokenizer.mask, tokenizer.pad]] = 0.0  # so that answers do not end at once
    larger = LanguageModel(replace(model.config, block_size=64)).eval()
    larger.load_state_dict(model.state_dict())
    [written] = evaluate.answer_all(model, tokenizer, [question])
    assert written
    assert evaluate.answer_all(larger, tokenizer, [question])[0].startswith(written)
    tables = [
        answer_distribution(m, tokenizer, [question], AnswerTrie(tokenizer, ["ab", "cd"])).table
        for m in (model, larger)
    ]
    assert tables[0] == pytest.approx(tables[1], abs=1e-5)
    ending = LanguageModel(replace(model.config, positions="learned"))
    with pytest.raises(DataError, match=r"question 2 .* has 41 tokens, but the model's block holds 16: shorten it"):
        evaluate.answer_all(ending, tokenizer, ["ab", question])


def test_scratch_training_does_not_know_the_unseen(knowing: tuple[LanguageModel, Tokenizer]) -> None:
    seen = evaluate.examine(*knowing, corpora.load_questions(FACTS)).score().accuracy
    unseen = evaluate.examine(*knowing, corpora.load_questions("people:60:test")).score().accuracy
    assert unseen < seen - 0.3
