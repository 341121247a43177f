"""Decoding: the cache, sampling, beam search against an enumeration, and figures of repetition and diversity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab.config import ModelConfig, resolve
from attnlab.errors import UserError
from attnlab.lm import decoding
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer
from attnlab.mechanisms.heads import KeyValueCache


@pytest.mark.parametrize("preset", ["small", "mingpt"])
def test_generation_with_a_cache_equals_generation_without(preset: str) -> None:
    torch.manual_seed(3)
    given = {"model": {"n_layer": 2, "n_embd": 64, "n_head": 2, "block_size": 40, "zero_init": False}}
    model = LanguageModel(resolve(preset, given=given).model).eval()
    ids = torch.randint(0, 200, (5, 7))
    cached = decoding.generate(model, ids, 30)
    assert cached == decoding.generate(model, ids, 30, use_cache=False)
    assert all(len(row) == 30 for row in cached)
    assert len(decoding.generate(model, ids, 100)[0]) == 33  # the block is full
    stop = cached[0][4]
    assert decoding.generate(model, ids, 30, (stop,))[0] == cached[0][: cached[0].index(stop)]


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
    texts = decoding.sample(model, tokenizer, "The dog", 4, temperature=1.0, seed=3)
    assert model.training
    assert texts == decoding.sample(model, tokenizer, "The dog", 4, temperature=1.0, seed=3, use_cache=False)
    assert texts[:2] == decoding.sample(model, tokenizer, "The dog", 2, temperature=1.0, seed=3)
    assert texts != decoding.sample(model, tokenizer, "The dog", 4, temperature=1.0, seed=4)
    assert len(set(texts)) > 1
    assert all(text.startswith("The dog") for text in texts)


def test_the_coldest_samples_are_greedy() -> None:
    model, tokenizer = writer("word")
    cold = decoding.sample(model, tokenizer, "The dog", 2, temperature=0, limit=9)
    assert cold[0] == cold[1] == decoding.sample(model, tokenizer, "The dog", 1, temperature=3.0, top_k=1, limit=9)[0]
    scores = model.eval()(torch.tensor([tokenizer.opening("The dog")]))[0, -1, : tokenizer.size]
    scores[[tokenizer.start, tokenizer.pad]] = -torch.inf
    assert cold[0].split()[2] == tokenizer.piece(scores.argmax().item())


def test_samples_have_the_probabilities_of_the_model() -> None:
    model, tokenizer = writer("word")
    first = decoding.sample(model, tokenizer, "", 3000, temperature=0.7, top_k=3, limit=1)
    scores = model.eval()(torch.tensor([[tokenizer.start]]))[0, -1, : tokenizer.size]
    scores[[tokenizer.start, tokenizer.pad]] = -torch.inf
    values, tokens = scores.topk(3)
    expected = dict(zip(map(tokenizer.piece, tokens.tolist()), (values / 0.7).softmax(-1).tolist(), strict=True))
    assert {text: first.count(text) / 3000 for text in set(first)} == pytest.approx(expected, abs=0.03)


def test_words_begin_by_themselves_and_never_write_their_filling() -> None:
    model, tokenizer = writer("word")
    with torch.no_grad():
        model.head.weight[[tokenizer.start, tokenizer.pad]] = 50 * model.head.weight[5]
    texts = decoding.sample(model, tokenizer, "", 20, temperature=5.0, limit=12)
    assert not any("<PAD>" in text or "<START>" in text or "<STOP>" in text for text in texts)
    assert any(texts)


def test_without_a_prompt_a_text_begins_as_a_document_does() -> None:
    model, tokenizer = writer("bpe")
    [alone] = decoding.sample(model, tokenizer, count=1, temperature=0, limit=9)
    opening = torch.tensor([[tokenizer.pad]])
    likeliest = lambda scores: scores[:, : tokenizer.size].argmax(dim=-1)  # noqa: E731
    [wanted] = decoding.generate(model.eval(), opening, 9, tokenizer.stops, choose=likeliest)
    assert alone == tokenizer.decode(wanted)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_prompts_longer_than_the_block_are_read_where_positions_allow_it(kind: str) -> None:
    model, tokenizer = writer(kind)
    with pytest.raises(UserError, match="the model's block holds 48: shorten it"):
        decoding.sample(model, tokenizer, "dog " * 60)
    endless, larger = (LanguageModel(replace(model.config, positions="rotary", block_size=size)) for size in (48, 96))
    larger.load_state_dict(endless.state_dict())
    texts = [decoding.sample(made, tokenizer, "dog " * 60, 2, limit=3) for made in (endless, larger)]
    assert texts[0] == texts[1]
    beams = [decoding.beam_search(made, tokenizer, "dog " * 60, 2, limit=3) for made in (endless, larger)]
    assert [beam.text for beam in beams[0]] == [beam.text for beam in beams[1]]


def test_samples_that_cannot_be_had() -> None:
    model, tokenizer = writer("bpe")
    temperatures: list[dict[str, Any]] = [{"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": 1e-9}]
    for wrong in (*temperatures, {"count": 0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.01}, {"seed": -1}):
        with pytest.raises(UserError):
            decoding.sample(model, tokenizer, "dog", **wrong)
    for wrong in ({"count": 0}, {"beams": 0}, {"limit": 0}, {"length_penalty": -0.1}, {"length_penalty": 10.1}):
        with pytest.raises(UserError):
            decoding.beam_search(model, tokenizer, "dog", **wrong)


@pytest.mark.parametrize("use_cache", [True, False])
def test_texts_may_be_longer_than_the_block(use_cache: bool) -> None:
    torch.manual_seed(0)
    model = LanguageModel(
        ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=50, zero_init=False)
    ).eval()
    begin = torch.tensor([[3, 4, 5]])
    inside = decoding.generate(model, begin, 5, use_cache=use_cache)[0]
    long = decoding.generate(model, begin, 12, use_cache=use_cache, beyond=True)[0]
    assert long[:5] == inside
    whole = [3, 4, 5, *long]
    for place in range(8, len(whole)):  # from the fourth token on, then four more, and so on
        seen = whole[place - 4 - (place - 8) % 4 : place]
        assert whole[place] == model(torch.tensor([seen]))[0, -1].argmax()


# Which tokens are drawn from


def likely(scores: list[float], top_k: int, top_p: float) -> set[int]:
    """The reference: the likeliest tokens one by one, until there are top_k, or together they have top_p."""
    kept = sorted(range(len(scores)), key=lambda token: -scores[token])[: top_k or None]
    whole = sum(math.exp(scores[token]) for token in kept)
    nucleus: set[int] = set()
    for token in kept:
        if sum(math.exp(scores[other]) for other in nucleus) / whole < top_p:
            nucleus.add(token)
    return nucleus


@pytest.mark.parametrize("top_k", [0, 1, 3, 12, 40])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.75, 0.9, 0.999, 1.0])
def test_the_likely_tokens_are_those_of_the_reference(top_k: int, top_p: float) -> None:
    torch.manual_seed(0)
    scores = 2 * torch.randn(6, 12, dtype=torch.float64)
    kept = decoding.keep_likely(scores, top_k, top_p)
    assert [set(row.nonzero()[:, 0].tolist()) for row in kept.isfinite()] == [
        likely(row, top_k, top_p) for row in scores.tolist()
    ]
    assert torch.equal(kept[kept.isfinite()], scores[kept.isfinite()])


def test_the_nucleus_by_hand() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    for top_p, count in ((0.4, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.95, 4), (1.0, 4)):
        assert decoding.keep_likely(scores, 0, top_p).isfinite().sum() == count
    assert decoding.keep_likely(scores, 2, 0.7).isfinite().sum() == 2  # 0.5 of what top_k left is two thirds
    assert decoding.keep_likely(scores, 2, 0.6).isfinite().sum() == 1


def test_the_nucleus_is_that_of_the_scores_at_the_temperature() -> None:
    model, tokenizer = writer("word")
    scores = model.eval()(torch.tensor([[tokenizer.start]]))[0, -1, : tokenizer.size].detach()
    scores[[tokenizer.start, tokenizer.pad]] = -torch.inf
    for temperature in (0.5, 2.0):
        texts = decoding.sample(model, tokenizer, "", 1500, temperature=temperature, top_p=0.6, limit=1)
        wanted = likely((scores / temperature).tolist(), 0, 0.6)
        assert set(texts) == {"" if token in tokenizer.stops else tokenizer.piece(token) for token in wanted}


# Beam search


def tiny(mechanism: str = "dot", block: int = 16, **options: Any) -> tuple[LanguageModel, Tokenizer]:
    """An untrained model of three letters and the two symbols that end a text."""
    tokenizer = Tokenizer.train("char", ["ab"], 0)
    torch.manual_seed(2)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": block, "vocab_size": tokenizer.size}
    given = {"model": {**size, "mechanism": mechanism, "zero_init": False, **options}}
    model = LanguageModel(resolve("small", given=given).model).eval()
    torch.nn.init.normal_(model.head.weight, std=0.3)
    return model, tokenizer


def every_text(
    model: LanguageModel, tokenizer: Tokenizer, begin: list[int], limit: int
) -> Iterator[tuple[str, float, int]]:
    """All continuations with their log probabilities and lengths: those that end, and those cut at the limit."""
    letters = [token for token in range(tokenizer.size) if token not in tokenizer.stops]
    for length in range(limit + 1):
        for ids in product(letters, repeat=length):
            chances = model(torch.tensor([[*begin, *ids]])).double().log_softmax(-1)[0, len(begin) - 1 :]
            total = sum(chances[place, token].item() for place, token in enumerate(ids))
            if length == limit:
                yield tokenizer.decode(ids), total, limit
            else:
                yield tokenizer.decode(ids), total + chances[-1, list(tokenizer.stops)].logsumexp(0).item(), length + 1


@pytest.fixture(scope="module")
def enumerated() -> list[tuple[str, float, int]]:
    model, tokenizer = tiny()
    with torch.inference_mode():
        return list(every_text(model, tokenizer, tokenizer.encode("ab"), 5))


@pytest.mark.parametrize("count", [1, 7, 400])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.5])
def test_wide_beams_find_what_an_enumeration_finds(
    enumerated: list[tuple[str, float, int]], penalty: float, count: int
) -> None:
    assert sum(math.exp(total) for _, total, _ in enumerated) == pytest.approx(1)
    assert len(enumerated) == 364
    wanted = sorted(enumerated, key=lambda text: -text[1] / text[2] ** penalty)[:count]
    beams = decoding.beam_search(*tiny(), "ab", count, beams=243, length_penalty=penalty, limit=5)
    assert [(beam.text, beam.tokens) for beam in beams] == [("ab" + text, length) for text, _, length in wanted]
    assert [beam.log_probability for beam in beams] == pytest.approx([total for _, total, _ in wanted], abs=1e-5)
    assert all(beam.score == beam.log_probability / beam.tokens**penalty for beam in beams)


def reference(
    model: LanguageModel, tokenizer: Tokenizer, begin: list[int], width: int, penalty: float, limit: int
) -> list[tuple[str, float]]:
    """The reference: lists of texts, everything computed anew, to the end of the limit."""
    kept: list[tuple[list[int], float]] = [([], 0.0)]
    ended = []
    for length in range(1, limit + 1):
        longer = []
        for ids, total in kept:
            scores = model(torch.tensor([[*begin, *ids]]))[0, -1].double()
            scores = scores[: tokenizer.size]
            for never in {tokenizer.start, tokenizer.pad} - {None, tokenizer.stop}:
                scores[never] = -math.inf
            chances = scores.log_softmax(0)
            ending = sum(math.exp(chances[stop]) for stop in tokenizer.stops)
            ended.append((ids, (total + math.log(ending)) / length**penalty))
            letters = [token for token in range(tokenizer.size) if token not in tokenizer.stops]
            longer += [([*ids, token], total + chances[token].item()) for token in letters]
        kept = sorted(longer, key=lambda text: -text[1])[:width]
        kept = [text for text in kept if text[1] > -math.inf]
    ended += [(ids, total / limit**penalty) for ids, total in kept]
    first = begin[len(begin) > 0 and begin[0] == tokenizer.start :]
    return [(tokenizer.decode([*first, *ids]), score) for ids, score in sorted(ended, key=lambda text: -text[1])]


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [("dot", {}), ("linear", {}), ("dot,sliding", {"options": {"sliding": {"window": 3}}}), ("linformer", {})],
)
@pytest.mark.parametrize(("width", "penalty"), [(1, 0.0), (2, 1.0), (3, 0.5), (5, 1.5)])
def test_narrow_beams_are_those_of_the_reference(
    mechanism: str, options: dict[str, Any], width: int, penalty: float
) -> None:
    model, tokenizer = tiny(mechanism, **options)
    with torch.inference_mode():
        wanted = reference(model, tokenizer, tokenizer.encode("b"), width, penalty, 8)[:4]
    for use_cache in (True, False):
        how = {"beams": width, "length_penalty": penalty, "limit": 8, "use_cache": use_cache}
        beams = decoding.beam_search(model, tokenizer, "b", 4, **how)
        assert [beam.text for beam in beams] == [text for text, _ in wanted]
        assert [beam.score for beam in beams] == pytest.approx([score for _, score in wanted], abs=1e-5)


def test_beams_of_words_stop_at_the_block_and_never_write_their_filling() -> None:
    model, tokenizer = writer("word")
    beams = decoding.beam_search(model, tokenizer, "The dog", 3, beams=4, length_penalty=1.0)
    assert model.training
    with torch.inference_mode():
        wanted = reference(model.eval(), tokenizer, tokenizer.opening("The dog"), 4, 1.0, 48 - 3)
    assert [beam.text for beam in beams] == [text for text, _ in wanted[:3]]
    assert not any("<PAD>" in beam.text or "<START>" in beam.text for beam in beams)


@pytest.mark.parametrize("mechanism", ["dot", "linear"])
def test_beams_longer_than_the_block(mechanism: str) -> None:
    model, tokenizer = tiny(mechanism, block=8)
    with torch.no_grad():
        model.head.weight[list(tokenizer.stops)] = -model.head.weight[list(tokenizer.stops)]
    cached, plain = (
        decoding.beam_search(model, tokenizer, "abb", 3, beams=5, length_penalty=2.0, limit=20, use_cache=use_cache)
        for use_cache in (True, False)
    )
    assert [beam.text for beam in cached] == [beam.text for beam in plain]
    assert [beam.score for beam in cached] == pytest.approx([beam.score for beam in plain], abs=1e-5)
    assert max(beam.tokens for beam in cached) > 8


def test_caches_that_cannot_select_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny()
    expected = [beam.text for beam in decoding.beam_search(model, tokenizer, "ab", 3, limit=6)]
    monkeypatch.delattr(KeyValueCache, "select")
    assert [beam.text for beam in decoding.beam_search(model, tokenizer, "ab", 3, limit=6)] == expected


def test_a_search_ends_when_nothing_can_get_better(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny()
    steps: list[Tensor] = []
    compute = model.hidden
    monkeypatch.setattr(model, "hidden", lambda ids, **given: steps.append(ids) or compute(ids, **given))
    counts = []
    for penalty in (0.0, 3.0):  # under a penalty, a longer text could still have the higher score
        steps.clear()
        decoding.beam_search(model, tokenizer, "ab", 1, length_penalty=penalty, limit=12)
        counts.append(len(steps))
    assert counts == [2, 12]


# Repetition and diversity


def test_repetition_and_diversity_by_hand() -> None:
    once = decoding.variety(["a b c d e", "a b x"])
    assert once == decoding.Variety(repetition=0.0, diversity=5 / 6)  # the second text has no 4-gram; "a b" is in both
    again = decoding.variety(["a b a b a b a", "a b c d e f g"])
    assert again.repetition == pytest.approx((0.5 + 0.0) / 2)  # abab, baba, abab, baba
    assert again.diversity == pytest.approx(7 / 12)
    assert decoding.variety(["so it is: yes", "so it is."], "so it") == decoding.Variety(None, 1.0)
    assert decoding.variety(["one", ""]) == decoding.Variety(None, None)
    assert str(again) == "repetition (seq-rep-4) 25.0 %, diversity (distinct-2) 58.3 %"
    assert str(decoding.variety(["one"])) == "repetition (seq-rep-4) too short, diversity (distinct-2) too short"


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("beyond", [True, False])
def test_a_prompt_beyond_the_block_is_read_whole_where_positions_allow_it(use_cache: bool, beyond: bool) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8, "vocab_size": 50}
    model = LanguageModel(ModelConfig(**sizes, zero_init=False)).eval()
    whole = list(range(3, 20))
    for token in decoding.generate(model, torch.tensor([whole]), 5, use_cache=use_cache, beyond=beyond)[0]:
        assert token == model(torch.tensor([whole]))[0, -1].argmax()
        whole.append(token)
    assert len(whole) == 22
    assert len(decoding.generate(model, torch.tensor([whole[:8]]), 5, use_cache=use_cache, beyond=beyond)[0]) == 5
    learned = LanguageModel(ModelConfig(**sizes, positions="learned"))
    assert decoding.generate(learned, torch.tensor([whole[:8]]), 5, use_cache=use_cache) == [[]]
    with pytest.raises(ValueError, match="do not fit"):
        decoding.generate(learned, torch.tensor([whole]), 5, use_cache=use_cache, beyond=True)
