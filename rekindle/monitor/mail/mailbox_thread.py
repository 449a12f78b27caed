"""The mailbox thread: reads the fence and the requests, writes replies and heartbeats, and keeps the deadlines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from rekindle.monitor.base.run import Run
from rekindle.monitor.base.stacks import capture_stacks
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.mail.boxes import Box, document, mailbox_failed
from rekindle.monitor.mail.requests import Requests, Verdict
from rekindle.protocol.keys import (
    KeyKind,
    doorbell_key,
    fence_key,
    heartbeat_key,
    parse_key,
    reply_key,
    request_key,
    request_prefix,
)
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Fence, Heartbeat, ReplyOutcome
from rekindle.protocol.wire import MAX_STACKS_CHARS, MAX_TEXT_CHARS, MailboxError

RETRY_S = 1.0  # to write a reply; each try of AWS takes seconds
MAX_REPLIES_WAITING = 100

_REFUSALS = {
    Verdict.EXPIRED: "the deadline had passed when the request was read",
    Verdict.NOT_MINE: "the request is for another attempt",
    Verdict.SUPERSEDED: "this attempt was superseded and no longer saves",
}


@dataclass(eq=False)
class Mail:
    """One attempt's traffic with its mailbox, on rank 0 alone. `answer` is for any thread; all I/O is in `turn`.

    position: where the training thread is, for people. is_stuck: the watchdog's verdict on it: silent for longer than
    this phase of the run ever was. may_write: looks whether the run is this process's now, so that what it writes
    counts (`Hold.turn`); raises the box's own errors.
    """

    run: Run
    _: KW_ONLY
    box: Box
    requests: Requests
    heartbeat: Callable[[], Heartbeat]
    position: Callable[[], str]
    is_stuck: Callable[[], bool]
    may_write: Callable[[], bool] = lambda: True
    on_superseded: Callable[[str | None], None]
    on_reply: Callable[[CheckpointReply], None]

    def __post_init__(self) -> None:
        run = self.run
        self._clock, self._trouble, self._config = run.clock, run.trouble, run.config
        self._job_id, self._attempt = run.identity.job_id, run.identity.attempt
        self._replies: deque[CheckpointReply] = deque(maxlen=MAX_REPLIES_WAITING)
        self._poll_at = self._heartbeat_at = self._list_at = run.clock.monotonic()
        self._rung: bytes | None = None  # the doorbell's bytes at the newest listing
        self._has_heartbeat_to_write = True
        self.worker = Worker(
            "mail",
            lambda: self.turn(is_last=self.worker.is_stopping),
            run.trouble,
            is_done=lambda: self.has_sent_all,
        )

    def heartbeat_soon(self) -> None:
        """Write the next heartbeat at once: something happened that should not wait."""
        self._heartbeat_at = self._clock.monotonic()
        self.worker.wake()

    def answer(
        self,
        request: CheckpointRequest,
        outcome: ReplyOutcome,
        why: str,
        *,
        step: int | None = None,
        manifest: str | None = None,
        size_bytes: int | None = None,
        took_s: float | None = None,
        stacks: str | None = None,
    ) -> None:
        """Answer once; a request that was answered already is left alone."""
        if not self.requests.close(request.request_id) and outcome is not ReplyOutcome.REFUSED:
            return
        self._replies.append(
            CheckpointReply(
                request_id=request.request_id,
                job_id=self._job_id,
                attempt=self._attempt,
                outcome=outcome,
                why=why[:MAX_TEXT_CHARS],
                replied_at=self._clock.now(),
                step=step,
                manifest=manifest,
                bytes=size_bytes,
                took_s=took_s,
                stacks=stacks,
            )
        )
        self.worker.wake()

    def lost(self, to: str) -> None:
        """A newer life of this attempt holds the run: it alone answers and writes from now on."""
        self.requests.lost(to)
        self._replies.clear()
        self._has_heartbeat_to_write = False

    def read_fence(self) -> None:
        """Learn from the fence. Raises: the box's own errors."""
        fence = document(self.box, fence_key(), Fence.from_json, "fence", self._trouble)
        if fence is None:
            return
        was_superseded = self.requests.superseded_by is not None
        if self.requests.fenced(fence):
            self.on_superseded(fence.attempt)
            for request in self.requests.owed():
                self.answer(request, ReplyOutcome.REFUSED, _REFUSALS[Verdict.SUPERSEDED])
        elif was_superseded and self.requests.superseded_by is None:
            self.on_superseded(None)

    def turn(self, *, is_last: bool) -> float:
        """Do what is due. Returns seconds until something is due again."""
        now = self._clock.monotonic()
        if now >= self._poll_at or is_last:
            self._poll_at = now + self._config.poll_s
            self._try("reading the mailbox", self._poll)
        self._answer_cannot()
        wrote = self._try("writing a reply", self._write_replies)
        if now >= self._heartbeat_at or is_last:
            self._heartbeat_at = now + self._config.heartbeat_s
            self._try("writing a heartbeat", self._write_heartbeat)
        return self._until_due() if wrote else min(self._until_due(), RETRY_S)

    @property
    def has_written_all(self) -> bool:
        return not self._replies

    @property
    def has_saved_to_tell(self) -> bool:
        """A checkpoint that was asked for is sealed, and that is not answered yet."""
        return any(reply.outcome is ReplyOutcome.SAVED for reply in tuple(self._replies))

    @property
    def has_sent_all(self) -> bool:
        """Replies, and the newest heartbeat too."""
        return not self._replies and not self._has_heartbeat_to_write

    def _until_due(self) -> float:
        now = self._clock.monotonic()
        dues = [self._poll_at - now, self._heartbeat_at - now]
        answer_by = self.requests.next_due()
        if answer_by is not None:
            dues.append(answer_by - now)
        return max(0.0, min(dues))

    def _poll(self) -> None:
        if not self.may_write():
            return
        self.read_fence()
        rung = self.box.get(doorbell_key())  # before the listing: what comes meanwhile rings again
        if rung is not None and rung == self._rung and self._clock.monotonic() < self._list_at:
            return
        self._list_requests()
        self._rung, self._list_at = rung, self._clock.monotonic() + self._config.list_s

    def _list_requests(self) -> None:
        listed: set[str] = set()
        for key in self.box.names(request_prefix()):
            parsed = parse_key(key)
            if parsed is None or parsed.kind is not KeyKind.REQUEST:
                continue
            listed.add(parsed.name)
            if not self.requests.is_closed(parsed.name):
                self._read_request(parsed.name)
        self.requests.forget_closed_but(listed)

    def _read_request(self, request_id: str) -> None:
        if self.box.get(reply_key(request_id)) is not None:
            self.requests.close(request_id)
            return
        raw, age_s = self.box.get_aged(request_key(request_id))
        if raw is None:
            return
        try:
            request = CheckpointRequest.from_json(raw)
        except MailboxError as err:
            self.requests.close(request_id)
            self._trouble.once("bad_request", "A checkpoint request cannot be read (%s); it is ignored", err)
            return
        if request.request_id != request_id:
            self.requests.close(request_id)
            self._trouble.once("bad_request", "A checkpoint request names another id than its key; it is ignored")
            return
        why = _REFUSALS.get(self.requests.offer(request, now=self._clock.monotonic(), age_s=age_s))
        if why is not None:
            self.answer(request, ReplyOutcome.REFUSED, why)

    def _answer_cannot(self) -> None:
        """To what is due; and, while the training thread is judged to be stuck, to all for which no save has begun.

        The service waits for nothing but this answer. A long step, evaluation or save is not stuck before its phase's
        own limit, and a save that has begun is answered for by its end. A thread that moves again serves new requests.
        """
        due = self.requests.overdue(now=self._clock.monotonic())
        if self.is_stuck():
            due = (*due, *(request for request in self.requests.untaken() if request not in due))
        if not due:
            return
        stacks = capture_stacks(limit_chars=MAX_STACKS_CHARS)
        for request in due:
            self.answer(request, ReplyOutcome.CANNOT, self.position(), stacks=stacks)

    def _write_replies(self) -> None:
        while self._replies:
            reply = self._replies[0]
            key, body = reply_key(reply.request_id), reply.to_json()
            # "Something is there" may be our own reply, whose acknowledgement was lost on the way and which the
            # client then sent again.
            if self.box.put_new(key, body) or self.box.get(key) == body:
                self.on_reply(reply)
            self._replies.popleft()

    def _write_heartbeat(self) -> None:
        self._has_heartbeat_to_write = True
        if not self.may_write():
            self._has_heartbeat_to_write = False
            return
        self.box.put(heartbeat_key(self._attempt), self.heartbeat().to_json())
        self._has_heartbeat_to_write = False

    def _try(self, doing: str, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as err:  # whatever the transport does, training continues
            mailbox_failed(self._trouble, self.box, doing, err)
            return False
        return True
