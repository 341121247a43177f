"""A small run that read about 120 people."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnlab.config import resolve
from attnlab.lm import stages
from attnlab.store.runs import Run

TINY = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 3.0, "tokens_per_batch": 1024},
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trusted") / "run"
    return stages.pretrain(resolve("quick", given=TINY), "people:120", "people:120:train", folder)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "trusted-cache"
    monkeypatch.setenv("ATTNLAB_CACHE", str(folder))
    return folder
