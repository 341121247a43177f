"""Every fault of the collection is caught under a name that describes it, and every sound module passes."""

from __future__ import annotations

import pytest
import torch
from audit_collection import FAULTS, SOUND, audit_faulty, audit_sound, is_caught

from attnlab import registry
from attnlab.config import ModelConfig
from attnlab.errors import UserError
from attnlab.lm.devices import check_precision
from attnlab.lm.model import LanguageModel
from attnlab.measure.audit import audit_module
from attnlab.registry import Entry


def test_the_collection_is_large_enough() -> None:
    assert len(FAULTS) >= 45
    assert len(SOUND) >= 25


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_name(name: str) -> None:
    if name == "autocast only":
        try:
            check_precision(torch.device("cpu"), "bf16")
        except UserError:
            pytest.skip("this processor cannot compute in bf16")
    report = audit_faulty(name)
    assert is_caught(name, report), report.faults


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_module_passes(name: str) -> None:
    report = audit_sound(name)
    assert report.verdict == "pass", report.faults


def test_a_dropout_path_without_mask_is_caught_inside_a_model() -> None:
    registry.add(Entry("mechanism", "crafted", FAULTS["dropout path without mask"].build))
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 12, "vocab_size": 40}
    try:
        model = LanguageModel(ModelConfig(**sizes, dropout=0.1, mechanism="crafted", positions="learned"))
        assert {"future", "gradient"} <= set(audit_module(model).faults)
        without = LanguageModel(ModelConfig(**sizes, dropout=0.0, mechanism="crafted", positions="learned"))
        assert audit_module(without).verdict == "pass"
    finally:
        del registry._entries["mechanism", "crafted"]
