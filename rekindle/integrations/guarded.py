"""Hooks that frameworks call: a failure in one is logged once, and training continues."""

from __future__ import annotations

from rekindle.monitor.base.guard import guarded
from rekindle.monitor.base.trouble import logger

__all__ = ["Guarded", "guarded"]


class Guarded:
    """A base of classes whose methods are decorated with `guarded("name")`."""

    _is_asleep = False
    _failed_in: frozenset[str] = frozenset()

    def _inner(self, where: str, err: BaseException) -> None:
        if where not in self._failed_in:
            self._failed_in |= {where}
            logger.warning("Rekindle failed in %s, and training continues without it: %r", where, err)
