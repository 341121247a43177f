from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from attnlab.config import resolve
from attnlab.errors import DataError, Diverged
from attnlab.lm import perplexity
from attnlab.lm.model import LanguageModel
from attnlab.lm.perplexity import SentenceLosses
from attnlab.lm.tokenizers import Tokenizer

LINES = [
    "The dog sees the cat.",
    "A cat sees a dog, and the dog runs.",
    "The dog runs.",
    "The cat runs to the dog.",
    "The zebra runs.",
]
WORDS = Tokenizer.train("word", LINES, 0, min_count=2)
BPE = Tokenizer.train("bpe", LINES, 270)


def model_for(tokenizer: Tokenizer, mechanism: str = "dot") -> LanguageModel:
    torch.manual_seed(0)
    small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64, "mechanism": mechanism}
    config = resolve("nano-words", given={"model": {**small, "vocab_size": tokenizer.size}}).model
    model = LanguageModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.train()


@pytest.mark.parametrize("tokenizer", [WORDS, BPE], ids=["word", "bpe"])
def test_a_loss_is_the_mean_over_the_tokens_of_a_sentence(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer)
    measured = perplexity.sentence_losses(model, tokenizer, LINES)
    assert model.training
    model.eval()
    for line, loss, tokens in zip(LINES, measured.losses, measured.tokens, strict=True):
        ids = tokenizer.sentence(line, 64)
        chances = model(torch.tensor([ids]))[0].log_softmax(-1)
        exact = [-chances[at, token].item() for at, token in enumerate(ids[1:])]
        assert loss == pytest.approx(sum(exact) / len(exact), rel=1e-5)
        assert tokens == len(exact)


@pytest.mark.parametrize("mechanism", ["dot", "zero_mask"])
def test_a_sentence_does_not_depend_on_its_company(mechanism: str) -> None:
    model = model_for(WORDS, mechanism)
    together = perplexity.sentence_losses(model, WORDS, LINES)
    alone = [perplexity.sentence_losses(model, WORDS, [line]).losses[0] for line in LINES]
    assert together.losses == pytest.approx(alone, rel=1e-5)


def test_padding_is_seen_only_by_a_mechanism_that_looks_where_it_should_not() -> None:
    def both(mechanism: str) -> tuple[SentenceLosses, SentenceLosses]:
        model = model_for(WORDS, mechanism)
        return tuple(perplexity.sentence_losses(model, WORDS, LINES, 20, padded) for padded in (False, True))  # type: ignore[return-value]

    bare, padded = both("dot")
    assert bare.losses == pytest.approx(padded.losses, rel=1e-5)
    assert bare.tokens == padded.tokens
    bare, padded = both("zero_mask")
    assert bare.losses != pytest.approx(padded.losses, rel=1e-2)


def test_the_two_perplexities() -> None:
    measured = SentenceLosses((math.log(2), math.log(8)), (3, 1), (0, 1))
    assert measured.loss == pytest.approx(math.log(2) * 6 / 4)
    assert measured.token_perplexity == pytest.approx(2**1.5)
    assert measured.sentence_perplexity == pytest.approx(5)
    assert measured.summary()["unknown_share"] == 0.25
    assert SentenceLosses.from_csv(measured.to_csv().decode()) == measured


def test_long_sentences_are_cut_and_unknown_words_counted() -> None:
    model = model_for(WORDS)
    measured = perplexity.sentence_losses(model, WORDS, LINES, longest=4)
    assert measured.tokens == (3,) * 5
    assert measured.unknown == (0, 1, 0, 0, 1)  # A and zebra are seen once
    first = perplexity.sentence_losses(model, WORDS, ["The dog runs"], longest=4)
    assert first.losses[0] == pytest.approx(measured.losses[2], rel=1e-6)
    assert perplexity.sentence_losses(model, WORDS, ["dog " * 200]).tokens == (63,)
    assert perplexity.sentence_losses(model, WORDS, ["dog " * 200], longest=100).tokens == (63,)  # learned positions


def test_sentences_longer_than_the_block_are_measured_where_positions_allow_it() -> None:
    model = LanguageModel(replace(model_for(WORDS).config, positions="rotary,none", n_head=1))
    line = " ".join(LINES * 6)
    measured = perplexity.sentence_losses(model, WORDS, [line], longest=100)
    assert measured.tokens == (99,)
    larger = LanguageModel(replace(model.config, block_size=128))
    larger.load_state_dict(model.state_dict())
    expected = perplexity.sentence_losses(larger, WORDS, [line], longest=100)
    assert measured.losses == pytest.approx(expected.losses, rel=1e-6)
    assert perplexity.sentence_losses(model, WORDS, [line]).tokens == (63,)


