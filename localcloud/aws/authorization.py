"""What IAM asks before each call of the service: the action, the resource and the context, held against the role of the
function that calls.

A call is turned into what AWS authorises (`needs`): one call may need several actions (a training job that is created
with tags under a role needs three), and a key of KMS where the bucket is encrypted with one. The policies are the
packaged ones (infra/policies), with the template's functions (`Ref`, `Fn::Sub` ...) resolved to this account.
Source of operations' actions, resources and condition keys: the service authorization reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

ACCOUNT_ID: Final = "123456789012"
REGION: Final = "us-west-2"

Params = Mapping[str, Any]
Context = tuple[tuple[str, tuple[str, ...]], ...]  # condition keys with their values


@dataclass(frozen=True, slots=True)
class Permission:
    """One thing that IAM must allow for a call."""

    action: str
    resource: str
    context: Context = ()


@dataclass(frozen=True, slots=True)
class Account:
    """What a call's resources are named after, and which key encrypts what is stored.

    key_of_bucket: the ARN of the KMS key that a bucket encrypts new objects with, None without one.
    key_of_object: the ARN of the KMS key that an object there is encrypted with, None without one.
    """

    account_id: str = ACCOUNT_ID
    region: str = REGION
    key_of_bucket: Callable[[str], str | None] = lambda _: None
    key_of_object: Callable[[str, str], str | None] = lambda *_: None

    def arn(self, service: str, resource: str) -> str:
        """Of a resource in this account and Region."""
        return f"arn:aws:{service}:{self.region}:{self.account_id}:{resource}"


def needs(account: Account, service: str, operation: str, params: Params) -> tuple[Permission, ...]:
    """What IAM must allow for one call.

    Raises:
        KeyError: the operation is not in the table: say there what AWS authorises for it.
    """
    return tuple(_NEEDS[f"{service}.{operation}"](account, params))


# ---- one function per service -------------------------------------------------------------------------------------


def _keys_of_item(params: Params) -> Context:
    key = params.get("Key") or params.get("Item") or {}
    return (("dynamodb:LeadingKeys", (_text(key["pk"]),)),)


def _text(attribute: Any) -> str:
    """A key as DynamoDB's low-level client takes it, or as the resource's does."""
    return str(attribute["S"] if isinstance(attribute, Mapping) else attribute)


def _table(account: Account, params: Params) -> str:
    return account.arn("dynamodb", f"table/{params['TableName']}")


def _item(action: str) -> Callable[[Account, Params], Iterator[Permission]]:
    def need(account: Account, params: Params) -> Iterator[Permission]:
        yield Permission(f"dynamodb:{action}", _table(account, params), _keys_of_item(params))

    return need


def _batch_get(account: Account, params: Params) -> Iterator[Permission]:
    for table, request in params["RequestItems"].items():
        keys = tuple(_text(key["pk"]) for key in request["Keys"])
        yield Permission(
            "dynamodb:BatchGetItem", account.arn("dynamodb", f"table/{table}"), (("dynamodb:LeadingKeys", keys),)
        )


_HASH_IS: Final = re.compile(r"^\s*(\S+)\s*=\s*(:\w+)")


def _query(account: Account, params: Params) -> Iterator[Permission]:
    match = _HASH_IS.match(params["KeyConditionExpression"])
    if match is None:
        raise ValueError(f"which key is asked for? {params['KeyConditionExpression']!r} should begin with it")
    value = _text(params["ExpressionAttributeValues"][match[2]])
    index = f"/index/{params['IndexName']}" if params.get("IndexName") else ""
    yield Permission("dynamodb:Query", _table(account, params) + index, (("dynamodb:LeadingKeys", (value,)),))


_PARTS: Final = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


def _transaction(account: Account, params: Params) -> Iterator[Permission]:
    for part in params["TransactItems"]:
        for kind, request in part.items():
            yield from _item(_PARTS[kind])(account, request)


def _s3_object(action: str, kms: str) -> Callable[[Account, Params], Iterator[Permission]]:
    def need(account: Account, params: Params) -> Iterator[Permission]:
        bucket, key = params["Bucket"], params["Key"]
        yield Permission(f"s3:{action}", f"arn:aws:s3:::{bucket}/{key}")
        if (
            action == "GetObject"
        ):  # without it S3 answers 403 for a key that does not exist, which reads as "not allowed"
            yield Permission("s3:ListBucket", f"arn:aws:s3:::{bucket}")  # nothing is listed: there is no s3:prefix
            used = account.key_of_object(bucket, key)
        else:
            used = params.get("SSEKMSKeyId") or account.key_of_bucket(bucket)
        if used is not None:
            yield Permission(f"kms:{kms}", used, (("kms:ViaService", (f"s3.{account.region}.amazonaws.com",)),))

    return need


def _s3_listing(account: Account, params: Params) -> Iterator[Permission]:  # noqa: ARG001
    yield Permission("s3:ListBucket", f"arn:aws:s3:::{params['Bucket']}", (("s3:prefix", (params.get("Prefix", ""),)),))


def _create_training_job(account: Account, params: Params) -> Iterator[Permission]:
    own = account.arn("sagemaker", f"training-job/{params['TrainingJobName']}")
    yield Permission("sagemaker:CreateTrainingJob", own)
    if plan := params.get("ResourceConfig", {}).get("TrainingPlanArn"):
        yield Permission("sagemaker:CreateTrainingJob", plan)
    if params.get("Tags"):
        yield Permission("sagemaker:AddTags", own)
    disk = params.get("ResourceConfig", {}).get("VolumeKmsKeyId")
    if disk:
        key = disk if disk.startswith("arn:") else account.arn("kms", f"key/{disk}")
        yield Permission("kms:CreateGrant", key, (("kms:GrantIsForAWSResource", ("true",)),))
    yield Permission("iam:PassRole", params["RoleArn"], (("iam:PassedToService", ("sagemaker.amazonaws.com",)),))


def _sagemaker(
    action: str, resource: Callable[[Account, Params], str]
) -> Callable[[Account, Params], Iterator[Permission]]:
    def need(account: Account, params: Params) -> Iterator[Permission]:
        yield Permission(f"sagemaker:{action}", resource(account, params))

    return need


def _job(account: Account, params: Params) -> str:
    return account.arn("sagemaker", f"training-job/{params['TrainingJobName']}")


def _cluster(account: Account, params: Params) -> str:
    """A cluster's ARN ends in its id, whichever of both the caller gives."""
    name = str(params["ClusterName"])
    return name if name.startswith("arn:") else account.arn("sagemaker", f"cluster/{name}")


