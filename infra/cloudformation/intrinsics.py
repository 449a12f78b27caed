"""CloudFormation's functions in a template's values, as far as our policies use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_NO_VALUE: Final = object()  # AWS::NoValue: the entry is left out
_VARIABLE: Final = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a stack's references stand for.

    references: logical id, parameter or pseudo parameter -> its value, for `Ref`. attributes: (logical id, attribute)
    -> its value, for `Fn::GetAtt`. conditions: name -> whether it holds.
    """

    references: Mapping[str, Any]
    attributes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    conditions: Mapping[str, bool] = field(default_factory=dict)

    def resolve(self, value: Any) -> Any:
        """The value with every function in it worked out.

        Raises:
            KeyError: it refers to something that the stack has not.
            ValueError: a function that is not known here.
        """
        found = self._resolve(value)
        return None if found is _NO_VALUE else found

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            return [found for item in value if (found := self._resolve(item)) is not _NO_VALUE]
        if not isinstance(value, Mapping):
            return value
        if len(value) == 1:
            ((name, argument),) = value.items()
            if name == "Ref":
                return _NO_VALUE if argument == "AWS::NoValue" else self.references[argument]
            if name.startswith("Fn::"):
                return self._call(name, argument)
        resolved = {key: self._resolve(item) for key, item in value.items()}
        return {key: item for key, item in resolved.items() if item is not _NO_VALUE}

    def _call(self, name: str, argument: Any) -> Any:
        calls: dict[str, Callable[[Any], Any]] = {
            "Fn::Sub": self._sub,
            "Fn::GetAtt": lambda target: self.attributes[target[0], target[1]],
            "Fn::If": lambda parts: self._resolve(parts[1 if self.conditions[parts[0]] else 2]),
            "Fn::Join": lambda parts: str(parts[0]).join(self._resolve(parts[1])),
            "Fn::Split": lambda parts: self._resolve(parts[1]).split(parts[0]),
        }
        if name not in calls:
            raise ValueError(f"{name} is not worked out here")
        return calls[name](argument)

    def _sub(self, argument: Any) -> str:
        text, own = (argument, {}) if isinstance(argument, str) else argument
        return _VARIABLE.sub(lambda match: str(self._variable(match[1], own)), text)

    def _variable(self, name: str, own: Mapping[str, Any]) -> Any:
        if name in own:
            return self._resolve(own[name])
        if name.startswith("!"):  # Source: CloudFormation, Fn::Sub: `${!Literal}` stays as `${Literal}`
            return f"${{{name[1:]}}}"
        logical_id, dot, attribute = name.partition(".")
        return self.attributes[logical_id, attribute] if dot else self.references[name]
