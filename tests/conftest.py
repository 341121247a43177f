"""Shared by all tests: shapes are checked as declared, one thread, a world small enough to train in a second."""

from __future__ import annotations

from jaxtyping import install_import_hook

install_import_hook(["attnlab.ops", "attnlab.mechanisms", "attnlab.model", "attnlab.optim"], "beartype.beartype")

import os  # noqa: E402
import signal  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from attnlab.config import RunConfig, resolve  # noqa: E402

# A script that starts the tests in its background makes them ignore Ctrl-C, and all that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Busy machines are slow, and a submission is judged on the same examples each time; elsewhere new ones are drawn.
settings.register_profile("attnlab", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("attnlab")

TINY: dict[str, Any] = {
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 2.0, "tokens_per_batch": 512, "checkpoint_every": 4},
}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The record of trusted code is that of the tests, not of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny() -> RunConfig:
    return resolve("small", given=TINY)


@pytest.fixture
def data_folder() -> Path:
    folder = os.environ.get("ATTNLAB_DATA")
    if not folder:
        pytest.skip("ATTNLAB_DATA is not set: it names the folder of measuring data")
    return Path(folder)
