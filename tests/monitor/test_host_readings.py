"""A reading of the host is reported once, when it has lasted; one that fails is unknown."""

from __future__ import annotations

from collections.abc import Iterator

from rekindle.monitor.base.run import SystemClock
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.host_readings import HostReading, HostWatch
from rekindle.protocol.signals import EventType


class Steps(SystemClock):
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at


def reported(*values: float | Exception | None) -> list[tuple[float, str]]:
    """When, and what, a reading of these values reports: one value every 15 s; 0.9 for 60 s is its limit."""
    clock, found = Steps(), list[tuple[float, str]]()
    following: Iterator[float | Exception | None] = iter(values)

    def read() -> float | None:
        value = next(following)
        if isinstance(value, Exception):
            raise value
        return value

    reading = HostReading(
        event=EventType.SAVE_FAILED, read=read, limit=0.9, for_s=60.0, why="{value:.0%} for {minutes:.0f} min"
    )
    watch = HostWatch((reading,), report=lambda _, why: found.append((clock.at, why)), clock=clock, trouble=Trouble())
    for _ in values:
        clock.at += watch.turn()
    return found


def test_what_has_lasted_is_reported_once() -> None:
    assert reported(*[0.95] * 20) == [(60.0, "95% for 1 min")]


def test_what_is_over_before_its_time_is_not_reported() -> None:
    assert reported(0.95, 0.95, 0.95, 0.95, 0.2, 0.95, 0.95, 0.95) == []


def test_what_cannot_be_read_begins_anew() -> None:
    assert reported(0.95, 0.95, 0.95, None, *[0.95] * 5) == [(120.0, "95% for 1 min")]
    assert reported(0.95, OSError("no /proc"), *[0.95] * 5) == [(90.0, "95% for 1 min")]
