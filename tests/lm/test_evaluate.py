from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab import corpora
from attnlab.config import ModelConfig, resolve
from attnlab.errors import DataError, UserError
from attnlab.lm import evaluate, stages
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer

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


@pytest.mark.parametrize("preset", ["small", "mingpt"])
def test_generation_with_a_cache_equals_generation_without(preset: str) -> None:
    torch.manual_seed(3)
    given = {"model": {"n_layer": 2, "n_embd": 64, "n_head": 2, "block_size": 40, "zero_init": False}}
    model = LanguageModel(resolve(preset, given=given).model).eval()
    ids = torch.randint(0, 200, (5, 7))
    cached = evaluate.generate(model, ids, 30)
    assert cached == evaluate.generate(model, ids, 30, use_cache=False)
    assert all(len(row) == 30 for row in cached)
    assert len(evaluate.generate(model, ids, 100)[0]) == 33  # the block is full
    stop = cached[0][4]
    assert evaluate.generate(model, ids, 30, (stop,))[0] == cached[0][: cached[0].index(stop)]


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


def test_too_long_a_question_is_named_with_its_number(knowing: tuple[LanguageModel, Tokenizer]) -> None:
    with pytest.raises(DataError, match=r"question 2 .* has .* tokens, but the model's block holds 64"):
        evaluate.answer_all(*knowing, ["Where?", "Where " * 200])


def test_scratch_training_does_not_know_the_unseen(knowing: tuple[LanguageModel, Tokenizer]) -> None:
    seen = evaluate.examine(*knowing, corpora.load_questions(FACTS)).score().accuracy
    unseen = evaluate.examine(*knowing, corpora.load_questions("people:60:test")).score().accuracy
    assert unseen < seen - 0.3


# Samples

LINES = ("The dog sees the cat.", "A cat sees a dog, and the dog runs.", "The dog runs.", "The cat runs to the dog.")


def writer(kind: str) -> tuple[LanguageModel, Tokenizer]:
    """An untrained model whose scores differ enough for draws to follow them, with more rows than symbols."""
    tokenizer = Tokenizer.train(kind, LINES, {"bpe": 270, "char": 0, "word": 0}[kind])  # type: ignore[arg-type]
    torch.manual_seed(1)
    model = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 48, "vocab_size": tokenizer.size + 5}
    made = LanguageModel(resolve("nano-words", given={"model": model}).model)
    torch.nn.init.normal_(made.head.weight, std=0.5)
    return made, tokenizer


@pytest.mark.parametrize("kind", ["word", "bpe", "char"])
def test_samples_follow_from_the_seed_with_a_cache_or_without(kind: str) -> None:
    model, tokenizer = writer(kind)
    texts = evaluate.sample(model, tokenizer, "The dog", 4, temperature=1.0, seed=3)
    assert model.training
    assert texts == evaluate.sample(model, tokenizer, "The dog", 4, temperature=1.0, seed=3, use_cache=False)
    assert texts[:2] == evaluate.sample(model, tokenizer, "The dog", 2, temperature=1.0, seed=3)
    assert texts != evaluate.sample(model, tokenizer, "The dog", 4, temperature=1.0, seed=4)
    assert len(set(texts)) > 1
    assert all(text.startswith("The dog") for text in texts)


def test_the_coldest_samples_are_greedy() -> None:
    model, tokenizer = writer("word")
    cold = evaluate.sample(model, tokenizer, "The dog", 2, temperature=0, limit=9)
    assert cold[0] == cold[1] == evaluate.sample(model, tokenizer, "The dog", 1, temperature=3.0, top_k=1, limit=9)[0]
    scores = model.eval()(torch.tensor([tokenizer.opening("The dog")]))[0, -1, : tokenizer.size]
    scores[[tokenizer.start, tokenizer.pad]] = -torch.inf
    assert cold[0].split()[2] == tokenizer.piece(scores.argmax().item())


