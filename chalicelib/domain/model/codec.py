"""How records are stored and sent: the JSON form of a dataclass comes from its fields' types. Standard library only.

    bool, int, float, str, None    as JSON has them
    StrEnum                        its value
    datetime                       ISO 8601
    timedelta                      seconds
    Known, Unknown                 {"known": value}, {"unknown": why}
    tuple                          a list
    Mapping                        an object; of `Any`, it is taken as it is
    dataclass                      an object without the fields that hold their default; a list of all fields where the
                                   class sets `wire_row`
    union of dataclasses           the object, and the class's name in the member that the classes name in `wire_tag`
    class with `from_reader`       its own form, which the training side shares (rekindle.protocol)

A field that is left out takes its default: a changed default changes what stored records mean. Forms are made once per
type, when the type is first written or read.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self, cast

from chalicelib.domain.model.errors import MalformedRecord
from chalicelib.domain.model.known import Known, Unknown
from rekindle.protocol.wire import Reader

_MISSING: Final = dataclasses.MISSING


class Record:
    """Base of the dataclasses that are written and read by themselves; what they hold needs no base."""

    __slots__ = ()

    def to_wire(self, *, defaults: bool = False) -> dict[str, Any]:
        """JSON form. `defaults`: with the fields that hold their default, as the API shows a record."""
        return cast("dict[str, Any]", _form_of(type(self)).write(self, defaults))

    @classmethod
    def from_wire(cls, wire: object, *, beyond: list[str] | None = None) -> Self:
        """Inverse of `to_wire`; see `read`."""
        return cast("Self", read(cls, wire, beyond=beyond))


def read(kind: Any, wire: object, *, beyond: list[str] | None = None) -> Any:
    """A value of `kind` from its JSON form. Fields that this version does not know are added to `beyond`, dotted.

    Raises:
        MalformedRecord: names the first field that is missing or wrong; without `beyond` also one that is not known.
    """
    found: list[str] = []
    value = _form_of(kind).read(wire, found)
    if beyond is not None:
        beyond.extend(found)
    elif found:
        raise MalformedRecord(found[0], "is not known to this version")
    return value


def split(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The fields of a dataclass: those whose JSON is no object and no list, and the others."""
    return _split(cast("Hashable", kind))  # mypy 1.x takes a class for not hashable


