"""Sampling and beam search beside those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from exchanged import stored, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from attnlab.exchange import export
from attnlab.lm import decoding


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [1, 5, 50])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95])
def test_the_same_tokens_stay(temperature: float, top_k: int, top_p: float) -> None:
    torch.manual_seed(0)
    scores = 3 * torch.randn(16, 200)
    theirs = scores
    for warper in (TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)):
        theirs = warper(torch.zeros(16, 1, dtype=torch.int64), theirs)
    assert torch.equal(decoding.keep_likely(scores / temperature, top_k, top_p), theirs)


@pytest.mark.parametrize("beams", [1, 2, 6])
def test_the_same_beams_are_found(tmp_path: Path, beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without symbols that end a text, where the two count lengths alike; their score is per token."""
    tokenizer = tiny_tokenizer()
    model = tiny_model("mingpt", vocab_size=tokenizer.size)
    torch.nn.init.normal_(model.head.weight, std=0.5)
    export(stored(tmp_path / "ours", model), tmp_path / "theirs")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    monkeypatch.setattr(type(tokenizer), "stops", ())
    monkeypatch.setattr(tokenizer, "stop", tokenizer.pad)  # nothing is left out
    ids = tokenizer.encode("the cat")
    how = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 8, "do_sample": False}
    written = theirs.generate(
        torch.tensor([ids]), **how, eos_token_id=None, pad_token_id=0, output_scores=True, return_dict_in_generate=True
    )
    ours = decoding.beam_search(model, tokenizer, "the cat", beams, beams=beams, length_penalty=1.0, limit=8)
    assert [beam.text for beam in ours] == [tokenizer.decode(row) for row in written.sequences.tolist()]
    if beams > 1:
        assert [beam.score for beam in ours] == pytest.approx(written.sequences_scores.tolist(), abs=1e-4)
