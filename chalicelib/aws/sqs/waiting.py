"""A queue that nothing polls: its messages wait until a person reads and removes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call

_PAGE: Final = 10  # Source: SQS ReceiveMessage, MaxNumberOfMessages
_EMPTY_RECEIVES: Final = 2  # short polling asks some of SQS's servers only


class SqsWaiting:
    """Messages as SQS gives them; `client` is a boto3 SQS client.

    hidden_s: for how long other readers do not see what was taken. What was not dropped by then comes back.
    """

    def __init__(self, client: Any, *, url: str, hidden_s: int) -> None:
        self._client = client
        self._url = url
        self._hidden_s = hidden_s

    def peek(self, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        """Up to `limit` distinct messages, which stay visible in the queue."""
        seen: dict[str, Mapping[str, Any]] = {}
        empty = 0
        while len(seen) < limit and empty < _EMPTY_RECEIVES:
            before = len(seen)
            for message in self._receive(limit=min(_PAGE, limit - before), hidden_s=0):
                seen.setdefault(message["MessageId"], message)
            empty += len(seen) == before
        return tuple(seen.values())

    def take(self, *, limit: int) -> Iterator[Mapping[str, Any]]:
        """Up to `limit` messages, received a page at a time; others do not see them for `hidden_s`."""
        left, empty = limit, 0
        while left > 0 and empty < _EMPTY_RECEIVES:
            messages = self._receive(limit=min(_PAGE, left), hidden_s=self._hidden_s)
            empty += not messages
            left -= len(messages)
            yield from messages

    def drop(self, receipt: str) -> None:
        """Delete this receipt's message. Idempotent; an expired receipt is ignored, and its message returns."""
        with suppress(AwsRefusal):
            call(
                self._client.delete_message,
                expect=("ReceiptHandleIsInvalid",),
                QueueUrl=self._url,
                ReceiptHandle=receipt,
            )

    def _receive(self, *, limit: int, hidden_s: int) -> list[dict[str, Any]]:
        answer = call(
            self._client.receive_message,
            QueueUrl=self._url,
            MaxNumberOfMessages=limit,
            VisibilityTimeout=hidden_s,
            WaitTimeSeconds=0,
            MessageAttributeNames=["All"],
        )
        return list(answer.get("Messages", ()))
