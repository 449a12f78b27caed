"""What was sent to a chat channel: one message per Incident, replies under it, and when a storm begins. Pure.

A message that was asked for and has no `ts` may or may not be there: the answer got lost. It is looked for before it is
sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

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
class Thread:
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
    said: LatestNotice | None = None
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

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "channel": self.channel,
            "key": self.key,
            "conversation": self.conversation,
            "root": _post_to_wire(self.root),
            "shown": self.shown,
            "shown_at": self.shown_at.isoformat() if self.shown_at else None,
            "said": _said_to_wire(self.said),
            "replies": [[token, _post_to_wire(post)] for token, post in self.replies],
            "digest": self.digest,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Thread:
        """Inverse of `to_wire`."""
        replies = ((token, _post_from_wire(post)) for token, post in wire["replies"])
        return cls(
            channel=wire["channel"],
            key=wire["key"],
            conversation=wire["conversation"],
            root=_post_from_wire(wire["root"]),
            shown=int(wire["shown"]),
            shown_at=datetime.fromisoformat(wire["shown_at"]) if wire["shown_at"] else None,
            said=_said_from_wire(wire["said"]),
            replies=tuple((token, post) for token, post in replies if post is not None),
            digest=wire["digest"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StormState:
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

    def to_wire(self) -> dict[str, Any]:
        """JSON form, without the version."""
        return {
            "starts": [at.isoformat() for at in self.starts],
            "digest": self.digest,
            "last_at": self.last_at.isoformat() if self.last_at else None,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], *, version: int) -> StormState:
        """Inverse of `to_wire`."""
        return cls(
            version=version,
            starts=tuple(datetime.fromisoformat(at) for at in wire["starts"]),
            digest=wire["digest"],
            last_at=datetime.fromisoformat(wire["last_at"]) if wire["last_at"] else None,
        )


def _post_to_wire(post: Post | None) -> dict[str, Any] | None:
    return None if post is None else {"asked_at": post.asked_at.isoformat(), "ts": post.ts, "of": post.of}


def _post_from_wire(wire: Mapping[str, Any] | None) -> Post | None:
    return (
        None if wire is None else Post(asked_at=datetime.fromisoformat(wire["asked_at"]), ts=wire["ts"], of=wire["of"])
    )


def _said_to_wire(said: LatestNotice | None) -> dict[str, Any] | None:
    if said is None:
        return None
    return {
        "title": said.title,
        "text": said.text,
        "at": said.at.isoformat(),
        "paste": [list(item) for item in said.paste],
    }


def _said_from_wire(wire: Mapping[str, Any] | None) -> LatestNotice | None:
    if wire is None:
        return None
    return LatestNotice(
        title=wire["title"],
        text=wire["text"],
        at=datetime.fromisoformat(wire["at"]),
        paste=tuple((label, what) for label, what in wire["paste"]),
    )
