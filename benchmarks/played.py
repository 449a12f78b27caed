"""AWS's answers, asked for once and played back: what is measured then is ours alone, and each call is counted.

moto answers a Query by looking at every item of the table, so its time grows with what is stored where DynamoDB's does
not: at 12,000 items one Query takes it half a second. The answers themselves are right, and are kept.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

# What a question may differ in and still be the same one: the window of a metric ends now.
_MOVES: Final = frozenset({"StartTime", "EndTime"})
_READS: Final = ("Get", "BatchGet", "Query", "List", "Describe")


@dataclass
class Counted:
    """What was asked of AWS. `items` are those that DynamoDB read for us."""

    calls: Counter[str] = field(default_factory=Counter)
    items: int = 0

    @property
    def all_calls(self) -> int:
        return sum(self.calls.values())


@dataclass
class Played:
    """Counts the calls of boto3 clients and answers reads from memory once they have been answered."""

    counted: Counted = field(default_factory=Counted)
    _kept: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fresh(self) -> Counted:
        """Reset the counts."""
        with self._lock:
            self.counted = Counted()
            return self.counted

    @contextmanager
    def over(self, clients: Iterable[Any]) -> Iterator[None]:
        """Stand before these clients."""
        real = [(client, client._make_api_call) for client in clients]
        for client, ask in real:
            client._make_api_call = self._before(ask)
        try:
            yield
        finally:
            for client, ask in real:
                client._make_api_call = ask

    def _before(self, ask: Any) -> Any:
        def call(operation: str, request: Any) -> Any:
            name = (operation, json.dumps(_still(request), sort_keys=True, default=str))
            answer = self._kept.get(name)
            if answer is None:
                answer = ask(operation, request)
                if operation.startswith(_READS) and "Body" not in answer:
                    self._kept[name] = answer
            with self._lock:
                self.counted.calls[operation] += 1
                self.counted.items += _items(answer)
            return answer

        return call


def _still(request: Any) -> Any:
    return {name: value for name, value in request.items() if name not in _MOVES}


def _items(answer: Any) -> int:
    if "Responses" in answer:
        return sum(len(rows) for rows in answer["Responses"].values())
    return int("Item" in answer)
