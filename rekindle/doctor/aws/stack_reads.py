"""From an account's answers to the facts about Rekindle's own stack. Only ever reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.doctor.aws.account import Account, chunks
from rekindle.doctor.base.facts import Found, Missing, NotInspected, Read
from rekindle.doctor.stack.rules import (
    ERROR_HOURS,
    EVENT_DAYS,
    SWEEP,
    SWEEP_MINUTES,
    AlarmFacts,
    FunctionFacts,
    PeopleFacts,
    RuleFacts,
    StackFacts,
)

BUS_OUTPUT: Final = "BusName"  # infra/template/outputs.yaml
MAX_SIMULATED: Final = 25  # actions in one question to IAM
_DAY_S: Final = 86_400
# How a resource of the stack is asked about; everything else of it needs no look.
_RULE, _FUNCTION, _MAPPING = "AWS::Events::Rule", "AWS::Lambda::Function", "AWS::Lambda::EventSourceMapping"
_QUEUE, _ALARM, _TOPIC = "AWS::SQS::Queue", "AWS::CloudWatch::Alarm", "AWS::SNS::Topic"
_BUCKET, _ROLE = "AWS::S3::Bucket", "AWS::IAM::Role"


def read_stack(account: Account, name: str, *, now: datetime) -> Found[StackFacts]:
    """Everything about the stack `name`."""
    answer = account.ask("cloudformation", "describe_stacks", StackName=name)
    if (
        isinstance(answer, NotInspected) and "does not exist" in answer.why
    ):  # CloudFormation's word for it: ValidationError
        return Missing()
    if not isinstance(answer, dict):
        return answer
    stack = (answer.get("Stacks") or [{}])[0]
    rows = account.pages("cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=name)
    if not isinstance(rows, list):
        return rows
    made: dict[str, dict[str, str]] = {}
    for row in rows:
        made.setdefault(str(row.get("ResourceType", "")), {})[str(row.get("LogicalResourceId", ""))] = str(
            row.get("PhysicalResourceId", "")
        )
    functions, buses = made.get(_FUNCTION, {}), _outputs(stack, BUS_OUTPUT)
    sweep = functions.get(SWEEP, "")
    return StackFacts(
        name=name,
        status=str(stack.get("StackStatus", "")),
        reason=str(stack.get("StackStatusReason") or ""),
        rules={key: _rule(account, ref, buses, now) for key, ref in made.get(_RULE, {}).items()},
        functions={key: _function(account, ref, now) for key, ref in functions.items()},
        mappings={key: _mapping(account, ref) for key, ref in made.get(_MAPPING, {}).items()},
        queues={key: _queue(account, ref) for key, ref in made.get(_QUEUE, {}).items()},
        alarms=_alarms(account, made.get(_ALARM, {})),
        sweeps=_sum(
            account, "AWS/Lambda", "Invocations", {"FunctionName": sweep}, now, timedelta(minutes=SWEEP_MINUTES)
        )
        if sweep
        else NotInspected("the stack has no sweep"),
        people=_people(account, name, next(iter(made.get(_TOPIC, {}).values()), "")),
        buckets={ref: read_bucket(account, ref) for ref in made.get(_BUCKET, {}).values()},
        roles={key: _denied(account, ref) for key, ref in made.get(_ROLE, {}).items()},
    )


def _outputs(stack: Mapping[str, Any], key: str) -> list[str]:
    rows = stack.get("Outputs") or []
    return [
        str(output["OutputValue"]) for output in rows if output.get("OutputKey") == key and output.get("OutputValue")
    ]


def read_bucket(account: Account, bucket: str) -> Found[bool]:
    """True where the bucket can be listed."""
    answer = account.ask("s3", "list_objects_v2", Bucket=bucket, MaxKeys=1)
    return True if isinstance(answer, dict) else answer


def _rule(account: Account, reference: str, buses: Iterable[str], now: datetime) -> Found[RuleFacts]:
    """`reference`: `name` on the default bus, `bus|name` on another; a bare name is looked for on the stack's, too."""
    bus, _, name = reference.rpartition("|")
    rule: dict[str, Any] | Missing | NotInspected = Missing()
    where: dict[str, str] = {}
    for bus_name in [bus] if bus else ["", *buses]:
        where = {"EventBusName": bus_name} if bus_name else {}
        rule = account.ask("events", "describe_rule", Name=name, **where)
        if not isinstance(rule, Missing):
            break
    if not isinstance(rule, dict):
        return rule
    targets = account.ask("events", "list_targets_by_rule", Rule=name, **where)
    if not isinstance(targets, dict):
        return targets
    dimensions = {"RuleName": name, **where}
    span = timedelta(days=EVENT_DAYS)
    is_schedule = bool(rule.get("ScheduleExpression"))
    return RuleFacts(
        enabled=str(rule.get("State", "")).startswith("ENABLED"),
        targets=len(targets.get("Targets") or []),
        is_schedule=is_schedule,
        matched=NotInspected("a schedule")
        if is_schedule
        else _sum(account, "AWS/Events", "MatchedEvents", dimensions, now, span),
        failed=NotInspected("a schedule")
        if is_schedule
        else _sum(account, "AWS/Events", "FailedInvocations", dimensions, now, span),
    )


