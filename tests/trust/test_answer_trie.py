"""Exact probabilities of answers, against plain forwards of the same models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnlab import corpora, registry, stats
from attnlab.config import resolve
from attnlab.errors import DataError, UserError
from attnlab.lm import evaluate, stages
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.studies.recall import choose
from attnlab.trust import answers
from attnlab.trust.answers import AnswerDistribution, AnswerTrie, answer_distribution

FACTS = corpora.load_questions("people:60:train")
UNSEEN = corpora.load_questions("people:60:test")
PLACES = [item.answer for item in FACTS if item.answer is not None]
KNOWN = [item.question for item in FACTS]

Asked = tuple[LanguageModel, Tokenizer]


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A small real model that has learned its training questions by heart."""
    model = {"n_layer": 1, "n_head": 2, "n_embd": 64, "block_size": 64, "vocab_size": 400}
    config = resolve("small", "scratch", given={"model": model, "train": {"epochs": 60.0, "tokens_per_batch": 512}})
    run = stages.finetune(config, None, "people:60:train", "people:60", tmp_path_factory.mktemp("runs") / "run")
    return load_model(run.model)


def plain(model: LanguageModel, tokenizer: Tokenizer, question: str, answer: str) -> float:
    """The log probability of an answer, from one forward over question and answer."""
    start = evaluate.encode_question(tokenizer, question, model.config.block_size)
    ids = tokenizer.encode(answer)
    with torch.no_grad():
        scores = model(torch.tensor([[*start, *ids]]))[0, len(start) - 1 :].double().log_softmax(-1)
    tokens = sum(scores[place, token].item() for place, token in enumerate(ids))
    return tokens + scores[-1, list(tokenizer.stops)].logsumexp(0).item()


def test_a_trie_shares_beginnings(knowing: Asked) -> None:
    _, tokenizer = knowing
    trie = AnswerTrie(tokenizer, ["New York City", "New Haven", " New York ", "Oslo", "New York"])
    assert trie.answers == ("New York City", "New Haven", "New York", "Oslo")
    paths = [tuple(tokenizer.encode(answer)) for answer in trie.answers]
    beginnings = {path[:length] for path in paths for length in range(len(path) + 1)}
    assert len(trie.token) == len(trie.ends) == len(beginnings)
    assert trie.depth == max(map(len, paths))
    assert sorted(place for place in trie.ends.tolist() if place >= 0) == [0, 1, 2, 3]
    found, waiting = {}, [(0, ())]
    while waiting:
        node, path = waiting.pop()
        assert path in beginnings
        if trie.ends[node] >= 0:
            found[path] = int(trie.ends[node])
        parents, nodes = trie.below(torch.tensor([node]))
        assert set(parents.tolist()) <= {0}
        waiting += [(child, (*path, int(trie.token[child]))) for child in nodes.tolist()]
    assert [found[path] for path in paths] == trie.order.tolist()


def test_children_of_several_nodes_at_once(knowing: Asked) -> None:
    trie = AnswerTrie(knowing[1], PLACES)
    nodes = torch.arange(len(trie.token)).flip(0)
    parents, children = trie.below(nodes)
    assert len(children) == len(trie.token) - 1
    one_by_one = [(int(node), int(child)) for node in nodes for child in trie.below(node[None])[1]]
    pairs = zip(nodes[parents].tolist(), children.tolist(), strict=True)
    assert list(pairs) == one_by_one


def test_probabilities_are_those_of_plain_forwards(knowing: Asked) -> None:
    trie = AnswerTrie(knowing[1], PLACES)
    questions = [*KNOWN[:6], UNSEEN[0].question, "Where?", "In which very small and distant city was Ann Lee born?"]
    found = answer_distribution(*knowing, questions, trie)
    expected = np.array([[plain(*knowing, question, answer) for answer in trie.answers] for question in questions])
    assert found.logp == pytest.approx(expected, abs=1e-4)
    assert np.exp(found.table).sum(axis=1) == pytest.approx(1, abs=1e-12)
    outside = np.exp(found.table[:, -1])
    assert outside == pytest.approx(1 - np.exp(expected).sum(axis=1), abs=1e-5)
    assert (outside > 0).all()
    top, probability = evaluate.top_answers(*knowing, questions[0], 1)[0]
    assert found.best()[0] == (top, pytest.approx(probability, abs=1e-4))


