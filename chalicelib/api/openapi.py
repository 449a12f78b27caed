"""The OpenAPI 3.1 document, made of the table of operations. Source: spec.openapis.org/oas/v3.1.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from chalicelib.api.operation import Operation
from chalicelib.api.problems import JSON, PROBLEM_JSON, TITLES
from chalicelib.api.request import KEY_HEADER, KEY_PATTERN, MAX_KEY, REPLAYED
from chalicelib.api.schema import Schema, any_text, or_null, record, ref, whole
from rekindle.protocol.codec import schema_of

VERSION: Final = "1"
PROBLEMS: Final[Mapping[str, Schema]] = {
    "Problem": record(
        {
            "type": any_text(),
            "title": any_text("the kind of problem"),
            "status": whole("the HTTP status", low=400, high=599),
            "detail": any_text("what is wrong, for people"),
            "field": any_text("dotted path of the offending field, where there is one"),
        },
        "RFC 9457",
        may=("field",),
    ),
    "GatewayMessage": {
        "type": "object",
        "description": "API Gateway's own answer: no signature, throttled, its own limits",
        "properties": {"message": or_null(any_text())},
        "additionalProperties": True,
    },
}
# What API Gateway answers before or instead of the function. Source: API Gateway developer guide, gateway responses:
# 403 (signature, unknown path or method), 413, 429 (throttled), 500, 502, 503 and 504 (the function failed, was late).
GATEWAY_STATUSES: Final = (403, 413, 429, 500, 503)
GATEWAY_ONLY: Final[Mapping[int, str]] = {502: "The function answered nothing usable", 504: "The function was late"}
_ABOUT: Final = (
    "Watches training runs on AWS and recovers them. Every request is signed with AWS credentials (SigV4, service "
    "execute-api). Problems are RFC 9457 documents; `field` is the dotted path of what is wrong. Orders take an "
    "Idempotency-Key: the same key with the same body by the same signer is one order, answered alike for two weeks."
)
_KEY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": KEY_PATTERN}


def document(operations: Sequence[Operation], answers: Mapping[str, Schema], *, base: str) -> dict[str, Any]:
    """The whole document. `answers`: the named schemas that rows refer to. `base`: the path below which the API is."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rekindle",
            "version": VERSION,
            "description": _ABOUT,
        },
        "servers": [{"url": base}],
        "security": [{"sigv4": []}],
        "tags": [{"name": name} for name in sorted({operation.tag for operation in operations})],
        "paths": paths,
        "components": {
            "schemas": {**PROBLEMS, **answers},
            "securitySchemes": {
                "sigv4": {
                    "type": "apiKey",
                    "name": "Authorization",
                    "in": "header",
                    "description": "AWS Signature Version 4, service execute-api",
                    "x-amazon-apigateway-authtype": "awsSigv4",
                }
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    if operation.details:
        made["description"] = operation.details
    if parameters := list(_parameters(operation)):
        made["parameters"] = parameters
    body = operation.body
    if body is not None:
        content: dict[str, Any] = {"schema": body}
        if operation.example is not None:
            content["example"] = dict(operation.example)
        made["requestBody"] = {"required": bool(_needed(body)), "content": {JSON: content}}
    return made


def _needed(body: Schema) -> bool:
    """Left out, the body counts as {}."""
    return "oneOf" in body or bool(body.get("required"))


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, kind in operation.names.items():
        found.append({"name": name, "in": "path", "required": True, **_described(schema_of(kind))})
    for name, parameter in operation.query.items():
        found.append({"name": name, "in": "query", "required": False, **_described(parameter.schema)})
    if operation.is_order:
        found.append(_header(KEY_HEADER, "the same key with the same body is one order, with one answer", dict(_KEY)))
    if operation.is_versioned and operation.is_order:
        etag = {"type": "string", "pattern": '^"[0-9]{1,15}"$'}
        found.append(_header("If-Match", "the version that is replaced, in quotes; the same as the body's", etag))
    return found


def _header(name: str, description: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _described(schema: Schema) -> dict[str, Any]:
    inner = {name: value for name, value in schema.items() if name != "description"}
    return {"description": schema.get("description", ""), "schema": inner}


def _responses(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for status, schema in operation.answers.items():
        good: dict[str, Any] = {"description": "as asked for", "content": {JSON: {"schema": schema}}}
        headers = dict(_headers(operation))
        if headers:
            good["headers"] = headers
        made[str(status)] = good
    for status in operation.problems:
        content: dict[str, Any] = {PROBLEM_JSON: {"schema": ref("Problem")}}
        if status in GATEWAY_STATUSES:
            content[JSON] = {"schema": ref("GatewayMessage")}
        made[str(status)] = {"description": TITLES[status], "content": content}
    for status, description in GATEWAY_ONLY.items():
        made[str(status)] = {"description": description, "content": {JSON: {"schema": ref("GatewayMessage")}}}
    return dict(sorted(made.items()))


def _headers(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if operation.is_order:
        description = "true: an order with this key was answered before; this is that answer"
        found[REPLAYED] = {"description": description, "schema": any_text()}
    if operation.is_versioned:
        found["ETag"] = {"description": "the version, in quotes", "schema": any_text()}
    return found
