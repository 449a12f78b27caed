"""What was sent to a chat channel: one message per Incident, replies under it, and when a storm begins. Pure.

A message that was asked for and has no `ts` may or may not be there: the answer got lost. It is looked for before it is
sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.codec import Record

STORM_AFTER: Final = 10  # so many Incidents of their own within the window; more of them are told together
STORM_WINDOW: Final = timedelta(minutes=5)
MAX_REPLIES: Final = 200  # remembered per message; what comes again after so many others is told again
_REFRESH: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One message. `ts` is Slack's name of it, empty until it is known; `of` the short token of what it says first."""

    asked_at: datetime
    ts: str = ""
    of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestNotice:
    """The newest notice about it, as the message shows it."""

    title: str
    text: str
    at: datetime
    paste: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread(Record):
    """A message with its replies.

    `key` is the Incident's id, or names a digest or a notice that is about no Incident. `conversation` is where the
    message stands, which a later change of the settings does not move. `shown` is the version of the Incident that the
    message shows, `shown_at` when that was read. `replies` are notices in the thread, by their short token. `digest` is
    the digest that tells of this Incident instead.
    """

    channel: str
    key: str
    conversation: str = ""
    root: Post | None = None
    shown: int = -1
    shown_at: datetime | None = None
    latest: LatestNotice | None = None
    replies: tuple[tuple[str, Post], ...] = ()
    digest: str = ""

    def posted(self, token: str) -> Post | None:
        """The reply for a notice, None where it was never asked for."""
        return dict(self.replies).get(token)

    def with_reply(self, token: str, post: Post | None) -> Thread:
        """With this reply on record, or (None) without it."""
        others = tuple(item for item in self.replies if item[0] != token)
        added = () if post is None else ((token, post),)
        return replace(self, replies=(*others, *added)[-MAX_REPLIES:])


@dataclass(frozen=True, slots=True, kw_only=True)
class StormState(Record):
    """How many Incidents a channel has begun to tell of lately. `version` fences every change.

    `starts` are those that got a message of their own. `digest` is the running storm's, `last_at` when it last grew.
    """

    version: int = 0
    starts: tuple[datetime, ...] = ()
    digest: str = ""
    last_at: datetime | None = None

    def admit(self, *, now: datetime) -> tuple[StormState, str]:
        """Take one more Incident in: what is known then, and the digest that tells of it, empty for none.

        A storm lasts until the window has passed without a new Incident.
        """
        if self.digest and self.last_at is not None and now - self.last_at < STORM_WINDOW:
            return (self if now - self.last_at < _REFRESH else replace(self, last_at=now)), self.digest
        starts = tuple(at for at in self.starts if now - at < STORM_WINDOW)
        if len(starts) < STORM_AFTER:
            return replace(self, starts=(*starts, now), digest="", last_at=None), ""
        digest = f"digest-{now:%Y%m%dT%H%M%S}"
        return replace(self, starts=starts, digest=digest, last_at=now), digest
