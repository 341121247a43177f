"""Models of transformers, built tiny and audited: what is sound passes, and leaks have their names."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from attnlab.errors import ConfigError
from attnlab.hf.audited import Audited, audit_transformers, build_tiny
from attnlab.measure.audit import CHECKS, audit_module
from verbs import call

LENGTH = 9


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {name: CHECKS[name] for name in ("responds", *names)})


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    torch.manual_seed(0)
    return build_tiny("LlamaModel").eval()


def test_a_sound_model_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    only(monkeypatch, "future", "cache", "padding", "batch", "packing")
    assert call("audit", "transformers:LlamaModel", "--length", 5, "--json") == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["untested"]) == ("pass", {})
    assert all(check["passed"] for check in report["checks"])
    assert report["notes"] == [f"transformers {transformers.__version__}, packed rows as of DataCollatorWithFlattening"]


def test_documents_that_leak_into_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "packing", "future")
    report = audit_transformers("transformers:MiniMaxModel", length=LENGTH)
    assert report.faults.keys() == {"packing"}
    assert "a text moves when another packed into its row changes" in report.faults["packing"]


def test_what_the_audit_says_of_packed_rows_is_so_by_hand(llama: nn.Module) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, LENGTH, 32)
    borders: dict[str, Any] = {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), "use_cache": False}
    for model, leaks in ((llama, False), (build_tiny("MiniMaxModel").eval(), True)):
        with torch.no_grad():
            packed = model(inputs_embeds=x, **borders).last_hidden_state
            alone = torch.cat([model(inputs_embeds=text).last_hidden_state for text in (x[:, :4], x[:, 4:])], 1)
            audited = Audited(model)(x, documents=torch.tensor([[0] * 4 + [1] * 5]))
        assert torch.allclose(audited, packed, atol=1e-5)
        assert ((packed - alone).abs().max() > 0.1) == leaks
        assert torch.allclose(packed, alone, atol=1e-5) != leaks


def test_a_model_that_refuses_packed_rows_is_not_tested_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "packing", "cache")
    report = audit_transformers("transformers:Mamba2Model", length=LENGTH)
    assert not report.faults  # a piece of a single token is no padding
    assert report.untested["packing"].startswith("refuses packed rows: ValueError")


def test_positions_that_begin_anew_in_every_piece_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "cache")
    assert "with a cache differ" in audit_transformers("transformers:BambaModel", length=LENGTH).faults["cache"]


class _NoMask(Audited):
    def forward(
        self, x: Tensor, padding: Tensor | None = None, cache: Any = None, documents: Tensor | None = None
    ) -> Tensor:
        return super().forward(x, None, cache, documents)


class _NoBorders(Audited):
    def forward(
        self, x: Tensor, padding: Tensor | None = None, cache: Any = None, documents: Tensor | None = None
    ) -> Tensor:
        return super().forward(x, padding, cache)


class _NoPast(Audited):
    def forward(
        self, x: Tensor, padding: Tensor | None = None, cache: Any = None, documents: Tensor | None = None
    ) -> Tensor:
        return super().forward(x, padding if cache is None else None, None, documents)


class _Backwards(Audited):
    def forward(
        self, x: Tensor, padding: Tensor | None = None, cache: Any = None, documents: Tensor | None = None
    ) -> Tensor:
        return super().forward(x.flip(1)).flip(1)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [(_NoMask, "padding"), (_NoBorders, "packing"), (_NoPast, "cache"), (_Backwards, "prefix")],
)
def test_a_broken_adapter_is_noticed(
    broken: type[Audited], fault: str, llama: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, fault)
    assert audit_module(broken(llama), n_embd=32, length=LENGTH).faults.keys() == {fault}
    assert not audit_module(Audited(llama), n_embd=32, length=LENGTH).faults


def test_an_encoder_may_see_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "future", "padding", "bidirectional")
    report = audit_transformers("transformers:BertModel", length=LENGTH)
    assert (report.verdict, set(report.untested)) == ("pass", {"future"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("LlamaModle", "did you mean LlamaModel"),
        ("T5Model", "cannot be called with inputs_embeds alone: name a model that reads one text"),
        ("LlamaConfig", "has no model 'LlamaConfig': "),
    ],
)
def test_what_cannot_be_built_is_one_line_that_names_the_fix(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        audit_transformers(f"transformers:{name}")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_sizes_that_a_model_refuses_are_one_line_that_names_the_fix() -> None:
    with pytest.raises(ConfigError, match="LlamaModel cannot be built with tiny sizes .* build it in Python and call"):
        audit_transformers("transformers:LlamaModel", n_embd=30, n_head=4)
