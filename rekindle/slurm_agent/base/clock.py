"""The agent's clock: the only place where it asks what time it is."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

from rekindle.compat import UTC

TOLERATED: Final = timedelta(seconds=5)  # a Date has whole seconds, and its answer was under way
REPORTED_ABOVE: Final = timedelta(seconds=60)


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC, for the wire and for what outlives this process."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class AwsClock:
    """The host's clock, set right by the Date of each answer of the clients that it follows.

    Orders expire within a minute, and heartbeats are judged by their age: a head node whose clock is off by more would
    refuse every order, or carry out one whose reason is long gone. Source: RFC 9110, field Date.
    """

    def __init__(self, base: Clock | None = None) -> None:
        self._base = base or SystemClock()
        self._offset = timedelta(0)

    def now(self) -> datetime:
        return self._base.now() + self._offset

    def monotonic(self) -> float:
        return self._base.monotonic()

    def follow(self, client: Any) -> None:
        """Listen to what this boto3 client is answered."""
        client.meta.events.register("after-call", self._answered)

    def problems(self) -> tuple[str, ...]:
        """One line where the host's clock is off by a minute or more: Slurm's own times are as far off."""
        if abs(self._offset) < REPORTED_ABOVE:
            return ()
        way = "slow" if self._offset > timedelta(0) else "fast"
        seconds = abs(self._offset).total_seconds()
        return (f"this host's clock is {seconds:.0f} s {way} against AWS's: set it by chrony",)

    def _answered(self, http_response: Any, **_: Any) -> None:
        """botocore's event after-call."""
        try:
            stated = parsedate_to_datetime(http_response.headers["Date"])
            offset = stated - self._base.now()
        except (AttributeError, KeyError, TypeError, ValueError):  # no answer, no date, or none with a zone
            return
        self._offset = offset if abs(offset) > TOLERATED else timedelta(0)
