from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import attnlab
from attnlab import cli
from attnlab.errors import StorageError, UserError
from attnlab.lm.progress import Meter
from attnlab.store import listing
from attnlab.store.folders import locked, to_json, write_bytes, write_folder, write_manifest
from attnlab.store.runs import Run
from verbs import call, change, reseal

TINY = ["--model.n_layer=1", "--model.n_head=2", "--model.n_embd=32", "--model.block_size=64", "--model.vocab_size=300"]
HOME = {**os.environ, "PYTHONPATH": str(Path(attnlab.__file__).parents[1])}
SHORT = ["--train.epochs=1", "--train.tokens_per_batch=1024"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    world = ("--corpus", "people:60", "--facts", "people:60:train")
    assert call("pretrain", *world, "--seed", "3", "--out", folder, *TINY, *SHORT) == 0
    return folder


def age(folder: Path, seconds: float) -> None:
    """Have every file of a folder written some time ago."""
    then = time.time() - seconds
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then), follow_symlinks=False)


@pytest.fixture
def here(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of everything under ./runs."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    shutil.copytree(trained, runs / "whole")
    shutil.copytree(trained, runs / "halved")
    change(runs / "halved", model__mechanism="linear", model__dropout=0.1)
    for name in ("result.json", "model"):
        target = runs / "halved" / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    rows = (runs / "halved/metrics.jsonl").read_text().splitlines()
    (runs / "halved/metrics.jsonl").write_text("\n".join(rows[: len(rows) // 2]) + '\n{"step": 99, "lo')
    reseal(runs / "halved")
    shutil.copytree(trained, runs / "study-1/pretrain")
    shutil.copytree(trained, runs / "study-1/again/finetune")
    change(runs / "study-1/again/finetune", model__mechanism="gqa", seed=8)
    write_bytes(runs / "study-1/study.json", to_json({"study": "recall", "plan": {"preset": "small"}}))
    write_bytes(
        runs / "study-1/result.json", to_json({"study": "recall", "rows": [{"accuracy": 0.5}], "seconds": 12.5})
    )
    write_manifest(runs / "study-1", "study")
    shutil.copytree(trained, runs / "damaged")
    (runs / "damaged/config.json").write_text('{"format": 1, "sta')
    (runs / "pictures").mkdir()
    (runs / "pictures/config.json").write_text('{"model_type": "bert"}')
    (runs / "empty").mkdir()
    (runs / ".whole.tmp").mkdir()
    (runs / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/precious.txt").write_text("mine")
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    ages = {"whole": 4000, "halved": 3000, "study-1": 2000, "damaged": 1000, "pictures": 900, "empty": 800}
    for name, seconds in ages.items():
        age(runs / name, seconds)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert call("runs", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def names(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    return [entry["name"] for entry in listed(capsys, *arguments)]


def fails(capsys: pytest.CaptureFixture[str], message: str, *arguments: str | Path, code: int = 2) -> None:
    capsys.readouterr()
    assert call("runs", *arguments) == code
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_everything_is_listed_as_what_it_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {entry["name"]: entry for entry in listed(capsys)}
    kinds = {name: (entry["kind"], entry["state"]) for name, entry in found.items()}
    assert kinds == {
        "whole": ("run", "complete"),
        "halved": ("run", "stopped"),
        "study-1": ("study", "complete"),
        "damaged": ("damaged", ""),
        "pictures": ("foreign", ""),
        "empty": ("foreign", ""),
        "linked": ("link", ""),
    }
    whole, result = found["whole"], Run(here / "runs/whole").result
    assert (whole["what"], whole["preset"], whole["mechanism"], whole["task"]) == ("pretrain", "small", "dot", "recall")
    assert (whole["tokens"], whole["seconds"], whole["loss"]) == (
        *(result.tokens, result.seconds),
        result.final_loss,
    )
    assert whole["seed"] == 3
    assert whole["settings"]["model.n_embd"] == 32
    study = found["study-1"]
    assert (study["what"], study["accuracy"], study["seconds"]) == ("recall", 0.5, 12.5)
    assert study["tokens"] == 2 * result.tokens
    assert study["mechanism"] == "gqa, dot"
    assert [run["name"] for run in study["runs"]] == ["finetune", "pretrain"]
    assert "config.json is damaged" in found["damaged"]["note"]


def test_a_stopped_run_tells_how_far_it_came(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (halved,) = listed(capsys, "--filter", "name=halved")
    metrics = Run(here / "runs/halved").metrics()
    last, meter = metrics[-1], Meter()
    for row in metrics:
        meter.update(row)
    assert (halved["tokens"], halved["progress"]) == (last.tokens, last.progress)
    assert halved["loss"] == pytest.approx(meter.loss)
    os.utime(here / "runs/halved/metrics.jsonl")  # the clock says nothing, the lock does
    assert listed(capsys, "--filter", "name=halved")[0]["state"] == "stopped"
    with locked(here / "runs/halved"):
        assert listed(capsys, "--filter", "name=halved")[0]["state"] == "active"
    (here / "runs/halved/metrics.jsonl").unlink()
    (halved,) = listed(capsys, "--filter", "name=halved")
    assert (halved["state"], halved["tokens"], halved["loss"]) == ("stopped", None, None)


def test_the_table_for_people(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.common.console, "_width", 150)
    assert call("runs") == 0
    wide = capsys.readouterr().out
    assert "mechanism" in wide
    assert "tokens" in wide
    assert "stopped at" in wide
    assert "50.0 %" in wide
    assert wide.index("whole") < wide.index("halved") < wide.index("study-1")
    assert "again" not in wide
    assert call("runs", "--all") == 0
    assert "study-1/again/finetune" in capsys.readouterr().out
    monkeypatch.setattr(cli.common.console, "_width", 72)
    assert call("runs", "--filter", "kind=run") == 0
    narrow = capsys.readouterr().out
    assert "left out" in narrow
    assert "1 min" not in narrow
    assert all(len(line) <= 72 for line in narrow.splitlines())


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        (["mechanism=dot"], ["whole", "study-1"]),
        (["mechanism=linear"], ["halved"]),
        (["model.mechanism=gqa"], ["study-1"]),
        (["mechanism=gqa", "seed=8"], ["study-1"]),
        (["mechanism=gqa", "seed=3"], []),  # not the same run of the study
        (["mechanism=gqa", "study=recall"], ["study-1"]),
        (["stage=pretrain", "kind=run"], ["whole", "halved"]),
        (["dropout>0"], ["halved"]),
        (["model.dropout<=0.1", "kind=run"], ["whole", "halved"]),
        (["kind=run", "qk_norm=true"], ["whole", "halved"]),
        (["kind=run", "qk_norm=false"], []),
        (["kind=run", "state!=complete"], ["halved"]),
        (["name=*ed", "kind!=link"], ["halved", "damaged"]),
        (["accuracy>0.4"], ["study-1"]),
        (["train.epochs=1", "kind=run"], ["whole", "halved"]),
        (["kind = run", "mechanism != dot"], ["halved"]),
    ],
)
def test_filters(here: Path, capsys: pytest.CaptureFixture[str], conditions: list[str], wanted: list[str]) -> None:
    arguments = [word for one in conditions for word in ("--filter", one)]
    assert names(capsys, *arguments) == wanted


def test_sorting_puts_what_has_no_value_last(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_tokens = names(capsys, "--sort", "tokens")
    assert by_tokens[:3] == ["halved", "whole", "study-1"]
    assert names(capsys, "--sort", "tokens", "--reverse")[:3] == ["study-1", "whole", "halved"]
    assert set(names(capsys, "--sort", "tokens", "--reverse")[3:]) == set(by_tokens[3:])
    assert names(capsys, "--sort", "model.dropout")[:2] == ["whole", "halved"]
    assert names(capsys, "--sort", "name")[0] == "damaged"


def test_mistakes_in_filters(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, "did you mean mechanism", "--filter", "mechanims=dot")
    fails(capsys, "did you mean tokens", "--sort", "token")
    fails(capsys, "a filter is NAME=VALUE", "--filter", "mechanism")
    fails(capsys, "not a number", "--filter", "tokens>many")
    fails(capsys, "model.options or task.options: write it in full", "--filter", "options=1")
    fails(capsys, "such as mechanism, state or loss, or a setting", "--filter", "foo=1")
    fails(capsys, "cannot be listed", "absent")
    fails(capsys, "is a run itself", "runs/whole")


def test_no_runs_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("runs") == 0
    assert "no runs in runs yet" in capsys.readouterr().out
    assert listed(capsys) == []
    fails(capsys, "no such run folder", "show", "absent")


def test_another_folder_and_that_of_a_study(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names(capsys, here / "elsewhere") == []
    assert names(capsys, here / "runs/study-1", "--filter", "kind=run") == ["pretrain"]


@pytest.mark.parametrize("content", ["", "[1]", "null", "{", '{"config": 3, "stage": []}', "\x00", "[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "study.json", "result.json", "metrics.jsonl"])
def test_no_content_of_a_file_brings_it_down(tmp_path: Path, trained: Path, file: str, content: str) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(trained / name, broken / name)
    (broken / file).write_text(content)
    write_manifest(broken, "study" if file == "study.json" else "run")
    (entry,) = listing.read_all(tmp_path)
    assert entry.kind in ("run", "damaged", "foreign")
    json.dumps(entry.plain())
    listing.arrange(listing.choose([entry], [listing.Filter.parse("loss>0")]), "loss")


def test_a_result_with_values_of_other_types_is_damaged(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path / "odd")
    (tmp_path / "odd/result.json").write_text('{"parameters": 3, "tokens": "many"}')
    reseal(tmp_path / "odd")
    entry = listing.read(tmp_path / "odd")
    assert entry.kind == "damaged"
    assert "result.json is damaged, or of another version (Expected `int`, got `str` - at `$.tokens`)" in entry.note


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(here: Path) -> None:
    (here / "runs/whole").chmod(0)
    entry = listing.read(here / "runs/whole")
    (here / "runs/whole").chmod(0o755)
    assert entry.kind == "damaged"


def test_show(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("runs", "show", "whole") == 0
    text = capsys.readouterr().out
    assert "Different from preset small" in text
    assert "model.n_embd" in text
    assert "instead of 256" in text
    assert "model/" in text
    assert "metrics.jsonl" in text
    assert call("runs", "show", "runs/halved") == 0
    assert "resume it with: attnlab resume runs/halved" in capsys.readouterr().out
    for name in ("study-1", "damaged", "pictures", "linked", "empty"):
        assert call("runs", "show", name) == 0
    fails(capsys, "did you mean whole", "show", "whle")


@pytest.mark.parametrize("name", ["whole", "study-1"])
def test_a_folder_without_a_manifest_is_refused_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (here / "runs" / name / "manifest.json").unlink()
    (entry,) = listed(capsys, "--filter", f"name={name}")
    assert (entry["kind"], entry["note"]) == ("foreign", "it has no manifest.json")
    for command in (("report", name), ("resume", f"runs/{name}"), ("generate", f"runs/{name}", "Hank")):
        assert call(*command) in (1, 2)
        error = capsys.readouterr().err
        assert "has no manifest.json" in error
        assert error.count("\n") == 1


def test_show_for_programs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown: dict[str, Any] = listed(capsys, "show", "whole")  # type: ignore[assignment]
    wanted = {"seed", "model.n_layer", "model.n_head", "model.n_embd", "model.block_size", "model.vocab_size"}
    assert set(shown["differences"]) == wanted | {"train.epochs", "train.tokens_per_batch"}
    assert shown["differences"]["model.n_embd"] == [256, 32]
    assert shown["result"] == asdict(Run(here / "runs/whole").result)
    sizes = {one["name"]: one["bytes"] for one in shown["files"]}
    assert sizes["config.json"] == (here / "runs/whole/config.json").stat().st_size
    assert sizes["model/"] > 10_000
    change(here / "runs/whole", preset="vanished")
    assert listed(capsys, "show", "whole")["differences"] is None  # type: ignore[call-overload]


def test_outputs_are_known_by_their_manifest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(here / "runs/made", "bench", {"config.json": b"{}", "deep/file.txt": b""}, about="a benchmark")
    (entry,) = listed(capsys, "--filter", "name=made")
    shown = entry["kind"], entry["what"], entry["note"], entry["state"]
    assert shown == ("output", "bench", "a benchmark", "complete")
    assert call("report", "made") == 2
    assert "made is a benchmark, which already holds its report" in capsys.readouterr().err
    (here / "runs/made/mine.txt").write_text("mine")
    fails(capsys, "it also holds mine.txt", "delete", "made", "--yes")
    (here / "runs/made/mine.txt").unlink()
    assert call("runs", "delete", "made", "--yes") == 0
    assert not (here / "runs/made").exists()


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_delete_takes_what_it_was_told_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs/whole/out").symlink_to(here / "elsewhere")
    (here / "runs/whole/model/precious.txt").symlink_to(here / "elsewhere/precious.txt")
    before = everything(here)
    assert call("runs", "delete", "whole", "runs/study-1", "runs/study-1/pretrain", "--yes") == 0
    out = capsys.readouterr().out
    assert "recall" in out
    assert "free" in out
    gone = {path for path in before if path.startswith(("runs/whole", "runs/study-1"))}
    assert everything(here) == before - gone
    assert (here / "elsewhere/precious.txt").read_text() == "mine"


def test_what_is_not_a_run_is_refused_and_then_nothing_goes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(here)
    fails(capsys, "is not a run (it has no manifest.json)", "delete", "whole", "pictures", "--yes")
    fails(capsys, "is damaged", "delete", "damaged", "--yes")
    fails(capsys, "is not a run", "delete", "empty", "--yes")
    fails(capsys, "is not a run", "delete", "runs", "--yes")
    fails(capsys, "is not a run", "delete", "runs/whole/model", "--yes")
    fails(capsys, "is not a run", "delete", "/", "--yes")
    fails(capsys, "is a link, which is not followed", "delete", "linked", "--yes")
    fails(capsys, "did you mean whole", "delete", "whol", "--yes")
    fails(capsys, "at least one run", "delete", "--yes")
    (here / "runs/shortcut").symlink_to(here / "runs/whole")
    fails(capsys, "is a link", "delete", "shortcut", "--yes")
    (here / "runs/shortcut").unlink()
    assert everything(here) == before


def test_without_a_terminal_it_asks_for_yes(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        fails(capsys, "in a script, add --yes", "delete", "whole")
    assert (here / "runs/whole").is_dir()


@pytest.mark.parametrize(("answer", "goes"), [("y", True), ("YES", True), ("n", False), ("", False), ("\x04", False)])
def test_the_answer_at_a_terminal_decides(here: Path, answer: str, goes: bool) -> None:
    own, theirs = pty.openpty()
    program = [sys.executable, "-m", "attnlab", "runs", "delete", "whole"]
    with subprocess.Popen(program, stdin=theirs, stdout=subprocess.PIPE, text=True, cwd=here, env=HOME) as process:
        os.close(theirs)
        os.write(own, answer.encode() + (b"" if answer == "\x04" else b"\n"))
        out, _ = process.communicate(timeout=60)
    os.close(own)
    assert process.returncode == 0
    assert "Delete this, " in out
    assert ("nothing was deleted" in out) == (not goes)
    assert (here / "runs/whole").exists() == (not goes)


def test_nobody_deletes_the_floor_under_their_feet(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here / "runs/whole/model")
    fails(capsys, "contains the current directory", "delete", here / "runs/whole", "--yes")
    assert (here / "runs/whole/model").is_dir()


def test_those_who_may_miss_it_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads((here / "runs/halved/config.json").read_text())
    (here / "runs/halved/config.json").write_text(json.dumps({**stored, "base": "../whole"}))
    reseal(here / "runs/halved")
    assert call("runs", "delete", "whole", "runs/study-1/pretrain", "--yes") == 0
    out = capsys.readouterr().out.replace("\n", " ")
    assert "halved starts from it and is not finished" in out
    assert "part of the study study-1" in out
    with locked(here / "runs/halved"):
        assert call("runs", "delete", "halved", "--yes") == 0
    assert "it is being written now" in capsys.readouterr().out


def test_half_a_deletion_is_never_taken_for_a_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", stuck)
    with pytest.raises(StorageError, match=r"only partly deleted .* remove .*\.whole\.old\.tmp by hand"):
        listing.delete(here / "runs/whole")
    assert "whole" not in [entry.name for entry in listing.read_all(here / "runs")]


def test_outputs_of_other_verbs_are_listed_and_can_go(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("evaluate", "runs/whole", "--exam", "people:60:test", "--out", "runs/exam") == 0
    (exam,) = listed(capsys, "--filter", "kind=output")
    assert (exam["name"], exam["what"], exam["note"]) == ("exam", "evaluation", "of runs/whole")
    assert exam["accuracy"] is not None
    assert call("runs", "delete", "exam", "--yes") == 0
    assert not (here / "runs/exam").exists()


def test_export_needs_its_package_and_says_so(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, None)
    fails(capsys, "pip install 'attnlab[tensorboard]'", "export", "whole", "--tensorboard", "board")
    assert not (here / "board").exists()


def test_exported_curves_are_those_of_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    assert call("runs", "export", "whole", "--tensorboard", "board") == 0
    events = EventAccumulator(str(here / "board/whole")).Reload().Tensors("train/loss")
    rows = Run(here / "runs/whole").metrics()
    assert [event.step for event in events] == [row.step for row in rows]
    losses = [make_ndarray(event.tensor_proto).item() for event in events]
    assert losses == pytest.approx([row.loss for row in rows], rel=1e-6)
    assert call("runs", "export", "study-1", "--tensorboard", "board") == 0
    assert {path.parent.name for path in (here / "board/study-1").rglob("events*")} == {"pretrain", "finetune"}
    fails(capsys, "exists already", "export", "whole", "--tensorboard", "board")


def test_nothing_to_export(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs/whole/metrics.jsonl").unlink()
    fails(capsys, "no steps to export", "export", "whole", "--tensorboard", "board")
    fails(capsys, "no runs to export", "export", "pictures", "--tensorboard", "board")


def test_every_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["runs"], ["runs", "show"], ["runs", "delete"], ["runs", "export"]):
        assert call(*words, "--help") == 0
        assert "Usage: attnlab runs" in capsys.readouterr().out


def test_listing_needs_no_torch(here: Path) -> None:
    program = (
        "import sys; from attnlab import cli; cli.main(['runs']); assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=here, env=HOME, stdout=subprocess.DEVNULL)


def test_a_filter_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UserError, match="a filter is"):
        listing.Filter.parse("=dot")
