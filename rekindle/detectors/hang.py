"""How long may a run be silent? A limit learned from the job's own slow steps.

The limit answers "silent for longer than anything this job did lately"; it does not say why, nor who is to blame.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 512  # remembers a slow step that comes once per few hundred (logging, an epoch's end)
WARMUP = 3  # compilation, autotuning and cold caches make the first steps say nothing about the later ones
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
