"""An exchange in the memory of one process, which can be made to fail as a network does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from rekindle.monitor import Exchange


class Shared:
    """What all ranks of one run see."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, str] = {}


class MemoryExchange:
    """One rank's view. before, after: called with the name of each operation and its key; both may raise or wait."""

    poll_s = 0.01
    quick_s = 0.001

    def __init__(
        self,
        shared: Shared,
        before: Callable[[str, str], None] = lambda _, __: None,
        after: Callable[[str, str], None] = lambda _, __: None,
    ) -> None:
        self._shared, self._before, self._after = shared, before, after

    def get(self, key: str) -> str | None:
        self._before("get", key)
        with self._shared.lock:
            held = self._shared.values.get(key)
        self._after("get", key)
        return held

    def put(self, key: str, value: str) -> None:
        self._before("put", key)
        with self._shared.lock:
            self._shared.values[key] = value
        self._after("put", key)

    def put_new(self, key: str, value: str) -> str:
        self._before("put_new", key)
        with self._shared.lock:
            held = self._shared.values.setdefault(key, value)
        self._after("put_new", key)
        return held

    def has_all(self, keys: Sequence[str]) -> bool:
        self._before("has_all", keys[0] if keys else "")
        with self._shared.lock:
            held = all(key in self._shared.values for key in keys)
        self._after("has_all", keys[0] if keys else "")
        return held

    def forget(self, key: str) -> None:
        self._before("forget", key)
        with self._shared.lock:
            self._shared.values.pop(key, None)
        self._after("forget", key)


def check_contract(open_one: Callable[[], Exchange], *, races: bool = True) -> None:
    """What `rekindle.monitor.mail.exchange.Exchange` promises, seen by two ranks.

    races: whether the transport that stands in for the real one keeps the promise between threads too.
    """
    first, second = open_one(), open_one()
    assert first.get("a") is None
    first.put("a", "1")
    assert soon(lambda: second.get("a") == "1")
    second.put("a", '2, ["x"] and ü')
    assert soon(lambda: first.get("a") == '2, ["x"] and ü')
    assert [first.put_new("s/1/fate", "go"), second.put_new("s/1/fate", "late 7")] == ["go", "go"]
    assert second.get("s/1/fate") == "go"
    keys = [f"s/1/ack/{rank}" for rank in range(12)]
    for key in keys[:11]:
        first.put(key, "1")
        first.put(key, "1")  # a repeated write counts once
    assert not second.has_all(keys)
    assert soon(lambda: second.has_all(keys[:11]))
    assert second.has_all([])
    second.put(keys[11], "1")
    assert soon(lambda: first.has_all([*keys, "a"]))
    first.forget("s/1/ack/3")
    if races:
        assert len(race(open_one)) == 1, "of writers at the same time one wins, and all know which"
    assert 0 < first.quick_s <= first.poll_s


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it holds within ten seconds: torch's TCPStore answers a write before another connection sees it."""
    until = time.monotonic() + 10
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def race(open_one: Callable[[], Exchange]) -> set[str]:
    found: list[str] = []
    start = threading.Barrier(8)

    def write(value: str) -> None:
        exchange = open_one()
        start.wait(120)
        found.append(exchange.put_new("race/one", value))

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 8
    return set(found)
