"""Who is let in: host, key, origin, form, and what every answer carries. Over real HTTP, without a browser's help."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from rekindle.console.gate import SECURITY_HEADERS
from tests.console.browser import Browser
from tests.console.world import Visitor, World

PAGES = ("/", "/jobs", "/incidents", "/approvals", "/ledger", "/nodes", "/policies", "/metrics", "/static/console.css")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost", "127.0.0.1:1", "evil.example:{port}", ""])
def test_another_name_for_this_machine_is_answered_by_nothing(visitor: Visitor, host: str) -> None:
    """DNS rebinding: a page of evil.example that was pointed at 127.0.0.1 names evil.example as its host."""
    got = visitor.get("/", Host=host.format(port=visitor.port))
    assert (got.status, "Fleet" in got.body) == (421, False)
    link = visitor.get(f"/open/{visitor.console.gate.token}", Host=host.format(port=visitor.port))
    assert (link.status, "set-cookie" in link.headers) == (421, False)


def test_a_request_with_two_hosts_or_none_is_refused(visitor: Visitor) -> None:
    for extra in (b"Host: 127.0.0.1:%d\r\nHost: evil.example\r\n" % visitor.port, b""):
        with socket.create_connection(("127.0.0.1", visitor.port), timeout=120) as wire:
            wire.sendall(
                b"GET / HTTP/1.1\r\n" + extra + f"Cookie: {visitor.cookie}\r\nConnection: close\r\n\r\n".encode()
            )
            said = b""
            while part := wire.recv(65536):
                said += part
        assert said.startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize("page", PAGES)
def test_without_the_key_there_is_nothing_to_see(visitor: Visitor, page: str) -> None:
    gate = visitor.console.gate
    for cookie in (None, "", f"{gate.cookie}=", f"{gate.cookie}={gate.session}x", f"{gate.cookie}={gate.token}", "a=b"):
        got = visitor.get(page, Cookie=cookie)
        assert got.status == 403
        assert "llama" not in got.body


def test_the_link_gives_the_key_and_a_wrong_one_gives_nothing(visitor: Visitor) -> None:
    gate = visitor.console.gate
    got = visitor.get(f"/open/{gate.token}", Cookie=None)
    assert (got.status, got.headers["location"]) == (303, f"{gate.base}/")
    assert got.headers["set-cookie"] == f"{gate.cookie}={gate.session}; Path={gate.base}/; HttpOnly; SameSite=Strict"
    for wrong in ("", gate.token[:-1], f"{gate.token}x", gate.session, f"{gate.token}/"):
        got = visitor.get(f"/open/{wrong}", Cookie=None)
        assert (got.status, "set-cookie" in got.headers) == (403, False)


def test_a_link_for_once_opens_once(visitor: Visitor) -> None:
    """A browser is started with it as an argument, which every user of the machine can read."""
    console = visitor.console
    link = console.link_for_once()
    assert console.gate.token not in link
    path = link.removeprefix(f"http://127.0.0.1:{visitor.port}")
    assert visitor.ask("HEAD", path, headers={"Cookie": None}).status == 403  # whoever only looks uses nothing up
    assert visitor.get(path, Cookie=None, Host="evil.example").status == 421
    first = visitor.get(path, Cookie=None)
    assert (first.status, "set-cookie" in first.headers) == (303, True)
    again = visitor.get(path, Cookie=None)
    assert (again.status, "set-cookie" in again.headers) == (403, False)
    assert visitor.get("/", Cookie=None, Authorization=f"Bearer {link.rpartition('/')[2]}").status == 403


def test_a_bearer_reads_and_orders_nothing_without_the_forms_own_mark(visitor: Visitor) -> None:
    bearer = f"Bearer {visitor.console.gate.token}"
    assert visitor.get("/", Cookie=None, Authorization=bearer).status == 200
    assert visitor.get("/", Cookie=None, Authorization="Bearer x").status == 403
    form = {"paused": "yes", "key": "0" * 32}
    assert visitor.ask("POST", "/pause", form=form, headers={"Cookie": None, "Authorization": bearer}).status == 403


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ({}, {}),
        ({"csrf": "0" * 64}, {}),
        ({"csrf": "right"}, {"Origin": "http://evil.example"}),
        ({"csrf": "right"}, {"Origin": "null"}),
        ({"csrf": "right"}, {"Origin": "https://127.0.0.1:{port}"}),
        ({"csrf": "right"}, {"Sec-Fetch-Site": "cross-site"}),
        ({"csrf": "right"}, {"Sec-Fetch-Site": "same-site"}),
        ({"csrf": "right"}, {"Cookie": None}),
    ],
)
def test_an_order_from_elsewhere_changes_nothing(
    world: World, visitor: Visitor, form: dict[str, str], headers: dict[str, str | None]
) -> None:
    given = {name: value and value.format(port=visitor.port) for name, value in headers.items()}
    mark = {"csrf": visitor.console.gate.csrf} if form.get("csrf") == "right" else form
    got = visitor.ask("POST", "/pause", form={**mark, "paused": "yes", "key": "1" * 32}, headers=given)
    assert got.status == 403
    assert world.service.registry.is_paused() is False


def test_our_own_form_pauses_and_lifts_the_pause(world: World, visitor: Visitor) -> None:
    origin = {"Origin": f"http://127.0.0.1:{visitor.port}", "Sec-Fetch-Site": "same-origin"}
    form = {"csrf": visitor.console.gate.csrf, "key": "2" * 32, "paused": "yes"}
    got = visitor.ask("POST", "/pause", form=form, headers=origin)
    assert got.status == 303
    assert world.service.registry.is_paused() is True
    page = visitor.get(got.headers["location"]).body
    assert "Paused." in page
    assert "nothing is done until the pause is lifted" in page
    assert visitor.order("/pause", paused="no", key="3" * 32).status == 303
    assert world.service.registry.is_paused() is False


def test_an_order_is_no_link(world: World, visitor: Visitor) -> None:
    got = visitor.get(f"/pause?csrf={visitor.console.gate.csrf}&key={'4' * 32}&paused=yes")
    assert got.status == 404
    assert world.service.registry.is_paused() is False


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Length": "99999999"}, 413),
        ({"Content-Length": "x"}, 413),
        ({"Content-Length": "-1"}, 413),
    ],
)
def test_what_is_no_form_of_a_browser_is_refused(visitor: Visitor, headers: dict[str, str], status: int) -> None:
    got = visitor.ask("POST", "/pause", form={"csrf": visitor.console.gate.csrf}, headers=headers)
    assert got.status == status


@pytest.mark.parametrize("page", [*PAGES, "/nothing", "/jobs/nobody", "/open/wrong"])
def test_every_answer_forbids_scripts_frames_and_keeping(visitor: Visitor, page: str) -> None:
    headers = visitor.get(page).headers
    for name, value in SECURITY_HEADERS.items():
        assert headers[name.lower()] == value
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize(
    "path", ["/static/../site.py", "/static/..%2fsite.py", "/static/%2e%2e/gate.py", "/../etc/passwd"]
)
def test_no_path_leads_out_of_the_static_files(visitor: Visitor, path: str) -> None:
    got = visitor.get(path)
    assert got.status == 404
    assert "import" not in got.body


def test_it_listens_on_this_machine_only(world: World) -> None:
    assert world.console.server_address[0] == "127.0.0.1"


def test_neither_key_is_on_any_page_or_in_a_repr(visitor: Visitor) -> None:
    gate = visitor.console.gate
    for page in PAGES[:-1]:
        body = visitor.get(page).body
        assert gate.token not in body
        assert gate.session not in body
    assert gate.token not in repr(gate)
    assert gate.session not in repr(gate)


def test_a_console_that_only_looks_shows_no_form_and_takes_no_order(world: World) -> None:
    from rekindle.client.api import Client
    from rekindle.console.server import running

    with running(Client(url=world.api_url), can_order=False) as console:
        visitor = Visitor(console)
        assert 'method="post"' not in visitor.get("/").body
        got = visitor.order("/pause", paused="yes")
        assert "look only" in visitor.get(got.headers["location"]).body
    assert world.service.registry.is_paused() is False


def test_the_key_goes_to_no_other_server_of_this_machine(visitor: Visitor, browser: Browser) -> None:
    """Cookies know no ports: a browser that is led to another local server must have nothing of ours to hand over."""
    heard: list[str] = []

    class Neighbour(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.path} {self.headers['Cookie']} {self.headers['Referer']}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>neighbour</title>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Neighbour) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        browser.open(visitor.console, "/jobs")
        assert "Jobs" in browser.text()
        gate = visitor.console.gate
        assert gate.session in {
            cookie["value"] for cookie in browser.driver.get_cookies()
        }  # it is kept, for our own path
        for path in ("/", "/jobs", "/open/x"):
            browser.run(f"location.assign('http://127.0.0.1:{server.server_address[1]}{path}')")
            browser.until(lambda: browser.driver.title == "neighbour", "the other server's page")
            browser.driver.back()
            browser.until(lambda: "Jobs" in browser.text(), "our own page")
        server.shutdown()
    assert len(heard) >= 3
    for one in heard:
        assert gate.session not in one
        assert gate.base not in one
