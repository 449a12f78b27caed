"""The merge template: everything that Chalice's decorators cannot say, made from data.

`chalice package --merge-template` lays it over the template made from app.py: dicts merge, lists and values of this
document win. Static resources stand in infra/template/*.yaml; what is the same for every function is made here from
infra/functions.py, so that a new function cannot be forgotten by its alarms or its failure queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from infra import dashboard
from infra.functions import (
    ALIAS,
    DELIVERY_AGE_S,
    DELIVERY_ATTEMPTS,
    FUNCTIONS,
    INFRA,
    RUNTIME,
    SHORTEST_AGE_S,
    Function,
    Trigger,
)
from infra.grants import SHARED, policy, shared_policies

PARTS: Final = ("parameters", "storage", "messaging", "alarms", "outputs")

# The longest training job lasts 28 days (botocore, MaxRuntimeInSeconds); an Incident may span most of it. Both figures
# can only be set when the function is created: renaming it is the migration.
EXECUTION_TIMEOUT_S: Final = 31 * 24 * 3600
EXECUTION_RETENTION_DAYS: Final = 31

_STACK: Final = {"Ref": "AWS::StackName"}
_FAILURES: Final = {"Fn::GetAtt": ["FailuresQueue", "Arn"]}
_TOPIC: Final = [{"Ref": "NoticesTopic"}]

# What Settings.from_env reads, the same for all; AWS_REGION is Lambda's own. The recovery's name is spelt out, not
# referenced: it needs these variables too, and a function cannot wait for its own alias.
ENVIRONMENT: Final[Mapping[str, Any]] = {
    "REKINDLE_TABLE": {"Ref": "RegistryTable"},
    "REKINDLE_BUS": {"Fn::GetAtt": ["MonitorBus", "Name"]},
    "REKINDLE_BUCKET": {"Ref": "MailboxBucket"},
    "REKINDLE_QUARANTINE_URL": {"Ref": "QuarantineQueue"},
    "REKINDLE_TOPIC": {"Ref": "NoticesTopic"},
    "REKINDLE_POLICY_PREFIX": {"Fn::Sub": "/${AWS::StackName}/policies"},
    "REKINDLE_RECOVER_FUNCTION": {"Fn::Sub": f"${{AWS::StackName}}-recover:{ALIAS}"},
    "REKINDLE_STAGE": _STACK,
    "REKINDLE_SWEEP_METRICS_MINUTES": {"Fn::Sub": "${SweepMetricsMinutes}"},  # a text: a Number is none
    "REKINDLE_CONSOLE_URL": {"Ref": "ConsoleUrl"},
    "REKINDLE_NOTICE_LINK_HOURS": {"Fn::Sub": "${NoticeLinkHours}"},
    "REKINDLE_ACCOUNT": {"Ref": "AWS::AccountId"},
    "REKINDLE_SETTINGS_PREFIX": {"Fn::Sub": "/${AWS::StackName}"},
    "REKINDLE_DELIVERIES_URL": {"Ref": "DeliveriesQueue"},
    "REKINDLE_UNDELIVERED_URL": {"Ref": "UndeliveredQueue"},
    "REKINDLE_TRAINING_ROLES": {"Fn::Join": [",", {"Ref": "TrainingRoleArns"}]},
    "POWERTOOLS_SERVICE_NAME": _STACK,
    "POWERTOOLS_METRICS_NAMESPACE": "Rekindle",
}

# Other people's servers have no AWS credentials: these check a signature or a secret of their own, over the raw body,
# before they read a word of it. They are public, so each has a rate limit.
OPEN_PATHS: Final = ("/hooks/in/{name}", "/hooks/slack/actions", "/hooks/slack/commands")
_OPEN_RATE: Final = {"ThrottlingRateLimit": 20, "ThrottlingBurstLimit": 50}  # requests a second, and at once

# Every other request is signed with AWS credentials, whatever a route in app.py says or forgets: who may call what is
# then an IAM question. The version keeps SAM from adding a second stage named "Stage".
REST_API: Final[Mapping[str, Any]] = {
    "Auth": {"DefaultAuthorizer": "AWS_IAM"},
    "OpenApiVersion": "2.0",
    "DefinitionBody": {
        "info": {"description": "Jobs, Incidents and orders of Rekindle"},
        "paths": {path: {"post": {"security": [{"NONE": []}]}} for path in OPEN_PATHS},  # SAM: no default authorizer
    },
    # Source: CloudFormation, MethodSetting, ResourcePath: slashes of the path as ~1, with one / before it.
    "MethodSettings": [
        {"ResourcePath": "/" + path.replace("/", "~1"), "HttpMethod": "POST", **_OPEN_RATE} for path in OPEN_PATHS
    ],
}


def merge_template() -> dict[str, Any]:
    """The whole document, ready for `--merge-template`.

    Raises:
        ValueError: two parts define the same resource.
    """
    template: dict[str, Any] = {"Description": "Rekindle: brings dead, stuck or poisoned training runs back"}
    for part in PARTS:
        _add(template, _read_yaml(INFRA / "template" / f"{part}.yaml"))
    template["Resources"]["TrainingPolicy"]["Properties"]["PolicyDocument"] = policy("training-role")
    for name in SHARED:
        _add(template, {"Resources": {managed_policy(name): _shared_policy(name)}})
    template["Resources"]["RestAPI"] = {"Properties": dict(REST_API)}
    template["Resources"]["Dashboard"] = dashboard.resource()
    template["Globals"] = {"Function": {"Environment": {"Variables": dict(ENVIRONMENT)}}}
    for function in FUNCTIONS:
        _add(template, {"Resources": _resources(function)})
    return template


def managed_policy(name: str) -> str:
    """The logical id of a managed policy that several roles carry."""
    return "".join(part.capitalize() for part in name.split("_")) + "Policy"


def _shared_policy(name: str) -> dict[str, Any]:
    return {
        "Type": "AWS::IAM::ManagedPolicy",
        "Condition": "HasTrainingBuckets",
        "Properties": {"PolicyDocument": policy(name)},
    }


def _read_yaml(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))  # type: ignore[no-untyped-call]  # PyYAML has no types


def _add(template: dict[str, Any], part: Mapping[str, Any]) -> None:
    for section, entries in part.items():
        there = template.setdefault(section, {})
        if twice := there.keys() & entries.keys():
            raise ValueError(f"defined twice in {section}: {', '.join(sorted(twice))}")
        there.update(entries)


def _resources(function: Function) -> dict[str, Any]:
    durable = _durable_alarms(function) if function.trigger is Trigger.DURABLE else {}
    carried = [{"Ref": managed_policy(name)} for name in shared_policies(policy(function.name))]
    role = {"ManagedPolicyArns": {"Fn::If": ["HasTrainingBuckets", carried, {"Ref": "AWS::NoValue"}]}}
    return {
        **durable,
        **({f"{function.base_id}Role": {"Properties": role}} if carried else {}),
        function.logical_id: {"Properties": _function_properties(function)},
        f"{function.base_id}LogGroup": {
            # Chalice names it after the function's logical id; for the API that id does not exist after its renaming.
            "Properties": {
                "LogGroupName": {"Fn::Sub": f"/aws/lambda/${{AWS::StackName}}-{function.name}"},
                "RetentionInDays": {"Ref": "LogRetentionDays"},
            }
        },
        f"{function.base_id}ErrorsAlarm": _alarm(
            function,
            metric="Errors",
            page="function-errors",
            text="failed: an exception left the handler, or it ran out of time.",
        ),
        f"{function.base_id}ThrottlesAlarm": _alarm(
            function,
            metric="Throttles",
            page="function-throttles",
            text="was throttled: the account's concurrency is used up.",
        ),
    }


def _function_properties(function: Function) -> dict[str, Any]:
    properties: dict[str, Any] = {
        # A fixed name lets each role name exactly its own function and log group without a circular reference.
        "FunctionName": {"Fn::Sub": f"${{AWS::StackName}}-{function.name}"},
        "Runtime": RUNTIME,
        # Chalice's own tag names the stage it packed; the same package serves every stage.
        "Tags": {"rekindle:stack": _STACK, "aws-chalice": {"Ref": "AWS::StackName"}},
    }
    if function.can_be_flooded:
        limit = {"Fn::If": ["HasEventConcurrency", {"Ref": "EventConcurrency"}, {"Ref": "AWS::NoValue"}]}
        properties["ReservedConcurrentExecutions"] = limit
    if function.is_asynchronous:
        properties["EventInvokeConfig"] = {
            "MaximumRetryAttempts": function.invoke_retries,
            "MaximumEventAgeInSeconds": function.invoke_age_s,
        }
        if function.trigger is Trigger.DURABLE:
            # Lambda sends the event of an execution that FAILED, STOPPED or TIMED_OUT to the dead-letter queue.
            # Source: Lambda guide, durable-best-practices, "Error handling".
            properties["DeadLetterQueue"] = {"Type": "SQS", "TargetArn": _FAILURES}
        else:
            properties["EventInvokeConfig"]["DestinationConfig"] = {
                "OnFailure": {"Type": "SQS", "Destination": _FAILURES}
            }
    if function.event_id is not None:
        properties["Events"] = {function.event_id: _event(function)}
    if function.trigger is Trigger.DURABLE:
        properties["DurableConfig"] = {
            "ExecutionTimeout": EXECUTION_TIMEOUT_S,
            "RetentionPeriodInDays": EXECUTION_RETENTION_DAYS,
        }
        # An execution stays on the version it began with, whatever is deployed meanwhile.
        properties["AutoPublishAlias"] = ALIAS
        properties["AutoPublishAliasAllProperties"] = True  # or a changed variable would never reach the alias
    return properties


def _event(function: Function) -> dict[str, Any]:
    """What the decorator's event lacks. The pattern stays the decorator's, but for names that only the stack knows."""
    if function.trigger is Trigger.QUEUE:
        # Without ReportBatchItemFailures what the function reports as failed would be deleted (style guide, 6.3).
        queue = {"Queue": {"Fn::GetAtt": ["DeliveriesQueue", "Arn"]}}
        return {"Properties": {**queue, "FunctionResponseTypes": ["ReportBatchItemFailures"]}}
    retry = {"MaximumRetryAttempts": DELIVERY_ATTEMPTS, "MaximumEventAgeInSeconds": DELIVERY_AGE_S}
    properties: dict[str, Any] = {"DeadLetterConfig": {"Arn": _FAILURES}, "RetryPolicy": retry}
    match function.trigger:
        case Trigger.SCHEDULE:
            properties["RetryPolicy"] = {
                "MaximumRetryAttempts": 0,
                "MaximumEventAgeInSeconds": SHORTEST_AGE_S,
            }  # the next one comes in a minute
            return {"Properties": properties}
        case Trigger.CUSTOM_BUS:
            properties["EventBusName"] = {"Fn::GetAtt": ["MonitorBus", "Name"]}
        case _:
            pass
    return {"Type": "EventBridgeRule", "Properties": properties}


def _durable_alarms(function: Function) -> dict[str, Any]:
    """A durable execution that fails is returned as FAILED: Lambda's `Errors` counts failed invocations alone.

    Source: Lambda guide, durable-monitoring: DurableExecutionFailed and DurableExecutionTimedOut are for this.
    """
    return {
        f"{function.base_id}{metric}Alarm": _alarm(function, metric=metric, page="executions-failed", text=text, bad=1)
        for metric, text in (
            ("DurableExecutionFailed", "ended an execution as FAILED."),
            ("DurableExecutionTimedOut", "ended an execution that had run for its longest time."),
        )
    }


def _alarm(function: Function, *, metric: str, page: str, text: str, bad: int = 2) -> dict[str, Any]:
    """bad: so many of five minutes make it ring."""
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": {"Fn::Sub": f"${{AWS::StackName}}-{function.name}-{metric.lower()}"},
            "AlarmDescription": f"The function {function.name} {text} See docs/runbook/{page}.md",
            "Namespace": "AWS/Lambda",
            "MetricName": metric,
            "Dimensions": [{"Name": "FunctionName", "Value": {"Ref": function.logical_id}}],
            "Statistic": "Sum",
            "Period": 60,
            # Where Lambda or the caller tries again, one bad minute is what that is for; two in five are news.
            "EvaluationPeriods": 5,
            "DatapointsToAlarm": bad,
            "Threshold": 1,
            "ComparisonOperator": "GreaterThanOrEqualToThreshold",
            "TreatMissingData": "notBreaching",
            "AlarmActions": _TOPIC,
            "OKActions": _TOPIC,
        },
    }
