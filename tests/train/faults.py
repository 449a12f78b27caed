"""What is done to a run from outside: a proxy before its store that can cut or stall, and an S3 that is very slow."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Proxy:
    """Between one rank and the store. `reset` breaks what is open, `stall` carries nothing more until `resume`.

    `refuse` lets no new connection in; what is open stays as it is.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """A TCP reset on every connection; new ones are let in."""
        with self._lock:
            connections, self._open = self._open, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RD)
            connection.close()

    def stall(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def refuse(self) -> None:
        self._refuses = True

    def close(self) -> None:
        self._is_closed = True
        self._flows.set()
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
                if self._refuses:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
            except OSError:
                continue
            with self._lock:
                self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while body := source.recv(65536):
                self._flows.wait()
                sink.sendall(body)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def slow_s3(call_s: float) -> Iterator[str]:
    """The address of an S3 that answers every call, with "there is nothing", after `call_s` seconds."""
    is_over = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_over.wait(call_s)
            with contextlib.suppress(OSError):
                self.send_response(200 if self.command == "PUT" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        is_over.set()
        server.shutdown()
        server.server_close()
