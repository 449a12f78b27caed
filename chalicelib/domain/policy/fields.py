"""How a policy document's fields are declared, read and written. Pure; knows no field itself.

A record of the document is a frozen dataclass whose fields are made with `declared` or `required`: the kind of value
with its range and unit, the default, and one line for people. From these declarations come `read_record` and
`write_record` here, and the reference and the JSON Schema that infra/policy_docs.py writes. A field made otherwise is a
constant: it is no part of a document.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from chalicelib.domain.model.errors import InvalidPolicy
from chalicelib.domain.policy.kinds import Bare, Kind, shown

T = TypeVar("T")
_SPEC: Final = "policy"


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
    return f"{path}.{key}" if path else key


@dataclass(frozen=True, slots=True)
class Group(Bare, Generic[T]):
    """An object of the document: a record of its own."""

    record: type[T]

    def read(self, path: str, value: Any) -> T:
        return read_record(self.record, path, value)

    def write(self, value: T) -> dict[str, Any]:
        return write_record(value)


@dataclass(frozen=True, slots=True)
class Rows(Bare, Generic[T]):
    """A list of at most `most` objects, each a record."""

    most: ClassVar[int] = 20
    record: type[T]

    def read(self, path: str, value: Any) -> tuple[T, ...]:
        if not isinstance(value, list) or len(value) > self.most:
            raise InvalidPolicy(path, f"must be a list of at most {self.most} rows, not {shown(value)}")
        return tuple(read_record(self.record, f"{path}[{index}]", row) for index, row in enumerate(value))

    def write(self, value: tuple[T, ...]) -> list[dict[str, Any]]:
        return [write_record(row) for row in value]
