"""What CloudFormation's registry says of a resource type, read from the provider schemas that cfn-lint carries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

# Any Region's: what is read here is the same in all.
_REGION: Final = "us-east-1"
# Source: CloudFormation guide, resource-import-supported-resources; of the types that Rekindle's template keeps.
IMPORTABLE: Final = frozenset({"AWS::DynamoDB::Table", "AWS::S3::Bucket"})


@dataclass(frozen=True, slots=True)
class ResourceType:
    """The schema's word on one type.

    identifier: the properties that tell one resource from all others of the type. create_only: a change of one of them
    makes a new resource. read_only: what only AWS can give.
    """

    name: str
    identifier: tuple[str, ...]
    create_only: frozenset[str]
    read_only: frozenset[str]

    def identity(self, properties: Mapping[str, Any]) -> str | None:
        """The resource's identifier as far as its properties settle it; None where AWS makes one."""
        if any(name in self.read_only or name not in properties for name in self.identifier):
            return None
        return "|".join(_text(properties[name]) for name in self.identifier)

    def is_replaced(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """True when a stack's update makes a new resource of this type."""
        return any(before.get(name) != after.get(name) for name in self.create_only)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


@cache
def resource_type(name: str) -> ResourceType:
    """What is known of a type, by its name (`AWS::S3::Bucket`).

    Raises:
        KeyError: CloudFormation has no such type.
    """
    from cfnlint.schema import ResourceNotFoundError
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    try:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(_REGION, name).schema
    except ResourceNotFoundError as err:
        raise KeyError(name) from err
    # The conditional ones (a table's keys, a function's durable settings) are replaced or refused: both are no update.
    create_only = [*schema.get("createOnlyProperties", []), *schema.get("conditionalCreateOnlyProperties", [])]
    return ResourceType(
        name=name,
        identifier=_names(schema["primaryIdentifier"]),
        create_only=frozenset(_names(create_only)),
        read_only=frozenset(_names(schema.get("readOnlyProperties", []))),
    )


def _names(paths: list[str]) -> tuple[str, ...]:
    """`/properties/TableName` -> `TableName`; what lies deeper is no property of its own."""
    return tuple(path.split("/")[2] for path in paths if path.count("/") == 2)
