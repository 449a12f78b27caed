"""Playing one story: the world, the judge over it, the verdict."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation.judging.bill import Bill
from simulation.judging.counts import Figures, Unsafe
from simulation.judging.judge import Judge
from simulation.stages.persons import Persons
from simulation.stages.world import World
from simulation.stories.story import Story

Break = Callable[[World], None]
"""Breaks a part of a world before it is played: how the judge itself is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one story came to."""

    story: Story
    unsafe: tuple[Unsafe, ...]
    figures: Figures
    bill: Bill

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(unsafe.kind for unsafe in self.unsafe)


def play(story: Story, *, broken: Break | None = None) -> Verdict:
    """Play it. The same story gives the same verdict."""
    world, judge = played(story, broken=broken)
    del world
    return Verdict(story=story, unsafe=tuple(judge.unsafe), figures=judge.figures, bill=judge.bill)


def played(story: Story, *, broken: Break | None = None) -> tuple[World, Judge]:
    """The same, with the world as it is at the end, for one who wants to look into it."""
    random.seed(story.seed)  # the durable SDK draws the jitter of its retries from the module's own generator
    world = World(story)
    Persons(world)
    judge = Judge(world)
    if broken is not None:
        broken(world)
    world.play()
    judge.close()
    return world, judge
