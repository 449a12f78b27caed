"""SQS as an event source of functions: what Lambda's poller does, on the cloud's own clock.

A message that the function names in `batchItemFailures`, and every message of a batch that it raises for, stays in the
queue and comes again once it is visible; the others are deleted. Source: Lambda guide, with-sqs and
services-sqs-errorhandling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from localcloud.aws.authorization import ACCOUNT_ID, REGION
from localcloud.aws.clock import Clock

_LATENCY = timedelta(milliseconds=100)
_PAUSE = timedelta(milliseconds=50)  # past the moment at which a message is visible again


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSource:
    """A function behind a queue."""

    function: str
    queue: str
    batch_size: int = 1
    reports_failures: bool = True  # ReportBatchItemFailures: without it Lambda reads no answer, and deletes the batch


class QueueSources:
    """Polls the queues that functions stand behind: when something is sent, and when something is visible again.

    invoke: runs a function, as Lambda would. sqs: a client of the cloud. next_visible: when the next hidden message of
    a queue appears, None where none is hidden.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        invoke: Callable[[str, Any], Any],
        sqs: Callable[[], Any],
        next_visible: Callable[[str], datetime | None],
    ) -> None:
        self._clock = clock
        self._invoke = invoke
        self._sqs = sqs
        self._next_visible = next_visible
        self._lock = threading.Lock()
        self._due: dict[str, datetime] = {}
        self.sources: dict[str, QueueSource] = {}
        self.failures: list[str] = []

    def add(self, source: QueueSource) -> None:
        """Have the function take what comes into the queue, and what lies there already."""
        self.sources[source.queue] = source
        self.sent(source.queue)

    def sent(self, queue: str) -> None:
        """A message was sent to the queue."""
        if queue in self.sources:
            self._poll_at(queue, self._clock.now() + _LATENCY)

    def _poll_at(self, queue: str, at: datetime) -> None:
        with self._lock:
            due = self._due.get(queue)
            if due is not None and due <= at:
                return
            self._due[queue] = at
        self._clock.schedule(at, lambda: self._poll(queue, at), label=f"poll {queue}")

    def _poll(self, queue: str, at: datetime) -> None:
        with self._lock:
            if self._due.get(queue) != at:
                return  # an earlier poll has taken its place
            del self._due[queue]
        source = self.sources[queue]
        sqs = self._sqs()
        try:
            url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
            while messages := sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=source.batch_size, AttributeNames=["All"]
            ).get("Messages", []):
                self._hand_over(source, url, messages)
        except ClientError as err:  # the cloud is being closed, or the queue is gone
            self.failures.append(f"{queue}: {err}")
            return
        again = self._next_visible(queue)
        if again is not None:
            self._poll_at(queue, again + _PAUSE)

    def _hand_over(self, source: QueueSource, url: str, messages: list[dict[str, Any]]) -> None:
        event = {"Records": [_record(source, message) for message in messages]}
        try:
            answer = self._invoke(source.function, event) or {}
            named = answer.get("batchItemFailures", ()) if source.reports_failures else ()
            failed = {failure["itemIdentifier"] for failure in named}
        except Exception as err:  # the whole batch comes again, whatever it raised
            self.failures.append(f"{source.function}: {type(err).__name__}: {err}")
            return
        for message in messages:
            if message["MessageId"] not in failed:
                self._sqs().delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def visible_at(messages: list[Any], now: datetime) -> datetime | None:
    """When the first of moto's hidden messages appears."""
    now_ms = now.timestamp() * 1000
    times = [max(float(message.visible_at), float(message.delayed_until)) for message in messages]
    hidden = [at for at in times if at > now_ms]
    return datetime.fromtimestamp(min(hidden) / 1000, tz=UTC) if hidden else None


def _record(source: QueueSource, message: dict[str, Any]) -> dict[str, Any]:
    """As Lambda hands it over. Source: Lambda guide, with-sqs, example event."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message.get("Attributes", {}),
        "messageAttributes": {},
        "md5OfBody": message.get("MD5OfBody", ""),
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{source.queue}",
        "awsRegion": REGION,
    }
