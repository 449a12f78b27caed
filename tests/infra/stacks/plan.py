"""A template made ready: transformed, its parameters and conditions settled, its resources in the order of creation."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from infra.cloudformation.intrinsics import Stack as Values
from infra.cloudformation.values import conditions_of, parameter_texts, parameter_values
from tests.infra.stacks.account import Account
from tests.infra.stacks.types import IMPORTABLE, resource_type

_SAM: Final = "AWS::Serverless-2016-10-31"
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z0-9]+)")
_NAMED_ROLES: Final = ("RoleName", "ManagedPolicyName", "UserName", "GroupName")


class BadTemplate(ValueError):
    """CloudFormation would refuse the template; the message is its reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change set is about. texts: the parameters. order: logical ids of the resources that are made."""

    template: Mapping[str, Any]
    texts: Mapping[str, str]
    conditions: Mapping[str, bool]
    order: tuple[str, ...]

    def resource(self, logical_id: str) -> Mapping[str, Any]:
        """The transformed template's resource."""
        return dict(self.template["Resources"][logical_id])

    def is_kept(self, logical_id: str) -> bool:
        """True where the resource stays when the stack lets go of it."""
        return self.resource(logical_id).get("DeletionPolicy") in ("Retain", "RetainExceptOnCreate")

    def importable(self, logical_id: str) -> str | None:
        """The identifier by which an existing resource can be taken up.

        Source: CloudFormation guide, import-resources-automatically: a static name, no function; kept on deletion; a
        type that can be imported.
        """
        one = self.resource(logical_id)
        kind = resource_type(one["Type"])
        properties = one.get("Properties", {})
        static = all(isinstance(properties.get(name), str) for name in kind.identifier)
        if not (static and self.is_kept(logical_id) and kind.name in IMPORTABLE):
            return None
        return kind.identity(properties)


def make_plan(template: Mapping[str, Any], given: Mapping[str, str], *, region: str) -> Plan:
    """Work a template out as far as it goes before anything is made.

    Raises:
        BadTemplate: a type that does not exist, or resources that wait for each other.
        BadParameters: the parameters do not fit.
    """
    texts = parameter_texts(template, given)
    processed = _transformed(template, texts, region=region)
    conditions = conditions_of(processed, parameter_values(processed, texts))
    wanted = {
        name: resource
        for name, resource in processed["Resources"].items()
        if "Condition" not in resource or conditions[resource["Condition"]]
    }
    for resource in wanted.values():
        try:
            resource_type(resource["Type"])
        except KeyError as err:
            raise BadTemplate(f"Unrecognized resource types: [{resource['Type']}]") from err
    sorter = TopologicalSorter({name: sorted(_needs(resource) & wanted.keys()) for name, resource in wanted.items()})
    try:
        order = tuple(sorter.static_order())
    except CycleError as err:
        raise BadTemplate(f"Circular dependency between resources: {err.args[1]}") from err
    return Plan(processed, texts, conditions, order)


def capabilities(template: Mapping[str, Any], processed: Mapping[str, Any]) -> set[str]:
    """What the caller must acknowledge. Source: CloudFormation API reference, CreateChangeSet, Capabilities."""
    needed = {"CAPABILITY_AUTO_EXPAND"} if "Transform" in template else set()
    iam = [resource for resource in processed["Resources"].values() if resource["Type"].startswith("AWS::IAM::")]
    if iam:
        named = any(name in resource.get("Properties", {}) for resource in iam for name in _NAMED_ROLES)
        needed.add("CAPABILITY_NAMED_IAM" if named else "CAPABILITY_IAM")
    return needed


def _transformed(template: Mapping[str, Any], texts: Mapping[str, str], *, region: str) -> dict[str, Any]:
    if template.get("Transform") != _SAM:
        return copy.deepcopy(dict(template))
    import boto3
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    session = boto3.session.Session(region_name=region)
    translator = Translator({}, Parser(), boto_session=session)
    return dict(translator.translate(copy.deepcopy(dict(template)), parameter_values=dict(texts)))


def _needs(resource: Mapping[str, Any]) -> set[str]:
    named = resource.get("DependsOn", [])
    return {*([named] if isinstance(named, str) else named), *_referred(resource.get("Properties", {}))}


def _referred(value: Any) -> Iterator[str]:
    match value:
        case {"Ref": str(name)}:
            yield name
        case {"Fn::GetAtt": [str(name), *_]}:
            yield name
        case {"Fn::Sub": str(text)}:
            yield from _VARIABLE.findall(text)
        case {"Fn::Sub": [str(text), Mapping() as own]}:
            yield from set(_VARIABLE.findall(text)) - own.keys()
            yield from _referred(own)
        case Mapping():
            for member in value.values():
                yield from _referred(member)
        case str():
            return
        case Sequence():
            for member in value:
                yield from _referred(member)


@dataclass(frozen=True, slots=True)
class Resolver:
    """Works out values of a plan while its resources get their physical ids."""

    plan: Plan
    account: Account
    stack: str
    stack_id: str
    physical: dict[str, str] = field(default_factory=dict)

    def properties(self, logical_id: str) -> dict[str, Any]:
        """Of one resource; what it refers to must have been made.

        Raises:
            KeyError: something it refers to is not there.
        """
        return dict(self._values().resolve(self.plan.resource(logical_id).get("Properties", {})))

    def outputs(self) -> dict[str, str]:
        """What the stack tells people."""
        conditions = self.plan.conditions
        declared = self.plan.template.get("Outputs", {})
        return {
            name: str(self._values().resolve(output["Value"]))
            for name, output in declared.items()
            if "Condition" not in output or conditions[output["Condition"]]
        }

    def _values(self) -> Values:
        pseudo = {
            "AWS::StackName": self.stack,
            "AWS::StackId": self.stack_id,
            "AWS::AccountId": self.account.account_id,
            "AWS::Region": self.account.region,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
        }
        parameters = parameter_values(self.plan.template, self.plan.texts)
        return Values(
            references={**pseudo, **parameters, **self.physical},
            attributes=_Attributes(self),
            conditions=self.plan.conditions,
        )


class _Attributes(Mapping[tuple[str, str], str]):
    """`Fn::GetAtt`: the ARN, the name, or for anything else a text that says whose it is."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def __getitem__(self, key: tuple[str, str]) -> str:
        logical_id, attribute = key
        physical = self._resolver.physical[logical_id]
        match attribute:
            case "Arn":
                return self._resolver.account.arn(self._resolver.plan.resource(logical_id)["Type"], physical)
            case "Name" | "QueueName" | "TopicName":
                return physical.replace("/", ":").rpartition(":")[2]
            case "Version":
                return physical.rpartition(":")[2]
            case _:
                return f"{physical}.{attribute}"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def __len__(self) -> int:
        return 0
