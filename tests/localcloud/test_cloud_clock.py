"""Virtual time: order, standing still, limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from localcloud.aws.clock import SIM_EPOCH, RealClock, SimClock, WorkTimedOut

SECOND = timedelta(seconds=1)


def test_what_is_scheduled_happens_in_the_order_of_its_time_then_of_its_scheduling() -> None:
    clock = SimClock()
    seen: list[str] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append(f"{name} {(clock.now() - SIM_EPOCH).total_seconds():g}")

    clock.after(2 * SECOND, note("late"))
    clock.after(SECOND, note("first"))
    clock.after(SECOND, note("second"))
    clock.schedule(SIM_EPOCH - SECOND, note("overdue"))
    clock.run_for(10 * SECOND)
    assert seen == ["overdue 0", "first 1", "second 1", "late 2"]
    assert clock.now() == SIM_EPOCH + 10 * SECOND


def test_time_never_runs_backwards_and_what_happens_may_schedule_more() -> None:
    clock = SimClock()
    seen: list[float] = []

    def tick() -> None:
        seen.append((clock.now() - SIM_EPOCH).total_seconds())
        clock.after(SECOND, tick)

    clock.after(SECOND, tick)
    assert clock.run_until(lambda: len(seen) == 5, limit=timedelta(hours=1))
    assert seen == [1, 2, 3, 4, 5]


def test_time_stands_still_while_anything_is_at_work() -> None:
    clock = SimClock()
    seen: list[str] = []
    release = threading.Event()

    def work() -> None:
        release.wait(5)
        seen.append(f"worked at {(clock.now() - SIM_EPOCH).total_seconds():g}")
        done()

    done = clock.busy("a thread")
    clock.after(SECOND, lambda: seen.append("next"))
    thread = threading.Thread(target=work)
    thread.start()
    threading.Timer(0.05, release.set).start()
    clock.run_for(2 * SECOND)
    thread.join()
    assert seen == ["worked at 0", "next"]


def test_work_that_never_ends_is_named() -> None:
    clock = SimClock(stall_s=0.05)
    clock.busy("a stuck handler")
    with pytest.raises(WorkTimedOut, match="a stuck handler"):
        clock.run_for(SECOND)


def test_a_cancelled_timer_does_not_happen() -> None:
    clock = SimClock()
    seen: list[str] = []
    timer = clock.after(SECOND, lambda: seen.append("no"))
    timer.cancel()
    assert clock.pending() == []
    clock.run_for(2 * SECOND)
    assert seen == []


def test_running_until_something_stops_at_the_limit() -> None:
    clock = SimClock()
    clock.after(timedelta(hours=2), lambda: None)
    assert not clock.run_until(lambda: False, limit=timedelta(hours=1))
    assert clock.now() == SIM_EPOCH + timedelta(hours=1)


def test_an_exception_in_what_happens_reaches_whoever_drives() -> None:
    clock = SimClock()

    def fail() -> None:
        raise ValueError("broken world")

    clock.after(SECOND, fail)
    with pytest.raises(ValueError, match="broken world"):
        clock.run_for(2 * SECOND)


def test_settling_does_what_is_due_and_moves_no_time() -> None:
    clock = SimClock()
    seen: list[str] = []
    clock.after(timedelta(0), lambda: seen.append("due"))
    clock.after(SECOND, lambda: seen.append("later"))
    clock.settle()
    assert seen == ["due"]
    assert clock.now() == SIM_EPOCH


def test_the_real_clock_runs_what_is_scheduled_on_its_own_threads() -> None:
    clock = RealClock(threads=1)
    seen: list[str] = []
    with clock._changed:  # nothing is taken out before all are in, however long this thread has to wait in between
        clock.after(timedelta(seconds=1), lambda: seen.append("second"))
        clock.after(timedelta(milliseconds=1), lambda: seen.append("first"))
        clock.after(timedelta(milliseconds=5), lambda: seen.append("never")).cancel()
    assert clock.run_until(lambda: len(seen) >= 2, limit=timedelta(minutes=2))
    clock.close()
    assert seen == ["first", "second"]
