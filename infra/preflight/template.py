"""Checks of the packaged template before a deployment: parameters, quotas, and the resources that parameters name.

Without them, CloudFormation or IAM would stop the deployment half way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from infra.cloudformation.intrinsics import Stack
from infra.cloudformation.values import BadParameters, conditions_of, parameter_texts, parameter_values
from infra.target_stack import Check, Finding, TargetStack, code_of, problem

# Source: CloudFormation quotas: a template given by URL; resources of one template.
MAX_TEMPLATE_BYTES: Final = 1_048_576
MAX_RESOURCES: Final = 500
# Source: IAM user guide, IAM and STS quotas: all inline policies of a role together; one managed policy. White space is
# not counted.
MAX_INLINE: Final = 10_240
MAX_MANAGED: Final = 6_144
# Source: Lambda quotas: all environment variables of a function together, measured as JSON.
MAX_ENVIRONMENT: Final = 4_096
# Source: EventBridge quotas: event pattern size in characters, which can be raised.
MAX_PATTERN: Final = 2_048
TRAINING_LOGS: Final = "/aws/sagemaker/TrainingJobs"


def parameters(target: TargetStack) -> Iterator[Finding]:
    """Parameters that the template does not have, and values that it does not allow."""
    assert target.template is not None  # noqa: S101  these checks run with a template only
    try:
        parameter_texts(target.template, target.texts)
    except BadParameters as err:
        for text in str(err).split("; "):
            yield problem(f"parameter {text}", "docs/deploy.md lists the parameters and their values")


def sizes(target: TargetStack) -> Iterator[Finding]:
    """Sizes above an AWS quota: of the template, of each role's policies, of event patterns and of the environment."""
    assert target.template is not None  # noqa: S101
    resources = target.template["Resources"]
    size = len(json.dumps(target.template))
    if size > MAX_TEMPLATE_BYTES:
        yield problem(f"the template has {size} bytes; CloudFormation takes {MAX_TEMPLATE_BYTES}", "report this")
    if len(resources) > MAX_RESOURCES:
        yield problem(
            f"the template has {len(resources)} resources; CloudFormation takes {MAX_RESOURCES}", "report this"
        )
    try:
        resolve = resolver(target)
    except BadParameters:
        return  # reported by `parameters`
    for name, resource in resources.items():
        yield from _resource_sizes(name, resource, resolve)
    variables = target.template.get("Globals", {}).get("Function", {}).get("Environment", {}).get("Variables", {})
    total = _length(resolve(variables))
    if total > MAX_ENVIRONMENT:
        yield problem(
            f"the functions' environment has {total} bytes; Lambda takes {MAX_ENVIRONMENT}",
            "give fewer TrainingRoleArns, or deploy a stage for each half of them",
        )


def _resource_sizes(name: str, resource: Mapping[str, Any], resolve: Callable[[Any], Any]) -> Iterator[Finding]:
    fewer = "give fewer TrainingBuckets, TrainingRoleArns or KmsKeyArns, or deploy a stage for each half of them"
    properties = resource.get("Properties", {})
    if resource["Type"] == "AWS::IAM::Role":
        total = sum(_length(resolve(policy["PolicyDocument"])) for policy in properties.get("Policies", []))
        if total > MAX_INLINE:
            yield problem(f"the inline policies of {name} have {total} bytes; IAM takes {MAX_INLINE}", fewer)
    elif resource["Type"] == "AWS::IAM::ManagedPolicy":
        total = _length(resolve(properties["PolicyDocument"]))
        if total > MAX_MANAGED:
            yield problem(f"the managed policy {name} has {total} bytes; IAM takes {MAX_MANAGED}", fewer)
    elif resource["Type"] == "AWS::Serverless::Function":
        yield from _patterns(resolve(properties.get("Events", {})))