ENTRIES = [registry.find("mechanism", name) for name in registry.names("mechanism")]
SOUND = [entry.name for entry in ENTRIES if entry.causal and not entry.defect]


@pytest.mark.parametrize("mechanism", [*SOUND, "bottleneck"])
def test_the_walk_with_caches_equals_reading_from_the_beginning(knowing: Asked, mechanism: str) -> None:
    """Whatever a mechanism keeps: texts that go on in several ways do not disturb each other."""
    _, tokenizer = knowing
    torch.manual_seed(2)
    given: dict[str, Any] = {
        "n_layer": 3,
        "n_head": 2,
        "n_embd": 32,
        "block_size": 48,
        "vocab_size": tokenizer.size + 3,
    }
    given |= {"bottleneck": 16} if mechanism == "bottleneck" else {"mechanism": mechanism, "bottleneck": 0}
    model = LanguageModel(resolve("mingpt-perceiver", given={"model": given}).model)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    trie = AnswerTrie(tokenizer, PLACES[:12])
    questions = [item.question for item in UNSEEN[:4]]
    cached = answer_distribution(model, tokenizer, questions, trie)
    read = answer_distribution(model, tokenizer, questions, trie, use_cache=False)
    assert model.training
    model.eval()
    expected = [[plain(model, tokenizer, question, answer) for answer in trie.answers] for question in questions]
    assert cached.table == pytest.approx(read.table, abs=1e-3)
    assert read.logp == pytest.approx(np.array(expected), abs=1e-3)
    assert np.ptp(cached.logp, axis=0).max() > 0.1  # questions matter


def test_a_cache_that_cannot_be_split_is_done_without(knowing: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnlab.mechanisms.heads import KeyValueCache

    trie = AnswerTrie(knowing[1], PLACES[:5])
    expected = answer_distribution(*knowing, KNOWN[:3], trie).table
    monkeypatch.delattr(KeyValueCache, "select")
    assert answer_distribution(*knowing, KNOWN[:3], trie).table == pytest.approx(expected, abs=1e-4)


def test_neither_the_company_nor_the_order_of_questions_and_answers_matters(
    knowing: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    trie, turned = AnswerTrie(knowing[1], PLACES), AnswerTrie(knowing[1], PLACES[::-1])
    together = answer_distribution(*knowing, KNOWN, trie)
    back = answer_distribution(*knowing, KNOWN[::-1], turned)
    columns = [*map(turned.answers.index, trie.answers), len(trie)]
    assert together.table == pytest.approx(back.table[::-1][:, columns], abs=1e-4)
    monkeypatch.setattr(answers, "ROWS", 1)
    assert answer_distribution(*knowing, KNOWN, trie).table == pytest.approx(together.table, abs=1e-4)


def test_unlikely_beginnings_can_be_left_unread(knowing: Asked) -> None:
    trie = AnswerTrie(knowing[1], PLACES)
    exact = answer_distribution(*knowing, KNOWN[:8], trie)
    rough = answer_distribution(*knowing, KNOWN[:8], trie, floor=1e-4)
    assert np.exp(rough.table).sum(axis=1) == pytest.approx(1)
    assert np.isfinite(rough.logp).all()
    assert 1e-9 < np.abs(np.exp(rough.logp) - np.exp(exact.logp)).max() < 1e-4
    assert rough.entropy() == pytest.approx(exact.entropy(), abs=0.05)
    assert (rough.likeliest == exact.likeliest).all()
    cut = answer_distribution(*knowing, KNOWN[:1], trie, floor=1.0)  # nothing is read: what is inside is shared out
    first = [knowing[1].encode(answer)[0] for answer in trie.answers]
    for token in set(first):
        alike = [cut.logp[0, place] for place, one in enumerate(first) if one == token]
        assert alike == pytest.approx([alike[0]] * len(alike))


def test_what_was_learned_stands_out_from_what_was_not(knowing: Asked) -> None:
    """The whole chain on a real model: answers, entropy, nearness to the prior, and how well they tell known from unknown."""
    trie = AnswerTrie(knowing[1], PLACES)
    known = answer_distribution(*knowing, KNOWN, trie)
    never_asked = [
        one.question for part in ("test", "dev", "calibration") for one in corpora.load_questions(f"people:60:{part}")
    ]
    unknown = answer_distribution(*knowing, never_asked, trie)
    right = np.array([answer == item.answer for (answer, _), item in zip(known.best(), FACTS, strict=True)])
    assert right.mean() >= 0.9
    prior = known.prior()
    assert prior.sum() == pytest.approx(1)
    for measure in (known.confidence, -known.entropy(), known.distance(prior)):
        assert measure.shape == (len(KNOWN),)
    assert stats.auroc(known.confidence, unknown.confidence).value > 0.6
    assert stats.auroc(-known.entropy(), -unknown.entropy()).value > 0.6
    assert unknown.distance(prior).mean() < known.distance(prior).mean()


def test_figures_of_a_distribution_by_hand() -> None:
    with np.errstate(divide="ignore"):
        table = np.log(np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.1, 0.9]]))
    found = AnswerDistribution(("Rome", "Oslo"), table)
    assert found.best() == [("Rome", 0.5), ("Rome", 1.0), ("Oslo", pytest.approx(0.1))]
    assert np.exp(found.table[:, -1]).tolist() == pytest.approx([0.25, 0, 0.9])
    assert found.entropy() == pytest.approx([1.5 * math.log(2), 0, -0.1 * math.log(0.1) - 0.9 * math.log(0.9)])
    assert found.prior() == pytest.approx([0.5, 0.35 / 3, 1.15 / 3])
    prior = np.array([0.5, 0.5, 0.0])
    assert found.distance(prior) == pytest.approx([0.25, 0.5, 0.9])