@functools.cache
def _split(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    scalars = frozenset(one.name for one in _fields(kind) if one.form.is_scalar)
    return scalars, frozenset(one.name for one in dataclasses.fields(kind)) - scalars


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of one type are written and read.

    `write` takes the value, and whether defaults are written. `read` takes the JSON, and the list to which it adds the
    fields that are not known. `is_scalar`: the JSON is no object and no list; `is_plain`: it is the value as it is.
    """

    write: Callable[[Any, bool], Any]
    read: Callable[[Any, list[str]], Any]
    is_scalar: bool = False
    is_plain: bool = False


_FORMS: Final[dict[Any, _Form]] = {}


def _form_of(kind: Any) -> _Form:
    try:
        return _FORMS[kind]
    except KeyError:
        made = _FORMS[kind] = _made(kind)
        return made


def _made(kind: Any) -> _Form:
    """The form of a type. Raises TypeError for one that records may not hold: a mistake of ours, found by a test."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is tuple:
        return _sequence(args[0]) if args[1:] == (...,) else _fixed(args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(args[1])
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return _enum(kind)
        if hasattr(kind, "from_reader"):
            return _message(kind)
        if dataclasses.is_dataclass(kind):
            return _row(kind) if getattr(kind, "wire_row", False) else _object(kind)
    raise TypeError(f"no stored form for {kind!r}")


def _not(wanted: str, value: object) -> MalformedRecord:
    return MalformedRecord("", f"must be {wanted}, not {type(value).__name__}")


# ---- scalars ---------------------------------------------------------------------------------------------------------


def _as_it_is(value: Any, _: object) -> Any:
    return value


def _scalar(kind: type[Any], wanted: str) -> _Form:
    def read_one(value: Any, _: list[str]) -> Any:
        if type(value) is kind:
            return value
        raise _not(wanted, value)

    return _Form(_as_it_is, read_one, is_scalar=True, is_plain=True)


def _read_int(value: Any, _: list[str]) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    raise _not("a whole number", value)


def _read_float(value: Any, _: list[str]) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    raise MalformedRecord("", f"must be a finite number, not {str(value)[:40]!r}")


def _read_datetime(value: Any, _: list[str]) -> datetime:
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        at = None
    if at is None or at.tzinfo is None:  # one without an offset cannot be compared with those that have one
        raise MalformedRecord("", f"must be a time with its offset (ISO 8601), not {str(value)[:40]!r}")
    return at


def _read_timedelta(value: Any, found: list[str]) -> timedelta:
    try:
        return timedelta(seconds=_read_float(value, found))
    except OverflowError:
        raise MalformedRecord("", f"must be seconds of a duration, not {str(value)[:40]!r}") from None


def _write_datetime(value: datetime, _: bool) -> str:
    return value.isoformat()


def _write_timedelta(value: timedelta, _: bool) -> float:
    return value.total_seconds()


_SCALARS: Final[dict[Any, _Form]] = {
    Any: _Form(_as_it_is, _as_it_is, is_plain=True),
    str: _scalar(str, "text"),
    bool: _scalar(bool, "true or false"),
    int: _Form(_as_it_is, _read_int, is_scalar=True, is_plain=True),
    float: _Form(_as_it_is, _read_float, is_scalar=True, is_plain=True),
    types.NoneType: _scalar(types.NoneType, "null"),
    datetime: _Form(_write_datetime, _read_datetime, is_scalar=True),
    timedelta: _Form(_write_timedelta, _read_timedelta, is_scalar=True),
}


def _enum(kind: type[enum.Enum]) -> _Form:
    members = {one.value: one for one in kind}

    def write(value: Any, _: bool) -> Any:
        return value.value

    def read_one(value: Any, _: list[str]) -> Any:
        try:
            return members[value]
        except (KeyError, TypeError):
            raise MalformedRecord("", f"is none of {kind.__name__}: {str(value)[:40]!r}") from None

    return _Form(write, read_one, is_scalar=True)


def _message(kind: Any) -> _Form:
    def write(value: Any, _: bool) -> Any:
        return value.to_wire()

    def read_one(value: Any, _: list[str]) -> Any:
        if not isinstance(value, Mapping):
            raise _not("an object", value)
        try:
            return kind.from_reader(Reader(value))
        except ValueError as err:
            raise MalformedRecord("", str(err)) from err

    return _Form(write, read_one)


# ---- what holds others -----------------------------------------------------------------------------------------------


def _within(form: _Form, name: str | int, value: Any, found: list[str]) -> Any:
    """Read a member; its name goes before those of the fields that are wrong or not known in it."""
    before = len(found)
    try:
        made = form.read(value, found)
    except MalformedRecord as err:
        raise err.within(str(name)) from None
    if len(found) > before:
        found[before:] = [f"{name}.{one}" for one in found[before:]]
    return made


def _sequence(of: Any) -> _Form:
    form = _form_of(of)

    def write(value: Any, defaults: bool) -> list[Any]:
        return list(value) if form.is_plain else [form.write(one, defaults) for one in value]

    def read_one(value: Any, found: list[str]) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise _not("a list", value)
        return tuple([_within(form, index, one, found) for index, one in enumerate(value)])

    return _Form(write, read_one)


def _fixed(of: tuple[Any, ...]) -> _Form:
    forms = [_form_of(one) for one in of]

    def write(value: Any, defaults: bool) -> list[Any]:
        return [form.write(one, defaults) for form, one in zip(forms, value, strict=True)]

    def read_one(value: Any, found: list[str]) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(forms):
            raise _not(f"a list of {len(forms)}", value)
        pairs = zip(forms, value, strict=True)
        return tuple([_within(form, index, one, found) for index, (form, one) in enumerate(pairs)])

    return _Form(write, read_one)


def _mapping(of: Any) -> _Form:
    form = _form_of(of)

    def write(value: Any, defaults: bool) -> dict[str, Any]:
        return dict(value) if form.is_plain else {name: form.write(one, defaults) for name, one in value.items()}

    def read_one(value: Any, found: list[str]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _not("an object", value)
        return dict(value) if of is Any else {name: _within(form, name, one, found) for name, one in value.items()}

    return _Form(write, read_one)


def _union(of: tuple[Any, ...]) -> _Form:
    if Unknown in of:
        return _maybe(next(typing.get_args(one)[0] for one in of if typing.get_origin(one) is Known))
    rest = tuple(one for one in of if one is not types.NoneType)
    if len(rest) < len(of):
        return _optional(_form_of(rest[0]) if len(rest) == 1 else _union(rest))
    return _tagged(rest)


def _maybe(of: Any) -> _Form:
    form = _form_of(of)

    def write(value: Any, defaults: bool) -> dict[str, Any]:
        if isinstance(value, Known):
            return {"known": form.write(value.value, defaults)}
        return {"unknown": value.why}

    def read_one(value: Any, found: list[str]) -> Known[Any] | Unknown:
        if not isinstance(value, Mapping) or not ("known" in value or "unknown" in value):
            raise MalformedRecord("", 'must be an object with "known" or "unknown"')
        if "known" in value:
            return Known(_within(form, "known", value["known"], found))
        return Unknown(_within(_SCALARS[str], "unknown", value["unknown"], found))

    return _Form(write, read_one)


def _optional(form: _Form) -> _Form:
    def write(value: Any, defaults: bool) -> Any:
        return None if value is None else form.write(value, defaults)

    def read_one(value: Any, found: list[str]) -> Any:
        return None if value is None else form.read(value, found)

    return _Form(write, read_one, is_scalar=form.is_scalar, is_plain=form.is_plain)


def _tagged(of: tuple[Any, ...]) -> _Form:
    tags = {getattr(one, "wire_tag", None) for one in of}
    tag = tags.pop()
    if tags or tag is None:
        raise TypeError(f"a union needs one wire_tag for all its classes: {of!r}")
    kinds = {one.__name__: one for one in of}

    def write(value: Any, defaults: bool) -> Any:
        return _form_of(type(value)).write(value, defaults)

    def read_one(value: Any, found: list[str]) -> Any:
        if not isinstance(value, Mapping):
            raise _not("an object", value)
        name = value.get(tag)
        kind = kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise MalformedRecord(tag, f"is none that is known: {str(name)[:40]!r}")
        return _form_of(kind).read(value, found)

    return _Form(write, read_one)


# ---- dataclasses -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    form: _Form
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is _MISSING


def _fields(kind: Any) -> list[_Field]:
    hints = typing.get_type_hints(kind)
    return [
        _Field(
            one.name,
            _form_of(hints[one.name]),
            one.default if one.default_factory is _MISSING else one.default_factory(),
        )
        for one in dataclasses.fields(kind)
    ]


def _object(kind: Any) -> _Form:
    fields = _fields(kind)
    tag: str | None = getattr(kind, "wire_tag", None)
    begin = {} if tag is None else {tag: kind.__name__}
    writers = [
        (one.name, one.is_required, one.default, None if one.form.is_plain else one.form.write) for one in fields
    ]
    readers = [(one.name, one.form.read) for one in fields]
    required = {one.name for one in fields if one.is_required}
    known = {one.name for one in fields} | set(begin)

    def write(value: Any, defaults: bool) -> dict[str, Any]:
        wire = dict(begin)
        for name, is_required, default, write_one in writers:
            one = getattr(value, name)
            if is_required or defaults or not (one is default or one == default):
                wire[name] = one if write_one is None else write_one(one, defaults)
        return wire

    def read_one(wire: Any, found: list[str]) -> Any:
        if not isinstance(wire, Mapping):
            raise _not("an object", wire)
        if missing := required - wire.keys():
            raise MalformedRecord(next(one.name for one in fields if one.name in missing), "is missing")
        found.extend(sorted(str(name) for name in wire.keys() - known))
        members, name = {}, ""
        try:
            for name, read_field in readers:
                if name not in wire:
                    continue
                before = len(found)
                members[name] = read_field(wire[name], found)
                if len(found) > before:
                    found[before:] = [f"{name}.{one}" for one in found[before:]]
        except MalformedRecord as err:
            raise err.within(name) from None
        return kind(**members)

    return _Form(write, read_one)


def _row(kind: Any) -> _Form:
    fields = _fields(kind)

    def write(value: Any, defaults: bool) -> list[Any]:
        return [one.form.write(getattr(value, one.name), defaults) for one in fields]

    def read_one(wire: Any, found: list[str]) -> Any:
        if not isinstance(wire, list | tuple) or len(wire) != len(fields):
            raise _not(f"a list of {len(fields)}", wire)
        pairs = zip(fields, wire, strict=True)
        return kind(**{one.name: _within(one.form, one.name, value, found) for one, value in pairs})

    return _Form(write, read_one)
