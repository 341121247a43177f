"""attnlab's mechanisms inside a RoBERTa and a Llama: masks are kept, gradients flow, and what cannot work says why."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
)

from attnlab import registry
from attnlab.errors import UserError
from attnlab.exchange import equip, register

LENGTH = 40
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


def roberta() -> RobertaModel:
    torch.manual_seed(1)
    return enlarged(RobertaModel(RobertaConfig(**SIZES, max_position_embeddings=66), add_pooling_layer=False))


def llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return enlarged(LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=64, num_key_value_heads=2)))


def enlarged(model: nn.Module) -> nn.Module:
    """A model whose attention is far from even: fresh ones look everywhere alike."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            nn.init.normal_(parameter, std=0.3)
    return model.double().eval()  # leaks are then told from rounding


def given(model: nn.Module, name: str) -> nn.Module:
    """A model with another attention."""
    model.set_attn_implementation(name)
    try:
        model(input_ids=torch.zeros(1, 2, dtype=torch.long) + 5)
    except UserError as error:
        if "equip" not in str(error):
            raise
        equip(model)
    return model


@cache
def works(mechanism: str) -> bool:
    try:
        given(llama(), f"attnlab:{mechanism}")
    except UserError:
        return False
    return True


WORKING = [name for name in registry.names("mechanism") if works(name)]
REFUSED = {
    "gqa": "num_key_value_heads",
    "shared_qk": "projections belong to the model",
    "shared_qkv": "projections belong to the model",
    "synthesizer": "projections belong to the model",
    "perceiver": "needs the query projection",
    "zero_mask": "wrong on purpose",
    "gated_delta": "causal only",
    **dict.fromkeys(("mla", "dsa", "dsa_mla", "fox", "based"), "also reads the input of its layer"),
}
REFUSED |= {name: "causal only" for name in registry.names("mechanism") if registry.find("mechanism", name).ordered}


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts of different lengths, padded on the right."""
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[1, 30:] = 0
    mask[2, 7:] = 0
    return torch.randint(5, 60, (3, LENGTH)), mask


def test_every_mechanism_works_or_says_why_not() -> None:
    assert {*WORKING, *REFUSED} == set(registry.names("mechanism"))
    for name, why in REFUSED.items():
        with pytest.raises(UserError, match=why):
            given(roberta(), f"attnlab:{name}")


@pytest.mark.parametrize("make", [roberta, llama])
@pytest.mark.parametrize("side", ["left", "right"])
def test_dot_is_eager_attention(make: type, side: str) -> None:
    ids, mask = texts()
    if side == "left":
        ids, mask = ids.flip(1), mask.flip(1)
    for how in ("eager", "sdpa"):
        model = make().float()
        model.set_attn_implementation(how)
        expected = model(input_ids=ids, attention_mask=mask)[0]
        model.set_attn_implementation("attnlab:dot")
        found = model(input_ids=ids, attention_mask=mask)[0]
        assert (found - expected)[mask.bool()].abs().max() <= 5e-5  # of scores; processors round differently
        bare = model(input_ids=ids)[0]
        model.set_attn_implementation(how)
        assert (bare - model(input_ids=ids)[0]).abs().max() <= 5e-5


def test_the_users_line_works(tmp_path: Path) -> None:
    ids, mask = texts()
    RobertaForSequenceClassification(RobertaConfig(**SIZES, max_position_embeddings=66)).save_pretrained(tmp_path)
    model = RobertaForSequenceClassification.from_pretrained(tmp_path, attn_implementation="attnlab:performer").train()
    output = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1, 0]))
    output.loss.backward()
    assert all(one.grad is not None for one in model.parameters())


def test_a_gpt2_takes_it_too() -> None:
    ids, mask = texts()
    model = enlarged(GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64)))
    expected = model(ids, attention_mask=mask).logits
    found = given(model, "attnlab:dot")(ids, attention_mask=mask).logits
    assert (found - expected)[mask.bool()].abs().max() <= 1e-5


@pytest.mark.parametrize("mechanism", WORKING)
@pytest.mark.parametrize("make", [roberta, llama])
def test_padding_is_never_seen(mechanism: str, make: type) -> None:
    model, (ids, mask) = given(make(), f"attnlab:{mechanism}"), texts()
    others = torch.where(mask.bool(), ids, 5 + (ids + 7) % 55)
    found = model(input_ids=ids, attention_mask=mask)[0]
    assert (found - model(input_ids=others, attention_mask=mask)[0])[mask.bool()].abs().max() <= 1e-9
    if make is roberta:  # which would see it without the mask
        assert (found - model(input_ids=ids)[0])[mask.bool()].abs().max() > 1e-4


@pytest.mark.parametrize("mechanism", WORKING)
def test_padded_on_the_left_a_text_gets_what_it_gets_alone(mechanism: str) -> None:
    model, (ids, mask) = given(llama(), f"attnlab:{mechanism}"), texts()
    ids, mask = ids.flip(1), mask.flip(1)
    places = (mask.cumsum(dim=1) - 1).clamp_min(0)  # as generate counts them
    together = model(input_ids=ids, attention_mask=mask, position_ids=places)[0]
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        alone = model(input_ids=ids[row : row + 1, LENGTH - length :])[0][0]
        torch.testing.assert_close(together[row, LENGTH - length :], alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("mechanism", WORKING)
def test_the_future_is_never_seen_and_the_past_is(mechanism: str) -> None:
    model, (ids, _) = given(llama(), f"attnlab:{mechanism}"), texts()
    found = model(input_ids=ids)[0]
    for place in (3, 17, 33):
        others = ids.clone()
        others[:, place:] = 5 + (ids[:, place:] + 7) % 55
        changed = (model(input_ids=others)[0] - found).abs().amax(dim=(0, 2))
        assert changed[:place].max() <= 1e-9
        assert changed[place] > 1e-3


@pytest.mark.parametrize("mechanism", WORKING)
def test_an_encoder_sees_both_ways(mechanism: str) -> None:
    model, (ids, _) = given(roberta(), f"attnlab:{mechanism}"), texts()
    others = ids.clone()
    others[:, 9] = 5 + (ids[:, 9] + 7) % 55
    changed = (model(input_ids=others)[0] - model(input_ids=ids)[0]).abs().amax(dim=(0, 2))
    assert changed[8] > 1e-5
    assert changed[10] > 1e-5


@pytest.mark.parametrize("mechanism", WORKING)
def test_the_cache_changes_nothing(mechanism: str) -> None:
    model, (ids, mask) = given(llama(), f"attnlab:{mechanism}"), texts()
    ids, mask = ids.flip(1)[:, -20:], mask.flip(1)[:, -20:]
    how = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    cached, plain = (
        model.generate(ids, use_cache=cache, output_logits=True, return_dict_in_generate=True, **how)
        for cache in (True, False)
    )
    assert torch.equal(cached.sequences, plain.sequences)
    for one, other in zip(cached.logits, plain.logits, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mechanism", WORKING)
def test_gradients_flow_and_attentions_can_be_seen(mechanism: str) -> None:
    model, (ids, mask) = given(llama(), f"attnlab:{mechanism}"), texts()
    output = model(input_ids=ids, attention_mask=mask, labels=ids, output_attentions=True)
    assert [weights.shape for weights in output.attentions] == [(3, 4, LENGTH, LENGTH)] * 2
    torch.testing.assert_close(output.logits, model(input_ids=ids, attention_mask=mask).logits, atol=1e-4, rtol=0)
    model.train()
    model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


def test_what_was_drawn_is_the_same_in_every_model() -> None:
    ids, _ = texts()
    first, second = (given(llama(), "attnlab:performer") for _ in range(2))
    assert torch.equal(first(input_ids=ids)[0], second(input_ids=ids)[0])
    assert first.state_dict().keys() == llama().state_dict().keys()


def test_learned_weights_are_part_of_the_model(tmp_path: Path) -> None:
    ids, mask = texts()
    model = llama()
    model.set_attn_implementation("attnlab:linformer")
    with pytest.raises(UserError, match=r"weights of its own \(mix_keys, mix_values\).*equip"):
        model(input_ids=ids)
    equip(model)
    own = [name for name, _ in model.named_parameters() if "attnlab" in name]
    assert len(own) == 4
    nn.init.normal_(model.get_parameter(own[0]))
    model.save_pretrained(tmp_path / "saved")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "saved", attn_implementation="attnlab:linformer")
    equip(again, tmp_path / "saved")
    assert torch.equal(again(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits)
    plain = llama()
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(UserError, match="has no weights for"):
        equip(again, tmp_path / "plain")
    plain.set_attn_implementation("attnlab:dot")
    with pytest.raises(UserError, match="leave equip out"):
        equip(plain)


def test_options_and_a_mechanism_of_ones_own(tmp_path: Path) -> None:
    ids, mask = texts()
    assert register("sliding", "narrow", window=1) == "attnlab:narrow"
    narrow = given(roberta(), "attnlab:narrow")(input_ids=ids, attention_mask=mask, output_attentions=True)
    assert torch.equal(narrow.attentions[0][0, 0], torch.eye(LENGTH, dtype=torch.double))
    with pytest.raises(UserError, match="did you mean window"):
        register("sliding", windw=1)
    file = tmp_path / "mine.py"
    file.write_text(
        "from attnlab.mechanisms.heads import Attention\n"
        "from attnlab.ops import masked_softmax\n"
        "class Even(Attention):\n"
        "    def __init__(self, n_embd, n_head, block_size):\n"
        "        super().__init__(n_embd, n_head, block_size)\n"
        "    def pattern(self, q, k, mask):\n"
        "        return masked_softmax(q @ k.transpose(-2, -1) * 0, mask)\n"
    )
    name = register(f"{file}:Even")
    weights = given(llama(), name)(input_ids=ids, output_attentions=True).attentions[0]
    torch.testing.assert_close(weights[0, 0, 3, :4], torch.full((4,), 0.25, dtype=torch.double))
    with pytest.raises(UserError, match="is causal only"):
        given(roberta(), name)


def test_other_masks_and_longer_texts_are_refused() -> None:
    ids, _ = texts()
    model = given(llama(), "attnlab:dot")
    with pytest.raises(UserError, match="mask of padding"):
        model(ids, attention_mask=torch.ones(3, 1, LENGTH, LENGTH, dtype=torch.bool))
    with pytest.raises(UserError, match="register\\('dot', block_size=70\\)"):
        model(torch.randint(5, 60, (1, 70)))
    with pytest.raises(UserError, match="cache that grows"):
        model.generate(ids[:, :5], cache_implementation="static", max_new_tokens=3, disable_compile=True)
    positions = torch.cat([torch.arange(20), torch.arange(20)])[None].expand(3, -1)
    with pytest.raises(UserError, match="another mask"):
        model(ids, position_ids=positions, use_cache=False)
    windowed = MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)).eval()
    windowed.set_attn_implementation("attnlab:dot")
    with pytest.raises(UserError, match="another mask"):
        windowed(ids)
