"""From the bus to a receiver that misbehaves, through the real rule, queue, log and functions: nothing is lost."""

from __future__ import annotations

import json
from collections import deque
from contextlib import ExitStack
from datetime import timedelta

import pytest

from chalicelib.ports.notices import NoticeKind
from tests.notify.conftest import Told
from tests.notify.made import OLDER, SECRET, notice, webhook
from tests.notify.receiver import Receiver, is_genuine

pytestmark = pytest.mark.long

HOUR = timedelta(hours=1)


def routes(**channels: object) -> dict[str, object]:
    return {"channels": channels, "routes": [{"to": list(channels)}]}


def test_a_notice_arrives_once_as_a_signed_cloud_event(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(f"{receiver.url}/hook", older_signing_secret="older")))
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(HOUR)
    (got,) = receiver.got
    assert got.path == "/hook"
    assert got.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert is_genuine(got, SECRET)
    assert is_genuine(got, OLDER)
    assert not is_genuine(got, "another secret, long enough")
    body = json.loads(got.body)
    assert {name: body[name] for name in ("specversion", "id", "type", "subject")} == {
        "specversion": "1.0",
        "id": "inc-1.1.3.0",
        "type": "rekindle.notice",
        "subject": "lm-7b",
    }
    assert body["data"]["paste"] == [["Show", "rekindle show inc-1"]]
    assert told.waiting("deliveries") == told.waiting("undelivered") == []


def test_what_a_receiver_does_not_take_comes_again_with_the_same_id(told: Told) -> None:
    plans: list[list[object]] = [
        [(429, "7")],
        [500, 503],
        ["close"],
        ["slow"],
        ["drip"],
        [(503, "Wed, 21 Oct 2015 07:28:00 GMT"), 408],
    ]
    with ExitStack() as stack:
        receivers = [stack.enter_context(Receiver(plan=deque(plan))) for plan in plans]
        told.document("channels", routes(**{f"c{n}": webhook(receiver.url) for n, receiver in enumerate(receivers)}))
        told.service.announcer.announce(notice())
        told.cloud.clock.run_for(HOUR)
    for plan, receiver in zip(plans, receivers, strict=True):
        assert [request.answer for request in receiver.got] == [str(status) for status in plan] + ["200"]
        assert len({request.message_id for request in receiver.got}) == 1
        assert len({request.body for request in receiver.got}) == 1
        assert all(is_genuine(request, SECRET) for request in receiver.got)
    assert len({receiver.got[0].message_id for receiver in receivers}) == len(plans)  # an id of each channel's own
    assert told.waiting("deliveries") == told.waiting("undelivered") == []


