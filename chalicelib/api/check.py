"""Checks values against their schemas; an error names the dotted path of the field.

Each schema is compiled once, at its first use: fastjsonschema makes a Python function of it (about a millisecond).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import fastjsonschema
from fastjsonschema import JsonSchemaValueException

from chalicelib.api.schema import NO_CONTROL, Schema
from chalicelib.domain.model.errors import InvalidRequest
from rekindle.protocol.wire import MAX_DEPTH, is_deep

MAX_PATH = 256
_COMPILED: dict[int, tuple[Schema, Callable[[Any], Any]]] = {}
_KINDS: Final[Mapping[str, str]] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def check(schema: Schema, value: Any, *, at: str = "") -> None:
    """Check `value` against `schema`. `at` is the path of the value itself, "" for the body.

    Raises:
        InvalidRequest: names the first field that does not fit.
    """
    try:
        _validator(schema)(value)
    except JsonSchemaValueException as err:
        path = (at + str(err.name).removeprefix("data")).lstrip(".")
        raise _refusal(path, err) from err


def _validator(schema: Schema) -> Callable[[Any], Any]:
    # By identity: the schemas are constants of the table of operations, kept here so that no id is used twice.
    found = _COMPILED.get(id(schema))
    if found is None:
        found = (schema, fastjsonschema.compile(schema, use_default=False, use_formats=False))
        _COMPILED[id(schema)] = found
    return found[1]


def _refusal(path: str, err: JsonSchemaValueException) -> InvalidRequest:
    definition = err.definition if isinstance(err.definition, Mapping) else {}
    if err.rule == "additionalProperties" and isinstance(err.value, Mapping):
        unknown = sorted(str(name) for name in set(err.value) - set(definition.get("properties", ())))
        return InvalidRequest(_below(path, unknown[0]), "is not a member of this request")
    if err.rule == "required" and isinstance(err.value, Mapping):
        missing = [name for name in definition.get("required", ()) if name not in err.value]
        return InvalidRequest(_below(path, missing[0]), "is needed")
    return InvalidRequest((path or "body")[:MAX_PATH], _message(str(err.rule), definition))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}"[:MAX_PATH] if path else name[:MAX_PATH]


def _message(rule: str, definition: Mapping[str, Any]) -> str:
    """What the field must be, with all of its limits: the next mistake is avoided too."""
    if rule == "enum":
        return f"must be one of {', '.join(str(one) for one in definition['enum'] if one is not None)}"
    kinds = definition.get("type", "value")
    named = [_KINDS.get(kind, str(kind)) for kind in (kinds if isinstance(kinds, Sequence) else [])]
    named = [_KINDS.get(kinds, str(kinds))] if isinstance(kinds, str) else named
    message = f"must be {' or '.join(named)}" if named else "does not fit"
    low, high = definition.get("minimum"), definition.get("maximum")
    if low is not None and high is not None:
        message += f" from {low} to {high}"
    if "minLength" in definition:
        message += f" of {definition['minLength']} to {definition.get('maxLength', 'any number of')} characters"
    if rule == "pattern":
        message += _shaped(definition)
    if "minItems" in definition or "maxItems" in definition:
        message += f" of {definition.get('minItems', 0)} to {definition.get('maxItems', 'any number of')} entries"
    return message


def _shaped(definition: Mapping[str, Any]) -> str:
    """Of what form: an example says more than a long pattern, and a person need not read the commonest of them."""
    if definition["pattern"] == NO_CONTROL:
        return " without control characters"
    if definition.get("examples"):
        return f", as in {definition['examples'][0]}; in a query + is written %2B"
    return f" that fits {definition['pattern']}"


def read_json(raw: bytes) -> Any:
    """The value of a JSON document (RFC 8259) in UTF-8.

    Stricter than Python: no NaN or Infinity, no name twice in one object, no half of a surrogate pair, which no store
    could keep, and nested MAX_DEPTH deep at most. A whole number may be written as 5.0.

    Raises:
        InvalidRequest: names the body, and says what it is not.
    """
    try:
        value = json.loads(
            raw.decode("utf-8"), parse_constant=_no_constant, parse_float=_number, object_pairs_hook=_pairs
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise InvalidRequest("body", "is not UTF-8") from None
    except InvalidRequest:
        raise
    except (ValueError, RecursionError):
        raise InvalidRequest("body", "is not JSON") from None
    if is_deep(value):  # Python 3.13 reads what is nested thousands deep, which a recursive reader would fail on
        raise InvalidRequest("body", f"is nested more than {MAX_DEPTH} deep")
    return value


def _no_constant(name: str) -> Any:
    raise InvalidRequest("body", f"is not JSON: {name} is no number")


def _number(written: str) -> int | float:
    value = float(written)
    if not math.isfinite(value):
        raise InvalidRequest("body", "holds a number that is too large")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidRequest("body", "names a member twice in one object")
    return made
