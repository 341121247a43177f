"""The routes of runs: the list, reports of every kind, runs side by side, samples, events, and what is refused."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, serving

from attnlab import studies
from attnlab.cli import main
from attnlab.errors import UserError
from attnlab.lm.decoding import beam_search
from attnlab.lm.model import load_model
from attnlab.report.document import Document
from attnlab.report.html import as_fragment
from attnlab.serve.routes import Options
from attnlab.store.folders import is_locked, locked, unlist
from attnlab.store.records import decode, encode
from verbs import reseal

MALICIOUS = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def shelf(runs_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, a benchmark, a report, and folders that are damaged, foreign or links."""
    root = tmp_path_factory.mktemp("shelf") / "runs"
    shutil.copytree(runs_root / "recall-1", root / "recall-1")
    (root / MALICIOUS).mkdir()
    (root / MALICIOUS / "manifest.json").write_text("{", encoding="utf-8")
    (root / "mine").mkdir()
    (root / "mine" / "notes.txt").write_text("hello", encoding="utf-8")
    (root / "outside").symlink_to(tmp_path_factory.getbasetemp())
    (root / ".hidden").mkdir()
    study = root / "recall-1"
    main(["report", str(study / "pretrain"), str(study / "finetune"), "--out", str(root / "report-1")])
    return root


@pytest.fixture(scope="module")
def client(shelf: Path) -> Iterator[httpx.Client]:
    with serving(Options(shelf)) as one, one.client() as client:
        yield client


def _report(client: httpx.Client, name: str) -> dict[str, Any]:
    answer = client.get(f"/api/runs/{name}/report")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_every_folder_is_listed_with_its_runs_whatever_its_state(client: httpx.Client) -> None:
    entries = {one["path"]: one for one in client.get("/api/runs").json()["entries"]}
    assert entries.keys() == {"recall-1", MALICIOUS, "mine", "outside", "report-1"}
    kinds = {name: one["kind"] for name, one in entries.items()}
    assert kinds == {
        "recall-1": "study",
        MALICIOUS: "damaged",
        "mine": "foreign",
        "outside": "link",
        "report-1": "output",
    }
    inner = {one["path"] for one in entries["recall-1"]["runs"]}
    assert {"recall-1/pretrain", "recall-1/finetune"} <= inner
    assert entries["recall-1"]["state"] == "complete"


def test_the_list_takes_the_conditions_of_the_command(client: httpx.Client) -> None:
    def names(*conditions: str) -> set[str]:
        answer = client.get("/api/runs", params={"filter": list(conditions)})
        return {one["path"] for one in answer.json()["entries"]}

    assert names("mechanism=dot") == {"recall-1"}
    assert names("model.n_embd=64", "state=complete") == {"recall-1"}
    assert names("mechanism=additive") == set()
    refused = client.get("/api/runs", params={"filter": "mechanizm=dot"})
    assert refused.status_code == 422
    assert "mechanism" in refused.json()["error"]


def test_the_report_of_a_study_is_the_static_one(client: httpx.Client, shelf: Path) -> None:
    found = _report(client, "recall-1")
    assert found["markup"] == as_fragment(studies.document_of(shelf / "recall-1"))
    assert found["command"] == studies.document_of(shelf / "recall-1").command
    assert any(one.endswith("report.html") for one in found["files"])


def test_a_run_and_several_runs_have_curves(client: httpx.Client) -> None:
    assert "Training loss" in _report(client, "recall-1/pretrain")["markup"]
    names = ["recall-1/pretrain", "recall-1/finetune"]
    answer = client.get("/api/comparison", params={"name": names}).json()
    assert "2 runs side by side" in answer["markup"]
    assert answer["command"].startswith("attnlab report ")
    assert client.get("/api/comparison", params={"name": ["mine"]}).status_code == 422


def test_a_comparison_of_runs_outside_of_the_folder_is_not_shown(client: httpx.Client, shelf: Path) -> None:
    folder, outside = shelf / "comparison", shelf.parent / "elsewhere"
    shutil.copytree(shelf / "recall-1", folder)
    shutil.copytree(shelf / "recall-1" / "pretrain", outside)
    (shelf / "led-out").symlink_to(outside)
    stored = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    try:
        for run, is_shown in (
            (shelf / "recall-1" / "pretrain", True),
            (outside, False),
            (shelf / ".." / "elsewhere", False),
            (shelf / "led-out", False),
        ):
            stored["plan"]["runs"] = {"dot/0": str(run)}
            (folder / "study.json").write_text(json.dumps(stored), encoding="utf-8")
            reseal(folder)
            assert ("No report." not in _report(client, "comparison")["markup"]) == is_shown, run
    finally:
        (shelf / "led-out").unlink()
        shutil.rmtree(folder)


def test_the_output_of_report_opens_again(client: httpx.Client, shelf: Path) -> None:
    assert "2 runs side by side" in _report(client, "report-1")["markup"]


