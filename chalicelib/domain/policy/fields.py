"""How a policy document's fields are declared, read and written. Pure; knows no field itself.

A record of the document is a frozen dataclass whose fields are made with `declared` or `required`: the kind of value
with its range and unit, the default, and one line for people. From these declarations come `read_record` and
`write_record` here, and the reference and the JSON Schema that infra/policy_docs.py writes. A field made otherwise is a
constant: it is no part of a document.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import reprlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import time, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, cast

from chalicelib.domain.model.errors import InvalidPolicy

T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)
DAY_S: Final = 86400
_SPEC: Final = "policy"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """One declared field of a record. `key` is its name in the document, `whom` says who would set it."""

    name: str
    key: str
    kind: Kind[Any]
    says: str
    whom: str
    default: Any
    is_required: bool


def declared(default: T, kind: Kind[T], says: str, *, whom: str = "", key: str = "") -> T:
    """A field of a record: its default, kind and line for people. `key`: its name in the document, if it has another.

    `whom` completes "for ...": who would set it. A column of a table needs none, the table has it.
    The result is a dataclass field; it is typed as the value, so that default, kind and annotation have to agree.
    """
    made: Any = dataclasses.field(default=default, metadata={_SPEC: (kind, says, whom, key)})
    return made  # type: ignore[no-any-return]


def required(kind: Kind[T], says: str, *, key: str = "") -> T:
    """A field that the document has to give."""
    made: Any = dataclasses.field(metadata={_SPEC: (kind, says, "", key)})
    return made  # type: ignore[no-any-return]


def group(record: type[T]) -> T:
    """A field that is a record of its own, by default with all its defaults; its line is the record's docstring."""
    return declared(record(), Group(record), first_line(record))


def first_line(record: type[Any]) -> str:
    """The first line of a record's docstring: what people read of it."""
    return (record.__doc__ or "").partition("\n")[0]


def specs(record: type[Any]) -> tuple[FieldSpec, ...]:
    """The declared fields of a record, in the order of their declaration."""
    return _specs(cast("Hashable", record))  # mypy 1.x takes type[Any] for not hashable


@functools.cache
def _specs(record: Any) -> tuple[FieldSpec, ...]:
    found = []
    for field in dataclasses.fields(record):
        if _SPEC not in field.metadata:
            continue
        kind, says, whom, key = field.metadata[_SPEC]
        found.append(
            FieldSpec(
                name=field.name,
                key=key or f"{field.name}{kind.suffix}",
                kind=kind,
                says=says,
                whom=whom,
                default=field.default,
                is_required=field.default is dataclasses.MISSING,
            )
        )
    return tuple(found)


def read_record(record: type[T], path: str, value: Any) -> T:
    """Read a record from a JSON object; a field that is left out takes its default.

    Raises:
        InvalidPolicy: names the first field that is wrong, unknown or missing.
    """
    if not isinstance(value, Mapping):
        raise InvalidPolicy(path or "policy", f"must be an object, not {type(value).__name__}")
    fields = specs(record)
    known = [spec.key for spec in fields]
    for key in value:
        if key not in known:
            raise InvalidPolicy(member_path(path, str(key)), f"is not known; known are {', '.join(known)}")
    read = {}
    for spec in fields:
        if spec.key in value:
            read[spec.name] = spec.kind.read(member_path(path, spec.key), value[spec.key])
        elif spec.is_required:
            raise InvalidPolicy(member_path(path, spec.key), "is missing")
    return record(**read)


def write_record(value: Any) -> dict[str, Any]:
    """A record as a JSON object, with every field."""
    return {spec.key: spec.kind.write(getattr(value, spec.name)) for spec in specs(type(value))}


def member_path(path: str, key: str) -> str:
    """The path of the member `key` of the object at `path`."""
    return f"{path}.{key}" if path else key


def _shown(value: Any) -> str:
    """What was given, short enough for a message."""
    return reprlib.repr(value)


