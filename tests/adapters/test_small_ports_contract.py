"""The contracts of ports.Quarantine and ports.Policies, over fakes and real adapters."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.aws.sqs.quarantine import MAX_BODY_BYTES, SqsQuarantine
from chalicelib.aws.ssm.policies import SsmPolicies
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidPolicy, UnknownEntity
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.ports.operator import Policies
from chalicelib.ports.sweep import Quarantine
from tests.adapters.conftest import make_client
from tests.adapters.samples import T0
from tests.fakes.world import FakeClock, FakePolicies, FakeQuarantine

PREFIX = "/rekindle/policies"


@pytest.fixture(params=["fake", "sqs"])
def quarantine(request: pytest.FixtureRequest, aws: None) -> Iterator[Quarantine]:
    if request.param == "fake":
        yield FakeQuarantine()
    else:
        yield sqs_quarantine()


def sqs_quarantine() -> SqsQuarantine:
    client = make_client("sqs")
    return SqsQuarantine(client, url=client.create_queue(QueueName="rekindle-quarantine")["QueueUrl"])


def put(quarantine: Quarantine, number: int, raw: str | None = None) -> None:
    quarantine.put(
        raw=raw if raw is not None else json.dumps({"id": number}),
        function="alarm_event",
        error=f"detail.state: is missing ({number})",
        field="detail.state",
        at=T0,
    )


def test_peeking_shows_events_and_leaves_them(quarantine: Quarantine) -> None:
    assert quarantine.peek(limit=5) == ()
    for number in range(3):
        put(quarantine, number)
    for _ in range(2):
        seen = quarantine.peek(limit=10)
        assert sorted(event["raw"] for event in seen) == ['{"id": 0}', '{"id": 1}', '{"id": 2}']
    (one,) = quarantine.peek(limit=1)
    assert (one["function"], one["field"], one["at"]) == ("alarm_event", "detail.state", T0.isoformat())
    assert one["error"].startswith("detail.state: is missing")


def test_what_is_taken_is_hidden_and_what_is_dropped_is_gone(quarantine: Quarantine) -> None:
    for number in range(12):
        put(quarantine, number)
    taken = list(quarantine.take(limit=11))
    assert len(taken) == 11
    assert len(list(quarantine.take(limit=11))) == 1
    assert list(quarantine.take(limit=11)) == []
    for _, receipt in taken:
        quarantine.drop(receipt)
        quarantine.drop(receipt)
    assert len({event["raw"] for event, _ in taken}) == 11


@pytest.mark.parametrize("size", [1000, 300_000, 1_000_000])
def test_an_event_of_any_size_comes_back_whole(quarantine: Quarantine, size: int) -> None:
    raw = '{"pad": "' + "Xid 79 ü " * (size // 9) + '"}'
    put(quarantine, 1, raw)
    assert quarantine.peek(limit=1)[0]["raw"] == raw


def test_an_event_that_cannot_be_compressed_is_cut_and_says_so(aws: None) -> None:
    quarantine = sqs_quarantine()
    rng = random.Random(7)
    raw = "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(200_000))
    put(quarantine, 1, raw)
    (event,) = quarantine.peek(limit=1)
    assert raw.startswith(event["raw"])
    assert event["cut_from_bytes"] == len(raw.encode())
    assert len(json.dumps(event)) < MAX_BODY_BYTES


def test_a_message_that_is_not_ours_is_shown_raw(aws: None) -> None:
    quarantine = sqs_quarantine()
    for body in ("hello", "[]", '{"raw_zlib": "!!!"}', '{"function": "x"}'):
        quarantine._client.send_message(QueueUrl=quarantine._url, MessageBody=body)
    assert sorted(event["raw"] for event in quarantine.peek(limit=10)) == sorted(
        ("hello", "[]", '{"raw_zlib": "!!!"}', '{"function": "x"}')
    )


@dataclass
class Shelf:
    policies: Policies
    store: Callable[[Policy], None]


@pytest.fixture(params=["fake", "ssm"])
def shelf(request: pytest.FixtureRequest, aws: None) -> Iterator[Shelf]:
    if request.param == "fake":
        fake = FakePolicies()
        yield Shelf(policies=fake, store=lambda policy: fake.stored.__setitem__(policy.name, policy))
        return
    client = make_client("ssm")

    def store(policy: Policy) -> None:
        wire = {name: value for name, value in policy.to_wire().items() if name != "version"}
        write(client, policy.name, json.dumps(wire))

    yield Shelf(policies=SsmPolicies(client, prefix=PREFIX, clock=FakeClock()), store=store)


def write(client: Any, name: str, text: str) -> None:
    client.put_parameter(Name=f"{PREFIX}/{name}", Value=text, Type="String", Overwrite=True)


def test_the_default_policy_always_exists(shelf: Shelf) -> None:
    assert shelf.policies.load("default") == DEFAULT_POLICY


def test_a_stored_policy_is_loaded_by_its_name(shelf: Shelf) -> None:
    shelf.store(Policy.from_wire({"name": "careful", "shadow": True, "budgets": {"max_attempts": 2}}))
    loaded = shelf.policies.load("careful")
    assert (loaded.name, loaded.shadow, loaded.budgets.max_attempts) == ("careful", True, 2)
    assert loaded.version.startswith("sha-")
    with pytest.raises(UnknownEntity):
        shelf.policies.load("nobody")


def test_a_stored_default_replaces_the_built_in_one(shelf: Shelf) -> None:
    shelf.store(Policy.from_wire({"name": "default", "budgets": {"max_attempts": 2}}))
    assert shelf.policies.load("default").budgets.max_attempts == 2


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "policy"),
        ("[]", "policy"),
        ('{"budgets": {"max_attempts": 0}}', "budgets.max_attempts"),
        ('{"max_atempts": 3}', "max_atempts"),
        ('{"name": "other"}', "name"),
        ('{"schema": 9}', "schema"),
    ],
)
def test_an_invalid_document_names_its_field(aws: None, text: str, field: str) -> None:
    client = make_client("ssm")
    write(client, "careful", text)
    with pytest.raises(InvalidPolicy) as caught:
        SsmPolicies(client, prefix=PREFIX, clock=FakeClock()).load("careful")
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["", "a/b", "../default", "x" * 65, "ü", "a\n"])
def test_a_name_that_cannot_be_a_parameter_is_unknown_without_a_call(aws: None, name: str) -> None:
    with pytest.raises(UnknownEntity):
        SsmPolicies(None, prefix=PREFIX, clock=FakeClock()).load(name)


def test_a_policy_is_remembered_for_seconds_and_an_edit_is_seen_after_them(aws: None) -> None:
    client, clock = make_client("ssm"), FakeClock()
    calls: Counter[str] = Counter()
    client.meta.events.register("before-call.ssm", lambda model, **_: calls.update([model.name]))
    policies = SsmPolicies(client, prefix=PREFIX, clock=clock)
    write(client, "careful", '{"budgets": {"max_attempts": 2}}')
    first = policies.load("careful")
    assert policies.load("careful") is first
    assert calls["GetParameter"] == 1
    clock.advance(timedelta(seconds=31))
    assert policies.load("careful") is first  # the same parameter version is not parsed again
    write(client, "careful", '{"budgets": {"max_attempts": 3}}')
    assert policies.load("careful").budgets.max_attempts == 2
    clock.advance(timedelta(seconds=31))
    assert policies.load("careful").budgets.max_attempts == 3


def test_a_missing_queue_is_our_deployments_fault_and_loses_no_event(aws: None) -> None:
    client = make_client("sqs")
    url = client.create_queue(QueueName="rekindle-quarantine")["QueueUrl"]
    client.delete_queue(QueueUrl=url)
    with pytest.raises(DependencyUnavailable):
        put(SqsQuarantine(client, url=url), 1)
