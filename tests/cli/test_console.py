"""`rekindle console` as a process: it serves until Ctrl-C, on a port and with a key of its own or of the person's."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from rekindle.cli.views.console import MIN_TOKEN_CHARS
from rekindle.client.errors import Exit
from tests.canary import CANARY
from tests.cli.conftest import Run
from tests.cli.service import FakeService

PATIENCE_S = 120
TOKEN = f"console-{CANARY}-0123456789abcdefghijkl"
# A shell starts background jobs with Ctrl-C ignored, and so may be what runs these tests; a terminal does not.
AS_IN_A_TERMINAL = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from rekindle.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass
class Shown:
    """A console that runs, as its terminal shows it."""

    process: subprocess.Popen[str]
    link: str
    cookie: str = ""

    @property
    def port(self) -> int:
        return urlsplit(self.link).port or 0

    def ask(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def enter(self, link: str) -> int:
        """Open it by a link, as a browser does, and keep the cookie."""
        status, headers, _ = self.ask("GET", urlsplit(link).path)
        self.cookie = (headers["Set-Cookie"] or "").partition(";")[0]
        return status

    def page(self, path: str) -> str:
        status, _, body = self.ask("GET", path, headers={"Cookie": self.cookie})
        assert status == 200
        return body

    def end(self) -> tuple[int, str]:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


@contextmanager
def shown(service: FakeService, *options: str) -> Iterator[Shown]:
    command = [sys.executable, "-c", AS_IN_A_TERMINAL, "--api", service.url, "console", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/open/\S+", line)
        assert found is not None, (line, process.poll())
        yield Shown(process, found[0])
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.process
def test_it_serves_until_ctrl_c(service: FakeService) -> None:
    with shown(service, "--no-browser") as console:
        assert console.ask("GET", "/")[0] == 403  # without the key
        assert console.enter(console.link) == 303
        assert "<h1>Fleet</h1>" in console.page("/")
        assert service.requests  # what it shows is what the API says
        code, err = console.end()
        assert (code, "Traceback" in err) == (130, False)
        with socket.socket() as wire:
            assert wire.connect_ex(("127.0.0.1", console.port)) != 0


@pytest.mark.process
def test_the_cookie_is_for_the_consoles_own_pages_and_for_no_other_server_of_the_machine(service: FakeService) -> None:
    with shown(service, "--no-browser") as console:
        jar = CookieJar(DefaultCookiePolicy(rfc2965=False, netscape=True))
        opener = build_opener(HTTPCookieProcessor(jar))
        with opener.open(console.link, timeout=PATIENCE_S) as answer:  # follows the redirect, as a browser does
            page, home = answer.read().decode(), answer.geturl()
        assert "<h1>Fleet</h1>" in page
        [cookie] = jar
        assert urlsplit(home).path == cookie.path != "/"
        links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page))
        assert len(links) > 8
        assert all(link.startswith(cookie.path) for link in links), links
        for link in links:
            if link.startswith(f"{cookie.path}static"):
                with opener.open(f"http://127.0.0.1:{console.port}{link}", timeout=PATIENCE_S) as answer:
                    assert answer.status == 200
        neighbour = Request("http://127.0.0.1:1/jobs")
        jar.add_cookie_header(neighbour)
        assert not neighbour.has_header("Cookie")


@pytest.mark.process
def test_who_may_only_look_orders_nothing(service: FakeService) -> None:
    with shown(service, "--no-browser", "--look-only") as console:
        console.enter(console.link)
        page = console.page("/")
        assert "look only" in page
        assert '<form method="post"' not in page
        # The form's own mark is on no page; whoever had it would be refused all the same, and one without it is.
        headers = {"Cookie": console.cookie, "Content-Type": "application/x-www-form-urlencoded"}
        order = urlencode({"paused": "yes", "key": "0" * 32})
        assert console.ask("POST", "/pause", headers=headers, body=order)[0] == 403
        assert [seen.method for seen in service.requests if seen.method != "GET"] == []
        assert service.registry.is_paused() is False


@pytest.mark.process
def test_a_key_of_ones_own_stays_the_same_and_reads_the_metrics(service: FakeService, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    with shown(service, "--no-browser", "--token-file", str(file)) as console:
        assert console.link.endswith(f"/open/{TOKEN}")
        status, headers, body = console.ask("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
        assert "rekindle_incidents_open" in body
        assert console.end()[0] == 130


@pytest.mark.process
def test_the_browser_gets_a_link_that_works_once_and_not_the_key(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {note}.new && mv {note}.new {note}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    with shown(service) as console:
        until = time.monotonic() + PATIENCE_S
        while not note.exists() and time.monotonic() < until:
            time.sleep(0.05)
        opened = note.read_text()
        assert urlsplit(opened).port == console.port
        assert opened != console.link
        assert console.enter(opened) == 303
        assert "<h1>Fleet</h1>" in console.page("/")
        assert console.enter(opened) == 403
        assert console.enter(console.link) == 303


def test_a_port_that_is_taken_is_said(service: FakeService, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("--api", service.url, "console", "--no-browser", "--port", port)
    assert ended.code == Exit.USAGE
    assert f"--port {port}" in ended.err
    assert "in use" in ended.err


@pytest.mark.parametrize("port", ["-1", "65536", "1e3", "٣", ""])
def test_a_port_is_a_number(service: FakeService, run: Run, port: str) -> None:
    ended = run("--api", service.url, "console", f"--port={port}")
    assert (ended.code, "must be a port" in ended.err) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (TOKEN, 0o644, "others may read it"),
        (TOKEN[: MIN_TOKEN_CHARS - 1], 0o600, "must hold 32 or more"),
        (f"{TOKEN}/..", 0o600, "must hold 32 or more"),
        (f"{TOKEN} x", 0o600, "must hold 32 or more"),
        (f"{TOKEN}é", 0o600, "cannot be read"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_key_that_is_no_secret_is_refused(
    service: FakeService, run: Run, tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    ended = run("--api", service.url, "console", "--no-browser", "--token-file", str(file))
    assert (ended.code, said in ended.err) == (Exit.USAGE, True)
    assert CANARY not in ended.err


@pytest.mark.process
def test_orders_go_to_the_service_under_the_forms_own_key(service: FakeService) -> None:
    with shown(service, "--no-browser") as console:
        console.enter(console.link)
        page = console.page("/")
        hidden = dict(re.findall(r'<input type="hidden" name="(csrf|key)" value="([^"]+)">', page))
        headers = {"Cookie": console.cookie, "Content-Type": "application/x-www-form-urlencoded"}
        order = urlencode({**hidden, "paused": "yes"})
        for _ in range(2):  # sent twice by a nervous hand, it is one order
            assert console.ask("POST", "/pause", headers=headers, body=order)[0] == 303
        sent = [seen for seen in service.requests if seen.method == "PUT"]
        assert {json.dumps(seen.body) for seen in sent} == {'{"paused": true}'}
        assert {seen.headers["idempotency-key"] for seen in sent} == {hidden["key"]}
        assert service.registry.is_paused() is True