def test_what_cannot_be_asked_is_refused_in_one_line(knowing: Asked) -> None:
    model, tokenizer = LanguageModel(replace(knowing[0].config, positions="learned")), knowing[1]
    trie = AnswerTrie(tokenizer, PLACES)
    with pytest.raises(DataError, match=r"question 2 .* has .* tokens, the longest answer .* holds 64: shorten"):
        answer_distribution(model, tokenizer, ["Where?", "Where " * 58], trie)
    with pytest.raises(DataError, match="question 1 .* has"):
        answer_distribution(model, tokenizer, ["Where " * 200], trie)
    with pytest.raises(UserError, match="there are no questions"):
        answer_distribution(model, tokenizer, [], trie)
    with pytest.raises(UserError, match=r"floor of probabilities must lie in \[0, 1\], not nan"):
        answer_distribution(model, tokenizer, ["Where?"], trie, floor=math.nan)
    with pytest.raises(DataError, match="no answers to choose from"):
        AnswerTrie(tokenizer, [])
    with pytest.raises(DataError, match="an answer is empty"):
        AnswerTrie(tokenizer, ["Rome", " "])
    with pytest.raises(DataError, match=r"'who\?' and 'who⁇' have the same tokens"):
        AnswerTrie(tokenizer, ["who?", "who⁇"])
    with pytest.raises(DataError, match="'Łódź' has a character unknown to the tokenizer"):
        AnswerTrie(Tokenizer.train("char", ["abcde"], 0), ["abc", "Łódź"])


def test_the_assisted_choice_is_the_likeliest_whole_answer_of_training(knowing: Asked) -> None:
    model, tokenizer = knowing
    few = tuple(
        corpora.Question(item.question, place) for item, place in zip(FACTS, sorted(set(PLACES))[:5], strict=False)
    )
    found = choose(model, tokenizer, few, UNSEEN[:8])
    offered = [item.answer for item in few if item.answer is not None]
    for item, said in zip(found.questions, found.predictions, strict=True):
        assert said == max(offered, key=lambda place: plain(model, tokenizer, item.question, place))
    assert (
        found.predictions != evaluate.examine(model, tokenizer, UNSEEN[:8]).predictions
    )  # left to itself it says others


@pytest.mark.parametrize("strange", ["York " * 100, "Y⁇rk"])
def test_the_assisted_choice_leaves_out_what_cannot_be_written(knowing: Asked, strange: str) -> None:
    model, tokenizer = knowing
    taught = (*FACTS, corpora.Question("Where was Nobody born?", strange))
    assert choose(model, tokenizer, taught, UNSEEN[:3]) == choose(model, tokenizer, FACTS, UNSEEN[:3])
