"""Made-up requests to every route: whatever is sent, the server answers, and never with an error of its own."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from serving import Served

from attnlab.serve.routes import Route
from attnlab.serve.server import ROUTES

POSTED = [route for route in ROUTES if route.method == "POST" and "{" not in route.path]
MEASURING = [route for route in ROUTES if route.method == "POST" and "{" in route.path]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# Valid values of fields, so that requests differ from what is accepted in few places.
LIKELY: dict[str, Any] = {
    "run": "recall-1",
    "names": ["none"],
    "text": "[[task]]",
    "task": "select",
    "keys": [[1, 0], [0, 1]],
    "values": [[1, 0], [0, 1]],
    "answers": {},
    "changes": [{"layer": 0}],
    "code": "class A: pass",
    "limit": 2,
}


@pytest.mark.parametrize("route", POSTED, ids=lambda route: route.path)
def test_no_request_is_answered_by_an_error_of_the_server(served: Served, route: Route[Any]) -> None:
    names = [field.name for field in msgspec.structs.fields(route.query)]
    valid = {name: LIKELY[name] for name in names if name in LIKELY}
    changed = st.dictionaries(st.sampled_from([*names, "unknown"]), JSON, max_size=2)

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(changed.map(lambda fields: {**valid, **fields}) | JSON)
    def send(body: Any) -> None:
        answer = client.post(f"/api{route.path}", content=json.dumps(body).encode())
        assert answer.status_code in (200, 403, 404, 422), answer.text
        if answer.status_code != 200:
            assert list(answer.json()) == ["error"]

    with served.client() as client:
        send()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"text": "\\udc80"}', b"null"])
def test_what_is_not_json_or_no_object_gets_one_line(served: Served, body: bytes) -> None:
    with served.client() as client:
        for route in POSTED:
            answer = client.post(f"/api{route.path}", content=body)
            if answer.status_code != 200:  # all settings of the noise may be left out
                assert answer.status_code == 422
                assert "\n" not in answer.json()["error"]


def error_of(answer: httpx.Response) -> str:
    assert answer.status_code == 422
    return answer.json()["error"]


def test_an_error_names_its_field(served: Served) -> None:
    with served.client() as client:
        post = client.post
        assert error_of(post("/api/samples", json={"names": "x"})).startswith("names: expected")
        assert error_of(post("/api/samples", json={"names": ["x"], "count": 99})).startswith("the number of texts:")
        changes = {"run": "recall-1", "text": "a", "changes": [{"layer": 0, "tap": "x"}]}
        assert error_of(post("/api/ask/intervene", json=changes)).startswith("changes[0].tap: ")
        assert "`nmaes`" in error_of(post("/api/samples", json={"nmaes": []}))
        assert error_of(client.get("/api/runs", params={"filter": "x" * 300})).startswith("filter[0]: ")


@pytest.mark.parametrize("route", MEASURING, ids=lambda route: route.path)
@pytest.mark.parametrize("name", ["none", "%00", "a" * 3000, "..", "%F0%9F%A6%89", "x.py:Class"])
def test_names_of_mechanisms_that_do_not_exist_measure_nothing(served: Served, route: Route[Any], name: str) -> None:
    with served.client() as client:
        assert client.post(f"/api{route.path.replace('{name}', name)}").status_code in (404, 405, 422)
