"""The embedded cloud's clock: one for the emulated AWS, the durable engine and the world around them.

`RealClock` is the wall clock. `SimClock` is virtual: it stands still while any task runs and, when the whole cloud is
idle, jumps to the earliest scheduled time of any component (a durable wait, a callback timeout, a training job's next
state, an event in transit). A world event that falls within a durable wait fires at its own time and may end that wait
early, and simulated hours take milliseconds.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

logger = logging.getLogger(__name__)

# The durable SDK compares the ends of waits with the machine's own clock while a parallel branch is running, and
# resumes the branch inside the process once that end is past (`concurrency/executor.py`, `time.time()`). Virtual time
# must therefore lie ahead of real time. A fixed year, far ahead, also keeps every test run the same.
SIM_EPOCH = datetime(2035, 1, 1, tzinfo=UTC)


class Timer:
    """Something that will happen; `cancel` is idempotent and safe at any moment."""

    __slots__ = ("_call", "_lock", "at", "label")

    def __init__(self, at: datetime, call: Callable[[], object], label: str) -> None:
        self.at = at
        self.label = label
        self._call: Callable[[], object] | None = call
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Let it not happen; without effect once it has begun."""
        with self._lock:
            self._call = None

    @property
    def is_live(self) -> bool:
        """Whether it is still going to happen."""
        return self._call is not None

    def fire(self) -> None:
        """Run it, once."""
        with self._lock:
            call, self._call = self._call, None
        if call is not None:
            call()


class Clock(Protocol):
    """Time as the embedded cloud knows it. `arm` completes the testing engine's own Clock protocol."""

    def now(self) -> datetime:
        """The present moment, aware, UTC."""
        ...

    def arm(self, wake: datetime) -> float:
        """Seconds of this clock until `wake`; never negative."""
        ...

    def schedule(self, at: datetime, call: Callable[[], object], *, label: str = "") -> Timer:
        """Have `call` run at `at`, or as soon as possible where that is past."""
        ...

    def after(self, delay: timedelta, call: Callable[[], object], *, label: str = "") -> Timer:
        """Have `call` run `delay` from now."""
        ...

    def busy(self, label: str) -> Callable[[], None]:
        """Say that work is under way; the answer says that it has ended. Virtual time stands still meanwhile."""
        ...

    def run_until(self, predicate: Callable[[], bool], *, limit: timedelta) -> bool:
        """Let time pass until `predicate` holds or `limit` of this clock's time is over; whether it held."""
        ...

    def close(self) -> None:
        """Let nothing more happen."""
        ...


class WorkTimedOut(RuntimeError):
    """Work in the simulated cloud did not end within real seconds: something waits for real time, or for itself."""


