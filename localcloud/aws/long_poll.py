"""Answers an SQS long poll over HTTP with a series of short polls.

moto holds its one lock for the whole wait of a long poll, so that no other client could send the awaited message, and
it hands a message to a client that has already disconnected.
"""

from __future__ import annotations

import io
import json
import select
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

TARGET: Final = "AmazonSQS.ReceiveMessage"  # Source: botocore sqs, JSON protocol
LOOK_S: Final = 0.05

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def is_long_poll(environ: dict[str, Any]) -> bool:
    return environ.get("HTTP_X_AMZ_TARGET") == TARGET


def answer(
    environ: dict[str, Any], start_response: Callable[..., Any], *, moto: Wsgi, lock: AbstractContextManager[Any]
) -> list[bytes]:
    """The answer as soon as there is a message, or at the end of the wait."""
    raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    request = json.loads(raw or b"{}")
    end = time.monotonic() + float(request.get("WaitTimeSeconds") or 0)
    body = json.dumps({**request, "WaitTimeSeconds": 0}).encode()
    client = environ.get("werkzeug.socket")
    while True:
        with lock:
            if _is_gone(client, 0.0):  # under the lock: no message can come between this look and the next
                start_response("200 OK", [("Content-Length", "2")])
                return [b"{}"]
            stated, content = _short(environ, body, moto)
        is_empty = stated[0].startswith("200") and not json.loads(b"".join(content) or b"{}").get("Messages")
        if not is_empty or time.monotonic() >= end:
            start_response(*stated)
            return content
        _is_gone(client, LOOK_S)


def _short(environ: dict[str, Any], body: bytes, moto: Wsgi) -> tuple[tuple[Any, ...], list[bytes]]:
    """One short poll: (status, headers and exc_info as passed to start_response, body)."""
    lines: list[tuple[Any, ...]] = []
    again = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    content = list(moto(again, lambda *arguments: lines.append(arguments)))
    return lines[-1], content


def _is_gone(connection: socket.socket | None, wait_s: float) -> bool:
    """True once the client has closed the connection; waits so long for that."""
    if connection is None:
        time.sleep(wait_s)
        return False
    readable, _, _ = select.select([connection], [], [], wait_s)
    try:
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True
