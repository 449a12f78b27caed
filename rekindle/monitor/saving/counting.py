"""How the files of this run's checkpoints count its steps, learnt from those that were seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

from rekindle.checkpoints.counts import Counted
from rekindle.monitor.base.trouble import logger

KEPT: Final = 16


class OwnCounts:
    """Of one run; used by the sealing thread alone. `resumed` is asked once, at the first look."""

    def __init__(self, left_out: int = 0, resumed: Callable[[], Iterable[Counted]] = tuple) -> None:
        """left_out: steps that the plan skips. resumed: what the checkpoint names that this run went on from."""
        self.left_out = left_out
        self._resumed: Callable[[], Iterable[Counted]] | None = resumed
        self._seen: deque[Counted] = deque(maxlen=KEPT)
        self._first: tuple[Counted, ...] = ()

    def learn(self) -> None:
        """Look at the resumed checkpoint, before it may be written over. Never raises."""
        if self._resumed is None:
            return
        try:
            self._first, self._resumed = tuple(self._resumed()), None
        except Exception as err:  # of the store or of the file system: asked again
            logger.info("How the resumed checkpoint counts its steps cannot be read: %r", err)

    @property
    def known(self) -> Collection[Counted]:
        return (*self._first, *self._seen)

    def saw(self, step: int, numbers: Iterable[int], *, is_sealed: bool) -> None:
        """The files of a save of `step` name these numbers. is_sealed: nothing is wrong with it."""
        for number in set(numbers):
            one = Counted(step, number, is_sealed)
            if one not in self._seen:
                self._seen.append(one)
