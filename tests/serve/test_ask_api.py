"""Asking runs through the server: answers as the command gives them, attention, interventions, and refusals."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from serving import Served, run_async, serving
from starlette.applications import Starlette
from starlette.requests import Request

from attnlab.config import ModelConfig
from attnlab.errors import AttnlabError, UserError
from attnlab.inside.look import look
from attnlab.inside.taps import capture, patch
from attnlab.lm import evaluate
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer
from attnlab.serve import ask
from attnlab.serve.ask import RISKS
from attnlab.serve.routes import Options
from attnlab.serve.server import _as_lines, create_app
from attnlab.serve.worker import Worker
from attnlab.store.runs import Run
from attnlab.trust import Oracle
from conftest import MARKUP

QUESTION = "Where was Hank Bauer born?"


@pytest.fixture(scope="module")
def oracle(ask_root: Path) -> Oracle:
    """The run that is asked, opened here."""
    return Oracle(ask_root / "recall-1")


def post(served: Served, route: str, **content: Any) -> httpx.Response:
    query = {"run": "recall-1", **({} if route == "open" else {"text": QUESTION}), **content}
    with served.client() as client:
        return client.post(f"/api/ask/{route}", json=query)


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def parts(answer: httpx.Response) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in lines(answer)}


def test_runs_with_a_model_are_listed_and_a_study_stands_for_its_fine_tuned_model(asked: Served) -> None:
    with asked.client() as client:
        found = {one["name"]: one for one in client.get("/api/ask/runs").json()["runs"]}
        newest = [one["path"] for one in client.get("/api/runs").json()["entries"]]
    assert [name for name in found if "/" not in name or name == MARKUP] == [*newest, "example"]
    assert [name for name, one in found.items() if one["example"]] == ["example"]
    assert set(found) == {
        "example",
        "recall-1",
        "recall-1/pretrain",
        "recall-1/no-pretraining",
        MARKUP,
        "text-1",
        "mean-1",
        "sure-1",
    }
    assert found["recall-1"]["what"] == "finetune"
    assert [name for name, one in found.items() if not one["asks"]] == ["text-1"]
    assert [name for name, one in found.items() if one["code"]] == ["mean-1"]


def test_a_folder_without_runs_has_the_example(tmp_path: Path) -> None:
    with serving(Options(tmp_path / "none")) as served, served.client() as client:
        found = client.get("/api/ask/runs").json()
    assert found["root"] == str(tmp_path / "none")
    assert [run["name"] for run in found["runs"]] == ["example"]


def test_models_of_an_unfinished_study_come_after_the_example(runs_root: Path, tmp_path: Path) -> None:
    shutil.copytree(runs_root / "recall-1", tmp_path / "recall-1")
    with serving(Options(tmp_path)) as served, served.client() as client:
        assert client.get("/api/ask/runs").json()["runs"][0]["name"] == "recall-1"
        (tmp_path / "recall-1" / "result.json").unlink()
        names = [run["name"] for run in client.get("/api/ask/runs").json()["runs"]]
    assert names[0] == "example"
    assert len(names) > 1


def test_an_opened_run_says_what_it_is(asked: Served) -> None:
    about = post(asked, "open").json()
    assert about["asks"]
    assert not about["calibrated"]
    assert (len(about["layers"]), about["heads"], about["block"]) == (2, 2, 96)
    assert about["layers"][0] == {
        "mechanism": "dot",
        "taps": ["z", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post"],
    }
    assert QUESTION in about["questions"]


def test_tokens_arrive_one_by_one_and_are_those_of_the_greedy_answer(asked: Served, oracle: Oracle) -> None:
    found = lines(post(asked, "answer"))
    assert [one["kind"] for one in found[:2]] == ["prompt", "token"]
    assert [one["kind"] for one in found[-3:]] == ["written", "answer", "look"]
    [said] = evaluate.answer_all(oracle.model, oracle.tokenizer, [QUESTION])
    assert found[-3]["text"] == said
    tokens = [one for one in found if one["kind"] == "token"]
    assert "".join(one["token"] for one in tokens if not one["stop"]).strip() == said
    assert tokens[0]["top"][0] == [tokens[0]["token"], tokens[0]["probability"]]


def test_the_answer_and_its_verdict_at_every_risk_are_those_of_the_command(asked: Served, ask_root: Path) -> None:
    found, oracle = parts(post(asked, "answer", run="sure-1"))["answer"], Oracle(ask_root / "sure-1")
    assert [one["risk"] for one in found["risks"]] == list(RISKS)
    for one in found["risks"]:
        expected = oracle.answer(QUESTION, one["risk"], top=8)
        assert (one["verdict"], one["abstains"], one["rule"]) == (expected.verdict, expected.abstains, expected.rule)
        assert set(one["reasons"]) <= set(expected.reasons)
        assert "".join(found["quote"]) == expected.quote
    assert found["answer"] == expected.answer
    assert found["probability"] == pytest.approx(expected.probability)
    assert [name for name, _ in found["alternatives"]] == [name for name, _ in expected.alternatives]
    assert {one["abstains"] for one in found["risks"]} == {True, False}
    assert all(one["certified"] for one in found["risks"] if not one["abstains"])


def test_an_unknown_name_has_nearest_names(asked: Served) -> None:
    found = parts(post(asked, "answer", text="Where was Babe Ruth born?"))["answer"]
    assert {one["verdict"] for one in found["risks"]} == {"never seen"}
    assert all(one["abstains"] for one in found["risks"])
    assert len(found["nearest"]) == 3


def unpacked(layer: dict[str, Any], size: int) -> np.ndarray[Any, Any]:
    steps = np.frombuffer(base64.b64decode(layer["weights"]), "<i2").reshape(len(layer["scales"]), -1)
    maps = np.zeros((len(steps), size, size))
    maps[:, *np.tril_indices(size)] = steps / 32767 * np.array(layer["scales"])[:, None]
    return maps


def test_attention_covers_the_text_and_what_was_written(asked: Served, oracle: Oracle) -> None:
    found = parts(post(asked, "answer"))
    shown, written = found["look"], found["written"]["text"]
    assert shown["tokens"][: len(found["prompt"]["tokens"])] == found["prompt"]["tokens"]
    assert "".join(shown["tokens"]).strip() == f"{QUESTION}⁇ {written}"
    view = look(oracle.model, oracle.tokenizer, QUESTION, question=True)
    size = len(view.tokens)
    for layer, expected in zip(shown["layers"], view.layers, strict=True):
        assert layer["kind"] == "pattern"
        assert layer["causal"]
        maps = unpacked(layer, len(shown["tokens"]))
        assert np.abs(maps[:, :size, :size] - expected.maps.numpy()).max() < 1e-4


def test_a_run_of_running_text_is_continued_and_not_asked(asked: Served) -> None:
    found = parts(post(asked, "answer", run="text-1", text="The cat sat", mode="continue", limit=5))
    assert "answer" not in found
    assert len(found["look"]["tokens"]) == len(found["prompt"]["tokens"]) + 5
    refused = post(asked, "answer", run="text-1", text="The cat sat")
    assert refused.status_code == 422
    assert "continue a text" in refused.json()["error"]


def test_switching_off_a_head_is_a_patch_of_its_tap(asked: Served, oracle: Oracle) -> None:
    compared = post(asked, "intervene", changes=[{"layer": 0, "head": 1}]).json()

    def without(z: torch.Tensor) -> torch.Tensor:
        z[:, :, 1] = 0
        return z

    with patch(oracle.model, {"blocks.0.attn.hook_z": without}):
        [written] = evaluate.answer_all(oracle.model, oracle.tokenizer, [QUESTION])
    [original] = evaluate.answer_all(oracle.model, oracle.tokenizer, [QUESTION])
    assert (compared["written_before"], compared["written_after"]) == (original, written)
    assert compared["rows"][0]["answer"] == compared["answer"]
    assert compared["before"] != compared["after"]


def test_a_patch_from_another_text_at_every_token_of_the_last_layer_gives_its_answer(
    asked: Served, oracle: Oracle
) -> None:
    partner = parts(post(asked, "answer"))["prompt"]["partners"][0]
    change = {"layer": 1, "tap": "resid_post", "by": "text", "other": partner}
    compared = post(asked, "intervene", changes=[change], mode="continue", text=f"{QUESTION}⁇").json()
    # In mode "continue" the other text is read as it is, so it needs its own symbol.
    assert "error" in compared
    change["other"] = f"{partner}⁇"
    compared = post(asked, "intervene", changes=[change], mode="continue", text=f"{QUESTION}⁇").json()
    ids = torch.tensor([[*oracle.tokenizer.encode(partner), oracle.tokenizer.mask]])
    with torch.no_grad():
        best = oracle.model(ids)[0, -1].softmax(-1).max().item()
    assert max(row["after"] for row in compared["rows"]) == pytest.approx(best, rel=1e-4)


def test_a_patch_at_one_token_leaves_the_others(asked: Served, oracle: Oracle) -> None:
    change = {"layer": 0, "tap": "mlp_out", "position": 3, "by": "mean"}
    compared = post(asked, "intervene", changes=[change], mode="continue").json()
    ids = torch.tensor([oracle.tokenizer.encode(QUESTION)])
    with torch.no_grad(), capture(oracle.model, ["blocks.0.hook_mlp_out"]) as seen:
        oracle.model(ids)
    mean = seen["blocks.0.hook_mlp_out"][0].mean(0)

    def replaced(value: torch.Tensor) -> torch.Tensor:
        value[:, 3] = mean
        return value

    with torch.no_grad(), patch(oracle.model, {"blocks.0.hook_mlp_out": replaced}):
        best = oracle.model(ids)[0, -1].softmax(-1).max().item()
    assert max(row["after"] for row in compared["rows"]) == pytest.approx(best, rel=1e-4)


def test_each_head_in_turn(asked: Served) -> None:
    found = lines(post(asked, "heads"))
    assert [(one["layer"], one["head"]) for one in found] == [(None, None), (0, 0), (0, 1), (1, 0), (1, 1)]
    off = post(asked, "intervene", changes=[{"layer": 0, "head": 1}]).json()
    assert found[0]["probability"] == pytest.approx(off["before"], rel=1e-3)
    assert found[2]["probability"] == pytest.approx(off["after"], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"layer": 9}], "no such activation"),
        ([{"layer": 0, "head": 7}], "2 heads"),
        ([{"layer": 0, "position": 90}], "no token 91"),
        ([{"layer": 0, "by": "text", "other": "Where?"}], "as many tokens"),
        ([{"layer": 0, "tap": "nothing"}], "changes[0].tap"),
        ([], "changes"),
    ],
)
def test_impossible_changes_are_refused(asked: Served, changes: list[dict[str, Any]], words: str) -> None:
    answer = post(asked, "intervene", changes=changes)
    assert answer.status_code == 422
    assert words in answer.json()["error"]


@pytest.mark.parametrize(("text", "words"), [("", "empty"), ("  ", "empty"), ("\udc80", "")])
def test_texts_that_cannot_be_asked_get_one_line(asked: Served, text: str, words: str) -> None:
    with asked.client() as client:
        content = json.dumps({"run": "recall-1", "text": text})
        answer = client.post("/api/ask/answer", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    said = answer.json()["error"]
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize("run", ["none", "..", "../runs", "/etc", ".hidden", "recall-1/../..", "x" * 400, "a\0b"])
def test_other_folders_are_not_found(asked: Served, run: str) -> None:
    for route in ("open", "answer", "heads"):
        assert post(asked, route, run=run).status_code == 404


def test_a_run_with_code_is_opened_only_with_trust_and_shows_influence(
    ask_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # of a user who has trusted nothing
    with serving(Options(ask_root)) as served:
        answer = post(served, "open", run="mean-1")
        assert answer.status_code == 422
        assert answer.json()["error"].endswith("read it, then start the server with --trust-code")
    with serving(Options(ask_root, trust_code=True)) as served:
        found = parts(post(served, "answer", run="mean-1"))["look"]
        assert [layer["kind"] for layer in found["layers"]] == ["pattern", "influence"]
        assert [len(layer["scales"]) for layer in found["layers"]] == [2, 1]
        assert [one["probability"] is None for one in lines(post(served, "heads", run="mean-1"))[1:]] == [
            False,
            False,
            True,
            True,
        ]


def test_the_server_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, attnlab.serve.server; assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def workers() -> set[int]:
    """The processes of the servers of these tests, which are threads of this one."""
    processes = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and b"attnlab.supervisor" in path.with_name("cmdline").read_bytes():
                processes.add(int(path.parent.name))
    return processes


def test_a_client_that_goes_away_leaves_the_model_loaded(ask_root: Path) -> None:
    others = workers()
    with serving(Options(ask_root)) as served:
        assert post(served, "open", run="text-1").status_code == 200
        [worker] = workers() - others
        content = {"run": "text-1", "text": "The cat sat", "mode": "continue", "limit": 200}
        with served.client() as client, client.stream("POST", "/api/ask/answer", json=content) as answer:
            assert json.loads(next(answer.iter_lines()))["kind"] == "prompt"
        assert post(served, "open", run="text-1").status_code == 200
        assert workers() - others == {worker}


def test_a_busy_server_says_so_before_it_answers(ask_root: Path) -> None:
    """Not with the status of an answer and an error inside."""

    async def send(app: Starlette) -> list[httpx.Response]:
        app.state.lab.workers["models"] = Worker(waiting=1)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            content = {"run": "text-1", "text": "The cat sat", "mode": "continue"}
            asked = [client.post(f"/api/ask/{route}", json=content, timeout=120) for route in ("answer", "heads")]
            found = await asyncio.gather(*asked, client.post("/api/samples", json={"names": ["text-1"]}, timeout=120))
        app.state.lab.close()
        return list(found)

    answers = run_async(send(create_app(Options(ask_root))))
    assert sorted(one.status_code for one in answers) == [200, 429, 429]
    refused = [one for one in answers if one.status_code == 429]
    assert all("busy" in one.json()["error"] and one.headers["retry-after"] == "1" for one in refused)


def test_an_error_after_the_first_value_is_the_last_line() -> None:
    async def values() -> AsyncGenerator[bytes | None]:
        yield b"1"
        raise UserError("no more")

    async def send() -> list[str]:
        request = Request({"type": "http"}, receive=asyncio.Event().wait)  # type: ignore[arg-type]
        response = await _as_lines(request, values())
        return [bytes(line).decode() async for line in response.body_iterator]  # type: ignore[arg-type]

    assert run_async(send()) == ["1\n", '{"error":"no more","status":422}\n']


def test_a_text_beyond_the_block_is_read_where_the_model_reads_it(ask_root: Path) -> None:
    run, tokenizer = Run.open(ask_root / "text-1"), Tokenizer.train("char", ["abcdefgh"], 16)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=32, block_size=16, vocab_size=16)
    query = ask.Prompt(run="text-1", text="abcdefgh" * 10, mode="continue", limit=3)
    opened = ask._Opened((), run, LanguageModel(replace(config, positions="rotary")), tokenizer, None)
    ids = ask._encode(opened, query)
    assert (len(ids), len(list(ask._write(opened, ids, query.limit)))) == (80, 3)
    assert len(ask._look(opened, ids, query.text).read) == 80
    with pytest.raises(UserError, match="80 tokens, but the model's block holds 16: shorten it"):
        ask._encode(replace(opened, model=LanguageModel(replace(config, positions="learned"))), query)


def test_a_model_that_diverged_says_so_instead_of_showing_numbers(ask_root: Path) -> None:
    options = Options(ask_root)
    opened = ask.open_once(options, "text-1")
    with torch.no_grad():
        for weight in opened.model.parameters():
            weight.fill_(math.nan)
    try:
        refused = ask._look(opened, [1, 2, 3], "").refused
        assert "not finite" in refused
        query = ask.Prompt(run="text-1", text="The cat", mode="continue")
        with pytest.raises(AttnlabError, match="diverged"):
            list(ask.answer(options, query))
    finally:
        ask._opened = None
