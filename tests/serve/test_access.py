"""Who may use the server: the token, the cookie, the names of hosts, origins, sizes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from serving import Served

from attnlab.serve.access import BODY_LIMIT, hosts_of


@pytest.fixture
def browser(served: Served) -> Iterator[httpx.Client]:
    """A client that has opened the link, as a browser does."""
    with httpx.Client(base_url=served.base) as client:
        entered = client.get(f"/?token={served.token}")
        assert entered.status_code == 303
        assert entered.headers["location"] == "/"
        yield client


def test_nothing_is_served_without_the_token(served: Served) -> None:
    for path in ("/", "/design", "/static/main.js", "/api/openapi.json", "/api/runs"):
        answer = httpx.get(served.base + path)
        assert answer.status_code == 403
        assert "the link that attnlab printed" in answer.json()["error"]
    assert httpx.get(f"{served.base}/?token=wrong").status_code == 403
    assert httpx.get(f"{served.base}/design", headers={"authorization": "Bearer wrong"}).status_code == 403


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(served: Served, browser: httpx.Client) -> None:
    answer = httpx.get(f"{served.base}/design?keys=1&token={served.token}")
    assert answer.headers["location"] == "/design?keys=1"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert browser.get("/design").status_code == 200


def test_a_link_with_a_double_slash_stays_on_this_server(served: Served) -> None:
    answer = httpx.get(f"{served.base}//other.example/?token={served.token}")
    assert answer.headers["location"] == "/other.example/"


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:80", "", "127.0.0.1"])
def test_another_name_of_the_host_is_refused(browser: httpx.Client, host: str) -> None:
    assert browser.get("/design", headers={"host": host}).status_code in (400, 421)


def test_requests_of_another_site_are_refused(served: Served, browser: httpx.Client) -> None:
    client = browser
    foreign = {"origin": "http://attacker.example"}
    assert client.get("/api/openapi.json", headers=foreign).status_code == 403
    assert client.post("/api/openapi.json", headers=foreign).status_code == 403
    assert (
        client.post("/api/openapi.json").status_code == 403
    )  # a form of another site sends no origin in some browsers
    assert client.post("/api/openapi.json", headers={"origin": served.base}).status_code == 405
    assert client.get("/api/openapi.json", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_link_on_another_site_opens_the_page_but_not_what_is_behind_it(browser: httpx.Client) -> None:
    client, followed = browser, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/design?keys=1", headers=followed).status_code == 200
    assert client.get("/api/openapi.json", headers=followed).status_code == 403


def test_long_requests_are_refused(served: Served) -> None:
    with served.client() as client:
        assert client.post("/api/openapi.json", content=b"x" * (BODY_LIMIT + 1)).status_code == 413


def test_every_answer_has_the_security_headers(served: Served) -> None:
    with served.client() as client:
        for answer in (client.get("/design"), client.get("/api/none"), httpx.get(served.base)):
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in answer.headers


def test_files_outside_of_the_page_are_not_served(served: Served) -> None:
    with served.client() as client:
        for path in (
            "/static/../app.py",
            "/static/%2e%2e/app.py",
            "/static/..%2fapp.py",
            "/static//etc/passwd",
            "/static/x.txt",
        ):
            assert client.get(path).status_code == 404


def test_a_server_bound_to_all_addresses_still_checks_names() -> None:
    assert "0.0.0.0:80" not in hosts_of("0.0.0.0", 80)
    assert {"192.0.2.1:9", "localhost:9"} <= hosts_of("192.0.2.1", 9)
