"""Lists, objects whose names are data, and unions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.protocol.bounds import Items
from rekindle.protocol.form import Form, Schema, must_be, shown, within
from rekindle.protocol.wire import MailboxError


def sequence(form: Form, items: Items | None) -> Form:
    """A list of any length, or of one within `items`."""

    def write(value: Any, defaults: bool) -> list[Any]:
        return list(value) if form.is_plain else [form.write(item, defaults) for item in value]

    def read(value: Any, unknown: list[str]) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise must_be("a list", value)
        _check_size(len(value), items)
        return tuple([within(form, index, item, unknown) for index, item in enumerate(value)])

    def schema(written: bool) -> Schema:
        return {"type": "array", "items": form.schema(written), **_size(items, "minItems", "maxItems")}

    return Form(write, read, schema)


def fixed(forms: list[Form]) -> Form:
    """A list with one form for each place."""

    def write(value: Any, defaults: bool) -> list[Any]:
        return [form.write(item, defaults) for form, item in zip(forms, value, strict=True)]

    def read(value: Any, unknown: list[str]) -> tuple[Any, ...]:
        pairs = zip(forms, list_of(len(forms), value), strict=True)
        return tuple([within(form, index, item, unknown) for index, (form, item) in enumerate(pairs)])

    return Form(write, read, lambda written: row_schema([form.schema(written) for form in forms]))


def list_of(count: int, value: object) -> list[Any] | tuple[Any, ...]:
    """The value. Raises: MailboxError where it is no list of so many."""
    if not isinstance(value, list | tuple):
        raise must_be(f"a list of {count}", value)
    if len(value) != count:
        raise MailboxError("", f"must be a list of {count}, not of {len(value)}")
    return value


def row_schema(places: list[Schema]) -> Schema:
    """Of a list with one schema for each place."""
    return {"type": "array", "prefixItems": places, "minItems": len(places), "maxItems": len(places)}


def mapping(name_form: Form, form: Form, items: Items | None) -> Form:
    """An object with any names that `name_form` takes, of any size or of one within `items`."""

    def write(value: Any, defaults: bool) -> dict[str, Any]:
        if form.is_plain and name_form.is_plain:
            return dict(value)
        return {name_form.write(name, defaults): form.write(member, defaults) for name, member in value.items()}

    def read(value: Any, unknown: list[str]) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise must_be("an object", value)
        _check_size(len(value), items)
        return {_name(name_form, name): within(form, name, member, unknown) for name, member in value.items()}

    def schema(written: bool) -> Schema:
        names = name_form.schema(written)
        return {
            "type": "object",
            "additionalProperties": form.schema(written),
            **({} if names == {"type": "string"} else {"propertyNames": names}),
            **_size(items, "minProperties", "maxProperties"),
        }

    return Form(write, read, schema)


def _name(form: Form, name: Any) -> Any:
    """A member's name. A wrong one is shown in the complaint, and is no part of the field's."""
    try:
        return form.read(name, [])
    except MailboxError as err:
        raise MailboxError("", f"{shown(name)} {err.problem}") from None


def _check_size(count: int, items: Items | None) -> None:
    if items is not None and not items.least <= count <= items.limit:
        raise MailboxError("", f"must have {items.least} to {items.limit} members, not {count}")


def _size(items: Items | None, least: str, limit: str) -> Schema:
    if items is None:
        return {}
    return {limit: items.limit} | ({least: items.least} if items.least else {})


def optional(form: Form) -> Form:
    def write(value: Any, defaults: bool) -> Any:
        return None if value is None else form.write(value, defaults)

    def read(value: Any, unknown: list[str]) -> Any:
        return None if value is None else form.read(value, unknown)

    def schema(written: bool) -> Schema:
        return {"anyOf": [form.schema(written), {"type": "null"}]}

    return Form(write, read, schema, is_scalar=form.is_scalar, is_plain=form.is_plain, takes_null=True)


def tagged(tag: str, kinds: Mapping[str, Any], form_of: Callable[[Any], Form]) -> Form:
    """A union of dataclasses: the member `tag` names the class. Its form is made when it is first met."""

    def write(value: Any, defaults: bool) -> Any:
        return form_of(type(value)).write(value, defaults)

    def read(value: Any, unknown: list[str]) -> Any:
        if not isinstance(value, Mapping):
            raise must_be("an object", value)
        name = value.get(tag)
        kind = kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise MailboxError(tag, f"is none that is known: {shown(name)}")
        return form_of(kind).read(value, unknown)

    def schema(written: bool) -> Schema:
        return {"oneOf": [form_of(kind).schema(written) for kind in kinds.values()]}

    return Form(write, read, schema)


@dataclass(frozen=True)
class Keyed:
    """A class with the single field `field`, of a union that is told apart by the name of the object's only member."""

    kind: Any
    field: str
    form: Form


def keyed(members: Mapping[str, Keyed]) -> Form:
    def write(value: Any, defaults: bool) -> dict[str, Any]:
        member = members[value.wire_key]
        return {value.wire_key: member.form.write(getattr(value, member.field), defaults)}

    def read(value: Any, unknown: list[str]) -> Any:
        if isinstance(value, Mapping):
            for key, member in members.items():
                if key in value:
                    return member.kind(**{member.field: within(member.form, key, value[key], unknown)})
        raise MailboxError("", f"must be an object with {' or '.join(members)}")

    def schema(written: bool) -> Schema:
        return {
            "oneOf": [
                {"type": "object", "properties": {key: member.form.schema(written)}, "required": [key]}
                for key, member in members.items()
            ]
        }

    return Form(write, read, schema)