def _hostile(stored: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A report with markup, or something else of the wrong kind, where numbers and lists belong."""
    head = {"layer": f'1"/>{MALICIOUS}', "number": 1, "pattern": [[1.0]], "sentence": ""}
    heads = {"block": "heads", "tokens": ["a"], "heads": [head], "row": 0}
    yield {**stored, "sections": [{"title": "", "blocks": [heads]}]}
    yield {**stored, "sections": [{"title": "", "blocks": [{**heads, "heads": [{**head, "layer": 1}], "row": 9}]}]}
    mark = {"name": "a", "value": MALICIOUS, "text": "", "low": MALICIOUS}
    chart = {"block": "chart", "shape": "bars", "title": "", "label": "", "x": {"label": ""}, "marks": [mark]}
    yield {**stored, "sections": [{"title": "", "blocks": [chart]}]}
    yield {**stored, "sections": [{"title": "", "blocks": [{**chart, "marks": [], "height": MALICIOUS}]}]}
    yield {**stored, "lead": MALICIOUS}
    yield {**stored, "title": [MALICIOUS]}
    yield {**stored, "sections": None}


def test_a_report_with_values_of_the_wrong_kind_is_not_shown(client: httpx.Client, shelf: Path) -> None:
    folder = shelf / "changed"
    shutil.copytree(shelf / "report-1", folder)
    stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    try:
        for changed in _hostile(stored):
            (folder / "report.json").write_text(json.dumps(changed), encoding="utf-8")
            reseal(folder)
            markup = _report(client, "changed")["markup"]
            assert "No report." in markup
            assert "<img" not in markup
    finally:
        shutil.rmtree(folder)


def test_a_stored_report_is_read_as_it_was_written(shelf: Path) -> None:
    document = studies.document_of(shelf / "recall-1")
    restored = decode(Document, encode(document), Path())
    assert json.loads(encode(restored)) == json.loads(encode(document))
    assert as_fragment(restored) == as_fragment(document)


@pytest.mark.parametrize(("name", "said"), [("mine", "no manifest.json"), (MALICIOUS, "damaged")])
def test_folders_without_a_report_say_what_they_are(client: httpx.Client, name: str, said: str) -> None:
    markup = _report(client, name)["markup"]
    assert said in markup
    assert "<img" not in markup


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../..",
        "%2e%2e",
        "..%2f..%2fetc",
        "outside",
        "outside/x",
        ".hidden",
        "%2fetc",
        "none",
        "a%00b",
        "recall-1/../..",
    ],
)
@pytest.mark.parametrize("what", ["report", "events"])
def test_paths_outside_of_the_folder_of_runs_are_not_found(client: httpx.Client, name: str, what: str) -> None:
    assert client.get(f"/api/runs/{name}/{what}").status_code == 404
    assert (
        client.post("/api/samples", json={"names": [httpx.URL(f"http://x/{name}").path[1:] or ".."]}).status_code == 404
    )


def test_samples_come_run_by_run(client: httpx.Client) -> None:
    asked = {"names": ["recall-1/finetune", "recall-1/pretrain"], "prompt": "Where", "count": 2, "limit": 5}
    answer = client.post("/api/samples", json=asked)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [one["run"] for one in lines] == asked["names"]
    assert all(len(one["samples"]) == 2 and not one["problem"] for one in lines)
    assert all(one["figures"].startswith("repetition") and not one["log_probabilities"] for one in lines)
    assert client.post("/api/samples", json={**asked, "count": 1000}).status_code == 422


def test_beam_search_leaves_the_settings_of_sampling_out(client: httpx.Client, shelf: Path) -> None:
    asked = {"names": ["recall-1/finetune"], "prompt": "Where", "count": 2, "limit": 5, "beams": 3}
    asked |= {"length_penalty": 1.0, "top_p": 0.5, "seed": 3}
    [line] = client.post("/api/samples", json=asked).text.splitlines()
    model, tokenizer = load_model(shelf / "recall-1" / "finetune")
    beams = beam_search(model, tokenizer, "Where", 2, beams=3, length_penalty=1.0, limit=5)
    assert json.loads(line)["samples"] == [beam.text for beam in beams]
    assert json.loads(line)["log_probabilities"] == pytest.approx([beam.log_probability for beam in beams], abs=1e-4)
    assert client.post("/api/samples", json={**asked, "top_p": 0}).status_code == 422


def test_events_of_a_complete_run_end_at_once(client: httpx.Client) -> None:
    answer = client.get("/api/runs/recall-1/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert json.loads(answer.text.removeprefix("data: "))["state"] == "complete"


def test_events_follow_a_run_that_trains(client: httpx.Client, shelf: Path) -> None:
    run = shelf / "growing"
    shutil.copytree(shelf / "recall-1" / "pretrain", run)
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(rows[0], encoding="utf-8")
    result = (run / "result.json").read_bytes()
    manifest = (run / "manifest.json").read_bytes()
    (run / "result.json").unlink()
    unlist(run, "result.json", "metrics.jsonl")

    def grow() -> None:
        for row in rows[1:3]:
            time.sleep(1.2)
            with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(row)
        time.sleep(1.2)
        (run / "result.json").write_bytes(result)
        (run / "manifest.json").write_bytes(manifest)

    writer = threading.Thread(target=grow)
    writer.start()
    with client.stream("GET", "/api/runs/growing/events") as answer:
        states = [json.loads(line[6:])["state"] for line in answer.iter_lines() if line.startswith("data: ")]
    writer.join()
    shutil.rmtree(run)
    assert states[0] == "stopped"  # nobody holds its lock
    assert states[-1] == "complete"
    assert len(states) >= 3


def test_a_look_at_a_run_does_not_keep_its_writer_out(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / ".lock").open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (stream, fcntl.LOCK_UN)).start()
        with locked(tmp_path):
            assert is_locked(tmp_path)
    with locked(tmp_path), pytest.raises(UserError, match="another process"), locked(tmp_path):
        pass


def test_a_folder_of_runs_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    with serving(Options(tmp_path / "none")) as one, one.client() as client:
        assert client.get("/api/runs").json()["entries"] == []


def test_the_shared_server_lists_its_study(served: Served) -> None:
    with served.client() as client:
        assert [one["path"] for one in client.get("/api/runs").json()["entries"]] == ["recall-1"]
