"""The channels document: which channels notices go to (docs/notifications.md). It is `/<stage>/channels` in Parameter
Store.

A document names channels and routes. It never holds a secret, only the names of secrets: fields that end in `_secret`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar, cast

from chalicelib.domain.model.codec import read
from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.model.urgency import Severity
from rekindle.protocol.bounds import Items, Text, Via, check_printable
from rekindle.protocol.wire import MailboxError

MAX_CHANNELS: Final = 32
MAX_ROUTES: Final = 64
# Of a channel, a source or a secret: a part of a parameter's name.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
Name = Annotated[str, Text(64, pattern=NAME.pattern, problem=f"must have the form {NAME.pattern}")]
Line = Annotated[str, Text(2048, least=1, check=check_printable)]

_Entry = TypeVar("_Entry")


class ChannelKind(StrEnum):
    """What a channel speaks to."""

    WEBHOOK = "webhook"  # signed CloudEvents over HTTPS
    SLACK = "slack"
    APPRISE = "apprise"  # PagerDuty, Opsgenie, Teams, e-mail and all other services that Apprise supports


class NoticeType(StrEnum):
    """What a channel can be sent; the values of ports.NoticeKind."""

    NEWS = "news"
    APPROVAL = "approval"
    CHANGE = "change"


class Day(StrEnum):
    """Days of the week, Monday first as `datetime.weekday()` counts them."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    """What every channel has. `wants`: the types of notices that it gets. `name`: its key in the document."""

    name: Name
    kind: ChannelKind
    wants: tuple[NoticeType, ...] = (NoticeType.NEWS, NoticeType.APPROVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig(_Config):
    """`private`: its address may be a private one. `older_signing_secret`: signs as well while a secret is replaced."""

    url: Line
    signing_secret: Name
    older_signing_secret: Name = ""
    private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackConfig(_Config):
    """`channel` is Slack's own id of a channel (C…); the app's token and signing secret are secrets (docs/slack.md).

    These may press its buttons: `users`, members of `groups`, everyone in `channels`. `console_url`: where the user
    serves a console, if anywhere.
    """

    wants: tuple[NoticeType, ...] = (NoticeType.NEWS, NoticeType.APPROVAL, NoticeType.CHANGE)
    channel: Line
    token_secret: Name
    signing_secret: Name = ""
    api_url: Line = ""
    console_url: Line = ""
    users: tuple[Line, ...] = ()
    groups: tuple[Line, ...] = ()
    channels: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseConfig(_Config):
    """The whole address is a secret: Apprise has tokens and passwords in it."""

    url_secret: Name


ChannelConfig = WebhookConfig | SlackConfig | AppriseConfig
_CONFIGS: Final[Mapping[str, type[ChannelConfig]]] = {
    ChannelKind.WEBHOOK: WebhookConfig,
    ChannelKind.SLACK: SlackConfig,
    ChannelKind.APPRISE: AppriseConfig,
}


def _clock_time(value: time) -> str:
    return value.isoformat("minutes")


_CLOCK: Final = Text(5, pattern="([01][0-9]|2[0-3]):([0-5][0-9])", problem="must be a time of day such as 08:30")
_ZONE: Final = Text(
    pattern="[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}",
    problem="is not the name of a time zone, such as Europe/Zurich",
)
ClockTime = Annotated[time, Via(Annotated[str, _CLOCK], read=time.fromisoformat, write=_clock_time)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """A span of the day in a time zone's own clock. One that ends before it starts goes over midnight.

    `days` are those on which the span begins.
    """

    zone: Annotated[str, _ZONE] = "UTC"
    start: ClockTime
    end: ClockTime
    days: Annotated[tuple[Day, ...], Items(least=1)] = tuple(Day)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Notices that match every field go to the channels `to`. Empty `jobs`, `clusters` and `notices` match all.

    `jobs` and `clusters` are patterns with * and ?. `outside`: the route holds outside `hours` instead.
    """

    to: Annotated[tuple[Line, ...], Items(least=1)]
    severity: Severity = Severity.INFO
    jobs: tuple[Line, ...] = ()
    clusters: tuple[Line, ...] = ()
    notices: tuple[NoticeType, ...] = ()
    hours: Hours | None = None
    outside: bool = False

    def check_fields(self) -> None:
        """Raises: MailboxError where `outside` is set without `hours`."""
        if self.outside and self.hours is None:
            raise MailboxError("hours", "missing, beside `outside`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """A whole document, as read. `problems`: what is wrong with it. `broken`: channels that cannot be used, by name."""

    channels: Mapping[str, ChannelConfig] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    problems: tuple[InvalidSettings, ...] = ()
    broken: frozenset[str] = frozenset()

    @classmethod
    def from_wire(cls, wire: object) -> Channels:
        """Read a document in which nothing is wrong: the first of the problems of `usable` is raised.

        Raises:
            InvalidSettings: names the field that is missing, wrong or not known.
        """
        found = cls.usable(wire)
        if found.problems:
            raise found.problems[0]
        return found

    @classmethod
    def usable(cls, wire: object) -> Channels:
        """The valid part of a document: one wrong channel or route does not disable the others.

        Raises:
            InvalidSettings: it is not a channels document at all.
        """
        document = cast("_Document", read(_Document, wire, error=_of_the_document))
        given = document.channels
        problems: list[InvalidSettings] = []
        channels: dict[str, ChannelConfig] = {}
        routes: list[Route] = []
        for name, channel in given.items():
            try:
                channels[name] = _channel(name, channel)
            except InvalidSettings as err:
                problems.append(err)
        for number, route in enumerate(document.routes):
            try:
                routes.append(_route(route, f"routes.{number}", given))
            except InvalidSettings as err:
                problems.append(err)
        return cls(
            channels=channels,
            routes=tuple(routes),
            problems=tuple(problems),
            broken=frozenset(given) - frozenset(channels),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """A document as it was given: its channels and routes are read one by one, so that a wrong one spoils no other."""

    channels: Annotated[Mapping[str, Any], Items(MAX_CHANNELS)] = field(default_factory=dict)
    routes: Annotated[tuple[Any, ...], Items(MAX_ROUTES)] = ()


def _of_the_document(at: str, problem: str) -> InvalidSettings:
    return InvalidSettings(at or "channels document", problem)


def _channel(name: str, wire: object) -> ChannelConfig:
    kind = wire.get("kind") if isinstance(wire, Mapping) else None
    config = _CONFIGS.get(kind, WebhookConfig) if isinstance(kind, str) else WebhookConfig
    return entry(config, name, wire, at=f"channels.{name[:80]}")


def entry(kind: type[_Entry], name: str, wire: object, *, at: str) -> _Entry:
    """An entry of a document whose keys are names; `kind` holds its own name, which is nowhere else in the document.

    Raises:
        InvalidSettings: names the field, below `at`, that is missing, wrong or not known.
    """
    if not NAME.fullmatch(name):
        raise InvalidSettings(at, f"must have the form {NAME.pattern}")
    body = read(Mapping[str, Any], wire, error=InvalidSettings, at=at)
    if "name" in body:
        raise InvalidSettings(f"{at}.name", "is not known to this version")
    return cast("_Entry", read(kind, {**body, "name": name}, error=InvalidSettings, at=at))


def _route(wire: object, at: str, channels: Mapping[str, object]) -> Route:
    route = cast("Route", read(Route, wire, error=InvalidSettings, at=at))
    for name in route.to:
        if name not in channels:
            raise InvalidSettings(f"{at}.to", f"{name[:80]!r} is not one of the channels")
    return route
