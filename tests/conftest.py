"""Shared by all tests: shapes checked as declared, one thread, one worker a file, a world trained in a second."""

from __future__ import annotations

import gc

import jaxtyping

jaxtyping.install_import_hook(
    ["attnlab.ops", "attnlab.mechanisms", "attnlab.lm.model", "attnlab.lm.optim"], "beartype.beartype"
)

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

# Shapes are checked here, where every function with declared shapes is called. Checks are a third of the time of small
# models, and the other tests call the same functions thousands of times for other reasons.
FILES = "evaluate flops model ops optim packing precision taps train training_rules"
CHECKED = {"hf", "kernels", "mechanisms", *(f"test_{name}.py" for name in FILES.split())}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    place = item.path.relative_to(Path(__file__).parent).parts
    jaxtyping.config.update("jaxtyping_disable", CHECKED.isdisjoint(place))


# What is imported stays until the end: the collector need not look at it again after every few tests.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


# The files of these folders share what is trained for them.
SHARED = ("tests/studies/compare", "tests/trust")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With pytest-xdist, the tests of a file run in one worker, so that what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return next((folder for folder in SHARED if file.startswith(f"{folder}/")), file)

    return ByFile(config, log)


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