def _function(account: Account, name: str, now: datetime) -> Found[FunctionFacts]:
    answer = account.ask("lambda", "get_function", FunctionName=name)
    if not isinstance(answer, dict):
        return answer
    known = answer.get("Configuration") or {}
    reserved = (answer.get("Concurrency") or {}).get("ReservedConcurrentExecutions")
    return FunctionFacts(
        state=str(known.get("State") or ""),
        update=str(known.get("LastUpdateStatus") or ""),
        reason=str(known.get("StateReason") or known.get("LastUpdateStatusReason") or ""),
        reserved=reserved if isinstance(reserved, int) else None,
        errors=_sum(account, "AWS/Lambda", "Errors", {"FunctionName": name}, now, timedelta(hours=ERROR_HOURS)),
    )


def _mapping(account: Account, uuid: str) -> Found[str]:
    answer = account.ask("lambda", "get_event_source_mapping", UUID=uuid)
    return str(answer.get("State") or "") if isinstance(answer, dict) else answer


def _queue(account: Account, url: str) -> Found[int]:
    answer = account.ask("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    if not isinstance(answer, dict):
        return answer
    return int((answer.get("Attributes") or {}).get("ApproximateNumberOfMessages") or 0)


def _alarms(account: Account, made: Mapping[str, str]) -> dict[str, Found[AlarmFacts]]:
    found: dict[str, Found[AlarmFacts]] = {}
    for names in chunks(made.values(), 100):
        rows = account.pages("cloudwatch", "describe_alarms", "MetricAlarms", AlarmNames=names)
        by_name = {str(row.get("AlarmName")): row for row in rows} if isinstance(rows, list) else {}
        for key, name in made.items():
            if name not in names:
                continue
            row = by_name.get(name)
            if row is None:
                found[key] = Missing() if isinstance(rows, list) else rows
                continue
            found[key] = AlarmFacts(
                state=str(row.get("StateValue") or ""),
                may_act=row.get("ActionsEnabled") is not False,
                actions=len(row.get("AlarmActions") or []),
                reason=str(row.get("StateReason") or ""),
            )
    return found


def _people(account: Account, stack: str, topic: str) -> Read[PeopleFacts]:
    confirmed = pending = 0
    if topic:
        rows = account.pages("sns", "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic)
        if isinstance(rows, NotInspected):
            return rows
        reported = [str(row.get("SubscriptionArn") or "") for row in rows] if isinstance(rows, list) else []
        pending = sum(not arn.startswith("arn:") for arn in reported)  # "PendingConfirmation" stands in the ARN's place
        confirmed = len(reported) - pending
    answer = account.ask("ssm", "get_parameter", Name=f"/{stack}/channels")
    if isinstance(answer, NotInspected) and "ParameterNotFound" not in answer.why:
        return answer
    document = str((answer.get("Parameter") or {}).get("Value") or "") if isinstance(answer, dict) else ""
    channels, names, unreadable = _channels(document)
    missing = tuple(name for name in names if _has_no_secret(account, f"/{stack}/secrets/{name}"))
    return PeopleFacts(
        confirmed=confirmed, pending=pending, channels=channels, missing_secrets=missing, unreadable=unreadable
    )


def _channels(document: str) -> tuple[int, tuple[str, ...], str]:
    """How many channels, the secrets that they name, and why the document cannot be used."""
    if not document:
        return 0, (), ""
    try:
        wire = json.loads(document)
    except (ValueError, RecursionError):
        return 0, (), "it is not JSON"
    channels = wire.get("channels") if isinstance(wire, dict) else None
    if not isinstance(channels, dict):
        return 0, (), "it names no channels"
    names = [
        str(value)
        for channel in channels.values()
        if isinstance(channel, dict)
        for key, value in channel.items()
        if key.endswith("_secret") and isinstance(value, str)  # docs/notifications.md: such a field names a secret
    ]
    return len(channels), tuple(dict.fromkeys(names)), ""


def _has_no_secret(account: Account, name: str) -> bool:
    """True only where AWS says so. The value is never asked for: a listing by name tells that it exists."""
    rows = account.pages(
        "ssm",
        "describe_parameters",
        "Parameters",
        ParameterFilters=[{"Key": "Name", "Option": "Equals", "Values": [name]}],
    )
    return isinstance(rows, list) and not rows


def _denied(account: Account, role: str) -> Found[tuple[str, ...]]:
    """What the role's own inline policies grant and something else takes away."""
    answer = account.ask("iam", "get_role", RoleName=role)
    if not isinstance(answer, dict):
        return answer
    arn = str((answer.get("Role") or {}).get("Arn") or "")
    policies = account.pages("iam", "list_role_policies", "PolicyNames", marker="Marker", RoleName=role)
    if not isinstance(policies, list):
        return policies
    denied: list[str] = []
    for policy in policies:
        document = account.ask("iam", "get_role_policy", RoleName=role, PolicyName=policy)
        if not isinstance(document, dict):
            return document
        for actions, resources in _grants(document.get("PolicyDocument")):
            for some in chunks(actions, MAX_SIMULATED):
                reported = account.ask(
                    "iam",
                    "simulate_principal_policy",
                    PolicySourceArn=arn,
                    ActionNames=some,
                    ResourceArns=resources,
                )
                if not isinstance(reported, dict):
                    return reported
                denied += [
                    str(evaluation.get("EvalActionName"))
                    for evaluation in reported.get("EvaluationResults") or []
                    if _is_taken(evaluation)
                ]
    return tuple(dict.fromkeys(denied))


def _grants(document: object) -> list[tuple[list[str], list[str]]]:
    """Actions with resources of every Allow. Wildcards in actions cannot be simulated and are left out."""
    statements = document.get("Statement") if isinstance(document, dict) else None
    found = []
    for statement in statements if isinstance(statements, list) else [statements]:
        if not isinstance(statement, dict) or statement.get("Effect") != "Allow":
            continue
        actions = [name for name in _many(statement.get("Action")) if "*" not in name]
        if actions:
            found.append((actions, _many(statement.get("Resource"))[:10] or ["*"]))
    return found


def _many(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)] if value is not None else []


def _is_taken(result: Mapping[str, Any]) -> bool:
    """A Deny, an organization or a boundary stands in the way; a condition that was not given here does not count."""
    if result.get("EvalDecision") == "explicitDeny":
        return True
    organization = (result.get("OrganizationsDecisionDetail") or {}).get("AllowedByOrganizations")
    boundary = (result.get("PermissionsBoundaryDecisionDetail") or {}).get("AllowedByPermissionsBoundary")
    return organization is False or boundary is False


def _sum(
    account: Account, namespace: str, metric: str, dimensions: Mapping[str, str], now: datetime, span: timedelta
) -> Read[float]:
    """The metric's sum over `span`. No data points are a sum of zero: these services publish none where none came."""
    answer = account.ask(
        "cloudwatch",
        "get_metric_statistics",
        Namespace=namespace,
        MetricName=metric,
        Dimensions=[{"Name": name, "Value": value} for name, value in dimensions.items()],
        StartTime=now - span,
        EndTime=now,
        Period=_DAY_S if span > timedelta(hours=1) else 60,
        Statistics=["Sum"],
    )
    if isinstance(answer, Missing):
        return NotInspected("CloudWatch does not know the metric")
    if isinstance(answer, NotInspected):
        return answer
    return float(sum(point.get("Sum", 0.0) for point in answer.get("Datapoints") or []))
