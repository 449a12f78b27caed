"""`rekindle show INCIDENT --report`: the link with its end, the page in a file, what is refused."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.service import FakeService

PAGE = b"<!doctype html><title>lm: hang; recovered</title>"


class Store(BaseHTTPRequestHandler):
    """S3 as a link sees it: one page, and nothing else."""

    def do_GET(self) -> None:
        there = self.path.startswith("/box/incident-pages/inc-1.html?X-Amz-")
        self.send_response(200 if there else 403)
        self.end_headers()
        self.wfile.write(PAGE if there else b"<Error/>")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def store() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/box/incident-pages/inc-1.html"
        server.shutdown()


def linked(url: str) -> dict[str, Any]:
    until, written = "2026-11-20T11:00:00+00:00", "2026-11-20T09:58:00+00:00"
    return {"incident_id": "inc-1", "url": url, "until": until, "written_at": written}


def given(service: FakeService, body: dict[str, Any]) -> None:
    service.answers.append((200, {}, json.dumps(body).encode()))


def test_the_link_alone_stands_on_standard_output_and_its_end_beside_it(rekindle: Run, service: FakeService) -> None:
    url = "https://box.s3.eu-west-1.amazonaws.com/incident-pages/inc-1.html?X-Amz-Expires=3600"
    given(service, linked(url))
    ended = rekindle("show", "inc-1", "--report")
    assert (ended.code, ended.out) == (0, url + "\n")
    assert "written 11-20 09:58" in ended.err or "09:58" in ended.err
    assert "11:00" in ended.err
    assert "at the latest" in ended.err
    assert service.requests[-1].path == "/incidents/inc-1/report"
    given(service, linked(url))
    assert json.loads(rekindle("show", "inc-1", "--report", "--json").out) == linked(url)


def test_the_page_is_saved_for_its_owner_alone_and_over_nothing(
    rekindle: Run, service: FakeService, store: str, tmp_path: Path
) -> None:
    given(service, linked(f"{store}?X-Amz-Signature=1"))
    file = tmp_path / "page.html"
    ended = rekindle("show", "inc-1", "--report", "--save", str(file))
    assert (ended.code, file.read_bytes()) == (0, PAGE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(file) in ended.out
    given(service, linked(f"{store}?X-Amz-Signature=1"))
    again = rekindle("show", "inc-1", "--report", "--save", str(file))
    assert again.code == 2
    assert "--save" in again.err
    assert "exists" in again.err
    given(service, linked(f"{store}?X-Amz-Signature=1"))
    nowhere = rekindle("show", "inc-1", "--report", "--save", str(tmp_path / "no" / "page.html"))
    assert nowhere.code == 2
    assert "--save" in nowhere.err


def test_a_link_that_has_ended_is_told_and_no_file_is_left(
    rekindle: Run, service: FakeService, store: str, tmp_path: Path
) -> None:
    given(service, linked(store))  # unsigned
    ended = rekindle("show", "inc-1", "--report", "--save", str(tmp_path / "page.html"))
    assert ended.code != 0
    assert "HTTP 403" in ended.err
    assert not (tmp_path / "page.html").exists()


def test_a_link_of_this_machines_own_cloud_says_that_it_ends_with_it(
    rekindle: Run, service: FakeService, store: str
) -> None:
    given(service, linked(f"{store}?X-Amz-Signature=1"))
    assert "--save FILE" in rekindle("show", "inc-1", "--report").err


@pytest.mark.parametrize(
    "url",
    [
        "",
        None,
        7,
        "javascript:alert(1)",
        "file:///etc/passwd",
        "http://example.com/x",
        "https://",
        "https://a/\x1b[2Jb",
    ],
)
def test_what_is_no_link_is_not_printed_as_one(rekindle: Run, service: FakeService, url: Any) -> None:
    given(service, linked(url))
    ended = rekindle("show", "inc-1", "--report")
    assert ended.code != 0
    assert ended.out == ""
    assert "no link" in ended.err


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--save", "x.html"), "--save"),
        (("--report", "--watch"), "--watch"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_asked(
    rekindle: Run, service: FakeService, options: tuple[str, ...], names: str
) -> None:
    ended = rekindle("show", "inc-1", *options)
    assert ended.code == 2
    assert names in ended.err
    assert service.requests == []
