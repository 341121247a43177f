"""The routes of the view of mechanisms: the catalogue, cards, audits, costs, and classes that visitors paste."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from serving import Served

from attnlab import registry, sandbox
from attnlab.serve import mechanisms
from attnlab.serve.routes import Forbidden, Options

GOOD = """
import torch
from torch import nn

class Mean(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.value = nn.Linear(n_embd, n_embd)

    def forward(self, x, padding=None):
        values, seen = self.value(x), torch.ones_like(x[..., :1])
        if padding is not None:
            values, seen = values.masked_fill(padding[..., None], 0), seen.masked_fill(padding[..., None], 0)
        return values.cumsum(1) / seen.cumsum(1).clamp(min=1)
"""

TRYING = f"""{GOOD}
import pathlib, socket, subprocess

def attempt():
    errors = ""
    for act in (
        lambda: pathlib.Path({{canary!r}}).touch(),
        lambda: pathlib.Path({{secret!r}}).read_text(),
        lambda: socket.create_connection(("127.0.0.1", {{port}})),
        lambda: subprocess.run(["touch", {{canary!r}}]),
    ):
        try:
            act()
            errors += "none "
        except Exception as error:
            errors += type(error).__name__ + " "
    return errors.strip()

class Trying(Mean):
    def forward(self, x):
        raise RuntimeError(attempt())
"""


def paste(served: Served, code: str, **more: str) -> httpx.Response:
    with served.client() as client:
        return client.post("/api/mechanisms/pasted", json={"code": code, **more})


def test_the_catalogue_lists_every_registered_mechanism(served: Served) -> None:
    with served.client() as client:
        found = client.get("/api/mechanisms").json()
    assert [one["name"] for one in found["mechanisms"]] == registry.names("mechanism")
    assert found["allow_code"] is False
    performer = next(one for one in found["mechanisms"] if one["name"] == "performer")
    assert performer["paper"] == "arXiv:2009.14794"
    assert performer["link"] == "https://arxiv.org/abs/2009.14794"
    assert performer["source"] == "attnlab/mechanisms/performer.py"
    assert performer["cells"].startswith("<path")
    assert performer["verdict"] is None, "nothing is said that was not measured"


def test_a_card_has_options_and_patterns_and_only_what_was_measured(served: Served) -> None:
    with served.client() as client:
        found = client.get("/api/mechanisms/sliding").json()
    assert found["audit"] is None
    assert found["cost"] is None
    for words in ("<h1>sliding</h1>", "Options", "window", "Patterns", "distance from the exact pattern"):
        assert words in found["html"]


@pytest.mark.parametrize("name", ["none", "..%2Fx", "/tmp/x.py:Class", "x.py:Class", "%00"])
def test_unknown_mechanisms_and_files_are_not_found(served: Served, name: str) -> None:
    with served.client() as client:
        for answer in (client.get(f"/api/mechanisms/{name}"), client.post(f"/api/mechanisms/{name}/audit")):
            assert answer.status_code == 404
            assert answer.json()["error"]


def test_an_audit_is_kept_until_the_code_changes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with served.client() as client:
        found = client.post("/api/mechanisms/dot/audit").json()
        assert found["verdict"] == "pass"
        assert "the audit found no fault" in found["html"]
        assert client.get("/api/mechanisms/dot").json()["audit"] == found
        verdicts = {one["name"]: one["verdict"] for one in client.get("/api/mechanisms").json()["mechanisms"]}
        assert verdicts["dot"] == "pass"
    monkeypatch.setattr(mechanisms, "_fingerprint", lambda: "other")
    assert mechanisms.kept("audit dot", mechanisms.Measured) is None


def test_damaged_results_in_the_cache_are_measured_again(served: Served) -> None:
    with served.client() as client:
        client.get("/api/mechanisms/alibi")
        mechanisms._place("card alibi").write_text("{")
        assert "<h1>alibi</h1>" in client.get("/api/mechanisms/alibi").json()["html"]


def test_pasted_code_does_not_run_unless_allowed(served: Served) -> None:
    answer = paste(served, GOOD)
    assert answer.status_code == 403
    assert "attnlab serve --allow-code" in answer.json()["error"]


def test_a_pasted_class_is_audited(coding: Served) -> None:
    found = paste(coding, GOOD, class_name="Mean").json()
    assert found["verdict"] == "pass"
    assert "times that of dot" in found["html"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("this is not python", "the code defines no class, so it was not run"),  # it is an expression
        ("import sys\nsys.exit(3)", "the code defines no class, so it was not run"),
        ("class A: pass\nraise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("class A: pass\nimport os\nos.kill(os.getpid(), 9)", "cannot be loaded: PermissionError"),
        ("class A(:", "the code cannot be read"),
        pytest.param("(" * 5000, "the code cannot be read", id="deep"),
        ("class A: pass\nimport os\nos._exit(3)", "exit code 3"),
    ],
)
def test_a_class_that_cannot_be_audited_is_refused_in_one_line(coding: Served, code: str, reason: str) -> None:
    answer = paste(coding, code)
    assert answer.status_code == 422
    assert reason in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_pasted_input_has_limits(coding: Served) -> None:
    assert paste(coding, "x" * 100_001).status_code == 422
    assert paste(coding, "").status_code == 422
    assert paste(coding, GOOD, class_name="../x").status_code == 422


def test_a_pasted_class_can_neither_write_files_nor_reach_other_programs(coding: Served, tmp_path: Path) -> None:
    secret, canary = tmp_path / "secret.txt", tmp_path / "canary"
    secret.write_text("not for others")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        code = TRYING.format(canary=str(canary), secret=str(secret), port=listening.getsockname()[1])
        answer = paste(coding, f"{code}\nraise RuntimeError(attempt())")
        assert answer.status_code == 422
        assert answer.json()["error"].endswith(f"RuntimeError: {'PermissionError ' * 4}".strip())
        answer = paste(coding, code)  # the class tries when it is called, in the audit
        assert answer.json()["verdict"] == "fail"
        assert "PermissionError PermissionError" in answer.json()["html"]
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert not canary.exists()


def test_without_a_sandbox_pasted_code_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: "this kernel has no Landlock")
    with pytest.raises(
        Forbidden, match=r"^pasted code needs a sandbox, .*\(this kernel has no Landlock\): .+"
    ) as error:
        mechanisms.audit_pasted(Options(allow_code=True), mechanisms.Pasted(GOOD))
    assert "\n" not in str(error.value)
