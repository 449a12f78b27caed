"""Is the run slower than it was, and which rank makes it slow?

A slow row is not a slow run: evaluations, checkpoints, data loading and one-off stalls (up to 103 times the usual step
on the open curves) come and go. So the middle row of a short window is judged, and it has to stay slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rekindle.detectors.points import Point, Severity, Trouble, Verdict
from rekindle.detectors.scale import SortedWindow

BASE_ROWS = 128  # rows that tell the run's own pace
MIN_BASE_ROWS = 20
RECENT_ROWS = 15  # their median is not moved by seven slow rows
WATCH_ROWS = 5
SLOW_RATIO = 1.25  # of the base: the largest over nine rows is 1.14 on the open curves
ACT_RATIO = 1.5
ACT_ROWS = 30  # rows in a row with so slow a median, before it is no pause
ACT_S = 60.0  # and seconds of the clock: thirty steps of 20 ms are a busy machine's hiccup, not a slow run
MAX_STEPS_PER_ROW = 1000  # a jump in the step numbers is no time that has passed
BACK_RATIO = 1.1
REBASE_ROWS = 200  # a pace that has held for so long is the run's pace now

WINDOWS_WATCH = 2  # windows in a row, before a slow rank is worth a look
WINDOWS_ACT = 5  # and worth a swap
STRAGGLER_RATIO = 1.15  # of the median of the other ranks
MIN_RANKS = 3  # of two ranks it cannot be told which is the outlier


class ThroughputWatch:
    """One `watch` and one `act` for each lasting slow-down. Rows after an evaluation are not learned.

    The time of a step is `step_s`, or else what `elapsed_s` gained per step since the row before.
    """

    __slots__ = (
        "_base",
        "_last",
        "_recent",
        "_slow_rows",
        "_slow_s",
        "_step",
        "_very_slow_rows",
        "is_slow",
        "onset_step",
    )

    def __init__(self) -> None:
        self._base = SortedWindow(BASE_ROWS)
        self._recent = SortedWindow(RECENT_ROWS)
        self._last: tuple[int, float] | None = None  # step and elapsed_s of the row before
        self._slow_rows = self._very_slow_rows = 0
        self._slow_s = 0.0
        self._step: int | None = None
        self.is_slow = False
        self.onset_step: int | None = None

    @property
    def baseline_s(self) -> float | None:
        """Seconds of the run's own usual step; None before it is known."""
        return self._base.quantile(0.5) if len(self._base) >= MIN_BASE_ROWS else None

    def update(self, point: Point) -> tuple[Verdict, ...]:
        """Judge and learn one row; one without times says nothing."""
        step_s = self._step_s(point)
        steps = point.step - self._step if self._step is not None and point.step > self._step else 1
        self._step = point.step
        if step_s is None or point.is_after_evaluation:
            return ()
        recent = self._recent
        oldest = recent.oldest if len(recent) == RECENT_ROWS else None
        recent.add(step_s)
        base_s = self.baseline_s
        if base_s is None or oldest is None:
            if oldest is not None:
                self._base.add(oldest)
            return ()
        now_s = recent.quantile(0.5)
        ratio = now_s / base_s
        if ratio < (BACK_RATIO if self.is_slow else SLOW_RATIO):
            self._slow_rows = self._very_slow_rows = 0
            self._slow_s = 0.0
            self.is_slow = False
            self._base.add(oldest)  # what has left the short window has been seen not to be slow
            return ()
        self._slow_rows += 1
        self._slow_s += step_s * min(steps, MAX_STEPS_PER_ROW)
        if self._slow_rows == 1:
            self.onset_step = point.step
        elif self._slow_rows >= REBASE_ROWS and self._slow_s >= 2 * ACT_S:
            self._base.clear()
            self._slow_rows = self._very_slow_rows = 0
            self._slow_s = 0.0
            self.is_slow = False
            return ()
        self._very_slow_rows = self._very_slow_rows + 1 if ratio >= ACT_RATIO else 0
        if self._very_slow_rows >= ACT_ROWS and self._slow_s >= ACT_S and not self.is_slow:
            self.is_slow = True
            return self._verdict(point, now_s, base_s, Severity.ACT)
        return self._verdict(point, now_s, base_s, Severity.WATCH) if self._slow_rows == WATCH_ROWS else ()

    def _verdict(self, point: Point, now_s: float, base_s: float, severity: Severity) -> tuple[Verdict, ...]:
        evidence = {
            "step_s": now_s,
            "baseline_s": base_s,
            "ratio": now_s / base_s,
            "threshold": ACT_RATIO if severity is Severity.ACT else SLOW_RATIO,
            "rows": self._slow_rows,
            "window_rows": RECENT_ROWS,
            "baseline_rows": len(self._base),
            "onset_step": self.onset_step if self.onset_step is not None else point.step,
        }
        kind, rule = Trouble.THROUGHPUT_DROP, "the median step stays slow"
        return (Verdict(kind=kind, severity=severity, rule=rule, step=point.step, evidence=evidence),)

    def _step_s(self, point: Point) -> float | None:
        """A positive time, or None where the row does not tell one."""
        last, elapsed_s = self._last, point.elapsed_s
        self._last = (point.step, elapsed_s) if elapsed_s is not None and math.isfinite(elapsed_s) else None
        if point.step_s is not None:
            return point.step_s if 0 < point.step_s < math.inf else None
        if last is None or self._last is None or self._last[0] <= last[0]:
            return None
        step_s = (self._last[1] - last[1]) / (self._last[0] - last[0])
        return step_s if 0 < step_s < math.inf else None


class StragglerWatch:
    """Names ranks that take longer over a step than the others do, window after window.

    The seconds have to be each rank's own work: where ranks wait for each other inside a step, they all take as long as
    the slowest. Memory is one number for each slow rank.
    """

    __slots__ = ("_slow_windows",)

    def __init__(self) -> None:
        self._slow_windows: dict[int, int] = {}

    def update(self, step: int, step_s: Mapping[int, float]) -> tuple[Verdict, ...]:
        """Judge one window's median step seconds of every rank; values that are not positive are left out."""
        known = {rank: seconds for rank, seconds in step_s.items() if 0 < seconds < math.inf}
        if len(known) < MIN_RANKS:
            self._slow_windows.clear()
            return ()
        order = sorted(known.values())
        half = len(order) // 2
        verdicts = []
        slow: dict[int, int] = {}
        for rank in sorted(known):
            seconds = known[rank]
            # The median of the others: without this rank, the order's middle moves up by one at most.
            others_s = order[half - 1] if seconds >= order[half] and len(order) % 2 == 0 else order[half]
            if seconds < STRAGGLER_RATIO * others_s:
                continue
            slow[rank] = windows = self._slow_windows.get(rank, 0) + 1
            severity = {WINDOWS_WATCH: Severity.WATCH, WINDOWS_ACT: Severity.ACT}.get(windows)
            if severity is not None:
                verdicts.append(_straggler(step, rank, seconds, others_s, windows, severity))
        self._slow_windows = slow
        return tuple(verdicts)


def _straggler(step: int, rank: int, seconds: float, others_s: float, windows: int, severity: Severity) -> Verdict:
    evidence = {
        "rank": rank,
        "step_s": seconds,
        "baseline_s": others_s,
        "ratio": seconds / others_s,
        "threshold": STRAGGLER_RATIO,
        "windows": windows,
    }
    rule = "slower than the other ranks"
    return Verdict(kind=Trouble.STRAGGLER, severity=severity, rule=rule, step=step, evidence=evidence)
