"""A real monitor of one rank over a directory, and one that only keeps what a LocalWatch reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rekindle.monitor import Monitor
from rekindle.monitor.live import LiveMonitor
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor


@contextmanager
def started(box: ObservedBox) -> Iterator[LiveMonitor]:
    """Finished at the end of the block."""
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    made = start_monitor(mailbox=box, config=QUICK, env=env)
    assert isinstance(made, LiveMonitor)
    yield made
    made.finish(timeout_s=PATIENCE_S)


class Heard(Monitor):
    """A monitor that keeps what a LocalWatch reports."""

    def __init__(self) -> None:
        self.bad: list[tuple[int, str]] = []

    def local_non_finite(self, step: int, metric: str, *, ranks: Any = None) -> None:
        self.bad.append((step, metric))
