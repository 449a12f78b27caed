"""The agent's clock: the only place where it asks what time it is.

`now` is the Date of AWS's last answer, carried on by durations: a head node's clock may be set by hours, and its
machine may stand still. Where the host's two clocks have passed different times since that answer, nothing tells which
of both happened, and no order is worked on until AWS answers again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

from rekindle.compat import UTC

TOLERATED: Final = timedelta(seconds=5)  # a Date has whole seconds, and its answer was under way
_SENT: Final = "rekindle_sent"  # in the context of botocore's request
REPORTED_ABOVE: Final = timedelta(seconds=60)


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC, for the wire and for what outlives this process."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations. They may stand still while a machine is suspended."""
        ...

    def wall(self) -> datetime:
        """The host's own clock as it is: Slurm's times are by it, and people set it."""
        ...

    def is_sure(self) -> bool:
        """False: `wall` and `monotonic` have passed different times since `now` was last confirmed. The host's clock
        was set, or the machine was suspended: which of the two is known once something outside it answers."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> datetime:
        return self.now()

    def is_sure(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _ClockReading:
    """One moment by three clocks."""

    at: datetime  # AWS's
    wall: datetime
    monotonic: float


class AwsClock:
    """AWS's time: the Date of the last answer of the clients that it follows, and what has passed since by durations.

    Orders expire within a minute, and heartbeats are judged by their age: a head node whose clock is off by more would
    refuse every order, or carry out one whose reason is long gone. So no setting of the host's clock moves it. Source:
    RFC 9110, field Date.
    """

    def __init__(self, base: Clock | None = None) -> None:
        self._base = base or SystemClock()
        self._set: _ClockReading | None = None

    def now(self) -> datetime:
        last = self._set
        return self._base.now() if last is None else last.at + self._since(last)

    def monotonic(self) -> float:
        return self._base.monotonic()

    def wall(self) -> datetime:
        return self._base.now()

    def is_sure(self) -> bool:
        last = self._set
        return last is None or abs(self._base.now() - last.wall - self._since(last)) <= TOLERATED

    def follow(self, client: Any) -> None:
        """Listen to what this boto3 client is answered."""
        client.meta.events.register("before-call", self._asking)
        client.meta.events.register("after-call", self._answered)

    def problems(self) -> tuple[str, ...]:
        """One line where the host's clock is off by a minute or more: Slurm's own times are as far off."""
        last = self._set
        offset = last.at + self._since(last) - self._base.now() if last is not None else timedelta(0)
        if abs(offset) < REPORTED_ABOVE:
            return ()
        way = "slow" if offset > timedelta(0) else "fast"
        seconds = abs(offset).total_seconds()
        return (f"this host's clock is {seconds:.0f} s {way} against AWS's: set it by chrony",)

    def _since(self, last: _ClockReading) -> timedelta:
        return timedelta(seconds=self._base.monotonic() - last.monotonic)

    def _asking(self, context: dict[str, Any], **_: Any) -> None:
        """botocore's event before-call."""
        context[_SENT] = _ClockReading(self.now(), self._base.now(), self._base.monotonic())

    def _answered(self, http_response: Any, context: Mapping[str, Any] | None = None, **_: Any) -> None:
        """botocore's event after-call. An answer during which the two clocks have passed different times may have been
        written before the machine was suspended: it sets nothing."""
        sent = (context or {}).get(_SENT)
        wall = self._base.now()
        if isinstance(sent, _ClockReading) and abs(wall - sent.wall - self._since(sent)) > TOLERATED:
            return
        try:
            date = parsedate_to_datetime(http_response.headers["Date"])
            is_right = abs(date - wall) <= TOLERATED
        except (AttributeError, KeyError, TypeError, ValueError):  # no answer, no date, or none with a zone
            return
        self._set = _ClockReading(wall if is_right else date, wall, self._base.monotonic())
