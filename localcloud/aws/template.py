"""Tables, queues, buckets and buses of the embedded cloud, made from the template that is deployed."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from infra.cloudformation.intrinsics import Stack
from infra.cloudformation.values import conditions_of, parameter_texts, parameter_values
from infra.grants import SHARED
from infra.merge import managed_policy

_FOLDER: Final = Path(__file__).parents[2] / "infra" / "template"
_PARTS: Final = ("storage", "messaging")
# What DynamoDB's API sets by calls of their own, or what moto has no use for.
_NOT_AT_CREATION: Final = frozenset(
    {"TableName", "TimeToLiveSpecification", "PointInTimeRecoverySpecification", "SSESpecification", "Tags"}
)


@functools.cache
def resources() -> Mapping[str, Mapping[str, Any]]:
    """The template's static resources by logical id. Intrinsic functions are left as they are."""
    return {name: resource for part in _PARTS for name, resource in _part(part)["Resources"].items()}


@functools.cache
def _part(name: str) -> Mapping[str, Any]:
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))  # type: ignore[no-untyped-call]  # PyYAML has no types


def create_table(client: Any, name: str) -> None:
    """The registry, under this name. client: boto3's DynamoDB client."""
    properties = resources()["RegistryTable"]["Properties"]
    client.create_table(
        TableName=name, **{key: value for key, value in properties.items() if key not in _NOT_AT_CREATION}
    )
    ttl = properties["TimeToLiveSpecification"]
    client.update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)


def create_queue(client: Any, stack: str, logical_id: str) -> str:
    """One of the stack's queues; its URL. What it hands on to must be there. client: boto3's SQS client."""
    properties = dict(resources()[logical_id]["Properties"])
    properties.pop("Tags")
    attributes = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in properties.items()
        if key != "RedrivePolicy"
    }
    if redrive := properties.get("RedrivePolicy"):
        target = client.get_queue_url(QueueName=queue_name(stack, redrive["deadLetterTargetArn"]["Fn::GetAtt"][0]))
        arn = client.get_queue_attributes(QueueUrl=target["QueueUrl"], AttributeNames=["QueueArn"])["Attributes"]
        attributes["RedrivePolicy"] = json.dumps(redrive | {"deadLetterTargetArn": arn["QueueArn"]})
    return str(client.create_queue(QueueName=queue_name(stack, logical_id), Attributes=attributes)["QueueUrl"])


def queue_name(stack: str, logical_id: str) -> str:
    """`QuarantineDeadQueue` of the stack `rekindle` is `rekindle-quarantine-dead` here; AWS adds letters of its own."""
    words = re.findall("[A-Z][a-z]+", logical_id.removesuffix("Queue"))
    return "-".join([stack, *words]).lower()


def create_queues(client: Any, stack: str) -> None:
    """All queues of the stack, those first that others hand on to."""
    queues = [name for name, resource in resources().items() if resource["Type"] == "AWS::SQS::Queue"]
    for logical_id in sorted(queues, key=lambda name: "RedrivePolicy" in resources()[name]["Properties"]):
        create_queue(client, stack, logical_id)


def references(
    stack: str,
    *,
    account_id: str,
    region: str,
    bucket: str,
    parameters: Mapping[str, list[str] | str],
    queue_url: Callable[[str], str] = lambda name: name,
) -> Stack:
    """The values of the template's references in this account. bucket: the name of MailboxBucket.

    parameters: those of the stack's parameters that are chosen; the others have their defaults.
    queue_url: of a queue by its name.
    """
    own = f"{region}:{account_id}"
    queues = {
        name: queue_name(stack, name) for name, resource in resources().items() if resource["Type"] == "AWS::SQS::Queue"
    }
    chosen = {**_defaults(), **parameters}
    return Stack(
        references={
            "AWS::StackName": stack,
            "AWS::Partition": "aws",
            "AWS::Region": region,
            "AWS::AccountId": account_id,
            "NoticesTopic": f"arn:aws:sns:{own}:{stack}-notices",
            "RegistryTable": stack,
            "MailboxBucket": bucket,
            **{name: queue_url(queue) for name, queue in queues.items()},
            **{managed_policy(name): managed_policy(name) for name in SHARED},
            **chosen,
        },
        attributes={
            ("RegistryTable", "Arn"): f"arn:aws:dynamodb:{own}:table/{stack}",
            ("MailboxBucket", "Arn"): f"arn:aws:s3:::{bucket}",
            ("MonitorBus", "Arn"): f"arn:aws:events:{own}:event-bus/{stack}",
            ("MonitorBus", "Name"): stack,
            **{(name, "Arn"): f"arn:aws:sqs:{own}:{queue}" for name, queue in queues.items()},
        },
        conditions=conditions_of(_part("parameters"), chosen),
    )


def _defaults() -> dict[str, Any]:
    declared = _part("parameters")
    return parameter_values(declared, parameter_texts(declared, {}))
