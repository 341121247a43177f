"""Head ablation and activation patching from Python, on small models with random weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attnlab
from attnlab import Intervention
from attnlab.config import ModelConfig
from attnlab.errors import AttnlabError, UserError
from attnlab.inside.taps import capture, patch
from attnlab.lm import evaluate
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer

TEXT = "abcab"
ANSWERS = ["cab", "fed", "bad"]


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer.train("char", ["abcdefghijklm"], 16)


def model_of(mechanism: str = "dot", positions: str = "learned") -> LanguageModel:
    torch.manual_seed(0)
    settings = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 24, "vocab_size": 16, "zero_init": False}
    return LanguageModel(ModelConfig(mechanism=mechanism, positions=positions, **settings)).eval()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return model_of()


def next_chances(model: LanguageModel, tokenizer: Tokenizer, text: str = TEXT) -> dict[str, float]:
    with torch.no_grad():
        scores = model(torch.tensor([tokenizer.encode(text)]))[0, -1, : tokenizer.size].softmax(-1)
    return {tokenizer.piece(token): chance for token, chance in enumerate(scores.tolist())}


def without_head_1(z: Tensor) -> Tensor:
    z[:, :, 1] = 0
    return z


def test_a_head_switched_off_is_a_patch_of_its_tap(model: LanguageModel, letters: Tokenizer) -> None:
    result = attnlab.ablate(model, letters, TEXT, [Intervention(layer=0, head=1)])
    before = next_chances(model, letters)
    with patch(model, {"blocks.0.attn.hook_z": without_head_1}):
        after = next_chances(model, letters)
    assert result.answer == max(before, key=before.__getitem__)
    assert result.then == max(after, key=after.__getitem__)
    for row in result.rows:
        assert (row.before, row.after) == pytest.approx((before[row.answer], after[row.answer]))
    assert result.before != result.after
    assert next_chances(model, letters) == before, "the model is as it was"


def test_a_question_is_compared_by_its_answers(model: LanguageModel, letters: Tokenizer) -> None:
    change = [Intervention(layer=1, head=1)]
    result = attnlab.ablate(model, letters, TEXT, change, question=True, answers=ANSWERS)
    assert {row.answer for row in result.rows} == set(ANSWERS)
    with patch(model, {"blocks.1.attn.hook_z": without_head_1}):
        [written] = evaluate.answer_all(model, letters, [TEXT])
    [original] = evaluate.answer_all(model, letters, [TEXT])
    assert (result.written_before, result.written_after) == (original, written)
    searched = attnlab.ablate(model, letters, TEXT, change, question=True)
    assert searched.before >= result.before, "without answers, the likeliest of all are searched"


@pytest.mark.parametrize("question", [False, True])
def test_texts_longer_than_the_block_where_the_model_reads_them(letters: Tokenizer, question: bool) -> None:
    endless, text, answers = model_of(positions="rotary"), "abcdefgh" * 10, ANSWERS if question else None
    change = [Intervention(layer=0, head=1, position=60)]
    result = attnlab.ablate(endless, letters, text, change, question=question, answers=answers)
    assert result.before != result.after
    effects = list(attnlab.ablate_heads(endless, letters, text, question=question, answers=answers))
    assert effects[0].probability == pytest.approx(result.before)
    if not question:
        assert result.before == pytest.approx(next_chances(endless, letters, text)[result.answer])
    with pytest.raises(AttnlabError, match=r"tokens, but the model's block holds 24: shorten it"):
        attnlab.ablate(model_of(), letters, text, change, question=question, answers=answers)


def test_the_mean_replaces_one_token(model: LanguageModel, letters: Tokenizer) -> None:
    change = Intervention(layer=0, tap="mlp_out", position=3, by="mean")
    with torch.no_grad(), capture(model, ["blocks.0.hook_mlp_out"]) as seen:
        model(torch.tensor([letters.encode(TEXT)]))
    mean = seen["blocks.0.hook_mlp_out"][0].mean(0)

    def replaced(value: Tensor) -> Tensor:
        value[:, 3] = mean
        return value

    with patch(model, {"blocks.0.hook_mlp_out": replaced}):
        expected = next_chances(model, letters)
    for row in attnlab.ablate(model, letters, TEXT, [change]).rows:
        assert row.after == pytest.approx(expected[row.answer])


def test_all_of_the_last_layer_from_another_text_gives_its_prediction(model: LanguageModel, letters: Tokenizer) -> None:
    other = "mlkji"
    change = Intervention(layer=1, tap="resid_post", by="text", other=other)
    result, expected = attnlab.ablate(model, letters, TEXT, [change]), next_chances(model, letters, other)
    assert result.then == max(expected, key=expected.__getitem__)
    assert all(row.after == pytest.approx(expected[row.answer]) for row in result.rows)


@pytest.mark.parametrize("question", [False, True])
def test_each_head_in_turn(model: LanguageModel, letters: Tokenizer, question: bool) -> None:
    answers = ANSWERS if question else None
    effects = list(attnlab.ablate_heads(model, letters, TEXT, question=question, answers=answers))
    assert [(effect.layer, effect.head) for effect in effects] == [(None, None), (0, 0), (0, 1), (1, 0), (1, 1)]
    changes = [Intervention(layer=0, head=1)]
    result = attnlab.ablate(model, letters, TEXT, changes, question=question, answers=answers)
    assert (effects[0].probability, effects[2].probability) == pytest.approx((result.before, result.after), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Intervention(layer=9), "layer 10 has no such activation"),
        (Intervention(layer=-1), "no such activation"),
        (Intervention(layer=0, head=7), "2 heads"),
        (Intervention(layer=0, head=-1), "2 heads"),
        (Intervention(layer=0, position=5), "no token 6"),
        (Intervention(layer=0, position=-1), "no token 0"),
        (Intervention(layer=0, by="text", other="ab"), "2 tokens and this one 5"),
    ],
)
def test_impossible_changes_are_refused(
    model: LanguageModel, letters: Tokenizer, change: Intervention, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        attnlab.ablate(model, letters, TEXT, [change])


def test_a_model_that_diverged_is_refused(letters: Tokenizer) -> None:
    broken = model_of()
    with torch.no_grad():
        broken.head.weight.fill_(math.nan)
    with pytest.raises(AttnlabError, match="diverged"):
        attnlab.ablate(broken, letters, TEXT, [Intervention(layer=0)])
