"""How many samples the run's steps use, for manifests: asked of the sampler that resumes by this monitor's plan."""

from __future__ import annotations

import weakref
from typing import Protocol


class SampleCounter(Protocol):
    """A sampler that all ranks use alike."""

    @property
    def used_by_step(self) -> int:
        """Samples, by all ranks."""
        ...

    def used(self, step: int) -> int | None:
        """The samples that were used up to a step; None where that is not known."""
        ...


_newest: weakref.ref[SampleCounter] | None = None


def watch_samples(counter: SampleCounter) -> None:
    """Manifests of this process say from now on what this one counts."""
    global _newest
    _newest = weakref.ref(counter)


def samples_at(step: int) -> tuple[int | None, int | None]:
    """(samples that were used up to the step, samples per step); None where they are not known. For any thread."""
    counter = None if _newest is None else _newest()
    return (None, None) if counter is None else (counter.used(step), counter.used_by_step)
