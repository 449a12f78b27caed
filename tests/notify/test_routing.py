"""Which channel gets what, when; and documents that say it wrongly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from chalicelib.channels.bus import detail_of
from chalicelib.channels.channel import read_notice
from chalicelib.channels.delivery.fan_out import routed
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.errors import InvalidSettings, MalformedEvent
from chalicelib.domain.notices.channels import Channels
from chalicelib.ports.notices import Notice, NoticeKind
from tests.canary import WEBHOOK_SECRET
from tests.notify.made import notice, webhook

# Wednesday, 11:30 in Zurich (summer time), 09:30 UTC.
WEDNESDAY = datetime(2026, 7, 15, 9, 30, tzinfo=UTC)
OFFICE = {"zone": "Europe/Zurich", "start": "08:00", "end": "18:00", "days": ["mon", "tue", "wed", "thu", "fri"]}


def to(route: dict[str, Any], *, now: datetime = WEDNESDAY, **changes: Any) -> bool:
    document = {"channels": {"a": webhook("https://example.com/")}, "routes": [{"to": ["a"], **route}]}
    return routed(Channels.from_wire(document), notice(**changes), now=now) == ("a",)


@pytest.mark.parametrize(
    ("least", "severity", "goes"),
    [
        ("info", Severity.INFO, True),
        ("warning", Severity.INFO, False),
        ("warning", Severity.WARNING, True),
        ("warning", Severity.PAGE, True),
        ("page", Severity.WARNING, False),
        ("page", Severity.PAGE, True),
    ],
)
def test_a_route_takes_its_severity_and_what_is_graver(least: str, severity: Severity, goes: bool) -> None:
    assert to({"severity": least}, severity=severity) is goes


@pytest.mark.parametrize(
    ("jobs", "job_id", "goes"),
    [
        (["lm-*"], "lm-7b", True),
        (["LM-*"], "lm-7b", False),
        (["vit-*", "lm-7?"], "lm-7b", True),
        (["vit-*"], "lm-7b", False),
        (["*"], None, False),
        ([], None, True),
    ],
)
def test_a_route_takes_the_jobs_that_it_names(jobs: list[str], job_id: str | None, goes: bool) -> None:
    assert to({"jobs": jobs}, job_id=job_id) is goes


def test_a_route_takes_the_clusters_that_it_names() -> None:
    assert to({"clusters": ["pre*"]})
    assert not to({"clusters": ["pre*"]}, cluster="")


@pytest.mark.parametrize(
    ("now", "inside"),
    [
        (WEDNESDAY, True),
        (datetime(2026, 7, 15, 5, 59, tzinfo=UTC), False),  # 07:59 in summer
        (datetime(2026, 7, 15, 6, 0, tzinfo=UTC), True),
        (datetime(2026, 1, 14, 6, 30, tzinfo=UTC), False),  # 07:30 in winter
        (datetime(2026, 7, 15, 16, 0, tzinfo=UTC), False),  # the end is not in it
        (datetime(2026, 7, 18, 9, 30, tzinfo=UTC), False),  # Saturday
    ],
)
def test_hours_are_those_of_their_own_zone_winter_and_summer(now: datetime, inside: bool) -> None:
    assert to({"hours": OFFICE}, now=now) is inside
    assert to({"hours": OFFICE, "outside": True}, now=now) is not inside


@pytest.mark.parametrize(
    ("now", "inside"),
    [
        (datetime(2026, 7, 17, 21, 0, tzinfo=UTC), True),  # Friday night
        (datetime(2026, 7, 18, 5, 59, tzinfo=UTC), True),  # it began on Friday
        (datetime(2026, 7, 18, 6, 0, tzinfo=UTC), False),
        (datetime(2026, 7, 18, 21, 0, tzinfo=UTC), False),  # Saturday night is not named
    ],
)
def test_a_night_belongs_to_the_day_on_which_it_begins(now: datetime, inside: bool) -> None:
    assert to({"hours": {"start": "20:00", "end": "06:00", "days": ["fri"]}}, now=now) is inside


def test_a_whole_day_is_a_span_that_ends_where_it_begins() -> None:
    assert to({"hours": {"start": "00:00", "end": "00:00", "days": ["wed"]}})
    assert not to({"hours": {"start": "00:00", "end": "00:00", "days": ["thu"]}})


def test_a_zone_that_nobody_knows_reads_as_utc_and_keeps_nobody_from_being_told() -> None:
    assert to({"hours": {"zone": "Mars/Olympus", "start": "09:00", "end": "10:00"}})


def test_all_routes_that_fit_count_and_no_channel_is_told_twice() -> None:
    document = {
        "channels": {
            "b": webhook("https://example.com/"),
            "a": webhook("https://example.com/"),
            "c": webhook("https://x.org/"),
        },
        "routes": [{"to": ["a", "b"]}, {"to": ["a"], "severity": "page"}, {"to": ["c"], "jobs": ["none"]}],
    }
    assert routed(Channels.from_wire(document), notice(), now=WEDNESDAY) == ("b", "a")


def test_a_change_keeps_shown_what_was_shown_whatever_the_hour() -> None:
    document = {
        "channels": {
            "board": webhook("https://example.com/", wants=["change"]),
            "news": webhook("https://example.com/"),
        },
        "routes": [{"to": ["board", "news"], "severity": "page", "hours": OFFICE, "jobs": ["lm-*"]}],
    }
    change = notice(kind=NoticeKind.CHANGE, severity=Severity.INFO)
    night = datetime(2026, 7, 15, 23, 0, tzinfo=UTC)
    assert routed(Channels.from_wire(document), change, now=night) == ("board",)
    assert routed(Channels.from_wire(document), notice(kind=NoticeKind.CHANGE, job_id="vit"), now=night) == ()


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "channels document"),
        ({"chanels": {}}, "chanels"),
        ({"channels": {"a b": {}}}, "channels.a b"),
        ({"channels": {"a": {"kind": "pigeon"}}}, "channels.a.kind"),
        ({"channels": {"a": {"kind": "webhook", "url": "https://x"}}}, "channels.a.signing_secret"),
        ({"channels": {"a": webhook("https://x", signing_secret="../x")}}, "channels.a.signing_secret"),
        ({"channels": {"a": webhook("https://x", private="yes")}}, "channels.a.private"),
        ({"channels": {"a": webhook("https://x", wants=["gossip"])}}, "channels.a.wants.0"),
        ({"channels": {"a": webhook("https://x\n")}}, "channels.a.url"),
        ({"channels": {"a": webhook("https://x", token="x")}}, "channels.a.token"),
        ({"routes": [{"to": ["b"]}]}, "routes.0.to"),
        ({"routes": [{}]}, "routes.0.to"),
        ({"routes": {}}, "routes"),
        ({"channels": {"a": webhook("https://x")}, "routes": [{"to": ["a"], "outside": True}]}, "routes.0.hours"),
        (
            {"channels": {"a": webhook("https://x")}, "routes": [{"to": ["a"], "hours": {"start": "8:00"}}]},
            "routes.0.hours.end",
        ),
        (
            {"channels": {"a": webhook("https://x")}, "routes": [{"to": ["a"], "hours": OFFICE | {"zone": "../etc"}}]},
            "routes.0.hours.zone",
        ),
        ({"channels": {f"c{n}": webhook("https://x") for n in range(33)}}, "channels"),
    ],
)
def test_a_wrong_document_names_the_field(document: Any, field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        Channels.from_wire(document)
    assert caught.value.field in (field, field.replace("hours.end", "hours.start"))


def test_a_secret_in_place_of_a_secret_s_name_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidSettings) as caught:
        Channels.from_wire({"channels": {"a": webhook("https://x", signing_secret=WEBHOOK_SECRET + "!")}})
    assert WEBHOOK_SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "one",
    [
        notice(),
        notice(job_id=None, incident_id="", paste=(), kind=NoticeKind.APPROVAL, approval_id="a-1"),
        notice(title='"quoted"\n☃', text="\x00"),
        notice(sequence="0001.000003.001"),
    ],
)
def test_a_notice_travels_unchanged(one: Notice) -> None:
    assert read_notice(detail_of(one)) == one


@pytest.mark.parametrize(
    "detail", [{}, {"data": []}, {"data": {"severity": "loud"}}, {"data": {"severity": "page"}, "time": "yesterday"}]
)
def test_what_is_no_notice_is_refused(detail: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent):
        read_notice(detail)
