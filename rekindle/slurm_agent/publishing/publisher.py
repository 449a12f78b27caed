"""Empties the outbox into the cluster state and onto the bus, and keeps the heartbeat. The state's only writer, and
only while this agent holds the cluster's lease.

AWS away or throttled: everything waits, in order, and is tried again after one second, two, four, up to a minute. A
document that is refused for a reason of its own waits alone; the others continue. Neither ever holds up an order or
a reading of Slurm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.cluster.documents import AgentDoc
from rekindle.protocol.cluster.names import agent_key
from rekindle.slurm_agent.base.aws import AwsError, Clients, is_away, is_denied, text_of
from rekindle.slurm_agent.base.clock import Clock
from rekindle.slurm_agent.base.ports import LeaseHolder
from rekindle.slurm_agent.base.problems import Problems
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.publishing.outbox import Document, Outbox, OutboxLane, Waiting

log = logging.getLogger(__name__)

SOURCE: Final = "rekindle.agent"
HEARTBEAT: Final = timedelta(seconds=30)
FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
READ_TELL: Final = timedelta(seconds=90)  # half of what the service believes: an older time of reading is told at once
REFUSED_AGAIN_S: Final = 60.0  # a refusal that only a person can end; cheap enough to see it end
DOCUMENTS_AT_ONCE: Final = 20  # then the answers' lane is looked at again
EVENTS_PER_CALL: Final = 10  # Source: botocore events PutEventsRequestEntryList, max 10
MAX_CALL_BYTES: Final = 240_000  # Source: EventBridge user guide, PutEvents: 256 KB for all entries of a call


class _AwsUnavailable(Exception):
    """AWS does not answer, or not now: nothing else needs to be tried."""


class Publisher:
    """`heartbeat` makes the document at the moment it is written. `on_answered` is called with an answered token."""

    def __init__(
        self,
        *,
        outbox: Outbox,
        clients: Clients,
        settings: Settings,
        clock: Clock,
        problems: Problems,
        heartbeat: Callable[[], AgentDoc],
        on_answered: Callable[[str], None],
        holding: LeaseHolder | None = None,
    ) -> None:
        self._holding = holding
        self._outbox = outbox
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._problems = problems
        self._heartbeat = heartbeat
        self._on_answered = on_answered
        self._heartbeat_at: float | None = None
        self._read_at: datetime | None = None  # what the last heartbeat said about when Slurm was read
        self._wake = threading.Event()
        self._backoff_s = 0.0
        self._refused: dict[str, float] = {}  # key -> when it may be tried again
        self._bus_refused_until = 0.0
        self._is_singly = False  # one event a call, to find the one that the bus does not bear

    def wake(self) -> None:
        """There is something to send."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; the last is `flush`."""
        while not stop.is_set():
            self._wake.clear()
            try:
                rest_s = self.run_once()
            except Exception as err:  # one document that cannot be sent must not end what tells of all others
                log.exception("part=publisher")
                self._problems.set("publisher", [f"internal error: {type(err).__name__}: {err}"])
                rest_s = MAX_BACKOFF_S
            (stop if self._backoff_s else self._wake).wait(rest_s)  # while AWS is away nothing shortens the wait

    def flush(self, limit_s: float) -> bool:
        """Try to send all that waits, for so long. True: nothing is left."""
        end = self._clock.monotonic() + limit_s
        self._heartbeat_at = None
        while self._clock.monotonic() < end:
            self.run_once()
            if self._backoff_s or not self._waits():
                break
        return not self._waits()

    def run_once(self) -> float:
        """Send what can be sent. Returns seconds until there is something to do again, unless woken before."""
        away: str | None = None
        try:
            self._heartbeat_doc()
            self._send()
        except _AwsUnavailable as err:
            away = str(err)
        self._backoff_s = min(MAX_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * self._backoff_s)) if away else 0.0
        self._tell(away)
        heartbeat_at = self._heartbeat_at if self._heartbeat_at is not None else self._clock.monotonic()
        until_heartbeat = max(0.0, heartbeat_at + HEARTBEAT.total_seconds() - self._clock.monotonic())
        return self._backoff_s or until_heartbeat

    # ---- parts of a pass

    def _heartbeat_doc(self) -> None:
        now = self._clock.monotonic()
        is_old = self._read_at is None or self._clock.now() - self._read_at > READ_TELL
        heartbeat = self._heartbeat() if is_old else None
        is_read_again = heartbeat is not None and heartbeat.read_at not in (None, self._read_at)
        if (
            not is_read_again
            and self._heartbeat_at is not None
            and now - self._heartbeat_at < HEARTBEAT.total_seconds()
        ):
            return
        heartbeat = heartbeat or self._heartbeat()
        self._put(Document(key=agent_key(self._settings.cluster), seq=0, body=heartbeat.to_json()))
        self._heartbeat_at, self._read_at = now, heartbeat.read_at

    def _send(self) -> None:
        while True:
            self._documents(OutboxLane.ANSWERS)
            self._news(OutboxLane.ANSWERS)
            if not self._documents(OutboxLane.WORLD):
                break
        self._heartbeat_doc()  # news of a cluster whose reading looks old would be turned away
        self._news(OutboxLane.WORLD)

    def _documents(self, lane: OutboxLane) -> bool:
        """True where more of the lane may be sent at once."""
        # Those refused lately stand in front; look past them.
        found = self._outbox.documents(lane, DOCUMENTS_AT_ONCE + len(self._refused))
        due = [document for document in found if not self._is_refused(document.key)][:DOCUMENTS_AT_ONCE]
        for document in due:
            if self._put(document):
                self._outbox.written(document)
        return bool(due) and lane is OutboxLane.WORLD

    def _put(self, document: Document) -> bool:
        """False: refused, for a reason that only a person can end. Raises: _AwsUnavailable."""
        self._insist()
        try:
            self._clients.s3.put_object(
                Bucket=self._settings.bucket, Key=document.key, Body=document.body, ContentType="application/json"
            )
        except AwsError as err:
            if is_away(err):
                raise _AwsUnavailable(text_of("PutObject", err)) from err
            self._refused[document.key] = self._clock.monotonic() + REFUSED_AGAIN_S
            self._problems.set("cluster_state", [text_of(f"PutObject {document.key}", err)])
            return False
        if self._refused.pop(document.key, None) is not None and not self._refused:
            self._problems.set("cluster_state")
        return True

    def _insist(self) -> None:
        """Raises: _AwsUnavailable where another agent may write by now."""
        if self._holding is not None and self._holding.left_s() <= 0:
            raise _AwsUnavailable("this agent does not hold the cluster's lease now")

    def _is_refused(self, key: str) -> bool:
        return self._refused.get(key, 0.0) > self._clock.monotonic()

    def _news(self, lane: OutboxLane) -> None:
        while self._bus_refused_until <= self._clock.monotonic():
            batch = _fitting(self._outbox.waiting(lane, 1 if self._is_singly else EVENTS_PER_CALL))
            self._is_singly = self._is_singly and bool(batch)
            if not batch or not self._put_events(batch):
                return

    def _put_events(self, batch: Sequence[Waiting]) -> bool:
        """True where all were taken. Raises: _AwsUnavailable."""
        self._insist()
        try:
            answer = self._clients.events.put_events(Entries=[self._entry(news) for news in batch])
        except AwsError as err:
            if is_away(err):
                raise _AwsUnavailable(text_of("PutEvents", err)) from err
            if not is_denied(err):  # of the entries: too large, say
                if self._is_singly:
                    self._outbox.drop(batch)
                self._is_singly = not self._is_singly
                return True
            self._bus_refused_until = self._clock.monotonic() + REFUSED_AGAIN_S
            self._problems.set("bus", [text_of("PutEvents", err)])
            self._answered(batch)  # the cluster state has the answer: the order must not come again and again
            return False
        codes = [str(entry.get("ErrorCode") or "") for entry in answer["Entries"]]
        sent = [news for news, code in zip(batch, codes, strict=True) if not code]
        refused = [news for news, code in zip(batch, codes, strict=True) if code]
        self._outbox.settle(sent, refused)
        self._answered(sent)
        self._problems.set("bus", [f"PutEvents: {code}" for code in sorted({code for code in codes if code})])
        if refused:
            raise _AwsUnavailable(f"PutEvents: {len(refused)} of {len(batch)} events were not taken")
        return True

    def _answered(self, reported: Sequence[Waiting]) -> None:
        for news in reported:
            if news.token is not None:
                self._on_answered(news.token)

    def _entry(self, event: Waiting) -> dict[str, object]:
        return {
            "Source": SOURCE,
            "DetailType": event.type.value,
            "Detail": event.detail,
            "EventBusName": self._settings.bus,
            "Time": event.at,
        }

    def _waits(self) -> bool:
        sizes = self._outbox.sizes()
        return sizes["documents"] + sizes["news"] > 0

    def _tell(self, away: str | None) -> None:
        sizes = self._outbox.sizes()
        lines = [f"{away}; {sizes['documents']} documents and {sizes['news']} news wait"] if away else []
        if sizes["dropped"]:
            lines.append(f"{sizes['dropped']} news were dropped since this agent's state began")
        self._problems.set("publisher", lines)


def _fitting(found: Sequence[Waiting]) -> list[Waiting]:
    batch: list[Waiting] = []
    size = 0
    for news in found:
        size += len(news.detail.encode()) + 200
        if batch and size > MAX_CALL_BYTES:
            break
        batch.append(news)
    return batch