def test_retry_after_is_kept_to_by_the_whole_channel(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.append((429, "120"))
    began = told.cloud.clock.now()
    for number in range(5):
        told.service.announcer.announce(notice(token=f"inc-{number}.1.1.0"))
    told.cloud.clock.run_for(timedelta(seconds=119))
    assert len(receiver.got) == 1  # the other four have waited without asking
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == len({request.message_id for request in receiver.taken()}) == 5
    later = [int(request.headers["webhook-timestamp"]) for request in receiver.taken()]
    assert min(later) >= int(began.timestamp()) + 120


def test_a_storm_against_a_receiver_that_fails_half_the_time_loses_nothing(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.extend([500, "close", (429, "3"), 200, 200, 503] * 3)
    tokens = [f"inc-{number}.1.1.0" for number in range(15)]
    for token in tokens:
        told.service.announcer.announce(notice(token=token))
    told.cloud.clock.run_for(24 * HOUR)
    arrived = [json.loads(request.body)["id"] for request in receiver.taken()]
    assert sorted(arrived) == sorted(tokens)
    assert told.waiting("deliveries") == told.waiting("undelivered") == []
    ids = {json.loads(request.body)["id"]: request.message_id for request in receiver.got}
    assert all(ids[json.loads(request.body)["id"]] == request.message_id for request in receiver.got)


def test_one_receiver_s_outage_delays_no_other_channel(told: Told, receiver: Receiver) -> None:
    with Receiver() as broken:
        broken.plan.extend([500] * 1000)
        told.document("channels", routes(down=webhook(broken.url), up=webhook(receiver.url)))
        for number in range(10):
            told.service.announcer.announce(notice(token=f"inc-{number}.1.1.0"))
        told.cloud.clock.run_for(timedelta(minutes=1))
        assert len(receiver.taken()) == 10
        assert len(broken.got) < 10  # it is left alone between tries


def test_an_event_that_comes_twice_is_delivered_once(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    for _ in range(3):
        told.service.announcer.announce(notice())
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.got) == 1


def test_a_refusal_goes_to_the_undeliverable_with_the_reason_and_back_by_redrive(
    told: Told, receiver: Receiver
) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.extend([404])
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(HOUR)
    (dead,) = told.waiting("undelivered")
    assert dead["attributes"]["why"]["StringValue"] == "oncall answered 404"
    assert told.waiting("deliveries") == []
    assert told.redrive() == 1  # the receiver has been mended
    told.cloud.clock.run_for(HOUR)
    assert [request.answer for request in receiver.got] == ["404", "200"]
    assert len({request.message_id for request in receiver.got}) == 1
    assert told.waiting("undelivered") == told.waiting("deliveries") == []


def test_a_notice_that_comes_late_says_that_it_stands_before_what_came_first(told: Told, receiver: Receiver) -> None:
    """The first send fails, and the Incident has recovered by the time it is tried again."""
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.append(500)
    told.service.announcer.announce(notice(sequence="0001.000003.001"))
    told.cloud.clock.run_for(timedelta(seconds=2))
    told.service.announcer.announce(notice(token="inc-1.1.9.0", sequence="0001.000009.001", title="recovered"))
    told.cloud.clock.run_for(HOUR)
    arrived = [json.loads(request.body) for request in receiver.taken()]
    assert sorted(message["sequence"] for message in arrived) == ["0001.000003.001", "0001.000009.001"]
    assert max(arrived, key=lambda body: body["sequence"])["data"]["title"] == "recovered"


def test_a_redirect_is_not_followed(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.append("redirect")
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.got) == 1
    (dead,) = told.waiting("undelivered")
    assert "redirects are not followed" in dead["attributes"]["why"]["StringValue"]


def test_what_fails_for_a_day_is_given_up_and_can_be_tried_anew(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.extend([500] * 500)
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(23 * HOUR)
    assert told.waiting("undelivered") == []
    told.cloud.clock.run_for(2 * HOUR)
    (dead,) = told.waiting("undelivered")
    assert "1 day" in dead["attributes"]["why"]["StringValue"]
    assert 90 < len(receiver.got) < 200  # a quarter of an hour apart in the end
    receiver.plan.clear()
    told.redrive()
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 1


def test_a_channel_that_cannot_be_used_says_why(told: Told) -> None:
    hook = {"kind": "webhook", "signing_secret": "hook"}
    wrong = {
        "inner": (hook | {"url": "http://127.0.0.1:9/"}, "not to be sent to"),
        "metadata": (hook | {"url": "http://169.254.169.254/", "private": True}, "not to be sent to"),
        "unsigned": (hook | {"url": "https://127.0.0.1/", "signing_secret": "nobody"}, "no secret"),
        "nonsense": ({"kind": "apprise", "url_secret": "hook"}, "not one address"),
    }
    told.document("channels", routes(**{name: document for name, (document, _) in wrong.items()}))
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(HOUR)
    dead = {
        json.loads(message["body"])["channel"]: message["attributes"]["why"]["StringValue"]
        for message in told.waiting("undelivered")
    }
    assert dead.keys() == wrong.keys()
    for name, (_, reason) in wrong.items():
        assert reason in dead[name]


def test_a_channel_taken_out_of_the_document_leaves_its_messages_with_the_undeliverable(
    told: Told, receiver: Receiver
) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.append((429, "60"))
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(timedelta(seconds=2))
    told.document("channels", {})
    told.cloud.clock.run_for(HOUR)
    (dead,) = told.waiting("undelivered")
    assert "not in the channels document" in dead["attributes"]["why"]["StringValue"]


def test_a_document_that_cannot_be_read_keeps_the_notice_until_it_can(told: Told, receiver: Receiver) -> None:
    told.document("channels", {"channels": {"oncall": {"kind": "telegram"}}})
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(timedelta(seconds=20))
    told.document("channels", routes(oncall=webhook(receiver.url)))
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 1  # EventBridge delivered the event again


def test_a_wrong_channel_or_route_keeps_no_other_from_being_told(told: Told, receiver: Receiver) -> None:
    wrong = routes(good=webhook(receiver.url), bad=webhook(receiver.url, privat=True))
    wrong["routes"] = [*wrong["routes"], {"to": ["nobody"]}]  # type: ignore[misc]
    told.document("channels", wrong)
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(timedelta(seconds=20))
    (first,) = receiver.taken()  # EventBridge has tried again since: nothing is told twice
    told.document("channels", routes(good=webhook(receiver.url), bad=webhook(receiver.url)))
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 2  # and nothing was lost
    assert first.message_id != receiver.taken()[1].message_id


def test_what_waits_for_a_channel_whose_entry_became_wrong_waits_for_it(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    receiver.plan.append((429, "60"))
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(timedelta(seconds=2))
    told.document("channels", routes(oncall=webhook(receiver.url, wants=["gossip"])))
    told.cloud.clock.run_for(timedelta(minutes=10))
    assert told.waiting("undelivered") == []
    told.document("channels", routes(oncall=webhook(receiver.url)))
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 1


def test_changes_go_only_to_channels_that_want_them(told: Told, receiver: Receiver) -> None:
    with Receiver() as board:
        told.document("channels", routes(news=webhook(receiver.url), board=webhook(board.url, wants=["change"])))
        told.service.announcer.announce(notice(kind=NoticeKind.CHANGE))
        told.service.announcer.announce(notice(token="another"))
        told.cloud.clock.run_for(HOUR)
        assert [json.loads(request.body)["data"]["kind"] for request in board.got] == ["change"]
    assert [json.loads(request.body)["data"]["kind"] for request in receiver.got] == ["news"]


def test_garbage_in_the_queue_is_buried_and_holds_nobody_up(told: Told, receiver: Receiver) -> None:
    told.document("channels", routes(oncall=webhook(receiver.url)))
    for body in ("not json", "[]", '{"channel": 3, "detail": {}}', '{"channel": "oncall", "detail": {"data": 1}}'):
        told.service.delivery_queue.enqueue([body])
    told.service.announcer.announce(notice())
    told.cloud.clock.run_for(HOUR)
    assert len(receiver.taken()) == 1
    assert len(told.waiting("undelivered")) == 4
    assert told.waiting("deliveries") == []
