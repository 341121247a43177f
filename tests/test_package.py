"""Promises of the package and its papers."""

from __future__ import annotations

import contextlib
import functools
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cyclopts.exceptions import MissingArgumentError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attnlab
from attnlab import cli
from attnlab.cli.common import respell
from attnlab.cli.studies import with_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> list[str]:
    """Every attnlab command in the shell blocks of a page."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").split("\n")
    return [line.split("  #")[0].strip() for line in lines if re.match(r"(\S*/)?attnlab |torchrun ", line)]


def mentions(page: Path) -> list[str]:
    """Every attnlab command in the running text of a page; arguments may be left out there."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    codes = [" ".join(code.split()) for code in re.findall(r"`(attnlab [^`]+)`", text)]
    return [code for code in codes if "..." not in code and "|" not in code]


@functools.cache
def understood(command: str) -> bool:
    words = shlex.split(command)
    if words[0] == "torchrun":
        words = words[words.index("attnlab") :]
    if words[1:2] == ["run"] and ".py:" in "".join(
        words[2:3]
    ):  # a study of the reader's own, whose options are its own
        return True
    return callable(cli.app.parse_args(with_study(respell(words[1:])), exit_on_error=False, print_error=False)[0])


def test_every_public_name_is_there_and_strangers_are_not() -> None:
    for name in attnlab.__all__:
        assert getattr(attnlab, name) is not None
    assert set(attnlab.__all__) <= set(dir(attnlab))
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        _ = attnlab.atention


def test_importing_is_instant() -> None:
    subprocess.run([sys.executable, "-c", "import sys, attnlab; assert 'torch' not in sys.modules"], check=True)


# The log keeps the commands of its time.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "LOG.md"], ids=lambda page: page.name)
def test_the_commands_of_the_documents_are_understood(page: Path) -> None:
    assert all(understood(command) for command in commands(page))
    for command in mentions(page):
        with contextlib.suppress(MissingArgumentError):
            assert understood(command), command


def test_the_readme_is_short_and_the_guide_has_the_commands() -> None:
    assert len(README.splitlines()) <= 120
    assert len(commands(ROOT / "README.md")) >= 8
    assert len(commands(ROOT / "docs/guide.md")) >= 50
    assert not re.search(r"@[A-Z]+@|TODO|XXX", README)


def test_the_prose_of_the_documents_is_wrapped_at_100_columns() -> None:
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        if page.name != "mechanisms.md":  # generated
            assert not [line for line in prose.split("\n") if len(line) > 100 and line[0] != "|"], page.name


def test_the_readmes_python_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As written, but for a world and a model small enough to train at once."""
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    block = block.replace('"people', '"people:60')
    monkeypatch.chdir(tmp_path)
    tiny = {"model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 300}, "train": {"epochs": 0.1}}
    real = attnlab.resolve
    monkeypatch.setattr("attnlab.config.resolve", lambda preset, given: real(preset, given={**given, **tiny}))
    exec(compile(block, "README.md", "exec"), {})
    assert "Correct: " in capsys.readouterr().out


def test_the_readmes_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"run", "test", "check"} <= set(re.findall(r"`?make ([a-z-]+)", README)) <= targets


def test_every_target_of_the_makefile_can_be_made() -> None:
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)[0].split()
    called = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE)
    assert (
        {"check", "test", "faults", "processes", "cluster", "notebooks", "browser", "dist-check"}
        == set(called)
        <= set(targets)
    )
    for target in targets:
        dry = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, dry.stderr
        assert "warning" not in dry.stderr  # a target is defined twice


