"""What a command says of a connection that is closed without an answer."""

from __future__ import annotations

import socketserver
import threading

import pytest

from rekindle.cli.main import main
from rekindle.client.errors import Exit


class Closes(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1)


def test_a_connection_closed_without_an_answer_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closes) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            code = main(["jobs", "--api", f"http://127.0.0.1:{server.server_address[1]}"])
        finally:
            server.shutdown()
            serving.join()
    said = capsys.readouterr().err
    assert code == Exit.TRY_AGAIN
    assert "no answer from http://127.0.0.1:" in said
    assert "RemoteDisconnected" not in said
    assert "('" not in said
