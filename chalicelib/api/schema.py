"""JSON Schemas of answers, for the OpenAPI document. Those of requests come from their types (`fields`), as do those of
answers that are a record as it is written (`Written`); the others are data.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rekindle.protocol.codec import schema_of

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """A record with all of its fields, and `more` members beside them or in their place."""

    kind: type[Any]
    more: Mapping[str, Schema] = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """Its JSON Schema, described by the first paragraph of the record's docstring."""
        own = schema_of(self.kind, written=True)
        about = (inspect.getdoc(self.kind) or "").partition("\n\n")[0].replace("\n", " ")
        names = dict.fromkeys((*own["required"], *self.more))
        return {**own, "properties": {**own["properties"], **self.more}, "required": [*names], "description": about}


MAX_STEP: Final = 2**53 - 1  # beyond this a number of JavaScript is no longer exact


def any_text(description: str = "") -> Schema:
    """A text of an answer, of any length."""
    return {"type": "string", "description": description} if description else {"type": "string"}


def timestamp(description: str) -> Schema:
    """A moment of an answer: ISO-8601 with its offset, which is UTC."""
    return {"type": "string", "format": "date-time", "description": description}


def whole(description: str, *, low: int = 0, high: int = MAX_STEP) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, "description": description}


def number(description: str = "") -> Schema:
    return {"type": "number", "description": description} if description else {"type": "number"}


def flag(description: str) -> Schema:
    """True or false."""
    return {"type": "boolean", "description": description}


def word(description: str, words: Iterable[str]) -> Schema:
    return {"type": "string", "enum": [str(word) for word in words], "description": description}


def listing(of: Schema, description: str = "") -> Schema:
    schema: Schema = {"type": "array", "items": of}
    if description:
        schema["description"] = description
    return schema


def record(
    fields: Mapping[str, Schema], description: str = "", *, may: Iterable[str] = (), is_open: bool = False
) -> Schema:
    """An object with these fields; `may` are those that can be absent. `is_open`: it can have others besides."""
    optional = set(may)
    schema: Schema = {
        "type": "object",
        "properties": dict(fields),
        "required": [name for name in fields if name not in optional],
        "additionalProperties": is_open,
    }
    if not schema["required"]:
        del schema["required"]
    if description:
        schema["description"] = description
    return schema


def any_object(description: str) -> Schema:
    """An object that is described elsewhere."""
    return {"type": "object", "description": description}


def table(of: Schema, description: str) -> Schema:
    """An object whose names are data."""
    return {"type": "object", "additionalProperties": of, "description": description}


def or_null(schema: Schema) -> Schema:
    if isinstance(schema.get("type"), str):
        either = {**schema, "type": [schema["type"], "null"]}
        if "enum" in either:
            either["enum"] = [*either["enum"], None]
        return either
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    """A named schema of an answer."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(value: Schema) -> Schema:
    """A value that was read, or why it is not known (domain/model/known.py)."""
    return {
        "oneOf": [
            record({"known": value}),
            record({"unknown": any_text("why it is not known")}),
        ]
    }
