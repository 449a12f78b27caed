"""What a removed stack leaves in the account, each with what it costs and how it goes; and what forbids the removal.

Kept on purpose, since the next deployment takes it up: the table and the bucket. Left because the stack does not know
it: what the service made at run time (alarms of Jobs, queues of head nodes), what people wrote (parameters, secrets),
what they attached to it, and the bucket of bundles, which all stages share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from infra.target_stack import Check, Finding, TargetStack, findings, note, problem

_AT_ONCE: Final = 20  # names in one command, so that a line stays one
_GONE: Final = frozenset({"DELETE_COMPLETE", "DELETE_SKIPPED"})  # of a creation that was rolled back
_CLUSTER_LOGS: Final = "/aws/sagemaker/"


def deletion_blockers(target: TargetStack) -> Iterator[Finding]:
    """What would make CloudFormation stop half way through the deletion, with the rest gone."""
    cloud = target.client("cloudformation")
    own = [
        resource
        for page in cloud.get_paginator("list_stack_resources").paginate(StackName=target.stack)
        for resource in page["StackResourceSummaries"]
        if resource.get("PhysicalResourceId") and resource["ResourceStatus"] not in _GONE
    ]
    ids = {resource["PhysicalResourceId"] for resource in own}
    for resource in own:
        if resource["ResourceType"] == "AWS::IAM::ManagedPolicy":
            yield from _attached(target, resource["PhysicalResourceId"], own=ids)
        elif resource["ResourceType"] == "AWS::Events::EventBus":
            yield from _rules(target, resource["PhysicalResourceId"], own=ids)


def _attached(target: TargetStack, arn: str, *, own: set[str]) -> Iterator[Finding]:
    pages = target.client("iam").get_paginator("list_entities_for_policy").paginate(PolicyArn=arn)
    for page in pages:
        for kind, members in (("role", "PolicyRoles"), ("user", "PolicyUsers"), ("group", "PolicyGroups")):
            for holder in page.get(members, []):
                name = holder[f"{kind.capitalize()}Name"]
                if name not in own:
                    yield problem(
                        f"the {kind} {name} still has the policy {arn}",
                        f"aws iam detach-{kind}-policy --{kind}-name {name} --policy-arn {arn}",
                    )


def _rules(target: TargetStack, bus: str, *, own: set[str]) -> Iterator[Finding]:
    name = bus.rpartition("/")[2]
    for page in target.client("events").get_paginator("list_rules").paginate(EventBusName=name):
        for rule in page["Rules"]:
            mine = {rule["Name"], f"{name}|{rule['Name']}", rule.get("Arn", "")}
            if not mine & own:
                yield problem(
                    f"the rule {rule['Name']} on the bus {name} is none of the stack's",
                    f"aws events remove-targets --event-bus-name {name} --rule {rule['Name']} --ids ..., "
                    f"then aws events delete-rule --event-bus-name {name} --name {rule['Name']}",
                )


def leftover_resources(target: TargetStack) -> tuple[Finding, ...]:
    """What is there once the stack is gone, beside what the template keeps."""
    return tuple(findings(target, _LEFT))


def _alarms(target: TargetStack) -> Iterator[Finding]:
    watch = target.client("cloudwatch")
    for prefix in (f"{target.stack}-job-", f"{target.stack}-jobs-"):
        found = [
            alarm
            for page in watch.get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix)
            for alarm in page["MetricAlarms"]
        ]
        # Another stage may be called `job-…`: an alarm says by its tag whose it is.
        names = [alarm["AlarmName"] for alarm in found if _stack_tag(watch, alarm["AlarmArn"]) == target.stack]
        yield from _in_lines(
            names,
            "alarm{s} of Jobs, billed at 0.10 USD a month each (0.30 with a band)",
            "aws cloudwatch delete-alarms --alarm-names {names}",
        )


def _stack_tag(watch: Any, arn: str) -> str | None:
    tags = watch.list_tags_for_resource(ResourceARN=arn)["Tags"]
    return next((str(tag["Value"]) for tag in tags if tag["Key"] == "rekindle:stack"), None)


def _queues(target: TargetStack) -> Iterator[Finding]:
    prefix = f"{target.stack}-agent-"
    pages = target.client("sqs").get_paginator("list_queues").paginate(QueueNamePrefix=prefix)
    urls = [url for page in pages for url in page.get("QueueUrls", [])]
    others = _other_stages(target)
    mine = [url for url in urls if not url.rpartition("/")[2].startswith(others)]
    for url in mine:
        yield note(
            f"the queue of a head node's agent {url}, billed by its agent's polls",
            f"stop that agent, then aws sqs delete-queue --queue-url {url}",
        )


def _parameters(target: TargetStack) -> Iterator[Finding]:
    filters = [{"Key": "Path", "Option": "Recursive", "Values": [f"/{target.stack}"]}]
    pages = target.client("ssm").get_paginator("describe_parameters").paginate(ParameterFilters=filters)
    names = [parameter["Name"] for page in pages for parameter in page["Parameters"]]
    yield from _in_lines(
        sorted(names),
        "stored setting{s}, policies and secrets that people wrote",
        "aws ssm delete-parameters --names {names}",
    )


def _subscriptions(target: TargetStack) -> Iterator[Finding]:
    logs = target.client("logs")
    function = f":function:{target.stack}-log_batch"
    groups = [
        group["logGroupName"]
        for page in logs.get_paginator("describe_log_groups").paginate(logGroupNamePrefix=_CLUSTER_LOGS)
        for group in page["logGroups"]
    ]
    for group in groups:
        for subscription in logs.describe_subscription_filters(logGroupName=group)["subscriptionFilters"]:
            if subscription["destinationArn"].endswith(function):
                name = subscription["filterName"]
                yield note(
                    f"the subscription {name} of {group} sends to a function that is gone",
                    f"aws logs delete-subscription-filter --log-group-name {group} --filter-name {name}",
                )


def _log_groups(target: TargetStack) -> Iterator[Finding]:
    pages = target.client("logs").get_paginator("describe_log_groups")
    prefix = f"/aws/lambda/{target.stack}-"
    others = tuple(f"/aws/lambda/{name}" for name in _other_stages(target))
    names = [group["logGroupName"] for page in pages.paginate(logGroupNamePrefix=prefix) for group in page["logGroups"]]
    for name in names:
        if not name.startswith(others):
            yield note(f"the log group {name}", f"aws logs delete-log-group --log-group-name {name}")


def _other_stages(target: TargetStack) -> tuple[str, ...]:
    """What the resources of stacks are called by whose names begin with this one's (`rekindle-agent` of `rekindle`)."""
    pages = target.client("cloudformation").get_paginator("describe_stacks").paginate()
    names = [str(stack["StackName"]) for page in pages for stack in page["Stacks"]]
    return tuple(f"{name}-" for name in names if name.startswith(f"{target.stack}-"))


def _bundles(target: TargetStack) -> Iterator[Finding]:
    from botocore.exceptions import ClientError

    name = f"rekindle-artefacts-{target.account_id}-{target.region}"
    try:
        target.client("s3").head_bucket(Bucket=name, ExpectedBucketOwner=target.account_id)
    except ClientError:
        return
    yield note(f"the bucket {name} of bundles and templates, shared by all stages", f"aws s3 rb s3://{name} --force")


def _in_lines(names: list[str], what: str, remedy: str) -> Iterator[Finding]:
    for first in range(0, len(names), _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        text = what.replace("{s}", "" if len(some) == 1 else "s")
        yield note(f"{len(some)} {text}", remedy.format(names=" ".join(some)))


_LEFT: Final[tuple[tuple[str, Check], ...]] = (
    ("alarms of Jobs", _alarms),
    ("queues of head nodes", _queues),
    ("stored settings", _parameters),
    ("subscriptions of log groups", _subscriptions),
    ("log groups", _log_groups),
    ("the bucket of bundles", _bundles),
)
