"""ports.IncidentStore's contract, over the fake and over DynamoDB."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chalicelib.aws.dynamodb.incident_inbox import MAX_INBOX
from chalicelib.domain.model.errors import InvalidRequest, Permanent, UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.ports.incidents import IncidentStore, JoinOutcome
from tests.adapters.conftest import Shelf
from tests.adapters.samples import CLUSTER, T0, at, attempt, incident, job, line, signal


@pytest.fixture
def store(shelf: Shelf) -> IncidentStore:
    shelf.registry.register(job(), attempt())
    return shelf.store


def close(store: IncidentStore, name: str = "inc-a") -> Incident:
    looked = store.load(name)
    ended = looked.incident.absorb(looked.inbox).enter(Phase.STOPPED, now=at(900))
    return store.record(
        ended,
        expected_version=looked.incident.version,
        token=f"close-{name}",
        absorbed=len(looked.inbox),
        entry=line("closed"),
        look_by=None,
    )


def test_opening_creates_the_incident_with_its_signal_and_points_the_job_at_it(shelf: Shelf) -> None:
    shelf.registry.register(job(), attempt())
    entry = shelf.store.open(incident(), signal(), now=T0)
    assert (entry.outcome, entry.incident_id, entry.generation, entry.callback_id) == (
        JoinOutcome.OPENED,
        "inc-a",
        1,
        None,
    )
    looked = shelf.store.load("inc-a")
    assert looked.incident == incident()
    assert looked.inbox == (signal(),)
    assert shelf.registry.get("lm-7b").open_incident == "inc-a"


def test_a_second_fact_joins_the_open_incident_instead_of_opening_another(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    entry = store.open(incident("inc-b"), signal("two"), now=T0)
    assert (entry.outcome, entry.incident_id) == (JoinOutcome.JOINED, "inc-a")
    assert [item.dedupe_key for item in store.load("inc-a").inbox] == ["one", "two"]
    with pytest.raises(UnknownEntity):
        store.load("inc-b")


def test_the_same_fact_is_a_duplicate_wherever_it_is_sent(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    store.join("inc-a", signal("two"), now=T0)
    for entry in (
        store.open(incident(), signal("one"), now=at(5)),
        store.open(incident("inc-b"), signal("two"), now=at(5)),
        store.join("inc-a", signal("two"), now=at(5)),
    ):
        assert (entry.outcome, entry.incident_id) == (JoinOutcome.DUPLICATE, "inc-a")
    assert len(store.load("inc-a").inbox) == 2


def test_a_fact_stays_a_duplicate_after_its_incident_has_closed(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    close(store)
    entry = store.open(incident("inc-b", opened_s=60), signal("one"), now=at(60))
    assert (entry.outcome, entry.incident_id) == (JoinOutcome.DUPLICATE, "inc-a")


def test_joining_a_closed_incident_says_so_and_the_fact_may_then_open_another(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    close(store)
    assert store.join("inc-a", signal("late"), now=at(60)).outcome is JoinOutcome.CLOSED
    entry = store.open(incident("inc-b", opened_s=60), signal("late"), now=at(60))
    assert (entry.outcome, entry.incident_id) == (JoinOutcome.OPENED, "inc-b")
    assert [item.dedupe_key for item in store.load("inc-b").inbox] == ["late"]


def test_an_incident_of_a_cluster_needs_no_job(shelf: Shelf) -> None:
    of_cluster = incident("inc-c", job_id=None, cluster=CLUSTER, attempt=None, attempt_number=0)
    first = signal("one", job_id=None, cluster=CLUSTER)
    assert shelf.store.open(of_cluster, first, now=T0).outcome is JoinOutcome.OPENED
    second = shelf.store.open(replace(of_cluster, incident_id="inc-d"), replace(first, dedupe_key="two"), now=T0)
    assert (second.outcome, second.incident_id) == (JoinOutcome.JOINED, "inc-c")
    close(shelf.store, "inc-c")
    third = shelf.store.open(replace(of_cluster, incident_id="inc-d"), replace(first, dedupe_key="three"), now=T0)
    assert third.outcome is JoinOutcome.OPENED


def test_an_incident_of_nothing_and_of_an_unknown_job_is_refused(shelf: Shelf) -> None:
    with pytest.raises(UnknownEntity):
        shelf.store.open(incident(job_id="nobody"), signal(), now=T0)
    with pytest.raises(Permanent):
        shelf.store.open(incident(job_id=None), signal(), now=T0)


def test_a_look_publishes_the_callback_and_every_entry_then_returns_it(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    looked = store.look("inc-a", generation=1, callback_id="cb-1", look_by=at(60))
    assert looked.inbox == (signal("one"),)
    assert store.join("inc-a", signal("two"), now=T0).callback_id == "cb-1"
    assert store.join("inc-a", signal("two"), now=T0).callback_id == "cb-1"  # the duplicate heals a lost wake
    assert store.callback_of("inc-a") == "cb-1"


def test_a_look_of_an_older_generation_is_refused(store: IncidentStore) -> None:
    store.open(incident(), signal(), now=T0)
    assert store.next_generation("inc-a", generation=1) == 2
    with pytest.raises(VersionConflict):
        store.look("inc-a", generation=1, callback_id="cb-old", look_by=at(60))
    with pytest.raises(VersionConflict):
        store.next_generation("inc-a", generation=1)
    assert store.look("inc-a", generation=2, callback_id="cb-new", look_by=at(60)).incident.generation == 2


def test_a_new_generation_forgets_the_callback_of_the_old_one(store: IncidentStore) -> None:
    store.open(incident(), signal(), now=T0)
    store.look("inc-a", generation=1, callback_id="cb-1", look_by=at(60))
    store.next_generation("inc-a", generation=1)
    assert store.callback_of("inc-a") is None


def test_a_closed_incident_has_no_next_generation(store: IncidentStore) -> None:
    store.open(incident(), signal(), now=T0)
    close(store)
    with pytest.raises(VersionConflict):
        store.next_generation("inc-a", generation=1)


def test_recording_drops_what_was_absorbed_and_keeps_what_arrived_meanwhile(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    store.join("inc-a", signal("two"), now=T0)
    looked = store.look("inc-a", generation=1, callback_id="cb", look_by=at(60))
    store.join("inc-a", signal("three"), now=T0)
    stored = store.record(
        looked.incident.absorb(looked.inbox),
        expected_version=0,
        token="turn-0",
        absorbed=2,
        entry=line(),
        look_by=at(60),
    )
    assert stored.version == 1
    after = store.load("inc-a")
    assert after.incident == stored
    assert [item.dedupe_key for item in after.inbox] == ["three"]
    assert store.join("inc-a", signal("one"), now=T0).outcome is JoinOutcome.DUPLICATE  # absorbed, not forgotten


def test_recording_again_with_the_same_token_changes_nothing(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    store.join("inc-a", signal("two"), now=T0)
    before = store.load("inc-a").incident
    first = store.record(before, expected_version=0, token="t", absorbed=1, entry=line(), look_by=at(60))
    again = store.record(before, expected_version=0, token="t", absorbed=1, entry=line(), look_by=at(60))
    assert again == first
    assert [item.dedupe_key for item in store.load("inc-a").inbox] == ["two"]
    assert len(store.timeline("inc-a")) == 1


def test_recording_on_an_old_version_or_generation_is_refused(store: IncidentStore) -> None:
    store.open(incident(), signal(), now=T0)
    before = store.load("inc-a").incident
    store.record(before, expected_version=0, token="t1", absorbed=0, entry=line(), look_by=None)
    with pytest.raises(VersionConflict):
        store.record(before, expected_version=0, token="t2", absorbed=0, entry=line(), look_by=None)
    store.next_generation("inc-a", generation=1)
    with pytest.raises(VersionConflict):
        store.record(before, expected_version=1, token="t3", absorbed=0, entry=line(), look_by=None)
    assert len(store.timeline("inc-a")) == 1


def test_closing_frees_the_job_and_leaves_the_open_list(shelf: Shelf) -> None:
    shelf.registry.register(job(), attempt())
    shelf.store.open(incident(), signal(), now=T0)
    assert [item.incident_id for item, _ in shelf.store.list_open()] == ["inc-a"]
    closed = close(shelf.store)
    assert closed.phase is Phase.STOPPED
    assert shelf.registry.get("lm-7b").open_incident is None
    assert list(shelf.store.list_open()) == []
    assert shelf.store.callback_of("inc-a") is None
    assert [item.incident_id for item in shelf.store.list_closed(limit=10).incidents] == ["inc-a"]


def test_an_incident_does_not_close_over_a_signal_that_it_has_not_taken_in(store: IncidentStore) -> None:
    """Else the Signal would go down with it, and its redelivery would be taken for a duplicate."""
    store.open(incident(), signal("one"), now=T0)
    looked = store.look("inc-a", generation=1, callback_id="cb", look_by=at(60))
    store.join("inc-a", signal("died again"), now=T0)
    ended = looked.incident.absorb(looked.inbox).enter(Phase.RECOVERED, now=at(9))
    with pytest.raises(VersionConflict):
        store.record(ended, expected_version=0, token="t", absorbed=1, entry=line(), look_by=None)
    assert store.load("inc-a").incident.is_open
    close(store)


def test_the_open_list_tells_when_the_next_look_is_overdue(store: IncidentStore) -> None:
    store.open(incident(), signal(), now=T0)
    assert [look_by for _, look_by in store.list_open()] == [None]
    before = store.load("inc-a").incident
    store.record(before, expected_version=0, token="t", absorbed=0, entry=line(), look_by=at(90))
    assert [look_by for _, look_by in store.list_open()] == [at(90)]


def test_the_timeline_is_in_order_and_an_appended_line_is_written_once(store: IncidentStore) -> None:
    store.open(incident(), signal(), now=T0)
    current = store.load("inc-a").incident
    for turn in range(3):
        entry = line(f"turn {turn}", at_s=10 * turn, loss=1.5, nothing=None)
        current = store.record(current, expected_version=turn, token=f"t{turn}", absorbed=0, entry=entry, look_by=None)
    store.append("inc-a", token="told", entry=line("told", at_s=15))
    store.append("inc-a", token="told", entry=line("told twice", at_s=16))
    assert [entry.text for entry in store.timeline("inc-a")] == ["turn 0", "turn 1", "told", "turn 2"]
    assert store.timeline("inc-a")[0] == line("turn 0", loss=1.5, nothing=None)
    assert store.load_with_timeline("inc-a") == (store.load("inc-a"), store.timeline("inc-a"))
    with pytest.raises(UnknownEntity):
        store.load_with_timeline("inc-none")


def test_closed_incidents_come_newest_first_page_by_page(shelf: Shelf) -> None:
    shelf.registry.register(job(), attempt())
    for number in range(5):
        shelf.store.open(incident(f"inc-{number}", opened_s=number), signal(f"fact-{number}"), now=at(number))
        close(shelf.store, f"inc-{number}")
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(5):
        page = shelf.store.list_closed(limit=2, cursor=cursor)
        assert len(page.incidents) <= 2
        seen += [item.incident_id for item in page.incidents]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ["inc-4", "inc-3", "inc-2", "inc-1", "inc-0"]
    assert [item.incident_id for item in shelf.store.list_for_job("lm-7b", limit=3)] == ["inc-4", "inc-3", "inc-2"]
    assert shelf.store.list_for_job("nobody", limit=3) == ()


def test_a_foreign_cursor_is_an_invalid_request(store: IncidentStore) -> None:
    for cursor in ("", "x", "%%%", "bnVsbA=="):
        with pytest.raises(InvalidRequest):
            store.list_closed(limit=1, cursor=cursor)


def test_what_does_not_exist_is_an_unknown_entity(store: IncidentStore) -> None:
    for ask in (
        lambda: store.load("nobody"),
        lambda: store.look("nobody", generation=1, callback_id="cb", look_by=at(60)),
        lambda: store.join("nobody", signal(), now=T0),
        lambda: store.next_generation("nobody", generation=1),
        lambda: store.callback_of("nobody"),
        lambda: store.record(incident("nobody"), expected_version=0, token="t", absorbed=0, entry=line(), look_by=None),
    ):
        with pytest.raises(UnknownEntity):
            ask()


def test_a_full_inbox_turns_signals_away_but_never_an_order(store: IncidentStore) -> None:
    store.open(incident(), signal("fact-0"), now=T0)
    entries = [store.join("inc-a", signal(f"fact-{number}"), now=T0) for number in range(1, MAX_INBOX + 5)]
    assert {entry.outcome for entry in entries} == {JoinOutcome.JOINED}
    assert [entry.is_full for entry in entries] == [False] * (MAX_INBOX - 1) + [True] * 5
    assert len(store.load("inc-a").inbox) == MAX_INBOX
    order = signal("order", source=SignalSource.OPERATOR, kind=SignalKind.ORDER_CANCEL)
    store.join("inc-a", order, now=T0)
    assert store.load("inc-a").inbox[-1].kind is SignalKind.ORDER_CANCEL
    before = store.load("inc-a").incident
    store.record(before, expected_version=0, token="t", absorbed=MAX_INBOX + 1, entry=line(), look_by=None)
    assert store.load("inc-a").inbox == ()
    # What was turned away was not taken in, so its redelivery finds room now.
    assert store.join("inc-a", signal(f"fact-{MAX_INBOX + 4}"), now=T0).outcome is JoinOutcome.JOINED
    assert [item.dedupe_key for item in store.load("inc-a").inbox] == [f"fact-{MAX_INBOX + 4}"]


def test_a_node_has_one_open_incident_whoever_asks_and_its_own_history(store: IncidentStore) -> None:
    def node(name: str, which: str, opened_s: float) -> Incident:
        return incident(name, job_id=None, cluster="pretrain", node=which, attempt=None, opened_s=opened_s)

    told = {"job_id": None, "attempt": None, "cluster": "pretrain"}
    assert (
        store.open(node("inc-a", "ip-1", 0), signal("one", node="ip-1", **told), now=T0).outcome is JoinOutcome.OPENED
    )
    again = store.open(node("inc-b", "ip-1", 1), signal("two", node="ip-1", **told), now=at(1))
    assert (again.outcome, again.incident_id) == (JoinOutcome.JOINED, "inc-a")
    other = store.open(node("inc-c", "ip-2", 2), signal("three", node="ip-2", **told), now=at(2))
    cluster = replace(node("inc-d", "ip-1", 3), node=None)
    assert (other.outcome, store.open(cluster, signal("four", **told), now=at(3)).outcome) == (JoinOutcome.OPENED,) * 2
    close(store)
    assert (
        store.open(node("inc-e", "ip-1", 4), signal("five", node="ip-1", **told), now=at(4)).outcome
        is JoinOutcome.OPENED
    )
    mine = store.list_for_node("pretrain", "ip-1", limit=5)
    assert [incident.incident_id for incident in mine] == ["inc-e", "inc-a"]
    assert mine[0] == node("inc-e", "ip-1", 4)
    assert store.list_for_node("pretrain", "ip-9", limit=5) == ()


def test_a_claim_is_given_once(store: IncidentStore) -> None:
    store.open(incident(), signal("one"), now=T0)
    assert [store.claim("inc-a", token=token) for token in ("n1", "n1", "n2")] == [True, False, True]
    assert store.timeline("inc-a") == ()
