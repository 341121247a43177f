"""Code that comes with a folder runs only for a user who has trusted it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

import attnlab
from attnlab import registry
from attnlab.cli import app
from attnlab.errors import AttnlabWarning, CheckpointError, UntrustedCode
from attnlab.lm.model import load_model
from attnlab.store import usercode
from attnlab.store.folders import write_manifest
from verbs import call, change, reseal

MINE = """
from pathlib import Path
from attnlab.mechanisms.dot import Dot
from attnlab.tasks.recall import Recall

Path({marker!r}).write_text("it ran")

class Mine(Dot):
    pass

class MyTask(Recall):
    pass
"""
TINY = ["--model.n_layer=1", "--model.n_head=2", "--model.n_embd=32", "--model.block_size=64", "--model.vocab_size=300"]
SHORT = ["--train.epochs=1", "--train.tokens_per_batch=1024"]
ASKED = "Where was Hank Aaron born?"


def become(patch: pytest.MonkeyPatch, state: Path) -> None:
    """Go on as a user with another record, in what might be another process."""
    patch.setenv("XDG_STATE_HOME", str(state))
    for known in (usercode._named, usercode._sources, registry._executed):
        known.clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody else has made with a file of code: runs, an export, studies; the file leaves a mark when it runs."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "mine.py").write_text(MINE.format(marker=str(folder / "marker")))
    with pytest.MonkeyPatch.context() as patch:
        become(patch, folder / "theirs")
        patch.chdir(folder)
        world = ["--corpus", "people:60", "--facts", "people:60:train", *TINY, *SHORT]
        named = ["--mechanism", "mine.py:Mine", "--task.name", "mine.py:MyTask"]
        assert call("pretrain", *world, *named, "--out", "run") == 0
        assert call("export", "run", "exported") == 0
        become(patch, folder / "nobody")
    make_stopped(folder / "run", folder / "stopped")
    make_studies(folder)
    shutil.copytree(folder / "run", folder / "other")
    change(folder / "other", seed=1)
    return folder


def rewrite(path: Path, **changes: Any) -> None:
    """Change some entries of a JSON file, and its checksum."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    reseal(path.parent)


def make_stopped(run: Path, stopped: Path) -> None:
    """A run that was stopped before its first checkpoint."""
    shutil.copytree(run, stopped, ignore=shutil.ignore_patterns("model", "checkpoints", "result.json"))
    reseal(stopped)


def make_studies(folder: Path) -> None:
    """Studies that were stopped before their first run: one names the file, one a settings file that names it."""
    (folder / "settings.toml").write_text(f"[model]\nmechanism = '{folder / 'mine.py'}:Mine'\n")
    given = {"model": {"mechanism": f"{folder / 'mine.py'}:Mine"}}
    variants = [{"name": "dot"}, {"name": "Mine", "given": given}]
    data = {"corpus": "people:60", "facts": "people:60:train", "exam": "people:60:dev"}
    compared = {"variants": variants, "varied": "model.mechanism", "seeds": [0], **data}
    recalled = {"preset": "quick", "file": str(folder / "settings.toml"), **data}
    for name, study, plan in (("compared", "compare", compared), ("recalled", "recall", recalled)):
        (folder / name).mkdir()
        (folder / name / "study.json").write_text(json.dumps({"study": study, "plan": plan, "fingerprints": {}}))
        write_manifest(folder / name, "study")


