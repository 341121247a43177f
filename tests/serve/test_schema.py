"""Requests made up from the OpenAPI document: whatever is sent, the server answers, and never with an error of its own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from serving import Served

pytestmark = pytest.mark.browser  # slow: it starts every worker
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
STREAMS = ("/api/events/runs", "/api/runs/{name}/events")  # they do not end
# Valid input would start a study or a measurement of a minute: these get invalid input only. Names are their own tests.
SLOW = ("/api/samples",)
NAMED = ("/api/mechanisms/{name}/audit", "/api/mechanisms/{name}/cost")
EXAMPLES = 6  # of each kind for each route


def test_no_request_is_answered_by_an_error_of_the_server(served: Served) -> None:
    token = {"authorization": f"Bearer {served.token}"}
    schema = schemathesis.openapi.from_url(f"{served.base}/api/openapi.json", headers=token)
    answered: dict[str, list[int]] = {}
    for found in schema.get_all_operations():
        operation: Any = found.ok()
        if operation.path in (*STREAMS, *NAMED):
            continue
        starts = operation.path in SLOW and operation.method == "post"
        codes = answered.setdefault(f"{operation.method.upper()} {operation.path}", [])
        for mode in (NEGATIVE,) if starts else (POSITIVE, NEGATIVE):
            with suppress(Unsatisfiable):  # a route without input cannot get invalid input
                _send(operation, mode, token, codes)
    assert not {where: codes for where, codes in answered.items() if any(code >= 500 for code in codes)}
    assert len(answered) >= 15


def _send(operation: Any, mode: GenerationMode, token: dict[str, str], codes: list[int]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        codes.append(case.call(headers=token, timeout=60).status_code)

    send()


@pytest.mark.parametrize("path", NAMED)
@pytest.mark.parametrize("name", ["none", "%00", "a" * 3000, "..", "%F0%9F%A6%89", "x.py:Class"])
def test_names_of_mechanisms_that_do_not_exist_measure_nothing(served: Served, path: str, name: str) -> None:
    with served.client() as client:
        assert client.post(path.replace("{name}", name)).status_code in (404, 405, 422)
