"""Names that nobody asked us to protect, remembered for a while so that hearsay about them costs nothing."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final

KEPT: Final = timedelta(hours=1)
MAX_NAMES: Final = 1_000


class Strangers:
    """A bounded memory of this process. What the platform itself says of a name ends it, so it delays no protection."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, datetime] = OrderedDict()

    def add(self, name: str, *, now: datetime) -> None:
        """Nobody asked for it, as was read just now. The oldest name gives way where there are too many."""
        self._until.pop(name, None)
        self._until[name] = now + KEPT
        while len(self._until) > MAX_NAMES:
            self._until.popitem(last=False)

    def knows(self, name: str, *, now: datetime) -> bool:
        """Whether the name was added within the hour."""
        until = self._until.get(name)
        return until is not None and now < until

    def forget(self, name: str) -> None:
        """The platform has news of it: the next to ask looks again."""
        self._until.pop(name, None)
