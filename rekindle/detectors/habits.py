"""What has this run done before and recovered from without help?

An excursion as high and as long as several that healed is how this run is made: its data, its schedule, its router. To
go back to a checkpoint would change nothing, since the next one is due anyway.

Excursions that fell at once (data) are remembered for as long as newer ones do not push them out; those that came down
slowly only for `NEAR_STEPS`: a run that swings every thousand steps is made so, and one that spikes every twenty
thousand is hurt each time.

A level that fell at once, calm before and after, was a change of data; to come back up to it later is one too.
"""

from __future__ import annotations

from collections import deque

from rekindle.detectors.scale import LossScale

KEPT = 32
EXAMPLES = 2  # so many alike make a habit
YOUNG_STEPS = 1000  # in a run that is younger, one: it has had no time for two, and has little to lose
HIGHER = 1.25  # times their height, or
LONGER = 4.0  # times their length, is beyond them
NEAR_STEPS = 6000
BLOCK_ROWS = 16
FALL = 0.20  # of the loss, from one block to the next but one
CALM = 0.25  # of the fall: what the blocks before and after it differ by at most


class Habits:
    """Excursions that are over, newest last; a fixed number of them."""

    __slots__ = ("_blocks", "_falls", "_lone", "_row", "_seen")

    def __init__(self) -> None:
        self._row = 0
        self._blocks: deque[float] = deque(maxlen=5)  # levels, a block apart
        self._lone: deque[float] = deque(maxlen=KEPT)  # heights of far rows that were no excursion
        self._falls: deque[float] = deque(maxlen=KEPT)
        self._seen: deque[tuple[int, float, float, bool]] = deque(maxlen=KEPT)  # end step, height, rows, fell at once

    def remember(self, step: int, height: float, rows: float, *, was_abrupt: bool) -> None:
        self._seen.append((step, height, rows, was_abrupt))

    def remember_lone(self, height: float) -> None:
        """A far row of which nothing came."""
        self._lone.append(height)

    def has_lone(self, height: float) -> bool:
        """Whether lone rows have been about as far up: two such rows near each other are not more than that."""
        return sum(height <= HIGHER * lone for lone in self._lone) >= EXAMPLES

    def see(self, scale: LossScale) -> None:
        """Every row: its level may be the end of a fall."""
        self._row += 1
        if self._row < BLOCK_ROWS:
            return
        self._row = 0
        blocks = self._blocks
        blocks.append(scale.level)
        if len(blocks) < 5:
            return
        fall = blocks[1] - blocks[3]
        if fall < scale.needs(FALL):
            return
        calm = CALM * fall
        if abs(blocks[0] - blocks[1]) < calm and abs(blocks[3] - blocks[4]) < calm:
            self._falls.append(fall)

    def has_fallen(self, rise: float, *, examples: int = 1) -> bool:
        """Whether a rise to a calm level is no higher than calm levels have fallen before, so many times."""
        return sum(rise <= HIGHER * fall for fall in self._falls) >= examples

    def explain(self, step: int, height: float, rows: float, *, age: int) -> bool:
        """Whether enough of those before were about as high and as long. `age`: of the run, in steps."""
        alike = 0
        for ended, peak, length, was_abrupt in self._seen:
            is_near = was_abrupt or 0 <= step - ended <= NEAR_STEPS
            if is_near and height <= HIGHER * peak and rows <= LONGER * length:
                alike += 1
        return alike >= (EXAMPLES if age >= YOUNG_STEPS else 1)

    def clear(self) -> None:
        self._seen.clear()
