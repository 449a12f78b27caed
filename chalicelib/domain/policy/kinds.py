"""Kinds of values in a policy document: the range and the unit of each, how it is read and written. Pure."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from chalicelib.domain.model.errors import InvalidPolicy

T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)
DAY_S: Final = 86400
_TIME_OF_DAY: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


class Kind(Protocol[T]):
    """A kind of value: how it is read from JSON and written to it."""

    suffix: ClassVar[str]  # of the field's name in the document: "_s" for seconds

    def read(self, path: str, value: Any) -> T:
        """The value inside.

        Raises:
            InvalidPolicy: names `path`, what is allowed there and what was given.
        """
        ...

    def write(self, value: T) -> Any:
        """The value as JSON; `read` gives the same value back."""
        ...


class Bare:
    """Base of the kinds whose fields have no suffix; what is JSON already is written as it is."""

    __slots__ = ()
    suffix: ClassVar[str] = ""

    def write(self, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class Exactly(Bare):
    """One whole number and no other."""

    only: int

    def read(self, path: str, value: Any) -> int:
        if isinstance(value, bool) or value != self.only:
            raise InvalidPolicy(path, f"must be {self.only}, the version that this service reads, not {shown(value)}")
        return self.only


@dataclass(frozen=True, slots=True)
class Text(Bare):
    """A text of so many characters."""

    low: int
    high: int

    def read(self, path: str, value: Any) -> str:
        if not isinstance(value, str) or not self.low <= len(value) <= self.high:
            raise InvalidPolicy(path, f"must be a text of {self.low} to {self.high} characters, not {shown(value)}")
        return value


class Flag(Bare):
    """True or false."""

    def read(self, path: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidPolicy(path, f"must be true or false, not {shown(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Count(Bare):
    """A whole number within a range, ends included. `unit` is what is counted."""

    low: int
    high: int
    unit: str

    def read(self, path: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise InvalidPolicy(path, f"must be a whole number from {self.low} to {self.high}, not {shown(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Number(Bare):
    """A number within a range, ends included."""

    low: float
    high: float
    unit: str

    def read(self, path: str, value: Any) -> float:
        if not _is_number(value) or not self.low <= value <= self.high:
            span = f"{self.low:.15g} to {self.high:.15g}"
            raise InvalidPolicy(path, f"must be a number from {span}, not {shown(value)}")
        return float(value)

    def write(self, value: float) -> float:
        return _plain(value)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration, in the document a number of seconds within a range, ends included."""

    suffix: ClassVar[str] = "_s"
    unit: ClassVar[str] = "seconds"
    low: float
    high: float

    def read(self, path: str, value: Any) -> timedelta:
        if not _is_number(value) or not self.low <= value <= self.high:
            span = f"{self.low:.15g} to {self.high:.15g}"
            raise InvalidPolicy(path, f"must be a number of seconds from {span}, not {shown(value)}")
        return timedelta(seconds=float(value))

    def write(self, value: timedelta) -> float:
        return _plain(value.total_seconds())


@dataclass(frozen=True, slots=True)
class SecondsList:
    """A list of 1 to `longest` durations of one range."""

    suffix: ClassVar[str] = "_s"
    longest: ClassVar[int] = 16
    each: Seconds

    def read(self, path: str, value: Any) -> tuple[timedelta, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= self.longest:
            raise InvalidPolicy(path, f"must be a list of 1 to {self.longest} numbers of seconds, not {shown(value)}")
        return tuple(self.each.read(f"{path}[{index}]", item) for index, item in enumerate(value))

    def write(self, value: tuple[timedelta, ...]) -> list[float]:
        return [self.each.write(item) for item in value]


@dataclass(frozen=True, slots=True)
class OneOf(Bare, Generic[T]):
    """One of a few words; `words` says what each stands for."""

    words: Mapping[str, T]

    def read(self, path: str, value: Any) -> T:
        if not isinstance(value, str) or value not in self.words:
            raise InvalidPolicy(path, f"must be one of {', '.join(self.words)}, not {shown(value)}")
        return self.words[value]

    def write(self, value: T) -> str:
        return next(word for word, meant in self.words.items() if meant == value)


@dataclass(frozen=True, slots=True)
class SomeOf(Bare, Generic[T]):
    """A list of words, at least `least` of them; kept in the order of `words`, each once."""

    words: Mapping[str, T]
    least: int = 0

    def read(self, path: str, value: Any) -> tuple[T, ...]:
        if (
            not isinstance(value, list)
            or any(word not in list(self.words) for word in value)
            or len(value) < self.least
        ):
            some = f"at least {self.least}" if self.least else "any"
            raise InvalidPolicy(path, f"must be a list of {some} of {', '.join(self.words)}, not {shown(value)}")
        return tuple(meant for word, meant in self.words.items() if word in value)

    def write(self, value: tuple[T, ...]) -> list[str]:
        return [word for word, meant in self.words.items() if meant in value]


class TimeOfDay(Bare):
    """A time of day in UTC, `HH:MM`."""

    def read(self, path: str, value: Any) -> time:
        if not isinstance(value, str) or not _TIME_OF_DAY.fullmatch(value):
            raise InvalidPolicy(path, f"must be a time of day in UTC such as 22:30, not {shown(value)}")
        return time.fromisoformat(value)

    def write(self, value: time) -> str:
        return f"{value:%H:%M}"


@dataclass(frozen=True, slots=True)
class OrNone(Bare, Generic[T]):
    """A value, or null for none."""

    kind: Kind[T]

    def read(self, path: str, value: Any) -> T | None:
        return None if value is None else self.kind.read(path, value)

    def write(self, value: T | None) -> Any:
        return None if value is None else self.kind.write(value)


def words_of(kind: type[Word]) -> dict[str, Word]:
    """The words of a closed vocabulary, for OneOf and SomeOf."""
    return {word.value: word for word in kind}


def shown(value: Any) -> str:
    """What was given, short enough for a message."""
    return reprlib.repr(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: float) -> float:
    """300 rather than 300.0."""
    return int(value) if value == int(value) else value
