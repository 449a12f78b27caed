"""What the other checkpoints of this run show of a new one: how they count its steps, and of which parts they are."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

from rekindle.checkpoints.counts import Counted
from rekindle.checkpoints.families import pattern_of
from rekindle.checkpoints.folders import shapes_beside
from rekindle.checkpoints.shapes import Shape, Siblings, shape_of
from rekindle.monitor.base.trouble import logger

KEPT: Final = 16


class OwnSaves:
    """Of one run; used by the sealing thread alone. `resumed` is asked once, at the first look."""

    def __init__(self, left_out: int = 0, resumed: Callable[[], Iterable[Counted]] = tuple) -> None:
        """left_out: steps that the plan skips. resumed: what the checkpoint names that this run went on from."""
        self.left_out = left_out
        self._resumed: Callable[[], Iterable[Counted]] | None = resumed
        self._first: tuple[Counted, ...] = ()
        self._counted: deque[Counted] = deque(maxlen=KEPT)
        self._sealed: dict[tuple[str, str], tuple[str, Shape]] = {}  # the newest of each family: its name and its parts

    def learn(self) -> None:
        """Look at the resumed checkpoint, before it may be written over. Never raises."""
        if self._resumed is None:
            return
        try:
            self._first, self._resumed = tuple(self._resumed()), None
        except Exception as err:  # of the store or of the file system: asked again
            logger.info("How the resumed checkpoint counts its steps cannot be read: %r", err)

    @property
    def counted(self) -> Collection[Counted]:
        return (*self._first, *self._counted)

    def missing(self, root: str | os.PathLike[str], files: Collection[str]) -> list[str]:
        """The parts which it has not, and the others have that lie beside it or were sealed. Raises: OSError."""
        if len(files) < 2:
            return []
        name, own = os.path.basename(root), shape_of(files)
        beside = shapes_beside(root)
        before = self._sealed.get(pattern_of(name))
        problems = Siblings(beside).missing(name, own)
        if before is not None and before[0] not in beside:  # removed since, or written over by this one
            problems += Siblings(dict([before])).missing("", own)
        return list(dict.fromkeys(problems))

    def saw(self, step: int, root: str | os.PathLike[str], files: dict[str, int | None], *, is_sealed: bool) -> None:
        """A save of `step`. files: by name, the number that each names as its step. is_sealed: nothing is wrong."""
        for number in {number for number in files.values() if number is not None}:
            one = Counted(step, number, is_sealed)
            if one not in self._counted:
                self._counted.append(one)
        if is_sealed:
            name = os.path.basename(root)
            self._sealed[pattern_of(name)] = name, shape_of(files)
