"""Texts, numbers, times and words: JSON that is no object and no list. Pure."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.compat import UTC, from_iso
from rekindle.protocol.bounds import Number, Text, Via, Whole
from rekindle.protocol.form import Form, Schema, must_be, shown
from rekindle.protocol.wire import MailboxError

_MAX_TIME_CHARS: Final = 64


def text(limit: Text) -> Form:
    pattern = None if limit.pattern is None else re.compile(limit.pattern)
    size = f"{limit.least} to {limit.limit}" if limit.least else f"at most {limit.limit}"

    def read(value: Any, _: list[str]) -> str:
        if not isinstance(value, str) or not limit.least <= len(value) <= limit.limit:
            raise MailboxError("", f"must be a string of {size} characters")
        if pattern is not None and pattern.fullmatch(value) is None:
            raise MailboxError("", limit.problem or f"must match {limit.pattern}")
        if limit.check is not None:
            limit.check(value, "")
        return value

    schema: Schema = {"type": "string", "maxLength": limit.limit}
    schema |= {"minLength": limit.least} if limit.least else {}
    schema |= {} if limit.pattern is None else {"pattern": f"^(?:{limit.pattern})$"}
    return _plain(read, schema)


def whole(limit: Whole) -> Form:
    def read(value: Any, _: list[str]) -> int:
        if type(value) is not int or not limit.low <= value <= limit.high:
            raise MailboxError("", f"must be a whole number from {limit.low} to {limit.high}")
        return value

    return _plain(read, {"type": "integer", "minimum": limit.low, "maximum": limit.high})


def number(limit: Number) -> Form:
    low = {"minimum": limit.low} if math.isfinite(limit.low) else {}
    high = {"maximum": limit.high} if math.isfinite(limit.high) else {}
    wanted = f"a number from {limit.low:g} to {limit.high:g}" if low or high else "a finite number"

    def read(value: Any, _: list[str]) -> float:
        try:
            found = float(value) if type(value) in (int, float) else math.nan
        except OverflowError:
            found = math.nan
        if not math.isfinite(found) or not limit.low <= found <= limit.high:
            raise MailboxError("", f"must be {wanted}")
        return found

    return _plain(read, {"type": "number", **low, **high})


def duration(limit: Number) -> Form:
    seconds = number(limit)
    return Form(
        _write_timedelta,
        lambda value, unknown: _read_timedelta(seconds.read(value, unknown), unknown),
        seconds.schema,
        is_scalar=True,
    )


def choice(wanted: str, members: Mapping[Any, Any]) -> Form:
    """One of `members`, JSON to value: of an enum, or of a Literal."""
    written = {value: wire for wire, value in members.items()}

    def read(value: Any, _: list[str]) -> Any:
        try:
            return members[value]
        except (KeyError, TypeError):
            raise MailboxError("", f"must be {wanted}, not {shown(value)}") from None

    return Form(lambda value, _: written[value], read, lambda _: {"enum": list(members)}, is_scalar=True)


def converted(form: Form, via: Via) -> Form:
    """Of values that travel in another type's form."""
    return Form(
        lambda value, defaults: form.write(via.write(value), defaults),
        lambda value, unknown: via.read(form.read(value, unknown)),
        form.schema,
        is_scalar=form.is_scalar,
    )


def _as_it_is(value: Any, _: object) -> Any:
    return value


def _plain(read: Callable[[Any, list[str]], Any], schema: Schema, *, takes_null: bool = False) -> Form:
    return Form(_as_it_is, read, lambda _: dict(schema), is_scalar=True, is_plain=True, takes_null=takes_null)


def _exactly(kind: type[Any], wanted: str, name: str) -> Form:
    def read(value: Any, _: list[str]) -> Any:
        if type(value) is kind:
            return value
        raise must_be(wanted, value)

    return _plain(read, {"type": name}, takes_null=kind is types.NoneType)


def _read_int(value: Any, _: list[str]) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    raise must_be("a whole number", value)


def _read_float(value: Any, _: list[str]) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    raise MailboxError("", f"must be a finite number, not {shown(value)}")


def _read_datetime(value: Any, _: list[str]) -> datetime:
    try:
        moment = from_iso(value) if isinstance(value, str) and len(value) <= _MAX_TIME_CHARS else None
        if moment is not None and moment.tzinfo is not None:  # one without an offset cannot be compared with the others
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise MailboxError("", f"must be a time with its offset (ISO 8601), not {shown(value)}")


def _write_datetime(value: datetime, _: bool) -> str:
    return value.isoformat()


def _read_timedelta(value: Any, unknown: list[str]) -> timedelta:
    try:
        return timedelta(seconds=_read_float(value, unknown))
    except OverflowError:
        raise MailboxError("", f"must be seconds of a duration, not {shown(value)}") from None


def _write_timedelta(value: timedelta, _: bool) -> float:
    return value.total_seconds()


SCALARS: Final[dict[Any, Form]] = {
    Any: Form(_as_it_is, _as_it_is, lambda _: {}, is_plain=True, takes_null=True),
    str: _exactly(str, "text", "string"),
    bool: _exactly(bool, "true or false", "boolean"),
    int: _plain(_read_int, {"type": "integer"}),
    float: _plain(_read_float, {"type": "number"}),
    types.NoneType: _exactly(types.NoneType, "null", "null"),
    datetime: Form(
        _write_datetime, _read_datetime, lambda _: {"type": "string", "format": "date-time"}, is_scalar=True
    ),
    timedelta: Form(_write_timedelta, _read_timedelta, lambda _: {"type": "number"}, is_scalar=True),
}
