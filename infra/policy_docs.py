"""docs/reference/policy.md and docs/policy.schema.json: `python -m infra.site` writes both.

They come from the declarations of the fields (chalicelib/domain/policy: document, groups, guard_rules) and from the
built-in playbooks. docs/policy.md explains them, by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.policy.document import NOT_ABOVE, Policy
from chalicelib.domain.policy.fields import FieldSpec, Group, Rows, first_line, specs
from chalicelib.domain.policy.guard_rules import ApprovalCondition, ApprovalRule, Window
from chalicelib.domain.policy.kinds import (
    Count,
    Exactly,
    Flag,
    Kind,
    Number,
    OneOf,
    OrNone,
    Seconds,
    SecondsList,
    SomeOf,
    Text,
    TimeOfDay,
)
from chalicelib.domain.policy.playbooks import PLAYBOOKS, PlaybookRow, PlaybookTable
from infra.tables import page

PAGE: Final = "docs/reference/policy.md"
SCHEMA: Final = "docs/policy.schema.json"
_LINK: Final = re.compile(r"\]\((?=[\w-]+\.md)")
_UNITS: Final = ((86400, "day"), (3600, "hour"), (60, "minute"))
_HEAD: Final = ("| field | default | range | unit | what it says | who sets it |", "|---|---|---|---|---|---|")
_COLUMNS_HEAD: Final = ("| column | left out | range | unit | what it says |", "|---|---|---|---|---|")


def page_text() -> str:
    """The reference page."""
    return page(
        "Policy: every field",
        ["What they do: [policy](../policy.md). JSON Schema: [policy.schema.json](../policy.schema.json).", ""],
        ["## Fields", "", *_fields(), ""],
        ["## Approval rules", "", *_columns(ApprovalRule, ApprovalCondition), ""],
        ["## Windows", "", *_columns(Window), ""],
        ["## Playbooks", "", *_playbooks()],
    )


def schema() -> dict[str, Any]:
    """The JSON Schema of a policy document. It knows no limits between two fields; the service does."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Rekindle policy",
        **_object(specs(Policy), "docs/policy.md; a field that is left out takes its default"),
    }


