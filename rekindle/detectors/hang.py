"""How long may a run be silent? A limit learned from the job's own slow steps.

The limit answers "silent for longer than anything this job did lately"; it does not say why, nor who is to blame.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from rekindle.detectors.points import Severity, Trouble, Verdict
from rekindle.protocol.mailbox import RunPhase

WINDOW = 512  # remembers a slow step that comes once per few hundred (logging, an epoch's end)
WARMUP = 3  # compilation, autotuning and cold caches make the first steps say nothing about the later ones
WATCH_SHARE = 0.5  # of the limit, at which silence is worth a look
FACTOR = 5.0  # a step five times slower than the slowest of the last 512 is no longer the job's own rhythm


class HangLimit:
    """A silence limit in seconds: `max(floor_s, factor x slowest of the last `window` samples)`.

    The first `warmup` samples are not learned. Until one sample is, the limit is `unlearned_s`.
    A sample above the limit was a pause that ended without help: it is learned, but only up to the limit, so that one
    long stall cannot switch the detector off, while a pause that keeps coming back stops being reported.
    One owner calls `update`; `limit` may be read from any thread. No clock.
    """

    def __init__(
        self,
        *,
        floor_s: float,
        unlearned_s: float | None = None,
        factor: float = FACTOR,
        window: int = WINDOW,
        warmup: int = WARMUP,
    ) -> None:
        if not (floor_s > 0 and math.isfinite(floor_s) and factor >= 1 and window >= 1 and warmup >= 0):
            raise ValueError("floor_s must be positive, factor and window at least 1, warmup at least 0")
        self._floor_s = floor_s
        self._factor = factor
        self._window = window
        self._to_ignore = warmup
        self._seen = 0
        # (index, seconds), seconds falling: the front is the slowest of the window, in constant time per sample
        self._peaks: deque[tuple[int, float]] = deque()
        self._limit_s = max(floor_s, unlearned_s if unlearned_s is not None else floor_s)

    def update(self, duration_s: float) -> None:
        """Learn one duration. Negative or non-finite durations are ignored."""
        if not 0 <= duration_s < math.inf:
            return
        if self._to_ignore > 0:
            self._to_ignore -= 1
            return
        sample = min(duration_s, self._limit_s)
        peaks = self._peaks
        while peaks and peaks[-1][1] <= sample:
            peaks.pop()
        peaks.append((self._seen, sample))
        self._seen += 1
        if peaks[0][0] <= self._seen - 1 - self._window:
            peaks.popleft()
        self._limit_s = max(self._floor_s, self._factor * peaks[0][1])

    def limit(self) -> float:
        return self._limit_s

    @property
    def has_learned(self) -> bool:
        return self._seen > 0


class HangWatch:
    """Is a run silent for longer than this phase of it ever was? `watch` at half the limit, `act` at the limit.

    Each phase has its own limit (start-up, training, evaluation, saving). In training the time from one sign of life to
    the next is learned; of the other phases, the time from entering them to leaving them. Seconds are of one clock of
    the caller's, which is never read here. A new attempt keeps what was learned and begins with its own start-up.
    """

    __slots__ = ("_entered_s", "_is_whole", "_limits", "_mark_s", "_reported", "_step", "phase")

    def __init__(self, limits: Mapping[RunPhase, HangLimit], *, now_s: float) -> None:
        self._limits = dict(limits)
        self.new_attempt(now_s)

    def new_attempt(self, now_s: float) -> None:
        """Another attempt began: whatever was silent before is not this one's silence."""
        self.phase = RunPhase.STARTUP
        self._entered_s = self._mark_s = now_s
        self._is_whole = False
        self._step = 0
        self._reported: Severity | None = None

    def moved(self, step: int, phase: RunPhase, now_s: float) -> None:
        """A sign of life: a step is done, or the run has entered another phase."""
        limit = self._limits.get(self.phase)
        if phase is not self.phase:
            if limit is not None and self.phase is not RunPhase.TRAINING:
                limit.update(now_s - self._entered_s)
            self._entered_s = now_s
            self._is_whole = phase is RunPhase.TRAINING and self.phase is RunPhase.STARTUP
        elif phase is RunPhase.TRAINING:
            if limit is not None and self._is_whole:
                limit.update(now_s - self._mark_s)
            self._is_whole = True  # the first step after an evaluation or a save began before it
        self.phase = phase
        self._step = step
        self._mark_s = now_s
        self._reported = None

    def check(self, now_s: float) -> tuple[Verdict, ...]:
        """One verdict at each severity for each silence; none in a phase without a limit."""
        limit = self._limits.get(self.phase)
        if limit is None or self._reported is Severity.ACT:
            return ()
        since_s = self._mark_s
        silent_s, limit_s = now_s - since_s, limit.limit()
        severity = Severity.ACT if silent_s > limit_s else Severity.WATCH
        if not silent_s > limit_s * WATCH_SHARE or severity is self._reported:
            return ()
        self._reported = severity
        evidence = {
            "phase": self.phase.value,
            "silent_s": silent_s,
            "limit_s": limit_s,
            "has_learned": int(limit.has_learned),
        }
        rule = "silent for longer than this phase ever was"
        return (Verdict(kind=Trouble.HANG, severity=severity, rule=rule, step=self._step, evidence=evidence),)
