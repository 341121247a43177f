"""Models of the hub: without it an answer comes soon, and what is in the local cache is used. Pickled weights are refused."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from attnlab.errors import UserError
from attnlab.hf import loading
from attnlab.hf.loading import locate


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty local cache, and a hub on a closed port."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    loading.hub_answers.cache_clear()
    yield
    loading.hub_answers.cache_clear()


def put_in_cache(folder: Path, name: str) -> None:
    """What huggingface_hub leaves behind of a model with a config.json."""
    place = folder / "cache" / f"models--{name}"
    (place / "snapshots" / "abc").mkdir(parents=True)
    (place / "snapshots" / "abc" / "config.json").write_text("{}", encoding="utf-8")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc", encoding="utf-8")


def test_a_closed_hub_is_said_before_transformers_is_asked() -> None:
    with pytest.raises(
        UserError, match=r"roberta-base is not a folder, and the hub cannot be reached \(the local cache"
    ):
        loading.require_reachable("roberta-base")
    assert not constants.HF_HUB_OFFLINE


def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        monkeypatch.setattr(loading, "_PATIENCE", 0.1)
        with pytest.raises(UserError, match="set HF_HUB_ETAG_TIMEOUT=30 if it is slow"):
            loading.require_reachable("roberta-base")


def test_without_the_hub_the_local_cache_is_used(tmp_path: Path) -> None:
    put_in_cache(tmp_path, "roberta-base")
    assert loading.require_reachable("roberta-base") == "roberta-base"
    assert constants.HF_HUB_OFFLINE


def test_an_offline_hub_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE keeps the hub closed"):
        loading.require_reachable("roberta-base")
    assert loading.hub_answers.cache_info().currsize == 0


def test_any_answer_of_the_hub_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            threading.Event().wait(0.3)
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert loading.require_reachable("roberta-base") == "roberta-base"
        server.shutdown()
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("kind", ["only pickled", "an index of pickled parts"])
def test_pickled_weights_are_never_read(kind: str, tmp_path: Path) -> None:
    from attnlab.hf.exchange import read_folder

    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    if kind == "an index of pickled parts":
        index = {"weight_map": {"wte.weight": "pytorch_model.bin"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for reader in (locate, read_folder):
        with pytest.raises(UserError, match=r"holds pickled weights \(pytorch_model.bin\), which attnlab never reads"):
            reader(str(tmp_path))
