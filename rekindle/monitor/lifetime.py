"""The monitors of this process: at most one per job and rank, asleep in forked children, ended at exit.

A forked child has the parent's signal handlers but none of its threads. Left alone, it would swallow the SIGTERM that
is to end it (a `multiprocessing.Pool` is ended by SIGTERM). So the child gets the handlers back that were there before
the monitor. A signal that comes between the fork and that moment is held back by the thread's signal mask.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Collection
from typing import Protocol

from rekindle.monitor.base import stacks
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.processes import is_gone, name_of
from rekindle.monitor.base.run import Identity
from rekindle.monitor.base.trouble import NotWatched, logger

TAKE_OVER_S = 3.0  # for the monitor before to seal and answer what it can; its threads finish the rest
WHY = "another monitor has started in this process"


class ClosableMonitor(Protocol):
    """What this module needs of a monitor."""

    @property
    def identity(self) -> Identity: ...

    @property
    def is_silent(self) -> bool: ...

    @property
    def signals_taken(self) -> Collection[int]: ...

    def finish(self, why: str = ..., timeout_s: float = ...) -> None: ...

    def follow(self, before: ClosableMonitor) -> None:
        """Continue for a monitor of the same job and rank that this one replaces. Called once, before it has ended."""

    def fall_asleep(self) -> None:
        """In a forked child."""


_lock = threading.RLock()
_living: list[weakref.ref[ClosableMonitor]] = []
_forked_from: dict[str, str] = {}  # attempt -> the process with a monitor of it from which this one was forked
_masks = threading.local()
_has_hooks = False


def admit(monitor: ClosableMonitor) -> None:
    """Register a monitor that is about to begin. One of the same job and rank that still lives is ended first.

    Raises: NotWatched where a monitor of another job lives: both would take the same signals.
    """
    with _lock:
        for other in live_monitors():
            if other.identity.job_id != monitor.identity.job_id:
                raise NotWatched(f"this process has a monitor of job {other.identity.job_id}, which is not finished")
        for other in live_monitors():
            if other.identity.rank == monitor.identity.rank:
                logger.warning("A second monitor of rank %d takes over from the first", other.identity.rank)
                monitor.follow(other)
                other.finish(WHY, TAKE_OVER_S)
        _register_hooks()
        _living[:] = [weakref.ref(living) for living in live_monitors()] + [weakref.ref(monitor)]


def refuse_fork(attempt: str) -> None:
    """Raises: NotWatched while the process lives from which this one was forked, and which has its monitor."""
    process = _forked_from.get(attempt, "")
    if process and not is_gone(process):
        raise NotWatched("the process from which this one was forked holds this run")


def unregister(monitor: ClosableMonitor) -> None:
    with _lock:
        _living[:] = [weakref.ref(living) for living in live_monitors() if living is not monitor]


def live_monitors() -> list[ClosableMonitor]:
    return [
        monitor
        for monitor in (reference() for reference in list(_living))
        if monitor is not None and not monitor.is_silent
    ]


def _register_hooks() -> None:
    global _has_hooks
    if not _has_hooks and hasattr(os, "register_at_fork"):
        _has_hooks = True
        os.register_at_fork(before=_before_fork, after_in_parent=_unmask, after_in_child=_in_child)


def _before_fork() -> None:
    try:
        numbers = {number for monitor in live_monitors() for number in monitor.signals_taken}
        if numbers:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
            _masks.held = numbers - before
    except BaseException as err:
        if must_pass(err):
            raise


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    stacks.forked()
    try:
        for monitor in live_monitors():
            _forked_from[monitor.identity.attempt] = name_of(os.getppid())
            monitor.fall_asleep()
        _living.clear()
    finally:
        _unmask()


def _unmask() -> None:
    held, _masks.held = getattr(_masks, "held", None), None
    if held:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
