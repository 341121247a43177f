"""Readers given anything: success or an AttnlabError, never anything else; and a part of benchmarks/malformed.py."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnlab.config import RunConfig, build, flatten, read_toml, resolve
from attnlab.errors import AttnlabError
from attnlab.lm.model import load_model, read_tensors
from attnlab.report import write_document
from attnlab.report.runs import document, entry_document, side_by_side
from attnlab.store import listing
from attnlab.store.folders import read_json, reporting_damage, write_manifest
from attnlab.store.runs import Run
from verbs import call, reseal

FEW = settings(max_examples=60, suppress_health_check=list(HealthCheck))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["9" * 5000, "\0", "\x1b[2J", "\ud800", 10**400, "dot", "recall"]),
)
VALUES = st.recursive(
    LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3)
)


def load_program() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "malformed.py"
    spec = importlib.util.spec_from_file_location("malformed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["malformed"] = module
    spec.loader.exec_module(module)
    return module


malformed = load_program()
pytestmark = pytest.mark.filterwarnings("ignore::attnlab.errors.AttnlabWarning")  # of folders without checksums


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny run with the data it was trained on."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "lines.txt").write_text("".join(f"Ann Lee {n} was born in Rome.\n" for n in range(30)))
        (folder / "questions.tsv").write_text("".join(f"Where was Ann Lee {n} born?\tRome\n" for n in range(9)))
        command = (
            "pretrain",
            "--corpus",
            "lines.txt",
            "--facts",
            "questions.tsv",
            "--out",
            "runs/plain",
            *malformed.TINY,
        )
        assert call(*command) == 0
        assert call("evaluate", "runs/plain", "--exam", "questions.tsv", "--out", "runs/exam") == 0
        yield folder


def try_out(*readers: Callable[[], object]) -> None:
    """Every reader succeeds, or refuses what it was given."""
    for reader in readers:
        with suppress(AttnlabError):
            reader()


@FEW
@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode("utf-8", "replace")))
def test_readers_of_files_take_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "result.json", "study.json", "metrics.jsonl", "any.toml", "any.safetensors"):
        (folder / name).write_bytes(content)
    write_manifest(folder, "run")
    try_out(
        lambda: read_json(folder / "config.json"),
        lambda: read_toml(folder / "any.toml"),
        lambda: resolve(file=folder / "any.toml"),
        lambda: read_tensors(folder / "any.safetensors"),
        Run(folder).metrics,
        lambda: listing.read(folder).plain(),
    )


@FEW
@given(st.sampled_from(sorted(dict(flatten(RunConfig().to_dict())))), VALUES)
def test_settings_take_any_value(name: str, value: Any) -> None:
    *tables, key = name.split(".")
    values: dict[str, Any] = {key: value}
    for table in reversed(tables):
        values = {table: values}
    try_out(lambda: build(RunConfig, values), lambda: resolve(given=values))


@FEW
@given(st.integers(0, 10**9), st.sampled_from(["bytes", "cut", "insert", "value", "key", "whole"]), st.data())
def test_readers_of_runs_take_any_damage(world: Path, seed: int, damage: str, data: st.DataObject) -> None:
    """One file of a run is damaged, and put back after that."""
    names = ["config.json", "result.json", "metrics.jsonl", "env.json"]
    names += [f"model/{name}" for name in ("config.json", "tokenizer.json", "model.safetensors")]
    path = world / "runs/plain" / data.draw(st.sampled_from(names))
    content = path.read_bytes()
    try:
        try:
            path.write_bytes(malformed.DAMAGES[damage](content, random.Random(seed)))
        except ValueError:  # not JSON
            path.write_bytes(content[: len(content) // 2])
        reseal(path.parent)
        if "model" in path.parts[-2]:
            try_out(lambda: load_model(path.parent))
        else:
            try_out(lambda: show(path.parent), lambda: report(path.parent))
    finally:
        path.write_bytes(content)
        reseal(path.parent)


def show(run: Path) -> None:
    """What `attnlab runs show` reads."""
    entry = listing.read(run)
    with reporting_damage(run):
        entry_document(listing.details(entry))


def report(run: Path) -> None:
    """What `attnlab report` reads."""
    result = side_by_side([listing.read(run)], ["plain"])
    with reporting_damage(run):
        write_document(document(result), run.parent / "report", ("md", "json", "html"))


def test_wrong_values_of_options_end_in_a_line(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A hundred commands of the malformed-input program: those that train, build indexes or measure are left to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    quick = {
        "corpus",
        "evaluate",
        "generate",
        "params",
        "settings",
        "runs",
        "report",
        "finetune",
        "ask",
        "design",
        "check",
    }
    cases = malformed.wrong_values(random.Random(0), ["empty", "nested.json", "digits.toml", "syntax.py"])
    for number, case in enumerate(islice((case for case in cases if case.command[0] in quick), 100)):
        here = tmp_path / f"case-{number}"
        shutil.copytree(world, here)
        (here / "wrong").mkdir()
        (here / "wrong/nested.json").write_text("[" * 10_000)
        (here / "wrong/digits.toml").write_text("seed = " + "9" * 5000)
        monkeypatch.chdir(here)
        code = call(*[word.replace("runs/tuned", "runs/plain") for word in case.command])
        said = capfd.readouterr().err
        assert code in (0, 1, 2), f"{case}: {said}"
        assert "Traceback" not in said, str(case)