@pytest.fixture
def stranger(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, as another user finds it."""
    become(monkeypatch, tmp_path / "state")
    monkeypatch.chdir(made)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    (made / "marker").unlink(missing_ok=True)
    return made


def verbs(app: App, name: str = "") -> Iterator[str]:
    """Every verb of the command line."""
    for inner in app:
        if not inner.startswith("-"):
            yield from verbs(app[inner], f"{name} {inner}".strip())
    if app.default_command is not None:
        yield name


# What a folder is opened with, by verb; OUT is a place that does not exist. Verbs of the first table must refuse.
RUNS = ("run",)
OPENING: dict[str, list[list[str]]] = {
    "ask": [["ask", run, ASKED] for run in RUNS],
    "audit": [["audit", run] for run in RUNS],
    "calibrate": [["calibrate", run] for run in RUNS],
    "compare": [["compare", "run", "other"], ["compare", "run", "other", "--plan"]],
    "evaluate": [["evaluate", run, "--exam", "people:60:dev", "--out", "OUT"] for run in RUNS]
    + [["evaluate", "run", "--corpus", "people:60", "--out", "OUT"]],
    "export": [["export", run, "OUT"] for run in (*RUNS, "run/model")],
    "finetune": [["finetune", run, "--facts", "people:60:train", "--out", "OUT"] for run in RUNS],
    "generate": [["generate", run] for run in RUNS],
    "import": [["import", "exported", "OUT"]],
    "look": [["look", run, "Hank", "--out", "OUT"] for run in RUNS],
    "mechanisms show": [["mechanisms", "show", "linear", "--error", "--run", run] for run in RUNS],
    "resume": [["resume", one] for one in ("stopped", "compared", "recalled")],
}
SHOWING: dict[str, list[list[str]]] = {
    "report": [["report", "run", "other", "--json"], ["report", "compared", "--json"]],
    "runs": [["runs", "."], ["runs", ".", "--json"]],
    "runs delete": [["runs", "delete", "run"]],
    "runs export": [["runs", "export", "run", "--tensorboard", "OUT"]],
    "runs show": [["runs", "show", one] for one in ("run", "other", "stopped", "compared")],
}
OTHERS = {
    *(
        "bench",
        "check",
        "classify",
        "course new",
        "course sheet",
        "corpus export",
        "corpus find",
        "corpus show",
    ),
    *("mechanisms", "params", "pretrain", "settings", "run recall", "run trust", "run why"),
    *("run additive-vs-dot", "run shared-projections", "run masking", "run efficient", "run reports", "run ablations"),
    *("page", "score", "serve"),
}


def test_every_verb_is_known_to_open_runs_or_not_to() -> None:
    found = {verb for verb in verbs(app) if not verb.startswith("design ")}
    assert found == {*OPENING, *SHOWING, *OTHERS}


@pytest.mark.parametrize("verb", OPENING)
def test_a_verb_that_opens_a_folder_refuses_its_code(
    stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    for arguments in OPENING[verb]:
        capsys.readouterr()
        assert call(*(str(tmp_path / "out") if one == "OUT" else one for one in arguments)) == 2, arguments
        told = capsys.readouterr().err
        assert "mine" in told, arguments
        assert "would be run (class M" in told, arguments
        assert "--trust-code" in told, arguments
        assert not (stranger / "marker").exists(), arguments
        assert not (tmp_path / "out").exists()


def test_a_verb_that_shows_runs_no_code(stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (one for commands in SHOWING.values() for one in commands):
        call(*(str(tmp_path / "out") if one == "OUT" else one for one in arguments))
        assert not (stranger / "marker").exists(), arguments
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["mine.py:Mine", "./mine.py:Mine", "odd.py:mine.py:Mine", "odd.py:x.py@123456789abc:Mine"]
)
def test_no_spelling_in_a_folder_counts_as_named_by_the_user(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Even for somebody who has gone into the folder."""
    shutil.copytree("run", tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run" / "model")
    for file in ("mine.py", "odd.py:mine.py", "odd.py:x.py@123456789abc"):
        shutil.copy(stranger / "mine.py", file)
    model = json.loads(Path("config.json").read_text())["model"]
    rewrite(Path("config.json"), model={**model, "mechanism": name})
    with pytest.raises(CheckpointError, match="names code by its path"):
        load_model(".")
    assert not (stranger / "marker").exists()


@pytest.mark.parametrize(
    "name", ["x" * 5000 + ".py:Mine", "a\0.py:Mine", "\ud800.py:Mine", ".py:", "/.py:Mine", "..py@123456789abc:X"]
)
def test_a_strange_name_in_a_folder_is_an_error_of_one_line(stranger: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree("run", tmp_path / "run")
    model = json.loads((tmp_path / "run" / "model" / "config.json").read_text())["model"]
    rewrite(tmp_path / "run" / "model" / "config.json", model={**model, "mechanism": name})
    with pytest.raises(CheckpointError):
        load_model(tmp_path / "run")


def test_what_is_trusted_once_is_trusted_until_it_changes(
    stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("generate", "run", "Hank", "--n", "1", "--trust-code") == 0
    assert (stranger / "marker").exists()
    assert "trusted from now on: " in capsys.readouterr().err
    registry._executed.clear()
    assert call("generate", "run", "Hank", "--n", "1") == 0
    record = usercode.record_file()
    assert [stat.S_IMODE(one.stat().st_mode) for one in (record.parent, record)] == [0o700, 0o600]
    shutil.copytree("run/model", tmp_path / "changed")
    (carried,) = (tmp_path / "changed" / "code").iterdir()
    carried.write_text(carried.read_text() + "\n")
    with pytest.raises(CheckpointError, match="was changed since"):
        load_model(tmp_path / "changed")
    digits = hashlib.sha256(carried.read_bytes()).hexdigest()[:12]
    carried.rename(carried.with_name(f"mine-{digits}.py"))
    model = json.loads((tmp_path / "changed" / "config.json").read_text())["model"]
    rewrite(tmp_path / "changed" / "config.json", model={**model, "mechanism": f"mine.py@{digits}:Mine"})
    with pytest.raises(UntrustedCode, match=f"class Mine, 13 lines, sha256 {digits}"):
        load_model(tmp_path / "changed")


def test_a_run_opens_with_the_code_it_was_trained_with(stranger: Path, tmp_path: Path) -> None:
    """Its maker's record is enough, whatever became of the original."""
    shutil.copytree("theirs", tmp_path / "state")
    for verb in ("run", "stopped"):
        shutil.copytree(verb, tmp_path / verb)
    (stranger / "mine.py").rename(stranger / "gone.py")
    try:
        assert load_model(tmp_path / "run")[0].config.mechanism.startswith("mine.py@")
        assert call("resume", tmp_path / "stopped") == 0
        assert load_model(tmp_path / "stopped")[0].config.mechanism.startswith("mine.py@")
    finally:
        (stranger / "gone.py").rename(stranger / "mine.py")


@pytest.mark.parametrize("place", ["attnlab", "attnlab/trusted-code"])
def test_a_record_that_others_can_write_is_ignored(stranger: Path, tmp_path: Path, place: str) -> None:
    shutil.copytree("theirs", tmp_path / "state")
    (tmp_path / "state" / place).chmod(0o777)
    with pytest.warns(AttnlabWarning, match="is ignored"), pytest.raises(UntrustedCode):
        load_model("run")


def test_an_export_carries_its_code_and_asks_too(stranger: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import attnlab.exchange  # noqa: F401

    load = transformers.AutoModelForCausalLM.from_pretrained
    with pytest.raises(UntrustedCode, match="class Mine"):
        load("exported")
    assert not (stranger / "marker").exists()
    load("exported", trust_code=True).save_pretrained(tmp_path / "again")
    usercode._sources.clear()
    assert load(tmp_path / "again").language_model.config.mechanism.startswith("mine.py@")


def test_custom_code_of_a_model_of_transformers_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even for somebody who answers every question with yes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    places = {f"Auto{kind}": "evil.Evil" for kind in ("Config", "ModelForMaskedLM", "ModelForSequenceClassification")}
    config = {"model_type": "strange", "auto_map": {**places, "AutoTokenizer": ["evil.Evil", None]}}
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", **config}))
    marker = tmp_path / "marker"
    (tmp_path / "theirs" / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n")
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + "good\tgood\nbad\tbad\n" * 20)
    for arguments in (
        ["import", "theirs", "out"],
        ["classify", "table.tsv", "table.tsv", "--model", "theirs", "--out", "out"],
    ):
        assert call(*arguments) == 2, arguments
        assert "theirs" in capsys.readouterr().err
        assert not marker.exists(), arguments


def test_a_process_that_is_started_does_not_import_from_the_folder_it_is_started_in() -> None:
    """`python -m` would: a file called random.py beside a run is code that came with a folder."""
    package = Path(attnlab.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py")]
    started = [after for source in sources for after in re.findall(r"[\[(]sys\.executable, *(\S+)", source)]
    assert len(started) >= 3
    assert set(started) == {'"-P",'}