def schema_text() -> str:
    """The schema as its file holds it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


# --- the page -------------------------------------------------------------------------------------------------------


def _fields() -> Iterator[str]:
    groups = [(spec, spec.kind) for spec in specs(Policy) if isinstance(spec.kind, Group)]
    yield from _HEAD
    for spec in specs(Policy):
        if isinstance(spec.kind, Group):
            inner = len(specs(spec.kind.record))
            yield f"| `{spec.key}` | | {inner} fields, [below](#{spec.key}) | | {spec.says} | |"
        else:
            yield _line(spec)
    for spec, group in groups:
        yield from ("", f"### {spec.key}", "", first_line(group.record), "", *_HEAD)
        for inner_spec in specs(group.record):
            yield _line(inner_spec)
    yield from ("", "### Fields that bound each other", "")
    for low, high in NOT_ABOVE:
        yield f"- `{low}` must not exceed `{high}`."


def _line(spec: FieldSpec) -> str:
    return (
        f"| `{spec.key}` | {_default(spec)} | {_span(spec.kind)} | {_unit(spec.kind)} | {_says(spec)} | {spec.whom} |"
    )


def _columns(record: type[Any], nested: type[Any] | None = None) -> Iterator[str]:
    yield from _COLUMNS_HEAD
    for spec in specs(record):
        if nested is not None and isinstance(spec.kind, Group):
            for inner in specs(nested):
                yield _column(inner, f"{spec.key}.{inner.key}")
        else:
            yield _column(spec, spec.key)


def _column(spec: FieldSpec, key: str) -> str:
    left_out = "an error" if spec.is_required else _default(spec)
    return f"| `{key}` | {left_out} | {_span(spec.kind)} | {_unit(spec.kind)} | {_says(spec)} |"


def _playbooks() -> Iterator[str]:
    yield from ("| fault | `response` | `deadline` | `tries` |", "|---|---|---|---|")
    for row in PLAYBOOKS:
        yield f"| `{row.fault}` | `{row.response}` | `{row.deadline}` | `{json.dumps(row.tries)}` |"
    yield from ("", "| column | range | unit | what it says |", "|---|---|---|---|")
    for spec in specs(PlaybookRow):
        yield f"| `{spec.key}` | {_span(spec.kind)} | {_unit(spec.kind)} | {_says(spec)} |"


def _says(spec: FieldSpec) -> str:
    """What the declaration says; its links are those of a page in docs/."""
    return _LINK.sub("](../", spec.says)


def _default(spec: FieldSpec) -> str:
    if isinstance(spec.kind, PlaybookTable):
        return "[below](#playbooks)"
    wire = f"`{json.dumps(spec.kind.write(spec.default))}`"
    text = _human(spec.default) if isinstance(spec.default, timedelta) else ""
    return f"{wire} ({text})" if text else wire


def _human(value: timedelta) -> str:
    """A duration in its largest whole unit; nothing where seconds say it best."""
    seconds = value.total_seconds()
    for length, word in _UNITS:
        number = seconds / length
        if number >= 1 and number == int(number):
            return f"{int(number)} {word}{'s' if number > 1 else ''}"
    return ""


def _span(kind: Kind[Any]) -> str:
    """What is allowed, in words."""
    match kind:
        case Exactly(only):
            return f"{only}"
        case Text(low, high):
            return f"{low} to {high} characters"
        case Flag():
            return "true or false"
        case Count() | Number() | Seconds():
            return f"{kind.low:.15g} to {kind.high:.15g}"
        case SecondsList(each):
            return f"1 to {kind.longest} numbers, each {_span(each)}"
        case OneOf(words):
            return f"one of {', '.join(words)}"
        case SomeOf(words, least):
            return f"{f'at least {least}' if least else 'any'} of {', '.join(f'`{word}`' for word in words)}"
        case TimeOfDay():
            return "`HH:MM`"
        case OrNone(inner):
            return f"{_span(inner)}, or null"
        case Rows():
            return f"0 to {kind.most} rows"
        case PlaybookTable():
            return "an object of fault and row"
        case _:
            raise TypeError(f"{type(kind).__name__} has no words")


def _unit(kind: Kind[Any]) -> str:
    match kind:
        case Count() | Number() | Seconds():
            return kind.unit
        case SecondsList(each):
            return each.unit
        case OrNone(inner):
            return _unit(inner)
        case _:
            return ""


# --- the schema -----------------------------------------------------------------------------------------------------


def _object(fields: Sequence[FieldSpec], says: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "object",
        "description": says,
        "additionalProperties": False,
        "properties": {spec.key: _described(spec) for spec in fields},
    }
    needed = [spec.key for spec in fields if spec.is_required]
    return {**made, "required": needed} if needed else made


def _described(spec: FieldSpec) -> dict[str, Any]:
    made = _of(spec.kind)
    unit = _unit(spec.kind)
    made["description"] = f"{spec.says} ({unit})" if unit else spec.says
    if not spec.is_required and not isinstance(spec.kind, Group | PlaybookTable):
        made["default"] = spec.kind.write(spec.default)
    return made


def _of(kind: Kind[Any]) -> dict[str, Any]:
    match kind:
        case Exactly(only):
            return {"const": only}
        case Text(low, high):
            return {"type": "string", "minLength": low, "maxLength": high}
        case Flag():
            return {"type": "boolean"}
        case Count(low, high):
            return {"type": "integer", "minimum": low, "maximum": high}
        case Number() | Seconds():
            return {"type": "number", "minimum": kind.low, "maximum": kind.high}
        case SecondsList(each):
            return {"type": "array", "minItems": 1, "maxItems": kind.longest, "items": _of(each)}
        case OneOf(words):
            return {"enum": list(words)}
        case SomeOf(words, least):
            return {"type": "array", "minItems": least, "items": {"enum": list(words)}}
        case TimeOfDay():
            return {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}
        case _:
            return _of_several(kind)


def _of_several(kind: Kind[Any]) -> dict[str, Any]:
    match kind:
        case OrNone(inner):
            return {"anyOf": [_of(inner), {"type": "null"}]}
        case Group(record):
            return _object(specs(record), first_line(record))
        case Rows(record):
            return {"type": "array", "maxItems": kind.most, "items": _object(specs(record), first_line(record))}
        case PlaybookTable():
            return {"type": "object", "additionalProperties": False, "properties": _playbook_rows()}
        case _:
            raise TypeError(f"{type(kind).__name__} has no schema")


def _playbook_rows() -> dict[str, Any]:
    columns = {spec.key: _of(spec.kind) | {"description": spec.says} for spec in specs(PlaybookRow)}
    row = {"type": "object", "additionalProperties": False, "properties": columns}
    return {playbook.fault.value: row for playbook in PLAYBOOKS}
