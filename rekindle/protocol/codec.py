"""The JSON form of a dataclass, from the types of its fields: for documents of others and for stored records.

    bool, int, float, str, None    as JSON has them
    Literal                        one of its values
    StrEnum                        its value
    datetime                       ISO 8601 with an offset; read as UTC
    timedelta                      seconds
    tuple                          a list
    Mapping                        an object; of `Any`, it is taken as it is
    dataclass                      an object; a list of all its fields where the class sets `wire_row`
    union of dataclasses           the object, and the class's name in the member that the classes name in `wire_tag`;
                                   or an object with one member, `wire_key` of the class, that holds its only field
    Annotated                      its type's, within the limits given (`rekindle.protocol.bounds`)

A `Document` is read from programs of other versions and from strangers: null stands for an absent field, fields that
are not known are ignored, and all fields are written. Any other dataclass is a record: null is a value, fields that are
not known are reported, and fields that hold their default are not written, so that a changed default changes what
stored records mean. A class of either kind may define `check_fields()`, which raises MailboxError for values that do
not fit together.

Forms are made once per type, when it is first read or written. Standard library only.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Hashable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, cast

from rekindle.compat import Self
from rekindle.protocol import form_classes as classes
from rekindle.protocol import form_containers as containers
from rekindle.protocol import form_scalars as scalars
from rekindle.protocol.bounds import Items, Number, OneOf, Required, Sparse, Text, Via, Whole
from rekindle.protocol.form import Form, Schema
from rekindle.protocol.wire import MailboxError


class Document:
    """Base of the dataclasses that are read from programs of other versions and from strangers; see the module."""

    __slots__ = ()

    def to_wire(self) -> dict[str, Any]:
        """JSON form, all fields."""
        return cast("dict[str, Any]", write(type(self), self))

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Inverse of `to_wire`. Raises: MailboxError naming the first wrong field."""
        return cast("Self", read(cls, wire))


def read(kind: Any, wire: object, *, beyond: list[str] | None = None) -> Any:
    """A value of `kind` from its JSON form. Fields of records that are not known are added to `beyond`, dotted.

    Raises:
        MailboxError: names the first field that is missing or wrong; without `beyond` also one that is not known.
    """
    unknown: list[str] = []
    value = _form_of(kind).read(wire, unknown)
    if beyond is not None:
        beyond.extend(unknown)
    elif unknown:
        raise MailboxError(unknown[0], "is not known to this version")
    return value


def write(kind: Any, value: Any, *, defaults: bool = False) -> Any:
    """The JSON form of a value of `kind`. `defaults`: with the fields of records that hold their default."""
    return _form_of(kind).write(value, defaults)


def schema_of(kind: Any, *, written: bool = False) -> Schema:
    """The JSON Schema (2020-12) of what `read` accepts for `kind`, nested types in place. A new object each time.

    `written`: of what `write` makes with `defaults`, so that every field is required.
    """
    return _form_of(kind).schema(written)


