"""Parameters and conditions of a template, worked out as CloudFormation does before it touches any resource."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

# Source: CloudFormation guide, "Parameters": the types that Rekindle's template uses; every value travels as text.
MAX_VALUE_BYTES: Final = 4_096  # Source: CloudFormation quotas, parameter values
_LIST: Final = "CommaDelimitedList"
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


class BadParameters(ValueError):
    """CloudFormation would refuse the template with these values; one problem a line."""


def parameter_texts(template: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Name -> text of every parameter that the template declares: what was given, else the default.

    Raises:
        BadParameters: a name that it does not declare, a parameter without value, or a value that it does not allow.
    """
    declared: Mapping[str, Mapping[str, Any]] = template.get("Parameters", {})
    problems = [f"{name} is not a parameter of the template" for name in sorted(given.keys() - declared.keys())]
    texts = {}
    for name, about in declared.items():
        if name not in given and "Default" not in about:
            problems.append(f"{name} must have a value")
            continue
        texts[name] = str(given.get(name, about.get("Default")))
        if problem := _problem(name, texts[name], about):
            problems.append(problem)
    if problems:
        raise BadParameters("; ".join(problems))
    return texts


def _problem(name: str, text: str, about: Mapping[str, Any]) -> str | None:
    if len(text.encode()) > MAX_VALUE_BYTES:
        return f"{name} has {len(text.encode())} bytes, where a parameter has {MAX_VALUE_BYTES} at most"
    allowed = [str(choice) for choice in about.get("AllowedValues", [])]
    if allowed and text not in allowed:
        return f"{name} is {text!r} (allowed: {', '.join(allowed)})"
    longest = about.get("MaxLength")
    if longest is not None and len(text) > int(longest):
        return f"{name} has {len(text)} characters ({longest} at most)"
    # Source: CloudFormation guide, Parameters: the whole value, or each value of a list.
    pattern, parts = about.get("AllowedPattern"), text.split(",") if about["Type"] == _LIST else [text]
    wrong = [part.strip() for part in parts if pattern is not None and not re.fullmatch(pattern, part.strip())]
    if wrong:
        return f"{name} is {wrong[0]!r} ({about.get('ConstraintDescription', f'must match {pattern}')})"
    if about["Type"] == "Number":
        if not _NUMBER.fullmatch(text):
            return f"{name} is {text!r}, which is no number"
        low, high = about.get("MinValue"), about.get("MaxValue")
        if (low is not None and float(text) < float(low)) or (high is not None and float(text) > float(high)):
            return f"{name} is {text} (allowed: {low} to {high})"
    return None


def parameter_values(template: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """What `Ref` gives for each parameter: a list where the type says so, else the text."""
    return {
        name: [part.strip() for part in text.split(",")] if _is_list(template, name) else text
        for name, text in texts.items()
    }


def _is_list(template: Mapping[str, Any], name: str) -> bool:
    return bool(template["Parameters"][name]["Type"] == _LIST)


def conditions_of(template: Mapping[str, Any], references: Mapping[str, Any]) -> dict[str, bool]:
    """Name -> whether it holds. references: parameters and pseudo parameters with their values.

    Raises:
        ValueError: a function that is not known here.
    """
    declared: Mapping[str, Any] = template.get("Conditions", {})

    def holds(value: Any) -> bool:
        ((name, argument),) = value.items()
        match name:
            case "Condition":
                return holds(declared[argument])
            case "Fn::Not":
                return not holds(argument[0])
            case "Fn::And":
                return all(holds(condition) for condition in argument)
            case "Fn::Or":
                return any(holds(condition) for condition in argument)
            case "Fn::Equals":
                return _text(argument[0]) == _text(argument[1])
            case _:
                raise ValueError(f"{name} is not worked out here")

    def _text(value: Any) -> str:
        match value:
            case {"Ref": str(name)}:
                return str(references[name])
            case {"Fn::Join": [str(between), {"Ref": str(name)}]}:
                return between.join(references[name])
            case Mapping():
                raise ValueError(f"{value} is not worked out here")
            case _:
                return str(value)

    return {name: holds(value) for name, value in declared.items()}
