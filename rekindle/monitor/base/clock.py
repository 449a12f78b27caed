"""The monitor's clock: the only place where it asks what time it is."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Protocol

from rekindle.compat import UTC


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC, for the wire."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
