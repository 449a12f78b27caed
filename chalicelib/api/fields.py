"""What a request may hold: the types of names in paths, of query parameters and of bodies' fields.

`rekindle.protocol.codec` reads them, names what is wrong, and makes their JSON Schemas for the OpenAPI document. A body
is a frozen dataclass; what its type calls `| None` may be left out, and is never null.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from chalicelib.api.schema import MAX_STEP, Schema
from chalicelib.domain.model.errors import InvalidRequest
from rekindle.protocol.bounds import Text, Whole
from rekindle.protocol.codec import read, schema_of
from rekindle.protocol.wire import MailboxError

MAX_TEXT: Final = 256
MAX_PATH: Final = 256
MAX_POLICY_NAME: Final = 64
_NAME: Final = r"[A-Za-z0-9._-]+"
_INDEX: Final = re.compile(r"\.(\d+)(?=\.|$)")


def line(high: int = MAX_TEXT, *, pattern: str = r"[^\x00-\x1f\x7f]*", problem: str = "") -> Text:
    """The limit of a text of one line, 1 to `high` characters that fit `pattern`."""
    problem = problem or f"must be a text of 1 to {high} characters without control characters"
    return Text(high, least=1, pattern=pattern, problem=problem)


def name_of(high: int = MAX_POLICY_NAME, *, pattern: str = _NAME) -> Text:
    """The limit of a name of few characters."""
    return line(high, pattern=pattern, problem=f"must be a text of 1 to {high} characters that fits {pattern}")


Step = Annotated[int, Whole(0, MAX_STEP)]
PolicyName = Annotated[str, name_of(), "the policy's name"]
NodeName = Annotated[str, name_of(), "a node's name in Slurm"]
# Names in paths. Ids of ours and of the platforms are far shorter; a slash would be another path.
NAMES: Final[Mapping[str, Any]] = {
    "job_id": Annotated[str, line(pattern=r"[^\x00-\x1f\x7f/]*"), "the Job's id"],
    "incident_id": Annotated[str, name_of(pattern=r"[a-z0-9-]+"), "the Incident's id"],
    "approval_id": Annotated[str, name_of(128, pattern=r"[A-Za-z0-9._:-]+"), "the question's id"],
    "cluster": Annotated[
        str, name_of(63, pattern=r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"), "its name in its agent's settings"
    ],
    "node": Annotated[str, name_of(), "the node's name in Slurm"],
    "name": PolicyName,
    "drill_id": Annotated[str, name_of(pattern=r"[a-z0-9-]+"), "the drill's id"],
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter: its type, what counts without it, and an example."""

    kind: Any
    default: Any = None
    example: str = ""

    @property
    def schema(self) -> Schema:
        """Its JSON Schema."""
        more = {"default": self.default} if self.default is not None else {}
        return {**schema_of(self.kind), **more, **({"examples": [self.example]} if self.example else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """nothing; the body may be left out"""


def body_schema(kind: type[Any]) -> Schema:
    """The JSON Schema of a body. The class's docstring describes it."""
    return {**_without_null(schema_of(kind)), "description": inspect.getdoc(kind) or ""}


def _without_null(schema: Schema) -> Schema:
    """An object's schema whose fields may be left out and are never null."""
    properties = {}
    for name, field in schema["properties"].items():
        if {"type": "null"} in field.get("anyOf", ()):
            (kind,) = (form for form in field["anyOf"] if form != {"type": "null"})
            field = {**kind, **{key: value for key, value in field.items() if key != "anyOf"}}
        properties[name] = _without_null(field) if "properties" in field else field
    return {**schema, "properties": properties}


def read_body(kind: type[Any], body: Any) -> Any:
    """The body as a value of its type.

    Raises:
        InvalidRequest: names the first field that does not fit.
    """
    _refuse_null(body_schema(kind), body, "")
    return read_field(kind, body)


def _refuse_null(schema: Schema, value: Any, at: str) -> None:
    for name, field in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            if value[name] is None:
                raise InvalidRequest(_path(at, name), "must not be null; it may be left out")
            _refuse_null(field, value[name], _path(at, name))


def read_field(kind: Any, value: Any, *, at: str = "") -> Any:
    """The value of a name or a parameter, `at` its name.

    Raises:
        InvalidRequest: names the first field that does not fit.
    """
    beyond: list[str] = []
    try:
        found = read(kind, value, beyond=beyond)
    except MailboxError as err:
        raise InvalidRequest(_path(at, err.field), err.problem) from err
    if beyond:
        raise InvalidRequest(_path(at, beyond[0]), "is not a member of this request")
    return found


def _path(at: str, field: str) -> str:
    """A field's dotted path; places of a list in brackets."""
    path = _INDEX.sub(r"[\1]", ".".join(part for part in (at, field) if part))
    return (path or "body")[:MAX_PATH]