def reader(**given: object) -> LanguageModel:
    """A model with random weights and a block of 16 tokens."""
    torch.manual_seed(0)
    small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16, "vocab_size": BPE.size}
    model = LanguageModel(resolve("small", given={"model": {**small, **given}}).model)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def one_by_one(model: LanguageModel, ids: list[int], beyond: int, length: int) -> list[float]:
    """The loss of each token after number `beyond`, each in a window of its own."""
    step, last, losses = beyond // 8, len(ids) - 1, []
    for at in range(beyond + 1, len(ids)):
        first = max(length, beyond + step)  # the last token of the first window
        end = min(last, first + math.ceil(max(0, at - first) / step) * step)
        begin = max(0, end - length)
        chances = model(torch.tensor([ids[begin:end]]))[0].log_softmax(-1)
        losses.append(-chances[at - begin - 1, ids[at]].item())
    return losses


@pytest.mark.parametrize(
    "given", [{"positions": "rotary"}, {"mechanism": "alibi", "positions": "none"}, {"positions": "learned"}]
)
def test_tokens_after_the_block_are_read_with_any_length_of_context(given: dict[str, object]) -> None:
    model, random = reader(**given), torch.Generator().manual_seed(1)
    documents = [torch.randint(BPE.size, (size,), generator=random).tolist() for size in (65, 65, 44)]
    lengths = [length for length in (16, 32, 48, 64, 100) if length <= model.longest]
    assert len(lengths) == (1 if given["positions"] == "learned" else 5)
    found = {length: perplexity.context_losses(model, documents, BPE.pad, 16, length) for length in lengths}
    with torch.no_grad():
        for length, losses in found.items():
            exact = [one_by_one(model, ids, 16, length) for ids in documents]
            assert losses == pytest.approx([sum(each) / len(each) for each in exact], rel=1e-5)
    if lengths == [16]:
        return
    assert found[16] != pytest.approx(found[32], rel=1e-3)
    # Read whole, the tokens after the block and those up to it are all tokens: the ordinary loss is the mean of both.
    whole, begun = (perplexity.whole_losses(model, [ids[:end] for ids in documents], BPE.pad) for end in (100, 17))
    for ids, after, up_to, all_of_it in zip(documents, found[64], begun, whole, strict=True):
        assert (len(ids) - 17) * after + 16 * up_to == pytest.approx((len(ids) - 1) * all_of_it, rel=1e-5)


def test_probes() -> None:
    rows = perplexity.probe(model_for(WORDS), WORDS)
    assert [row.sentence for row in rows] == list(perplexity.PROBES)
    assert all(row.perplexity == pytest.approx(math.exp(row.loss)) for row in rows)
    assert rows[1].tokens == 11  # ten words and marks, and the stop
    assert rows[1].unknown == 6  # all but The, the, dog and the full stop


def test_probes_split_at_spaces_keep_their_punctuation() -> None:
    model = model_for(WORDS)
    (ours,), (spaced,) = (perplexity.probe(model, WORDS, ["The lazy dog."], spaces=one) for one in (False, True))
    assert (ours.tokens, ours.unknown) == (5, 1)
    assert (spaced.tokens, spaced.unknown) == (4, 2)  # `dog.` is no word
    already = [perplexity.probe(model, WORDS, ["The dog , the dog ."], spaces=one) for one in (False, True)]
    assert already[0] == already[1]


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(DataError, match="no sentence to measure"):
        perplexity.sentence_losses(model_for(WORDS), WORDS, [])
    with pytest.raises(DataError, match="sentence 2 .* no token to predict"):
        perplexity.sentence_losses(model_for(BPE), BPE, ["dog", ""])


def test_dropout_of_attention_is_its_own_or_that_of_all() -> None:
    config = replace(resolve("nano-words").model, n_embd=6, vocab_size=9)
    assert LanguageModel(config).blocks[0].attn.dropout == 0.0
    assert LanguageModel(config).blocks[0].dropout.p == LanguageModel(config).dropout.p == 0.1
    assert LanguageModel(replace(config, attention_dropout=-1.0)).blocks[0].attn.dropout == 0.1
    assert resolve("mingpt").model.dropout_of_attention == 0.1


def test_a_loss_beyond_any_guess_is_a_diverged_model() -> None:
    with pytest.raises(Diverged, match=r"the mean loss of a text is 906, .*: the model has diverged"):
        _ = SentenceLosses((906.0, 1.0), (10, 10), (0, 0)).sentence_perplexity
    with pytest.raises(Diverged):
        _ = SentenceLosses((math.nan,), (10,), (0,)).token_perplexity