@dataclass(frozen=True, slots=True)
class Exactly:
    """One whole number and no other."""

    suffix: ClassVar[str] = ""
    only: int

    def read(self, path: str, value: Any) -> int:
        """See Kind."""
        if isinstance(value, bool) or value != self.only:
            raise InvalidPolicy(path, f"must be {self.only}, the version that this service reads, not {_shown(value)}")
        return self.only

    def write(self, value: int) -> int:
        """See Kind."""
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text of so many characters."""

    suffix: ClassVar[str] = ""
    low: int
    high: int

    def read(self, path: str, value: Any) -> str:
        """See Kind."""
        if not isinstance(value, str) or not self.low <= len(value) <= self.high:
            raise InvalidPolicy(path, f"must be a text of {self.low} to {self.high} characters, not {_shown(value)}")
        return value

    def write(self, value: str) -> str:
        """See Kind."""
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    suffix: ClassVar[str] = ""

    def read(self, path: str, value: Any) -> bool:
        """See Kind."""
        if not isinstance(value, bool):
            raise InvalidPolicy(path, f"must be true or false, not {_shown(value)}")
        return value

    def write(self, value: bool) -> bool:
        """See Kind."""
        return value


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number within a range, ends included. `unit` is what is counted."""

    suffix: ClassVar[str] = ""
    low: int
    high: int
    unit: str

    def read(self, path: str, value: Any) -> int:
        """See Kind."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise InvalidPolicy(path, f"must be a whole number from {self.low} to {self.high}, not {_shown(value)}")
        return value

    def write(self, value: int) -> int:
        """See Kind."""
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number within a range, ends included."""

    suffix: ClassVar[str] = ""
    low: float
    high: float
    unit: str

    def read(self, path: str, value: Any) -> float:
        """See Kind."""
        if not _is_number(value) or not self.low <= value <= self.high:
            span = f"{self.low:.15g} to {self.high:.15g}"
            raise InvalidPolicy(path, f"must be a number from {span}, not {_shown(value)}")
        return float(value)

    def write(self, value: float) -> float:
        """See Kind."""
        return _plain(value)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration, in the document a number of seconds within a range, ends included."""

    suffix: ClassVar[str] = "_s"
    unit: ClassVar[str] = "seconds"
    low: float
    high: float

    def read(self, path: str, value: Any) -> timedelta:
        """See Kind."""
        if not _is_number(value) or not self.low <= value <= self.high:
            span = f"{self.low:.15g} to {self.high:.15g}"
            raise InvalidPolicy(path, f"must be a number of seconds from {span}, not {_shown(value)}")
        return timedelta(seconds=float(value))

    def write(self, value: timedelta) -> float:
        """See Kind."""
        return _plain(value.total_seconds())


@dataclass(frozen=True, slots=True)
class SecondsList:
    """A list of 1 to `longest` durations of one range."""

    suffix: ClassVar[str] = "_s"
    longest: ClassVar[int] = 16
    each: Seconds

    def read(self, path: str, value: Any) -> tuple[timedelta, ...]:
        """See Kind."""
        if not isinstance(value, list) or not 1 <= len(value) <= self.longest:
            raise InvalidPolicy(path, f"must be a list of 1 to {self.longest} numbers of seconds, not {_shown(value)}")
        return tuple(self.each.read(f"{path}[{index}]", item) for index, item in enumerate(value))

    def write(self, value: tuple[timedelta, ...]) -> list[float]:
        """See Kind."""
        return [self.each.write(item) for item in value]


@dataclass(frozen=True, slots=True)
class OneOf(Generic[T]):
    """One of a few words; `words` says what each stands for."""

    suffix: ClassVar[str] = ""
    words: Mapping[str, T]

    def read(self, path: str, value: Any) -> T:
        """See Kind."""
        if not isinstance(value, str) or value not in self.words:
            raise InvalidPolicy(path, f"must be one of {', '.join(self.words)}, not {_shown(value)}")
        return self.words[value]

    def write(self, value: T) -> str:
        """See Kind."""
        return next(word for word, meant in self.words.items() if meant == value)


@dataclass(frozen=True, slots=True)
class SomeOf(Generic[T]):
    """A list of words, at least `least` of them; kept in the order of `words`, each once."""

    suffix: ClassVar[str] = ""
    words: Mapping[str, T]
    least: int = 0

    def read(self, path: str, value: Any) -> tuple[T, ...]:
        """See Kind."""
        if (
            not isinstance(value, list)
            or any(word not in list(self.words) for word in value)
            or len(value) < self.least
        ):
            some = f"at least {self.least}" if self.least else "any"
            raise InvalidPolicy(path, f"must be a list of {some} of {', '.join(self.words)}, not {_shown(value)}")
        return tuple(meant for word, meant in self.words.items() if word in value)

    def write(self, value: tuple[T, ...]) -> list[str]:
        """See Kind."""
        return [word for word, meant in self.words.items() if meant in value]


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """A time of day in UTC, `HH:MM`."""

    suffix: ClassVar[str] = ""

    def read(self, path: str, value: Any) -> time:
        """See Kind."""
        if not isinstance(value, str) or not _TIME_OF_DAY.fullmatch(value):
            raise InvalidPolicy(path, f"must be a time of day in UTC such as 22:30, not {_shown(value)}")
        return time.fromisoformat(value)

    def write(self, value: time) -> str:
        """See Kind."""
        return f"{value:%H:%M}"


@dataclass(frozen=True, slots=True)
class OrNone(Generic[T]):
    """A value, or null for none."""

    suffix: ClassVar[str] = ""
    kind: Kind[T]

    def read(self, path: str, value: Any) -> T | None:
        """See Kind."""
        return None if value is None else self.kind.read(path, value)

    def write(self, value: T | None) -> Any:
        """See Kind."""
        return None if value is None else self.kind.write(value)


@dataclass(frozen=True, slots=True)
class Group(Generic[T]):
    """An object of the document: a record of its own."""

    suffix: ClassVar[str] = ""
    record: type[T]

    def read(self, path: str, value: Any) -> T:
        """See Kind."""
        return read_record(self.record, path, value)

    def write(self, value: T) -> dict[str, Any]:
        """See Kind."""
        return write_record(value)


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """A list of at most `most` objects, each a record."""

    suffix: ClassVar[str] = ""
    most: ClassVar[int] = 20
    record: type[T]

    def read(self, path: str, value: Any) -> tuple[T, ...]:
        """See Kind."""
        if not isinstance(value, list) or len(value) > self.most:
            raise InvalidPolicy(path, f"must be a list of at most {self.most} rows, not {_shown(value)}")
        return tuple(read_record(self.record, f"{path}[{index}]", row) for index, row in enumerate(value))

    def write(self, value: tuple[T, ...]) -> list[dict[str, Any]]:
        """See Kind."""
        return [write_record(row) for row in value]


def words_of(kind: type[Word]) -> dict[str, Word]:
    """The words of a closed vocabulary, for OneOf and SomeOf."""
    return {word.value: word for word in kind}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: float) -> float:
    """300 rather than 300.0."""
    return int(value) if value == int(value) else value
