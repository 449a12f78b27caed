"""Deliveries: one message of the queue, one channel, until it has arrived or is given up. The function `deliver`.

A message stays in the queue until its receiver has taken it. One that fails comes back after a growing time;
no message waits for another, so their order is not kept: each carries its own time. What cannot be delivered at all,
and what was tried for a day, goes to the queue of the undeliverable with the reason, and from there back by redrive.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from chalicelib.aws.sqs.deliveries import DynamoDeliveryLog, SqsDeliveries
from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.address import Addresses
from chalicelib.channels.channel import RetryLater, SlowDown, read_notice
from chalicelib.channels.makers import Makers
from chalicelib.domain.model.errors import MalformedEvent, Permanent, RecoveryError
from chalicelib.domain.notices.channels import ChannelConfig
from chalicelib.domain.notices.deliveries import ClaimResult
from chalicelib.ports.clock import Clock
from chalicelib.ports.notices import Notice
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

_LOG = logging.getLogger(__name__)

FIRST_WAIT: Final = timedelta(seconds=5)
LONGEST_WAIT: Final = timedelta(minutes=15)
GIVE_UP: Final = timedelta(hours=24)  # a page is of no use after a day; the alarm has told people long before
HOLD: Final = timedelta(seconds=150)  # exceeds the function's timeout: an older claim is a dead invocation's
# After a failure nothing goes to the receiver for so long: every try may cost ten seconds that other channels need.
LONGEST_REST: Final = timedelta(minutes=1)
HELD_WAIT_S: Final = 30
# The longest that one message may take: no other is begun in a function that ends sooner. A webhook: four addresses,
# the handshake, the answer (outbound.py); Slack: four calls (slack_api.py). Before it, the page's link (address.py).
ONE_S: Final = 60.0
UNTIL_FIXED: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    channel: str
    notice: Notice
    body: str
    receipt: str
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverer:
    """Hands messages to their channels."""

    book: SsmSettings
    queue: SqsDeliveries
    log: DynamoDeliveryLog
    makers: Makers
    clock: Clock
    report: Callable[[Outcome], None]
    left_s: Callable[[], float]
    addresses: Addresses

    def take(self, event: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
        """One batch of the queue. Answers which messages stay there (Lambda, ReportBatchItemFailures)."""
        failed = []
        for record in event.get("Records") or ():
            if self.left_s() < ONE_S:  # a receiver hung: the rest comes again, and the function ends in time
                failed.append({"itemIdentifier": str(record["messageId"])})
                continue
            try:
                stays = self._one(record)
            except Exception:  # one message must never take its neighbours with it; it comes again
                _LOG.exception("a delivery failed without a reason", extra={"message_id": str(record.get("messageId"))})
                stays = True
            if stays:
                failed.append({"itemIdentifier": str(record["messageId"])})
        return {"batchItemFailures": failed}

    def _one(self, record: Mapping[str, Any]) -> bool:
        """Deliver one message; True where it stays in the queue."""
        now = self.clock.now()
        body = str(record.get("body") or "")
        try:
            message = _read_message(record, body)
            book = self.book.channels()
        except MalformedEvent as err:
            return self._buried(None, body, f"{err}", now)
        config = book.channels.get(message.channel)
        if config is None and message.channel in book.broken and now - message.sent_at <= GIVE_UP:
            return self._postponed(message, UNTIL_FIXED, "its entry in the channels document is wrong", attempt=0)
        if config is None:
            return self._buried(message, body, "its channel is not in the channels document any more", now)
        rests_until = self.log.rests_until(message.channel)
        if rests_until is not None and rests_until > now:
            return self._postponed(message, rests_until - now, "the channel rests", attempt=0)
        turn = self.log.begin(message.notice.token, message.channel, now=now, held_until=now + HOLD)
        if turn.begun is ClaimResult.SENT:
            self._outcome(OutcomeKind.DELIVERED, message, "it had arrived before")
            return False
        if turn.begun is ClaimResult.HELD:
            self.queue.later(message.receipt, wait_s=HELD_WAIT_S)
            return True
        if now - message.sent_at > GIVE_UP:
            self.log.failed(message.notice.token, message.channel, why="given up")
            return self._buried(message, body, f"tried {turn.attempt - 1} times in {GIVE_UP.days or 1} day", now)
        return self._send(message, config, turn.attempt, now)

    def _send(self, message: _Message, config: ChannelConfig, attempt: int, now: datetime) -> bool:
        notice = self.addresses.addressed(message.notice)
        try:
            self.makers.make(config).send(notice, attempt=attempt)
        except SlowDown as err:
            wait = min(timedelta(seconds=err.retry_after_s), LONGEST_WAIT)
            return self._failed(message, err, rest=wait, wait=wait, attempt=attempt, now=now)
        except RetryLater as err:
            self.log.failed(notice.token, message.channel, why=str(err))
            wait = min(timedelta(seconds=err.retry_after_s), LONGEST_WAIT)
            return self._postponed(message, wait, str(err), attempt=attempt)
        except Permanent as err:
            self.log.failed(notice.token, message.channel, why=str(err))
            return self._buried(message, message.body, str(err), now)
        except RecoveryError as err:
            wait = wait_after(attempt, notice.token)
            return self._failed(message, err, rest=min(wait, LONGEST_REST), wait=wait, attempt=attempt, now=now)
        self.log.sent(notice.token, message.channel, now=self.clock.now())
        self._outcome(OutcomeKind.DELIVERED, message, "", attempt=attempt)
        return False

    def _failed(
        self, message: _Message, err: RecoveryError, *, rest: timedelta, wait: timedelta, attempt: int, now: datetime
    ) -> bool:
        self.log.failed(message.notice.token, message.channel, why=str(err))
        self.log.rest(message.channel, until=now + rest)
        return self._postponed(message, wait, str(err), attempt=attempt)

    def _postponed(self, message: _Message, wait: timedelta, why: str, *, attempt: int) -> bool:
        # A little later each, so that not all that waited for one moment come at it together.
        spread_s = int(sha256(message.notice.token.encode()).hexdigest()[:4], 16) % 5
        self.queue.later(message.receipt, wait_s=max(1, round(wait.total_seconds())) + spread_s)
        self._outcome(OutcomeKind.POSTPONED, message, why, attempt=attempt)
        return True

    def _buried(self, message: _Message | None, body: str, why: str, now: datetime) -> bool:
        self.queue.bury(body, why=why[:500], at=now)
        self._outcome(OutcomeKind.UNDELIVERED, message, why)
        return False

    def _outcome(self, what: OutcomeKind, message: _Message | None, reason: str, *, attempt: int = 0) -> None:
        facts: dict[str, Any] = {"attempt": attempt} if attempt else {}
        if message is not None:
            facts |= {"channel": message.channel, "notice_id": message.notice.token}
        notice = message.notice if message is not None else None
        self.report(
            Outcome(
                what=what,
                reason=reason[:300],
                incident_id=(notice.incident_id or None) if notice else None,
                job_id=notice.job_id if notice else None,
                facts=facts,
            )
        )


def wait_after(attempt: int, token: str) -> timedelta:
    """How long to wait after the failure of this attempt: doubling, spread by a fifth, at most LONGEST_WAIT."""
    wait = min(FIRST_WAIT * 2.0 ** min(attempt - 1, 16), LONGEST_WAIT)
    share = int(sha256(f"{token}|{attempt}".encode()).hexdigest()[:4], 16) / 0xFFFF  # the same at every replay
    return wait * (0.8 + 0.2 * share)


def _read_message(record: Mapping[str, Any], body: str) -> _Message:
    try:
        wire = json.loads(body)
        channel, detail = wire["channel"], wire["detail"]
        sent_ms = int(record["attributes"]["SentTimestamp"])
        receipt = str(record["receiptHandle"])
    except (ValueError, KeyError, TypeError) as err:
        raise MalformedEvent("message", f"is not a delivery: {type(err).__name__}") from err
    if not isinstance(channel, str) or not isinstance(detail, Mapping):
        raise MalformedEvent("message", "names no channel, or holds no notice")
    sent_at = datetime.fromtimestamp(sent_ms / 1000, tz=UTC)
    return _Message(channel=channel, notice=read_notice(detail), body=body, receipt=receipt, sent_at=sent_at)
