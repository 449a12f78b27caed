"""The requests this attempt still owes an answer, and whether it may save at all. No I/O; the clock is an argument.

Times are seconds of this process's monotonic clock. No two hosts' clocks are compared: a request carries a duration.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from rekindle.compat import StrEnum
from rekindle.monitor.base.run import Identity
from rekindle.protocol.mailbox import CheckpointRequest, Fence

# "Cannot" leaves this much before the deadline: the service stops waiting then, and how long a request lay unread is
# not known where the store does not tell its age. A tenth of short deadlines.
ANSWER_AHEAD_S = 10.0


class Verdict(StrEnum):
    """What to do with a request that was just read."""

    TAKEN = "taken"
    KNOWN = "known"
    IGNORED = "ignored"
    EXPIRED = "expired"
    NOT_MINE = "not_mine"
    SUPERSEDED = "superseded"


class Requests:
    """Shared by the mailbox thread (offers, overdue) and the training thread (take). Each request is answered once."""

    def __init__(self, identity: Identity) -> None:
        self._job_id, self._attempt = identity.job_id, identity.attempt
        self._attempt_number = identity.attempt_number
        self._lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
        self._waiting: dict[str, tuple[CheckpointRequest, float]] = {}  # each with when it is to be answered
        self._taken: set[str] = set()  # of those that wait: a save that has begun will answer them
        self._closed: set[str] = set()
        self._fence: Fence | None = None
        self._is_lost = False
        self.superseded_by: str | None = None
        self.has_wish = False  # read on the training thread at each step, without the lock

    def fenced(self, fence: Fence | None) -> bool:
        """Take note of the fence. True when this is the moment at which the attempt learns that it was superseded."""
        if fence is None or fence.job_id != self._job_id or self._is_lost:
            return False
        with self._lock:
            self._fence = fence
            if fence.admits(self._attempt, self._attempt_number):
                # Fences never go back: one that names us after all has adopted us, who were made by hand.
                self.superseded_by = None
                return False
            is_news = self.superseded_by is None
            self.superseded_by = fence.attempt
            self.has_wish = False
            return is_news

    def lost(self, to: str) -> None:
        """A newer life of this attempt holds the run, and answers all of its requests."""
        with self._lock:
            self._is_lost, self.superseded_by, self.has_wish = True, to, False
            self._closed.update(self._waiting)
            self._waiting.clear()

    def is_closed(self, request_id: str) -> bool:
        with self._lock:
            return request_id in self._closed or request_id in self._waiting

    def offer(self, request: CheckpointRequest, *, now: float, age_s: float = 0.0) -> Verdict:
        """What to do with a request. Only EXPIRED, NOT_MINE and SUPERSEDED are to be answered now: with "refused".

        age_s: how long the store has had it, by the store's own clock; 0 where that is not known.
        A request to another attempt is refused only by the attempt that the fence names (or where there is no fence):
        a zombie must not answer in its successor's name. An expired one to another attempt is ignored.
        """
        with self._lock:
            if request.request_id in self._closed or request.request_id in self._waiting:
                return Verdict.KNOWN
            left_s = request.deadline_s - age_s
            verdict = self._judge(request, is_expired=left_s <= 0)
            if verdict is Verdict.TAKEN:
                self._waiting[request.request_id] = (request, now + left_s - min(ANSWER_AHEAD_S, left_s / 10))
                self.has_wish = True
            else:
                self._closed.add(request.request_id)
            return verdict

    def _judge(self, request: CheckpointRequest, *, is_expired: bool) -> Verdict:
        if request.job_id != self._job_id:
            return Verdict.IGNORED
        if request.attempt != self._attempt:
            speaks_for_job = self._fence is None or self._fence.attempt == self._attempt
            return Verdict.NOT_MINE if speaks_for_job and not is_expired else Verdict.IGNORED
        if self.superseded_by is not None:
            return Verdict.SUPERSEDED
        return Verdict.EXPIRED if is_expired else Verdict.TAKEN

    def take(self) -> tuple[CheckpointRequest, ...]:
        """The requests that a save which starts now will answer. They stay owed until `close`."""
        with self._lock:
            self.has_wish = False
            self._taken.update(self._waiting)
            return tuple(request for request, _ in self._waiting.values())

    def close(self, request_id: str) -> bool:
        """Claim the right to answer. False where someone already did."""
        with self._lock:
            if request_id in self._closed:
                return False
            self._closed.add(request_id)
            self._waiting.pop(request_id, None)
            self._taken.discard(request_id)
            self.has_wish = self.has_wish and bool(self._waiting)
            return True

    def owed(self) -> tuple[CheckpointRequest, ...]:
        with self._lock:
            return tuple(request for request, _ in self._waiting.values())

    def untaken(self) -> tuple[CheckpointRequest, ...]:
        """Those for which no save has begun: only the training thread could begin one."""
        with self._lock:
            return tuple(request for name, (request, _) in self._waiting.items() if name not in self._taken)

    def overdue(self, *, now: float) -> tuple[CheckpointRequest, ...]:
        with self._lock:
            return tuple(request for request, answer_by in self._waiting.values() if now >= answer_by)

    def next_due(self) -> float | None:
        with self._lock:
            return min((answer_by for _, answer_by in self._waiting.values()), default=None)

    def forget_closed_but(self, still_listed: Collection[str]) -> None:
        """Keep the memory of answered requests as small as the folder of requests."""
        with self._lock:
            self._closed.intersection_update(still_listed)
