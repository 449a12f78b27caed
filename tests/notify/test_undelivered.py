"""Notices that were given up: an operator sees which, where and why, and sends them again."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from app import app
from rekindle.cli.main import main
from tests.notify.conftest import Told
from tests.notify.made import notice, webhook
from tests.notify.receiver import Receiver

pytestmark = pytest.mark.long

HOUR = timedelta(hours=1)


def call(told: Told, operation: str) -> dict[str, Any]:
    event = {"headers": {}, "requestContext": {"identity": {"userArn": "arn:aws:iam::1:user/op"}, "requestId": "r"}}
    answer = told.service.api.answer(operation, {}, event, b"")
    assert answer.status == 200, answer.text()
    return dict(answer.body)


def given_up(told: Told, receiver: Receiver, *statuses: int) -> None:
    """A channel refuses as many notices for good."""
    told.document("channels", {"channels": {"oncall": webhook(receiver.url)}, "routes": [{"to": ["oncall"]}]})
    receiver.plan.extend(statuses)
    for number, _ in enumerate(statuses):
        told.service.announcer.announce(notice(token=f"inc-{number}.1.1.0"))
    told.cloud.clock.run_for(HOUR)


def test_what_was_given_up_is_told_with_its_channel_and_reason_and_stays(told: Told, receiver: Receiver) -> None:
    assert call(told, "list_undelivered") == {"notices": []}
    given_up(told, receiver, 410)
    for _ in range(2):
        (one,) = call(told, "list_undelivered")["notices"]
        assert (one["channel"], one["why"], one["notice_id"]) == ("oncall", "oncall answered 410", "inc-0.1.1.0")
        assert (one["severity"], one["title"], one["incident_id"]) == ("page", "lm-7b: a node is broken", "inc-1")
        assert one["written_at"] == notice().at.isoformat()
        assert one["given_up_at"] is not None


def test_sent_again_each_arrives_once(told: Told, receiver: Receiver) -> None:
    given_up(told, receiver, *[404] * 13)
    assert call(told, "redrive_undelivered") == {"sent_again": 13, "unreadable": 0}
    assert call(told, "redrive_undelivered") == {"sent_again": 0, "unreadable": 0}
    told.cloud.clock.run_for(HOUR)
    arrived = [request.message_id for request in receiver.taken()]
    assert len(arrived) == len(set(arrived)) == 13
    assert call(told, "list_undelivered") == {"notices": []}


def test_what_arrived_meanwhile_is_not_sent_twice(told: Told, receiver: Receiver) -> None:
    """A call that died between laying a message in and taking it out leaves a double."""
    given_up(told, receiver, 404)
    (dead,) = told.waiting("undelivered")
    told.service.delivery_queue.enqueue([dead["body"]])
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 1
    assert call(told, "redrive_undelivered")["sent_again"] == 1
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 1
    assert told.waiting("undelivered") == told.waiting("deliveries") == []


def test_what_fails_again_comes_back_with_the_new_reason(told: Told, receiver: Receiver) -> None:
    given_up(told, receiver, 404)
    receiver.plan.append(401)
    call(told, "redrive_undelivered")
    told.cloud.clock.run_for(HOUR)
    (one,) = call(told, "list_undelivered")["notices"]
    assert one["why"] == "oncall answered 401"


def test_what_is_no_notice_is_told_and_stays(told: Told, receiver: Receiver) -> None:
    sqs = told.cloud.client("sqs")
    bodies = ("not json", "[]", '{"channel": "a"}', '{"channel": "a", "detail": {"data": 7}}', "[" * 100_000)
    for body in bodies:
        sqs.send_message(QueueUrl=told.service.settings.undelivered_url, MessageBody=body)
    seen = call(told, "list_undelivered")["notices"]
    assert len(seen) == len(bodies)
    assert {letter["channel"] for letter in seen} == {""}
    assert all("deliver" in letter["why"] for letter in seen)
    assert call(told, "redrive_undelivered") == {"sent_again": 0, "unreadable": len(bodies)}
    assert len(told.waiting("undelivered")) == len(bodies)


def test_the_command_shows_and_sends(told: Told, receiver: Receiver, capsys: Any) -> None:
    given_up(told, receiver, 404)
    url = told.cloud.serve_api(app)
    assert main(["--api", url, "undelivered", "list"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("oncall", "oncall answered 404", "lm-7b: a node is broken", "inc-1"))
    assert main(["--api", url, "undelivered", "redrive", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sent_again"] == 1
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 1
    assert main(["--api", url, "undelivered", "list"]) == 0
    assert "Every notice" in capsys.readouterr().out
