"""Traces to a receiver of OpenTelemetry: once for each Incident that closes, whatever the receiver does."""

from __future__ import annotations

import json
from collections import deque
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.channels.channel import RetryLater
from chalicelib.channels.makers import Makers
from chalicelib.channels.otlp import OtlpChannel, headers_of
from chalicelib.domain.model.errors import InvalidSettings, Permanent
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.notices.channels import Channels, NoticeType
from chalicelib.domain.reporting.otlp import otlp_of
from chalicelib.domain.reporting.trace import trace_of
from chalicelib.ports.notices import NoticeKind
from localcloud.cloud import STACK
from localcloud.worlds.recoveries import Script, crash_at, world
from tests.canary import CANARY
from tests.ledger.books import incident, ledger
from tests.notify.conftest import Told
from tests.notify.made import Secrets, notice
from tests.notify.otlp_receiver import attributes, received, resource
from tests.notify.receiver import Receiver

HOUR = timedelta(hours=1)


class Stored:
    """One Incident, as the store has it."""

    def __init__(self, one: Incident) -> None:
        self.one = one

    def load(self, incident_id: str) -> Incident:
        assert incident_id == self.one.incident_id
        return self.one

    def of(self, one: Incident) -> dict[str, Any]:
        return otlp_of(trace_of(one, (), ledger(one)), resource={"service.name": "rekindle"})


class Now:
    def now(self) -> Any:
        return notice().at


def document(url: str, **changes: Any) -> dict[str, Any]:
    entry = {"kind": "otlp", "url": url, "private": True} | changes
    return {"channels": {"traces": entry}, "routes": [{"to": ["traces"]}]}


def channel(url: str, one: Incident | None = None, **changes: Any) -> OtlpChannel:
    config = Channels.from_wire(document(url, **changes)).channels["traces"]
    secrets = Secrets({"vendor": f"x-api-key={CANARY}%2Fpart,x-team=ml"})
    return OtlpChannel(config, secrets, traces=Stored(one or incident()), clock=Now(), total_s=1.0)


def closing(**changes: Any) -> Any:
    given = {"kind": NoticeKind.CHANGE, "phase": "recovered", "incident_id": "inc-lm-1"} | changes
    return notice(**given)


def test_the_end_of_an_incident_is_exported_with_the_headers_of_the_secret(receiver: Receiver) -> None:
    channel(f"{receiver.url}/v1/traces", headers_secret="vendor").send(closing(), attempt=1)
    (got,) = receiver.got
    assert got.path == "/v1/traces"
    assert got.headers["content-type"] == "application/json"
    assert (got.headers["x-api-key"], got.headers["x-team"]) == (f"{CANARY}/part", "ml")
    assert received(got.body)[0].name == "recovery"
    assert CANARY.encode() not in got.body


@pytest.mark.parametrize(
    "changes", [{"phase": "verifying"}, {"kind": NoticeKind.NEWS}, {"incident_id": ""}, {"phase": ""}]
)
def test_no_other_notice_sends_anything(receiver: Receiver, changes: dict[str, Any]) -> None:
    channel(receiver.url).send(closing(**changes), attempt=1)
    assert receiver.got == []


def test_an_end_that_is_not_stored_yet_is_waited_for(receiver: Receiver) -> None:
    with pytest.raises(RetryLater):
        channel(receiver.url, incident(phases=((Phase.VERIFYING, 60),))).send(closing(), attempt=1)
    assert receiver.got == []


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/v1/traces", "http://192.0.2.7/v1/traces", "https://user:pass@example.com/v1/traces"]
)
def test_an_address_that_webhooks_may_not_have_is_refused_here_too(url: str) -> None:
    with pytest.raises(Permanent):
        channel(url).send(closing(), attempt=1)


def test_this_machine_needs_leave(receiver: Receiver) -> None:
    with pytest.raises(Permanent, match="not to be sent to"):
        channel(receiver.url, private=False).send(closing(), attempt=1)


@pytest.mark.parametrize(
    "text", ["", "novalue", "=x", "a=", "a b=c", "Content-Length=3", "a=x%0d%0aEvil: 1", "a=1,,b=2", f"a=\x00{CANARY}"]
)
def test_a_secret_that_holds_no_headers_is_named_and_never_told(text: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        headers_of(text, name="vendor")
    assert "vendor" in str(refused.value)
    assert CANARY not in str(refused.value)


def test_a_channel_of_traces_gets_changes_and_needs_an_address() -> None:
    assert Channels.from_wire(document("https://x.example")).channels["traces"].wants == (NoticeType.CHANGE,)
    with pytest.raises(InvalidSettings, match="wants"):
        Channels.from_wire(document("https://x.example", wants=["news"]))  # it would never export anything
    with pytest.raises(InvalidSettings, match="url"):
        Channels.from_wire({"channels": {"traces": {"kind": "otlp"}}})


@pytest.mark.long
def test_a_receiver_that_misbehaves_gets_the_trace_once_and_an_answer_that_is_final_is_kept(told: Told) -> None:
    one = incident()
    told.deliver_with(
        Makers(
            secrets=told.service.written,
            clock=told.cloud.clock,
            otlp=lambda config, secrets: OtlpChannel(
                config, secrets, traces=Stored(one), clock=told.cloud.clock, total_s=1.0
            ),
        )
    )
    kept = 0
    plans: list[tuple[list[Any], int, bool]] = [
        ([503, "slow", "drip", "close", (429, "7"), 502], 7, False),
        ([500], 1, True),  # by OTLP final: the receiver has judged it
        (["redirect"], 1, True),
        ([400], 1, True),
    ]
    for plan, tries, is_kept in plans:
        with Receiver(plan=deque(plan)) as receiver:
            told.document("channels", document(f"{receiver.url}/v1/traces"))
            told.service.announcer.announce(closing(token=f"inc-lm-1.{len(plan)}.{plan[0]}"))
            told.cloud.clock.run_for(HOUR)
            assert len(receiver.got) == tries
            assert len({got.body for got in receiver.got}) == 1
            assert len(receiver.taken()) == (not is_kept)
        kept += is_kept
        assert len(told.waiting("undelivered")) == kept
        assert told.waiting("deliveries") == []


@pytest.mark.long
def test_whole_recoveries_leave_one_trace_each_the_same_that_the_api_gives() -> None:
    with Receiver() as receiver, world() as w:
        w.cloud.client("ssm").put_parameter(
            Name=f"/{STACK}/channels", Value=json.dumps(document(f"{receiver.url}/v1/traces")), Type="String"
        )
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.submit("second", scripts=(Script(faults=(crash_at(15),)), Script()))
        w.recover(count=2)
        w.cloud.clock.run_for(timedelta(minutes=5))
        traces = [received(got.body) for got in receiver.taken()]
        assert len(traces) == len(receiver.got) == 2
        for got, spans in zip(receiver.got, traces, strict=True):
            root = spans[0]
            about = attributes(root)
            stored = w.service.store.load(about["rekindle.incident_id"]).incident
            assert stored.phase is Phase.RECOVERED
            assert {span.name for span in spans} >= {"recovery", "attempt", "resubmitting", "verifying"}
            assert all(span.parent_span_id == root.span_id for span in spans[1:])
            assert sum(len(span.events) for span in spans) == len(w.service.store.timeline(stored.incident_id))
            assert json.loads(got.body) == w.service.traces.of(stored)
            assert resource(got.body)["cloud.region"] == "us-west-2"
        assert len({spans[0].trace_id for spans in traces}) == 2
