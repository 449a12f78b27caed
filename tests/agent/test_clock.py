"""The agent's time is AWS's, whatever its host's clock shows."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from rekindle.agent.clock import AwsClock

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class Host:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


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


def test_it_listens_to_each_answer_of_a_client() -> None:
    client: Any = boto3.client(
        "sqs",
        region_name="eu-west-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    clock = AwsClock(Host())
    clock.follow(client)
    late = format_datetime(NOW + timedelta(minutes=2), usegmt=True)
    said = {"http_response": SimpleNamespace(headers={"Date": late}), "model": None}
    client.meta.events.emit("after-call.sqs.ReceiveMessage", parsed={}, context={}, **said)
    assert clock.now() == NOW + timedelta(minutes=2)
    with Stubber(client) as stubbed:  # an answer without a response of HTTP
        stubbed.add_response("get_queue_url", {"QueueUrl": "https://q"})
        client.get_queue_url(QueueName="q")
    assert clock.now() == NOW + timedelta(minutes=2)
