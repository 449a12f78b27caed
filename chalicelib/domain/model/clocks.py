"""How a pause moves the times that an Incident keeps. Pure.

A pause uses up no limit: what a limit is measured from, and what is waited for, move on with it. Each time of a record
that can move has a type that says how: `Since`, `Due` or `Fact`. `moved_on` applies it.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    RecordT = TypeVar("RecordT", bound=DataclassInstance)


class Clock(Enum):
    """What a pause does to a time."""

    SINCE = "since"
    DUE = "due"
    FACT = "fact"


Since = Annotated[datetime, Clock.SINCE]  # a limit is measured from it: later by the part of the pause that followed it
Due = Annotated[datetime, Clock.DUE]  # waited for: later by the whole pause
Fact = Annotated[datetime, Clock.FACT]  # when something occurred: stays


@dataclass(frozen=True, slots=True)
class Pause:
    """The time from `began` to `now`, in which no limit runs."""

    began: datetime
    now: datetime

    def since(self, moment: datetime) -> datetime:
        """`moment`, later by as much of the pause as came after it."""
        return moment + (self.now - max(moment, self.began))

    def due(self, moment: datetime) -> datetime:
        """`moment`, later by the whole pause."""
        return moment + (self.now - self.began)


def moved_on(record: RecordT, pause: Pause) -> RecordT:
    """The record with its own times moved as their types say; records within it are left as they are."""
    moved = {}
    for name, move in _moving(type(record)):
        moment = getattr(record, name)
        if moment is not None:
            moved[name] = move(pause, moment)
    return dataclasses.replace(record, **moved) if moved else record


def clocks_of(kind: type) -> dict[str, Clock | None]:
    """The clock of each field of a record that is a time, or may be; None where its type names none."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found: dict[str, Clock | None] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        for member in (hint, *typing.get_args(hint)):
            if member is datetime:
                found.setdefault(field.name, None)
            elif typing.get_origin(member) is Annotated and member.__origin__ is datetime:
                found[field.name] = next(mark for mark in member.__metadata__ if isinstance(mark, Clock))
    return found


@functools.cache
def _moving(kind: type) -> tuple[tuple[str, Callable[[Pause, datetime], datetime]], ...]:
    how: dict[Any, Callable[[Pause, datetime], datetime]] = {Clock.SINCE: Pause.since, Clock.DUE: Pause.due}
    return tuple((name, how[clock]) for name, clock in clocks_of(kind).items() if clock in how)