def _queue_url(params: Params) -> str:
    return str(params["QueueUrl"]).rpartition("/")[2]


def _queue(action: str) -> Callable[[Account, Params], Iterator[Permission]]:
    def need(account: Account, params: Params) -> Iterator[Permission]:
        name = params["QueueName"] if "QueueName" in params else _queue_url(params)
        yield Permission(f"sqs:{action}", account.arn("sqs", name))
        if action == "CreateQueue" and params.get("tags"):
            yield Permission("sqs:TagQueue", account.arn("sqs", name))

    return need


def _parameter(action: str) -> Callable[[Account, Params], Iterator[Permission]]:
    def need(account: Account, params: Params) -> Iterator[Permission]:
        for name in params.get("Names") or [params.get("Name") or params["Path"]]:
            yield Permission(f"ssm:{action}", account.arn("ssm", "parameter/" + str(name).strip("/")))

    return need


def _function(account: Account, name: str, qualifier: str | None) -> str:
    if name.startswith("arn:"):
        return name
    return account.arn("lambda", f"function:{name}" + (f":{qualifier}" if qualifier else ""))


def _invoke(account: Account, params: Params) -> Iterator[Permission]:
    yield Permission("lambda:InvokeFunction", _function(account, params["FunctionName"], params.get("Qualifier")))


def _callback(account: Account, params: Params) -> Iterator[Permission]:  # noqa: ARG001
    """The execution that a callback belongs to cannot be seen in its id; any version of the recovery may be meant."""
    yield Permission(
        "lambda:SendDurableExecutionCallbackSuccess",
        account.arn("lambda", "function:rekindle-recover:1/durable-execution"),
    )


def _executions(account: Account, params: Params) -> Iterator[Permission]:
    yield Permission(
        "lambda:ListDurableExecutionsByFunction",
        _function(account, params["FunctionName"], params.get("Qualifier")),
    )


