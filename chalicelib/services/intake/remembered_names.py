"""What this process has read of attempts' names, so that further news of them costs no call."""

from __future__ import annotations

from collections import OrderedDict, deque
from datetime import datetime, timedelta
from typing import Final

KEPT: Final = timedelta(hours=1)
MAX_NAMES: Final = 1_000
# Hearsay may name a new run each time, and each question counts against the account's quota of API calls, from which
# the recovery lives. A run that is not asked about now is found by the platform's own event, or by the sweep.
MAX_QUESTIONS: Final = 20
QUESTIONS_WITHIN: Final = timedelta(minutes=1)


class UnprotectedNames:
    """At most MAX_NAMES names, in this process only. An event of the platform removes its name at once."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, datetime] = OrderedDict()
        self._asked: deque[datetime] = deque(maxlen=MAX_QUESTIONS)

    def add(self, name: str, *, now: datetime) -> None:
        """Remember for KEPT that `name` was read as not protected. Above MAX_NAMES the oldest is dropped."""
        self._until.pop(name, None)
        self._until[name] = now + KEPT
        while len(self._until) > MAX_NAMES:
            self._until.popitem(last=False)

    def knows(self, name: str, *, now: datetime) -> bool:
        """Whether the name was added within KEPT."""
        until = self._until.get(name)
        return until is not None and now < until

    def may_ask(self, *, now: datetime) -> bool:
        """Whether the platform is asked about one more name that only hearsay tells of; True counts as a question."""
        if len(self._asked) == MAX_QUESTIONS and now - self._asked[0] < QUESTIONS_WITHIN:
            return False
        self._asked.append(now)
        return True

    def forget(self, name: str) -> None:
        """Drop the name, because the platform has reported it: the next question reads the platform again."""
        self._until.pop(name, None)


class RegisteredNames:
    """Attempts that were read as registered, at most MAX_NAMES. Only for names that never recur: they stay so."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> None:
        """Above MAX_NAMES the oldest is dropped."""
        self._names[name] = None
        while len(self._names) > MAX_NAMES:
            self._names.popitem(last=False)

    def __contains__(self, name: str) -> bool:
        return name in self._names
