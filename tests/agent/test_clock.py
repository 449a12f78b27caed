"""The agent's time is AWS's, whatever its host's clock shows."""

import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from rekindle.slurm_agent.base.clock import AwsClock

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class Host:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> datetime:
        return self.now()

    def is_sure(self) -> bool:
        return True


def answered(clock: AwsClock, headers: dict[str, str]) -> None:
    clock._answered(SimpleNamespace(headers=headers))


@pytest.mark.parametrize(("off_s", "told"), [(0, ""), (3, ""), (-4, ""), (30, ""), (120, "slow"), (-600, "fast")])
def test_it_is_set_right_by_what_aws_answers(off_s: int, told: str) -> None:
    clock = AwsClock(Host())
    answered(clock, {"Date": format_datetime(NOW + timedelta(seconds=off_s), usegmt=True)})
    wanted = off_s if abs(off_s) > 5 else 0
    assert clock.now() == NOW + timedelta(seconds=wanted)
    assert [told in line for line in clock.problems()] == ([True] if told else [])


@pytest.mark.parametrize("headers", [{}, {"Date": "soon"}, {"Date": ""}, {"Date": "Fri, 20 Nov 2026 12:00:00"}])
def test_an_answer_without_a_usable_date_changes_nothing(headers: dict[str, str]) -> None:
    clock = AwsClock(Host())
    answered(clock, {"Date": format_datetime(NOW + timedelta(minutes=9), usegmt=True)})
    before = clock.now()
    answered(clock, headers)
    assert clock.now() == before


class Late(BaseHTTPRequestHandler):
    """A service whose clock is two minutes ahead of the host's."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"QueueUrl": "https://q"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(NOW + timedelta(minutes=2), usegmt=True)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def test_it_listens_to_each_answer_of_a_client() -> None:
    server = HTTPServer(("127.0.0.1", 0), Late)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client: Any = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        region_name="eu-west-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    clock = AwsClock(Host())
    clock.follow(client)
    try:
        client.get_queue_url(QueueName="q")
    finally:
        server.shutdown()
    assert clock.now() == NOW + timedelta(minutes=2)


class Machine(Host):
    """Its clock can be set, and it can stand still."""

    def __init__(self) -> None:
        self.at, self.passed = NOW, 0.0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.passed


HOURS = [timedelta(hours=3), timedelta(hours=-3)]


@pytest.mark.parametrize("off", HOURS, ids=str)
def test_a_host_clock_that_is_set_moves_nothing_and_what_is_sure_is_told(off: timedelta) -> None:
    host = Machine()
    clock = AwsClock(host)
    answered(clock, {"Date": format_datetime(NOW, usegmt=True)})
    assert clock.is_sure()
    host.at, host.passed = host.at + off + timedelta(seconds=7), 7.0
    assert (clock.now(), clock.is_sure()) == (NOW + timedelta(seconds=7), False)
    answered(clock, {"Date": format_datetime(NOW + timedelta(seconds=8), usegmt=True)})
    assert (clock.now(), clock.is_sure()) == (NOW + timedelta(seconds=8), True)
    assert len(clock.problems()) == 1


def test_an_answer_during_which_the_machine_stood_still_sets_nothing() -> None:
    """It was written an hour ago; the wall clock was set right as the machine woke, durations have not passed."""
    host = Machine()
    clock = AwsClock(host)
    answered(clock, {"Date": format_datetime(NOW, usegmt=True)})
    context: dict[str, Any] = {}
    clock._asking(context)
    host.at += timedelta(hours=1)
    clock._answered(SimpleNamespace(headers={"Date": format_datetime(NOW, usegmt=True)}), context=context)
    assert not clock.is_sure()
    hour = NOW + timedelta(hours=1)
    answered(clock, {"Date": format_datetime(hour, usegmt=True)})
    assert (clock.now(), clock.is_sure()) == (hour, True)
