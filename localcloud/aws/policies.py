"""Whether a policy allows a call, by IAM's rules, as far as our policies use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from localcloud.aws.authorization import Permission

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z0-9-]+:[^${}*?]+)\}")


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy document with nothing left to resolve. Everything that no statement allows is denied."""

    document: Mapping[str, Any]

    def allows(self, need: Permission) -> bool:
        """By IAM's rules: some statement allows it, and none denies it."""
        effects = {str(statement["Effect"]) for statement in self.document["Statement"] if _applies(statement, need)}
        return effects == {"Allow"}

    def granting(self, need: Permission) -> tuple[str, ...]:
        """The names (Sid) of the statements that allow it."""
        return tuple(
            str(statement.get("Sid", ""))
            for statement in self.document["Statement"]
            if _applies(statement, need) and statement["Effect"] == "Allow"
        )


def _applies(statement: Mapping[str, Any], need: Permission) -> bool:
    if unknown := statement.keys() - {"Sid", "Effect", "Action", "Resource", "Condition"}:
        raise ValueError(f"a policy's {', '.join(sorted(unknown))} is not evaluated here")
    context = dict(need.context)
    return (
        any(_like(pattern.lower(), need.action.lower()) for pattern in _many(statement["Action"]))
        and any(_like(pattern, need.resource) for pattern in _filled(statement["Resource"], context))
        and all(
            _holds(operator, _filled(wanted, context), context.get(key))
            for operator, conditions in statement.get("Condition", {}).items()
            for key, wanted in conditions.items()
        )
    )


def _holds(operator: str, wanted: Any, given: tuple[str, ...] | None) -> bool:
    """Source: IAM user guide, condition operators and multi-valued context keys."""
    quantifier, _, plain = operator.rpartition(":")
    if plain.endswith("IfExists"):
        if given is None:
            return True
        plain = plain.removesuffix("IfExists")
    compare: Callable[[str, str], bool]
    match plain:
        case "StringEquals" | "Bool":
            compare = str.__eq__
        case "StringLike" | "ArnLike":
            compare = _like
        case "StringNotEquals":
            return given is None or not any(value in _many(wanted) for value in given)
        case _:
            raise ValueError(f"the condition operator {operator} is not evaluated here")
    each = [any(compare(pattern, value) for pattern in _many(wanted)) for value in given or ()]
    match quantifier:
        case "ForAllValues":
            return all(each)  # true where the key is missing
        case "ForAnyValue":
            return any(each)
        case _:
            return given is not None and len(each) == 1 and each[0]


def _filled(value: Any, context: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The patterns with their variables' values, in which no character is a wildcard. One whose variable has no value,
    or several, matches nothing. Source: IAM user guide, policy variables.
    """
    found = []
    for pattern in _many(value):
        parts = _VARIABLE.split(pattern)
        values = [context.get(name, ()) for name in parts[1::2]]
        if all(len(item) == 1 for item in values):
            given = iter(re.sub(r"([*?$])", r"${\1}", item[0]) for item in values)
            found.append("".join(next(given) if index % 2 else part for index, part in enumerate(parts)))
    return found


def _many(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    characters = re.findall(r"\$\{[*?$]\}|.", pattern, re.DOTALL)  # `${*}` is the character itself
    words = {"*": ".*", "?": "."}
    return re.compile(
        "".join(re.escape(part[2]) if len(part) == 4 else words.get(part, re.escape(part)) for part in characters),
        re.DOTALL,
    )


def _like(pattern: str, value: str) -> bool:
    """IAM's wildcards: `*` for any characters, `?` for one. Nothing else has a meaning, unlike in a shell."""
    return _pattern(pattern).fullmatch(value) is not None
