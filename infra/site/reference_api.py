"""docs/reference/api.md: every operation and every schema, from the OpenAPI document that GET /openapi.json answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from chalicelib.api.operations.routes import description
from infra.site.markdown import slug
from infra.tables import cell, code, page, table

PAGE: Final = "docs/reference/api.md"
_SCHEMAS: Final = "#/components/schemas/"


def page_text() -> str:
    whole = description()
    operations = [
        (method.upper(), path, operation)
        for path, methods in whole["paths"].items()
        for method, operation in methods.items()
    ]
    about = [
        "Paths are below the API's address and its version: `GET /jobs` is `GET <ApiUrl>v1/jobs`. How requests are "
        "signed, paged and repeated: [api.md](../api.md). The document itself: `GET /openapi.json`.",
        "",
        *table(
            ("operation", "what it does"),
            ((_link(method, path), cell(operation["summary"])) for method, path, operation in operations),
        ),
    ]
    common = _common(operation["responses"] for _, _, operation in operations)
    about += ["## What every operation may answer", "", *_answers(common)]
    schemas = ["## Schemas", ""]
    for name, schema in whole["components"]["schemas"].items():
        schemas += [f"### {name}", "", *_described(schema), *_members(schema)]
    reported = (line for method, path, operation in operations for line in _operation(method, path, operation, common))
    return page("REST API: every operation", about, ["## Operations", ""], reported, schemas)


def _common(all_answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers that all operations have alike."""
    first, *others = all_answers
    return {status: answer for status, answer in first.items() if all(more.get(status) == answer for more in others)}


def _answers(answers: Mapping[str, Any]) -> list[str]:
    rows = (
        (status, cell(answer["description"]), _type(next(iter(answer["content"].values()))["schema"]))
        for status, answer in answers.items()
    )
    return table(("status", "meaning", "answer"), rows)


def _operation(method: str, path: str, operation: Mapping[str, Any], common: Mapping[str, Any]) -> Iterator[str]:
    yield from (
        f"### `{method} {path}`",
        "",
        f"{operation['summary']}. {operation.get('description', '')}".rstrip(),
        "",
    )
    rows = (
        (code(given["name"]), given["in"], _type(given["schema"]), cell(given["description"]))
        for given in operation.get("parameters", ())
    )
    yield from table(("parameter", "in", "type", "meaning"), rows)
    if body := operation.get("requestBody"):
        yield from _body(body["content"]["application/json"])
    yield from _answers({status: answer for status, answer in operation["responses"].items() if status not in common})


def _body(content: Mapping[str, Any]) -> Iterator[str]:
    schema = content["schema"]
    forms = schema.get("oneOf", [schema])
    for form in forms:
        which = f": {form['description']}" if form.get("description") else ""
        yield from (f"Body{which}" + ("." if which else ""), "")
        yield from _members(form)
    if "example" in content:
        yield from ("```json", json.dumps(content["example"], ensure_ascii=False), "```", "")


def _described(schema: Mapping[str, Any]) -> list[str]:
    text = schema.get("description")
    return [f"{text[:1].upper()}{cell(text)[1:]}.", ""] if text else []


def _members(schema: Mapping[str, Any]) -> list[str]:
    if "properties" not in schema:
        return [f"{_type(schema)}", ""] if schema.get("type") != "object" or "oneOf" in schema else []
    needed = set(schema.get("required", ()))
    rows = (
        (code(name) + ("" if name in needed else " (may be missing)"), _type(field), cell(field.get("description", "")))
        for name, field in schema["properties"].items()
    )
    return table(("member", "type", "meaning"), rows)


def _type(schema: Mapping[str, Any]) -> str:
    """A schema's type in a few words. A nested object is shown by its members' names."""
    if reference := schema.get("$ref"):
        name = reference.removeprefix(_SCHEMAS)
        return f"[{name}](#{slug(name)})"
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(alternative) for alternative in schema[word]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema["enum"])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    kinds = schema.get("type", "any")
    return " or ".join(_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _kind(kind: str, schema: Mapping[str, Any]) -> str:
    match kind:
        case "array":
            return f"list of {_type(schema.get('items', {}))}{_within(schema, 'minItems', 'maxItems', '')}"
        case "object":
            if "properties" in schema:
                return "object: " + ", ".join(code(name) for name in schema["properties"])
            inner = schema.get("additionalProperties")
            return f"object of {_type(inner)}" if isinstance(inner, Mapping) and inner else "object"
        case "string":
            return f"string{_within(schema, 'minLength', 'maxLength', ' characters')}"
        case "integer" | "number":
            return f"{kind}{_within(schema, 'minimum', 'maximum', '')}"
        case _:
            return kind


def _within(schema: Mapping[str, Any], low: str, high: str, unit: str) -> str:
    least, most = schema.get(low), schema.get(high)
    if most is not None and most >= 2**53 - 1:
        most = None  # JSON's own limit
    match least, most:
        case None, None:
            return ""
        case _, None:
            return f", {least}{unit} or more" if least else ""
        case None, _:
            return f", at most {most}{unit}"
        case _:
            return f", {least} to {most}{unit}"


def _link(method: str, path: str) -> str:
    return f"[`{method} {path}`](#{slug(f'{method} {path}')})"
