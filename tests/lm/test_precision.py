"""The model in float64, and under autocast: weights, loss and gradients keep the precision they need."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnlab.config import preset_names, resolve
from attnlab.errors import UserError
from attnlab.lm import devices
from attnlab.lm.batches import IGNORED
from attnlab.lm.decoding import generate
from attnlab.lm.model import LanguageModel, load_model, model_files
from attnlab.lm.tokenizers import Tokenizer
from attnlab.lm.train import SummedLoss
from attnlab.store.folders import write_folder

CPU = torch.device("cpu")


def small(preset: str, words: int) -> LanguageModel:
    config = resolve(preset).model
    sizes = {"n_embd": 32, "n_head": 2, "block_size": 32, "bottleneck": 4 if config.bottleneck else 0}
    given = {"vocab_size": words, "dropout": 0.0, "zero_init": False, **sizes}
    return LanguageModel(replace(config, **given))


def losses(model: LanguageModel, precision: devices.Precision) -> tuple[Tensor, list[Tensor]]:
    """The mean loss of a batch, and the gradients."""
    torch.manual_seed(1)
    ids = torch.randint(model.config.vocab_size, (2, 24))
    targets = torch.where(torch.arange(24) < 20, torch.randint(model.config.vocab_size, (2, 24)), IGNORED)
    with devices.autocast(CPU, precision):
        loss: Tensor = SummedLoss(model)(ids, targets) / 40
    return loss, list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("words", [300, 5000])
@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_in_every_precision(preset: str, words: int) -> None:
    model = small(preset, words)
    loss, gradients = losses(model, "float32")
    wide, wide_gradients = losses(copy.deepcopy(model).to(devices.dtype_of("float64")), "float64")
    assert wide.dtype == torch.float64
    assert loss.item() == pytest.approx(wide.item(), rel=1e-5)
    for one, other in zip(gradients, wide_gradients, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-7
    try:
        devices.check_precision(CPU, "bf16")
    except UserError as error:
        pytest.skip(str(error))
    short, short_gradients = losses(model, "bf16")
    assert short.dtype == torch.float32
    assert short.item() == pytest.approx(wide.item(), rel=0.01)
    for one, other in zip(short_gradients, wide_gradients, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.1 * other.norm() + 1e-5


def test_a_model_in_float64_is_saved_loaded_and_generates(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("char", ["the cat sat on the mat"], 300)
    model = small("small", tokenizer.size).double().eval()
    write_folder(tmp_path / "model", "model", model_files(model, tokenizer))
    loaded, _ = load_model(tmp_path / "model", device="cpu")
    ids = torch.tensor([tokenizer.encode("the cat")])
    assert loaded(ids).dtype == torch.float64
    assert torch.equal(loaded(ids), model(ids))
    assert generate(loaded, ids, 5) == generate(model, ids, 5, use_cache=False)
