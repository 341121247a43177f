"""Who may use the server: the token, the cookie, the names of hosts, origins, sizes."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from serving import FILES, Served, run_async, serving, serving_process
from starlette.requests import Request
from starlette.responses import Response

from attnlab.errors import UserError
from attnlab.serve import access
from attnlab.serve.access import BODY_LIMIT, CONNECTION_LIMIT, HEADER_LIMIT, REQUEST_LIMIT, Access, Guard, hosts_of
from attnlab.serve.routes import Options
from attnlab.serve.server import LIVE_PAGES, bind, create_app


@pytest.fixture
def browser(served: Served) -> Iterator[httpx.Client]:
    """A client that has opened the link, as a browser does."""
    with httpx.Client(base_url=served.base) as client:
        entered = client.get(f"/?token={served.token}")
        assert entered.status_code == 303
        assert entered.headers["location"] == "/"
        yield client


def test_nothing_is_served_without_the_token(served: Served) -> None:
    for path in ("/", "/design", "/static/main.js", "/api/mechanisms", "/api/runs"):
        answer = httpx.get(served.base + path)
        assert answer.status_code == 403
        assert "the link that attnlab printed" in answer.json()["error"]
    assert httpx.get(f"{served.base}/?token=wrong").status_code == 403
    assert httpx.get(f"{served.base}/design", headers={"authorization": "Bearer wrong"}).status_code == 403


def test_a_browser_without_the_token_is_told_how_to_get_the_link(served: Served) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path, headers in (("/mechanisms?name=dot", browser), ("/", {**browser, "host": "elsewhere.example"})):
        answer = httpx.get(served.base + path, headers=headers)
        assert answer.status_code in (403, 421)
        assert answer.headers["content-type"].startswith("text/html")
        assert "Look at the terminal in which <code>attnlab serve</code> runs" in answer.text
        assert served.token not in answer.text
    assert "error" in httpx.get(f"{served.base}/api/runs", headers=browser).json()


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(served: Served, browser: httpx.Client) -> None:
    answer = httpx.get(f"{served.base}/design?keys=1&token={served.token}")
    assert answer.headers["location"] == "/design?keys=1"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert browser.get("/design").status_code == 200


@pytest.mark.parametrize(
    "other", ['theme={"a": "b=c\\"; x', 'OWN={"a": 1}', '="', "=;;", pytest.param('a="' + "\\" * 60_000, id="long")]
)
def test_cookies_of_other_programs_are_ignored_whatever_they_hold(
    served: Served, browser: httpx.Client, other: str
) -> None:
    ((name, session),) = browser.cookies.items()
    other = other.replace("OWN", name)
    for cookies in (f"{other}; {name}={session}", f"{name}={session};{other}"):
        assert httpx.get(f"{served.base}/design", headers={"cookie": cookies}).status_code == 200
    assert httpx.get(f"{served.base}/design", headers={"cookie": other}).status_code == 403


def test_the_cookie_is_no_token_and_the_token_no_cookie(served: Served, browser: httpx.Client) -> None:
    ((name, session),) = browser.cookies.items()
    for headers in ({"authorization": f"Bearer {session}"}, {"cookie": f"{name}={served.token}"}):
        assert httpx.get(f"{served.base}/design", headers=headers).status_code == 403
    assert httpx.get(f"{served.base}/design?token={session}").status_code == 403


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("//other.example/?", "/other.example/"),
        ("/%2f%2fother.example/?", "/other.example/"),
        ("/%5Cother.example?", "/%5Cother.example"),
        ("/%0d%0aset-cookie:%20a=b?", "/%0D%0Aset-cookie:%20a%3Db"),
        ("/caf%C3%A9?", "/caf%C3%A9"),
        ("/runs?filter=a&filter=b%26c&", "/runs?filter=a&filter=b%26c"),
        ("/runs?token=wrong&empty=&", "/runs?empty="),
    ],
)
def test_a_link_with_the_token_leads_to_the_same_address_on_this_server(
    served: Served, path: str, location: str
) -> None:
    answer = httpx.get(f"{served.base}{path}token={served.token}")
    assert answer.status_code == 303
    assert answer.headers["location"] == location


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:80", "", "127.0.0.1"])
def test_another_name_of_the_host_is_refused(browser: httpx.Client, host: str) -> None:
    assert browser.get("/design", headers={"host": host}).status_code in (400, 421)


def answer_to(served: Served, *headers: str) -> str:
    """What is sent in answer to a request with these headers beside the token, until the connection is closed."""
    bearer = f"Authorization: Bearer {served.token}"
    with served.connect("GET /design HTTP/1.1", bearer, *headers, "") as connection:
        received = b""
        while chunk := connection.recv(2**16):
            received += chunk
    return received.decode()


def test_a_request_with_two_hosts_is_refused(served: Served) -> None:
    own = f"Host: {httpx.URL(served.base).netloc.decode()}"
    assert answer_to(served, own, "Connection: close").startswith("HTTP/1.1 200 ")
    for hosts in ((own, "Host: attacker.example"), ("Host: attacker.example", own), (own, own)):
        assert answer_to(served, *hosts, "Connection: close").startswith("HTTP/1.1 400 ")


@pytest.mark.parametrize("count", [1, 1000])
def test_long_headers_are_refused(served: Served, count: int) -> None:
    with served.client() as client:
        for size, statuses in ((HEADER_LIMIT // 2, {200}), (HEADER_LIMIT + 1000, {400, 431})):
            headers = [(f"x-{number}", "x" * (size // count)) for number in range(count)]
            assert client.get("/design", headers=headers).status_code in statuses


def test_a_refusal_is_the_last_answer_of_its_connection(served: Served) -> None:
    with served.connect(*["GET / HTTP/1.1", f"Host: {httpx.URL(served.base).netloc.decode()}", ""] * 2) as connection:
        received = b"".join(iter(lambda: connection.recv(2**16), b""))
    assert received.startswith(b"HTTP/1.1 403 ")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("lines", [(), ("GET / HTTP/1.1", "Host: x")], ids=["nothing", "half"])
def test_a_request_that_does_not_arrive_in_time_ends_its_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    monkeypatch.setattr(access, "HEADER_SECONDS", 0.1)
    with served.connect(*lines) as connection, suppress(ConnectionResetError):
        assert connection.recv(1) == b""


@pytest.mark.parametrize("count", [1100, 3000])
def test_connections_that_send_no_whole_request_keep_nobody_out(tmp_path: Path, count: int) -> None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files[1] < count + FILES:
        pytest.skip(f"this system allows {files[1]} open files")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, files)
        process, served = stack.enter_context(serving_process(tmp_path))
        with served.client() as client:
            assert client.get("/design").status_code == 200
            for number in range(count):
                stack.enter_context(served.connect("GET / HTTP/1.1", *["Host: x"] * (number % 2)))
            assert client.get("/design").status_code == 200  # the connection of this client stays
        assert httpx.get(f"{served.base}/design").status_code == 403
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 2 * CONNECTION_LIMIT


def test_requests_of_another_site_are_refused(served: Served, browser: httpx.Client) -> None:
    client = browser
    foreign = {"origin": "http://attacker.example"}
    assert client.get("/api/runs", headers=foreign).status_code == 403
    assert client.post("/api/runs", headers=foreign).status_code == 403
    assert client.post("/api/runs").status_code == 403  # a form of another site sends no origin in some browsers
    assert client.post("/api/runs", headers={"origin": served.base}).status_code == 405
    assert client.get("/api/runs", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_link_on_another_site_opens_the_page_but_not_what_is_behind_it(browser: httpx.Client) -> None:
    client, followed = browser, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/design?keys=1", headers=followed).status_code == 200
    assert client.get("/api/runs", headers=followed).status_code == 403


def test_long_requests_are_refused(served: Served) -> None:
    with served.client() as client:
        assert client.post("/api/runs", content=b"x" * (BODY_LIMIT + 1)).status_code == 413
        answer = client.post("/api/design/solve", content=iter([b"{}"]))  # sent without a length
        assert answer.status_code == 411
        assert "Content-Length" in answer.json()["error"]


def test_more_requests_at_a_time_than_allowed_are_refused_and_may_try_again(tmp_path: Path) -> None:
    app, gate = create_app(Options(tmp_path)), asyncio.Event()

    async def slow(_: Request) -> Response:
        await gate.wait()
        return Response("served")

    app.add_route("/api/slow", slow)

    async def check() -> None:
        guarded = Guard(app, Access("secret", "session", "cookie", hosts_of([], 80)))
        given = {"base_url": "http://localhost", "headers": {"authorization": "Bearer secret"}}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), **given) as client:
            waiting = [asyncio.create_task(client.get("/api/slow")) for _ in range(REQUEST_LIMIT)]
            while guarded.running < REQUEST_LIMIT:
                await asyncio.sleep(0)
            refused = await client.get("/api/slow")
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert "too many requests" in refused.json()["error"]
            gate.set()
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
            assert (await client.get("/api/slow")).status_code == 200

    run_async(check())


def test_more_live_pages_than_allowed_are_refused(tmp_path: Path) -> None:
    app = create_app(Options(tmp_path))
    app.state.lab.streams = LIVE_PAGES

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get("/api/events/runs")

    answer = run_async(ask())
    assert answer.status_code == 429
    assert answer.json()["error"].startswith("too many live pages")


def test_a_file_that_the_browser_has_is_not_sent_again(served: Served) -> None:
    with served.client() as client:
        for path in ("/static/main.js", "/static/report.css", "/static/report.js"):
            first = client.get(path)
            assert first.status_code == 200
            again = client.get(path, headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert client.get(path, headers={"if-none-match": '"other"'}).content == first.content


def test_every_answer_has_the_security_headers(served: Served) -> None:
    with served.client() as client:
        for answer in (client.get("/design"), client.get("/api/none"), httpx.get(served.base)):
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in answer.headers


def test_errors_of_the_server_itself_have_the_security_headers_too(tmp_path: Path) -> None:
    app = create_app(Options(tmp_path))

    async def broken(_: Request) -> Response:
        raise RuntimeError("broken")

    app.add_route("/api/broken", broken)

    async def ask() -> httpx.Response:
        guarded = Guard(app, Access("secret", "session", "cookie", hosts_of([], 80)))
        transport = httpx.ASGITransport(guarded, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/api/broken", headers={"authorization": "Bearer secret"})

    answer = run_async(ask())
    assert answer.status_code == 500
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_files_outside_of_the_page_are_not_served(served: Served) -> None:
    with served.client() as client:
        for path in (
            "/static/../server.py",
            "/static/%2e%2e/server.py",
            "/static/..%2fserver.py",
            "/static//etc/passwd",
            "/static/x.txt",
        ):
            assert client.get(path).status_code == 404


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::"])
def test_every_printed_link_works(tmp_path: Path, host: str) -> None:
    if host == "::" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with serving(Options(tmp_path), host) as served:
        for link in served.links:
            named = httpx.URL(link).netloc.decode()
            # Through this address, because the name of a machine need not lead to it.
            local = f"http://127.0.0.1:{httpx.URL(link).port}"
            answer = httpx.get(f"{local}/?token={served.token}", headers={"host": named.upper()})
            assert answer.status_code == 303, link
        assert served.base.startswith("http://localhost" if host == "localhost" else "http://127.0.0.1")
        assert len(served.links) > 1 or host not in ("0.0.0.0", "::")
        assert httpx.get(local, headers={"host": "attacker.example"}).status_code == 421


def has_ipv6() -> bool:
    try:
        bind("::", 0).close()
    except UserError:
        return False
    return True


def test_names_of_hosts_have_the_port() -> None:
    assert {"192.0.2.1:9", "localhost:9", "[::1]:9"} <= hosts_of(["192.0.2.1"], 9)
    assert "lab.example" in hosts_of(["Lab.Example"], 80)


def test_the_command_prints_a_link_opens_the_browser_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{opened}.new" && mv "{opened}.new" "{opened}"\n')
    browser.chmod(0o700)
    command = [sys.executable, "-m", "attnlab", "serve", str(tmp_path / "runs"), "--port", "0", "--browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "BROWSER": f"{browser} %s"}, process_group=0
    ) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"http://\S+\?token=(\S+)", first)
            assert first.startswith("Open http://")
            assert found is not None
            assert process.stdout.readline() == "Press Ctrl-C to stop.\n"
            assert httpx.get(found[0], follow_redirects=True, timeout=60).status_code == 200
            end = time.monotonic() + 60
            while not opened.exists():
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.05)
            address = opened.read_text().strip()
            file = Path(address.removeprefix("file://"))
            assert found[1] not in address  # other users can see the arguments of a command
            assert found[0] in file.read_text()
            assert file.parent.stat().st_mode & 0o077 == 0
            process.send_signal(signal.SIGINT)
            assert process.wait(30) in (0, 130)
            assert not file.exists()
        finally:
            process.kill()


def test_ctrl_c_ends_the_server_while_requests_are_stuck(tmp_path: Path) -> None:
    with serving_process(tmp_path) as (process, served), ExitStack() as stack:
        own = (f"Host: {httpx.URL(served.base).netloc.decode()}", f"Authorization: Bearer {served.token}", "")
        for place in ("None", "reports"):  # a thread of the server, and a worker
            stack.enter_context(served.connect(f"GET /api/stuck/{place} HTTP/1.1", *own))
        wait_for(lambda: len(list(tmp_path.glob("stuck-*"))) == 2)
        process.send_signal(signal.SIGINT)
        process.wait(60)  # both would be stuck for an hour
        assert process.stdout is not None
        output = process.stdout.read()
        assert "never retrieved" not in output
        assert "CancelledError: Task cancelled" not in output
        assert not list(tmp_path.glob("attnlab-*"))


def test_temporary_folders_of_killed_servers_are_removed_by_the_next(tmp_path: Path) -> None:
    def folders() -> set[Path]:
        return set(tmp_path.glob("attnlab-*"))

    foreign = {tmp_path / f"attnlab-{name}.server" for name in ("unlocked", "shared", "link")}
    for folder in foreign:
        elsewhere = tmp_path / "elsewhere" / folder.name
        (elsewhere if "link" in folder.name else folder).mkdir(mode=0o700, parents=True)
        if "link" in folder.name:
            folder.symlink_to(elsewhere)
        if "unlocked" not in folder.name:
            (folder / ".lock").touch()
    (tmp_path / "attnlab-shared.server").chmod(0o770)
    with serving_process(tmp_path) as (_, _), serving_process(tmp_path) as (killed, served), served.client() as client:
        assert len(folders() - foreign) == 2
        client.get("/api/design/sheets")
        client.post("/api/design/noise", json={})  # starts a worker
        ours = {folder for folder in folders() if list(folder.glob("attnlab-*"))}
        assert len(ours) == 1
        killed.kill()
        killed.wait()
        assert ours < folders()
        with serving_process(tmp_path):
            wait_for(lambda: not ours & folders())
            assert foreign < folders()
            assert len(folders() - foreign) == 2  # of the servers that run


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
