"""Deliveries in AWS: their log in the table, their queues in SQS (docs/storage.md has the items)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.errors import AwsRefusal, call, meaning_of
from chalicelib.domain.notices.deliveries import ClaimResult, DeliveryClaim

KEPT: Final = timedelta(days=30)  # a message may wait 14 days in each of two queues: a redrive sends nothing twice
_FAILED: Final = "ConditionalCheckFailedException"
# The message is gone, visible again, or has used up the 12 hours that one receive may hide it.
_NO_MORE: Final = (
    "AWS.SimpleQueueService.MessageNotInflight",
    "InvalidParameterValue",
    "MessageNotInflight",
    "ReceiptHandleIsInvalid",
)
_MAX_WAIT_S: Final = 900
_WHY: Final = "why"


class DynamoDeliveryLog:
    """One record per notice and channel, kept for some days; and how long a channel rests. `client` is a boto3 DynamoDB
    client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def begin(self, token: str, channel: str, *, now: datetime, held_until: datetime) -> DeliveryClaim:
        """Take the turn, unless the notice has arrived or another attempt's hold lasts. Conditional, so one wins."""
        parts = items.Expression()
        sets = [
            parts.set("held_until", items.text(held_until.isoformat())),
            parts.set(items.TTL_ATTRIBUTE, items.number(int((now + KEPT).timestamp()))),
        ]
        free = f"{parts.name('held_until')} <= {parts.value('now', items.text(now.isoformat()))}"
        try:
            answer = items.retry_in_transaction(
                self._client.update_item,
                expect=(_FAILED,),
                TableName=self._table,
                Key=_key(token, channel),
                UpdateExpression=f"SET {', '.join(sets)} "
                f"ADD {parts.name('attempts')} {parts.value('one', items.number(1))}",
                ConditionExpression=f"attribute_not_exists({parts.name('sent_at')}) AND "
                f"(attribute_not_exists(held_until) OR {free})",
                ReturnValues="UPDATED_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **parts.parts(),
            )
        except AwsRefusal as refusal:
            if refusal.code != _FAILED:
                raise meaning_of(refusal.code, refusal.message) from refusal
            stored = refusal.response.get("Item") or {}
            return DeliveryClaim(begun=ClaimResult.SENT if "sent_at" in stored else ClaimResult.HELD)
        return DeliveryClaim(begun=ClaimResult.GO, attempt=items.read_number(answer["Attributes"], "attempts", 1))

    def sent(self, token: str, channel: str, *, now: datetime) -> None:
        self._change(token, channel, "SET sent_at = :v REMOVE held_until, why", items.text(now.isoformat()))

    def failed(self, token: str, channel: str, *, why: str) -> None:
        """It has not arrived: the turn is free again."""
        self._change(token, channel, "SET why = :v REMOVE held_until", items.text(why[:500] or "-"))

    def rests_until(self, channel: str) -> datetime | None:
        """Until when nothing is to be sent over the channel; None where no pause was asked for."""
        stored = items.get(self._client, self._table, _rest_key(channel))
        return items.read_at(stored, "rests_until") if stored is not None else None

    def rest(self, channel: str, *, until: datetime) -> None:
        body = {
            "rests_until": items.text(until.isoformat()),
            items.TTL_ATTRIBUTE: items.number(int((until + timedelta(days=1)).timestamp())),
        }
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=_rest_key(channel) | body)

    def _change(self, token: str, channel: str, expression: str, value: dict[str, Any]) -> None:
        items.retry_in_transaction(
            self._client.update_item,
            TableName=self._table,
            Key=_key(token, channel),
            UpdateExpression=expression,
            ExpressionAttributeValues={":v": value},
        )


def _key(token: str, channel: str) -> items.Item:
    return items.key(f"NOTICE#{token}", f"CHANNEL#{channel}")


def _rest_key(channel: str) -> items.Item:
    return items.key(f"CHANNEL#{channel}")


class SqsDeliveries:
    """The queue between fan-out and delivery, and the one for what could not be delivered. `client` is a boto3 SQS
    client."""

    def __init__(self, client: Any, *, url: str, dead_url: str) -> None:
        self._client = client
        self._url = url
        self._dead_url = dead_url

    def enqueue(self, bodies: Sequence[str]) -> None:
        """All of them, or an error after which all may be laid in again."""
        for body in bodies:  # one by one: ten long texts are more than one batch takes
            call(self._client.send_message, QueueUrl=self._url, MessageBody=body)

    def later(self, receipt: str, *, wait_s: int) -> None:
        """Let a message that was received come again after `wait_s` seconds. One that is gone is no error. If the call
        fails, the queue's own visibility timeout applies."""
        try:
            call(
                self._client.change_message_visibility,
                expect=_NO_MORE,
                QueueUrl=self._url,
                ReceiptHandle=receipt,
                VisibilityTimeout=min(max(wait_s, 0), _MAX_WAIT_S),
            )
        except AwsRefusal:
            return

    def bury(self, body: str, *, why: str, at: datetime) -> None:
        texts = {_WHY: why or "-", "at": at.isoformat()}
        call(
            self._client.send_message,
            QueueUrl=self._dead_url,
            MessageBody=body,
            MessageAttributes={name: {"DataType": "String", "StringValue": text} for name, text in texts.items()},
        )
