"""What DynamoDB is asked, counted; and what happens when its answers are lost or its items busy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import chalicelib.aws
from chalicelib.aws.dynamodb.incident_items import MAX_ENTRY_BYTES, MAX_SIGNAL_BYTES
from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry
from chalicelib.domain.model.errors import DependencyUnavailable, Throttled
from chalicelib.domain.model.incident import Phase
from chalicelib.ports.incidents import JoinOutcome
from localcloud.aws.template import create_table
from tests.adapters.conftest import TABLE, Shelf, Wire
from tests.adapters.samples import T0, at, attempt, incident, job, line, signal


@pytest.fixture
def opened(table: Shelf) -> Shelf:
    table.registry.register(job(), attempt())
    table.store.open(incident(), signal("one"), now=T0)
    wire_of(table).reset()
    return table


def wire_of(shelf: Shelf) -> Wire:
    assert shelf.wire is not None
    return shelf.wire


def test_adding_an_event_to_an_open_incident_is_two_writes_and_no_read(opened: Shelf) -> None:
    for number in range(20):
        wire_of(opened).reset()
        opened.store.join("inc-a", signal(f"fact-{number}"), now=T0)
        assert dict(wire_of(opened).calls) == {"PutItem": 1, "UpdateItem": 1}
        assert wire_of(opened).item_writes == 2


def test_a_redelivered_event_is_two_refused_writes_and_no_read(opened: Shelf) -> None:
    opened.store.join("inc-a", signal("two"), now=T0)
    wire_of(opened).reset()
    assert opened.store.join("inc-a", signal("two"), now=T0).outcome is JoinOutcome.DUPLICATE
    assert dict(wire_of(opened).calls) == {"PutItem": 1, "UpdateItem": 1}


def test_a_look_is_one_write_and_a_record_one_transaction_of_two(opened: Shelf) -> None:
    looked = opened.store.look("inc-a", generation=1, callback_id="cb", look_by=at(60))
    assert dict(wire_of(opened).calls) == {"UpdateItem": 1}
    wire_of(opened).reset()
    opened.store.record(looked.incident, expected_version=0, token="t", absorbed=1, entry=line(), look_by=None)
    assert dict(wire_of(opened).calls) == {"TransactWriteItems": 1}
    assert wire_of(opened).item_writes == 2


@pytest.mark.long
def test_the_listings_cost_one_query_and_one_batch_for_a_hundred_incidents(table: Shelf) -> None:
    client = wire_of(table).client
    for first in range(0, 100, 10):  # moto copies the whole table for each transaction: written in ten small ones
        part = f"part-{first}"
        create_table(client, part)
        registry, store = DynamoJobRegistry(client, table=part), DynamoIncidentStore(client, table=part)
        for number in range(first, first + 10):
            name = f"job-{number:03d}"
            registry.register(job(name), attempt(of=name))
            store.open(incident(f"inc-{number:03d}", job_id=name), signal(f"fact-{number}"), now=T0)
        for item in client.scan(TableName=part)["Items"]:
            client.put_item(TableName=TABLE, Item=item)
    wire_of(table).reset()
    assert len(list(table.store.list_open())) == 100
    assert len(list(table.registry.active())) == 100
    assert dict(wire_of(table).calls) == {"Query": 2, "BatchGetItem": 2}


@pytest.mark.parametrize("lost", range(2))
def test_a_join_whose_answer_was_lost_is_healed_by_the_redelivery(opened: Shelf, lost: int) -> None:
    """Lost after the first write: the Signal is marked but not in the inbox; after the second: it is in."""
    wire_of(opened).lose_answer_after(lost)
    with pytest.raises(DependencyUnavailable):
        opened.store.join("inc-a", signal("two"), now=T0)
    entry = opened.store.join("inc-a", signal("two"), now=at(60))
    assert entry.outcome is (JoinOutcome.JOINED if lost == 0 else JoinOutcome.DUPLICATE)
    assert [item.dedupe_key for item in opened.store.load("inc-a").inbox] == ["one", "two"]


def test_a_fact_marked_for_an_incident_that_closed_first_opens_the_next_one(opened: Shelf) -> None:
    """Crash after the mark, then the Incident closes: the fact was never taken in, so it must not be a duplicate."""
    wire_of(opened).lose_answer_after(0)
    with pytest.raises(DependencyUnavailable):
        opened.store.join("inc-a", signal("two"), now=T0)
    looked = opened.store.load("inc-a")
    opened.store.record(
        looked.incident.enter(Phase.STOPPED, now=at(5)),
        expected_version=0,
        token="t",
        absorbed=1,
        entry=line(),
        look_by=None,
    )
    assert opened.store.open(incident("inc-b"), signal("two"), now=at(60)).outcome is JoinOutcome.OPENED
    assert opened.store.load("inc-b").inbox == (signal("two"),)


def test_an_open_whose_answer_was_lost_is_a_duplicate_of_itself(table: Shelf) -> None:
    table.registry.register(job(), attempt())
    wire_of(table).lose_next_answer("TransactWriteItems")
    with pytest.raises(DependencyUnavailable):
        table.store.open(incident(), signal("one"), now=T0)
    entry = table.store.open(incident(), signal("one"), now=T0)
    assert (entry.outcome, entry.incident_id, entry.callback_id) == (JoinOutcome.DUPLICATE, "inc-a", None)
    assert table.registry.get("lm-7b").open_incident == "inc-a"
    assert len(table.store.load("inc-a").inbox) == 1


def test_a_record_whose_answer_was_lost_is_not_written_twice(opened: Shelf) -> None:
    before = opened.store.load("inc-a").incident
    arguments: dict[str, Any] = {
        "expected_version": 0,
        "token": "t",
        "absorbed": 1,
        "entry": line(),
        "look_by": at(60),
    }
    wire_of(opened).lose_next_answer("TransactWriteItems")
    with pytest.raises(DependencyUnavailable):
        opened.store.record(before, **arguments)
    opened.store.join("inc-a", signal("two"), now=T0)
    assert opened.store.record(before, **arguments).version == 1
    assert [item.dedupe_key for item in opened.store.load("inc-a").inbox] == ["two"]
    assert len(opened.store.timeline("inc-a")) == 1


def test_an_incident_whose_pointer_was_taken_away_can_still_close(opened: Shelf) -> None:
    wire_of(opened).client.update_item(
        TableName=TABLE,
        Key={"pk": {"S": "JOB#lm-7b"}, "sk": {"S": "META"}},
        UpdateExpression="SET open_incident = :other",
        ExpressionAttributeValues={":other": {"S": "inc-other"}},
    )
    before = opened.store.load("inc-a").incident
    closed = before.enter(Phase.STOPPED, now=at(5))
    opened.store.record(closed, expected_version=0, token="t", absorbed=1, entry=line(), look_by=None)
    assert not opened.store.load("inc-a").incident.is_open
    assert opened.registry.get("lm-7b").open_incident == "inc-other"


def test_an_expired_mark_that_dynamodb_has_not_deleted_yet_counts_no_more(opened: Shelf) -> None:
    opened.store.join("inc-a", signal("two"), now=T0)
    looked = opened.store.load("inc-a")
    closed = looked.incident.enter(Phase.STOPPED, now=at(5))
    opened.store.record(closed, expected_version=0, token="t", absorbed=2, entry=line(), look_by=None)
    after_weeks = at(15 * 86400)
    assert opened.store.open(incident("inc-b"), signal("two"), now=after_weeks).outcome is JoinOutcome.OPENED
    # The Incident that this very fact opened still exists under its name, and is returned.
    entry = opened.store.open(incident("inc-a"), signal("one"), now=after_weeks)
    assert (entry.outcome, entry.incident_id) == (JoinOutcome.DUPLICATE, "inc-a")


@pytest.mark.parametrize("busy", [1, 7])
def test_an_item_held_by_a_transaction_is_tried_again_at_once(
    opened: Shelf, monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    client, left = wire_of(opened).client, [busy]
    update_item = client.update_item

    def sometimes_busy(**request: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise ClientError({"Error": {"Code": "TransactionConflictException", "Message": "busy"}}, "UpdateItem")
        return update_item(**request)

    monkeypatch.setattr(client, "update_item", sometimes_busy)
    assert opened.store.join("inc-a", signal("two"), now=T0).outcome is JoinOutcome.JOINED


def test_an_item_that_stays_busy_is_a_throttle(opened: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(**_: Any) -> Any:
        raise ClientError(
            {
                "Error": {"Code": "TransactionCanceledException", "Message": "cancelled"},
                "CancellationReasons": [{"Code": "TransactionConflict"}, {"Code": "None"}],
            },  # type: ignore[typeddict-unknown-key]  # botocore puts modelled error members beside "Error"
            "TransactWriteItems",
        )

    monkeypatch.setattr(wire_of(opened).client, "transact_write_items", busy)
    before = opened.store.load("inc-a").incident
    with pytest.raises(Throttled):
        opened.store.record(before, expected_version=0, token="t", absorbed=0, entry=line(), look_by=None)


def test_a_huge_signal_keeps_all_but_its_evidence(opened: Shelf) -> None:
    rng = random.Random(3)
    noise = "".join(chr(rng.randrange(33, 126)) for _ in range(4000))
    opened.store.join("inc-a", signal("two", evidence={"step": 120, "noise": noise}), now=T0)
    kept = opened.store.load("inc-a").inbox[1]
    assert kept.evidence["step"] == 120
    assert kept.evidence["evidence_dropped_bytes"] > 3900
    assert (kept.dedupe_key, kept.kind, kept.summary) == ("two", signal().kind, "summary of two")
    key = {"pk": {"S": "INC#inc-a"}, "sk": {"S": "META"}}
    stored = wire_of(opened).client.get_item(TableName=TABLE, Key=key, ConsistentRead=True)
    assert len(stored["Item"]["inbox"]["L"][1].get("B", b"")) <= MAX_SIGNAL_BYTES


def test_long_repetitive_evidence_is_kept_whole(opened: Shelf) -> None:
    stacks = {str(rank): "train.py:10 in all_reduce\n" * 12 for rank in range(12)}
    opened.store.join("inc-a", signal("two", evidence={"stacks": stacks}), now=T0)
    assert opened.store.load("inc-a").inbox[1].evidence == {"stacks": stacks}


def test_a_timeline_line_is_bounded(opened: Shelf) -> None:
    rng = random.Random(5)
    noise = "".join(chr(rng.randrange(33, 126)) for _ in range(60_000))
    opened.store.append("inc-a", token="big", entry=line("t" * 9000, noise=noise))
    (entry,) = opened.store.timeline("inc-a")
    assert len(entry.text) == 2000
    assert entry.facts["facts_dropped_bytes"] > MAX_ENTRY_BYTES


def test_nothing_in_the_adapters_ever_scans() -> None:
    folder = Path(chalicelib.aws.__file__).parent
    assert [path.name for path in folder.glob("*.py") if ".scan" in path.read_text()] == []
