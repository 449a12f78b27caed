"""Whether the number in a checkpoint's file is the step that it is said to be of, however its script counts.

Scripts count from 0 or from 1, before or after they save, the samples, tokens or micro-steps instead of the steps, each
process's own steps only, or not the steps that a plan leaves out. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

STEPS_APART: Final = 1  # scripts count from 0 or from 1, and save before or after they count
SURE_FROM: Final = 8  # a step from which on a number that is the step's own is hardly so by chance
COARSEST: Final = 2  # numbers below are in proportion to almost every step


@dataclass(frozen=True, slots=True)
class Counted:
    """The number in a checkpoint of that step. is_sealed: it was vouched for; otherwise only seen."""

    step: int
    number: int
    is_sealed: bool = True

    @property
    def is_of_step(self) -> bool:
        """Its script counts steps, and hardly so by chance."""
        return self.step >= SURE_FROM and abs(self.number - self.step) <= STEPS_APART


def fits(step: int, number: int, known: Collection[Counted] = (), left_out: int = 0) -> bool:
    """Whether a checkpoint of `step` may hold that number. known: others of the run. left_out: steps of its plan that
    a trainer's own counter may not count.
    """
    if -STEPS_APART - left_out <= number - step <= STEPS_APART:
        return True
    others = [other for other in known if other.step != step and other.number != number]
    sealed = [other for other in others if other.is_sealed]
    if any(_is_as_far(other, step, number, left_out) for other in sealed):
        return True
    if any(other.is_of_step for other in sealed):
        return False
    return _is_finer(step, number) or any(_is_in_proportion(other, step, number) for other in others)


def closest(step: int, numbers: Iterable[int]) -> int | None:
    """The one of a file's numbers that most likely counts its steps; None for none."""
    return min(numbers, key=lambda number: abs(number - step), default=None)


def _is_as_far(other: Counted, step: int, number: int, left_out: int) -> bool:
    """Whether it has moved on by as many as the steps have, apart from those that are left out."""
    apart = (number - other.number) - (step - other.step)
    return abs(other.number - other.step) > STEPS_APART and -STEPS_APART - left_out <= apart <= STEPS_APART


def _is_finer(step: int, number: int) -> bool:
    """Whether it counts some things of which each step has as many: it is a multiple of the steps."""
    return any(
        near > 0 and round(number / near) > 1 and abs(number - round(number / near) * near) <= STEPS_APART
        for near in range(step - STEPS_APART, step + STEPS_APART + 1)
    )


def _is_in_proportion(other: Counted, step: int, number: int) -> bool:
    """Whether both count some things of which there are as few to each step."""
    if min(number, other.number) < COARSEST or number >= step or other.number >= other.step:
        return False
    least = max(step / (number + 1), other.step / (other.number + 1))
    most = min(step / (number - 1), other.step / (other.number - 1))
    return least <= most and most > 1 + STEPS_APART / 2
