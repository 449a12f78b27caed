"""A real HTTP server that receives webhooks and misbehaves as it is told, and an independent check of signatures."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

OK = 200


@dataclass(frozen=True)
class Got:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes
    answer: str

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """Answers requests as `plan` says, one entry each, and with 200 once it is empty.

    Entries: a status; (429, "7") for a status with Retry-After; "close" takes the body and hangs up; "slow" takes it
    and says nothing until the client has gone; "drip" sends one byte of a header at a time; "redirect" answers 302.
    """

    plan: deque[Any] = field(default_factory=deque)
    got: list[Got] = field(default_factory=list)

    def __enter__(self) -> Self:
        receiver = self
        self._over = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                what = receiver.plan.popleft() if receiver.plan else OK
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append(Got(self.path, headers, body, str(what)))
                self.close_connection = True
                if what == "close":
                    return
                if what == "slow":
                    self.connection.settimeout(120)
                    self.connection.recv(1)  # ends when the client hangs up
                    return
                if what == "drip":
                    self._drip()
                    return
                status, retry_after = what if isinstance(what, tuple) else (what, None)
                self.send_response(302 if status == "redirect" else status)
                if status == "redirect":
                    self.send_header("Location", f"{receiver.url}/elsewhere")
                if retry_after is not None:
                    self.send_header("Retry-After", retry_after)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _drip(self) -> None:
                try:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                    while not receiver._over.wait(0.02):
                        self.wfile.write(b"x")
                        self.wfile.flush()
                except OSError:
                    return

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that hang up are what is tested

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join(timeout=60)
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def taken(self) -> list[Got]:
        """What was answered with success."""
        return [request for request in self.got if request.answer == "200"]


def hmac_by_the_book(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 as RFC 2104 writes it, without the library's own."""
    block = hashlib.sha256(key).digest() if len(key) > 64 else key
    block = block.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(one ^ 0x36 for one in block) + message).digest()
    return hashlib.sha256(bytes(one ^ 0x5C for one in block) + inner).digest()


def is_genuine(got: Got, secret: str) -> bool:
    """Whether one of the signatures is right for a receiver that knows `secret`, by the text of Standard Webhooks."""
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    content = b".".join([got.headers["webhook-id"].encode(), got.headers["webhook-timestamp"].encode(), got.body])
    wanted = "v1," + base64.b64encode(hmac_by_the_book(key, content)).decode()
    return wanted in got.headers["webhook-signature"].split(" ")
