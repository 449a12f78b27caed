"""Whom notices go to, as data: the channels document, `/<stage>/channels` in Parameter Store (docs/notifications.md).

A document names channels and routes. It never holds a secret, only the names of secrets: fields that end in `_secret`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from enum import StrEnum
from typing import Annotated, Final, cast

from chalicelib.domain.model.codec import read
from chalicelib.domain.model.errors import InvalidSettings
from chalicelib.domain.model.urgency import Severity
from chalicelib.domain.policy.readers import (
    ENDS_SECRET,
    MAX_TEXT_CHARS,
    a_flag,
    a_list,
    a_name,
    a_text,
    a_word,
    an_object,
    only,
    texts,
    words,
)
from rekindle.protocol.bounds import Items, Text, Via, check_printable
from rekindle.protocol.wire import MailboxError

MAX_CHANNELS: Final = 32
MAX_ROUTES: Final = 64


class ChannelKind(StrEnum):
    """How a channel speaks."""

    WEBHOOK = "webhook"  # signed CloudEvents over HTTPS
    SLACK = "slack"
    OTLP = "otlp"  # the trace of each Incident that has closed, to a receiver of OpenTelemetry
    APPRISE = "apprise"  # PagerDuty, Opsgenie, Teams, e-mail and whatever else Apprise has a word for


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
class Fields:
    """The fields of one kind of channel: `True` where one is needed. `wants` is what it gets unless it says.

    `may_choose`: it may say so.
    """

    texts: Mapping[str, bool] = field(default_factory=dict)
    lists: Mapping[str, bool] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    wants: tuple[NoticeType, ...] = (NoticeType.NEWS, NoticeType.APPROVAL)
    may_choose: bool = True


KINDS: Final[Mapping[ChannelKind, Fields]] = {
    ChannelKind.WEBHOOK: Fields(
        texts={"url": True, "signing_secret": True, "older_signing_secret": False}, flags={"private": False}
    ),
    # `channel` is Slack's own id of a channel (C…); the app's token and signing secret are secrets (docs/slack.md).
    ChannelKind.SLACK: Fields(
        texts={"channel": True, "token_secret": True, "signing_secret": False, "api_url": False, "console_url": False},
        lists={"users": False, "groups": False, "channels": False},
        wants=(NoticeType.NEWS, NoticeType.APPROVAL, NoticeType.CHANGE),
    ),
    # `headers_secret` names a secret of the form of OTEL_EXPORTER_OTLP_HEADERS. An Incident's end is a change.
    ChannelKind.OTLP: Fields(
        texts={"url": True, "headers_secret": False},
        flags={"private": False},
        wants=(NoticeType.CHANGE,),
        may_choose=False,
    ),
    # The whole address is the secret: with Apprise tokens and passwords are a part of it.
    ChannelKind.APPRISE: Fields(texts={"url_secret": True}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """One channel. `texts`, `lists` and `flags` hold the fields of its kind (KINDS) that were given."""

    name: str
    kind: ChannelKind
    wants: tuple[NoticeType, ...]
    texts: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A text field, empty where it was not given."""
        return self.texts.get(name, "")


def _clock_time(value: time) -> str:
    return value.isoformat("minutes")


_CLOCK: Final = Text(5, pattern="([01][0-9]|2[0-3]):([0-5][0-9])", problem="must be a time of day such as 08:30")
_ZONE: Final = Text(
    pattern="[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}",
    problem="is not the name of a time zone, such as Europe/Zurich",
)
ClockTime = Annotated[time, Via(Annotated[str, _CLOCK], read=time.fromisoformat, write=_clock_time)]
Line = Annotated[str, Text(MAX_TEXT_CHARS, least=1, check=check_printable)]


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
    """Notices that fit all of it go to the channels `to`. Empty `jobs`, `clusters` and `notices` fit everything.

    `jobs` and `clusters` are patterns with * and ?. `outside` turns `hours` round: the route holds outside of them.
    """

    to: Annotated[tuple[Line, ...], Items(least=1)]
    severity: Severity = Severity.INFO
    jobs: tuple[Line, ...] = ()
    clusters: tuple[Line, ...] = ()
    notices: tuple[NoticeType, ...] = ()
    hours: Hours | None = None
    outside: bool = False

    def check_fields(self) -> None:
        """Raises: MailboxError for a route outside of no hours."""
        if self.outside and self.hours is None:
            raise MailboxError("hours", "missing, beside `outside`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The whole document. `problems` are what is wrong with it, `broken` the names of channels that cannot be used."""

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
            InvalidSettings: it is no such document at all.
        """
        body = an_object(wire, "channels document")
        only(body, "", ("channels", "routes"))
        given = an_object(body.get("channels", {}), "channels")
        if len(given) > MAX_CHANNELS:
            raise InvalidSettings("channels", f"at most {MAX_CHANNELS}")
        listed = a_list(body.get("routes", []), "routes")
        if len(listed) > MAX_ROUTES:
            raise InvalidSettings("routes", f"at most {MAX_ROUTES}")
        problems: list[InvalidSettings] = []
        channels: dict[str, ChannelConfig] = {}
        routes: list[Route] = []
        for name, channel in given.items():
            try:
                channels[name] = _channel(name, channel)
            except InvalidSettings as err:
                problems.append(err)
        for number, route in enumerate(listed):
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


def _channel(name: str, wire: object) -> ChannelConfig:
    at = f"channels.{name[:80]}"
    a_name(name, at)
    body = an_object(wire, at)
    kind = a_word(body.get("kind"), f"{at}.kind", ChannelKind)
    fields = KINDS[kind]
    choices = ("wants",) if fields.may_choose else ()
    only(body, at, ("kind", *choices, *fields.texts, *fields.lists, *fields.flags))
    for known in (fields.texts, fields.lists, fields.flags):
        for needed in (key for key, is_needed in known.items() if is_needed and key not in body):
            raise InvalidSettings(f"{at}.{needed}", "missing")
    given = {key: a_text(body[key], f"{at}.{key}") for key in fields.texts if key in body}
    for key, value in given.items():
        if key.endswith(ENDS_SECRET):
            a_name(value, f"{at}.{key}")
    wants = words(body["wants"], f"{at}.wants", NoticeType) if "wants" in body else fields.wants
    return ChannelConfig(
        name=name,
        kind=kind,
        wants=wants,
        texts=given,
        lists={key: texts(body[key], f"{at}.{key}") for key in fields.lists if key in body},
        flags={key: a_flag(body[key], f"{at}.{key}") for key in fields.flags if key in body},
    )


def _route(wire: object, at: str, channels: Mapping[str, object]) -> Route:
    route = cast("Route", read(Route, wire, error=InvalidSettings, at=at))
    for name in route.to:
        if name not in channels:
            raise InvalidSettings(f"{at}.to", f"{name[:80]!r} is not one of the channels")
    return route
