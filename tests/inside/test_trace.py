"""Every step to a prediction: the numbers are those that the model computes, also with changes."""

from __future__ import annotations

import pytest
import torch

from attnlab import Intervention
from attnlab.config import ModelConfig
from attnlab.errors import UserError
from attnlab.inside import Trace
from attnlab.inside.taps import capture, patch
from attnlab.inside.trace import trace
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer

TEXT = "abcab"
OFF = Intervention(layer=1, head=1)


class Unread(torch.nn.Identity):
    """In the place of a tap: a pattern that cannot be read."""

    watched = False


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer.train("char", ["abcdefghijklm"], 16)


def model_of(mechanism: str = "dot", **settings: object) -> LanguageModel:
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 24, "vocab_size": 17, "zero_init": False}
    return LanguageModel(ModelConfig(mechanism=mechanism, **(size | settings))).eval()  # type: ignore[arg-type]


def chances(model: LanguageModel, tokenizer: Tokenizer, steps: Trace) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([steps.ids]))[0, steps.token, : tokenizer.size].softmax(-1)


@pytest.mark.parametrize(
    "settings", [{}, {"norm_place": "post", "norm": "layer", "positions": "learned"}, {"mlp_ratio": 0}]
)
def test_the_last_point_is_the_prediction_and_the_stream_adds_up(
    letters: Tokenizer, settings: dict[str, object]
) -> None:
    model = model_of(**settings)
    steps = trace(model, letters, TEXT, limit=3)
    assert steps.tokens == [letters.piece(token) for token in steps.ids]
    assert (steps.given, steps.token) == (5, 4)
    assert len(steps.ids) <= 8
    expected = chances(model, letters, steps)
    best = int(expected.argmax())
    assert steps.points[-1].final == pytest.approx(expected[best].item(), rel=1e-4)
    assert steps.points[-1].guesses[0] == (letters.piece(best), pytest.approx(expected[best].item(), rel=1e-4))
    assert [share for _, share in steps.points[-1].guesses] == pytest.approx(expected.topk(6).values.tolist(), rel=1e-4)
    assert len(steps.points) == 1 + (2 if settings == {"mlp_ratio": 0} else 4)
    assert torch.tensor(steps.scores).diff().exp().tolist() == pytest.approx(
        (expected.topk(6).values[1:] / expected.topk(6).values[:-1]).tolist(), rel=1e-3
    )
    if "norm_place" in settings:
        assert len(steps.position) == 32
        return
    assert not steps.position
    assert steps.embeddings[-1] == steps.points[0].values
    added = [part for layer in steps.layers for part in (layer.attention, layer.mlp) if part]
    for before, part, after in zip(steps.points, added, steps.points[1:], strict=False):
        total = torch.tensor(before.values) + torch.tensor(part)
        assert torch.allclose(total, torch.tensor(after.values), atol=1e-3)


def test_products_make_the_weights_which_average_the_values_into_the_output(letters: Tokenizer) -> None:
    steps = trace(model_of("gqa"), letters, TEXT, token=3)
    for layer in steps.layers:
        assert (layer.kind, layer.softmax, layer.averages) == ("pattern", True, True)
        assert len(layer.weights) == 2
        for head, weights in enumerate(layer.weights):
            assert layer.rows[head] == [0, 1, 2, 3]
            assert len(weights) == len(steps.tokens)
            assert sum(weights) == pytest.approx(1, abs=1e-4)
            keys = torch.tensor(layer.keys[head])
            products = keys @ torch.tensor(layer.queries[head]) / keys.shape[1] ** 0.5
            assert products.tolist() == pytest.approx(layer.products[head], abs=1e-3)
            assert products.softmax(0).tolist() == pytest.approx(weights[:4], abs=1e-3)
            output = torch.tensor(weights[:4]) @ torch.tensor(layer.values[head])
            assert output.tolist() == pytest.approx(layer.outputs[head], abs=1e-3)


def test_other_mechanisms_show_the_weights_that_they_use_and_say_what_differs(letters: Tokenizer) -> None:
    recurrent = trace(model_of("gated_delta"), letters, TEXT).layers[0]
    assert (recurrent.kind, recurrent.softmax, recurrent.averages) == ("pattern", False, False)
    model = model_of("gated_delta")
    steps = trace(model, letters, TEXT)
    with torch.no_grad(), capture(model, "hook_pattern") as seen:
        model(torch.tensor([steps.ids]))
    used = seen["blocks.1.attn.hook_pattern"][0, 1, 4]
    assert steps.layers[1].weights[1] == pytest.approx(used.tolist(), abs=1e-4)
    alibi = trace(model_of("alibi", positions="none"), letters, TEXT).layers[0]
    assert (alibi.softmax, alibi.averages) == (False, True)
    model.blocks[0].attn.hook_pattern = Unread()
    steps = trace(model, letters, TEXT)
    assert (steps.layers[0].kind, len(steps.layers[0].weights)) == ("influence", 1)
    assert not any(steps.layers[0].keys[0])
    assert sum(steps.layers[0].weights[0]) == pytest.approx(1, abs=1e-3)
    assert steps.layers[1].kind == "pattern"


def test_with_changes_all_is_as_the_changed_model_computes_it(letters: Tokenizer) -> None:
    model = model_of()
    before, after = (trace(model, letters, TEXT, changes=changes) for changes in ((), [OFF]))
    assert after.layers[0] == before.layers[0]
    assert not any(after.layers[1].outputs[1])
    assert after.layers[1].outputs[0] == before.layers[1].outputs[0]
    assert after.points[3] != before.points[3]

    def without(z: torch.Tensor) -> torch.Tensor:
        z[:, :, 1] = 0
        return z

    with patch(model, {"blocks.1.attn.hook_z": without}):
        expected = chances(model, letters, after)
    assert after.points[-1].guesses[0][1] == pytest.approx(expected.max().item(), rel=1e-4)
    assert after.points[-1].final != pytest.approx(before.points[-1].final, rel=1e-3)


def test_only_the_strongest_tokens_of_a_long_text_are_kept(letters: Tokenizer) -> None:
    model = model_of(block_size=64)
    layer = trace(model, letters, "abcdefghij" * 4, limit=1).layers[0]
    rows, weights = layer.rows[1], layer.weights[1]
    assert len(rows) == len(layer.keys[1]) == len(layer.values[1]) == 24
    assert rows == sorted(rows)
    assert min(weights[row] for row in rows) >= sorted(weights[:40])[16]
    with pytest.raises(UserError, match="there is no token 99"):
        trace(model, letters, TEXT, token=98)
