"""What comes from Slack: taken in once, from those who may; everything else leaves nothing behind."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import quote_plus, urlencode

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws

from chalicelib.api.problems import PROBLEM_JSON, ApiResponse
from chalicelib.api.slack import SlackHooks
from chalicelib.api.slack_request import MAX_BODY_BYTES, SlackRequestRefused, authentic, read_command, read_press
from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry
from chalicelib.aws.dynamodb.listings import DynamoListings
from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.slack.blocks import Button, value_of
from chalicelib.channels.slack.groups import SlackGroups
from chalicelib.domain.model.approvals import ApprovalAnswer
from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.model.switches import ShadowScope
from chalicelib.services.intake.intake import Intake
from chalicelib.services.operator.approvals import Approvals
from chalicelib.services.operator.holds import Holds
from chalicelib.services.operator.orders import Orders
from chalicelib.services.operator.switches import Switches
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.outcome import Outcome
from localcloud.aws.template import create_table
from tests.adapters.conftest import make_client
from tests.canary import CANARY, SLACK_SIGNING_SECRET, SLACK_TOKEN
from tests.fakes.executions import RememberedExecutions
from tests.fakes.watching import FakeAlarmStore
from tests.fakes.world import FakeClusterReader, FakeMailbox, FakePolicies, FakeScheduler
from tests.sizes import examples
from tests.slack.conftest import Watch
from tests.slack.fake_slack import CONVERSATION, FakeSlack, Mood
from tests.slack.made import NOW, approval, incident, signal

FORM = "application/x-www-form-urlencoded"
ADA, GRACE, EVE = "U0ADA00", "U0GRACE", "U0EVE00"
_NAMES = itertools.count()


@dataclass
class Gate:
    """The hooks over a real table and real parameters, and a Slack that takes the answers."""

    hooks: SlackHooks
    slack: FakeSlack
    clock: Watch
    store: DynamoIncidentStore
    registry: DynamoJobRegistry
    executions: RememberedExecutions
    outcomes: list[Outcome]
    calls: Counter[str]
    table: str
    client: Any
    serial: Iterator[int] = field(default_factory=itertools.count)

    def open(self, one: Incident) -> Incident:
        """Open it in the table as the service does."""
        self.client.put_item(
            TableName=self.table,
            Item=items.key(items.job_pk(one.job_id or "")) | {"job_id": items.text(one.job_id or "")},
        )
        self.store.open(one, signal(f"about {one.incident_id}"), now=self.clock.now())
        self.store.look(one.incident_id, generation=1, callback_id="cb-1", look_by=self.clock.now())
        return one

    def press(
        self, press: Button | str, incident_id: str, approval_id: str = "", *, user: str = ADA, **more: Any
    ) -> ApiResponse:
        """Somebody presses a button."""
        payload = {
            "type": "block_actions",
            "user": {"id": user, "username": "ada", "team_id": "T1"},
            "api_app_id": "A1",
            "team": {"id": "T1", "domain": "here"},
            "container": {"type": "message", "message_ts": "1.2", "channel_id": CONVERSATION},
            "channel": {"id": CONVERSATION, "name": "ops"},
            "response_url": self.slack.response_url,
            "trigger_id": f"t{next(self.serial)}",
            "actions": [
                {
                    "type": "button",
                    "action_id": str(press),
                    "value": value_of(incident_id, approval_id),
                    "block_id": "b",
                }
            ],
        } | more
        return self.send("slack_actions", urlencode({"payload": json.dumps(payload)}).encode())

    def command(self, text: str, *, user: str = ADA, conversation: str = "C0ELSEWHERE") -> ApiResponse:
        form = {
            "command": "/rekindle",
            "text": text,
            "user_id": user,
            "user_name": "ada",
            "channel_id": conversation,
            "team_id": "T1",
            "trigger_id": f"t{next(self.serial)}",
            "response_url": self.slack.response_url,
        }
        return self.send("slack_commands", urlencode(form).encode())

    def send(self, operation: str, raw: bytes, **changes: str) -> ApiResponse:
        return self.hooks.answer(operation, self.headers(raw) | changes, raw)

    def headers(
        self, raw: bytes, *, secret: str = SLACK_SIGNING_SECRET, late: timedelta = timedelta(0)
    ) -> dict[str, str]:
        """As Slack signs, written down here once more from its documentation."""
        timestamp = str(int((self.clock.now() - late).timestamp()))
        digest = hmac.new(secret.encode(), b"v0:" + timestamp.encode() + b":" + raw, hashlib.sha256).hexdigest()
        return {
            "Content-Type": FORM,
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": f"v0={digest}",
        }

    def told(self) -> list[str]:
        """What was said to whoever pressed."""
        return [message["text"] for message in self.slack.ephemeral]

    def items(self) -> int:
        return int(self.client.scan(TableName=self.table, Select="COUNT")["Count"])


@pytest.fixture(scope="module")
def aws() -> Iterator[tuple[Any, Any]]:
    with mock_aws():
        yield (
            make_client("dynamodb"),
            boto3.client("ssm", region_name="us-west-2", aws_access_key_id="test", aws_secret_access_key="test"),
        )


@pytest.fixture
def gate(slack: FakeSlack, aws: tuple[Any, Any]) -> Gate:
    dynamo, ssm = aws
    name = f"rekindle-hooks-{next(_NAMES)}"
    create_table(dynamo, name)
    clock = Watch()
    slack.now = clock.now
    document = {
        "channels": {
            "ops": {
                "kind": "slack",
                "channel": CONVERSATION,
                "token_secret": "slack-token",
                "signing_secret": "slack-signing",
                "api_url": slack.url,
                "users": [ADA],
                "groups": ["S0ONCALL"],
            }
        }
    }
    ssm.put_parameter(Name=f"/{name}/channels", Type="String", Value=json.dumps(document))
    for secret, value in (("slack-token", SLACK_TOKEN), ("slack-signing", SLACK_SIGNING_SECRET)):
        ssm.put_parameter(Name=f"/{name}/secrets/{secret}", Type="SecureString", Value=value)
    calls: Counter[str] = Counter()
    count = lambda model, **_: calls.update([model.name])  # noqa: E731
    for client in (dynamo, ssm):
        client.meta.events.register("before-parameter-build", count, unique_id=name)
    settings = SsmSettings(ssm, prefix=f"/{name}", clock=clock)
    store, registry = DynamoIncidentStore(dynamo, table=name), DynamoJobRegistry(dynamo, table=name)
    executions, scheduler, mailbox = RememberedExecutions(), FakeScheduler(clock), FakeMailbox()  # type: ignore[arg-type]
    intake = Intake(
        store=store,
        registry=registry,
        scheduler=scheduler,
        mailbox=mailbox,
        clusters=FakeClusterReader(),
        executions=executions,
        clock=clock,
    )
    outcomes: list[Outcome] = []
    hooks = SlackHooks(
        book=settings,
        presses=DynamoChatThreads(dynamo, table=name),
        groups=SlackGroups(secrets=settings, clock=clock, timeout_s=60),
        store=store,
        listings=DynamoListings(dynamo, table=name),
        approvals=Approvals(store=store, intake=intake, registry=registry, clock=clock),
        orders=Orders(
            intake=intake,
            registry=registry,
            scheduler=scheduler,
            policies=FakePolicies(),
            alarms=Alarms(
                alarm_store=FakeAlarmStore(), registry=registry, scheduler=scheduler, mailbox=mailbox, clock=clock
            ),
            clock=clock,
        ),
        switches=Switches(registry=registry, clock=clock),
        holds=Holds(store=store, registry=registry, policies=FakePolicies(), clusters=FakeClusterReader(), clock=clock),
        clock=clock,
        report=outcomes.append,
        answer_s=60,
    )
    return Gate(hooks, slack, clock, store, registry, executions, outcomes, calls, name, dynamo)


# --- who pressed what ---


@pytest.mark.parametrize(("press", "answer"), [(Button.APPROVE, "approved"), (Button.DENY, "denied")])
def test_an_answer_is_an_order_on_the_record_and_wakes_the_incident(gate: Gate, press: Button, answer: str) -> None:
    one = gate.open(incident(approvals=(approval(deadline_at=gate.clock.now() + timedelta(minutes=9)),)))
    assert gate.press(press, one.incident_id, "ap-1").status == 200
    (order,) = [item for item in gate.store.load(one.incident_id).inbox if item.kind is SignalKind.ORDER_APPROVAL]
    assert order.evidence["answer"] == answer
    assert order.evidence["who"] == f"slack:{ADA} (ada)"
    (line,) = gate.store.timeline(one.incident_id)
    assert line.text.startswith(
        f"slack:{ADA} (ada) pressed {'Approve' if answer == 'approved' else 'Deny'} in Slack: rep"
    )
    assert [callback for callback, _ in gate.executions.woken] == ["cb-1"]
    assert gate.told()[0].startswith(answer.capitalize())


def test_who_comes_second_is_told_that_it_was_answered(gate: Gate) -> None:
    one = gate.open(incident(approvals=(approval(deadline_at=gate.clock.now() + timedelta(minutes=9)),)))
    gate.press(Button.APPROVE, one.incident_id, "ap-1")
    gate.press(Button.DENY, one.incident_id, "ap-1")
    assert "Nothing was done: it was approved by slack:U0ADA00 (ada) already" in gate.told()[1]
    answers = [item.evidence["answer"] for item in gate.store.load(one.incident_id).inbox if "answer" in item.evidence]
    assert answers == ["approved"]


def test_what_holds_an_approved_step_stands_in_the_reply(gate: Gate) -> None:
    one = gate.open(incident(approvals=(approval(deadline_at=gate.clock.now() + timedelta(minutes=9)),)))
    gate.registry.set_paused(True, who="ben", now=gate.clock.now(), why="change freeze")
    gate.press(Button.APPROVE, one.incident_id, "ap-1")
    assert gate.told()[0].startswith("Approved. Held now: the pause by ben since ")
    gate.clock.step(timedelta(seconds=1))
    gate.registry.set_shadow(ShadowScope.EVERYWHERE, "", True, who="ben", now=gate.clock.now())
    gate.press(Button.RESUME, one.incident_id)
    assert gate.told()[1].startswith("The pause is lifted. Held now: shadow mode (everywhere)")


def test_cancel_and_pause_and_resume(gate: Gate) -> None:
    one = gate.open(incident())
    gate.press(Button.CANCEL, one.incident_id)
    assert SignalKind.ORDER_CANCEL in {item.kind for item in gate.store.load(one.incident_id).inbox}
    gate.clock.step(timedelta(seconds=1))
    gate.press(Button.PAUSE, one.incident_id)
    assert gate.registry.is_paused()
    assert gate.registry.switches().paused_by == f"slack:{ADA} (ada)"
    gate.clock.step(timedelta(seconds=1))
    gate.press(Button.RESUME, one.incident_id)
    assert not gate.registry.is_paused()
    pressed = [line.text for line in gate.store.timeline(one.incident_id)]
    assert [text.split(" pressed ")[1] for text in pressed] == [
        "Cancel this recovery in Slack",
        "Pause all recoveries in Slack",
        "Lift the pause in Slack",
    ]


def test_a_press_costs_few_calls(gate: Gate) -> None:
    one = gate.open(incident(approvals=(approval(deadline_at=gate.clock.now() + timedelta(minutes=9)),)))
    gate.press(Button.PAUSE, one.incident_id)  # the document and the secrets are remembered from here on
    gate.calls.clear()
    gate.press(Button.APPROVE, one.incident_id, "ap-1")
    # the mark against replays, the Incident, the timeline's line, the Incident again, the order's two writes; then what
    # holds it: the Incident and the switches
    assert gate.calls == {"PutItem": 3, "GetItem": 4, "UpdateItem": 1}


def test_a_press_counts_even_where_whoever_pressed_cannot_be_told(gate: Gate) -> None:
    one = gate.open(incident())
    gate.slack.next("/actions/T1/1/secretpart", Mood(closes=True))
    assert gate.press(Button.PAUSE, one.incident_id).status == 200
    assert gate.registry.is_paused()


@pytest.mark.parametrize(
    "address",
    ["http://169.254.169.254/latest", "https://evil.example/x", "https://hooks.slack.com@evil.example/", "", "x:y:z"],
)
def test_answers_go_to_slack_and_nowhere_else(gate: Gate, address: str) -> None:
    one = gate.open(incident())
    assert gate.press(Button.PAUSE, one.incident_id, response_url=address).status == 200
    assert gate.told() == []


# --- who may ---


def test_who_is_not_named_is_refused_in_private_and_nothing_happens(gate: Gate) -> None:
    one = gate.open(incident(approvals=(approval(),)))
    before = gate.items()
    answer = gate.press(Button.APPROVE, one.incident_id, "ap-1", user=EVE)
    assert answer.status == 200
    assert "You may not press Approve" in gate.told()[0]
    assert gate.slack.ephemeral[0]["response_type"] == "ephemeral"
    assert gate.items() == before + 1  # the mark of the request
    assert gate.store.timeline(one.incident_id) == ()
    assert gate.executions.woken == []
    assert gate.outcomes[-1].facts["who"] == f"slack:{EVE} (ada)"


def test_a_member_of_a_named_group_may_and_slack_is_asked_once(gate: Gate) -> None:
    gate.slack.groups["S0ONCALL"] = [GRACE]
    one = gate.open(incident())
    gate.press(Button.PAUSE, one.incident_id, user=GRACE)
    gate.press(Button.RESUME, one.incident_id, user=GRACE)
    assert gate.registry.switches().paused_by == f"slack:{GRACE} (ada)"
    assert gate.slack.count("usergroups.users.list") == 1


def test_nobody_gets_in_because_slack_cannot_be_asked(gate: Gate) -> None:
    gate.slack.groups["S0ONCALL"] = [GRACE]
    gate.slack.next("usergroups.users.list", Mood(status=500))
    one = gate.open(incident())
    gate.press(Button.PAUSE, one.incident_id, user=GRACE)
    assert not gate.registry.is_paused()
    assert "You may not press" in gate.told()[0]


def test_a_name_is_no_credential(gate: Gate) -> None:
    one = gate.open(incident())
    gate.press(Button.PAUSE, one.incident_id, user=EVE)
    assert not gate.registry.is_paused()  # though every sender here is called ada


# --- commands ---


def test_status_and_incidents_are_answered_where_the_notices_go(gate: Gate) -> None:
    for number in range(1, 13):
        gate.open(incident(number))
    answer = gate.command("incidents", user=EVE, conversation=CONVERSATION)
    assert answer.body["response_type"] == "ephemeral"
    assert "12 Incidents are open" in json.dumps(answer.body)
    assert "and 2 more" in json.dumps(answer.body)
    assert "12 Incidents are open" in gate.command("status", user=EVE, conversation=CONVERSATION).body["text"]
    assert "may not" in gate.command("incidents", user=EVE).body["text"]
    assert "12 Incidents" in gate.command("incidents").body["text"]


def test_pause_and_resume_by_command(gate: Gate) -> None:
    gate.command("pause deploying a new image")
    assert gate.registry.switches().paused_why == "deploying a new image"
    assert "paused by" in json.dumps(gate.command("status").body)
    gate.command("resume")
    assert not gate.registry.is_paused()
    gate.command("pause", user=EVE, conversation=CONVERSATION)
    assert not gate.registry.is_paused()


@pytest.mark.parametrize("text", ["", "help", "nonsense", "HELP me"])
def test_help(gate: Gate, text: str) -> None:
    assert "/rekindle status" in json.dumps(gate.command(text).body)


# --- forged, replayed, late, truncated, of another kind ---


def _whole(gate: Gate) -> bytes:
    return urlencode({"user_id": ADA, "channel_id": CONVERSATION, "text": f"pause {CANARY}"}).encode()


def assert_turned_away(gate: Gate, answer: ApiResponse, status: int, *, before: int) -> None:
    assert answer.status == status
    assert answer.headers["Content-Type"] == PROBLEM_JSON
    assert CANARY not in json.dumps(answer.body)
    assert gate.items() == before
    assert not gate.registry.is_paused()
    (outcome,) = gate.outcomes
    assert CANARY not in repr(outcome)


def test_a_forged_request_leaves_nothing(gate: Gate) -> None:
    raw = _whole(gate)
    answer = gate.hooks.answer("slack_commands", gate.headers(raw, secret="another"), raw)
    assert_turned_away(gate, answer, 401, before=0)


def test_a_changed_body_leaves_nothing(gate: Gate) -> None:
    raw = _whole(gate)
    answer = gate.hooks.answer("slack_commands", gate.headers(raw), raw.replace(ADA.encode(), EVE.encode()))
    assert_turned_away(gate, answer, 401, before=0)


def test_a_truncated_body_leaves_nothing(gate: Gate) -> None:
    raw = _whole(gate)
    assert_turned_away(gate, gate.hooks.answer("slack_commands", gate.headers(raw), raw[:-9]), 401, before=0)


@pytest.mark.parametrize("late", [timedelta(seconds=301), timedelta(days=400), timedelta(seconds=-301)])
def test_a_late_request_leaves_nothing(gate: Gate, late: timedelta) -> None:
    raw = _whole(gate)
    answer = gate.hooks.answer("slack_commands", gate.headers(raw, late=late), raw)
    assert_turned_away(gate, answer, 401, before=0)


def test_a_replayed_request_is_taken_once(gate: Gate) -> None:
    raw = _whole(gate)
    headers = gate.headers(raw)
    assert gate.hooks.answer("slack_commands", headers, raw).status == 200
    gate.command("resume")
    gate.outcomes.clear()
    before = gate.items()
    assert_turned_away(gate, gate.hooks.answer("slack_commands", headers, raw), 409, before=before)
    other = {**headers, "X-Slack-Signature": headers["X-Slack-Signature"].upper().replace("V0", "v0")}
    gate.outcomes.clear()
    assert_turned_away(gate, gate.hooks.answer("slack_commands", other, raw), 401, before=before)


@pytest.mark.parametrize(
    "changes",
    [
        {"X-Slack-Signature": ""},
        {"X-Slack-Signature": "v0=é"},
        {"X-Slack-Signature": "v1=" + "0" * 64},
        {"X-Slack-Request-Timestamp": ""},
        {"X-Slack-Request-Timestamp": "now"},
        {"X-Slack-Request-Timestamp": "1e9"},
        {"X-Slack-Request-Timestamp": "-1"},
        {"X-Slack-Request-Timestamp": "9" * 400},
        {"X-Slack-Request-Timestamp": "٣"},
    ],
)
def test_what_is_not_signed_as_slack_signs_leaves_nothing(gate: Gate, changes: dict[str, str]) -> None:
    assert_turned_away(gate, gate.send("slack_commands", _whole(gate), **changes), 401, before=0)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "", "multipart/form-data; boundary=x"])
def test_another_content_type_leaves_nothing(gate: Gate, kind: str) -> None:
    assert_turned_away(gate, gate.send("slack_commands", _whole(gate), **{"Content-Type": kind}), 415, before=0)


def test_a_body_that_is_too_large_leaves_nothing(gate: Gate) -> None:
    assert_turned_away(gate, gate.send("slack_commands", b"a=" + b"x" * MAX_BODY_BYTES), 413, before=0)


@pytest.mark.parametrize(
    "raw",
    [
        b"payload=",
        b"payload=%7B",
        b"payload=%5B%5D",
        b"payload=null",
        b"other=1",
        b"payload=" + quote_plus('{"type":"view_submission"}').encode(),
        b"payload=" + quote_plus('{"type":"block_actions","actions":[]}').encode(),
        b"payload=" + quote_plus("[" * 90_000).encode()[:90_000],
        b"\xff\xfe=1",
    ],
)
def test_a_signed_body_that_cannot_be_read_is_a_bad_request(gate: Gate, raw: bytes) -> None:
    answer = gate.send("slack_actions", raw)
    assert 400 <= answer.status < 500
    assert answer.headers["Content-Type"] == PROBLEM_JSON


@pytest.mark.parametrize(
    "more",
    [
        {"actions": [{"action_id": "other_app", "value": value_of("x")}]},
        {"actions": [{"action_id": "rekindle_pause", "value": "{}"}]},
        {"actions": [{"action_id": "rekindle_pause", "value": value_of("x\n")}]},
        {"user": {"id": "<@U1>"}},
        {"user": None},
        {"channel": {"id": 7}},
    ],
)
def test_a_button_that_is_not_ours_is_a_bad_request(gate: Gate, more: dict[str, Any]) -> None:
    assert gate.press(Button.PAUSE, "inc-1", **more).status == 400
    assert not gate.registry.is_paused()


def test_an_incident_that_is_not_there_is_told(gate: Gate) -> None:
    assert gate.press(Button.CANCEL, "inc-none").status == 200
    assert "Nothing was done" in gate.told()[0]


def test_a_closed_incident_takes_no_answer(gate: Gate) -> None:
    asked = approval(deadline_at=gate.clock.now() + timedelta(minutes=9))
    one = gate.open(incident(approvals=(asked,)))
    looked = gate.store.load(one.incident_id)
    over = Incident.from_wire({**looked.incident.to_wire(), "phase": Phase.STOPPED.value, "closed_at": NOW.isoformat()})
    entry = gate.store.timeline(one.incident_id)
    assert entry == ()
    line = TimelineEntry(at=NOW, phase=Phase.STOPPED, rule="test", text="over")
    gate.store.record(
        over, expected_version=looked.incident.version, token="t", absorbed=len(looked.inbox), entry=line, look_by=None
    )
    gate.press(Button.APPROVE, one.incident_id, "ap-1")
    assert "Nothing was done: the Incident is closed" in gate.told()[0]


def test_secrets_and_bodies_are_in_no_log(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="chalicelib")
    one = gate.open(incident())
    gate.press(Button.PAUSE, one.incident_id)
    gate.press(Button.PAUSE, one.incident_id, user=EVE)
    gate.send("slack_commands", _whole(gate), **{"X-Slack-Signature": "v0=" + "0" * 64})
    assert CANARY not in caplog.text
    assert CANARY not in repr(gate.outcomes)


def test_a_channel_without_a_signing_secret_opens_no_door(gate: Gate, aws: tuple[Any, Any]) -> None:
    document = {"channels": {"ops": {"kind": "slack", "channel": CONVERSATION, "token_secret": "slack-token"}}}
    aws[1].put_parameter(Name=f"/{gate.table}/channels", Type="String", Value=json.dumps(document), Overwrite=True)
    assert gate.command("status").status == 401


@given(st.binary(max_size=300))
def test_no_body_breaks_the_readers(raw: bytes) -> None:
    for read in (read_press, read_command):
        with suppress(SlackRequestRefused):
            read(raw)


@settings(max_examples=examples(40))
@given(st.binary(max_size=100), st.text(max_size=80), st.text(max_size=80))
def test_no_header_breaks_the_check(raw: bytes, timestamp: str, signature: str) -> None:
    headers = {"content-type": FORM, "x-slack-request-timestamp": timestamp, "x-slack-signature": signature}
    with pytest.raises(SlackRequestRefused):
        authentic(headers, raw, (SLACK_SIGNING_SECRET,), now=NOW)


def test_the_answer_to_an_approval_is_one_of_two_words() -> None:
    assert {item.value for item in ApprovalAnswer} == {"approved", "denied"}