def test_samples_have_the_probabilities_of_the_model() -> None:
    model, tokenizer = writer("word")
    first = evaluate.sample(model, tokenizer, "", 3000, temperature=0.7, top_k=3, limit=1)
    scores = model.eval()(torch.tensor([[tokenizer.start]]))[0, -1, : tokenizer.size]
    scores[[tokenizer.start, tokenizer.pad]] = -torch.inf
    values, tokens = scores.topk(3)
    expected = dict(zip(map(tokenizer.piece, tokens.tolist()), (values / 0.7).softmax(-1).tolist(), strict=True))
    assert {text: first.count(text) / 3000 for text in set(first)} == pytest.approx(expected, abs=0.03)


def test_words_begin_by_themselves_and_never_write_their_filling() -> None:
    model, tokenizer = writer("word")
    with torch.no_grad():
        model.head.weight[[tokenizer.start, tokenizer.pad]] = 50 * model.head.weight[5]
    texts = evaluate.sample(model, tokenizer, "", 20, temperature=5.0, limit=12)
    assert not any("<PAD>" in text or "<START>" in text or "<STOP>" in text for text in texts)
    assert any(texts)


def test_without_a_prompt_a_text_begins_as_a_document_does() -> None:
    model, tokenizer = writer("bpe")
    [alone] = evaluate.sample(model, tokenizer, count=1, temperature=0, limit=9)
    opening = torch.tensor([[tokenizer.pad]])
    likeliest = lambda scores: scores[:, : tokenizer.size].argmax(dim=-1)  # noqa: E731
    [wanted] = evaluate.generate(model.eval(), opening, 9, tokenizer.stops, choose=likeliest)
    assert alone == tokenizer.decode(wanted)


def test_samples_that_cannot_be_had() -> None:
    model, tokenizer = writer("bpe")
    with pytest.raises(UserError, match="the model's block holds 48: shorten it"):
        evaluate.sample(model, tokenizer, "dog " * 60)
    endless = LanguageModel(replace(model.config, positions="rotary"))
    assert evaluate.sample(endless, tokenizer, "dog " * 60, 1, limit=2)[0].startswith("dog dog")
    for wrong in ({"count": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"seed": -1}):
        with pytest.raises(UserError):
            evaluate.sample(model, tokenizer, "dog", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("beyond", [True, False])
def test_a_prompt_beyond_the_block_is_read_whole_where_positions_allow_it(use_cache: bool, beyond: bool) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8, "vocab_size": 50}
    model = LanguageModel(ModelConfig(**sizes, zero_init=False)).eval()
    whole = list(range(3, 20))
    assert len(evaluate.generate(model, torch.tensor([whole[:8]]), 5, use_cache=use_cache, beyond=beyond)[0]) == 5
    for token in evaluate.generate(model, torch.tensor([whole]), 5, use_cache=use_cache, beyond=beyond)[0]:
        assert token == model(torch.tensor([whole]))[0, -1].argmax()
        whole.append(token)
    assert len(whole) == 22
    learned = LanguageModel(ModelConfig(**sizes, positions="learned"))
    assert evaluate.generate(learned, torch.tensor([whole[:8]]), 5, use_cache=use_cache) == [[]]
    with pytest.raises(ValueError, match="do not fit"):
        evaluate.generate(learned, torch.tensor([whole]), 5, use_cache=use_cache, beyond=True)


@pytest.mark.parametrize("use_cache", [True, False])
def test_texts_may_be_longer_than_the_block(use_cache: bool) -> None:
    torch.manual_seed(0)
    model = LanguageModel(
        ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=50, zero_init=False)
    ).eval()
    begin = torch.tensor([[3, 4, 5]])
    inside = evaluate.generate(model, begin, 5, use_cache=use_cache)[0]
    long = evaluate.generate(model, begin, 12, use_cache=use_cache, beyond=True)[0]
    assert long[:5] == inside
    whole = [3, 4, 5, *long]
    for place in range(8, len(whole)):  # from the fourth token on, then four more, and so on
        seen = whole[place - 4 - (place - 8) % 4 : place]
        assert whole[place] == model(torch.tensor([seen]))[0, -1].argmax()