def _patterns(events: Mapping[str, Any]) -> Iterator[Finding]:
    for name, event in events.items():
        total = _length(event["Properties"].get("Pattern", {}))
        if total > MAX_PATTERN:
            yield problem(
                f"the pattern of {name} has {total} characters; EventBridge takes {MAX_PATTERN}",
                "give fewer TrainingBuckets, or deploy a stage for each half of them",
            )


def named_resources(target: TargetStack) -> Iterator[Finding]:
    """Log groups, buckets and roles that the parameters name but that do not exist or cannot be reached.

    A misspelling would otherwise show only when a run needs the resource.
    """
    yield from _log_group(target)
    for bucket in target.listed("TrainingBuckets"):
        yield from _bucket(target, bucket)
    for arn in target.listed("TrainingRoleArns"):
        yield from _role(target, arn)


def _log_group(target: TargetStack) -> Iterator[Finding]:
    if target.texts.get("TrainingLogSignatures") != "yes":
        return
    found = target.client("logs").describe_log_groups(logGroupNamePrefix=TRAINING_LOGS)["logGroups"]
    if all(group["logGroupName"] != TRAINING_LOGS for group in found):
        yield problem(
            f"TrainingLogSignatures is yes and there is no log group {TRAINING_LOGS}",
            f"aws logs create-log-group --log-group-name {TRAINING_LOGS}, or run one training job first",
        )


def _bucket(target: TargetStack, bucket: str) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    s3 = target.client("s3")
    try:
        s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=target.account_id)
    except ClientError as err:
        known = {
            "404": "does not exist",
            "NoSuchBucket": "does not exist",
            "403": "is not this account's, or closed to you",
        }
        text = known.get(code_of(err), f"cannot be read: {err}")
        yield problem(f"the bucket {bucket} of TrainingBuckets {text}", "correct TrainingBuckets, or create it first")
        return


def _role(target: TargetStack, arn: str) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    name = arn.rpartition("/")[2]
    try:
        found = target.client("iam").get_role(RoleName=name)["Role"]["Arn"]
    except ClientError as err:
        if code_of(err) != "NoSuchEntity":
            raise
        found = None
    if found != arn:
        yield problem(
            f"there is no role {arn} (TrainingRoleArns)", "correct TrainingRoleArns, or create the role first"
        )


class _Placeholders(Mapping[Any, Any]):
    """References and attributes before the stack exists: known values, and for resources a text of the greatest length.

    The lengths matter, not the names: the checks compare sizes with quotas.
    """

    def __init__(self, target: TargetStack, known: Mapping[str, Any]) -> None:
        self._target = target
        self._known = known

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key in self._known:
            return self._known[key]
        region, account = self._target.region, self._target.account_id
        if isinstance(key, str):
            return f"https://sqs.{region}.amazonaws.com/{account}/{self._target.stack}-{key}-{'X' * 13}"
        return f"arn:aws:dynamodb:{region}:{account}:{self._target.stack}-{key[0]}-{'X' * 13}"

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def resolver(target: TargetStack) -> Any:
    """A function that resolves the intrinsics in a value of the template, with placeholders for what is not known yet.

    Raises:
        BadParameters: the parameters do not fit the template.
    """
    assert target.template is not None  # noqa: S101
    texts = parameter_texts(target.template, target.texts)
    pseudo = {
        "AWS::StackName": target.stack,
        "AWS::AccountId": target.account_id,
        "AWS::Region": target.region,
        "AWS::Partition": target.session.get_partition_for_region(target.region),
    }
    known = {**pseudo, **parameter_values(target.template, texts)}
    placeholders = _Placeholders(target, known)
    stack = Stack(references=placeholders, attributes=placeholders, conditions=conditions_of(target.template, known))
    return stack.resolve


def _length(document: Any) -> int:
    """Characters of the document as compact JSON."""
    return len(json.dumps(document, separators=(",", ":")))


TEMPLATE_CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("parameters", parameters),
    ("sizes", sizes),
    ("what the parameters name", named_resources),
)