def test_the_architectures_tree_names_every_module() -> None:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "src/attnlab"
    names = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    names |= {f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    listed = set(re.findall(r"^  ([a-z_]+(?:\.py|/))\s", text, flags=re.MULTILINE))
    assert listed == names


def test_the_walks_name_at_most_ten_files_and_what_is_in_them() -> None:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8").split("## Four walks")[1].split("\n## ")[0]
    walks = text.split("\n### ")[1:]
    assert len(walks) == 4
    for walk in walks:
        steps = re.findall(r"^\d\. `([a-z0-9_/]+\.py)`, `([A-Za-z_.]+)`", walk, flags=re.MULTILINE)
        assert 5 <= len(steps) == len(re.findall(r"^\d\. ", walk, flags=re.MULTILINE)) <= 10
        for file, name in steps:
            source = (ROOT / "src/attnlab" / file).read_text(encoding="utf-8")
            for part in name.split("."):
                assert re.search(rf"(def|class) {part}\b", source), f"{file}: {name}"


def test_the_page_of_the_python_api_is_up_to_date() -> None:
    """`make docs` writes it."""
    written = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "tools/api.py"))["page"]()
    named = re.findall(r"^- `([A-Za-z_]+)[(`].*", written, flags=re.MULTILINE)
    assert len(named) > 150


def test_the_documents_use_public_names_only() -> None:
    public = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    listed = {
        module: set(re.findall(r"^- `([A-Za-z_]+)", names, flags=re.MULTILINE))
        for module, names in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", public, flags=re.MULTILINE | re.DOTALL)
    }
    for page in PAGES:
        if page.name in ("LOG.md", "CHANGELOG.md", "ARCHITECTURE.md"):
            continue
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from (attnlab[\w.]*) import ([\w, ]+)", text, flags=re.MULTILINE):
            for name in names.split(", "):
                assert name in listed.get(module, ()) or f"{module}.{name}" in listed, f"{page.name}: {module}.{name}"


def test_the_changelog_knows_the_version() -> None:
    assert f"## [{attnlab.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_nothing_is_unpickled() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        unsafe = (
            r"\bpickle\b|torch\.load\((?!.*weights_only=True\)$)|torch\.save\((?!model)|broadcast_object|gather_object"
        )
        assert not re.search(unsafe, source, re.MULTILINE), path


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_a_mechanism_of_ones_own_is_as_easy_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/your-own.md").read_text(encoding="utf-8")
    block, recurrence, theirs, *_ = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_file.py").write_text(block)
    (tmp_path / "my_recurrence.py").write_text(recurrence)
    (tmp_path / "attention.py").write_text(theirs)
    monkeypatch.chdir(tmp_path)
    assert attnlab.audit_mechanism("my_file.py:MyAttention", length=97).verdict == "pass"
    assert attnlab.audit_mechanism("my_recurrence.py:MyRecurrence", length=97).verdict == "pass"
    report = attnlab.audit_mechanism("attention.py:CausalSelfAttention", length=9)
    assert report.verdict == "pass"
    assert report.notes[0] in " ".join(page.split())
    first, second, _ = re.findall(r"^attnlab (pretrain .*)$", page, flags=re.MULTILINE)
    small = ["--train.epochs", "1", "--model.n_embd", "32", "--model.n_head", "2", "--model.vocab_size", "300"]
    for number, command in enumerate((first, second)):
        words = shlex.split(command.replace("people:300", "people:60").partition(" --train.epochs")[0])
        cli.main([*words, *small, "--out", f"run-{number}"])
    assert attnlab.load_model("run-0")[0].blocks[1].attn.strength == 0.5
    layers = attnlab.load_model("run-1")[0].mechanisms
    assert [type(layer).__name__ for layer in layers[:2]] == ["MyRecurrence", "Dot"]
    assert layers[1].heads.rotary


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of every package of a lock."""
    text = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for _, *hashes in entries for word in hashes)
    return {pin.split("==")[0]: (pin.split("==")[1], hashes) for pin, *hashes in entries}


def test_the_locks_hold_every_dependency_within_its_range_and_with_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    torch, run, everything = locked("torch"), locked("run"), locked("all")
    needed = project["project"]["dependencies"] + project["build-system"]["requires"]
    extras = [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
    for lock, requirements in ((run, needed), (everything, needed + extras)):
        for requirement in map(Requirement, requirements):
            version, _ = (lock | torch)[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement} but {version} is locked: run `make lock`"
    assert list(torch) == ["torch"]
    assert run.items() <= everything.items()
    assert all(hashes for lock in (run, everything, locked("tools")) for _, hashes in lock.values())
