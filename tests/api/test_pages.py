"""ports.Listings over the fake and over DynamoDB: the same pages, and how many reads one costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from chalicelib.aws.dynamodb.listings import MAX_READ, DynamoListings
from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.ports.incidents import IncidentQuery, Listings
from rekindle.protocol.signals import FaultClass
from tests.adapters.conftest import TABLE, Shelf, fake_shelf, make_client, real_shelf
from tests.adapters.samples import T0, at, attempt, incident, job, line, signal
from tests.fakes.paging import FakeListings

CLUSTER = "ml"


@dataclass
class Books:
    shelf: Shelf
    listings: Listings

    def opened(self, number: int, **changes: Any) -> Incident:
        one = incident(f"inc-{number:04d}", opened_s=number, **changes)
        self.shelf.store.open(one, signal(f"fact-{number}"), now=at(number))
        return one

    def closed(self, number: int, **changes: Any) -> Incident:
        one = self.opened(number, **changes)
        end = replace(one, phase=Phase.RECOVERED, closed_at=at(number), outcome="recovered")
        self.shelf.store.record(
            end, expected_version=one.version, token="end", absorbed=1, entry=line("over", at_s=number), look_by=None
        )
        return end


@pytest.fixture(params=["fake", "dynamodb"])
def books(request: pytest.FixtureRequest, aws: None) -> Iterator[Books]:
    if request.param == "fake":
        shelf = fake_shelf()
        yield Books(shelf, FakeListings(shelf.store, shelf.registry))
        return
    shelf = real_shelf()
    assert shelf.wire is not None
    yield Books(shelf, DynamoListings(shelf.wire.client, table=TABLE))
    assert shelf.wire.calls["Scan"] == 0


@pytest.fixture
def aws() -> Iterator[None]:
    from moto import mock_aws

    with mock_aws():
        yield


def filled(books: Books) -> None:
    """Twelve closed Incidents of one Job, three open ones of others, two of a cluster."""
    for name in ("lm-7b", "a", "b", "c"):
        books.shelf.registry.register(job(name), attempt(of=name))
    for number in range(12):
        books.closed(number, fault=FaultClass.HANG if number % 4 else FaultClass.NON_FINITE)
    for number, name in enumerate("abc", start=12):
        books.opened(number, job_id=name)
    books.closed(20, job_id=None, cluster=CLUSTER, node="ip-1")
    books.opened(21, job_id=None, cluster=CLUSTER, node="ip-1")


def walked(ask: Callable[[str | None], Any], limit: int) -> list[str]:
    """All pages, each of `limit` rows at most."""
    found: list[str] = []
    cursor: str | None = None
    for _ in range(100):
        page = ask(cursor)
        assert len(page.incidents) <= limit
        found += [incident.incident_id for incident in page.incidents]
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("a cursor that never ends")


QUESTIONS = [
    (IncidentQuery(is_open=True), [21, 14, 13, 12]),
    (IncidentQuery(is_open=False), [20, *range(11, -1, -1)]),
    (IncidentQuery(), [21, 14, 13, 12, 20, *range(11, -1, -1)]),
    (IncidentQuery(since=at(13)), [21, 14, 13, 20]),
    (IncidentQuery(is_open=False, since=at(10)), [20, 11, 10]),
    (IncidentQuery(is_open=False, fault="non_finite"), [8, 4, 0]),
    (IncidentQuery(cluster=CLUSTER), [21, 20]),
    (IncidentQuery(job_id="lm-7b"), list(range(11, -1, -1))),
    (IncidentQuery(job_id="lm-7b", is_open=True), []),
    (IncidentQuery(job_id="lm-7b", fault="hang", since=at(6)), [11, 10, 9, 7, 6]),
    (IncidentQuery(job_id="a", is_open=True), [12]),
    (IncidentQuery(job_id="nobody"), []),
]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_every_question_is_answered_alike_whatever_the_page(books: Books, limit: int) -> None:
    filled(books)
    for wanted, expected in QUESTIONS:
        found = walked(
            lambda cursor, wanted=wanted: books.listings.incidents(wanted, limit=limit, cursor=cursor), limit
        )
        assert found == [f"inc-{number:04d}" for number in expected], wanted


def test_jobs_come_active_first_or_of_one_kind(books: Books) -> None:
    for name in "abcde":
        books.shelf.registry.register(job(name), attempt(of=name))
    for name in "bd":
        books.shelf.registry.deactivate(name, ended_at=T0)
    for active, expected in ((None, "acebd"), (True, "ace"), (False, "bd")):
        found, cursor, pages = "", None, 0
        while pages == 0 or cursor is not None:
            jobs, cursor = books.listings.jobs(active=active, limit=2, cursor=cursor)
            found += "".join(job.job_id for job in jobs)
            pages += 1
            assert pages < 10
        assert found == expected
    assert (books.listings.active_jobs(), books.listings.open_incidents()) == (3, 0)


def test_the_story_is_the_same_by_the_page(books: Books) -> None:
    books.shelf.registry.register(job(), attempt())
    one = books.opened(0)
    for number in range(1, 8):
        one = books.shelf.store.record(
            replace(one, evidence=replace(one.evidence, conclusion=str(number))),
            expected_version=one.version,
            token=f"t{number}",
            absorbed=0,
            entry=line(f"recorded {number}", at_s=10 * number),
            look_by=None,
        )
    for number in (5, 25, 30, 65, 99):
        books.shelf.store.append(one.incident_id, token=f"a{number}", entry=line(f"told at {number}", at_s=number))
    whole = [entry.text for entry in books.shelf.store.timeline(one.incident_id)]
    for limit in (1, 2, 3, 50):
        found: list[str] = []
        cursor: str | None = None
        for _ in range(30):
            lines, cursor = books.listings.timeline(one.incident_id, limit=limit, cursor=cursor)
            found += [entry.text for entry in lines]
            if cursor is None:
                break
        assert found == whole, limit
    with pytest.raises(UnknownEntity):
        books.listings.timeline("inc-none", limit=5)


@pytest.mark.parametrize("cursor", ["x", "W10=", "e30=", "bnVsbA==", "WyJKT0JTI0FDVElWRSIse31d"])
def test_a_cursor_that_is_not_ours_is_refused(cursor: str, aws: None) -> None:
    listings = _dynamo()
    with pytest.raises(InvalidRequest):
        listings.incidents(IncidentQuery(is_open=True), limit=5, cursor=cursor)


def test_a_cursor_cannot_be_bent_to_another_place(aws: None) -> None:
    """A key of another partition would be refused by DynamoDB, as an error of ours."""
    import base64

    bent = base64.urlsafe_b64encode(b'["INCIDENTS#OPEN",{"pk":"a","sk":"b","gsi1pk":"JOBS#ACTIVE","gsi1sk":"c"}]')
    with pytest.raises(InvalidRequest):
        _dynamo().incidents(IncidentQuery(is_open=True), limit=5, cursor=bent.decode())


def _dynamo() -> DynamoListings:
    shelf = real_shelf()
    assert shelf.wire is not None
    return DynamoListings(shelf.wire.client, table=TABLE)


def test_a_page_costs_two_calls_and_a_filter_that_no_index_answers_a_bounded_number(aws: None) -> None:
    shelf = real_shelf()
    wire = shelf.wire
    assert wire is not None
    books = Books(shelf, DynamoListings(wire.client, table=TABLE))
    shelf.registry.register(job(), attempt())
    for number in range(30):
        books.closed(number)
    wire.reset()
    assert len(books.listings.incidents(IncidentQuery(is_open=False), limit=10).incidents) == 10
    assert dict(wire.calls) == {"Query": 1, "BatchGetItem": 1}
    wire.reset()
    page = books.listings.incidents(IncidentQuery(is_open=False, fault="hang"), limit=10)
    assert (page.incidents, page.cursor) == ((), None)
    assert sum(wire.calls.values()) <= 2 * (MAX_READ // 100)


def test_what_closes_while_a_page_is_read_is_left_out(aws: None) -> None:
    """The index lags; the Incident itself tells."""
    shelf = real_shelf()
    assert shelf.wire is not None
    books = Books(shelf, DynamoListings(shelf.wire.client, table=TABLE))
    shelf.registry.register(job(), attempt())
    books.closed(1)
    client = make_client("dynamodb")
    client.update_item(
        TableName=TABLE,
        Key={"pk": {"S": "INC#inc-0001"}, "sk": {"S": "META"}},
        UpdateExpression="SET gsi1pk = :open",
        ExpressionAttributeValues={":open": {"S": "INCIDENTS#OPEN"}},
    )
    assert books.listings.incidents(IncidentQuery(is_open=True), limit=5).incidents == ()


def test_a_page_that_was_read_in_vain_leads_on(aws: None) -> None:
    """So many that do not fit that the bound is met: an empty page with a cursor, and the end is reached."""
    shelf = real_shelf()
    assert shelf.wire is not None
    listings = DynamoListings(shelf.wire.client, table=TABLE, max_read=5)
    books = Books(shelf, listings)
    shelf.registry.register(job(), attempt())
    for number in range(12):
        books.closed(number, fault=FaultClass.HANG if number == 0 else FaultClass.NON_FINITE)
    first = listings.incidents(IncidentQuery(is_open=False, fault="hang"), limit=10)
    assert (first.incidents, first.cursor is None) == ((), False)
    found = walked(
        lambda cursor: listings.incidents(IncidentQuery(is_open=False, fault="hang"), limit=10, cursor=cursor), 10
    )
    assert found == ["inc-0000"]
