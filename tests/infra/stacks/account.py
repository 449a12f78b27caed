"""The resources of one account and Region, whether or not a stack made them: what CloudFormation creates, finds,
imports and deletes.

Types that have a maker in makers.py are created in moto as well, so that a tool that calls the
service itself sees them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.infra.stacks.makers import MAKERS, Refusal
from tests.infra.stacks.types import resource_type

Clients = Callable[[str], Any]
Properties = Mapping[str, Any]

# Source: IAM user guide, IAM and STS quotas; white space is not counted.
MAX_INLINE: Final = 10_240
MAX_MANAGED: Final = 6_144
MAX_ENVIRONMENT: Final = 4_096  # Source: Lambda quotas, environment variables; measured as JSON
MAX_PATTERN: Final = 2_048  # Source: EventBridge quotas, event pattern size


class AlreadyExists(Refusal):
    """There is one of that identifier."""


@dataclass(slots=True)
class Account:
    """Physical resources by type and physical id.

    clients: boto3's client of a service. limits: type -> how many there may be, for quotas that an account has.
    owners: which stack a resource belongs to; one that no stack owns is not in it.
    """

    clients: Clients
    account_id: str
    region: str
    limits: dict[str, int] = field(default_factory=dict)
    owners: dict[tuple[str, str], str] = field(default_factory=dict)
    _there: dict[tuple[str, str], Properties] = field(default_factory=dict)

    def exists(self, kind: str, physical_id: str) -> bool:
        """True also for what was made outside every stack, where moto can be asked."""
        maker = MAKERS.get(kind)
        return (kind, physical_id) in self._there or (maker is not None and maker.exists(self.clients, physical_id))

    def create(self, kind: str, physical_id: str, properties: Properties) -> None:
        """Make one.

        Raises:
            Refusal: it exists, a quota is used up, or the service does not take it.
        """
        if self.exists(kind, physical_id):
            raise AlreadyExists(f"{kind.rpartition('::')[2]} {physical_id} already exists")
        limit = self.limits.get(kind)
        if limit is not None and Counter(found for found, _ in self._there)[kind] >= limit:
            raise Refusal(f"the maximum number of {limit} {kind} is reached (HandlerErrorCode: ServiceLimitExceeded)")
        _check_sizes(kind, physical_id, properties)
        if maker := MAKERS.get(kind):
            maker.create(self.clients, physical_id, properties)
        self._there[kind, physical_id] = properties

    def take_up(self, kind: str, physical_id: str) -> None:
        """Import one that is there."""
        self._there.setdefault((kind, physical_id), {})

    def update(self, kind: str, physical_id: str, properties: Properties) -> None:
        """Change one in place.

        Raises:
            Refusal: the service does not take it.
        """
        _check_sizes(kind, physical_id, properties)
        if maker := MAKERS.get(kind):
            maker.update(self.clients, physical_id, properties)
        self._there[kind, physical_id] = properties

    def delete(self, kind: str, physical_id: str) -> None:
        """Delete one; what is gone already is no error.

        Raises:
            Refusal: the service keeps it (a policy that a role still has, a bus with rules).
        """
        if (maker := MAKERS.get(kind)) and maker.exists(self.clients, physical_id):
            maker.delete(self.clients, physical_id)
        self._there.pop((kind, physical_id), None)
        self.owners.pop((kind, physical_id), None)

    def arn(self, kind: str, physical_id: str) -> str:
        """As `Fn::GetAtt … Arn` gives it."""
        if physical_id.startswith("arn:"):
            return physical_id
        service, own = kind.split("::")[1].lower(), f"{self.region}:{self.account_id}"
        match kind:
            case "AWS::S3::Bucket":
                return f"arn:aws:s3:::{physical_id}"
            case "AWS::IAM::Role":
                return f"arn:aws:iam::{self.account_id}:role/{physical_id}"
            case "AWS::SQS::Queue":
                return f"arn:aws:sqs:{own}:{physical_id.rpartition('/')[2]}"
            case "AWS::Lambda::Function":
                return f"arn:aws:lambda:{own}:function:{physical_id}"
            case "AWS::Logs::LogGroup":
                return f"arn:aws:logs:{own}:log-group:{physical_id}:*"
            case _:
                return f"arn:aws:{service}:{own}:{kind.rpartition('::')[2].lower()}/{physical_id}"

    def physical_id(self, kind: str, *, stack: str, logical_id: str, letters: str, properties: Properties) -> str:
        """The name that the properties settle, else one that AWS makes: its form differs by type."""
        if (name := resource_type(kind).identity(properties)) is not None:
            return name
        made = f"{stack}-{logical_id}-{letters}"
        own = f"{self.region}:{self.account_id}"
        match kind:
            case "AWS::SQS::Queue":
                return f"https://sqs.{self.region}.amazonaws.com/{self.account_id}/{made}"
            case "AWS::SNS::Topic":
                return f"arn:aws:sns:{own}:{properties.get('TopicName', made)}"
            case "AWS::IAM::ManagedPolicy":
                return f"arn:aws:iam::{self.account_id}:policy/{made}"
            case "AWS::Lambda::Version":
                return f"arn:aws:lambda:{own}:function:{properties['FunctionName']}:{letters}"
            case _:
                return made


def _check_sizes(kind: str, physical_id: str, properties: Properties) -> None:
    if kind == "AWS::IAM::Role":
        size = sum(_length(policy["PolicyDocument"]) for policy in properties.get("Policies", []))
        if size > MAX_INLINE:
            raise Refusal(f"Maximum policy size of {MAX_INLINE} bytes exceeded for role {physical_id}")
    elif kind == "AWS::IAM::ManagedPolicy" and _length(properties["PolicyDocument"]) > MAX_MANAGED:
        raise Refusal(f"Cannot exceed quota for PolicySize: {MAX_MANAGED}")
    elif kind == "AWS::Lambda::Function":
        measured = json.dumps(properties.get("Environment", {}).get("Variables", {}), separators=(",", ":"))
        if len(measured) > MAX_ENVIRONMENT:
            raise Refusal(
                "Lambda was unable to configure your environment variables because the environment variables you have "
                f"provided exceeded the 4KB limit. String measured: {measured}"
            )
    elif kind == "AWS::Events::Rule" and _length(properties.get("EventPattern", {})) > MAX_PATTERN:
        raise Refusal(f"Event pattern is too long: {MAX_PATTERN} characters at most (Service: EventBridge)")


def _length(document: Any) -> int:
    return len(json.dumps(document, separators=(",", ":")))
