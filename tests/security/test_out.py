"""The way out, against a resolver that lies (DNS rebinding). The resolver stands in for the network's."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from chalicelib.channels.outbound import post
from chalicelib.domain.model.errors import Permanent
from tests.notify.receiver import Receiver

NAME = "rebind.example"


class Resolver:
    """Answers for NAME with the next of its answers, the last one for ever; for all else as the machine does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host != NAME:
            return self._real(host, port, *args, **more)
        addresses = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]


def test_a_name_is_asked_for_once_and_the_address_that_was_judged_is_the_one_that_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Receiver() as receiver:
        resolver = Resolver(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        port = receiver.url.rpartition(":")[2]
        answer = post(f"http://{NAME}:{port}/", b"{}", {}, private=True, total_s=60.0)
    assert (answer.status, resolver.asked) == (200, 1)
    assert [got.headers["host"] for got in receiver.got] == [f"{NAME}:{port}"]


@pytest.mark.parametrize("other", ["169.254.169.254", "127.0.0.1", "10.0.0.1"])
def test_one_address_among_good_ones_that_is_not_to_be_reached_is_enough(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Which of a name's addresses is called is not left to chance."""
    resolver = Resolver(monkeypatch, ["93.184.216.34", other])
    with pytest.raises(Permanent, match="not to be sent to"):
        post(f"https://{NAME}/", b"{}", {})
    assert resolver.asked == 1