def _alarm(action: str, *, named: str) -> Callable[[Account, Params], Iterator[Permission]]:
    def need(account: Account, params: Params) -> Iterator[Permission]:
        names = params[named] if isinstance(params[named], list) else [params[named]]
        for name in names:
            yield Permission(f"cloudwatch:{action}", account.arn("cloudwatch", f"alarm:{name}"))
            if action == "PutMetricAlarm" and params.get("Tags"):
                yield Permission("cloudwatch:TagResource", account.arn("cloudwatch", f"alarm:{name}"))

    return need


def _put_events(account: Account, params: Params) -> Iterator[Permission]:
    for name in sorted({entry.get("EventBusName") or "default" for entry in params["Entries"]}):
        bus = name if name.startswith("arn:") else account.arn("events", f"event-bus/{name}")
        yield Permission("events:PutEvents", bus)


def _of(action: str, resource: str) -> Callable[[Account, Params], Iterator[Permission]]:
    """The resource is a member of the request, or `*` where AWS offers nothing smaller."""

    def need(account: Account, params: Params) -> Iterator[Permission]:  # noqa: ARG001
        yield Permission(action, resource if resource == "*" else str(params[resource]))

    return need


_NEEDS: Final[Mapping[str, Callable[[Account, Params], Iterator[Permission]]]] = {
    "dynamodb.GetItem": _item("GetItem"),
    "dynamodb.PutItem": _item("PutItem"),
    "dynamodb.UpdateItem": _item("UpdateItem"),
    "dynamodb.DeleteItem": _item("DeleteItem"),
    "dynamodb.BatchGetItem": _batch_get,
    "dynamodb.Query": _query,
    "dynamodb.TransactWriteItems": _transaction,
    "s3.GetObject": _s3_object("GetObject", "Decrypt"),
    "s3.HeadObject": _s3_object("GetObject", "Decrypt"),
    "s3.PutObject": _s3_object("PutObject", "GenerateDataKey"),
    "s3.DeleteObject": _s3_object("DeleteObject", "Decrypt"),
    "s3.ListObjectsV2": _s3_listing,
    "sagemaker.CreateTrainingJob": _create_training_job,
    "sagemaker.DescribeTrainingJob": _sagemaker("DescribeTrainingJob", _job),
    "sagemaker.StopTrainingJob": _sagemaker("StopTrainingJob", _job),
    "sagemaker.ListTrainingJobs": _of("sagemaker:ListTrainingJobs", "*"),
    "sagemaker.ListTags": _of("sagemaker:ListTags", "ResourceArn"),
    **{
        f"sagemaker.{operation}": _sagemaker(operation, _cluster)
        for operation in (
            "DescribeCluster",
            "DescribeClusterEvent",
            "DescribeClusterNode",
            "ListClusterNodes",
            "BatchRebootClusterNodes",
            "BatchReplaceClusterNodes",
            "StartClusterHealthCheck",
        )
    },
    **{
        f"sqs.{operation}": _queue(operation)
        for operation in (
            "CreateQueue",
            "GetQueueUrl",
            "SendMessage",
            "ReceiveMessage",
            "DeleteMessage",
            "ChangeMessageVisibility",
        )
    },
    **{
        f"ssm.{operation}": _parameter(operation)
        for operation in ("GetParameter", "GetParameters", "GetParametersByPath", "PutParameter")
    },
    "lambda.Invoke": _invoke,
    "lambda.SendDurableExecutionCallbackSuccess": _callback,
    "lambda.ListDurableExecutionsByFunction": _executions,
    "sns.Publish": _of("sns:Publish", "TopicArn"),
    "events.PutEvents": _put_events,
    "cloudwatch.GetMetricData": _of("cloudwatch:GetMetricData", "*"),
    "cloudwatch.PutMetricAlarm": _alarm("PutMetricAlarm", named="AlarmName"),
    "cloudwatch.DeleteAlarms": _alarm("DeleteAlarms", named="AlarmNames"),
    "cloudwatch.DescribeAlarms": lambda account, _: iter(
        [Permission("cloudwatch:DescribeAlarms", account.arn("cloudwatch", "alarm:*"))]
    ),
    "cloudwatch.ListTagsForResource": _of("cloudwatch:ListTagsForResource", "ResourceARN"),
}
