"""One delivery's turn at a thread: taken under a lease, kept, given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
from chalicelib.channels.channel import RetryLater
from chalicelib.channels.slack.web_api import OutcomeUnknown
from chalicelib.domain.model.errors import Retryable, VersionConflict
from chalicelib.domain.notices.threads import Thread
from chalicelib.ports.clock import Clock

LEASE: Final = timedelta(seconds=90)  # longer than a delivery may take, and than Slack's history lags behind a post


class ThreadDelivery:
    """One delivery's hold on a thread: every change of it is written down under the same fence."""

    def __init__(self, threads: DynamoChatThreads, clock: Clock, channel: str, key: str) -> None:
        self._threads, self._clock = threads, clock
        now = clock.now()
        self._until = now + LEASE
        self.thread, self._fence = threads.take(channel, key, now=now, until=self._until)

    def keep(self, thread: Thread, *, release: bool = False) -> None:
        """Write it down."""
        self.thread = thread
        self._threads.keep(thread, fence=self._fence, now=self._clock.now(), release=release)

    def release(self) -> None:
        """Let the next one at it."""
        self.keep(self.thread, release=True)

    def must_last(self, timeout: timedelta) -> None:
        """Nothing is sent that could arrive after the lease has run out: another delivery may be sending then."""
        if self._clock.now() + timeout > self._until:
            raise RetryLater("the delivery took too long", retry_after_s=LEASE.total_seconds())


@contextmanager
def released_at_exit(visit: ThreadDelivery) -> Iterator[None]:
    """Gives the thread back at the end of the block, but not while a message may still be on its way."""
    try:
        yield
    except (OutcomeUnknown, VersionConflict):
        raise  # the lease is to run out; or another delivery has it
    except BaseException:
        with suppress(Retryable):  # the first error is the one to tell
            visit.release()
        raise
    visit.release()
