"""Starting studies: forms of commands, command lines, what is refused, and real jobs that are stopped and resumed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving

from attnlab.cli import app
from attnlab.cli.common import check_arguments
from attnlab.serve.forms import Commands
from attnlab.serve.jobs import Job
from attnlab.serve.lab import Options

_LONG = {
    "--corpus": "people:60",
    "--preset": "quick",
    "--model.n_embd": "32",
    "--model.n_head": "2",
    "--model.n_layer": "1",
    "--train.steps": "100000",
    "--train.threads": "1",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("started") / "runs"
    path.mkdir()
    (path / "taken").mkdir()
    return Path(os.path.relpath(path))  # lines show it as it was given


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[httpx.Client]:
    with serving(Options(root, commands=Commands(app, check_arguments))) as one, one.client() as client:
        yield client


def _line(client: httpx.Client, command: str, values: dict[str, Any] | None = None, folder: str = "") -> dict[str, str]:
    answer = client.post("/api/line", json={"command": command, "values": values or {}, "folder": folder})
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = answer.json()
    return found


def _until(client: httpx.Client, number: int, *states: str, seconds: float = 90) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job: dict[str, Any] = next(one for one in client.get("/api/jobs").json() if one["number"] == number)
        if job["state"] in states:
            return job
        time.sleep(0.3)
    raise AssertionError(f"the job is still {job['state']}")


def test_every_study_has_a_form_made_from_its_command(client: httpx.Client) -> None:
    found = client.get("/api/forms").json()
    forms = {one["command"]: {option["name"]: option for option in one["options"]} for one in found["forms"]}
    assert {"run recall", "run trust", "run why", "run reports", "run masking", "pretrain", "compare"} <= forms.keys()
    recall = forms["run recall"]
    assert recall["--quick"]["kind"] == "flag"
    assert recall["--seed"]["kind"] == "whole"
    assert recall["--model.norm"]["choices"] == ["layer", "rms"]
    assert recall["--train.lr"]["group"] == recall["--device"]["group"] == "Training"
    assert forms["compare"]["VARIANTS"]["kind"] == "list"
    assert not recall.keys() & {"--out", "--config", "--trust-code"}
    for one in found["forms"]:
        assert not {"--out", "--config"} & {*re.findall(r"--[\w-]+", one["more"])}
    assert found["presets"]["quick"]["--model.n_embd"] == "128"


def test_a_form_becomes_a_command_line_in_a_new_folder(client: httpx.Client, root: Path) -> None:
    values = {"VARIANTS": "dot\nadditive", "--seeds": "3", "--all-pairs": True, "--model.options": "sliding.window=8"}
    line = _line(client, "compare", values)["line"]
    assert line.startswith("attnlab compare dot additive --seeds 3 --all-pairs")
    assert line.endswith(f"--model.options.sliding.window 8 --out {root / 'compare-1'}")
    assert _line(client, "run recall", {"--train.order_seed": "-1"})["line"].count("--train.order_seed=-1") == 1
    assert _line(client, "run recall", {"--corpus": "a b; rm -rf $HOME"})["line"].count("'a b; rm -rf $HOME'") == 1


@pytest.mark.parametrize(
    ("command", "values", "said"),
    [
        ("run recall", {"--sed": "1"}, "--seed"),
        ("run recall", {"--seed": "x"}, "--seed: 'x' is not a whole number"),
        ("run trust", {"--max-risk": "x"}, "--max-risk: 'x' is not a number"),
        ("run recall", {"--mechanism": "nonsense"}, "unknown mechanism 'nonsense'"),
        ("run recall", {"--model.mechanism": "dot, addditive"}, "additive"),
        ("compare", {"VARIANTS": "dot\nnonsense"}, "unknown mechanism 'nonsense'"),
        ("run recall", {"--train.lr": "fast"}, "train.lr"),
        ("run recall", {"--preset": "smal"}, "small"),
        ("run recall", {"--quick": "maybe"}, "on or off"),
        ("run recall", {"--out": "/tmp/x"}, "--out"),
        ("run recall", {"--mechanism": "evil.py:Class"}, "--trust-code"),
        ("run recall", {"--model.mechanism": "dot,evil.py:Class"}, "--trust-code"),
        ("run recall", {"--config": "settings.toml"}, "--config"),
        ("compare", {"VARIANTS": "evil.toml\ndot"}, "--trust-code"),
        ("compare", {"VARIANTS": "dot\nadditive", "--workers": "ray://192.0.2.1:1"}, "--trust-code"),
        ("compare", {"VARIANTS": "dot\nadditive", "--workers": "ray"}, "--trust-code"),
        ("compare", {"VARIANTS": "dot\nadditive", "--workers": "slurm"}, "--trust-code"),
        ("compare", {"VARIANTS": "--json"}, "dash"),
        ("compare", {"--model.options": "window"}, "NAME=VALUE"),
        ("runs delete", {}, "command"),
    ],
)
def test_mistakes_come_back_as_one_line(client: httpx.Client, command: str, values: dict[str, Any], said: str) -> None:
    problem = _line(client, command, values)["problem"]
    assert said in problem
    assert "\n" not in problem
    refused = client.post("/api/jobs", json={"command": command, "values": values})
    assert refused.status_code == 422
    assert refused.json()["error"] == problem


@pytest.mark.parametrize("folder", ["../x", "a/b", ".hidden", "taken", "/tmp/x", "-x", "a b"])
def test_folders_elsewhere_or_taken_are_refused(client: httpx.Client, folder: str) -> None:
    assert folder in _line(client, "run recall", {}, folder)["problem"]


def test_presets_files_and_runs_may_be_compared(client: httpx.Client, root: Path) -> None:
    for names in ("quick\nsmall", f"{root / 'taken'}\ndot,additive"):
        assert not _line(client, "compare", {"VARIANTS": names})["problem"]


def test_a_server_without_commands_starts_nothing(tmp_path: Path) -> None:
    with serving(Options(tmp_path)) as one, one.client() as client:
        assert client.get("/api/forms").status_code == 404
        assert client.post("/api/jobs", json={"command": "run recall"}).status_code == 404


def test_a_job_trains_is_followed_stopped_and_resumed(client: httpx.Client, root: Path) -> None:
    started = client.post("/api/jobs", json={"command": "pretrain", "values": _LONG, "folder": "long"})
    assert started.status_code == 201, started.text
    number = started.json()["number"]
    assert client.post("/api/jobs/resume", json={"name": "taken"}).status_code == 422
    second = client.post("/api/jobs", json={"command": "pretrain", "values": _LONG, "folder": "other"})
    assert second.status_code == 201
    third = client.post("/api/jobs", json={"command": "pretrain", "values": _LONG, "folder": "third"})
    assert third.status_code == 429
    client.post(f"/api/jobs/{second.json()['number']}/stop")

    lines, progress = list[str](), list[float]()
    with client.stream("GET", f"/api/jobs/{number}/events") as answer:
        for text in answer.iter_lines():
            if not text.startswith("data: "):
                continue
            message = json.loads(text[6:])
            lines += message["lines"]
            progress += [one["progress"] for one in message["job"]["runs"] if one["progress"]]
            if len(set(progress)) >= 2 and message["job"]["state"] == "running":
                client.post(f"/api/jobs/{number}/stop")
    assert any("parameters" in line for line in lines)
    job = _until(client, number, "stopped")
    assert [one["state"] for one in job["runs"]] == ["stopped"]
    assert not (root / "long" / "result.json").exists()
    _until(client, second.json()["number"], "stopped")

    resumed = client.post("/api/jobs/resume", json={"name": "long"}).json()
    assert resumed["line"] == f"attnlab resume {root / 'long'}"
    client.post(f"/api/jobs/{resumed['number']}/stop")
    _until(client, resumed["number"], "stopped")


def test_a_job_that_fails_says_why(client: httpx.Client) -> None:
    values = {"--corpus": "no-such-file.txt"}
    number = client.post("/api/jobs", json={"command": "pretrain", "values": values}).json()["number"]
    assert _until(client, number, "failed")
    text = client.get(f"/api/jobs/{number}/events").text
    assert "no-such-file.txt" in text
    assert client.get("/api/jobs/999/events").status_code == 404


def test_lines_of_a_job_are_kept_as_a_terminal_shows_them() -> None:
    code = "import sys; sys.stdout.write('1 %\\r2 %\\r\\nnext\\n' + 'x' * 5000)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    job = Job(1, (), "", process)
    job.read(process.stdout)
    lines, total = job.since(0)
    assert lines == ["2 %", "next", "x" * 2000, "x" * 2000, "x" * 1000]
    assert total == 5
    assert job.since(4) == (["x" * 1000], 5)
    assert job.since(5) == ([], 5)


def test_jobs_end_with_the_server(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with serving(Options(tmp_path / "runs", commands=Commands(app, check_arguments))) as one, one.client() as client:
        client.post("/api/jobs", json={"command": "pretrain", "values": _LONG, "folder": "long"})
        for _ in range(300):
            if (tmp_path / "runs" / "long" / "metrics.jsonl").exists():
                break
            time.sleep(0.2)
    from attnlab.store import listing

    end = time.monotonic() + 30
    while listing.read(tmp_path / "runs" / "long").state == "active" and time.monotonic() < end:
        time.sleep(0.2)
    assert listing.read(tmp_path / "runs" / "long").state == "stopped"
