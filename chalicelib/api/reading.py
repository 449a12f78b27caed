"""A request out of API Gateway's proxy event, read by the types of its operation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from chalicelib.api.fields import MAX_TEXT, Parameter, read_body, read_field
from chalicelib.api.json_body import read_json
from chalicelib.api.operation import Operation
from chalicelib.api.request import KEY_HEADER, KEY_PATTERN, MAX_KEY, Request
from chalicelib.domain.model.errors import InvalidRequest, Permanent, UnknownEntity

MAX_BODY_BYTES: Final = 64 * 1024
_JSON_TYPES: Final = ("application/json",)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}\Z")  # Python refuses to read a number of thousands of digits
_KEY: Final = re.compile(KEY_PATTERN.replace("$", r"\Z"))


class TooLarge(Permanent):
    """The body is larger than any order needs to be."""


class WrongMediaType(Permanent):
    """The body says that it is something else than JSON."""


def read(operation: Operation, names: Mapping[str, str], event: Mapping[str, Any], raw_body: bytes) -> Request:
    """The request out of API Gateway's proxy event (payload format 1.0, as Chalice's REST API uses it).

    Raises:
        InvalidRequest: names what is wrong.
        UnknownEntity: a name in the path that nothing can have.
        TooLarge, WrongMediaType: about the body.
    """
    context = event.get("requestContext") or {}
    identity = context.get("identity") or {}
    headers = {str(name).lower(): str(value) for name, value in (event.get("headers") or {}).items()}
    whole_path = str(context.get("path") or "")
    read_names, query, body = _names(operation, names), _query(operation, event), _body(operation, headers, raw_body)
    form = read_body(operation.body_form(body), body) if operation.forms else None
    return Request(
        names=read_names,
        query=query,
        headers=headers,
        body=body,
        form=form,
        who=str(identity.get("userArn") or identity.get("caller") or "an operator"),
        request_id=str(context.get("requestId") or ""),
        given_key=_key(operation, headers),
        path=whole_path,
    )


def _names(operation: Operation, given: Mapping[str, str]) -> dict[str, str]:
    """API Gateway may or may not have decoded a name; none that exists has a percent sign, so twice does no harm."""
    names: dict[str, str] = {}
    for name, value in given.items():
        try:
            names[name] = unquote(value, errors="strict")
            read_field(operation.names[name], names[name], at=name)
        except (InvalidRequest, UnicodeError):
            raise UnknownEntity(f"there is no such {name.removesuffix('_id').replace('_', ' ')}") from None
    return names


def _query(operation: Operation, event: Mapping[str, Any]) -> dict[str, Any]:
    """The query, typed. API Gateway gives both members, Chalice's local one only lists; of several the last counts."""
    single = event.get("queryStringParameters")
    if single is not None:
        given = {str(name): str(value) for name, value in single.items()}
    else:
        lists = event.get("multiValueQueryStringParameters") or {}
        given = {str(name): str(values[-1]) for name, values in lists.items() if values}
    query: dict[str, Any] = {}
    for name, value in given.items():
        parameter = operation.query.get(name)
        if parameter is None:
            raise InvalidRequest(name[:MAX_TEXT], "is not a parameter of this request")
        query[name] = read_field(parameter.kind, _typed(parameter, value), at=name)
    return query


def _typed(parameter: Parameter, value: str) -> Any:
    kind = parameter.schema.get("type")
    if kind == "integer" and _WHOLE.match(value):
        return int(value)
    if kind == "boolean" and value in ("true", "false"):
        return value == "true"
    return value


def _key(operation: Operation, headers: Mapping[str, str]) -> str | None:
    key = headers.get(KEY_HEADER.lower())
    if key is None or not operation.is_order:
        return None
    if not (1 <= len(key) <= MAX_KEY and _KEY.match(key)):
        raise InvalidRequest(KEY_HEADER, f"must be 1 to {MAX_KEY} printable ASCII characters")
    return key


def _body(operation: Operation, headers: Mapping[str, str], raw: bytes) -> Any:
    if operation.body is None:  # a body that the operation does not have is not read (RFC 9110 §9.3.1 for GET)
        return {}
    if len(raw) > MAX_BODY_BYTES:
        raise TooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
    media_type = headers.get("content-type", "").split(";")[0].strip().lower()
    if raw and media_type and media_type not in _JSON_TYPES:
        raise WrongMediaType(f"a body must be application/json, not {media_type[:80]!r}")
    return read_json(raw) if raw.strip() else {}
