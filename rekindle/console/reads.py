"""Reading the API for one page: all its questions at once, and each answer is there, not offered, or failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.client.api import Client
from rekindle.client.errors import CliError, NotFound

MAX_AT_ONCE: Final = 8
# A sum over a thousand Incidents is some thirty calls to AWS, and a page refreshes itself every few seconds.
KEPT_FOR: Final = timedelta(minutes=1)
TRIED_AGAIN_AFTER: Final = timedelta(seconds=10)
# What API Gateway says to a path that it does not have.
# Source: its developer guide, gateway response MISSING_AUTHENTICATION_TOKEN
_NO_ROUTE: Final = "Missing Authentication Token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One answer. `body` is None where there is none; `why` then says so, `is_absent` that it was never offered, and
    `is_coming` that it is on its way."""

    body: Mapping[str, Any] | None = None
    why: str = ""
    is_absent: bool = False
    is_coming: bool = False

    def __bool__(self) -> bool:
        return self.body is not None

    def get(self, name: str, default: Any = None) -> Any:
        """A member of the answer."""
        return default if self.body is None else self.body.get(name, default)


@dataclass(frozen=True, slots=True)
class Question:
    """One route with its query."""

    route: str
    query: Mapping[str, str | int | None]


def ask(route: str, **query: str | int | None) -> Question:
    return Question(route, query)


def read_one(client: Client, question: Question) -> Panel:
    """One answer of the API; a missing or failed one is reported in place, not raised, so that the rest of the page is
    shown.
    """
    try:
        return Panel(body=client.get(question.route, **question.query))
    except NotFound as err:
        return Panel(why=str(err), is_absent=True)
    except CliError as err:
        return Panel(why=str(err), is_absent=_NO_ROUTE in str(err))


def read_all(client: Client, pool: ThreadPoolExecutor, questions: Mapping[str, Question]) -> dict[str, Panel]:
    """All answers, by name."""
    asked = {name: pool.submit(read_one, client, question) for name, question in questions.items()}
    return {name: future.result() for name, future in asked.items()}


@dataclass(slots=True)
class _Slot:
    """One question's cached answer, when it was read, and the read in progress."""

    panel: Panel | None = None
    read_at: datetime | None = None
    pending: Future[Panel] | None = None


class AnswerCache:
    """Caches answers that cost the service many reads and change slowly. Thread-safe.

    An answer is read at most once in KEPT_FOR, however many pages show it, and never twice at the same time.
    """

    def __init__(
        self, read: Callable[[Question], Panel], pool: ThreadPoolExecutor, now: Callable[[], datetime]
    ) -> None:
        self._read = read
        self._pool = pool
        self._now = now
        self._slots: dict[str, _Slot] = {}
        self._lock = threading.Lock()

    def without_waiting(self, question: Question) -> Panel:
        """The cached answer, or one that says it is being read; an old answer is refreshed in the background."""
        with self._lock:
            slot = self._slots.setdefault(_name(question), _Slot())
            if slot.pending is None and self._is_old(slot):
                self._fetch(slot, question)
            return slot.panel if slot.panel is not None else Panel(why="it is being read", is_coming=True)

    def wait_for(self, question: Question) -> Panel:
        """The answer, at most KEPT_FOR old."""
        with self._lock:
            slot = self._slots.setdefault(_name(question), _Slot())
            if slot.panel is not None and not self._is_old(slot):
                return slot.panel
            pending = slot.pending or self._fetch(slot, question)
        return pending.result()

    def _is_old(self, slot: _Slot) -> bool:
        if slot.panel is None or slot.read_at is None:
            return True
        return self._now() - slot.read_at >= (KEPT_FOR if slot.panel else TRIED_AGAIN_AFTER)

    def _fetch(self, slot: _Slot, question: Question) -> Future[Panel]:
        def read() -> Panel:
            panel = Panel(why="it could not be read")
            try:
                panel = self._read(question)
            finally:
                with self._lock:
                    slot.panel, slot.read_at, slot.pending = panel, self._now(), None
            return panel

        slot.pending = self._pool.submit(read)
        return slot.pending


def _name(question: Question) -> str:
    return f"{question.route}?{sorted(question.query.items())}"
