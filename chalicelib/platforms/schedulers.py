"""Every platform's Scheduler, by the name that a Job stores."""

from __future__ import annotations

from chalicelib.domain.model.errors import Permanent
from chalicelib.ports.platforms import Scheduler


class Schedulers:
    """ports.Schedulers over `each`; the last is asked of names that no other owns."""

    def __init__(self, *each: Scheduler) -> None:
        self._each = each

    def of(self, platform: str) -> Scheduler:
        found = next((scheduler for scheduler in self._each if scheduler.platform.name == platform), None)
        if found is None:
            raise Permanent(f"there is no platform {platform[:64]!r} here")
        return found

    def of_name(self, attempt: str) -> Scheduler:
        return next((scheduler for scheduler in self._each if scheduler.owns(attempt)), self._each[-1])
