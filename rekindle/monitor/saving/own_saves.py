"""What the other checkpoints of this run show of a new one: how they count its steps, and of which parts they are."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

from rekindle.checkpoints.counts import Counted
from rekindle.checkpoints.families import pattern_of
from rekindle.checkpoints.folders import files_beside
from rekindle.checkpoints.shapes import Siblings, not_by_each, ranks_missing, shape_of
from rekindle.monitor.base.trouble import logger
from rekindle.protocol.manifests import ITSELF

KEPT: Final = 16


class OwnSaves:
    """Of one run; used by the sealing thread alone. `resumed` is asked once, at the first look."""

    def __init__(
        self, left_out: int = 0, resumed: Callable[[], Iterable[Counted]] = tuple, *, world_size: int = 1
    ) -> None:
        """left_out: steps that the plan skips. resumed: what the checkpoint names that this run went on from."""
        self.left_out = left_out
        self._world_size = world_size
        self._resumed: Callable[[], Iterable[Counted]] | None = resumed
        self._first: tuple[Counted, ...] = ()
        self._counted: deque[Counted] = deque(maxlen=KEPT)
        self._sealed: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}  # by family, the newest

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
        """The parts which it has not, and a process wrote or others have that lie beside it or were sealed.

        Raises: OSError.
        """
        if ITSELF in files:
            return []
        name, own = os.path.basename(root), shape_of(files)
        beside = files_beside(root)
        before = self._sealed.get(pattern_of(name))
        # What was sealed may have been removed since, or be written over by this one.
        groups = [beside, *([dict([before])] if before is not None and before[0] not in beside else [])]
        problems = [
            text
            for others in groups
            for text in (
                *Siblings({place: shape_of(inside) for place, inside in others.items()}).missing("", own),
                *ranks_missing(others, files, self._world_size),
            )
        ]
        return list(dict.fromkeys((*not_by_each(files, self._world_size), *problems)))

    def saw(self, step: int, root: str | os.PathLike[str], files: dict[str, int | None], *, is_sealed: bool) -> None:
        """A save of `step`. files: by name, the number that each names as its step. is_sealed: nothing is wrong."""
        for number in {number for number in files.values() if number is not None}:
            counted = Counted(step, number, is_sealed)
            if counted not in self._counted:
                self._counted.append(counted)
        if is_sealed:
            name = os.path.basename(root)
            self._sealed[pattern_of(name)] = name, tuple(files)
