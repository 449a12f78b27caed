"""Events that go from one account's bus to another's: by the rule, the role and the bus policy of two templates.

Source: EventBridge guide, "Sending and receiving events between accounts": the target's role must allow PutEvents on
the other bus, and that bus's policy the account; the envelope keeps the account and Region in which the event began;
an event that came from another account is not sent on to a third.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.cloudformation.intrinsics import Stack
from localcloud.aws.authorization import Permission
from localcloud.aws.events import matches
from localcloud.aws.policies import Policy

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLocation:
    """A stack of a template in one account and Region. `parameters`: those without which there is no stack."""

    template: Mapping[str, Any]
    account: str
    region: str
    parameters: Mapping[str, Any]

    def properties(self, logical_id: str) -> dict[str, Any]:
        """A resource's, with nothing left to resolve.

        Raises:
            KeyError: a parameter has neither value nor default.
        """
        found: dict[str, Any] = self._stack().resolve(self.template["Resources"][logical_id]["Properties"])
        return found

    def arn(self, logical_id: str) -> str:
        """Of a resource, as `Fn::GetAtt` gives it."""
        return self._stack().attributes[logical_id, "Arn"]

    def _stack(self) -> Stack:
        given = {
            name: self.parameters[name] if name in self.parameters else about["Default"]
            for name, about in self.template["Parameters"].items()
        }
        names = {
            logical_id: str(resource.get("Properties", {}).get("Name", logical_id))
            for logical_id, resource in self.template["Resources"].items()
        }
        kinds = {"AWS::Events::EventBus": "events:event-bus/", "AWS::Events::Rule": "events:rule/"}
        arns = {}
        for logical_id, resource in self.template["Resources"].items():
            service, _, kind = kinds.get(resource["Type"], resource["Type"].split("::")[1].lower() + ":").partition(":")
            region = "" if service == "iam" else self.region
            arns[logical_id, "Arn"] = f"arn:aws:{service}:{region}:{self.account}:{kind}{names[logical_id]}"
        pseudo = {"AWS::AccountId": self.account, "AWS::Region": self.region, "AWS::Partition": "aws"}
        return Stack(references={**names, **given, **pseudo}, attributes=arns)


@dataclass(slots=True)
class Bus:
    """A bus that other accounts send to. `taken`: what its policy let in. `heard`: called with each of these."""

    arn: str
    account: str
    statement: Mapping[str, Any]
    heard: Callable[[Event], None] = lambda _: None
    taken: list[Event] = field(default_factory=list)

    def put(self, event: Event, *, sender: str) -> bool:
        """Whether the policy lets the event of the account `sender` in; another account than its own needs that."""
        principals = self.statement["Principal"]["AWS"]
        listed = [principals] if isinstance(principals, str) else principals
        policy = Policy({"Statement": [{k: v for k, v in self.statement.items() if k != "Principal"}]})
        context = (("events:source", (event["source"],)), ("events:detail-type", (event["detail-type"],)))
        is_in = sender in listed and policy.allows(Permission("events:PutEvents", self.arn, context))
        if is_in:
            self.taken.append(event)
            self.heard(event)
        return is_in


def transformed(transformer: Mapping[str, Any], event: Event) -> str:
    """What an InputTransformer makes of an event: each `<name>` in the template is the value at its path, as JSON.

    Source: EventBridge guide, "Input transformation": values in a JSON template are not put in quotes by the template.

    Raises:
        KeyError: the event has not what a path names (EventBridge would leave the value out).
    """

    def value(found: re.Match[str]) -> str:
        at: Any = event
        for name in transformer["InputPathsMap"][found[1]].removeprefix("$.").split("."):
            at = at[name]
        return json.dumps(at)

    return re.sub(r"<(\w+)>", value, transformer["InputTemplate"])


def forward(event: Event, member: StackLocation, bus: Bus, *, rule: str, role: str) -> str:
    """What becomes of one event of the member's own bus: `sent`, or why not.

    rule, role: logical ids in the member's template.
    """
    properties, role_properties = member.properties(rule), member.properties(role)
    if not matches(json.dumps(properties["EventPattern"]), event):
        return "no rule wants it"
    if event["account"] != member.account:
        return "it came from another account"
    (target,) = properties["Targets"]
    trust = role_properties["AssumeRolePolicyDocument"]["Statement"]
    if [statement["Principal"] for statement in trust] != [{"Service": "events.amazonaws.com"}] or target[
        "RoleArn"
    ] != member.arn(role):
        return "EventBridge may not take the role"
    statements = [
        statement for policy in role_properties["Policies"] for statement in policy["PolicyDocument"]["Statement"]
    ]
    if target["Arn"] != bus.arn or not Policy({"Statement": statements}).allows(
        Permission("events:PutEvents", bus.arn)
    ):
        return "the role does not allow it"
    is_in = bus.put(json.loads(json.dumps(event)), sender=member.account)
    return "sent" if is_in else "the bus's policy does not allow it"