def split(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The fields of a dataclass: those whose JSON is no object and no list, and the others."""
    return _split(cast("Hashable", kind))  # mypy 1.x takes a class for not hashable


@functools.cache
def _split(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    fields = _fields(kind)
    scalar = frozenset(field.name for field in fields if field.form.is_scalar)
    return scalar, frozenset(field.name for field in fields) - scalar


_LIMITS: Final = (Text, OneOf, Whole, Number, Items, Via)
_FORMS: Final[dict[Any, Form]] = {}
_MOST_SHOWN: Final = 80  # characters of the words of an enum in a complaint; its name stands for longer ones


def _form_of(kind: Any) -> Form:
    try:
        return _FORMS[kind]
    except KeyError:
        made = _FORMS[kind] = _made(kind)
        return made


def _made(kind: Any) -> Form:
    """The form of a type. Raises TypeError for one that has none: a mistake of ours, found by a test."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _annotated(args[0], args[1:])
    if origin is Literal:
        return scalars.choice(f"one of {', '.join(map(repr, args))}", {value: value for value in args})
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if _is_list(kind):
        return containers.sequence(_form_of(args[0]), None)
    if origin is tuple:
        return containers.fixed([_form_of(member) for member in args])
    if _is_mapping(kind):
        return containers.mapping(_form_of(args[0]), _form_of(args[1]), None)
    if kind in scalars.SCALARS:
        return scalars.SCALARS[kind]
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            members = {member.value: member for member in kind}
            words = ", ".join(map(str, members))
            return scalars.choice(f"one of {words if len(words) <= _MOST_SHOWN else kind.__name__}", members)
        if dataclasses.is_dataclass(kind):
            return _class(kind)
    raise TypeError(f"no JSON form for {kind!r}")


def _is_list(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,)


def _is_mapping(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _annotated(kind: Any, marks: tuple[Any, ...]) -> Form:
    """The form of a type with its limit, if there is one, and its description."""
    described = " ".join(mark for mark in marks if type(mark) is str)
    limits = [mark for mark in marks if isinstance(mark, _LIMITS)]
    if len(limits) > 1:
        raise TypeError(f"{kind!r} has more than one limit: {limits}")
    form = _limited(kind, limits[0]) if limits else _form_of(kind)
    if not described:
        return form
    return dataclasses.replace(form, schema=lambda written: {**form.schema(written), "description": described})


def _limited(kind: Any, limit: Any) -> Form:
    args = typing.get_args(kind)
    match limit:
        case Via():
            return scalars.converted(_form_of(limit.kind), limit)
        case Text() if kind is str:
            return scalars.text(limit)
        case OneOf() if kind is str:
            return scalars.choice(f"one of {', '.join(limit.words)}", {str(word): str(word) for word in limit.words})
        case Whole() if kind is int:
            return scalars.whole(limit)
        case Number() if kind is float:
            return scalars.number(limit)
        case Number() if kind is timedelta:
            return scalars.duration(limit)
        case Items() if _is_list(kind):
            return containers.sequence(_form_of(args[0]), limit)
        case Items() if _is_mapping(kind):
            return containers.mapping(_form_of(args[0]), _form_of(args[1]), limit)
    raise TypeError(f"{limit!r} is no limit of {kind!r}")


def _union(of: tuple[Any, ...]) -> Form:
    rest = tuple(kind for kind in of if kind is not types.NoneType)
    if len(rest) < len(of):
        return containers.optional(_form_of(rest[0]) if len(rest) == 1 else _union(rest))
    if all(hasattr(typing.get_origin(kind) or kind, "wire_key") for kind in of):
        return containers.keyed({(typing.get_origin(kind) or kind).wire_key: _only_field(kind) for kind in of})
    tags = {getattr(kind, "wire_tag", None) for kind in of}
    tag = tags.pop()
    if tags or tag is None:
        raise TypeError(f"a union needs one wire_tag for all its classes: {of!r}")
    return containers.tagged(tag, {kind.__name__: kind for kind in of}, _form_of)


def _only_field(kind: Any) -> containers.Keyed:
    """The class that a member of a keyed union stands for, and its field; `kind` may be a generic one's alias."""
    plain = typing.get_origin(kind) or kind
    (field,) = dataclasses.fields(plain)
    hint = typing.get_args(kind)[0] if typing.get_args(kind) else typing.get_type_hints(plain)[field.name]
    return containers.Keyed(plain, field.name, _form_of(hint))


def _class(kind: Any) -> Form:
    if getattr(kind, "wire_row", False):
        return classes.row(kind, _fields(kind))
    return classes.object_(kind, _fields(kind), is_document=issubclass(kind, Document))


def _fields(kind: Any) -> list[classes.Field]:
    hints = typing.get_type_hints(kind, include_extras=True)
    forms = {field.name: _form_of(hints[field.name]) for field in dataclasses.fields(kind)}
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    required, sparse = (
        {name for name, of in marks.items() if any(isinstance(mark, marker) for mark in of)}
        for marker in (Required, Sparse)
    )
    return classes.fields_of(kind, forms, required, sparse, is_document=issubclass(kind, Document))
