"""A small comparison that is really trained, once for all tests: sentences, a sound mechanism and a leaking one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnlab.lm.model import LanguageModel
from attnlab.measure import audit
from attnlab.studies.compare import Compare, compare, runs
from attnlab.studies.compare.runs import work
from attnlab.studies.study import load

SMALL: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32},
    "train": {"epochs": 2.0, "tokens_per_batch": 512, "checkpoint_every": 20, "lr": 3e-3},
    "tokenizer": {"min_count": 1},
}
WORDS = {"corpus": "prose:100:train", "dev": "prose:300:dev", "task": "words", "given": SMALL}


@pytest.fixture
def small() -> dict[str, Any]:
    """Settings of the comparison below."""
    return SMALL


def train_here(plan: Compare, folder: Path, _: Console) -> list[Any]:
    """Train in this process, which is faster; test_a_stopped_comparison_goes_on and others start processes."""
    for name, seed in plan.order():
        work(folder, name, seed)
    return []


_audit, _audited = audit.audit_module, dict[str, audit.Report]()


def audit_once(model: LanguageModel, name: str) -> audit.Report:
    """Audit each mechanism once, whatever a comparison calls it: audits have tests of their own."""
    key = f"{model.config.mechanism} {model.config.options} {model.config.bottleneck}"
    return replace(_audited.get(key) or _audited.setdefault(key, _audit(model, name=name)), name=name)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audit each mechanism once."""
    monkeypatch.setattr(audit, "audit_module", audit_once)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "try_all", train_here)


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of `compare dot zero_mask` with two seeds."""
    folder = tmp_path_factory.mktemp("compared") / "study"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "try_all", train_here)
        patched.setattr(audit, "audit_module", audit_once)
        compare("dot", "zero_mask", "shared_qk", seeds=2, out=folder, **WORDS)
    return folder, load(folder).read_result(folder)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the result of a comparison with tuned rates, two seeds."""
    folder = tmp_path_factory.mktemp("tuned") / "study"
    given = {**SMALL, "train": {**SMALL["train"], "epochs": 1.0}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "try_all", train_here)
        patched.setattr(audit, "audit_module", audit_once)
        compare(
            *("dot", "linear"),
            **{**WORDS, "given": given},
            seeds=2,
            tune=["train.lr=0.00001,0.01"],
            margin=0.2,
            out=folder,
        )
    return folder, load(folder).read_result(folder)
