"""How all ranks agree to save at the same step."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol


class Wish(IntEnum):
    """What a rank would have all ranks do. The highest wish of all ranks is what they all do."""

    NOTHING = 0
    SAVE = 1
    SAVE_AND_STOP = 2  # SIGTERM
    STOP = 3  # superseded: another attempt owns the checkpoints, saving could harm it


class Coordinator(Protocol):
    """One small collective: the highest of all ranks' values, known to all ranks.

    The monitor calls `highest` on the training thread, on every rank, at some of the calls of `Monitor.step` (see
    `every`); at the first of these twice more (did all ranks resume at the same step); and, only where that agreed on
    a save, twice more (is any rank's loss poisoned; did any rank fail), the last of which is also the barrier that puts
    the manifest after every rank's shards. All ranks must therefore call `Monitor.step` equally often. Values are below
    2**24.

    every: at every so many calls; or None: at as many as take a few seconds (`Config.agree_s`), agreed on by the ranks.
    """

    @property
    def every(self) -> int | None: ...

    def highest(self, value: int) -> int: ...


class Solo:
    """A single process agrees with itself, at every step."""

    every = 1

    def highest(self, value: int) -> int:
        return value


class AllReduceMax:
    """Agreement through the user's own all-reduce: `reduce_max(value) -> the highest value of all ranks`."""

    def __init__(self, reduce_max: Callable[[int], int], *, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError("every must be at least 1")
        self.every = every
        self._reduce_max = reduce_max

    def highest(self, value: int) -> int:
        return int(self._reduce_max(value))
