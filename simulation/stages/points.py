"""The data points of each run's metrics, as CloudWatch shows them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from localcloud.aws.clock import Clock
from rekindle.protocol.mailbox import LossState
from simulation.runs.truth import TrueRun
from simulation.stories.source_faults import SourceFaults

MINUTE: Final = timedelta(minutes=1)


class Points:
    """One point a minute of each run that moves."""

    def __init__(self, clock: Clock, source_faults: SourceFaults, runs: Mapping[str, TrueRun]) -> None:
        self._clock, self._faults, self._runs = clock, source_faults, runs
        self._points: dict[str, list[tuple[datetime, float, float]]] = {}  # minute, newest step, was it not finite

    def metric(self, name: str, run: TrueRun | None, since: datetime, until: datetime) -> list[tuple[datetime, float]]:
        """Step, loss and NonFinite by minute: of a Job by its monitor, or of one attempt by its own definitions."""
        if run is None:
            return []
        # The newest minute has not arrived yet.
        until = min(until, self._clock.now() - MINUTE - self._faults.metric_delay())
        points = self._points.get(run.name, [])
        first = bisect_left(points, since, key=lambda point: point[0])
        found = [point for point in points[first:] if point[0] < until]
        match name:
            case "Step" | "step":
                return [(point[0], point[1]) for point in found]
            case "loss":  # a loss that is no number cannot be sent
                return [(point[0], 2.0) for point in found if not point[2]]
            case _:
                return [(point[0], point[2]) for point in found]

    def longest_hole(self, run: TrueRun) -> timedelta:
        """The longest time between two of the run's data points that arrived; the service derives a silence from that
        rhythm.
        """
        times = [point[0] for point in self._points.get(run.name, ())]
        return max((after - before for before, after in pairwise(times)), default=timedelta(0))

    def measure(self) -> None:
        """Keep the minute's data points, as far as they ever arrive."""
        now = self._clock.now()
        for run in self._runs.values():
            if self._faults.hides_metric(run.name, now - MINUTE):
                continue
            moved = [
                attempt for attempt in run.attempts.values() if attempt.step_at(now) > attempt.step_at(now - MINUTE)
            ]
            if moved:
                newest = moved[-1].at(now)
                is_bad = newest is not None and newest.loss is not LossState.FINITE
                self._points.setdefault(run.name, []).append(
                    (now - MINUTE, float(moved[-1].step_at(now)), float(is_bad))
                )
