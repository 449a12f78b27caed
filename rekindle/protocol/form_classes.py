"""Dataclasses: as objects, or as lists of their fields. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.protocol.form import Form, Schema, must_be, within
from rekindle.protocol.form_containers import list_of, row_schema
from rekindle.protocol.wire import MailboxError


@dataclass(frozen=True)
class Field:
    """A field of a dataclass. `is_required`: an object without it is refused. `is_sparse`: a document may lack it."""

    name: str
    form: Form
    default: Any
    is_required: bool
    is_sparse: bool

    def schema(self, written: bool) -> Schema:
        """With its default, where it is read without one."""
        schema = self.form.schema(written)
        if self.is_required or written or not self.form.is_scalar or self.default is None:
            return schema
        return {**schema, "default": self.form.write(self.default, True)}


def fields_of(
    kind: Any, forms: Mapping[str, Form], required: Collection[str], sparse: Collection[str], *, is_document: bool
) -> list[Field]:
    """The fields. Of a document, one that takes null and has no default may be absent, because null is the same."""
    found = []
    for field in dataclasses.fields(kind):
        form = forms[field.name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if default is dataclasses.MISSING and is_document and form.takes_null:
            default = None
        is_required = default is dataclasses.MISSING or field.name in required
        found.append(Field(field.name, form, default, is_required, field.name in sparse))
    return found


def object_(kind: Any, fields: list[Field], *, is_document: bool) -> Form:
    """An object, with the class's name in the member `wire_tag` of the class, where it has one."""
    tag: str | None = getattr(kind, "wire_tag", None)
    begin = {} if tag is None else {tag: kind.__name__}
    known = {field.name for field in fields} | set(begin)

    def write(value: Any, defaults: bool) -> dict[str, Any]:
        wire = dict(begin)
        for field in fields:
            member = getattr(value, field.name)
            is_whole = (is_document and not field.is_sparse) or defaults or field.is_required
            if is_whole or not (member is field.default or member == field.default):
                wire[field.name] = member if field.form.is_plain else field.form.write(member, defaults)
        return wire

    def read(wire: Any, unknown: list[str]) -> Any:
        if not isinstance(wire, Mapping):
            raise must_be("an object", wire)
        if is_document:
            return _made(kind, _document_members(fields, wire))
        unknown.extend(sorted(str(name) for name in wire.keys() - known))
        return _made(kind, _record_members(fields, wire, unknown))

    return Form(write, read, lambda written: _object_schema(begin, fields, written, is_document=is_document))


def _object_schema(begin: Mapping[str, str], fields: list[Field], written: bool, *, is_document: bool) -> Schema:
    properties: Schema = {tag: {"const": name} for tag, name in begin.items()}
    properties |= {field.name: field.schema(written) for field in fields}
    needed = [*begin, *(field.name for field in fields if (written and not field.is_sparse) or field.is_required)]
    return (
        {"type": "object", "properties": properties}
        | ({"required": needed} if needed else {})
        | ({} if is_document else {"additionalProperties": False})
    )


def _document_members(fields: list[Field], wire: Mapping[str, Any]) -> dict[str, Any]:
    members = {}
    for field in fields:
        value = wire.get(field.name)
        if value is not None:
            members[field.name] = within(field.form, field.name, value, [])
        elif field.is_required:
            raise MailboxError(field.name, "is missing")
        else:
            members[field.name] = field.default
    return members


def _record_members(fields: list[Field], wire: Mapping[str, Any], unknown: list[str]) -> dict[str, Any]:
    members = {}
    for field in fields:
        if field.name in wire:
            members[field.name] = within(field.form, field.name, wire[field.name], unknown)
        elif field.is_required:
            raise MailboxError(field.name, "is missing")
    return members


def row(kind: Any, fields: list[Field]) -> Form:
    """A list of all fields in their order. The last ones, as far as they have a default, may be left out: an earlier
    version did not know them.
    """
    least = max((index + 1 for index, field in enumerate(fields) if field.is_required), default=0)

    def write(value: Any, defaults: bool) -> list[Any]:
        return [field.form.write(getattr(value, field.name), defaults) for field in fields]

    def read(wire: Any, unknown: list[str]) -> Any:
        is_short = isinstance(wire, list | tuple) and least <= len(wire) < len(fields)
        pairs = zip(fields, wire if is_short else list_of(len(fields), wire), strict=False)
        return _made(kind, {field.name: within(field.form, field.name, value, unknown) for field, value in pairs})

    return Form(write, read, lambda written: row_schema([field.form.schema(written) for field in fields]))


def _made(kind: Any, members: Mapping[str, Any]) -> Any:
    made = kind(**members)
    check = getattr(made, "check_fields", None)
    if check is not None:
        check()
    return made
