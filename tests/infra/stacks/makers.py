"""How the types that tools look at outside CloudFormation are made in moto, looked up, changed and deleted there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import ClientError

Clients = Callable[[str], Any]
Properties = Mapping[str, Any]
# What DynamoDB's CreateTable does not take: set by calls of their own, or not kept by moto.
_LATER: Final = frozenset({"TimeToLiveSpecification", "PointInTimeRecoverySpecification", "SSESpecification"})


class Refusal(Exception):
    """A resource could not be made, changed or deleted; the text is the handler's own."""


def _asks(call: Callable[[Clients, str], Any]) -> Callable[[Clients, str], bool]:
    def exists(clients: Clients, name: str) -> bool:
        try:
            return bool(call(clients, name))
        except ClientError as err:
            if err.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 404):
                return False
            raise

    return exists


def _does(call: Callable[..., Any]) -> Callable[..., None]:
    """Errors of the service are what the handler says."""

    def do(*arguments: Any) -> None:
        try:
            call(*arguments)
        except ClientError as err:
            raise Refusal(f"{err.response['Error']['Message']} ({err.response['Error']['Code']})") from err

    return do


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """The calls for one type. `update` leaves alone what moto keeps no trace of."""

    exists: Callable[[Clients, str], bool]
    create: Callable[[Clients, str, Properties], None]
    delete: Callable[[Clients, str], None]
    update: Callable[[Clients, str, Properties], None] = lambda *_: None


def _create_table(clients: Clients, name: str, properties: Properties) -> None:
    body = {key: value for key, value in properties.items() if key not in _LATER}
    clients("dynamodb").create_table(**{**body, "TableName": name})


def _create_bucket(clients: Clients, name: str, _: Properties) -> None:
    s3 = clients("s3")
    region = s3.meta.region_name
    where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=name, **where)


def _put_bucket_policy(clients: Clients, bucket: str, properties: Properties) -> None:
    clients("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(properties["PolicyDocument"]))


def _create_managed_policy(clients: Clients, arn: str, properties: Properties) -> None:
    document = json.dumps(properties["PolicyDocument"])
    clients("iam").create_policy(PolicyName=arn.rpartition("/")[2], PolicyDocument=document)


def _update_managed_policy(clients: Clients, arn: str, properties: Properties) -> None:
    iam = clients("iam")
    for old in iam.list_policy_versions(PolicyArn=arn)["Versions"]:
        if not old["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=arn, VersionId=old["VersionId"])
    iam.create_policy_version(PolicyArn=arn, PolicyDocument=json.dumps(properties["PolicyDocument"]), SetAsDefault=True)


def _create_role(clients: Clients, name: str, properties: Properties) -> None:
    clients("iam").create_role(
        RoleName=name, AssumeRolePolicyDocument=json.dumps(properties["AssumeRolePolicyDocument"])
    )
    _update_role(clients, name, properties)


def _update_role(clients: Clients, name: str, properties: Properties) -> None:
    iam = clients("iam")
    wanted = {policy["PolicyName"]: json.dumps(policy["PolicyDocument"]) for policy in properties.get("Policies", [])}
    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        if policy not in wanted:
            iam.delete_role_policy(RoleName=name, PolicyName=policy)
    for policy, document in wanted.items():
        iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=document)
    carried = set(properties.get("ManagedPolicyArns", []))
    for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        if policy["PolicyArn"] not in carried:
            iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for arn in sorted(carried):
        iam.attach_role_policy(RoleName=name, PolicyArn=arn)


def _delete_role(clients: Clients, name: str) -> None:
    _update_role(clients, name, {})  # what CloudFormation put there itself goes first
    clients("iam").delete_role(RoleName=name)


def _delete_managed_policy(clients: Clients, arn: str) -> None:
    """Refuse to delete a policy that is attached, as IAM does and moto does not. Source: IAM API reference,
    DeletePolicy, DeleteConflict.
    """
    iam = clients("iam")
    found = iam.list_entities_for_policy(PolicyArn=arn)
    if found["PolicyRoles"] or found["PolicyUsers"] or found["PolicyGroups"]:
        raise Refusal("Cannot delete a policy attached to entities. (Service: Iam, Status Code: 409)")
    iam.delete_policy(PolicyArn=arn)


def _delete_bus(clients: Clients, name: str) -> None:
    """A bus with rules stays; moto deletes it. Source: EventBridge API reference, DeleteEventBus."""
    events = clients("events")
    if events.list_rules(EventBusName=name)["Rules"]:
        raise Refusal(f"Cannot delete event bus {name}: it has rules. (Service: EventBridge, Status Code: 400)")
    events.delete_event_bus(Name=name)


def _put_alarm(clients: Clients, name: str, properties: Properties) -> None:
    clients("cloudwatch").put_metric_alarm(**{**properties, "AlarmName": name})


MAKERS: Final[Mapping[str, Maker]] = {
    "AWS::DynamoDB::Table": Maker(
        exists=_asks(lambda clients, name: clients("dynamodb").describe_table(TableName=name)),
        create=_does(_create_table),
        delete=_does(lambda clients, name: clients("dynamodb").delete_table(TableName=name)),
    ),
    "AWS::S3::Bucket": Maker(
        exists=_asks(lambda clients, name: clients("s3").head_bucket(Bucket=name)),
        create=_does(_create_bucket),
        delete=_does(lambda clients, name: clients("s3").delete_bucket(Bucket=name)),
    ),
    "AWS::S3::BucketPolicy": Maker(
        exists=_asks(lambda clients, name: clients("s3").get_bucket_policy(Bucket=name)),
        create=_does(_put_bucket_policy),
        delete=_does(lambda clients, name: clients("s3").delete_bucket_policy(Bucket=name)),
        update=_does(_put_bucket_policy),
    ),
    "AWS::Logs::LogGroup": Maker(
        exists=_asks(
            lambda clients, name: [
                group
                for group in clients("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
                if group["logGroupName"] == name
            ]
        ),
        create=_does(lambda clients, name, _: clients("logs").create_log_group(logGroupName=name)),
        delete=_does(lambda clients, name: clients("logs").delete_log_group(logGroupName=name)),
    ),
    "AWS::Events::EventBus": Maker(
        exists=_asks(lambda clients, name: clients("events").describe_event_bus(Name=name)),
        create=_does(lambda clients, name, _: clients("events").create_event_bus(Name=name)),
        delete=_does(_delete_bus),
    ),
    "AWS::CloudWatch::Alarm": Maker(
        exists=_asks(lambda clients, name: clients("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]),
        create=_does(_put_alarm),
        delete=_does(lambda clients, name: clients("cloudwatch").delete_alarms(AlarmNames=[name])),
        update=_does(_put_alarm),
    ),
    "AWS::IAM::ManagedPolicy": Maker(
        exists=_asks(lambda clients, arn: clients("iam").get_policy(PolicyArn=arn)),
        create=_does(_create_managed_policy),
        delete=_does(_delete_managed_policy),
        update=_does(_update_managed_policy),
    ),
    "AWS::IAM::Role": Maker(
        exists=_asks(lambda clients, name: clients("iam").get_role(RoleName=name)),
        create=_does(_create_role),
        delete=_does(_delete_role),
        update=_does(_update_role),
    ),
}
