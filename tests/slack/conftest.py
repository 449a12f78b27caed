"""A Slack that listens on loopback, a table, and the channel between them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto import mock_aws

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
from chalicelib.channels.channel import RetryLater, SlowDown
from chalicelib.channels.quiet import quieten
from chalicelib.channels.slack.channel import SlackChannel
from chalicelib.channels.slack.visit import LEASE
from chalicelib.channels.slack.web_api import SlackApi
from chalicelib.domain.model.incident import Incident
from chalicelib.ports.notices import Notice
from localcloud.aws.template import create_table
from tests.adapters.conftest import make_client
from tests.canary import SLACK_TOKEN
from tests.slack.fake_slack import CONVERSATION, FakeSlack


@pytest.fixture(autouse=True)
def _loud(caplog: pytest.LogCaptureFixture) -> None:
    """Everything that anything logs is caught and searched for secrets (tests/conftest.py), at every level."""
    quieten()  # as the service does when it starts
    caplog.set_level(logging.DEBUG)


class Watch:
    """A clock that stands still until it is told to go on; Slack's goes by it, too."""

    def __init__(self) -> None:
        self._now = datetime.now(UTC).replace(microsecond=0)

    def now(self) -> datetime:
        return self._now

    def step(self, more: timedelta) -> None:
        self._now += more


@dataclass
class Stage:
    """The channel with all its parts."""

    slack: FakeSlack
    clock: Watch
    client: Any
    table: str
    channel: SlackChannel

    @property
    def threads(self) -> DynamoChatThreads:
        return DynamoChatThreads(self.client, table=self.table)

    def impatient(self) -> SlackChannel:
        """The same channel, which waits half a second for an answer; for calls that are never answered."""
        return replace(self.channel, api=SlackApi(lambda: SLACK_TOKEN, url=self.slack.url, timeout_s=0.5))

    def store(self, incident: Incident) -> Incident:
        """Lay the Incident into the table as the store does, whatever stood there."""
        self.client.put_item(TableName=self.table, Item=_item(incident))
        return incident

    def store_many(self, incidents: Sequence[Incident]) -> None:
        """As `store`, 25 at a time."""
        for start in range(0, len(incidents), 25):
            puts = [{"PutRequest": {"Item": _item(incident)}} for incident in incidents[start : start + 25]]
            self.client.batch_write_item(RequestItems={self.table: puts})

    def send(self, notice: Notice, *, tries: int = 20) -> int:
        """Deliver as the queue does: again after the time that was asked for. The number of tries it took."""
        for attempt in range(1, tries + 1):
            try:
                self.channel.send(notice, attempt=attempt)
            except (RetryLater, SlowDown) as err:
                self.clock.step(timedelta(seconds=err.retry_after_s + 1))
            except Exception:
                if attempt == tries:
                    raise
                self.clock.step(LEASE + timedelta(seconds=1))
            else:
                return attempt
        raise AssertionError(f"{notice.token} has not arrived after {tries} tries")

    def at(self, notice: Notice, **more: Any) -> Notice:
        """The notice, said now."""
        return replace(notice, at=self.clock.now(), **more)


def _item(incident: Incident) -> dict[str, Any]:
    return items.key(items.incident_pk(incident.incident_id)) | {
        "state": items.pack(incident.to_wire()),
        "version": items.number(incident.version),
        "generation": items.number(1),
        "is_open": items.flag(incident.is_open),
        "inbox": {"L": []},
    }


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    with FakeSlack() as one:
        yield one


@pytest.fixture(scope="module")
def dynamo() -> Iterator[Any]:
    """One client for a module: each test has a table of its own."""
    with mock_aws():
        yield make_client("dynamodb")


_TABLES = itertools.count()


@pytest.fixture
def stage(slack: FakeSlack, dynamo: Any) -> Stage:
    table = f"rekindle-{next(_TABLES)}"
    create_table(dynamo, table)
    clock = Watch()
    slack.now = clock.now
    channel = SlackChannel(
        name="ops",
        conversation=CONVERSATION,
        api=SlackApi(lambda: SLACK_TOKEN, url=slack.url, timeout_s=60),
        threads=DynamoChatThreads(dynamo, table=table),
        incidents=DynamoIncidentStore(dynamo, table=table),
        clock=clock,
        can_press=True,
    )
    return Stage(slack=slack, clock=clock, client=dynamo, table=table, channel=channel)
