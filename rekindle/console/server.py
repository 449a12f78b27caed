"""The console on loopback: HTTP in, the gate, the site, HTTP out. One thread per connection, all of them daemons."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from rekindle.client.api import Client, pool
from rekindle.compat import UTC
from rekindle.console import orders, pages
from rekindle.console.gate import OPEN, SECURITY_HEADERS, Gate, Refusal
from rekindle.console.reads import MAX_AT_ONCE
from rekindle.console.site import TEXT, PageRequest, PageResponse, Site

HOST: Final = "127.0.0.1"
MAX_FORM_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 50
IDLE_S: Final = 30.0  # a connection that says nothing is closed
_FORM: Final = "application/x-www-form-urlencoded"

log = logging.getLogger(__name__)


class Console(ThreadingHTTPServer):
    """One console. `link` opens it in a browser."""

    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False

    def __init__(self, client: Client, *, port: int = 0, token: str | None = None, can_order: bool = True) -> None:
        super().__init__((HOST, port), _Handler)
        self.gate = Gate(
            port=self.server_address[1],
            token=token or secrets.token_urlsafe(32),
            session=secrets.token_urlsafe(32),
        )
        asks = replace(client, http=pool(connections=MAX_AT_ONCE))
        self.site = Site(
            asks,
            gate=self.gate,
            now=lambda: datetime.now(UTC),
            routes={"GET": pages.ROUTES, "POST": orders.ROUTES},
            can_order=can_order,
        )
        self._over = threading.Event()
        self._tickets: set[str] = set()

    def link_for_once(self) -> str:
        """A link that opens the console one time. What a browser is started with, every user of this machine can read
        in the list of processes; once the browser has been there, it is worth nothing."""
        ticket = secrets.token_urlsafe(32)
        self._tickets.add(ticket)
        return f"http://{HOST}:{self.gate.port}{OPEN}{ticket}"

    def opens(self, path: str) -> bool:
        """The path is the printed link's, or a link's that has not been used."""
        if self.gate.is_login(path):
            return True
        try:
            self._tickets.remove(path.removeprefix(OPEN))  # of two at once, one finds it
        except KeyError:
            return False
        return True

    @property
    def link(self) -> str:
        """The URL that opens the console. It carries the key: its holder may do everything that the operator may."""
        return self.gate.link

    def wait(self) -> None:
        """Serve until the process is asked to stop."""
        self._over.wait()

    def server_close(self) -> None:
        """Listen no more."""
        super().server_close()
        if "site" in vars(self):  # it is closed before it has one where its port is taken
            self.site.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no news, and nothing of a request is ever printed."""


@contextmanager
def running(client: Client, *, port: int = 0, token: str | None = None, can_order: bool = True) -> Iterator[Console]:
    """A console on a thread of its own, for as long as the block lasts.

    Raises:
        OSError: the port is taken.
    """
    console = Console(client, port=port, token=token, can_order=can_order)
    thread = threading.Thread(target=console.serve_forever, args=(0.05,), name="console", daemon=True)
    thread.start()
    try:
        yield console
    finally:
        console.shutdown()
        console.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Console
    protocol_version = "HTTP/1.1"
    server_version = "rekindle-console"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        """A page."""
        self._serve(has_body=True)

    def do_HEAD(self) -> None:
        """A page's headers."""
        self._serve(has_body=False)

    def do_POST(self) -> None:
        """An order."""
        self._serve(has_body=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request's line holds the token once."""

    def _serve(self, *, has_body: bool) -> None:
        try:
            answer = self._answer()
        except Exception:  # a page that cannot be drawn must not hang the browser, nor show what it was drawing
            log.exception("a page cannot be drawn")  # where the console was started
            self.close_connection = True
            answer = PageResponse(status=500, body=b"this page cannot be drawn\n", kind=TEXT)
        try:
            self.send_response(answer.status)
            for name, value in {**SECURITY_HEADERS, **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if has_body:
                self.wfile.write(answer.body)
        except OSError:
            self.close_connection = True

    def _answer(self) -> PageResponse:
        gate = self.server.gate
        form, problem = self._form()  # read first, so that a refused request leaves the connection usable
        refusal = gate.check_host(self.headers.get_all("Host") or []) or problem
        if refusal is not None:
            return _refused(refusal)
        parts = urlsplit(self.path)
        if self.command == "GET" and self.server.opens(parts.path):
            return PageResponse(status=303, headers={"Location": f"{gate.base}/", "Set-Cookie": gate.set_cookie})
        refusal = gate.check_session(self.headers.get_all("Cookie") or [], self.headers.get("Authorization") or "")
        if refusal is None and self.command == "POST":
            refusal = gate.check_change(
                csrf=form.get("csrf", ""),
                origin=self.headers.get("Origin"),
                fetch_site=self.headers.get("Sec-Fetch-Site"),
            )
        if refusal is not None:
            return _refused(refusal)
        query = dict(parse_qsl(parts.query, max_num_fields=MAX_FIELDS))
        return self.server.site.answer(
            PageRequest(
                method="POST" if self.command == "POST" else "GET",
                path=gate.page_path(parts.path),
                query=query,
                form=form,
            )
        )

    def _form(self) -> tuple[dict[str, str], Refusal | None]:
        if self.command != "POST":
            return {}, None
        given = self.headers.get("Content-Length") or ""
        if not (given.isascii() and given.isdigit() and len(given) < 8) or int(given) > MAX_FORM_BYTES:
            self.close_connection = True
            return {}, Refusal(413, f"a form has a length, and at most {MAX_FORM_BYTES} bytes")
        raw = self.rfile.read(int(given))
        if (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower() != _FORM:
            return {}, Refusal(415, "an order is a form")
        try:
            return dict(parse_qsl(raw.decode(), max_num_fields=MAX_FIELDS)), None
        except ValueError:
            return {}, Refusal(400, "the form cannot be read")


def _refused(refusal: Refusal) -> PageResponse:
    return PageResponse(status=refusal.status, body=f"{refusal.why}\n".encode(), kind=TEXT)