class SimClock:
    """Virtual time. Exactly one thread at a time drives it, by `run_until`, `run_for` or `settle`.

    stall_s: real seconds in which no work may end or begin before `WorkTimedOut` is raised, which names the work.
    """

    virtual = True

    def __init__(self, *, start: datetime = SIM_EPOCH, stall_s: float = 120.0) -> None:
        self._now = start
        self._stall_s = stall_s
        self._heap: list[tuple[datetime, int, Timer]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._at_work: dict[int, str] = {}
        self._driving = threading.RLock()
        self._closed = False

    def now(self) -> datetime:
        return self._now  # one reference, which is replaced whole

    def arm(self, wake: datetime) -> float:
        return max((wake - self.now()).total_seconds(), 0.0)

    def schedule(self, at: datetime, call: Callable[[], object], *, label: str = "") -> Timer:
        timer = Timer(at, call, label)
        with self._changed:
            if not self._closed:
                heapq.heappush(self._heap, (at, next(self._order), timer))
                self._changed.notify_all()
        return timer

    def after(self, delay: timedelta, call: Callable[[], object], *, label: str = "") -> Timer:
        return self.schedule(self.now() + delay, call, label=label)

    def busy(self, label: str) -> Callable[[], None]:
        with self._changed:
            token = next(self._order)
            self._at_work[token] = label

        def done() -> None:
            with self._changed:
                self._at_work.pop(token, None)
                self._changed.notify_all()

        return done

    @contextmanager
    def working(self, label: str) -> Iterator[None]:
        """`busy` around a block, for work done on other threads."""
        done = self.busy(label)
        try:
            yield
        finally:
            done()

    def settle(self) -> None:
        """Let everything happen that is due at this very moment, and wait for it to end.

        Raises: WorkTimedOut.
        """
        with self._driving:
            while self._step(self.now()):
                pass

    def run_until(self, predicate: Callable[[], bool], *, limit: timedelta = timedelta(days=1)) -> bool:
        """Jump from event to event until `predicate` holds. Time ends at the limit where it never does.

        Raises: WorkTimedOut; and whatever a scheduled call raised.
        """
        with self._driving:
            end = self.now() + limit
            self._rest()
            while not predicate():
                if not self._step(end):
                    with self._changed:
                        self._now = max(self._now, end)
                    return predicate()
            return True

    def run_for(self, length: timedelta) -> None:
        """Let `length` of virtual time pass. Raises: WorkTimedOut."""
        self.run_until(lambda: False, limit=length)

    def pending(self) -> list[tuple[datetime, str]]:
        """What is still going to happen, in order."""
        with self._changed:
            return [(at, timer.label) for at, _, timer in sorted(self._heap, key=lambda e: e[:2]) if timer.is_live]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify_all()

    def _step(self, end: datetime) -> bool:
        """Make the next thing happen that is due by `end`; whether there was one."""
        self._rest()
        with self._changed:
            while self._heap and not self._heap[0][2].is_live:
                heapq.heappop(self._heap)
            if not self._heap or self._heap[0][0] > end:
                return False
            at, _, timer = heapq.heappop(self._heap)
            self._now = max(self._now, at)
        timer.fire()
        self._rest()
        return True

    def _rest(self) -> None:
        """Wait until no work is under way; however long much work takes, as long as some of it ends."""
        deadline = time.monotonic() + self._stall_s
        with self._changed:
            seen = set(self._at_work)
            while self._at_work:
                if seen != self._at_work.keys():
                    seen, deadline = set(self._at_work), time.monotonic() + self._stall_s
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WorkTimedOut(
                        f"still at work after {self._stall_s:g} real seconds: {sorted(self._at_work.values())}"
                    )
                self._changed.wait(left)


class RealClock:
    """The wall clock, and a small pool of threads on which scheduled calls run."""

    virtual = False

    def __init__(self, *, threads: int = 8) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cloud-clock")
        self._thread = threading.Thread(target=self._tick, name="cloud-clock", daemon=True)
        self._thread.start()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def arm(self, wake: datetime) -> float:
        return max((wake - self.now()).total_seconds(), 0.0)

    def schedule(self, at: datetime, call: Callable[[], object], *, label: str = "") -> Timer:
        timer = Timer(at, call, label)
        due = time.monotonic() + self.arm(at)
        with self._changed:
            if not self._closed:
                heapq.heappush(self._heap, (due, next(self._order), timer))
                self._changed.notify_all()
        return timer

    def after(self, delay: timedelta, call: Callable[[], object], *, label: str = "") -> Timer:
        return self.schedule(self.now() + delay, call, label=label)

    def busy(self, label: str) -> Callable[[], None]:  # noqa: ARG002  real time passes meanwhile
        return lambda: None

    def run_until(self, predicate: Callable[[], bool], *, limit: timedelta = timedelta(minutes=1)) -> bool:
        """Look every few milliseconds until `predicate` holds; for tests and the demo, which wait for processes."""
        deadline = time.monotonic() + limit.total_seconds()
        pause = threading.Event()
        while not predicate():
            if time.monotonic() >= deadline:
                return predicate()
            pause.wait(0.01)
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify_all()
        self._thread.join(timeout=5)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _tick(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._closed:
                    return
                _, _, timer = heapq.heappop(self._heap)
                self._pool.submit(self._fire, timer)

    @staticmethod
    def _fire(timer: Timer) -> None:
        try:
            timer.fire()
        except Exception:
            logger.exception("scheduled call failed", extra={"timer": timer.label})
