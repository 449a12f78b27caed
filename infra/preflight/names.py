"""Finds resources that already have a name of the new stack: retained by an earlier deployment, or made by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from infra.cloudformation.values import BadParameters
from infra.preflight.template import resolver
from infra.target_stack import Finding, TargetStack, code_of, note, problem

# What of a table cannot be seen in the import and is believed afterwards: CloudFormation compares nothing.
# Source: CloudFormation guide, import-resources-automatically (it advises to detect drift after an import).
_OF_A_TABLE: Final = ("KeySchema", "GlobalSecondaryIndexes")


def kept_resources(target: TargetStack) -> Iterator[Finding]:
    """Resources that have a name of the stack already. Only before it is created: later they are its own."""
    if not target.is_new:
        return
    try:
        resolve = resolver(target)
    except BadParameters:
        return  # told by another check
    names = _names(target, resolve)
    yield from _table(target, names["AWS::DynamoDB::Table"])
    yield from _bucket(target, names["AWS::S3::Bucket"])
    for kind, (lister, remedy) in _TAKEN.items():
        for name in sorted(names[kind].keys() & lister(target, list(names[kind]))):
            yield problem(f"{kind} {name} is there and belongs to no stack of this name", remedy.format(name=name))


def _names(target: TargetStack, resolve: Callable[[Any], Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Type -> name -> properties of the template's resources that have names of their own."""
    assert target.template is not None  # noqa: S101  this check runs with a template only
    found: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in _PROPERTY}
    for resource in target.template["Resources"].values():
        kind, properties = resource["Type"], resource.get("Properties", {})
        if kind in _PROPERTY and _PROPERTY[kind] in properties:
            found[kind][str(resolve(properties[_PROPERTY[kind]]))] = resolve(properties)
    return found


def _owner(target: TargetStack, physical_id: str) -> str | None:
    """The stack that a resource belongs to."""
    from botocore.exceptions import ClientError

    try:
        found = target.client("cloudformation").describe_stack_resources(PhysicalResourceId=physical_id)
    except ClientError as err:
        if code_of(err) == "ValidationError":
            return None
        raise
    return next((str(resource["StackName"]) for resource in found["StackResources"]), None)


def _table(target: TargetStack, names: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    for name, wanted in names.items():
        try:
            table = target.client("dynamodb").describe_table(TableName=name)["Table"]
        except ClientError as err:
            if code_of(err) == "ResourceNotFoundException":
                continue
            raise
        if owner := _owner(target, name):
            yield problem(f"the table {name} belongs to the stack {owner}", "deploy under another STAGE")
            continue
        differs = [part for part in _OF_A_TABLE if _shape(table.get(part)) != _shape(wanted.get(part))]
        if differs:
            yield problem(
                f"the table {name} of an earlier deployment has another {' and '.join(differs)} than the template",
                "restore its data into a table of the new form, or deploy under another STAGE; docs/deploy.md#remove",
            )
        else:
            yield note(
                f"the table {name} of an earlier deployment is taken up, with its Jobs and Incidents", "nothing to do"
            )


def _shape(part: Any) -> Any:
    """Keys and projections; without what DynamoDB adds (state, sizes, ARNs)."""
    kept = ("IndexName", "KeySchema", "Projection", "ProjectionType", "NonKeyAttributes", "AttributeName", "KeyType")
    if isinstance(part, Mapping):
        return {name: _shape(value) for name, value in part.items() if name in kept}
    return [_shape(item) for item in part] if isinstance(part, list) else part


def _bucket(target: TargetStack, names: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    s3 = target.client("s3")
    for name in names:
        try:
            s3.head_bucket(Bucket=name, ExpectedBucketOwner=target.account_id)
        except ClientError as err:
            if code_of(err) in ("404", "NoSuchBucket"):
                continue
            if code_of(err) == "403":
                yield problem(f"the bucket {name} is another account's, or closed to you", "deploy under another STAGE")
                continue
            raise
        if owner := _owner(target, name):
            yield problem(f"the bucket {name} belongs to the stack {owner}", "deploy under another STAGE")
            continue
        yield note(f"the bucket {name} of an earlier deployment is taken up, with its checkpoints", "nothing to do")
        try:
            s3.get_bucket_policy(Bucket=name)
        except ClientError as err:
            if code_of(err) == "NoSuchBucketPolicy":
                continue
            raise
        yield problem(
            f"the bucket {name} has a policy, where CloudFormation makes one and takes up none",
            f"aws s3api delete-bucket-policy --bucket {name} (read it first: aws s3api get-bucket-policy)",
        )


def _log_groups(target: TargetStack, _: list[str]) -> set[str]:
    pages = target.client("logs").get_paginator("describe_log_groups")
    prefix = f"/aws/lambda/{target.stack}-"
    return {group["logGroupName"] for page in pages.paginate(logGroupNamePrefix=prefix) for group in page["logGroups"]}


def _alarms(target: TargetStack, names: list[str]) -> set[str]:
    found: set[str] = set()
    for first in range(0, len(names), 100):
        answer = target.client("cloudwatch").describe_alarms(AlarmNames=names[first : first + 100], MaxRecords=100)
        found |= {alarm["AlarmName"] for alarm in answer["MetricAlarms"]}
    return found


def _buses(target: TargetStack, _: list[str]) -> set[str]:
    found = target.client("events").list_event_buses(NamePrefix=target.stack, Limit=100)["EventBuses"]
    return {rule["Name"] for rule in found}


def _functions(target: TargetStack, names: list[str]) -> set[str]:
    from botocore.exceptions import ClientError

    found = set()
    for name in names:
        try:
            target.client("lambda").get_function_configuration(FunctionName=name)
        except ClientError as err:
            if code_of(err) != "ResourceNotFoundException":
                raise
            continue
        found.add(name)
    return found


# Type -> the property that names it.
_PROPERTY: Final = {
    "AWS::DynamoDB::Table": "TableName",
    "AWS::S3::Bucket": "BucketName",
    "AWS::Logs::LogGroup": "LogGroupName",
    "AWS::CloudWatch::Alarm": "AlarmName",
    "AWS::Events::EventBus": "Name",
    "AWS::Serverless::Function": "FunctionName",
}
_TAKEN: Final[Mapping[str, tuple[Callable[[TargetStack, list[str]], set[str]], str]]] = {
    "AWS::Logs::LogGroup": (_log_groups, "aws logs delete-log-group --log-group-name {name}"),
    "AWS::CloudWatch::Alarm": (_alarms, "aws cloudwatch delete-alarms --alarm-names {name}"),
    "AWS::Events::EventBus": (_buses, "aws events delete-event-bus --name {name}"),
    "AWS::Serverless::Function": (_functions, "aws lambda delete-function --function-name {name}"),
}
