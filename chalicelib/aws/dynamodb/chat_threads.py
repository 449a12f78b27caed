"""What was sent to chat channels, in the table: items `SLACK#…` (docs/storage.md).

A thread is worked on by one at a time: `take` sets a lease and counts a fence up, and every later write asks that the
fence is still its own. So a message is not posted twice, and an older state never overwrites a newer one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.incident_items import incident_of
from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import DependencyUnavailable, VersionConflict
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.notices.threads import StormState, Thread

MEMORY: Final = timedelta(days=90)  # of a thread; an Incident that changes after that gets a new message
PRESS_MEMORY: Final = timedelta(minutes=15)  # longer than a request of Slack's is taken as fresh, on either side of now
MAX_FOLDED: Final = 1000  # Incidents that a digest reads: eleven calls. Those beyond stand in the list only


class DynamoChatThreads:
    """`client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def take(self, channel: str, key: str, *, now: datetime, until: datetime) -> tuple[Thread, int]:
        """The thread as it stands, and its holder's fence.

        Raises:
            DependencyUnavailable: another delivery holds it; try again later.
        """
        try:
            answer = items.retry_in_transaction(
                self._client.update_item,
                expect=(items.CONDITION_FAILED,),
                TableName=self._table,
                Key=_key(channel, key),
                UpdateExpression="SET #lease = :until ADD #fence :one",
                ConditionExpression="attribute_not_exists(#lease) OR #lease <= :now",
                ExpressionAttributeNames={"#lease": "lease", "#fence": "fence"},
                ExpressionAttributeValues={
                    ":until": items.text(until.isoformat()),
                    ":now": items.text(now.isoformat()),
                    ":one": items.number(1),
                },
                ReturnValues="ALL_NEW",
            )
        except AwsRefusal as refusal:
            raise DependencyUnavailable(f"the message about {key} is being worked on by another delivery") from refusal
        stored = answer["Attributes"]
        return _thread(channel, key, stored), items.read_number(stored, "fence")

    def keep(self, thread: Thread, *, fence: int, now: datetime, release: bool) -> None:
        """Write the thread down; `release` lets the next one at it.

        Raises:
            VersionConflict: the lease ran out, and another delivery has taken over.
        """
        expression = items.Expression()
        state = expression.set("state", items.pack(thread.to_wire()))
        expires = expression.set(items.TTL_ATTRIBUTE, items.number(int((now + MEMORY).timestamp())))
        change = f"SET {state}, {expires}" + (f" REMOVE {expression.name('lease')}" if release else "")
        condition = f"{expression.name('fence')} = {expression.value('fence', items.number(fence))}"
        key = _key(thread.channel, thread.key)
        if not items.update(self._client, self._table, key, change, expression, condition=condition):
            raise VersionConflict(f"the message about {thread.key} has been taken over")

    def peek(self, channel: str, key: str) -> Thread:
        """The thread as it stands, without taking it."""
        return _thread(channel, key, items.get(self._client, self._table, _key(channel, key)) or {})

    def weather(self, channel: str) -> StormState:
        """How many Incidents it was sent lately."""
        stored = items.get(self._client, self._table, _key(channel, ""))
        if stored is None:
            return StormState()
        state = items.unpack_record(StormState, stored["state"])
        return replace(state, version=items.read_number(stored, "version"))

    def set_weather(self, channel: str, weather: StormState) -> None:
        """Replace what was read. Raises VersionConflict if another writer did in between."""
        expression = items.Expression()
        state = expression.set("state", items.pack(weather.to_wire()))
        version = expression.set("version", items.number(weather.version + 1))
        read = expression.value("read", items.number(weather.version))
        condition = f"attribute_not_exists(#version) OR #version = {read}"
        change = f"SET {state}, {version}"
        if not items.update(self._client, self._table, _key(channel, ""), change, expression, condition=condition):
            raise VersionConflict(f"what was sent to {channel} has changed meanwhile")

    def fold(self, channel: str, digest: str, incident_id: str, *, now: datetime) -> None:
        """Add an Incident to a digest. Idempotent."""
        expires = int((now + MEMORY).timestamp())
        item = _key(channel, digest, f"M#{incident_id}") | {items.TTL_ATTRIBUTE: items.number(expires)}
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=item)

    def folded(self, channel: str, digest: str) -> tuple[Incident, ...]:
        """The Incidents of a digest as they stand, in the order of their ids; at most MAX_FOLDED."""
        request = items.query_prefix(_key(channel, digest)["pk"]["S"], "M#") | {"Limit": MAX_FOLDED}
        rows = call(self._client.query, TableName=self._table, **request).get("Items", ())
        keys = [items.key(items.incident_pk(row["sk"]["S"].removeprefix("M#"))) for row in rows]
        return tuple(incident_of(stored) for stored in items.get_many(self._client, self._table, keys))

    def is_first(self, mark: str, *, now: datetime) -> bool:
        """True once for each request that came in: a copy of it is not taken."""
        expires = items.number(int((now + PRESS_MEMORY).timestamp()))
        # DynamoDB deletes expired items within days; one that has expired is too old to be taken as fresh.
        item = items.key(f"SLACK#PRESS#{mark}") | {items.TTL_ATTRIBUTE: expires}
        return items.put_new(self._client, self._table, item)


def _key(channel: str, key: str, sk: str = items.META) -> items.Item:
    return items.key(f"SLACK#{channel}#{key}", sk)


def _thread(channel: str, key: str, stored: items.Item) -> Thread:
    if "state" not in stored:
        return Thread(channel=channel, key=key)
    return items.unpack_record(Thread, stored["state"])
